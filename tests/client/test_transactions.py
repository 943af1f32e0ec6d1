"""Transactions: rows of several tables that become visible together, once, whoever fails in between."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock, ManualClock
from forebay.base.errors import (
    AlreadyExists,
    Conflict,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    StorageFailure,
    UnsupportedOperation,
)
from forebay.base.threads import WriteGate
from forebay.client.connection import Connection
from forebay.client.results import HISTORY_SCHEMA
from forebay.client.table import Table
from forebay.client.transaction import Transaction
from forebay.log.tablet import LogTablet
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, NegotiatedVersions
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected
from forebay.server.storage import replica
from forebay.server.transactions.manager import TransactionManager
from forebay.server.transactions.stages import StageFiles
from forebay.testing.server import ServerProcess
from tests.client.conftest import MakeTable, own_server
from tests.client.proxy import CLOSE, PASS, Proxy, only
from tests.patience import PATIENCE, until

pytestmark = own_server

LOG = {"n": "BIGINT"}
KV = {"id": "BIGINT", "a": "STRING", "b": "STRING"}


@pytest.fixture
def log(make_table: MakeTable) -> Table:
    return make_table(LOG, buckets=2)


@pytest.fixture
def kv(make_table: MakeTable) -> Table:
    return make_table(KV, primary_key="id", buckets=2)


def numbers(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["n"].to_pylist())


def rows(table: Table) -> dict[int, tuple[str | None, str | None]]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["a"], row["b"]) for row in found}


def attempt(tx: Transaction, name: str, table: Table, data: list[dict[str, Any]]) -> str:
    """Stage rows for a log table, all of an attempt; return what the driver calls it."""
    writer = tx.staged_writer(name)
    writer.append(table, data)
    writer.finish()
    return writer.attempt


def in_turn(*calls: Callable[[], object]) -> None:
    """Rows are sent before their answers are awaited: an error comes from a later call at the latest."""
    for call in calls:
        call()


def noise(size: int) -> bytes:
    """Bytes that cannot be compressed."""
    return random.Random(size).randbytes(size)


# ---- together, once -------------------------------------------------------------------------------------------------


def test_rows_are_seen_after_the_commit_and_not_before(conn: Connection, log: Table, kv: Table) -> None:
    kv.upsert([{"id": 1, "a": "x", "b": "y"}, {"id": 2, "a": "x", "b": "y"}])
    with conn.transaction("seen", 1) as tx:
        assert tx.append(log, [{"n": n} for n in range(5)]).rows == 5
        tx.upsert(kv, [{"id": 1, "a": "z"}], columns=["id", "a"])
        tx.upsert(str(kv.path), [{"id": 3, "a": "new"}], missing="null")
        tx.delete(kv, 2)
        assert numbers(log) == []
        assert rows(kv) == {1: ("x", "y"), 2: ("x", "y")}
        assert kv.lookup([3]).num_rows == 1
        assert kv.lookup([3])["id"].to_pylist() == [None]
    assert tx.committed is not None
    assert numbers(log) == [0, 1, 2, 3, 4]
    assert rows(kv) == {1: ("z", "y"), 3: ("new", None)}
    kinds = kv.changes("earliest", "latest").to_arrow()["_change_type"].to_pylist()
    assert sorted(kinds) == ["delete", "insert", "insert", "insert", "update_after", "update_before"]


@own_server
def test_the_history_of_a_table_has_each_transaction_and_its_rows_can_be_read_as_of_it(
    conn: Connection, log: Table, kv: Table
) -> None:
    kv.upsert([{"id": 1, "a": "plain", "b": None}])  # without a transaction, and so in no history
    assert kv.history().num_rows == 0
    with conn.transaction("history", 3) as tx:
        tx.upsert(kv, [{"id": i, "a": "first", "b": None} for i in range(300)])
        tx.append(log, [{"n": 1}])
    transaction = conn.transaction().begin()
    transaction.upsert(kv, [{"id": 1, "a": "second", "b": None}])
    transaction.delete(kv, [{"id": 2}, {"id": 3}])
    transaction.commit(operation="REPAIR")
    with conn.transaction("history", 3) as tx:  # committed already
        tx.upsert(kv, [{"id": 9, "a": "no", "b": None}])
    history = kv.history()
    assert history.schema == HISTORY_SCHEMA
    names = ["number", "operation", "rows", "application", "version"]
    assert [tuple(row.values()) for row in history.select(names).to_pylist()] == [
        (1, "WRITE", 300, "history", 3),
        (2, "REPAIR", 3, None, None),
    ]
    assert log.history()["rows"].to_pylist() == [1]
    assert history["committed_at"][1].as_py() == transaction.committed
    first = kv.scan(as_of=1).to_arrow()
    assert (first.num_rows, set(first["a"].to_pylist())) == (300, {"first"})
    assert kv.scan(as_of=2).count() == 298
    with pytest.raises(NotFound, match="has no commit 3: its history has 1 to 2"):
        kv.scan(as_of=3).to_arrow()
    found = conn.sql(f'SELECT number, rows FROM {kv.path.database}."{kv.path.table}$history" ORDER BY 1').to_arrow()
    assert found.to_pylist() == [{"number": 1, "rows": 300}, {"number": 2, "rows": 3}]


@own_server
def test_a_name_of_an_operation_that_cannot_be_shown_is_refused(conn: Connection, log: Table) -> None:
    for name in ("x" * 101, "a\nb"):
        transaction = conn.transaction().begin()
        transaction.append(log, [{"n": 1}])
        with pytest.raises(InvalidRequest, match="cannot be the name of an operation"):
            transaction.commit(operation=name)
        transaction.abort()
    assert numbers(log) == []


def test_a_job_that_runs_twice_adds_nothing(conn: Connection, log: Table, kv: Table) -> None:
    first: Transaction | None = None
    for _ in range(2):
        with conn.transaction("twice", 17) as tx:
            tx.append(log, [{"n": 1}])
            tx.upsert(kv, [{"id": 1, "a": "a", "b": "b"}])
        first = first or tx
        assert tx.committed == first.committed
    assert numbers(log) == [1]
    assert kv.changes("earliest", "latest").to_arrow().num_rows == 1
    assert conn.admin.committed_version("twice") == 17
    assert conn.admin.committed_version("never") is None


def test_an_older_version_is_refused_and_a_later_one_follows(conn: Connection, log: Table) -> None:
    for version in (4, 5, 9):
        with conn.transaction("versions", version) as tx:
            tx.append(log, [{"n": version}])
    with pytest.raises(Conflict, match="version 5 of application 'versions' is older than version 9"):
        conn.transaction("versions", 5).begin()
    assert numbers(log) == [4, 5, 9]


def test_an_exception_inside_the_block_drops_all_rows(conn: Connection, log: Table, kv: Table) -> None:
    tx = conn.transaction("fails", 1)

    def job() -> None:
        with tx:
            tx.append(log, [{"n": 1}])
            tx.upsert(kv, [{"id": 1, "a": "a", "b": "b"}])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert numbers(log) == []
    assert rows(kv) == {}
    with conn.transaction("fails", 1) as again:
        again.append(log, [{"n": 2}])
    assert numbers(log) == [2]
    with pytest.raises(InvalidRequest, match="has ended"):
        tx.append(log, [{"n": 3}])


def test_a_driver_that_was_replaced_can_neither_stage_nor_commit(conn: Connection, log: Table) -> None:
    old = conn.transaction("replaced", 1).begin()
    old.append(log, [{"n": 1}])
    new = conn.transaction("replaced", 1).begin()
    new.append(log, [{"n": 2}])
    with pytest.raises(Conflict, match="another driver has begun version 1"):
        old.commit()
    with pytest.raises(Conflict, match="another driver"):
        old.commit()
    with pytest.raises(Conflict, match="another driver"):
        attempt(old, "late", log, [{"n": 3}])
    new.commit()
    assert numbers(log) == [2]


@pytest.mark.parametrize("is_decided_when", ["before it is ended", "while its end waits"])
def test_a_version_that_is_decided_while_another_driver_begins_it_is_committed_once(
    conn: Connection, log: Table, monkeypatch: pytest.MonkeyPatch, is_decided_when: str
) -> None:
    old = conn.transaction(f"overlap {is_decided_when}", 1).begin()
    staged = attempt(old, "task", log, [{"n": 1}])
    end, closed = TransactionManager._end, WriteGate.closed

    def commit(manager: TransactionManager) -> None:
        monkeypatch.undo()
        manager.commit(old.begun_id, [staged]).result()

    def end_late(self: TransactionManager, transaction: Any, reason: str) -> bool:
        if is_decided_when == "before it is ended":
            commit(self)
            return end(self, transaction, reason)

        @contextmanager
        def closed_late(gate: WriteGate, timeout: float | None = None) -> Iterator[bool]:
            commit(self)
            with closed(gate, timeout) as is_closed:
                yield is_closed

        monkeypatch.setattr(WriteGate, "closed", closed_late)
        return end(self, transaction, reason)

    monkeypatch.setattr(TransactionManager, "_end", end_late)
    new = conn.transaction(f"overlap {is_decided_when}", 1).begin()
    assert new.committed is not None
    assert new.begun_id == old.begun_id
    assert numbers(log) == [1]
    with conn.transaction(f"overlap {is_decided_when}", 2) as later:
        later.append(log, [{"n": 2}])
    assert numbers(log) == [1, 2]


def test_the_metadata_store_refuses_a_version_that_another_transaction_has_decided(
    conn: Connection, log: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server believes: here it has forgotten that the first one has not ended."""
    first = conn.transaction("unique", 1).begin()
    staged = attempt(first, "task", log, [{"n": 1}])
    monkeypatch.setattr(TransactionManager, "_history_of", lambda self, application: ([], None, []))
    second = conn.transaction("unique", 1).begin()
    late = attempt(second, "task", log, [{"n": 2}])
    first.commit([staged])
    with pytest.raises(Conflict, match="version 1 of application 'unique' is decided already"):
        second.commit([late])
    assert numbers(log) == [1]


