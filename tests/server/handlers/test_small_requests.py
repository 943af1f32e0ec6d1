"""The contents of small responses: databases, options, health, partitions, rounds of tiering workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, NotFound
from forebay.log.tablet import LogTablet
from forebay.metadata import json_serde
from forebay.protocol.messages import partition_spec_to_pb
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from tests.server.handlers.alterations import RESET, SET, add_partition, change
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, Bench, log_records, running
from tests.server.tiering_worker import Worker

# ---- databases and tables -------------------------------------------------------------------------------------------


def alter_database(bench: Bench, name: str, *changes: pb.PbAlterConfig, **more: Any) -> None:
    request = pb.AlterDatabaseRequest(database_name=name, config_changes=changes, ignore_if_not_exists=False)
    request.MergeFrom(pb.AlterDatabaseRequest(**more))
    bench.coordinator.call(ApiKey.ALTER_DATABASE, request)


def test_a_database_is_altered_option_by_option_and_its_comment_stays_unless_it_is_given(bench: Bench) -> None:
    bench.coordinator.call(
        ApiKey.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name="altered", ignore_if_exists=False)
    )

    def shown() -> tuple[str | None, dict[str, str]]:
        answer = bench.tablet.call(
            ApiKey.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name="altered")
        ).database_json
        info = json_serde.database_from_json("altered", json_serde.loads(answer, "database"))
        return info.comment, dict(info.custom_properties)

    alter_database(bench, "altered", change("a", SET, "1"), change("b", SET, "2"), comment="why")
    assert shown() == ("why", {"a": "1", "b": "2"})
    alter_database(bench, "altered", change("a", RESET), change("c", SET, ""))
    assert shown() == ("why", {"b": "2", "c": ""})
    with pytest.raises(InvalidRequest, match="'d' is to be set, but no value is given"):
        alter_database(bench, "altered", change("d", SET))
    with pytest.raises(InvalidRequest, match="'d' can be set or reset, not changed by operation 2"):
        alter_database(bench, "altered", change("d", 2, "x"))
    assert shown() == ("why", {"b": "2", "c": ""})


def test_what_does_not_exist_is_told_unless_that_is_to_be_ignored(bench: Bench) -> None:
    for ignore in (True, False):
        for key, request in (
            (ApiKey.ALTER_DATABASE, pb.AlterDatabaseRequest(database_name="none", ignore_if_not_exists=ignore)),
            (
                ApiKey.DROP_DATABASE,
                pb.DropDatabaseRequest(database_name="none", ignore_if_not_exists=ignore, cascade=False),
            ),
            (ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path("none"), ignore_if_not_exists=ignore)),
        ):
            if ignore:
                bench.coordinator.call(key, request)
            else:
                with pytest.raises(NotFound, match="none"):
                    bench.coordinator.call(key, request)


def test_databases_are_summed_up_for_those_who_ask(bench: Bench) -> None:
    bench.create("one", LOG_COLUMNS)
    plain = bench.tablet.call(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest())
    assert "fluss" in plain.database_name
    assert not plain.database_summary
    listed = bench.tablet.call(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True))
    counts = {summary.database_name: summary.table_count for summary in listed.database_summary}
    assert set(counts) == set(listed.database_name) == set(plain.database_name)
    tables = bench.tablet.call(ApiKey.LIST_TABLES, pb.ListTablesRequest(database_name="fluss")).table_name
    assert counts["fluss"] == len(tables) > 0


# ---- health, snapshots for download ---------------------------------------------------------------------------------


def test_health_counts_the_buckets_of_tables_and_partitions_and_those_that_are_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as bench:

        def health() -> tuple[int, int, int, int, int]:
            answer = bench.coordinator.call(ApiKey.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest())
            return (
                answer.num_replicas,
                answer.num_leader_replicas,
                answer.in_sync_replicas,
                answer.active_leader_replicas,
                answer.status,
            )

        green, red = 0, 2
        assert health() == (0, 0, 0, 0, green)
        table = bench.create("t", LOG_COLUMNS, buckets=3)
        assert health() == (3, 3, 3, 3, green)
        bench.create("p", LOG_COLUMNS, buckets=2, partition_keys=["s"])
        assert health() == (3, 3, 3, 3, green)
        for value in "xy":
            add_partition(bench, "p", value)
        assert health() == (7, 7, 7, 7, green)
        bench.append(table, log_records([1]))
        opened = len(bench.server.server.context.replicas.replicas())
        assert opened > 0
        monkeypatch.setattr(LogTablet, "is_offline", property(lambda _: True))
        assert health()[:4] == (7, 7, 7 - opened, 7 - opened)
        assert health()[4] == red


def test_each_bucket_of_the_partition_that_was_requested_is_without_a_snapshot(bench: Bench) -> None:
    bench.create("plain", KV_COLUMNS, ["id"], buckets=2)
    table = bench.create("parted", KV_COLUMNS, ["id", "name"], partition_keys=["name"], buckets=2)
    bench.coordinator.call(
        ApiKey.CREATE_PARTITION,
        pb.CreatePartitionRequest(
            table_path=bench.path("parted"),
            partition_spec=partition_spec_to_pb([("name", "x")]),
            ignore_if_not_exists=False,
        ),
    )

    def latest(name: str, partition: str | None = None) -> Any:
        request = pb.GetLatestKvSnapshotsRequest(table_path=bench.path(name), partition_name=partition)
        return bench.tablet.call(ApiKey.GET_LATEST_KV_SNAPSHOTS, request)

    answer = latest("plain")
    assert [each.bucket_id for each in answer.latest_snapshots] == [0, 1]
    assert not answer.HasField("partition_id")
    answer = latest("parted", "x")
    assert [each.bucket_id for each in answer.latest_snapshots] == [0, 1]
    assert answer.HasField("partition_id")
    for name, partition, code, message in (
        ("plain", "x", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION, "is not partitioned"),
        ("parted", None, ErrorCode.PARTITION_NOT_EXISTS, "needs a partition name"),
    ):
        with pytest.raises(ForebayError, match=message) as e:
            latest(name, partition)
        assert e.value.code == code
    for asked in (None, answer.partition_id):
        listed = bench.coordinator.call(
            ApiKey.LIST_KV_SNAPSHOTS, pb.ListKvSnapshotsRequest(table_id=table, partition_id=asked)
        )
        assert (listed.table_id, list(listed.active_snapshots)) == (table, [])
        assert (listed.partition_id if listed.HasField("partition_id") else None) == asked


# ---- the rounds of tiering workers ----------------------------------------------------------------------------------


def test_a_worker_gets_a_table_tells_what_becomes_of_it_and_is_refused_for_what_it_does_not_hold(
    tmp_path: Path,
) -> None:
    forget_lake("rounds")
    clock = ManualClock()
    injected = Injected(clock=clock, create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    with running(tmp_path, injected, datalake_format="paimon", datalake_paimon_name="rounds") as bench:
        worker = Worker(bench)
        assert worker.next() is None
        lake = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 min"}
        table_id = bench.create("t", LOG_COLUMNS, properties=lake)
        assert worker.next() is None
        clock.advance(60)
        assert not worker.ask(request_table=False).HasField("tiering_table")
        table = worker.next()
        assert (table.table_id, table.table_path.table_name, table.tiering_epoch) == (table_id, "t", 1)
        assert worker.next() is None

        (beat,) = worker.ask(tiering_tables=[worker.of(table)]).tiering_table_resp
        assert (beat.table_id, beat.HasField("error")) == (table_id, False)
        (late,) = worker.ask(tiering_tables=[worker.of(table, worker.epoch + 1)]).tiering_table_resp
        assert late.error.error_code == ErrorCode.INVALID_COORDINATOR_EXCEPTION
        assert "is not the current one" in late.error.error_message

        (failed,) = worker.ask(failed_tables=[worker.of(table)]).failed_table_resp
        assert not failed.HasField("error")
        (again,) = worker.ask(failed_tables=[worker.of(table)]).failed_table_resp
        assert again.HasField("error")  # it holds it no more
        table = worker.next()
        assert table.tiering_epoch == 2

        # The same news twice is one; a round that was forced to end goes on at once.
        done = worker.of(table, file_size=10, record_count=3)
        answer = worker.ask(finished_tables=[done, done], force_finished_tables=[table_id])
        (finished,) = answer.finished_table_resp
        assert not finished.HasField("error")
        status = bench.server.server.context.lake.tiering.status
        assert (status(table_id).file_bytes, status(table_id).rows) == (10, 3)
        table = worker.next()
        assert table.tiering_epoch == 3
        worker.ask(finished_tables=[worker.of(table, record_count=4)])
        assert (status(table_id).file_bytes, status(table_id).rows) == (None, 4)
        assert worker.next() is None


def test_lake_tables_that_were_there_at_the_start_of_the_server_are_handed_out(tmp_path: Path) -> None:
    forget_lake("started")
    clock = ManualClock()
    injected = Injected(clock=clock, create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    settings = {"datalake_format": "paimon", "datalake_paimon_name": "started"}
    lake = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 min"}
    with running(tmp_path, injected, **settings) as bench:
        bench.create("plain", LOG_COLUMNS)
        table_id = bench.create("t", LOG_COLUMNS, properties=lake)
    with running(tmp_path, injected, **settings) as bench:
        worker = Worker(bench)
        assert worker.next() is None
        clock.advance(60)
        assert worker.next().table_id == table_id
        assert worker.next() is None


def test_offsets_are_committed_in_the_older_form_unless_the_newer_one_stands_beside_it(tmp_path: Path) -> None:
    forget_lake("rounds")
    injected = Injected(create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    with running(tmp_path, injected, datalake_format="paimon", datalake_paimon_name="rounds") as bench:
        table_id = bench.create("t", LOG_COLUMNS, buckets=2, properties={"table.datalake.enabled": "true"})
        for bucket in (0, 1):  # no lake snapshot has more than a log
            bench.append(table_id, log_records(range(10)), bucket=bucket)

        def commit(*older: pb.PbLakeTableSnapshotInfo, **more: Any) -> list[Any]:
            request = pb.CommitLakeTableSnapshotRequest(tables_req=older, **more)
            return list(bench.coordinator.call(ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT, request).table_resp)

        def offsets(snapshot_id: int, *ends: int, **table: Any) -> pb.PbLakeTableSnapshotInfo:
            made = pb.PbLakeTableSnapshotInfo(snapshot_id=snapshot_id, **table)
            for bucket, end in enumerate(ends):
                made.buckets_req.add(bucket_id=bucket, log_end_offset=end)
            return made

        def newest() -> tuple[int, list[tuple[int, int]]]:
            request = pb.GetLakeSnapshotRequest(table_path=bench.path("t"))
            answer = bench.coordinator.call(ApiKey.GET_LAKE_SNAPSHOT, request)
            return answer.snapshotId, sorted((b.bucket_id, b.log_offset) for b in answer.bucket_snapshots)

        (by_id,) = commit(offsets(1, 5, 7, table_id=table_id))
        assert (by_id.table_id, by_id.HasField("error_code")) == (table_id, False)
        assert newest() == (1, [(0, 5), (1, 7)])
        (by_path,) = commit(offsets(2, 6, 7, table_path=bench.path("t")))
        assert (by_path.table_id, by_path.HasField("error_code")) == (table_id, False)
        assert newest() == (2, [(0, 6), (1, 7)])

        prepare = pb.PrepareLakeTableSnapshotRequest()
        prepare.bucket_offsets.add(table_id=table_id, table_path=bench.path("t")).bucket_offsets.add(
            bucket_id=0, log_end_offset=9
        )
        (prepared,) = bench.coordinator.call(ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT, prepare).prepare_lake_table_resp
        newer = pb.PbLakeTableSnapshotMetadata(
            table_id=table_id, snapshot_id=3, tiered_bucket_offsets_file_path=prepared.lake_table_offsets_path
        )
        both = commit(offsets(4, 8, 8, table_id=table_id), lake_table_snapshot_metadata=[newer])
        assert [answer.HasField("error_code") for answer in both] == [False]
        assert newest() == (3, [(0, 9), (1, 7)])

        nowhere, here = commit(offsets(5, 1, table_id=99), offsets(5, 10, 10, table_id=table_id))
        assert (nowhere.table_id, nowhere.error_code) == (99, ErrorCode.TABLE_NOT_EXIST)
        assert not here.HasField("error_code")
        assert newest() == (5, [(0, 10), (1, 10)])


def test_lake_snapshots_are_found_by_their_id_or_by_being_readable_with_the_names_of_partitions(tmp_path: Path) -> None:
    forget_lake("asked")
    injected = Injected(create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    with running(tmp_path, injected, datalake_format="paimon", datalake_paimon_name="asked") as bench:
        lake = {"table.datalake.enabled": "true"}
        table_id = bench.create("t", LOG_COLUMNS, buckets=4, partition_keys=["s"], properties=lake)
        for value in "xy":
            add_partition(bench, "t", value)
        listed = pb.ListPartitionInfosRequest(table_path=bench.path("t"))
        infos = bench.tablet.call(ApiKey.LIST_PARTITION_INFOS, listed).partitions_info
        x, y = (info.partition_id for info in infos)
        for partition, bucket in ((x, 1), (y, 0)):
            bench.append(table_id, log_records(range(9)), bucket=bucket, partition=partition)

        def ask(**fields: Any) -> Any:
            return bench.coordinator.call(
                ApiKey.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest(table_path=bench.path("t"), **fields)
            )

        def found(**fields: Any) -> tuple[int, list[tuple[str, int, int]]]:
            answer = ask(**fields)
            assert answer.table_id == table_id
            return answer.snapshotId, sorted(
                (b.partition_name, b.bucket_id, b.log_offset) for b in answer.bucket_snapshots
            )

        older = pb.PbLakeTableSnapshotInfo(table_id=table_id, snapshot_id=1)
        for bucket, end in ((0, 0), (1, 5), (2, -1), (3, None)):  # -1 and nothing say that there is none
            older.buckets_req.add(partition_id=x, bucket_id=bucket, log_end_offset=end)
        commit = pb.CommitLakeTableSnapshotRequest(tables_req=[older])
        (answer,) = bench.coordinator.call(ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT, commit).table_resp
        assert not answer.error_code, answer
        first = (1, [("x", 0, 0), ("x", 1, 5)])
        assert found() == found(readable=True) == found(snapshot_id=1) == first

        prepare = pb.PrepareLakeTableSnapshotRequest()
        prepare.bucket_offsets.add(table_id=table_id, table_path=bench.path("t")).bucket_offsets.add(
            partition_id=y, bucket_id=0, log_end_offset=9
        )
        (prepared,) = bench.coordinator.call(ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT, prepare).prepare_lake_table_resp
        newer = pb.PbLakeTableSnapshotMetadata(
            table_id=table_id,
            snapshot_id=2,
            tiered_bucket_offsets_file_path=prepared.lake_table_offsets_path,
            earliest_snapshot_id_to_keep=1,
        )
        commit = pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[newer])
        bench.coordinator.call(ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT, commit)
        assert found() == found(snapshot_id=2) == (2, [*first[1], ("y", 0, 9)])
        assert found(readable=True) == found(snapshot_id=1) == found(snapshot_id=1, readable=False) == first
        with pytest.raises(ForebayError, match="a snapshot id or readable=true, not both"):
            ask(snapshot_id=1, readable=True)
        with pytest.raises(NotFound, match="no lake snapshot 7"):
            ask(snapshot_id=7)

        drop = pb.DropPartitionRequest(
            table_path=bench.path("t"), partition_spec=partition_spec_to_pb([("s", "y")]), ignore_if_not_exists=False
        )
        bench.coordinator.call(ApiKey.DROP_PARTITION, drop)
        assert found() == (2, [("", 0, 9), *first[1]])


def test_a_server_shows_whether_it_serves(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    assert repr(server) == f"<EmbeddedServer {tmp_path} stopped>"
    with server:
        assert repr(server) == f"<EmbeddedServer {tmp_path} serving on {server.bootstrap_servers}>"
    assert repr(server).endswith(" stopped>")
