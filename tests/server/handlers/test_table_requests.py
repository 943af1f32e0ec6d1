"""The effects of requests about tables: columns, schemas, directories, offsets, and what they reject."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.metadata import types
from forebay.metadata.table import TableBucket
from forebay.protocol.messages import partition_spec_to_pb
from forebay.server.flow.request_limits import ITEM_BYTES
from forebay.server.flow.response_memory import ResponseMemory
from forebay.server.handlers import offsets as offset_requests
from forebay.server.handlers.lookups import _last_batches
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.write_command import PutCommand
from tests.patience import until
from tests.server.handlers.alterations import SET, add_partition, change
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, Bench, kv_key, kv_records, log_records, running

LAST, FIRST = 0, 1


# ---- altering -------------------------------------------------------------------------------------------------------


def alter(bench: Bench, name: str, *, ignore: bool = False, **fields: Any) -> None:
    request = pb.AlterTableRequest(table_path=bench.path(name), ignore_if_not_exists=ignore, **fields)
    bench.coordinator.call(ApiKey.ALTER_TABLE, request)


def added(name: str, position: int = LAST, **fields: Any) -> pb.PbAddColumn:
    return pb.PbAddColumn(
        column_name=name, data_type_json=b'{"type":"STRING"}', column_position_type=position, **fields
    )


def schema_of(bench: Bench, name: str, schema_id: int | None = None) -> tuple[int, list[tuple[str, str | None]]]:
    request = pb.GetTableSchemaRequest(table_path=bench.path(name), schema_id=schema_id)
    answer = bench.tablet.call(ApiKey.GET_TABLE_SCHEMA, request)
    columns = json.loads(answer.schema_json)["columns"]
    return answer.schema_id, [(column["name"], column.get("comment")) for column in columns]


def test_added_columns_have_their_comments_and_each_schema_of_the_table_can_be_requested(bench: Bench) -> None:
    bench.create("commented", LOG_COLUMNS)
    before = [("a", None), ("s", None)]
    assert schema_of(bench, "commented") == (1, before)
    alter(bench, "commented", add_columns=[added("x", comment="why"), added("y"), added("z", comment="")])
    after = [*before, ("x", "why"), ("y", None), ("z", "")]
    assert schema_of(bench, "commented") == schema_of(bench, "commented", 2) == (2, after)
    assert schema_of(bench, "commented", 1) == (1, before)
    with pytest.raises(ForebayError, match="has no schema 3; the latest is 2") as refused:
        schema_of(bench, "commented", 3)
    assert refused.value.code == ErrorCode.SCHEMA_NOT_EXIST


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"drop_columns": [pb.PbDropColumn(column_name="a")]}, ErrorCode.UNKNOWN_SERVER_ERROR, "dropping columns"),
        (
            {"rename_columns": [pb.PbRenameColumn(old_column_name="a", new_column_name="b")]},
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "renaming columns",
        ),
        (
            {"modify_columns": [pb.PbModifyColumn(column_name="a", data_type_json=b"{}")]},
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "modifying columns",
        ),
        (
            {"modify_bucket_count": pb.PbModifyBucketCount(new_bucket_count=2)},
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            "number of buckets",
        ),
        (
            {"add_columns": [added("b")], "config_changes": [change("k", SET, "v")]},
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            "either the options or the columns",
        ),
        ({"add_columns": [added("b", FIRST)]}, ErrorCode.INVALID_ALTER_TABLE_EXCEPTION, "can only be added at the end"),
        (
            {"add_columns": [added("b", agg_function_type="sum")]},
            ErrorCode.INVALID_CONFIG_EXCEPTION,
            "'b' has aggregate function 'sum', which only the aggregation merge engine uses",
        ),
    ],
)
def test_changes_that_are_not_served_are_refused_and_change_nothing(
    bench: Bench, fields: dict[str, Any], code: ErrorCode, reason: str
) -> None:
    name = "unaltered"
    if not bench.tablet.call(ApiKey.TABLE_EXISTS, pb.TableExistsRequest(table_path=bench.path(name))).exists:
        bench.create(name, LOG_COLUMNS)
    before = bench.info(name)
    with pytest.raises(ForebayError, match=reason) as refused:
        alter(bench, name, **fields)
    assert refused.value.code == code
    assert bench.info(name) == before


@pytest.mark.parametrize("fields", [{"add_columns": [added("b")]}, {"config_changes": [change("k", SET, "v")]}])
def test_a_table_that_does_not_exist_cannot_be_altered_unless_that_is_to_be_ignored(
    bench: Bench, fields: dict[str, Any]
) -> None:
    alter(bench, "missing", ignore=True, **fields)
    with pytest.raises(ForebayError, match="missing") as refused:
        alter(bench, "missing", **fields)
    assert refused.value.code == ErrorCode.TABLE_NOT_EXIST


# ---- dropping -------------------------------------------------------------------------------------------------------


def test_dropped_partitions_and_databases_leave_no_files_behind(tmp_path: Path) -> None:
    with running(tmp_path / "data") as bench:
        table = bench.create("t", LOG_COLUMNS, partition_keys=["s"])
        for value in "xy":
            add_partition(bench, "t", value)
        request = pb.ListPartitionInfosRequest(table_path=bench.path("t"))
        partitions = bench.tablet.call(ApiKey.LIST_PARTITION_INFOS, request).partitions_info
        for partition in partitions:
            write = pb.ProduceLogRequest(acks=-1, table_id=table, timeout_ms=10_000)
            write.buckets_req.add(bucket_id=0, partition_id=partition.partition_id, records=log_records([1]))
            assert not bench.tablet.call(ApiKey.PRODUCE_LOG, write).buckets_resp[0].error_code
        root = tmp_path / "data" / "fluss" / f"t-{table}"
        folders = sorted(root.iterdir())
        assert len(folders) == 2
        replicas = bench.server.server.context.replicas
        assert len(replicas.replicas()) == 2

        drop = pb.DropPartitionRequest(
            table_path=bench.path("t"), partition_spec=partition_spec_to_pb([("s", "x")]), ignore_if_not_exists=False
        )
        bench.coordinator.call(ApiKey.DROP_PARTITION, drop)
        assert [replica.bucket.partition_id for replica in replicas.replicas()] == [partitions[1].partition_id]
        until(lambda: sorted(root.iterdir()) == folders[1:], "the removal of the partition's folder")
        bench.coordinator.call(
            ApiKey.DROP_DATABASE,
            pb.DropDatabaseRequest(database_name="fluss", ignore_if_not_exists=False, cascade=True),
        )
        assert replicas.replicas() == []
        until(lambda: not root.exists(), "the removal of the table's folder")
        until(lambda: replicas.doomed_folders() == [], "a note that it is done")


# ---- offsets --------------------------------------------------------------------------------------------------------


def listed(bench: Bench, table: int, offset_type: int, timestamp: int | None = None) -> Any:
    request = pb.ListOffsetsRequest(
        follower_server_id=-1, offset_type=offset_type, startTimestamp=timestamp, table_id=table, bucket_id=[0]
    )
    return bench.tablet.call(ApiKey.LIST_OFFSETS, request).buckets_resp[0]


def test_the_end_of_a_log_can_be_requested_by_two_names_and_no_others(bench: Bench) -> None:
    table = bench.create("ends", LOG_COLUMNS)
    assert not bench.append(table, log_records([1, 2])).error_code
    assert [listed(bench, table, kind).offset for kind in (0, 1, 3)] == [0, 2, 2]
    for kind, timestamp in ((4, 0), (-1, None), (2, None)):
        answer = listed(bench, table, kind, timestamp)
        assert (answer.error_code, answer.HasField("offset")) == (ErrorCode.INVALID_TIMESTAMP_EXCEPTION, False)
        assert f"offset type {kind} with timestamp {timestamp}" in answer.error_message


def test_records_of_this_moment_can_be_requested_and_those_of_the_next_cannot(bench: Bench) -> None:
    table = bench.create("moments", LOG_COLUMNS)
    assert not bench.append(table, log_records([1, 2])).error_code
    with bench.server.server.context.replicas.using(TableBucket(table, 0)) as replica:
        now = 1 << 50
        assert offset_requests._offset(replica, replica.log.high_watermark, 2, now, now) == 2
        with pytest.raises(ForebayError, match=f"timestamp {now + 1} is later than the server's time {now}"):
            offset_requests._offset(replica, replica.log.high_watermark, 2, now + 1, now)


# ---- the last records of a log --------------------------------------------------------------------------------------


def test_the_last_batches_are_read_until_they_are_more_than_may_be_sent(bench: Bench) -> None:
    table = bench.create("last", LOG_COLUMNS)
    for number in range(3):
        assert not bench.append(table, log_records([number])).error_code
    with bench.server.server.context.replicas.using(TableBucket(table, 0)) as replica:
        one = len(replica.log.read(2, 1 << 20, 3).data)
        for bytes_max, batches in ((1, 1), (one - 1, 1), (one, 2), (2 * one, 3), (3 * one, 3)):
            found = _last_batches(replica.log, 3, bytes_max)
            assert sum(map(len, found)) == batches * one, bytes_max


# ---- answers of exactly the size that is allowed --------------------------------------------------------------------


def scanned(bench: Bench, table: int, limit: int) -> Any:
    return bench.tablet.call(ApiKey.LIMIT_SCAN, pb.LimitScanRequest(table_id=table, bucket_id=0, limit=limit))


def test_a_limit_scan_may_be_as_large_as_the_limit_and_a_single_batch_or_row_larger(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = bench.server.server.context.limits
    keyed, log = bench.create("sized", KV_COLUMNS, ["id"]), bench.create("sized_log", LOG_COLUMNS)
    bench.put(keyed, kv_records([{"id": number, "name": "same"} for number in range(3)]))
    for number in range(3):
        bench.append(log, log_records([number]))
    with bench.server.server.context.replicas.using(TableBucket(keyed, 0)) as replica:
        rows_size = sum(map(len, replica.kv.first_values(2)))
    for table, size, kind in (
        (keyed, rows_size, "first 2 rows"),
        (log, len(scanned(bench, log, 2).records), "last 2"),
    ):
        monkeypatch.setattr(limits, "answer_bytes_max", size)
        exact = scanned(bench, table, 2)
        assert (exact.error_message, bool(exact.records)) == ("", True)
        monkeypatch.setattr(limits, "answer_bytes_max", size - 1)
        refused = scanned(bench, table, 2)
        assert (refused.error_code, refused.HasField("records")) == (ErrorCode.RECORD_TOO_LARGE_EXCEPTION, False)
        assert f"the {kind}" in refused.error_message
        assert f"more than {size - 1} B" in refused.error_message
    monkeypatch.setattr(limits, "answer_bytes_max", 1)
    for table in (log, keyed):
        assert scanned(bench, table, 1).records, "one row alone: what may be written may be read"


def test_descriptions_of_tables_may_be_as_large_together_as_an_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wordy", "wordier"):
        bench.create(name, LOG_COLUMNS)
    request = pb.MetadataRequest(table_path=[bench.path("wordy"), bench.path("wordier")])
    size = sum(len(bench.info(name).table_json) for name in ("wordy", "wordier"))
    limits = bench.server.server.context.limits
    monkeypatch.setattr(limits, "answer_bytes_max", size)
    assert len(bench.tablet.call(ApiKey.GET_METADATA, request).table_metadata) == 2
    monkeypatch.setattr(limits, "answer_bytes_max", size - 1)
    with pytest.raises(ForebayError, match="descriptions of 2 tables"):
        bench.tablet.call(ApiKey.GET_METADATA, request)


def test_answers_about_long_lists_take_memory_for_each_thing_in_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, keyed = bench.create("listed", LOG_COLUMNS, buckets=300), bench.create("listed_keys", KV_COLUMNS, ["id"])
    entered: list[int] = []
    enter, grow = ResponseMemory.enter, ResponseMemory.grow_to

    async def counted(self: ResponseMemory, size: int) -> None:
        entered.append(size)
        await enter(self, size)

    async def grown(self: ResponseMemory, size: int) -> None:
        entered.append(size)
        await grow(self, size)

    monkeypatch.setattr(ResponseMemory, "enter", counted)
    monkeypatch.setattr(ResponseMemory, "grow_to", grown)
    statistics, heartbeat = pb.GetTableStatsRequest(table_id=table), pb.LakeTieringHeartbeatRequest()
    lookups = pb.LookupRequest(table_id=keyed)
    for number in range(300):
        statistics.buckets_req.add(bucket_id=number)
        heartbeat.failed_tables.add(table_id=number, coordinator_epoch=1, tiering_epoch=1)
        lookups.buckets_req.add(bucket_id=number)
    for client, key, request, things in (
        (bench.tablet, ApiKey.GET_METADATA, pb.MetadataRequest(table_path=[bench.path("listed")]), 301),
        (
            bench.tablet,
            ApiKey.LIST_OFFSETS,
            pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=table, bucket_id=range(300)),
            300,
        ),
        (bench.tablet, ApiKey.GET_TABLE_STATS, statistics, 300),
        (bench.coordinator, ApiKey.LAKE_TIERING_HEARTBEAT, heartbeat, 300),
        (bench.tablet, ApiKey.LOOKUP, lookups, 300),
    ):
        entered.clear()
        client.call(key, request)
        assert things * ITEM_BYTES in entered, key


# ---- lookups that insert --------------------------------------------------------------------------------------------


def inserting(bench: Bench, table: int, *ids: int, partition: int | None = None, **fields: Any) -> Any:
    request = pb.LookupRequest(table_id=table, insert_if_not_exists=True, **fields)
    request.buckets_req.add(bucket_id=0, partition_id=partition, keys=[kv_key(each) for each in ids])
    return bench.tablet.call(ApiKey.LOOKUP, request).buckets_resp[0]


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_inserted_rows_are_found_however_they_are_to_be_acknowledged(bench: Bench, acks: int) -> None:
    table = bench.create(f"inserted{acks}".replace("-", "m"), KV_COLUMNS, ["id"])
    answer = inserting(bench, table, 1, 2, acks=acks, timeout_ms=10_000)
    assert (answer.error_code, [value.HasField("values") for value in answer.values]) == (0, [True, True])
    assert bench.log_end(table) == 2


def test_rows_are_inserted_as_writes_that_are_waited_for_unless_the_request_says_otherwise(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bench.create("waited_for", KV_COLUMNS, ["id"])
    asked: list[int] = []
    submit = BucketReplica.submit

    def noted(self: BucketReplica, command: PutCommand, *arguments: Any, **named: Any) -> Any:
        asked.extend(request.acks for request in command.requests)
        return submit(self, command, *arguments, **named)

    monkeypatch.setattr(BucketReplica, "submit", noted)
    for fields in ({}, {"acks": 1}, {"acks": 0}, {"acks": -1}):
        assert not inserting(bench, table, len(asked), **fields).error_code
    assert asked == [-1, 1, 0, -1]


def test_rows_that_cannot_be_inserted_are_told(bench: Bench) -> None:
    parted = bench.create("no_insert", KV_COLUMNS, ["id", "name"], partition_keys=["name"])
    request = pb.CreatePartitionRequest(
        table_path=bench.path("no_insert"),
        partition_spec=partition_spec_to_pb([("name", "x")]),
        ignore_if_not_exists=False,
    )
    bench.coordinator.call(ApiKey.CREATE_PARTITION, request)
    infos = pb.ListPartitionInfosRequest(table_path=bench.path("no_insert"))
    (partition,) = bench.tablet.call(ApiKey.LIST_PARTITION_INFOS, infos).partitions_info
    answer = inserting(bench, parted, 1, partition=partition.partition_id)
    assert "not supported on table fluss.no_insert, which is partitioned or has a lake format" in answer.error_message
    needed = bench.create("needed", {**KV_COLUMNS, "name": types.string().not_null()}, ["id"])
    answer = inserting(bench, needed, 1)
    assert answer.error_code
    assert bench.log_end(needed) == 0


# ---- writes that are refused for want of room -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION, 2, ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION),
        (ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION, 1, ErrorCode.KV_STORAGE_EXCEPTION),
        (ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION, 0, ErrorCode.KV_STORAGE_EXCEPTION),
        (ErrorCode.INVALID_REQUIRED_ACKS, 1, ErrorCode.INVALID_REQUIRED_ACKS),
    ],
)
def test_clients_that_do_not_know_of_backpressure_are_told_of_a_storage_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, version: int, told: ErrorCode
) -> None:
    table = bench.create(f"slow{version}_{int(code)}", KV_COLUMNS, ["id"])

    def refuse(*_: object, **_named: object) -> None:
        raise InvalidRequest("not now", code)

    monkeypatch.setattr(BucketReplica, "submit", refuse)
    request = pb.PutKvRequest(acks=-1, table_id=table, timeout_ms=10_000)
    request.buckets_req.add(bucket_id=0, records=kv_records([{"id": 1}]))
    answer = bench.tablet.call(ApiKey.PUT_KV, request, version).buckets_resp[0]
    assert (answer.error_code, answer.error_message) == (told, "not now")


def test_aggregation_modes_and_partitions_that_no_server_has_are_refused(bench: Bench) -> None:
    table, log = bench.create("modes", KV_COLUMNS, ["id"]), bench.create("modes_log", LOG_COLUMNS)
    with pytest.raises(ForebayError, match="aggregation mode 2"):
        bench.tablet.call(ApiKey.PUT_KV, pb.PutKvRequest(acks=-1, table_id=table, timeout_ms=1000, agg_mode=2))
    put = pb.PutKvRequest(acks=-1, table_id=table, timeout_ms=10_000)
    append = pb.ProduceLogRequest(acks=-1, table_id=log, timeout_ms=10_000)
    lookup = pb.LookupRequest(table_id=table)
    put.buckets_req.add(bucket_id=0, records=kv_records([{"id": 1}]), original_partition_name="2024")
    append.buckets_req.add(bucket_id=0, records=log_records([1]), original_partition_name="2024")
    lookup.buckets_req.add(bucket_id=0, keys=[kv_key(1)], original_partition_name="2024")
    for key, request in ((ApiKey.PUT_KV, put), (ApiKey.PRODUCE_LOG, append), (ApiKey.LOOKUP, lookup)):
        answer = bench.tablet.call(key, request).buckets_resp[0]
        assert "historical partitions" in answer.error_message
    assert (bench.log_end(table), bench.log_end(log)) == (0, 0)


# ---- partitions -----------------------------------------------------------------------------------------------------


def test_partitions_are_listed_by_some_of_their_keys(bench: Bench) -> None:
    columns = {**LOG_COLUMNS, "region": types.string()}
    bench.create("regions", columns, partition_keys=["s", "region"])
    bench.create("regionless", LOG_COLUMNS)
    for day in "xy":
        for region in ("eu", "us"):
            request = pb.CreatePartitionRequest(
                table_path=bench.path("regions"),
                partition_spec=partition_spec_to_pb([("s", day), ("region", region)]),
                ignore_if_not_exists=False,
            )
            bench.coordinator.call(ApiKey.CREATE_PARTITION, request)

    def names(table: str, *spec: tuple[str, str]) -> list[list[str]]:
        request = pb.ListPartitionInfosRequest(table_path=bench.path(table))
        if spec:
            request.partial_partition_spec.CopyFrom(partition_spec_to_pb(spec))
        infos = bench.tablet.call(ApiKey.LIST_PARTITION_INFOS, request).partitions_info
        return sorted([pair.value for pair in info.partition_spec.partition_key_values] for info in infos)

    assert names("regions") == [["x", "eu"], ["x", "us"], ["y", "eu"], ["y", "us"]]
    assert names("regions", ("region", "us")) == [["x", "us"], ["y", "us"]]
    assert names("regions", ("region", "us"), ("s", "y")) == [["y", "us"]]
    with pytest.raises(ForebayError, match=r"is partitioned by \['s', 'region'\], not by a, b") as refused:
        names("regions", ("a", "1"), ("s", "x"), ("b", "2"))
    assert refused.value.code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    with pytest.raises(ForebayError, match="regionless is not partitioned") as refused:
        names("regionless")
    assert refused.value.code == ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION


def test_partitions_are_described_by_their_names_and_by_their_ids(bench: Bench) -> None:
    ids: dict[tuple[str, str], int] = {}
    tables = {name: bench.create(name, LOG_COLUMNS, partition_keys=["s"], buckets=2) for name in ("days", "more_days")}
    for name in tables:
        for value in "xy":
            add_partition(bench, name, value)
        request = pb.ListPartitionInfosRequest(table_path=bench.path(name))
        for info in bench.tablet.call(ApiKey.LIST_PARTITION_INFOS, request).partitions_info:
            ids[name, info.partition_spec.partition_key_values[0].value] = info.partition_id

    def described(**request: Any) -> list[tuple[int, str, int, list[int]]]:
        answer = bench.tablet.call(ApiKey.GET_METADATA, pb.MetadataRequest(**request))
        return [
            (each.table_id, each.partition_name, each.partition_id, [b.bucket_id for b in each.bucket_metadata])
            for each in answer.partition_metadata
        ]

    def expected(*names: tuple[str, str]) -> list[tuple[int, str, int, list[int]]]:
        return [(tables[table], value, ids[table, value], [0, 1]) for table, value in names]

    path = pb.PbPhysicalTablePath(database_name="fluss", table_name="days", partition_name="y")
    assert described(partitions_path=[path]) == expected(("days", "y"))
    chosen = [("days", "x"), ("more_days", "y")]
    assert sorted(described(partitions_id=[ids[each] for each in chosen])) == sorted(expected(*chosen))
    within = {"table_path": [bench.path("days")]}
    assert described(**within, partitions_id=[ids["days", "x"]]) == expected(("days", "x"))
    for request in (
        {"partitions_id": [1 << 40]},
        {**within, "partitions_id": [ids["more_days", "x"]]},
        {"partitions_path": [pb.PbPhysicalTablePath(database_name="fluss", table_name="days")]},
    ):
        with pytest.raises(ForebayError) as refused:
            described(**request)
        assert refused.value.code == ErrorCode.PARTITION_NOT_EXISTS


# ---- snapshots for download, and offsets of producers ---------------------------------------------------------------


def test_only_tables_with_a_primary_key_have_snapshots_for_download(bench: Bench) -> None:
    bench.create("keyless", LOG_COLUMNS)
    with pytest.raises(ForebayError, match=r"fluss\.keyless has no primary key") as refused:
        bench.tablet.call(
            ApiKey.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest(table_path=bench.path("keyless"))
        )
    assert refused.value.code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION


def test_offsets_of_a_producer_are_those_that_were_registered_first_until_they_are_deleted(bench: Bench) -> None:
    def register(end: int, ttl_ms: int | None = None) -> int:
        request = pb.RegisterProducerOffsetsRequest(producer_id="sink", ttl_ms=ttl_ms)
        request.table_offsets.add(table_id=1).bucket_offsets.add(bucket_id=0, log_end_offset=end)
        return int(bench.coordinator.call(ApiKey.REGISTER_PRODUCER_OFFSETS, request).result)

    def kept() -> Any:
        return bench.coordinator.call(ApiKey.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id="sink"))

    created, exists_already = 0, 1
    context = bench.server.server.context
    for ttl_ms, lives_ms in ((None, context.config.value("coordinator.producer-offsets.ttl")), (60_000, 60_000)):
        assert not kept().HasField("producer_id")
        earliest = context.clock.now_ms() + lives_ms
        assert register(7, ttl_ms) == created
        assert register(8, ttl_ms) == exists_already
        answer = kept()
        assert (answer.producer_id, answer.table_offsets[0].bucket_offsets[0].log_end_offset) == ("sink", 7)
        assert earliest <= answer.expiration_time <= context.clock.now_ms() + lives_ms
        bench.coordinator.call(ApiKey.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id="sink"))
    assert not kept().table_offsets


@pytest.mark.parametrize(
    ("key", "request_class"),
    [
        (ApiKey.REGISTER_PRODUCER_OFFSETS, pb.RegisterProducerOffsetsRequest),
        (ApiKey.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest),
        (ApiKey.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest),
    ],
)
def test_a_producer_has_a_name(bench: Bench, key: ApiKey, request_class: Any) -> None:
    for name in ("", " \t"):
        with pytest.raises(ForebayError, match="must not be empty") as refused:
            bench.coordinator.call(key, request_class(producer_id=name))
        assert refused.value.code == ErrorCode.INVALID_PRODUCER_ID_EXCEPTION
