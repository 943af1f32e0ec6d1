"""Lookups by key and by key prefix, and limit scans."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec.kv_batch import encode_kv_batch
from forebay.codec.layout import RowFormat
from forebay.codec.rows import row_codec
from forebay.codec.value_batch import encode_value_batch
from forebay.kv.tablet import ACKS_ALL, PutRequest
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.convert import partition_id_of
from forebay.protocol.messages import Message
from forebay.server.context import Answer, Call, ServerContext, put_error, serves
from forebay.server.handlers.writes import acknowledged, check_key_version
from forebay.server.replica import BucketReplica

_INLINE_KEYS_MAX = 256
"""Lookups of up to so many keys run on the event loop: a thread would take longer to begin than they take."""

_LIMIT_SCAN_BYTES_MAX = 64 << 20


@serves(ApiKey.LOOKUP)
async def lookup(context: ServerContext, call: Call) -> Message:
    request = call.message
    insert = request.HasField("insert_if_not_exists") and request.insert_if_not_exists
    response = pb.LookupResponse()
    for message in request.buckets_req:
        answer = response.buckets_resp.add(bucket_id=message.bucket_id)
        if message.HasField("partition_id"):
            answer.partition_id = message.partition_id
        try:
            if message.HasField("original_partition_name"):
                raise UnsupportedOperation("Forebay does not serve historical partitions yet (docs/limits.md)")
            replica = await context.replica(TableBucket(request.table_id, message.bucket_id, partition_id_of(message)))
            check_key_version(replica.table.info, call.api_version)
            values = await _lookup(context, replica, list(message.keys))
            if insert and None in values:
                values = await _insert_missing(context, replica, list(message.keys), values, request)
            _add_values(answer, values)
        except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
            put_error(answer, e)
    return response


async def _lookup(context: ServerContext, replica: BucketReplica, keys: list[bytes]) -> list[bytes | None]:
    kv = replica.kv
    return kv.lookup(keys) if len(keys) <= _INLINE_KEYS_MAX else await context.in_io(kv.lookup, keys)


def _add_values(answer: Any, values: list[bytes | None]) -> None:
    for value in values:
        if value is None:
            answer.values.add()
        else:
            answer.values.add(values=value)


async def _insert_missing(
    context: ServerContext, replica: BucketReplica, keys: list[bytes], values: list[bytes | None], request: Any
) -> list[bytes | None]:
    """Insert rows of nothing but their key for the keys that have none, then look them up again."""
    missing = [key for key, value in zip(keys, values, strict=True) if value is None]
    records, targets = _rows_of_keys(replica, missing)
    acks = request.acks if request.HasField("acks") else ACKS_ALL
    future = replica.put(PutRequest(records, targets, acks))
    timeout_ms = request.timeout_ms if request.HasField("timeout_ms") else 30_000
    result = await acknowledged(future, acks or 1, timeout_ms)
    if result.error is not None:
        raise result.error
    return await _lookup(context, replica, keys)


def _rows_of_keys(replica: BucketReplica, keys: list[bytes]) -> tuple[bytes, tuple[int, ...]]:
    """A KV batch that puts rows with only the primary key set, and the key's positions as target columns."""
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
async def prefix_lookup(context: ServerContext, call: Call) -> Message:
    request = call.message
    response = pb.PrefixLookupResponse()
    for message in request.buckets_req:
        answer = response.buckets_resp.add(bucket_id=message.bucket_id)
        if message.HasField("partition_id"):
            answer.partition_id = message.partition_id
        try:
            replica = await context.replica(TableBucket(request.table_id, message.bucket_id, partition_id_of(message)))
            check_key_version(replica.table.info, call.api_version)
            for values in await context.in_io(_prefix_lookups, replica, list(message.keys)):
                answer.value_lists.add(values=values)
        except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
            put_error(answer, e)
    return response


def _prefix_lookups(replica: BucketReplica, prefixes: list[bytes]) -> list[list[bytes]]:
    kv = replica.kv
    return [kv.prefix_lookup(prefix) for prefix in prefixes]


@serves(ApiKey.LIMIT_SCAN)
async def limit_scan(context: ServerContext, call: Call) -> Answer:
    """The first rows of a primary-key table in key order, or the last records of a log table. Errors in the body."""
    request = call.message
    response = pb.LimitScanResponse()
    payloads = []
    try:
        if request.limit < 0:
            raise InvalidRequest(f"a limit scan needs a limit of at least 0, not {request.limit}")
        replica = await context.replica(TableBucket(request.table_id, request.bucket_id, partition_id_of(request)))
        read = _first_rows if replica.has_kv else _last_batches
        payloads.append(await context.in_io(read, replica, request.limit))
        response.is_log_table = not replica.has_kv
        response.records = b""
    except Exception as e:  # noqa: BLE001 - errors of this API travel in its answer
        put_error(response, e)
    return Answer(response, payloads)


def _first_rows(replica: BucketReplica, limit: int) -> bytes:
    return encode_value_batch(replica.kv.first_values(limit))


def _last_batches(replica: BucketReplica, limit: int) -> bytes:
    """Whole batches that cover the last `limit` records; the client cuts off what is too much."""
    log = replica.log
    end = log.high_watermark
    offset = max(log.log_start_offset, end - limit)
    pieces: list[memoryview] = []
    size = 0
    while offset < end:
        piece = log.read(offset, _LIMIT_SCAN_BYTES_MAX, end)
        size += len(piece.data)
        if size > _LIMIT_SCAN_BYTES_MAX and pieces:
            raise InvalidRequest(
                f"the last {limit} records of {replica.bucket} are more than {_LIMIT_SCAN_BYTES_MAX} bytes; "
                "ask for fewer, or read the log",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        pieces.append(piece.data)
        offset = piece.next_offset
    return b"".join(pieces)
