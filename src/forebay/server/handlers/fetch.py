"""FetchLog: batches of many buckets in one answer, with long polling, column projection and batch pruning.

Whole batches up to the high watermark. At least one batch is returned even if it is larger than the limits ("min one
message"), so that a reader can always continue. Projection cuts columns out of Arrow batches; a filter drops batches
whose statistics rule out a match, and `filtered_end_offset` is the offset up to which it looked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.codec.arrow.arrow_message import Projection
from forebay.codec.filters import BoundPredicate
from forebay.codec.log.header import iter_headers
from forebay.codec.log.statistics import StatisticsFilter
from forebay.log.remote import RemoteFetch, RemoteReads
from forebay.log.tablet import EARLIEST_OFFSET, LogTablet
from forebay.metadata.table import TableBucket, TableInfo
from forebay.metadata.table_options import LogFormat
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Buffer, partition_id_of
from forebay.server.context import Answer, ServerCall, ServerContext, put_error, serves
from forebay.server.flow.request_limits import ITEM_BYTES, SHORT_LIST
from forebay.server.handlers.request_filters import usable_filter
from forebay.server.metadata.catalog import LiveTable
from forebay.server.storage.log_epochs import LogEpochs
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager

_MIN_BYTES_WAIT_MS = 100
"""How long to wait for `min_bytes` when a client gives no `max_wait_ms`."""

_ROOM_BYTES_MIN = 64 << 10
"""Minimum reservation for a response: one batch is returned whatever the limits are."""

_WAIT_MAX_MS = 60_000
"""Maximum wait of a long poll; a client that wants to wait longer asks again. Only the answer shows whether the client
is still there."""

_LONG_REQUEST_WAIT_MS = 1000
"""Maximum wait of a long request, or of one about very many buckets, because it takes memory meanwhile."""

_PROJECTED_READ_FACTOR = 8
_READ_BYTES_MAX = 16 << 20
"""For a projection, this many times the requested bytes are read from the log at once, but no more than the maximum:
only a part of each batch is sent."""

_RETRIABLE_WITHOUT_HURRY = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
"""Errors that do not end a long poll: the client would only retry immediately."""


@dataclass(slots=True)
class _TableFetch:
    """The part of a fetch request that several buckets share; prepared once for a table."""

    projected: tuple[int, ...] | None
    filter_message: Any
    filter_schema_id: int
    ready_for: TableInfo | None = None
    projection: Projection | None = None
    bound: BoundPredicate | None = None


@dataclass(slots=True)
class _BucketFetch:
    """One bucket of a fetch request, and its result."""

    bucket: TableBucket
    offset: int
    bytes_max: int
    table: _TableFetch
    data: Sequence[Buffer] = ()
    size: int = 0
    high_watermark: int = -1
    log_start_offset: int = 0
    filtered_end_offset: int | None = None
    error: BaseException | None = None
    epoch: str = ""
    """The epoch that the offset belongs to; empty if the client does not know one."""
    end_epoch: str = ""
    """The epoch of the offset behind the data."""
    is_in_store: bool = False
    """Whether what it asks for is in the store, and not in local segments any more."""
    remote: RemoteFetch | None = None
    """What the client has to read in the store, in place of data."""
    remote_partition: str | None = None
    """The name of the partition that it is of, if there is one."""
    is_unwritten: bool = False
    """Whether the bucket had no log when it was checked, so it need not be opened."""


@serves(ApiKey.FETCH_LOG)
async def fetch_log(context: ServerContext, call: ServerCall) -> Answer:
    """Return log batches of the requested buckets, or wait until there are `min_bytes` of them."""
    request = call.message
    bucket_count = sum(len(table.buckets_req) for table in request.tables_req)
    context.limits.check_items(bucket_count, "buckets")
    fetches = await _bucket_fetches(context, request, bucket_count)
    wait_ms = request.max_wait_ms if request.HasField("max_wait_ms") else 0
    min_bytes = request.min_bytes if request.HasField("min_bytes") else 0
    if min_bytes > 0 and not request.HasField("max_wait_ms"):
        wait_ms = _MIN_BYTES_WAIT_MS
    is_long = len(fetches) > SHORT_LIST or call.is_long
    wait_ms = min(wait_ms, _LONG_REQUEST_WAIT_MS if is_long else _WAIT_MAX_MS)
    buckets = [fetch.bucket for fetch in fetches]
    bytes_max = min(request.max_bytes, context.limits.answer_bytes_max)
    deadline = context.clock.monotonic() + wait_ms / 1000
    progress = asyncio.Event()
    try:
        # Subscribed before the first read, so that no progress falls between read and wait.
        await context.limits.each(buckets, len(buckets), partial(context.notifier.watch, progress))
        while True:
            progress.clear()
            data_bytes = max(await _data_bytes(context, fetches, bytes_max), _ROOM_BYTES_MIN)
            entries_bytes = len(fetches) * ITEM_BYTES
            await call.memory.enter(data_bytes + entries_bytes)
            # No more than there is memory for, even if the log has grown, or the memory pool is small.
            data_bytes = min(data_bytes, max(call.memory.reserved - entries_bytes, _ROOM_BYTES_MIN))
            epoch = context.epochs.current.epoch  # before the first read: what is read is of this epoch, or a later one
            await _read_all(context, fetches, min(bytes_max, data_bytes))
            left = deadline - context.clock.monotonic()
            if left <= 0 or _is_answerable(fetches, max(min_bytes, 1)):
                break
            call.memory.leave()
            try:
                await asyncio.wait_for(progress.wait(), left)
            except TimeoutError:
                break
    finally:
        await context.limits.each(buckets, len(buckets), partial(context.notifier.unwatch, progress))
    return await _answer(context, fetches, epoch if request.HasField("log_epoch") else None)


async def _data_bytes(context: ServerContext, fetches: list[_BucketFetch], bytes_max: int) -> int:
    """Return the maximum number of bytes to read. Buckets are opened for it, so no memory is held meanwhile."""
    total = 0
    for first in range(0, len(fetches), SHORT_LIST):
        if total >= bytes_max:
            break
        total += await _group_bytes(context, fetches[first : first + SHORT_LIST], len(fetches))
    return min(total, bytes_max)


async def _group_bytes(context: ServerContext, group: list[_BucketFetch], total: int) -> int:
    sizes: list[int] = []
    unopened: dict[TableBucket, _BucketFetch] = {}

    def count(fetch: _BucketFetch, replica: BucketReplica) -> None:
        log, offset = replica.log, _offset_in(fetch, replica.log)
        if log.remote is not None and offset < log.local_start_offset:
            there = log.remote.readable_bytes(offset)
        else:
            there = log.readable_bytes(offset, log.high_watermark)
        sizes.append(min(there, max(fetch.bytes_max, 0)))

    def look(fetch: _BucketFetch) -> None:
        fetch.is_unwritten = False
        replica = context.replicas.opened(fetch.bucket)
        if replica is not None:
            count(fetch, replica)
        elif not _is_read_to_its_end(context, fetch):
            unopened[fetch.bucket] = fetch

    await context.limits.each(group, total, look)
    if unopened:
        from_start = [bucket for bucket, fetch in unopened.items() if fetch.offset in (0, EARLIEST_OFFSET)]
        for bucket in await context.in_io(_unwritten, context, from_start):
            unopened.pop(bucket).is_unwritten = True
    if unopened:
        async with context.using_group(list(unopened), total) as replicas:
            for bucket, replica in replicas.items():
                if isinstance(replica, BucketReplica):
                    count(unopened[bucket], replica)
    return sum(sizes)


def _unwritten(context: ServerContext, buckets: list[TableBucket]) -> list[TableBucket]:
    """Return those of `buckets` that have no log yet. Accesses files."""
    unwritten = []
    for bucket in buckets:
        try:
            if context.replicas.is_unwritten(bucket):
                unwritten.append(bucket)
        except (ForebayError, KeyError):
            continue  # there is no such bucket, or not any more: opening it reports that
    return unwritten


def _is_read_to_its_end(context: ServerContext, fetch: _BucketFetch) -> bool:
    """Return whether a bucket is closed and has nothing new, so that it need not be opened."""
    parked = context.replicas.parked(fetch.bucket)
    return parked is not None and fetch.offset == parked.end_offset


async def _bucket_fetches(context: ServerContext, request: Any, count: int) -> list[_BucketFetch]:
    """Return what to read, each bucket once; if a bucket is named again the last entry wins, as in Fluss."""
    by_table: dict[int, dict[TableBucket, _BucketFetch]] = {}

    def messages() -> Iterator[tuple[int, _TableFetch, Any]]:
        for table in request.tables_req:
            projected = tuple(table.projected_fields) if table.projection_pushdown_enabled else None
            filter_message = table.filter_predicate if table.HasField("filter_predicate") else None
            of_table = _TableFetch(projected, filter_message, table.filter_schema_id)
            yield from ((table.table_id, of_table, message) for message in table.buckets_req)

    def note(each: tuple[int, _TableFetch, Any]) -> None:
        table_id, of_table, message = each
        bucket = TableBucket(table_id, message.bucket_id, partition_id_of(message))
        fetch = _BucketFetch(bucket, message.fetch_offset, message.max_fetch_bytes, of_table)
        if request.HasField("log_epoch"):
            fetch.epoch = message.log_epoch if message.HasField("log_epoch") else request.log_epoch
        by_table.setdefault(table_id, {})[bucket] = fetch

    await context.limits.each(messages(), count, note)
    return [fetch for fetches in by_table.values() for fetch in fetches.values()]


def _is_answerable(fetches: list[_BucketFetch], min_bytes: int) -> bool:
    total = 0
    for fetch in fetches:
        if isinstance(fetch.error, ForebayError) and fetch.error.code in _RETRIABLE_WITHOUT_HURRY:
            continue
        if fetch.error is not None or fetch.filtered_end_offset is not None or fetch.remote is not None:
            return True
        total += fetch.size
    return total >= min_bytes


async def _read_all(context: ServerContext, fetches: list[_BucketFetch], bytes_max: int) -> None:
    """Read every bucket from the start, in request order, until the request's bytes are used up."""
    left = bytes_max
    for first in range(0, len(fetches), SHORT_LIST):
        group = fetches[first : first + SHORT_LIST]
        left = await _read_group(context, group, len(fetches), left, left == bytes_max)