def test_an_empty_transaction_is_committed_too(conn: Connection) -> None:
    with conn.transaction("empty", 3) as tx:
        pass
    assert tx.committed is not None
    assert conn.admin.committed_version("empty") == 3


# ---- tasks ----------------------------------------------------------------------------------------------------------


def test_only_the_attempts_that_the_driver_names_count(conn: Connection, log: Table, kv: Table) -> None:
    tx = conn.transaction("tasks", 1).begin()
    sent = pickle.dumps(tx)

    def task(number: int, attempt: int) -> str:
        copy: Transaction = pickle.loads(sent)
        writer = copy.staged_writer(f"{number}.{attempt}")
        writer.append(log, [{"n": 100 * number + n} for n in range(10)])
        writer.upsert(kv, [{"id": number, "a": f"attempt {attempt}", "b": None}])
        writer.finish()
        return writer.attempt

    with ThreadPoolExecutor(4) as pool:
        finished = list(pool.map(task, [0, 1, 2, 0, 1], [0, 0, 0, 1, 1]))
    half = tx.staged_writer("half")
    half.append(log, [{"n": -1}])
    assert numbers(log) == []
    tx.commit([finished[2], finished[3], finished[1]])
    assert numbers(log) == [*range(10), *range(100, 110), *range(200, 210)]
    assert rows(kv) == {0: ("attempt 1", None), 1: ("attempt 0", None), 2: ("attempt 0", None)}


