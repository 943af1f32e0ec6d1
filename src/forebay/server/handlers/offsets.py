"""ListOffsets, whether offsets belong to the logs, and table statistics."""

from __future__ import annotations

import asyncio
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest, Unavailable
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, partition_id_of
from forebay.server.context import ServerCall, ServerContext, put_error, serves
from forebay.server.flow.request_limits import SHORT_LIST
from forebay.server.storage.log_epochs import LogEpochs
from forebay.server.storage.replica import BucketReplica, ParkedBucket
from forebay.server.storage.replicas import ReplicaManager

_EARLIEST, _LATEST, _TIMESTAMP, _LEADER_END = 0, 1, 2, 3
_WITHOUT_OPENING = (_EARLIEST, _LATEST, _LEADER_END)

_SETTLE_SECONDS = 2.0
"""How long a request for the offset at a time waits for the rows of transactions from before that time."""
_PAUSE_SECONDS = 0.002, 0.05
"""The first and the longest pause between two looks."""


@serves(ApiKey.LIST_OFFSETS)
async def list_offsets(context: ServerContext, call: ServerCall) -> Message:
    """Return the earliest or latest offset of buckets, or the offset at a time."""
    request, partition = call.message, partition_id_of(call.message)
    count = len(request.bucket_id)
    context.limits.check_items(count, "buckets")
    await call.memory.enter_for(count)
    buckets = await context.limits.distinct(
        (TableBucket(request.table_id, bucket_id, partition) for bucket_id in request.bucket_id), count
    )
    response = pb.ListOffsetsResponse()
    epochs, epoch = context.epochs, context.epochs.current.epoch
    if request.with_log_epoch:
        response.log_epoch = epoch
    for first in range(0, len(buckets), SHORT_LIST):
        group = buckets[first : first + SHORT_LIST]
        offsets = await _offsets_of(context, request, group, len(buckets))
        for bucket in group:
            answer, offset = response.buckets_resp.add(bucket_id=bucket.bucket), offsets[bucket]
            if isinstance(offset, int):
                answer.offset = offset
                if request.with_log_epoch and (of_offset := epochs.epoch_at(bucket, offset)) != epoch:
                    answer.log_epoch = of_offset
            else:
                put_error(answer, offset)
    return response


@serves(ApiKey.CHECK_LOG_OFFSETS)
async def check_log_offsets(context: ServerContext, call: ServerCall) -> Message:
    """Return for each offset whether it belongs to the log of its bucket (docs/format/log_epochs.md)."""
    request = call.message
    count = len(request.offsets)
    context.limits.check_items(count, "buckets")
    await call.memory.enter_for(count)
    positions = [
        (TableBucket(request.table_id, each.bucket_id, partition_id_of(each)), each.log_offset)
        for each in request.offsets
    ]
    response = pb.CheckLogOffsetsResponse(log_epoch=context.epochs.current.epoch)
    for first in range(0, count, SHORT_LIST):
        group = positions[first : first + SHORT_LIST]
        async with context.using_group([bucket for bucket, _ in group], count) as replicas:
            for bucket, offset in group:
                answer = response.offsets.add(bucket_id=bucket.bucket, partition_id=bucket.partition_id)
                replica = replicas[bucket]
                try:
                    if isinstance(replica, Exception):
                        raise replica
                    _check_offset(context.epochs, replica, offset, request.log_epoch, answer)
                except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
                    put_error(answer, e)
    return response


def _check_offset(epochs: LogEpochs, replica: BucketReplica, offset: int, epoch: str, answer: Any) -> None:
    end = answer.log_end_offset = replica.log.log_end_offset
    shared = epochs.shared_until(epoch, replica.bucket) if epoch else None
    if shared is not None:
        answer.shared_until = shared
    epochs.check(replica.bucket, offset, epoch)
    if offset > end and replica.is_log_borrowed:
        raise Unavailable(
            f"this standby has repeated the log of bucket {replica.bucket} up to offset {end}, and not yet to {offset}",
            ErrorCode.REQUEST_TIME_OUT,
        )
    if offset > end:
        raise InvalidRequest(
            f"the log of bucket {replica.bucket} ends at offset {end}, and has never had offset {offset}: the position "
            "is of another table or server, or of this one before it was restored from an older copy. Start from "
            "'earliest' or 'full'",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )


async def _offsets_of(
    context: ServerContext, request: Any, group: list[TableBucket], total: int
) -> dict[TableBucket, int | Exception]:
    """The offset of each bucket of a group. Of a transaction they have all rows or none."""
    timestamp = request.startTimestamp if request.HasField("startTimestamp") else None
    parked = _parked(context.replicas, group) if request.offset_type in _WITHOUT_OPENING else {}
    pause, deadline = _PAUSE_SECONDS[0], context.clock.monotonic() + _SETTLE_SECONDS
    while True:
        async with context.using_group([bucket for bucket in group if bucket not in parked], total) as opened:
            offsets: dict[TableBucket, int | Exception] = {
                bucket: state.log_start_offset if request.offset_type == _EARLIEST else end
                for bucket, (state, end) in parked.items()
            }
            offsets |= {bucket: error for bucket, error in opened.items() if isinstance(error, Exception)}
            replicas = [replica for replica in opened.values() if isinstance(replica, BucketReplica)]
            if not replicas:
                return offsets
            now_ms = 0 if timestamp is None else context.clock.now_ms()
            unsettled, search = None, context.in_io
            if timestamp is not None and any(replica.log.has_remotely(timestamp) for replica in replicas):
                search = context.in_store
            if timestamp is not None and timestamp <= now_ms:
                unsettled = await search(_unsettled, replicas, timestamp)
            if unsettled is None:
                of_open = await search(
                    _offsets, replicas, context.replicas, parked, request.offset_type, timestamp, now_ms
                )
                if of_open is not None:
                    return offsets | of_open
                parked = {}  # one was opened meanwhile, and a transaction may have written to it and to others
        if unsettled is not None:
            if context.clock.monotonic() >= deadline:
                return dict.fromkeys(group, unsettled)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS[1])