async def _read_group(
    context: ServerContext, group: list[_BucketFetch], total: int, bytes_max: int, nothing_yet: bool
) -> int:
    """Read some buckets, which stay open meanwhile; return how many bytes are left for others."""
    unread: dict[TableBucket, _BucketFetch] = {}

    def begin(fetch: _BucketFetch) -> None:
        fetch.data, fetch.size, fetch.error, fetch.filtered_end_offset, fetch.remote = (), 0, None, None, None
        fetch.is_in_store = False
        replicas, bucket = context.replicas, fetch.bucket
        parked = replicas.parked(bucket)
        if parked is not None and fetch.offset == parked.end_offset:
            fetch.high_watermark, fetch.log_start_offset = fetch.offset, parked.log_start_offset
        elif fetch.is_unwritten and parked is None and replicas.opened(bucket) is None:
            fetch.high_watermark = fetch.log_start_offset = 0
        else:
            unread[bucket] = fetch
            return
        try:
            context.epochs.check(bucket, fetch.offset, fetch.epoch)
            fetch.end_epoch = context.epochs.epoch_at(bucket, fetch.offset)
            _prepared(fetch.table, replicas.table_of(bucket))
        except ForebayError as e:
            fetch.error = e.with_traceback(None)

    await context.limits.each(group, total, begin)
    async with context.using_group(list(unread), total) as replicas:
        there: list[tuple[_BucketFetch, BucketReplica]] = []
        for bucket, replica in replicas.items():
            fetch = unread[bucket]
            try:
                if isinstance(replica, Exception):
                    raise replica
                context.epochs.check(bucket, fetch.offset, fetch.epoch)
            except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
                fetch.error = e.with_traceback(None)
            else:
                there.append((fetch, replica))
        if not there:
            return bytes_max
        left = await context.in_io(_read_replicas, context.epochs, there, bytes_max, nothing_yet, _read_replica)
        in_store = [each for each in there if each[0].is_in_store]
        if in_store:
            is_direct = context.config.value("store.client-access") == "direct"
            read = partial(_name_segments, context.replicas) if is_direct else _read_store
            nothing_yet = nothing_yet and left == bytes_max
            left = await context.in_store(_read_replicas, context.epochs, in_store, left, nothing_yet, read)
        return left