def test_a_commit_names_attempts_that_are_finished(conn: Connection, log: Table) -> None:
    tx = conn.transaction("unfinished", 1).begin()
    writer = tx.staged_writer("a")
    writer.append(log, [{"n": 1}])
    other = tx.staged_writer("a")
    other.append(log, [{"n": 2}])
    other.finish()
    for attempts in ([writer.attempt], ["b"], [other.attempt, "a"]):
        with pytest.raises(InvalidRequest, match=rf"'{attempts[-1]}' is not finished"):
            tx.commit(attempts)
    writer.finish()
    with pytest.raises(InvalidRequest, match="named twice"):
        tx.commit([writer.attempt, writer.attempt])
    with pytest.raises(Conflict, match="cannot be staged"):
        in_turn(lambda: writer.append(log, [{"n": 3}]), writer.finish)
    tx.commit([writer.attempt])
    assert numbers(log) == [1]


def test_rows_of_one_attempt_are_written_in_their_order(conn: Connection, kv: Table) -> None:
    with conn.transaction("order", 1) as tx:
        for step in range(50):
            tx.upsert(kv, [{"id": n, "a": f"{step}", "b": None} for n in range(20)])
            if step == 30:
                tx.delete(kv, list(range(20)))
    assert rows(kv) == dict.fromkeys(range(20), ("49", None))


def test_names_are_checked(conn: Connection, log: Table) -> None:
    for name in ("", "  ", "a\nb", "x" * 201):
        with pytest.raises(InvalidRequest, match="cannot be the name of an application"):
            conn.transaction(name, 1).begin()
    for version in (1 << 63, "17", 1.5):
        with pytest.raises(InvalidRequest, match="cannot be the version of a transaction"):
            conn.transaction("names", version)  # type: ignore[arg-type]
    tx = conn.transaction("names", 1).begin()
    for name in ("", "../up", "a b", ".x", "x" * 90):
        with pytest.raises(InvalidRequest, match="cannot be the name of an attempt"):
            tx.staged_writer(name).finish()
    with pytest.raises(InvalidRequest, match="has not begun"):
        conn.transaction("names", 2).append(log, [{"n": 1}])


# ---- what is staged is checked --------------------------------------------------------------------------------------


def test_rows_that_cannot_be_written_are_refused_when_they_are_staged(conn: Connection, make_table: MakeTable) -> None:
    fixed = make_table({"id": "BIGINT"}, primary_key="id", options={"table.delete.behavior": "disable"})
    tx = conn.transaction("checked", 1).begin()
    with pytest.raises(InvalidRequest, match="forbids deletes"):
        in_turn(lambda: tx.delete(fixed, [1]), tx.commit)
    conn.drop_table(fixed.path)
    other = conn.transaction("checked", 1).begin()
    with pytest.raises(ForebayError, match="dropped"):
        in_turn(lambda: other.upsert(fixed, [{"id": 1}]), other.commit)


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def test_a_delete_that_would_clear_a_not_null_column_is_refused_when_it_is_staged(
    conn: Connection, make_table: MakeTable
) -> None:
    """If it were decided, no server could ever write it, and the table's snapshots would wait forever."""
    schema = pa.schema([pa.field("id", pa.int64(), False), ("a", pa.string()), pa.field("b", pa.string(), False)])
    table = make_table(schema, primary_key="id", buckets=1)
    table.upsert([{"id": 1, "a": "one", "b": "x"}, {"id": 2, "a": "two", "b": "y"}])
    refused = pytest.raises(InvalidRequest, match="column 'b' is NOT NULL: delete whole rows")
    with refused, conn.transaction("c", 1) as tx:
        tx.delete(table, [{"id": 1}], columns=["id", "b"])
    with conn.transaction("c", 2) as tx:
        tx.delete(table, [{"id": 1}])
        tx.upsert(table, [{"id": 2, "b": "z"}], columns=["id", "b"])
    with table.snapshot() as snapshot:
        assert snapshot.scan().to_arrow().to_pylist() == [{"id": 2, "a": "two", "b": "z"}]


