"""Tiering: heartbeats of its workers, the two steps that register a lake snapshot, and queries for one.

Errors are per table. Prepare and commit carry no epoch, so they are fenced by state: by the table's id, and by the
offsets of the known snapshots (`forebay.server.lake.lake_snapshots`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, NotFound, Unavailable
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, error_to_wire, partition_id_of, table_path_from_pb, table_path_to_pb
from forebay.server.context import ServerCall, ServerContext, put_error, serves
from forebay.server.lake.lake_snapshots import KnownSnapshot, LakeSnapshotCommit
from forebay.server.metadata.catalog import LiveTable

_STORE_SECONDS = 20.0
"""How long a round waits for the store, which follows within `store.interval`."""


# ---- heartbeats -----------------------------------------------------------------------------------------------------


@serves(ApiKey.LAKE_TIERING_HEARTBEAT)
async def lake_tiering_heartbeat(context: ServerContext, call: ServerCall) -> Message:
    """Process the worker's failed, running and finished tables, in this order (Fluss's); then assign the next table."""
    request = call.message
    lake = context.lake
    response = pb.LakeTieringHeartbeatResponse(coordinator_epoch=lake.coordinator_epoch)
    forced = set(request.force_finished_tables)

    def finish(table: Any) -> None:
        stats = table.lake_tiering_stats
        lake.tiering.finish(
            table.table_id,
            table.tiering_epoch,
            forced=table.table_id in forced,
            file_bytes=stats.file_size if stats.HasField("file_size") else None,
            rows=stats.record_count if stats.HasField("record_count") else None,
        )

    reports: tuple[tuple[Any, Any, Callable[[Any], None]], ...] = (
        (request.failed_tables, response.failed_table_resp, lambda t: lake.tiering.fail(t.table_id, t.tiering_epoch)),
        (
            request.tiering_tables,
            response.tiering_table_resp,
            lambda t: lake.tiering.heartbeat(t.table_id, t.tiering_epoch),
        ),
        (request.finished_tables, response.finished_table_resp, finish),
    )
    count = sum(len(tables) for tables, _, _ in reports) + len(request.force_finished_tables)
    context.limits.check_items(count, "tables")
    await call.memory.enter_for(count)
    for tables, answers, report in reports:
        # Duplicate reports of one table count once.
        distinct: dict[tuple[int, int, int], Any] = {}

        def note(table: Any, distinct: dict[tuple[int, int, int], Any] = distinct) -> None:
            distinct[table.table_id, table.tiering_epoch, table.coordinator_epoch] = table

        await context.limits.each(tables, len(tables), note)

        def answer(table: Any, answers: Any = answers, report: Callable[[Any], None] = report) -> None:
            _answer_report(lake.coordinator_epoch, table, answers.add(table_id=table.table_id), report)

        await context.limits.each(distinct.values(), len(distinct), answer)
    if request.request_table:
        assignment = lake.tiering.request()
        if assignment is not None:
            response.tiering_table.CopyFrom(
                pb.PbLakeTieringTableInfo(
                    table_id=assignment.table_id,
                    table_path=table_path_to_pb(assignment.path),
                    tiering_epoch=assignment.epoch,
                )
            )
    return response


def _answer_report(epoch: int, table: Any, answer: Any, report: Callable[[Any], None]) -> None:
    try:
        if table.coordinator_epoch != epoch:
            raise Conflict(
                f"coordinator epoch {table.coordinator_epoch} is not the current one, {epoch}: the server has been "
                "restarted, and no longer knows which worker tiers which table",
                ErrorCode.INVALID_COORDINATOR_EXCEPTION,
            )
        report(table)
    except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its table
        code, message = error_to_wire(e)
        answer.error.CopyFrom(pb.ErrorResponse(error_code=code, error_message=message))


# ---- rounds ---------------------------------------------------------------------------------------------------------


@serves(ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT)
async def prepare_lake_table_snapshot(context: ServerContext, call: ServerCall) -> Message:
    """Write the offset files of future lake snapshots, and return their paths."""
    request = call.message
    merge = not request.ignore_previous_table_offsets

    def prepare(message: Any) -> str:
        _check_epochs(context, message)
        offsets = _offsets(message.table_id, message.bucket_offsets)
        _check_ends(context, offsets)
        return context.lake.snapshots.prepare(_table(context, message.table_id), offsets, merge=merge)

    _check_offsets(context, request.bucket_offsets, [message.bucket_offsets for message in request.bucket_offsets])
    await _await_store(context)
    response = pb.PrepareLakeTableSnapshotResponse()
    for message in request.bucket_offsets:
        answer = response.prepare_lake_table_resp.add(table_id=message.table_id)
        try:
            answer.lake_table_offsets_path = await context.in_coordinator(prepare, message)
        except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its table
            put_error(answer, e)
    return response


async def _await_store(context: ServerContext) -> None:
    """Wait until the store has what the lake is about to get: a lake must not be ahead of a server that takes over.

    Raises `Unavailable` if that takes long.
    """
    journal = context.journal
    if journal is not None and not await context.in_store(journal.wait_until_stored, _STORE_SECONDS):
        raise Unavailable(
            f"the store {journal.store.location} does not have the newest records yet, and the lake must not be ahead "
            "of it: try again when the store can be reached",
            ErrorCode.REQUEST_TIME_OUT,
        )


@serves(ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT)
async def commit_lake_table_snapshot(context: ServerContext, call: ServerCall) -> Message:
    """Register lake commits: the newer form names files, the older one (if alone) the offsets themselves."""
    request = call.message
    metadata = request.lake_table_snapshot_metadata
    _check_offsets(context, [*request.tables_req, *metadata], [message.buckets_req for message in request.tables_req])
    newer = {message.table_id for message in request.lake_table_snapshot_metadata}
    commits: list[tuple[int, Callable[[], None]]] = []
    for message in request.tables_req:
        table_id = message.table_id if message.HasField("table_id") else _id_of(context, message)
        if table_id not in newer:
            commits.append((table_id, partial(_commit_offsets, context, table_id, message)))
    for message in request.lake_table_snapshot_metadata:
        commits.append((message.table_id, partial(_commit_files, context, message)))
    response = pb.CommitLakeTableSnapshotResponse()
    for table_id, commit in commits:
        answer = response.table_resp.add(table_id=table_id)
        try:
            await context.in_coordinator(commit)
        except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its table
            put_error(answer, e)
    return response


def _check_epochs(context: ServerContext, message: Any) -> None:
    """Raise `InvalidRequest` unless the offsets of a table that have an epoch belong to its logs. May open buckets."""
    for each in message.bucket_offsets:
        if each.log_epoch not in ("", context.epochs.current.epoch):
            bucket = TableBucket(message.table_id, each.bucket_id, partition_id_of(each))
            with context.replicas.using(bucket, counts=False):
                context.epochs.check(bucket, each.log_end_offset, each.log_epoch)


def _check_ends(context: ServerContext, offsets: Mapping[TableBucket, int]) -> None:
    """Raise `InvalidRequest` if a lake snapshot is said to have more of a log than there is. May open buckets.

    Union reads begin behind these offsets, and would leave out the rows that are written there later.
    """
    for bucket, offset in offsets.items():
        if offset == 0 or context.replicas.find_table(bucket) is None:
            continue  # of a partition that was dropped during the round; or `prepare` refuses it
        with context.replicas.using(bucket, counts=False) as replica:
            end = replica.log.log_end_offset
        if offset > end:
            raise InvalidRequest(
                f"a lake snapshot cannot have bucket {bucket} up to offset {offset}: its log ends at {end}. The rows "
                "are of another server, or of what this one had before it was restored from an older copy",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )


def _check_offsets(context: ServerContext, tables: Sequence[Any], offsets: Sequence[Sequence[Any]]) -> None:
    context.limits.check_items(len(tables) + sum(map(len, offsets)), "tables and buckets")


def _commit_files(context: ServerContext, message: Any) -> None:
    commit = LakeSnapshotCommit(
        message.snapshot_id,
        message.tiered_bucket_offsets_file_path,
        _optional(message, "readable_bucket_offsets_file_path"),
        _optional(message, "earliest_snapshot_id_to_keep"),
        _optional(message, "replaces_offsets_name"),
    )
    context.lake.snapshots.commit(_table(context, message.table_id), commit)


def _commit_offsets(context: ServerContext, table_id: int, message: Any) -> None:
    info, offsets = _table(context, table_id), _offsets(table_id, message.buckets_req)
    _check_ends(context, offsets)
    path = context.lake.snapshots.prepare(info, offsets)
    context.lake.snapshots.commit(info, LakeSnapshotCommit(message.snapshot_id, path, path))


def _offsets(table_id: int, messages: Any) -> Mapping[TableBucket, int]:
    """Return the log end offsets in the messages, without those that say "none" (-1, or nothing)."""
    return {
        TableBucket(table_id, message.bucket_id, partition_id_of(message)): message.log_end_offset
        for message in messages
        if message.HasField("log_end_offset") and message.log_end_offset >= 0
    }


def _table(context: ServerContext, table_id: int) -> TableInfo:
    table = context.catalog.table_by_id(table_id)
    if table is None:
        raise NotFound(f"there is no table with id {table_id}: it was dropped", ErrorCode.TABLE_NOT_EXIST)
    return table.info


def _id_of(context: ServerContext, message: Any) -> int:
    return context.catalog.table(table_path_from_pb(message.table_path)).info.table_id


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


# ---- asking ---------------------------------------------------------------------------------------------------------


@serves(ApiKey.GET_LAKE_SNAPSHOT)
async def get_lake_snapshot(context: ServerContext, call: ServerCall) -> Message:
    """Return a known lake snapshot (by id, the newest, or the newest readable one) with its log offsets."""
    request = call.message
    table = context.catalog.table(table_path_from_pb(request.table_path))
    info, snapshots = table.info, context.lake.snapshots
    if request.readable and request.HasField("snapshot_id"):
        raise InvalidRequest(
            "GetLakeSnapshot takes a snapshot id or readable=true, not both", ErrorCode.UNKNOWN_SERVER_ERROR
        )
    if request.HasField("snapshot_id"):
        snapshot = await context.in_io(snapshots.by_id, info, request.snapshot_id)
    elif request.readable:
        snapshot = await context.in_io(snapshots.newest_readable, info)
    else:
        snapshot = await context.in_io(snapshots.newest, info)
    return _snapshot_to_pb(table, snapshot)


def _snapshot_to_pb(table: LiveTable, snapshot: KnownSnapshot) -> Message:
    response = pb.GetLakeSnapshotResponse(
        table_id=table.info.table_id, snapshotId=snapshot.snapshot_id, offsets_name=snapshot.offsets_name
    )
    partitions = table.current.partitions_by_id
    for bucket, offset in snapshot.offsets.offsets.items():
        message = response.bucket_snapshots.add(
            bucket_id=bucket.bucket, partition_id=bucket.partition_id, log_offset=offset
        )
        if bucket.partition_id is not None and bucket.partition_id in partitions:
            message.partition_name = partitions[bucket.partition_id].name
    return response