def _read_replicas(
    epochs: LogEpochs,
    there: list[tuple[_BucketFetch, BucketReplica]],
    bytes_max: int,
    nothing_yet: bool,
    read: Callable[[_BucketFetch, BucketReplica, int, bool], int],
) -> int:
    left = bytes_max
    first = nothing_yet
    for fetch, replica in there:
        try:
            end = read(fetch, replica, min(left, fetch.bytes_max), first)
            fetch.end_epoch = epochs.epoch_at(fetch.bucket, end)
        except ForebayError as e:
            fetch.error = e.with_traceback(None)  # as in `ServerContext.using_group`
            continue
        except Exception as e:  # noqa: BLE001 - as above
            fetch.error = e
            continue
        left -= fetch.size
        first = first and fetch.size == 0
    return left


def _offset_in(fetch: _BucketFetch, log: LogTablet) -> int:
    return log.log_start_offset if fetch.offset == EARLIEST_OFFSET else fetch.offset


def _read_replica(fetch: _BucketFetch, replica: BucketReplica, bytes_max: int, min_one_batch: bool) -> int:
    """Return the offset behind what was read, in local segments."""
    log = replica.log
    fetch.high_watermark = log.high_watermark
    fetch.log_start_offset = log.log_start_offset
    offset = _offset_in(fetch, log)
    if _is_in_store(log, offset):
        fetch.is_in_store = True
        return fetch.offset
    if replica.is_log_borrowed and offset > fetch.high_watermark:
        return fetch.offset  # read from the server that is followed: it comes here, too
    try:
        return _read_source(fetch, replica, log, fetch.offset, bytes_max, min_one_batch)
    except InvalidRequest:
        if not _is_in_store(log, offset):
            raise
        fetch.is_in_store = True  # the segment has left the machine meanwhile
        return fetch.offset


