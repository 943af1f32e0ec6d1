"""A tiering worker's calls against our server: table assignment, offsets, snapshots, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, NotFound
from forebay.client.admin.lake import Heartbeat, LakeTieringClient, TieringDone, TieringTable
from forebay.client.connection import Connection
from forebay.lake.tiering import KEEP_ALL_PREVIOUS
from forebay.metadata.table import TableBucket, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from tests.client.conftest import FOREIGN_BOOTSTRAP, MakeTable

LAKE = "tests of the tiering client"
SETTINGS = {"datalake.format": "paimon", "datalake.paimon.name": LAKE}
TIERED = {"table.datalake.enabled": "true", "table.datalake.freshness": "10 s"}
FRESHNESS = 10


class Cluster:
    """A server with a lake in memory, a clock of its own, and a worker."""

    def __init__(self, connection: Connection, clock: ManualClock) -> None:
        self.admin = connection.admin
        self.connection = connection
        self.clock = clock
        self.worker = LakeTieringClient(connection)

    def create(self, name: str, **options: object) -> TableInfo:
        given = {**TIERED, **options.pop("options", {})}  # type: ignore[dict-item]
        columns = {"a": pa.int32(), "p": pa.string()}
        return self.connection.create_table(f"fluss.{name}", columns, options=given, **options).info  # type: ignore[arg-type]

    def assigned(self) -> TieringTable:
        table = self.worker.heartbeat(request=True).table
        assert table is not None
        return table

    def tier(self, info: TableInfo, snapshot_id: int, offset: int) -> None:
        path = self.worker.prepare(info, {TableBucket(info.table_id, 0): offset})
        self.worker.commit(info, snapshot_id, path, readable_path=path)


def fill(connection: Connection, info: TableInfo, **values: str) -> None:
    """Append rows until the log of each bucket has ten: no lake snapshot has more than that."""
    table, partitions = connection.table(info), [values] if values else None
    while min(connection.admin.list_offsets(info, partitions=partitions).values()) < 10:
        table.append([{"a": n, **values} for n in range(10)])


@contextmanager
def cluster(directory: Path, clock: ManualClock) -> Iterator[Cluster]:
    injected = Injected(clock=clock, create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    with (
        EmbeddedServer(directory / "data", settings=SETTINGS, injected=injected) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        yield Cluster(connection, clock)


@pytest.mark.parametrize("buckets", [1, 3])
def test_what_is_prepared_and_committed_is_told_by_any_cluster(
    conn: Connection, make_table: MakeTable, buckets: int
) -> None:
    table = make_table({"a": pa.int32()}, buckets=buckets)
    fill(conn, table.info)
    worker = LakeTieringClient(conn)
    assert worker.heartbeat().errors == {}
    offsets = {TableBucket(table.info.table_id, bucket): bucket + 3 for bucket in range(buckets)}
    path = worker.prepare(table.info, offsets)
    worker.commit(table.info, 5, path, readable_path=path, log_end_offsets=offsets)
    path = worker.prepare(table.info, {TableBucket(table.info.table_id, 0): 9})
    worker.commit(table.info, 3, path, readable_path=path, earliest_to_keep=KEEP_ALL_PREVIOUS)
    newest = conn.admin.lake_snapshot(table.path)
    assert (newest.table_id, newest.snapshot_id) == (table.info.table_id, 3)
    assert newest.log_offsets == {**offsets, TableBucket(table.info.table_id, 0): 9}
    assert conn.admin.lake_snapshot(table.path, readable=True).log_offsets == newest.log_offsets
    earlier = conn.admin.lake_snapshot(table.path, snapshot_id=5)
    assert (earlier.snapshot_id, earlier.log_offsets) == (5, offsets)


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    if FOREIGN_BOOTSTRAP is not None:
        pytest.skip("needs our own server")
    forget_lake(LAKE)
    yield ManualClock()
    forget_lake(LAKE)


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock) -> Iterator[Cluster]:
    with cluster(tmp_path, clock) as running:
        yield running


def codes(heartbeat: Heartbeat) -> dict[int, int]:
    return {table_id: error.code for table_id, error in heartbeat.errors.items()}


def test_a_table_is_handed_out_when_its_freshness_has_passed_and_again_after_the_round(lake: Cluster) -> None:
    info = lake.create("t")
    assert lake.worker.heartbeat(request=True).table is None
    lake.clock.advance(FRESHNESS)
    table = lake.assigned()
    assert (table.table_id, table.path, table.tiering_epoch) == (info.table_id, info.path, 1)
    assert table.fence == table.coordinator_epoch << 32 | 1
    assert lake.worker.heartbeat([table], request=True) == Heartbeat(table.coordinator_epoch)
    assert not lake.worker.heartbeat(finished=[TieringDone(table, file_bytes=5, rows=1)]).errors
    lake.clock.advance(FRESHNESS)
    assert lake.worker.heartbeat(request=True).table is None  # nothing was written to it
    lake.connection.table("fluss.t").append([{"a": 1}])
    lake.clock.advance(FRESHNESS)
    assert lake.assigned().tiering_epoch == 2


def test_a_round_that_was_cut_short_or_failed_makes_its_table_wait_no_longer(lake: Cluster) -> None:
    lake.create("t")
    lake.clock.advance(FRESHNESS)
    lake.worker.heartbeat(finished=[TieringDone(lake.assigned(), forced=True)])
    again = lake.assigned()
    lake.worker.heartbeat(failed=[again])
    assert lake.assigned().tiering_epoch == again.tiering_epoch + 1


def test_errors_of_a_heartbeat_are_those_of_fluss_and_concern_one_table(lake: Cluster) -> None:
    first, second = lake.create("first"), lake.create("second")
    lake.clock.advance(FRESHNESS)
    mine, other = lake.assigned(), lake.assigned()
    assert (mine.table_id, other.table_id) == (first.table_id, second.table_id)
    stale = TieringTable(mine.table_id, mine.path, mine.coordinator_epoch, mine.tiering_epoch - 1)
    earlier_life = TieringTable(mine.table_id, mine.path, mine.coordinator_epoch - 1, mine.tiering_epoch)
    gone = TieringTable(999, mine.path, mine.coordinator_epoch, 1)
    assert codes(lake.worker.heartbeat([stale, other])) == {
        mine.table_id: ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
    }
    assert codes(lake.worker.heartbeat([earlier_life])) == {mine.table_id: ErrorCode.INVALID_COORDINATOR_EXCEPTION}
    assert codes(lake.worker.heartbeat(failed=[gone])) == {999: ErrorCode.TABLE_NOT_EXIST}
    lake.worker.heartbeat(finished=[TieringDone(mine)])
    again = lake.worker.heartbeat(finished=[TieringDone(mine)])
    assert codes(again) == {mine.table_id: ErrorCode.UNKNOWN_SERVER_ERROR}


def test_dropped_and_switched_off_tables_are_taken_away_and_freshness_can_change(lake: Cluster) -> None:
    info = lake.create("t")
    lake.create("gone")
    lake.clock.advance(FRESHNESS)
    tables = {table.path.table: table for table in (lake.assigned(), lake.assigned())}
    lake.connection.drop_table("fluss.gone")
    lake.connection.table(info).alter(set={"table.datalake.enabled": "false"})
    assert set(codes(lake.worker.heartbeat(tables.values())).values()) == {ErrorCode.TABLE_NOT_EXIST}
    lake.connection.table(info).alter(set={"table.datalake.enabled": "true"})
    lake.connection.table(info).alter(set={"table.datalake.freshness": "20 s"})
    lake.clock.advance(FRESHNESS)
    assert lake.worker.heartbeat(request=True).table is None
    lake.clock.advance(FRESHNESS)
    assert lake.assigned().path == info.path


def test_a_restart_makes_earlier_workers_stale_and_remembers_the_last_round(tmp_path: Path, clock: ManualClock) -> None:
    with cluster(tmp_path, clock) as before:
        info = before.create("t")
        clock.advance(FRESHNESS)
        table = before.assigned()
        before.tier(info, 1, 0)
    clock.advance(FRESHNESS - 1)
    with cluster(tmp_path, clock) as after:
        stale = after.worker.heartbeat([table], request=True)
        assert codes(stale) == {info.table_id: ErrorCode.INVALID_COORDINATOR_EXCEPTION}
        assert stale.table is None
        clock.advance(1)
        again = after.assigned()
        assert again.coordinator_epoch == table.coordinator_epoch + 1
        assert again.fence > table.fence


def test_a_committed_snapshot_is_what_the_admin_is_told(lake: Cluster) -> None:
    info = lake.create("t", buckets=3)
    with pytest.raises(NotFound) as none:
        lake.admin.lake_snapshot(info.path)
    assert none.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    fill(lake.connection, info)
    buckets = [TableBucket(info.table_id, bucket) for bucket in range(3)]
    path = lake.worker.prepare(info, {buckets[0]: 5, buckets[2]: 7})
    lake.worker.commit(info, 11, path, readable_path=path, log_end_offsets={buckets[0]: 5}, max_timestamps={})
    path = lake.worker.prepare(info, {buckets[1]: 6})
    lake.worker.commit(info, 12, path, earliest_to_keep=-1)
    newest = lake.admin.lake_snapshot(info.path)
    assert (newest.table_id, newest.snapshot_id) == (info.table_id, 12)
    assert newest.log_offsets == dict(zip(buckets, (5, 6, 7), strict=True))
    readable = lake.admin.lake_snapshot(info.path, readable=True)
    assert (readable.snapshot_id, readable.log_offsets) == (11, {buckets[0]: 5, buckets[2]: 7})
    assert lake.admin.lake_snapshot(info.path, snapshot_id=11).snapshot_id == 11
    with pytest.raises(NotFound, match="no lake snapshot 13"):
        lake.admin.lake_snapshot(info.path, snapshot_id=13)
    with pytest.raises(InvalidRequest, match="not both"):
        lake.admin.lake_snapshot(info.path, snapshot_id=11, readable=True)


def test_offsets_of_partitions_come_with_the_names_of_those_that_are_there(lake: Cluster) -> None:
    info = lake.create("t", partition_keys=["p"])
    for name in ("x", "y"):
        lake.connection.table(info).create_partition({"p": name})
        fill(lake.connection, info, p=name)
    ids = {p.name: p.partition_id for p in lake.connection.table(info).partitions()}
    offsets = {TableBucket(info.table_id, 0, partition_id): partition_id for partition_id in ids.values()}
    path = lake.worker.prepare(info, offsets)
    lake.worker.commit(info, 1, path, readable_path=path)
    lake.connection.table(info).drop_partition({"p": "x"})
    snapshot = lake.admin.lake_snapshot(info.path)
    assert snapshot.log_offsets == offsets
    assert snapshot.partition_names == {ids["y"]: "y"}


def test_what_cannot_be_committed_is_refused_for_its_table(lake: Cluster) -> None:
    info = lake.create("t")
    fill(lake.connection, info)
    late = lake.worker.prepare(info, {TableBucket(info.table_id, 0): 3})
    lake.tier(info, 2, 5)
    with pytest.raises(Conflict, match="overtaken") as refused:
        lake.worker.commit(info, 1, late, readable_path=late)
    assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    with pytest.raises(InvalidRequest, match="no file of offsets"):
        lake.worker.commit(info, 3, "/etc/passwd")
    lake.connection.drop_table(info.path)
    for refuse in (lambda: lake.worker.prepare(info, {}), lambda: lake.worker.commit(info, 3, late)):
        with pytest.raises(NotFound) as dropped:
            refuse()
        assert dropped.value.code == ErrorCode.TABLE_NOT_EXIST
    assert lake.create("t").table_id != info.table_id
    with pytest.raises(NotFound):
        lake.admin.lake_snapshot(info.path)


def test_the_older_form_of_a_commit_brings_its_offsets_with_it(lake: Cluster) -> None:
    info = lake.create("t", buckets=2)
    fill(lake.connection, info)
    for snapshot_id, bucket, offset in ((1, 0, 5), (2, 1, 6)):
        request = pb.CommitLakeTableSnapshotRequest()
        table = request.tables_req.add(table_id=info.table_id, snapshot_id=snapshot_id)
        table.buckets_req.add(bucket_id=bucket, log_end_offset=offset)
        answer = lake.connection.cluster.coordinator_call(
            ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT, request, pb.CommitLakeTableSnapshotResponse, repeatable=False
        )
        assert [(a.table_id, a.error_code) for a in answer.table_resp] == [(info.table_id, 0)]
    snapshot = lake.admin.lake_snapshot(info.path, readable=True)
    assert snapshot.snapshot_id == 2
    assert {bucket.bucket: offset for bucket, offset in snapshot.log_offsets.items()} == {0: 5, 1: 6}


def test_offsets_behind_the_end_of_a_log_are_refused_by_both_forms_of_a_commit(lake: Cluster) -> None:
    info = lake.create("t")
    lake.connection.table(info).append([{"a": n} for n in range(3)])
    bucket = TableBucket(info.table_id, 0)
    with pytest.raises(InvalidRequest, match="up to offset 4: its log ends at 3") as refused:
        lake.worker.prepare(info, {bucket: 4})
    assert refused.value.code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    request = pb.CommitLakeTableSnapshotRequest()
    table = request.tables_req.add(table_id=info.table_id, snapshot_id=1)
    table.buckets_req.add(bucket_id=0, log_end_offset=4)
    [answer] = lake.connection.cluster.coordinator_call(
        ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT, request, pb.CommitLakeTableSnapshotResponse, repeatable=False
    ).table_resp
    assert answer.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    with pytest.raises(NotFound):
        lake.admin.lake_snapshot(info.path)
    lake.tier(info, 1, 3)
    assert lake.admin.lake_snapshot(info.path).log_offsets == {bucket: 3}


def test_a_partition_that_is_dropped_during_a_round_does_not_refuse_it(lake: Cluster) -> None:
    info = lake.create("t", partition_keys=["p"])
    for name in ("x", "y"):
        lake.connection.table(info).append([{"a": 1, "p": name}])
    offsets = {TableBucket(info.table_id, 0, p.partition_id): 1 for p in lake.connection.table(info).partitions()}
    lake.connection.table(info).drop_partition({"p": "x"})
    path = lake.worker.prepare(info, offsets)
    lake.worker.commit(info, 1, path, readable_path=path)
    assert lake.admin.lake_snapshot(info.path).log_offsets == offsets


def test_a_heartbeat_says_what_is_worked_on_and_what_became_of_the_rest() -> None:
    sent: list[tuple[pb.LakeTieringHeartbeatRequest, bool]] = []

    def call(
        _key: ApiKey, message: Any, _response: object, *, repeatable: bool, retry_seconds: float | None
    ) -> pb.LakeTieringHeartbeatResponse:
        sent.append((message, repeatable))
        return pb.LakeTieringHeartbeatResponse(coordinator_epoch=3)

    worker = LakeTieringClient(cast(Any, SimpleNamespace(cluster=SimpleNamespace(coordinator_call=call))))
    one, two = (TieringTable(number, TablePath("d", f"t{number}"), 3, 9) for number in (1, 2))
    assert worker.heartbeat([one]) == Heartbeat(3)
    assert sent[-1][1]  # may be repeated: nothing changes by it
    done = [
        TieringDone(one),
        TieringDone(two, True, rows=5),
        TieringDone(one, file_bytes=7),
        TieringDone(two, False, 7, 5),
    ]
    worker.heartbeat([], done, [two])
    message, repeatable = sent[-1]
    assert not repeatable
    assert [table.table_id for table in message.failed_tables] == [2]
    assert list(message.force_finished_tables) == [2]
    assert [
        (
            t.table_id,
            t.HasField("lake_tiering_stats"),
            t.lake_tiering_stats.file_size,
            t.lake_tiering_stats.record_count,
        )
        for t in message.finished_tables
    ] == [(1, False, 0, 0), (2, True, 0, 5), (1, True, 7, 0), (2, True, 7, 5)]
    for arguments in (([], [TieringDone(one)]), ([], [], [one])):
        worker.heartbeat(*arguments)
        assert not sent[-1][1]
    worker.heartbeat(request=True)
    assert not sent[-1][1]
