"""Lookups by key and by key prefix, and limit scans."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, UnsupportedOperation
from forebay.base.quantity import format_bytes
from forebay.codec.kv.kv_batch import encode_kv_batch
from forebay.codec.kv.value_batch import LENGTH_PREFIX_BYTES, encode_value_batch
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.kv.tablet import ACKS_ALL, PutRequest, PutResult
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Buffer, Message, partition_id_of
from forebay.server.context import Answer, ServerCall, ServerContext, put_error, serves
from forebay.server.flow.request_limits import ITEM_BYTES, SHORT_LIST
from forebay.server.flow.write_queue import FutureReceiver
from forebay.server.handlers.writes import acknowledged, check_key_version
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.write_command import PutCommand

S = TypeVar("S", bound=Sequence[Buffer])

_INLINE_KEYS_MAX = 256
"""Lookups of up to this many keys run on the event loop: starting a thread would take longer."""

_LISTS_AT_ONCE = 16
"""Value lists that are added to a response before the event loop may serve other requests."""

_COPIES = 2
"""Number of copies of a response's values while it is built: as read, and as sent."""

_KEYS_AT_FIRST, _KEYS_AT_ONCE, _GROUP_BYTES = 16, 4096, 1 << 20
"""Keys are looked up in groups, which are larger if values are small."""

_GROWTH = 4
"""Growth factor of the limit from one attempt at a read of unknown length to the next."""


@serves(ApiKey.LOOKUP)
async def lookup(context: ServerContext, call: ServerCall) -> Message:
    """Return the rows of primary keys, per bucket."""
    request = call.message
    insert = request.HasField("insert_if_not_exists") and request.insert_if_not_exists
    response = pb.LookupResponse()
    response_size = _ResponseSize(context, call)

    async def look_up(message: Any, replica: BucketReplica, answer: Any) -> None:
        if message.HasField("original_partition_name"):
            raise UnsupportedOperation("Forebay does not serve historical partitions yet (docs/limits.md)")
        check_key_version(replica.table.info, call.api_version)
        keys = list(message.keys)
        values = await _lookup(context, replica, keys, response_size)
        if insert and None in values:
            values = await _insert_missing(context, replica, keys, values, request, response_size)

        def add(value: bytes | None) -> None:
            if value is None:
                answer.values.add()
            else:
                answer.values.add(values=value)

        await context.limits.each(values, len(values), add)

    await _for_each_bucket(context, call, response, look_up)
    return response