def _is_in_store(log: LogTablet, offset: int) -> bool:
    remote = log.remote
    return remote is not None and offset < log.local_start_offset and remote.readable_bytes(offset) > 0


def _name_segments(
    replicas: ReplicaManager, fetch: _BucketFetch, replica: BucketReplica, _bytes_max: int, _min_one_batch: bool
) -> int:
    """Have the client read what is in the store; return the offset behind it. Raises as `physical_path` does."""
    remote = replica.log.remote
    offset = _offset_in(fetch, replica.log)
    fetch.remote_partition = replicas.physical_path(fetch.bucket).partition
    fetch.remote = None if remote is None else remote.fetch(offset)
    return offset if fetch.remote is None else fetch.remote.segments[-1].end_offset


def _read_store(fetch: _BucketFetch, replica: BucketReplica, bytes_max: int, min_one_batch: bool) -> int:
    """Return the offset behind what was read, in the store."""
    remote, offset = replica.log.remote, _offset_in(fetch, replica.log)
    return offset if remote is None else _read_source(fetch, replica, remote, offset, bytes_max, min_one_batch)


def _read_source(
    fetch: _BucketFetch,
    replica: BucketReplica,
    source: LogTablet | RemoteReads,
    offset: int,
    bytes_max: int,
    min_one_batch: bool,
) -> int:
    projection, bound = _prepared(fetch.table, replica.table)
    if bytes_max <= 0 and not min_one_batch:
        # Still reports an offset out of range.
        source.read(offset, 0, fetch.high_watermark, min_one_batch=False)
        return fetch.offset
    # The limit counts the bytes sent, so more may be read if columns are cut out.
    read_bytes = bytes_max if projection is None else min(max(bytes_max, 0) * _PROJECTED_READ_FACTOR, _READ_BYTES_MAX)
    piece = source.read(offset, read_bytes, fetch.high_watermark, min_one_batch=min_one_batch)
    data: memoryview = piece.data
    if not len(data):
        return fetch.offset
    matches = None if bound is None else _matching(data, bound, replica)
    if matches is not None and not matches:
        fetch.filtered_end_offset = piece.next_offset
    elif projection is not None:
        fetch.data = (projection.project(data, positions=matches, bytes_max=max(bytes_max, 0), take_first=True).data,)
    else:
        fetch.data = (data,) if matches is None else _pieces(data, matches)
    fetch.size = sum(len(part) for part in fetch.data)
    return piece.next_offset