def test_damaged_batches_are_refused_when_they_are_staged(conn: Connection, log: Table, kv: Table) -> None:
    """No client of ours sends such batches; whoever does must not make a commit fail later."""
    tx = conn.transaction("damaged", 1).begin()
    node = next(iter(conn.cluster.view.tablet_servers.values()))
    encoder = kv._encoder
    _, target = encoder.columns_of("upsert", None)
    batch = encoder.keyed("upsert", pa.record_batch({"id": [1], "a": ["x"], "b": ["y"]}), target)
    (piece,) = encoder.kv_pieces([batch])
    good = bytes(piece.data)
    for table_id, records in (
        (kv.info.table_id, damaged(good)),
        (kv.info.table_id, b"short"),
        (log.info.table_id, good),
        (log.info.table_id, b""),
        (-7, good),
    ):
        request = pb.StageRowsRequest(transaction_id=tx.begun_id or 0, attempt="raw", sequence=0, table_id=table_id)
        request.buckets_req.add(bucket_id=0, records=b"")
        with pytest.raises(ForebayError) as refused:
            conn.cluster.send(node, ApiKey.STAGE_ROWS, request, [records]).result(PATIENCE)
        assert refused.value.kind != "internal", refused.value
    tx.abort()


def test_tables_and_partitions_that_are_dropped_take_their_staged_rows_along(
    conn: Connection, make_table: MakeTable, log: Table
) -> None:
    gone = make_table(LOG)
    parted = make_table({"day": "STRING", "n": "BIGINT"}, partition_keys="day")
    with conn.transaction("dropped", 1) as tx:
        tx.append(gone, [{"n": 1}])
        tx.append(parted, [{"day": day, "n": n} for n, day in enumerate(("x", "y", "z"))])
        tx.append(log, [{"n": 2}])
        conn.drop_table(gone.path)
        parted.drop_partition({"day": "y"})
    assert numbers(log) == [2]
    assert numbers(parted) == [0, 2]


def test_columns_that_are_added_meanwhile_are_null(conn: Connection, kv: Table, log: Table) -> None:
    with conn.transaction("widened", 1) as tx:
        tx.upsert(kv, [{"id": 1, "a": "a", "b": "b"}])
        tx.append(log, [{"n": 1}])
        kv.alter(add_columns={"c": "STRING"})
        log.alter(add_columns={"m": "BIGINT"})
    assert kv.refresh().scan().to_arrow().to_pylist() == [{"id": 1, "a": "a", "b": "b", "c": None}]
    assert log.refresh().scan().to_arrow().to_pylist() == [{"n": 1, "m": None}]


# ---- one moment -----------------------------------------------------------------------------------------------------