class _ResponseSize:
    """The size of the response so far, and its limit.

    A value that is alone in its response may be larger than the limit, so that each row can be read. The request that
    wrote it bounds its size.
    """

    def __init__(self, context: ServerContext, call: ServerCall) -> None:
        self.memory = call.memory
        self._context = context
        self._used = self._values = 0

    @property
    def left(self) -> int:
        """Return how many bytes the response may grow by."""
        return self._context.limits.answer_bytes_max - self._used

    async def take(self, size: int, values: int) -> None:
        """Reserve `size` more bytes for a number of values. Raises `LimitExceeded`, or `Unavailable` without memory."""
        self._used += size
        self._values += values
        if self._values > 1:
            self._context.limits.check_answer_bytes(self._used, "values of the keys, repeated ones as often as named")
        await self.memory.grow_to(_COPIES * self._used)

    async def read(self, read: Callable[[int], S]) -> S:
        """Return what `read(bytes_max)` finds, in a thread: the first attempt with the reserved memory, others with
        more.

        The result is longer than `left` if there is too much; it is not counted as by `take`. Raises `Unavailable`.
        """
        memory, left = self.memory, self.left
        spare = max(memory.reserved // _COPIES - self._used, 0)
        while True:
            bytes_max = min(max(spare, _GROUP_BYTES), left)
            values = await self._context.in_io(read, bytes_max)
            if bytes_max == left or sum(map(len, values)) <= bytes_max:
                return values
            del values
            spare = bytes_max * _GROWTH
            wait_for = memory.grow_to if self._used else memory.change_to
            await wait_for(_COPIES * (self._used + min(spare, left)))


async def _for_each_bucket(
    context: ServerContext, call: ServerCall, response: Any, work: Callable[[Any, BucketReplica, Any], Awaitable[None]]
) -> None:
    """Process the buckets of a lookup one after the other; a failure affects only its bucket."""
    messages = call.message.buckets_req
    context.limits.check_items(len(messages) + sum(len(message.keys) for message in messages), "buckets and keys")
    if len(messages) > SHORT_LIST:
        await call.memory.grow_to(len(messages) * ITEM_BYTES)

    of_buckets: dict[TableBucket, list[tuple[Any, Any]]] = {}

    def begin(message: Any) -> None:
        partition = partition_id_of(message)
        answer = response.buckets_resp.add(bucket_id=message.bucket_id, partition_id=partition)
        bucket = TableBucket(call.message.table_id, message.bucket_id, partition)
        of_buckets.setdefault(bucket, []).append((message, answer))

    await context.limits.each(messages, len(messages), begin)
    buckets, number = list(of_buckets), 0
    for first in range(0, len(buckets), SHORT_LIST):
        async with context.using_group(buckets[first : first + SHORT_LIST], len(buckets)) as replicas:
            for bucket, replica in replicas.items():
                for message, answer in of_buckets[bucket]:
                    try:
                        if isinstance(replica, Exception):
                            raise replica
                        await work(message, replica, answer)
                    except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
                        put_error(answer, e)
                    number += 1
                    if not number % SHORT_LIST:
                        await asyncio.sleep(0)


async def _lookup(
    context: ServerContext, replica: BucketReplica, keys: list[bytes], response_size: _ResponseSize
) -> list[bytes | None]:
    """Return the value of each key. Many keys are looked up group by group, each distinct one once."""
    kv = replica.kv
    if len(keys) <= _KEYS_AT_FIRST:
        values = kv.lookup(keys)
        await response_size.take(*_size_of(values))
        return values
    by_key = dict.fromkeys(keys)
    times = Counter(keys) if len(by_key) < len(keys) else dict.fromkeys(keys, 1)
    different, first, count = list(by_key), 0, _KEYS_AT_FIRST
    inline = len(different) <= _INLINE_KEYS_MAX
    while first < len(different):
        group = different[first : first + count]
        values = kv.lookup(group) if inline else await context.in_io(kv.lookup, group)
        by_key.update(zip(group, values, strict=True))
        size = sum(len(value) for value in values if value is not None)
        await response_size.take(
            sum(times[key] * len(value) for key, value in zip(group, values, strict=True) if value),
            sum(times[key] for key, value in zip(group, values, strict=True) if value is not None),
        )
        first += count
        # Values may be large: the next group is larger only if this one was small.
        count = min(4 * count, _KEYS_AT_ONCE) if size < _GROUP_BYTES else max(count // 4, 1)
    return [by_key[key] for key in keys]


def _size_of(values: Sequence[bytes | None]) -> tuple[int, int]:
    """The bytes, and the number, of the values that are there."""
    sizes = [len(value) for value in values if value is not None]
    return sum(sizes), len(sizes)


async def _insert_missing(
    context: ServerContext,
    replica: BucketReplica,
    keys: list[bytes],
    values: list[bytes | None],
    request: Any,
    response_size: _ResponseSize,
) -> list[bytes | None]:
    """Insert rows with only their key for missing keys, then look them up again."""
    missing = [key for key, value in zip(keys, values, strict=True) if value is None]
    records, targets = _rows_of_keys(replica, missing)
    acks = request.acks if request.HasField("acks") else ACKS_ALL
    written = FutureReceiver[PutResult]()
    replica.submit(PutCommand.of(PutRequest(records, targets, acks)), written)
    timeout_ms = request.timeout_ms if request.HasField("timeout_ms") else 30_000
    result = await acknowledged(response_size.memory, written.future, acks or 1, timeout_ms)
    if result.error is not None:
        raise result.error
    return await _lookup(context, replica, keys, response_size)


def _rows_of_keys(replica: BucketReplica, keys: list[bytes]) -> tuple[bytes, tuple[int, ...]]:
    """Return a KV batch that puts rows with only the primary key set, and the key's positions as target columns."""
    info = replica.table.info
    schema, descriptor = info.schema, info.descriptor
    if info.is_partitioned or descriptor.lake_format is not None:
        raise UnsupportedOperation(
            f"lookups that insert missing keys are not supported on table {info.path}, which is partitioned or has a "
            "lake format (docs/limits.md)"
        )
    unique = list(dict.fromkeys(keys))
    key_columns = tuple(schema.column(name) for name in descriptor.physical_primary_key)
    decoded = row_codec(key_columns, RowFormat.KEY).decode(unique)
    codec = row_codec(schema.columns, RowFormat(descriptor.kv_format.value))
    arrays = [
        decoded.column(column.name) if column in key_columns else pa.nulls(len(unique), field.type)
        for column, field in zip(schema.columns, codec.schema, strict=True)
    ]
    rows = codec.encode(pa.RecordBatch.from_arrays(arrays, schema=codec.schema))
    targets = schema.indexes(descriptor.schema.primary_key)
    return encode_kv_batch(pa.array(unique, pa.binary()), rows, info.schema_id), targets


@serves(ApiKey.PREFIX_LOOKUP)
async def prefix_lookup(context: ServerContext, call: ServerCall) -> Message:
    """Return the rows of each prefix of the primary key, per bucket."""
    response = pb.PrefixLookupResponse()
    response_size = _ResponseSize(context, call)

    async def look_up(message: Any, replica: BucketReplica, answer: Any) -> None:
        check_key_version(replica.table.info, call.api_version)
        by_prefix: dict[bytes, list[bytes]] = {}
        for prefix in message.keys:
            if prefix not in by_prefix:
                read = partial(replica.kv.prefix_lookup, prefix)
                values = await response_size.read(read)
                if len(values) == 1 and len(values[0]) > response_size.left:  # are there more?
                    values = await context.in_io(read, LENGTH_PREFIX_BYTES + len(values[0]))
                by_prefix[prefix] = values
            size, count = _size_of(by_prefix[prefix])
            await response_size.take(size + ITEM_BYTES, max(count, 1))  # a list without rows takes space, too
        for number, prefix in enumerate(message.keys, 1):
            answer.value_lists.add(values=by_prefix[prefix])
            if not number % _LISTS_AT_ONCE:
                await asyncio.sleep(0)

    await _for_each_bucket(context, call, response, look_up)
    return response


@serves(ApiKey.LIMIT_SCAN)
async def limit_scan(context: ServerContext, call: ServerCall) -> Answer:
    """Return the first rows of a primary-key table, in the order of its engine, or a log table's last records.

    Errors are in the body.
    """
    request = call.message
    response = pb.LimitScanResponse()
    payloads: list[Buffer] = []
    try:
        if request.limit < 0:
            raise InvalidRequest(f"a limit scan needs a limit of at least 0, not {request.limit}")
        bucket = TableBucket(request.table_id, request.bucket_id, partition_id_of(request))
        async with context.using(bucket) as replica:
            response_size = _ResponseSize(context, call)
            bytes_max, has_kv = response_size.left, replica.has_kv
            read: Callable[[int, int], Sequence[Buffer]] = (
                replica.kv.first_values if has_kv else partial(_last_batches, replica.log)
            )
            values = await response_size.read(partial(read, request.limit))
        size = sum(map(len, values))
        if size > bytes_max and (len(values) > 1 or (has_kv and request.limit > 1)):
            what = f"the {'first' if has_kv else 'last'} {request.limit} {'rows' if has_kv else 'records'} of {bucket}"
            raise LimitExceeded(
                f"{what} are more than {format_bytes(bytes_max)} (server.request.max-answer-size): ask for fewer, or "
                f"{'scan the table' if has_kv else 'read the log'}",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        encode = encode_value_batch if has_kv else b"".join
        payloads.append(encode(values) if size <= _GROUP_BYTES else await context.in_io(encode, values))
        response.is_log_table = not has_kv
        response.records = b""
    except Exception as e:  # noqa: BLE001 - errors of this API travel in its answer
        put_error(response, e)
    return Answer(response, payloads)


def _last_batches(log: LogTablet, limit: int, bytes_max: int) -> Sequence[Buffer]:
    """Return whole batches that cover the last `limit` records, but stop once they exceed `bytes_max`."""
    end = log.high_watermark
    offset = max(log.log_start_offset, end - limit)
    pieces: list[Buffer] = []
    left = bytes_max
    if offset < log.local_start_offset:
        for header, data in log.iterate_batches(offset, log.local_start_offset):
            left -= len(data)
            pieces.append(data)
            offset = header.next_offset
            if left < 0:
                break
    while offset < end and left >= 0:
        piece = log.read(offset, bytes_max, end)
        left -= len(piece.data)
        pieces.append(piece.data)
        offset = piece.next_offset
    return pieces