def _matching(data: memoryview, bound: BoundPredicate, replica: BucketReplica) -> list[int]:
    """Return the positions in `data` of the batches that may hold a match."""
    filters: dict[int, StatisticsFilter] = {}
    positions = []
    for position, header in iter_headers(data):
        tester = filters.get(header.schema_id)
        if tester is None:
            tester = StatisticsFilter(bound, replica.table.schema_by_id(header.schema_id))
            filters[header.schema_id] = tester
        statistics = data[position + header.statistics_start : position + header.body_start]
        if tester.may_match(statistics, header.record_count):
            positions.append(position)
    return positions


def _pieces(data: memoryview, positions: list[int]) -> list[memoryview]:
    """Return the batches that begin at `positions`, neighbours in one piece."""
    pieces: list[memoryview] = []
    start = end = 0
    starts = set(positions)
    for position, header in iter_headers(data):
        if position not in starts:
            continue
        if position != end:
            if end > start:
                pieces.append(data[start:end])
            start = position
        end = position + header.size_bytes
    return [*pieces, data[start:end]]


def _prepared(fetch: _TableFetch, table: LiveTable) -> tuple[Projection | None, BoundPredicate | None]:
    """Return projection and filter for a table. Raises `InvalidRequest` for an invalid projection."""
    info = table.info
    if fetch.ready_for is not info:
        fetch.projection, fetch.bound = _projection(fetch, table), _bound_filter(fetch, table)
        fetch.ready_for = info
    return fetch.projection, fetch.bound


def _projection(fetch: _TableFetch, table: LiveTable) -> Projection | None:
    if fetch.projected is None:
        return None
    info = table.info
    if len(fetch.projected) > len(info.schema.columns):
        raise InvalidRequest(
            f"{len(fetch.projected)} columns are requested; table {info.path} has {len(info.schema.columns)}",
            ErrorCode.INVALID_COLUMN_PROJECTION,
        )
    if info.descriptor.log_format is not LogFormat.ARROW:
        raise InvalidRequest(
            f"table {info.path} has log format {info.descriptor.log_format.value}; only ARROW logs can be projected",
            ErrorCode.INVALID_COLUMN_PROJECTION,
        )
    return Projection(info.schema, fetch.projected, table.schema_by_id)


def _bound_filter(fetch: _TableFetch, table: LiveTable) -> BoundPredicate | None:
    info = table.info
    if fetch.filter_message is None or info.descriptor.log_format is not LogFormat.ARROW:
        return None
    return usable_filter(table, fetch.filter_message, fetch.filter_schema_id or info.schema_id)


def _put_remote(info: Any, remote: RemoteFetch, partition: str | None) -> None:
    info.remote_log_tablet_dir, info.first_start_pos = remote.folder, remote.first_position
    if partition is not None:
        info.partition_name = partition
    for each in remote.segments:
        info.remote_log_segments.add(
            remote_log_segment_id=each.segment_id,
            remote_log_start_offset=each.start_offset,
            remote_log_end_offset=each.end_offset,
            segment_size_in_bytes=each.size_bytes,
            max_timestamp=each.max_timestamp_ms,
        )


async def _answer(context: ServerContext, fetches: list[_BucketFetch], epoch: str | None) -> Answer:
    response = pb.FetchLogResponse(log_epoch=epoch)
    payloads: list[Buffer] = []
    tables: dict[int, Any] = {}

    def put(fetch: _BucketFetch) -> None:
        bucket = fetch.bucket
        of_table = tables.get(bucket.table_id)
        if of_table is None:
            of_table = tables[bucket.table_id] = response.tables_resp.add(table_id=bucket.table_id)
        answer = of_table.buckets_resp.add(bucket_id=bucket.bucket, partition_id=bucket.partition_id)
        if fetch.error is not None:
            put_error(answer, fetch.error)
            return
        answer.high_watermark = fetch.high_watermark
        answer.log_start_offset = fetch.log_start_offset
        if epoch is not None and fetch.end_epoch not in ("", epoch):
            answer.log_epoch = fetch.end_epoch
        if fetch.filtered_end_offset is not None:
            answer.filtered_end_offset = fetch.filtered_end_offset
        if (replica := context.replicas.opened(bucket)) is not None:
            replica.counters.bytes_out += fetch.size
        if fetch.remote is not None:
            _put_remote(answer.remote_log_fetch_info, fetch.remote, fetch.remote_partition)
            return
        answer.records = b""
        payloads.append(fetch.data[0] if len(fetch.data) == 1 else b"".join(fetch.data))

    await context.limits.each(fetches, len(fetches), put)
    return Answer(response, payloads)
