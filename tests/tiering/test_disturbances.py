"""Events during a round: scans that end too early, concurrent writers, compaction, expiry, foreign changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation

import forebay
from forebay.base.errors import ErrorCode, ForebayError, LimitExceeded, Unavailable
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.lake.records import ChangeRows
from forebay.lake.tiering import CommitterContext, LakeCommitter, LakeTieringFactory, LakeWriter, WriterContext
from forebay.lakes.iceberg_tiering import current_table
from forebay.lakes.paimon_tables import lake_table
from forebay.metadata.table import TableInfo
from forebay.paimon.format.snapshot import CommitKind
from forebay.testing.lake_rounds import in_order
from forebay.testing.memory_lake import MemoryLakeStorage, commit_as_somebody_else, expire_all_but_the_newest
from forebay.tiering import round as round_module
from forebay.tiering.now import tier_table
from forebay.tiering.round import TieringLake
from forebay.tiering.service import TieringService
from forebay.tiering.splits import ATTEMPTS_MAX
from tests.tiering.running import LakeCluster

SCHEMA = {"k": pa.int32(), "v": pa.string()}
ACCOUNTS = {"account": pa.int32(), "money": pa.int64()}


class _Hook:
    """Called before each write into the lake."""

    def __init__(self, *errors: Exception | None) -> None:
        self.left = list(errors)
        self.before_write: Any = None

    def __call__(self) -> None:
        if self.before_write is not None:
            self.before_write()
        error = self.left.pop(0) if self.left else None
        if error is not None:
            raise error


@dataclass(frozen=True)
class _HookedFactory(LakeTieringFactory):
    inner: LakeTieringFactory
    hook: _Hook

    def validate(self, info: TableInfo) -> None:
        self.inner.validate(info)

    def create_writer(self, context: WriterContext) -> LakeWriter:
        return _HookedWriter(self.inner.create_writer(context), self.hook)

    def create_committer(self, context: CommitterContext) -> LakeCommitter:
        return self.inner.create_committer(context)


class _HookedWriter(LakeWriter):
    def __init__(self, inner: LakeWriter, hook: _Hook) -> None:
        self._inner, self._hook = inner, hook

    def write(self, records: ChangeRows) -> None:
        self._hook()
        self._inner.write(records)

    def complete(self) -> Any:
        return self._inner.complete()

    def abort(self) -> None:
        self._inner.abort()


class _HookedStorage(MemoryLakeStorage):
    hook: _Hook

    def create_tiering_factory(self) -> LakeTieringFactory:
        return _HookedFactory(super().create_tiering_factory(), self.hook)


def hooked(hook: _Hook) -> TieringLake:
    def create(_name: str, options: Mapping[str, str]) -> MemoryLakeStorage:
        storage = _HookedStorage(options)
        storage.hook = hook
        return storage

    return TieringLake(create_storage=create)


def files(cluster: LakeCluster, path: Any) -> int:
    storage = cluster.storage
    assert isinstance(storage, MemoryLakeStorage)
    return len(storage.table(path).files)


def test_a_table_snapshot_and_then_a_scan_that_end_in_the_middle_are_restarted(memory_lake: LakeCluster) -> None:
    """As when a worker pauses for longer than a lease, and then for longer than a session lives."""
    table = memory_lake.create("t", SCHEMA, primary_key=["k"], buckets=1)
    table.upsert([{"k": k, "v": "v" * 100} for k in range(500)])
    context, ended, hook = memory_lake.server.server.context, list[int](), _Hook()

    def end_what_is_read() -> None:
        if not ended:
            ended.append(context.table_snapshots.close_bucket(table.bucket(0)))
            table.upsert([{"k": 1, "v": "later"}, {"k": 1000, "v": "new"}])
        elif len(ended) < 2 and (closed := context.scanners.close_bucket(table.bucket(0))):
            ended.append(closed)  # pages of the snapshot may come after its end, before there is a scan

    hook.before_write = end_what_is_read
    with forebay.connect(memory_lake.server.bootstrap_servers, scanner_kv_fetch_max_bytes="4kb") as connection:
        report = tier_table(connection, table.path, lake=hooked(hook))
    assert ended == [1, 1]
    assert report.rows == 501
    assert files(memory_lake, table.path) == 1
    assert len(memory_lake.check_complete(table)) == 501


def test_the_first_round_writes_all_buckets_as_of_one_instant_and_gives_its_snapshot_back(
    memory_lake: LakeCluster,
) -> None:
    table = memory_lake.create("t", SCHEMA, primary_key=["k"], buckets=3)
    table.upsert([{"k": k, "v": "old"} for k in range(50)])
    ends, hook = table.changes("earliest", "latest").stop_offsets, _Hook()
    open_then: list[int] = []

    def disturb() -> None:
        open_then.append(len(memory_lake.connection.admin.list_table_snapshots(table.path)))
        table.upsert([{"k": k, "v": f"new {len(open_then)}"} for k in range(0, 60, 2)])

    hook.before_write = disturb
    tier_table(memory_lake.connection, table.path, lake=hooked(hook))
    assert open_then == [1, 1, 1]
    assert memory_lake.connection.admin.list_table_snapshots(table.path) == []
    assert memory_lake.connection.admin.lake_snapshot(table.path).log_offsets == ends
    assert memory_lake.check(table) == in_order([{"k": k, "v": "old"} for k in range(50)])
    memory_lake.tier(table)
    assert len(memory_lake.check_complete(table)) == 55


@pytest.mark.parametrize("reason", ["no room", "a new column"])
def test_without_a_table_snapshot_each_bucket_is_exact_alone(
    memory_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    table = memory_lake.create("t", SCHEMA, primary_key=["k"], buckets=2)
    table.upsert([{"k": k, "v": "old"} for k in range(50)])
    opened = round_module.open_snapshot_of

    def disturbed(*arguments: Any) -> TableSnapshot:
        if reason == "no room":
            raise LimitExceeded("no room", ErrorCode.TOO_MANY_SCANNERS)
        table.alter(add_columns={"more": pa.int64()})
        memory_lake.connection.table(table.path).upsert([{"k": 1, "v": "new", "more": 7}])
        return opened(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(round_module, "open_snapshot_of", disturbed)
        memory_lake.tier(table)
    rows = memory_lake.check_complete(memory_lake.connection.table(table.path))
    assert len(rows) == 50
    assert [row.get("more") for row in rows if row["k"] == 1] == [7 if reason == "a new column" else None]
    assert memory_lake.connection.admin.list_table_snapshots(table.path) == []


@pytest.mark.parametrize("failures", [1, ATTEMPTS_MAX])
def test_a_lake_that_fails_for_a_moment_is_tried_again_a_few_times(memory_lake: LakeCluster, failures: int) -> None:
    table = memory_lake.create("t", SCHEMA, buckets=1)
    table.append([{"k": 1, "v": "a"}])
    lake = hooked(_Hook(*[Unavailable("not now")] * failures))
    if failures == ATTEMPTS_MAX:
        with pytest.raises(Unavailable, match="not now"):
            tier_table(memory_lake.connection, table.path, lake=lake)
        assert files(memory_lake, table.path) == 0
    tier_table(memory_lake.connection, table.path, lake=lake)
    assert files(memory_lake, table.path) == 1
    assert len(memory_lake.check_complete(table)) == 1


def test_snapshots_of_others_between_rounds_do_no_harm(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA)
    storage = memory_lake.storage
    assert isinstance(storage, MemoryLakeStorage)
    for i in range(3):
        table.append([{"k": i, "v": "v"}])
        memory_lake.tier(table)
        commit_as_somebody_else(storage, table.path)
    assert len(memory_lake.check_complete(table)) == 3


def test_a_snapshot_expired_by_another_process_is_followed_by_another_one_even_without_new_rows(
    memory_lake: LakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    table = memory_lake.create("t", SCHEMA, primary_key=["k"])
    table.upsert([{"k": k, "v": "a"} for k in range(10)])
    first = memory_lake.tier(table)
    assert isinstance(memory_lake.storage, MemoryLakeStorage)
    commit_as_somebody_else(memory_lake.storage, table.path)
    expire_all_but_the_newest(memory_lake.storage, table.path)
    second = memory_lake.tier(table)
    assert second.rows == 0
    assert second.snapshot_id not in (first.snapshot_id, None)
    assert "was expired by another process" in caplog.text
    assert len(memory_lake.check_complete(table)) == 10
    assert memory_lake.tier(table).snapshot_id is None


def test_rounds_compact_and_expire_the_lake_table_as_its_options_ask(paimon_lake: LakeCluster) -> None:
    table = paimon_lake.create(
        "t", SCHEMA, primary_key=["k"], buckets=1,
        options={"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true",
            "paimon.snapshot.num-retained.min": "2", "paimon.snapshot.num-retained.max": "3",
            "paimon.num-sorted-run.compaction-trigger": "3"},
    )  # fmt: skip
    for i in range(8):
        table.upsert([{"k": k, "v": f"{i}"} for k in range(i, i + 3)])
        assert paimon_lake.tier(table).maintenance_error is None
    lake = lake_table(paimon_lake.lake_options, table.path)
    assert len(lake.context.snapshots.ids()) <= 4
    assert lake.context.snapshots.latest_id() == paimon_lake.connection.admin.lake_snapshot(table.path).snapshot_id
    assert CommitKind.COMPACT in {snapshot.commit_kind for snapshot in lake.context.snapshots.snapshots()}
    assert len(paimon_lake.check_complete(table)) == 10


def test_rounds_compact_iceberg_tables_too(iceberg_lake: LakeCluster) -> None:
    table = iceberg_lake.create(
        "t", SCHEMA, primary_key=["k"], buckets=1, options={"table.datalake.auto-compaction": "true"}
    )
    for i in range(7):
        table.upsert([{"k": k, "v": f"{i}"} for k in range(i, i + 3)])
        assert iceberg_lake.tier(table).maintenance_error is None
    metadata = current_table(iceberg_lake.lake_options, table.path).metadata
    assert Operation.REPLACE in {s.summary.operation for s in metadata.snapshots if s.summary is not None}
    assert len(iceberg_lake.check_complete(table)) == 9


@pytest.mark.one_in(2)
def test_every_snapshot_of_the_lake_is_a_prefix_of_the_log_while_money_is_moved(any_lake: LakeCluster) -> None:
    """Transfers within one bucket are one batch of its log: no snapshot, and no cut, has half of one."""
    table = any_lake.create(
        "bank", ACCOUNTS, primary_key=["account"], buckets=1, options={"table.datalake.freshness": "20 ms"}
    )
    total, generator, ending = 1_000, random.Random(7), threading.Event()
    money = dict.fromkeys(range(10), total // 10)
    table.upsert([{"account": a, "money": m} for a, m in money.items()])

    def move() -> None:
        while not ending.is_set():
            giver, taker = generator.sample(range(10), 2)
            amount = generator.randint(0, 5)
            money[giver] -= amount
            money[taker] += amount
            table.upsert([{"account": a, "money": money[a]} for a in (giver, taker)])

    writer, seen, sums = threading.Thread(target=move), set(), set()
    with TieringService(any_lake.connection, lake=any_lake.lake, poll_seconds=0.01) as service:
        writer.start()
        try:
            while len(seen) < 6:
                if (snapshot := _newest(any_lake, table)) is not None and snapshot not in seen:
                    seen.add(snapshot)
                    sums.add(sum(row["money"] for row in any_lake.lake_rows(table, snapshot)))
        finally:
            ending.set()
            writer.join()
        assert service.status().failures == 0
    any_lake.tier(table)
    assert sums == {total}
    assert {row["account"]: row["money"] for row in any_lake.check_complete(table)} == money


def _newest(cluster: LakeCluster, table: Any) -> int | None:
    try:
        return cluster.connection.admin.lake_snapshot(table.path).snapshot_id
    except ForebayError:
        return None