def _unsettled(replicas: list[BucketReplica], timestamp_ms: int) -> Exception | None:
    """Return an error if clients do not see all records from before a time in one of these buckets: a transaction has
    yet to write them, or they are not where they have to be when they are acknowledged."""
    for replica in replicas:
        log = replica.log
        what = "" if log.settle_time(timestamp_ms) else "the rows of a transaction are being written to"
        if not what and log.watermark_limit is not None:
            before = log.offset_for_timestamp(timestamp_ms)
            is_shown = log.high_watermark >= (log.log_end_offset if before is None else before)
            what = "" if is_shown else "the store has not got all rows of"
        if what:
            return Unavailable(
                f"{what} table {replica.table.info.path}: what it held at a later time than theirs can be read as soon "
                "as they are all there",
                ErrorCode.REQUEST_TIME_OUT,
            )
    return None


_Parked = dict[TableBucket, tuple[ParkedBucket, int]]


def _parked(replicas: ReplicaManager, buckets: list[TableBucket]) -> _Parked:
    """Return the buckets that were parked with all records visible, each with its end."""
    with_ends: _Parked = {}
    for bucket in buckets:
        parked = replicas.parked(bucket)
        if parked is not None and parked.end_offset is not None:
            with_ends[bucket] = parked, parked.end_offset
    return with_ends


def _offsets(
    opened: list[BucketReplica],
    replicas: ReplicaManager,
    parked: _Parked,
    offset_type: int,
    timestamp_ms: int | None,
    now_ms: int,
) -> dict[TableBucket, int | Exception] | None:
    """The offsets of open buckets, as of a moment at which others are still `parked`; None if one is not any more."""
    offsets: dict[TableBucket, int | Exception] = {}
    with replicas.showing:  # of a transaction, the logs have all rows or none
        if any(replicas.parked(bucket) is not state for bucket, (state, _) in parked.items()):
            return None
        ends = [replica.log.high_watermark for replica in opened]
    # Searches come afterwards, because they may read the store, and who shows rows waits for the lock. A record that is
    # appended after an end was taken is later than the time.
    for replica, end in zip(opened, ends, strict=True):
        try:
            offsets[replica.bucket] = _offset(replica, end, offset_type, timestamp_ms, now_ms)
        except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
            offsets[replica.bucket] = e
    return offsets


def _offset(replica: BucketReplica, end: int, offset_type: int, timestamp_ms: int | None, now_ms: int) -> int:
    log = replica.log
    if offset_type == _EARLIEST:
        return log.log_start_offset
    if offset_type == _LATEST:
        return end
    if offset_type == _LEADER_END:
        return log.log_end_offset
    if offset_type != _TIMESTAMP or timestamp_ms is None:
        raise InvalidRequest(
            f"offset type {offset_type} with timestamp {timestamp_ms} is not one of 0 (earliest), 1 (latest) and "
            "2 (with a timestamp)",
            ErrorCode.INVALID_TIMESTAMP_EXCEPTION,
        )
    if timestamp_ms > now_ms:
        raise InvalidRequest(
            f"timestamp {timestamp_ms} is later than the server's time {now_ms}; records cannot have a future time",
            ErrorCode.INVALID_TIMESTAMP_EXCEPTION,
        )
    offset = log.offset_for_timestamp(timestamp_ms, end)
    return end if offset is None else min(offset, end)


@serves(ApiKey.GET_TABLE_STATS)
async def get_table_stats(context: ServerContext, call: ServerCall) -> Message:
    """Return the row counts of buckets, and of Forebay's own the size of their logs and when they were written to."""
    request = call.message
    count = len(request.buckets_req)
    context.limits.check_items(count, "buckets")
    await call.memory.enter_for(count)
    buckets = await context.limits.distinct(
        (TableBucket(request.table_id, each.bucket_id, partition_id_of(each)) for each in request.buckets_req), count
    )
    response = pb.GetTableStatsResponse()
    for first in range(0, len(buckets), SHORT_LIST):
        group = buckets[first : first + SHORT_LIST]
        async with context.using_group(group, len(buckets)) as replicas:
            for bucket in group:
                answer = response.buckets_resp.add(bucket_id=bucket.bucket, partition_id=bucket.partition_id)
                replica = replicas[bucket]
                try:
                    if isinstance(replica, Exception):
                        raise replica
                    answer.log_bytes, answer.last_write_ms = replica.log.size_bytes, replica.log.last_timestamp_ms
                    answer.row_count = _row_count(replica)
                except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
                    put_error(answer, e)
    return response


def _row_count(replica: BucketReplica) -> int:
    if not replica.has_kv:
        return replica.log.high_watermark - replica.log.log_start_offset
    count = replica.kv.row_count
    if count is None:
        raise InvalidRequest(
            f"table {replica.table.info.path} does not count its rows, because its changelog image is WAL",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    return count