def test_a_table_snapshot_has_all_of_a_transaction_or_nothing(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"id": "BIGINT", "version": "BIGINT"}, primary_key="id", buckets=4)
    seen: list[set[int]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            with table.snapshot() as snapshot:
                seen.append(set(snapshot.scan().to_arrow()["version"].to_pylist()))

    with ThreadPoolExecutor(2) as pool:
        watching = [pool.submit(watch) for _ in range(2)]
        for version in range(1, 25):
            with conn.transaction("moments", version) as tx:
                tx.upsert(table, [{"id": n, "version": version} for n in range(40)])
        stop.set()
        for each in watching:
            each.result(PATIENCE)
    assert max(len(versions) for versions in seen) == 1
    assert len(set.union(*seen)) > 3


def test_writers_go_on_while_a_transaction_is_committed(conn: Connection, kv: Table) -> None:
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            kv.upsert([{"id": 1_000_000 + len(written), "a": "w", "b": None}])
            written.append(1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for version in range(1, 6):
            with conn.transaction("beside", version) as tx:
                tx.upsert(kv, pa.table({"id": range(3000), "a": [f"{version}"] * 3000, "b": ["b"] * 3000}))
    finally:
        stop.set()
        thread.join()
    found = rows(kv)
    assert len(found) == 3000 + len(written)
    assert all(found[n] == ("5", "b") for n in range(3000))


# ---- limits and listings --------------------------------------------------------------------------------------------


@contextmanager
def limited(folder: Path, clock: Clock = SYSTEM_CLOCK, **settings: str) -> Iterator[Connection]:
    """A server with settings `transaction.*`, in which points and hyphens are underscores."""
    named = {"transaction." + name.replace("_", "-"): value for name, value in settings.items()}
    named["kv.scanner.expiration-interval"] = "50 ms"
    with (
        EmbeddedServer(folder / "data", settings=named, injected=Injected(clock=clock)) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        yield connection


def test_open_transactions_and_their_bytes_are_limited_and_shown(tmp_path: Path) -> None:
    with limited(tmp_path, max_open="2", max_staged_size="20kb") as conn:
        table = conn.create_table("fluss.t", {"data": "BYTES"})
        one = conn.transaction("one", 1).begin()
        attempt(one, "first", table, [{"data": noise(10_000)}])
        two = conn.transaction("two", 1).begin()
        with pytest.raises(LimitExceeded, match="has its 2 transactions open already"):
            conn.transaction("three", 1).begin()
        with pytest.raises(LimitExceeded, match=r"transaction\.max-staged-size"):
            attempt(two, "second", table, [{"data": noise(15_000)}])
        shown = {each.application: each for each in conn.admin.transactions()}
        assert set(shown) == {"one", "two"}
        assert (shown["one"].state, shown["one"].version, shown["one"].stages) == ("open", 1, 1)
        assert 10_000 < shown["one"].staged_bytes < 11_000
        assert "one" in repr(conn.admin.transactions())
        one.commit([])
        assert [(each.application, each.state) for each in conn.admin.transactions("one")] == [("one", "committed")]
        attempt(two, "third", table, [{"data": noise(15_000)}])


def test_idle_transactions_end_and_old_versions_are_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    with limited(tmp_path, clock, idle_timeout="300 ms", ledger_retention="300 ms") as conn:
        table = conn.create_table("fluss.t", LOG)
        idle = conn.transaction("idle", 1).begin()
        idle.append(table, [{"n": 1}])
        with conn.transaction("done", 1):
            pass

        def are_forgotten() -> bool:  # the client may just be renewing the idle one
            clock.advance(1)
            return not conn.admin.transactions()

        until(are_forgotten, "no transaction is left")
        with pytest.raises(Conflict, match=r"it was idle for 0\.3 s"):
            idle.commit()
        assert conn.admin.committed_version("done") is None
        assert list((tmp_path / "data" / "transactions.staged").iterdir()) == []


def test_a_transaction_that_is_used_while_its_end_waits_is_not_idle(
    conn: Connection, log: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers: list[TransactionManager] = []
    monkeypatch.setattr(TransactionManager, "_check_room", lambda self: managers.append(self))
    tx = conn.transaction("used", 1).begin()
    monkeypatch.undo()
    manager = managers[0]
    transaction = manager._by_id[tx.begun_id]
    closed, used = WriteGate.closed, []

    def use(gate: WriteGate, timeout: float | None = None) -> Any:
        if gate is transaction.gate:
            transaction.used_at = float("inf")  # a request of it was under way
            used.append(gate)
        return closed(gate, timeout)

    monkeypatch.setattr(WriteGate, "closed", use)
    transaction.used_at = float("-inf")
    manager.expire()
    monkeypatch.undo()
    assert used
    tx.append(log, [{"n": 1}])
    tx.commit()
    assert numbers(log) == [1]


def test_a_late_end_of_a_commit_does_not_hide_the_next_one(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    managers: list[TransactionManager] = []
    monkeypatch.setattr(TransactionManager, "_check_room", lambda self: managers.append(self))
    tx = conn.transaction("again", 1).begin()
    first, second = threads.future(), threads.future()
    manager = managers[0]
    manager._running[tx.begun_id] = second
    manager._no_longer_running(tx.begun_id, first)
    assert manager._running.pop(tx.begun_id) is second
    tx.abort()


# ---- lost answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [ApiKey.BEGIN_TRANSACTION, ApiKey.FINISH_STAGE, ApiKey.COMMIT_TRANSACTION])
def test_a_lost_answer_is_asked_for_again(key: ApiKey, proxy: Proxy, through: Any, log: Table) -> None:
    table = through(log)
    proxy.on_response = only(key, CLOSE)
    with table.connection.transaction(f"lost {key.name}", 1) as tx:
        tx.append(table, [{"n": 1}])
    assert numbers(log) == [1]


@pytest.mark.parametrize("is_answer", [True, False])
def test_requests_in_flight_are_staged_once_after_a_broken_connection(
    is_answer: bool, proxy: Proxy, through: Any, log: Table
) -> None:
    table = through(log)
    rule = only(ApiKey.STAGE_ROWS, PASS, PASS, PASS, CLOSE)
    if is_answer:
        proxy.on_response = rule
    else:
        proxy.on_request = rule
    with table.connection.transaction(f"broken {is_answer}", 1) as tx:
        for start in range(0, 100, 10):
            tx.append(table, [{"n": n} for n in range(start, start + 10)])
    assert numbers(log) == list(range(100))


def test_without_an_answer_the_outcome_is_unknown_and_the_same_version_tells(
    proxy: Proxy, bootstrap: str, log: Table
) -> None:
    with forebay.connect(proxy.bootstrap_servers, retry_timeout="1 s") as connection:
        tx = connection.transaction("unknown", 1).begin()
        tx.append(connection.table(log.path), [{"n": 1}])
        proxy.on_response = lambda frame: CLOSE if frame.key is ApiKey.COMMIT_TRANSACTION else PASS
        with pytest.raises(OutcomeUnknown, match="commit the same version again"):
            tx.commit()
        proxy.on_response = lambda frame: PASS
        with connection.transaction("unknown", 1) as again:
            again.append(connection.table(log.path), [{"n": 2}])
        assert again.committed is not None
    assert numbers(log) == [1]


# ---- restarts -------------------------------------------------------------------------------------------------------


def test_staged_rows_outlive_a_crash_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, forebay.connect(server.bootstrap_servers) as connection:
        log = connection.create_table("fluss.log", LOG, buckets=2)
        kv = connection.create_table("fluss.kv", KV, primary_key="id")
        with connection.transaction("before", 1) as tx:
            tx.append(log, [{"n": 0}])
        tx = connection.transaction("crash", 1).begin()
        done = tx.staged_writer("done")
        done.append(log, [{"n": n} for n in range(1, 50)])
        done.upsert(kv, [{"id": 1, "a": "a", "b": "b"}])
        done.finish()
        going_on = tx.staged_writer("going-on")
        going_on.append(log, [{"n": 50}])
        server.kill()
        server.start(keep_ports=True)
        [shown] = connection.admin.transactions("crash")
        assert shown.state == "open"
        assert shown.stages in (1, 2)  # the request of the second may not have arrived
        assert shown.staged_bytes > 200
        going_on.append(log, [{"n": 51}])
        going_on.finish()
        tx.commit([done.attempt, going_on.attempt])
        assert numbers(log) == list(range(52))
        assert rows(kv) == {1: ("a", "b")}
        server.kill()
        server.start(keep_ports=True)
        with connection.transaction("crash", 1) as again:
            again.append(log, [{"n": 99}])
        assert numbers(log) == list(range(52))
        with pytest.raises(Conflict, match="older"):
            connection.transaction("before", 0).begin()


def test_a_decided_transaction_is_finished_by_the_next_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows cannot be read when they are to be written: the decision stands, and the next server writes them."""
    real, read = StageFiles.batch, list[int]()

    def fails(self: StageFiles, entry: Any) -> bytearray:
        read.append(1)
        if len(read) > 3:
            raise ForebayError("the disk is away")
        return real(self, entry)

    with (
        EmbeddedServer(tmp_path / "data") as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="200 ms") as connection,
    ):
        log = connection.create_table("fluss.log", LOG, buckets=4)
        kv = connection.create_table("fluss.kv", KV, primary_key="id", buckets=4)
        assert kv.scan().count() == 0  # its buckets are open
        tx = connection.transaction("decided", 1).begin()
        for start in range(0, 40, 4):
            tx.append(log, [{"n": n} for n in range(start, start + 4)])
            tx.upsert(kv, [{"id": n, "a": "a", "b": None} for n in range(start, start + 4)])
        monkeypatch.setattr(StageFiles, "batch", fails)
        with pytest.raises(OutcomeUnknown, match="decided, but not all of its rows could be written"):
            tx.commit()
        with pytest.raises(ForebayError, match="the rows of a transaction are being written"):
            kv.snapshot()
        with pytest.raises(Conflict, match="it is committed"):
            conn_abort(connection, tx)
    monkeypatch.undo()
    with EmbeddedServer(tmp_path / "data") as server, forebay.connect(server.bootstrap_servers) as connection:
        log, kv = connection.table("fluss.log"), connection.table("fluss.kv")
        assert numbers(log) == list(range(40))
        assert len(rows(kv)) == 40
        assert kv.changes("earliest", "latest").to_arrow().num_rows == 40
        with kv.snapshot() as snapshot:
            assert snapshot.scan().count() == 40
        until(lambda: connection.admin.transactions()[0].state == "committed")
        until(lambda: not any((tmp_path / "data" / "transactions.staged").iterdir()))  # which comes after it


def test_rows_of_a_transaction_are_added_once_whatever_is_redone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum shows what an upsert hides: rows that a commit has written before it failed, and that are redone."""
    real, read = StageFiles.batch, list[int]()

    def fails(self: StageFiles, entry: Any) -> bytearray:
        read.append(1)
        if len(read) > 79:  # all were tried; one bucket has all of its rows then, and the other lacks one
            raise ForebayError("the disk is away")
        return real(self, entry)

    options = {"table.merge-engine": "aggregation", "fields.total.agg": "sum", "fields.rows.agg": "sum"}
    with (
        EmbeddedServer(tmp_path / "data") as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="200 ms") as connection,
    ):
        columns = {"id": "INT", "total": "BIGINT", "rows": "INT"}
        sums = connection.create_table("fluss.sums", columns, primary_key="id", buckets=2, options=options)
        sums.upsert([{"id": n, "total": 1000, "rows": 0} for n in range(5)])
        tx = connection.transaction("sums", 1).begin()
        for n in range(40):
            tx.upsert(sums, [{"id": n % 5, "total": n, "rows": 1}])
        monkeypatch.setattr(StageFiles, "batch", fails)
        with pytest.raises(OutcomeUnknown):
            tx.commit()
        written = sum(sums.scan().to_arrow()["rows"].to_pylist())
        assert 0 < written < 40
    monkeypatch.undo()
    for _ in range(2):
        with EmbeddedServer(tmp_path / "data") as server, forebay.connect(server.bootstrap_servers) as connection:
            with connection.transaction("sums", 1) as again:
                again.upsert("fluss.sums", [{"id": 0, "total": 1, "rows": 1}])
            found = {row["id"]: row for row in connection.table("fluss.sums").scan().to_arrow().to_pylist()}
            for key in range(5):
                assert found[key]["total"] == 1000 + sum(range(key, 40, 5))
                assert found[key]["rows"] == 8


@pytest.mark.parametrize("is_numbered", [False, True])
def test_a_commit_syncs_once_unless_its_rows_get_numbers(
    is_numbered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that were seen before a power failure would be other ones after it."""
    synced: list[str] = []
    real = LogTablet._sync

    def counted(self: LogTablet) -> None:
        synced.append(self.folder)
        real(self)

    with (
        EmbeddedServer(tmp_path / "data") as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        columns = {"id": "INT", "number": "BIGINT", "name": "STRING"}
        numbered = "number" if is_numbered else None
        made = connection.create_table("fluss.t", columns, primary_key="id", buckets=1, auto_increment=numbered)
        tx = connection.transaction().begin()
        for n in range(5):
            tx.upsert(made, [{"id": n, "name": "a"}], columns=["id", "name"])
        monkeypatch.setattr(replica, "GROUP_BYTES_MAX", 1)
        monkeypatch.setattr(LogTablet, "_sync", counted)
        tx.commit()
        assert len(synced) == (5 if is_numbered else 1)
        assert made.scan().count() == 5


def conn_abort(connection: Connection, tx: Transaction) -> None:
    request = pb.AbortTransactionRequest(transaction_id=tx.begun_id or 0)
    connection.cluster.coordinator_call(ApiKey.ABORT_TRANSACTION, request, pb.AbortTransactionResponse, repeatable=True)


def test_unknown_transactions_are_named(conn: Connection, log: Table) -> None:
    tx = conn.transaction("unknown id", 1).begin()
    tx.begun_id = 1 << 40
    with pytest.raises(OutcomeUnknown, match="there is no transaction 1099511627776"):
        tx.commit()


def test_a_new_partition_is_made_when_rows_are_staged(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"day": "STRING", "n": "BIGINT"}, partition_keys="day", buckets=2)
    with conn.transaction("partitions", 1) as tx:
        tx.append(table, [{"day": day, "n": n} for n, day in enumerate("abcab")])
    assert numbers(table) == [0, 1, 2, 3, 4]
    with pytest.raises(AlreadyExists):
        table.create_partition({"day": "a"})


def test_who_joins_a_version_takes_part_in_it_and_does_not_end_it(conn: Connection, log: Table) -> None:
    first, second, third = (conn.transaction("joined", 1) for _ in range(3))
    first.begin(join=True)
    second.begin(join=True)
    assert first.begun_id == second.begun_id
    attempts = []
    for n, transaction in enumerate((first, second)):
        writer = transaction.staged_writer("task")
        writer.append(log, [{"n": n}])
        writer.finish()
        attempts.append(writer.attempt)
    second.commit(attempts[1:])
    assert numbers(log) == [1]
    assert third.begin(join=True).committed is not None
    with pytest.raises(Conflict, match="older"):
        conn.transaction("joined", 0).begin(join=True)
    newer = conn.transaction("joined", 2).begin(join=True)
    conn.transaction("joined", 3).begin(join=True)
    with pytest.raises(Conflict, match="another driver"):
        newer.commit()


def test_transactions_without_a_name_are_all_or_nothing_and_do_not_know_each_other(
    conn: Connection, log: Table
) -> None:
    with conn.transaction() as first, conn.transaction() as second:
        assert first.begun_id != second.begun_id
        first.append(log, [{"n": 1}])
        second.append(log, [{"n": 2}])
        assert [t.application for t in conn.admin.transactions("")] == ["", ""]
        assert numbers(log) == []
    assert numbers(log) == [1, 2]
    assert conn.admin.transactions("") == []
    request = pb.CommitTransactionRequest(transaction_id=first.begun_id, attempts=[])
    again = conn.cluster.coordinator_call(
        ApiKey.COMMIT_TRANSACTION, request, pb.CommitTransactionResponse, repeatable=True
    )
    assert again.committed_ms > 0  # the answer was lost: the commit is repeated
    failed = conn.transaction().begin()
    failed.append(log, [{"n": 3}])
    failed.abort()
    assert numbers(log) == [1, 2]
    for given in ({"application": "x"}, {"version": 1}, {"application": "", "version": 1}):
        with pytest.raises(InvalidRequest, match="application"):
            conn.transaction(**given)


# ---- conditions -----------------------------------------------------------------------------------------------------


def test_a_commit_is_refused_if_a_watched_row_was_changed(conn: Connection, kv: Table) -> None:
    kv.upsert([{"id": n, "a": "old", "b": None} for n in range(20)])
    tx = conn.transaction().begin()
    tx.watch(kv)
    tx.upsert(kv, [{"id": 7, "a": "ours", "b": None}, {"id": 8, "a": "ours", "b": None}])
    kv.upsert([{"id": 8, "a": "theirs", "b": None}])
    for _ in range(2):  # the answer is the same when it is asked for again
        with pytest.raises(Conflict, match=rf"changed 1 of the rows .* table {kv.path}, such as id = 8; run it again"):
            tx.commit()
    assert [rows(kv)[n][0] for n in (7, 8)] == ["old", "theirs"]
    assert conn.admin.transactions("") == []


@pytest.mark.parametrize("change", ["delete", "insert", "changed back"])
def test_every_kind_of_change_is_noticed(change: str, conn: Connection, kv: Table) -> None:
    kv.upsert([{"id": 1, "a": "x", "b": None}])
    tx = conn.transaction().begin()
    tx.watch(kv)
    tx.upsert(kv, [{"id": 1 if change != "insert" else 2, "a": "ours", "b": None}])
    if change == "delete":
        kv.delete([1])
    elif change == "insert":
        kv.upsert([{"id": 2, "a": "theirs", "b": None}])
    else:
        for value in ("y", "x"):
            kv.upsert([{"id": 1, "a": value, "b": None}])
    with pytest.raises(Conflict, match="other writers have changed"):
        tx.commit()


def test_other_rows_of_a_watched_table_may_change(conn: Connection, kv: Table, log: Table) -> None:
    kv.upsert([{"id": n, "a": "old", "b": None} for n in range(20)])
    with conn.transaction() as tx:
        tx.watch(kv)
        tx.append(log, [{"n": 1}])
        tx.upsert(kv, [{"id": n, "a": "ours", "b": None} for n in range(10)])
        kv.upsert([{"id": n, "a": "theirs", "b": None} for n in range(10, 30)])
    found = rows(kv)
    assert {found[n][0] for n in range(10)} == {"ours"}
    assert {found[n][0] for n in range(10, 30)} == {"theirs"}
    assert numbers(log) == [1]


def test_counters_that_many_increase_lose_nothing(conn: Connection, make_table: MakeTable) -> None:
    counters = make_table({"id": "BIGINT", "n": "BIGINT"}, primary_key="id", buckets=2)
    counters.upsert([{"id": key, "n": 0} for key in range(4)])

    def increase(worker: int) -> int:
        choose, conflicts = random.Random(worker), 0
        for _ in range(8):
            keys = choose.sample(range(4), 2)
            while True:
                try:
                    with conn.transaction() as tx:
                        tx.watch(counters)
                        before = counters.lookup([{"id": key} for key in keys]).to_pylist()
                        tx.upsert(counters, [{**row, "n": row["n"] + 1} for row in before])
                    break
                except Conflict:
                    conflicts += 1
        return conflicts

    with ThreadPoolExecutor(4) as pool:
        conflicts = list(pool.map(increase, range(3)))
    assert sum(counters.scan().to_arrow()["n"].to_pylist()) == 3 * 8 * 2
    assert sum(conflicts) > 0


def test_plain_writes_wait_while_a_condition_is_checked_and_the_rows_are_written(
    conn: Connection, kv: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, may_write = threading.Event(), threading.Event()
    write = TransactionManager._write

    def held(self: TransactionManager, transaction: Any) -> None:
        is_writing.set()
        assert may_write.wait(PATIENCE)
        write(self, transaction)

    monkeypatch.setattr(TransactionManager, "_write", held)
    kv.upsert([{"id": 1, "a": "old", "b": None}])
    tx = conn.transaction().begin()
    tx.watch(kv)
    tx.upsert(kv, [{"id": 1, "a": "ours", "b": None}])
    with ThreadPoolExecutor(2) as pool:
        committing = pool.submit(tx.commit)
        assert is_writing.wait(PATIENCE)
        later = pool.submit(kv.upsert, [{"id": 1, "a": "theirs", "b": None}])
        seen = kv.lookup([1])["a"].to_pylist(), later.done()
        may_write.set()
        committing.result(PATIENCE)
        later.result(PATIENCE)
    assert seen == (["old"], False)
    changes = [row["a"] for batch in kv.changes("earliest", "latest") for row in batch.to_pylist()]
    assert changes == ["old", "old", "ours", "ours", "theirs"]


def test_offsets_that_the_log_does_not_have_any_more_are_refused(conn: Connection, kv: Table) -> None:
    tx = conn.transaction().begin()
    tx.watch(kv, dict.fromkeys(conn.admin.list_offsets(kv.path), 100))
    tx.upsert(kv, [{"id": 1, "a": "ours", "b": None}])
    with pytest.raises(Conflict, match=r"cannot be said.*offsets 0 to 0, and not 100"):
        tx.commit()


def test_log_tables_cannot_be_watched_and_older_servers_are_refused(
    conn: Connection, kv: Table, log: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with conn.transaction() as tx:
        with pytest.raises(InvalidRequest, match="never changed"):
            tx.watch(log)
        tx.watch(kv)
        tx.upsert(kv, [{"id": 1, "a": "ours", "b": None}])
        monkeypatch.setattr(NegotiatedVersions, "version", lambda self, key: 0)
        with pytest.raises(UnsupportedOperation, match="needs version 1 of COMMIT_TRANSACTION"):
            tx.commit()
        monkeypatch.undo()
    assert rows(kv)[1][0] == "ours"


def test_nothing_is_written_before_the_rows_of_a_checked_commit_that_cannot_be_written_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain write waits for them, as it did during the commit: it must not be lost under rows that are older."""
    settings = {"log.replica.high-watermark.checkpoint-interval": "100 ms"}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="200 ms") as impatient,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        kv = connection.create_table("fluss.kv", KV, primary_key="id")
        kv.upsert([{"id": 1, "a": "old", "b": None}])
        tx = impatient.transaction("checked", 1).begin()
        tx.watch(kv)
        tx.upsert(kv, [{"id": 1, "a": "ours", "b": None}])
        real, fails, is_tried = StageFiles.batch, threading.Event(), threading.Event()
        fails.set()

        def batch(self: StageFiles, entry: Any) -> bytearray:
            is_tried.set()
            if fails.is_set():
                raise StorageFailure("the disk is away", ErrorCode.LOG_STORAGE_EXCEPTION)
            return real(self, entry)

        monkeypatch.setattr(StageFiles, "batch", batch)
        with pytest.raises(OutcomeUnknown, match="decided, but not all of its rows could be written"):
            tx.commit()
        is_tried.clear()
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(kv.upsert, [{"id": 1, "a": "theirs", "b": None}])
            assert is_tried.wait(PATIENCE)  # to open the bucket, for this write
            fails.clear()
            later.result(PATIENCE)
        changes = [row["a"] for batch in kv.changes("earliest", "latest") for row in batch.to_pylist()]
        assert changes == ["old", "old", "ours", "ours", "theirs"]
