"""Transactions in time: what the logs held at a time has all rows of each transaction, or none."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import col
from forebay.base.ambient import SYSTEM_CLOCK, ManualClock
from forebay.base.errors import ForebayError, OutcomeUnknown
from forebay.client.table import Table
from forebay.log.tablet import LogTablet
from forebay.metadata.predicate import Predicate
from forebay.server.embedded import EmbeddedServer
from forebay.server.handlers import offsets
from forebay.server.server import Injected
from forebay.server.storage.replica import BucketReplica
from forebay.server.transactions.manager import TransactionManager
from forebay.server.transactions.stages import StageFiles
from forebay.unionread.time_range import offsets_now
from tests.client.conftest import own_server
from tests.patience import PATIENCE

pytestmark = own_server

LOG = {"n": "BIGINT"}
KV = {"id": "BIGINT", "a": "STRING", "b": "STRING"}


def times_of(table: Table, rows: Predicate | None = None) -> set[dt.datetime]:
    with table.changes("earliest", "latest", include=("timestamp",), filter=rows) as changes:
        return set(changes.to_arrow()["_commit_timestamp"].to_pylist())


def test_all_rows_of_a_transaction_have_the_time_of_its_decision(tmp_path: Path) -> None:
    """The clock goes on with each look at it, so rows that are written one after the other had other times."""

    class RunningClock(ManualClock):
        def now_ms(self) -> int:
            self.jump_wall_clock(1)
            return super().now_ms()

    clock = RunningClock(SYSTEM_CLOCK.now_ms())
    server = EmbeddedServer(tmp_path / "data", injected=Injected(clock=clock))
    with server, forebay.connect(server.bootstrap_servers) as connection:
        log = connection.create_table("fluss.log", LOG, buckets=4)
        kv = connection.create_table("fluss.kv", KV, primary_key="id", buckets=4)
        for n in range(3):
            with connection.transaction() as tx:
                tx.append(log, [{"n": n} for n in range(40)])
                tx.upsert(kv, [{"id": id_, "a": str(n), "b": None} for id_ in range(40)])
            assert tx.committed in times_of(log)
            assert len(times_of(log)) == n + 1
        assert times_of(kv) == times_of(log)


@pytest.mark.parametrize("is_keyed", [True, False], ids=["primary key", "log"])
def test_an_earlier_state_has_all_of_a_transaction_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_keyed: bool
) -> None:
    """One bucket has its rows long before the other, and a client writes to both meanwhile."""
    with EmbeddedServer(tmp_path / "data") as server, forebay.connect(server.bootstrap_servers) as connection:
        keys = {"primary_key": "id"} if is_keyed else {"bucket_keys": "id"}
        table = connection.create_table("fluss.t", {"id": "BIGINT", "a": "STRING"}, buckets=2, **keys)  # type: ignore[arg-type]
        put = table.upsert if is_keyed else table.append
        put([{"id": id_, "a": "before"} for id_ in range(100, 140)])
        write, is_written, may_go_on = BucketReplica._write_decided_group, threading.Event(), threading.Event()

        def slow(self: BucketReplica, *args: Any) -> None:
            if self.bucket.bucket == 1:
                assert is_written.wait(PATIENCE)
                assert may_go_on.wait(PATIENCE)
            write(self, *args)
            is_written.set()

        def rows_at(moment: dt.datetime) -> list[str]:
            found = table.scan(source="union", as_of=moment, filter=col("id") < 100).to_arrow()
            return sorted(found["a"].to_pylist())

        monkeypatch.setattr(BucketReplica, "_write_decided_group", slow)
        tx = connection.transaction("job", 7).begin()
        (tx.upsert if is_keyed else tx.append)(table, [{"id": id_, "a": "tx"} for id_ in range(40)])
        with ThreadPoolExecutor(3) as pool, ExitStack() as at_the_end:
            at_the_end.callback(may_go_on.set)
            committing = pool.submit(tx.commit)
            assert is_written.wait(PATIENCE)
            put([{"id": id_, "a": "client"} for id_ in range(100, 140)])
            [decided] = times_of(table, col("id") < 100)  # of the rows that are there
            assert connection.admin.committed_version("job") == 7  # readers see some of it
            assert rows_at(decided - dt.timedelta(milliseconds=1)) == []
            reading = pool.submit(rows_at, dt.datetime.now(dt.UTC))
            now = pool.submit(offsets_now, table, table.buckets())
            with pytest.raises(TimeoutError):
                reading.result(0.3)
            may_go_on.set()
            assert reading.result(PATIENCE) == ["tx"] * 40
            committing.result(PATIENCE)
            ends = now.result(PATIENCE)
        assert tx.committed == decided
        assert rows_at(decided) == ["tx"] * 40
        assert ends == connection.admin.list_offsets(table.info)


def test_a_time_whose_rows_take_long_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        EmbeddedServer(tmp_path / "data") as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="200 ms") as connection,
    ):
        log = connection.create_table("fluss.log", LOG, buckets=2)
        log.append([{"n": 1}])
        tx = connection.transaction().begin()
        tx.append(log, [{"n": n} for n in range(2, 40)])

        def fails(self: StageFiles, entry: Any) -> bytearray:
            raise ForebayError("the disk is away")

        with monkeypatch.context() as patch:
            patch.setattr(offsets, "_SETTLE_SECONDS", 0.0)
            patch.setattr(StageFiles, "batch", fails)
            with pytest.raises(OutcomeUnknown, match="decided, but not all of its rows could be written"):
                tx.commit()
            with pytest.raises(ForebayError, match="rows of a transaction are being written"):
                log.scan(source="union", as_of=dt.datetime.now(dt.UTC)).to_arrow()


def test_decided_transactions_write_to_a_bucket_in_the_order_of_their_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is decided, and does not get to write: the second one does that for it."""
    with EmbeddedServer(tmp_path / "data") as server, forebay.connect(server.bootstrap_servers) as connection:
        kv = connection.create_table("fluss.kv", KV, primary_key="id", buckets=2)
        write, is_decided, may_go_on = TransactionManager._write, threading.Event(), threading.Event()

        def late(self: TransactionManager, transaction: Any) -> None:
            if not is_decided.is_set():
                is_decided.set()
                assert may_go_on.wait(PATIENCE)
            write(self, transaction)

        monkeypatch.setattr(TransactionManager, "_write", late)
        first, second = connection.transaction().begin(), connection.transaction().begin()
        for tx, name in ((first, "first"), (second, "second")):
            tx.upsert(kv, [{"id": n, "a": name, "b": None} for n in range(20)])
        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(first.commit)
            assert is_decided.wait(PATIENCE)
            second.commit()
            may_go_on.set()
            committing.result(PATIENCE)
        assert set(kv.scan().to_arrow()["a"].to_pylist()) == {"second"}
        assert kv.changes("earliest", "latest").to_arrow().num_rows == 60  # 20 inserts, and updates of two rows each
        assert len(times_of(kv)) == len({first.committed, second.committed})


def test_a_row_that_comes_while_a_time_is_searched_is_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with forebay.embedded(tmp_path) as conn:
        table = conn.create_table("fluss.log", {"id": "BIGINT"}, buckets=1)
        table.append([{"id": 1}])
        (written,) = times_of(table)
        at = written
        while at <= written:
            at = conn.admin.describe_server().now
        search, late = LogTablet.offset_for_timestamp, iter([[{"id": 2}]])

        def searched(log: LogTablet, *arguments: Any) -> int | None:
            found = search(log, *arguments)
            for rows in late:
                table.append(rows)
            return found

        monkeypatch.setattr(LogTablet, "offset_for_timestamp", searched)
        assert list(conn.admin.list_offsets("fluss.log", at).values()) == [1]
        assert table.scan().count() == 2
