"""Table snapshots: opened, renewed, released, listed. Their pages come by ScanKv (forebay.server.handlers.scans).

A Forebay extension of the protocol, with its own API keys (docs/protocol.md).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest, Unavailable
from forebay.kv.table_snapshots import SnapshotDescription
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message
from forebay.server.context import ServerCall, ServerContext, serves
from forebay.server.metadata.catalog import buckets_of

_NAME_CHARS_MAX = 200


@serves(ApiKey.OPEN_TABLE_SNAPSHOT)
async def open_table_snapshot(context: ServerContext, call: ServerCall) -> Message:
    """Pin all buckets of a table, or of some partitions, at one point in time."""
    request = call.message
    context.limits.check_items(len(request.partition_id), "partitions")
    buckets = _buckets(context, request)
    async with AsyncExitStack() as uses:
        replicas = [await uses.enter_async_context(context.using(bucket)) for bucket in buckets]
        opened = await context.in_io(
            context.table_snapshots.open,
            request.table_id,
            buckets,
            partial(context.replicas.pin, replicas, are_all=_names_no_partition(context, request)),
            _lease_seconds(request),
            request.name[:_NAME_CHARS_MAX],
        )
        response = pb.OpenTableSnapshotResponse(
            table_snapshot_id=opened.snapshot_id,
            lease_ms=round(opened.lease_seconds * 1000),
        )
        for replica in replicas:
            bucket, state = replica.bucket, opened.states[replica.bucket]
            response.buckets.add(
                bucket_id=bucket.bucket,
                partition_id=bucket.partition_id,
                log_offset=state.applied_offset,
                row_count=None if replica.kv.row_count is None or state.row_count < 0 else state.row_count,
                log_epoch=context.epochs.epoch_at(bucket, state.applied_offset),
            )
        return response


def _buckets(context: ServerContext, request: Any) -> list[TableBucket]:
    """Return the buckets to pin. Raises `Unavailable` (UNKNOWN_TABLE_OR_BUCKET), `InvalidRequest` for a log table."""
    table = context.catalog.table_by_id(request.table_id)
    if table is None:
        raise Unavailable(
            f"there is no table with id {request.table_id} here: it was dropped, or never was",
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        )
    if not table.info.has_primary_key:
        raise InvalidRequest(
            f"table {table.info.path} has no primary key; a log table is read between two log offsets",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    if request.partition_id and not table.info.is_partitioned:
        raise InvalidRequest(f"table {table.info.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
    there = table.current.partitions_by_id
    partitions = list(dict.fromkeys(request.partition_id)) or sorted(there)
    unknown = [partition_id for partition_id in request.partition_id if partition_id not in there]
    if unknown and table.info.is_partitioned:
        raise Unavailable(
            f"table {table.info.path} has no partition with id {unknown[0]}: it was dropped, or never was",
            ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        )
    return buckets_of(table.info, partitions)


def _names_no_partition(context: ServerContext, request: Any) -> bool:
    """Whether all partitions of a partitioned table are to be pinned, those of the moment of the pin."""
    table = context.catalog.table_by_id(request.table_id)
    return table is not None and table.info.is_partitioned and not request.partition_id


def _lease_seconds(request: Any) -> float | None:
    return request.lease_ms / 1000 if request.HasField("lease_ms") else None


@serves(ApiKey.RENEW_TABLE_SNAPSHOT)
def renew_table_snapshot(context: ServerContext, call: ServerCall) -> Message:
    """Renew the lease of a table snapshot, and return it."""
    left = context.table_snapshots.renew(call.message.table_snapshot_id, _lease_seconds(call.message))
    return pb.RenewTableSnapshotResponse(lease_ms=round(left * 1000))


@serves(ApiKey.RELEASE_TABLE_SNAPSHOT)
async def release_table_snapshot(context: ServerContext, call: ServerCall) -> Message:
    """End a table snapshot."""
    await context.in_io(context.table_snapshots.release, call.message.table_snapshot_id)
    return pb.ReleaseTableSnapshotResponse()


@serves(ApiKey.LIST_TABLE_SNAPSHOTS)
def list_table_snapshots(context: ServerContext, call: ServerCall) -> Message:
    """Return the open table snapshots, of one table if requested."""
    request = call.message
    response = pb.ListTableSnapshotsResponse()
    snapshots = context.table_snapshots.describe(request.table_id if request.HasField("table_id") else None)
    response.table_snapshots.extend(map(table_snapshot_to_pb, snapshots))
    return response


def table_snapshot_to_pb(each: SnapshotDescription) -> pb.PbTableSnapshotInfo:
    """Return a table snapshot's description as the message of ListTableSnapshots."""
    return pb.PbTableSnapshotInfo(
        table_snapshot_id=each.snapshot_id,
        table_id=each.table_id,
        name=each.name,
        age_ms=round(each.age_seconds * 1000),
        lease_left_ms=round(each.lease_left_seconds * 1000),
        bucket_count=each.bucket_count,
        pages=each.pages,
        read_bytes=each.read_bytes,
    )
