"""Writing: writer ids, appends to log tables, puts into primary-key tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from forebay.base.eager_task import begun
from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.base.threads import Future
from forebay.kv.tablet import PutRequest, PutResult
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, partition_id_of
from forebay.server.context import ServerCall, ServerContext, put_error, serves, write_too_late
from forebay.server.flow.request_limits import SHORT_LIST
from forebay.server.flow.response_memory import ResponseMemory
from forebay.server.flow.write_queue import FutureReceiver
from forebay.server.storage.write_command import AppendCommand, AppendRequest, AppendResult, PutCommand

_ACKS = (-1, 0, 1)
_ACKS_NONE = 0
_OVERWRITE, _LOCAL_AGGREGATE = 1, 2
_BACKPRESSURE_VERSION = 2
"""From this PutKv version on clients understand error 72."""


@serves(ApiKey.INIT_WRITER)
async def init_writer(context: ServerContext, _call: ServerCall) -> Message:
    """Return a new writer id."""
    return pb.InitWriterResponse(writer_id=await context.writer_ids.take(context.in_coordinator))


def _check_acks(acks: int) -> None:
    if acks not in _ACKS:
        raise InvalidRequest(f"acks is {acks}; it can be -1 (all), 0 or 1", ErrorCode.INVALID_REQUIRED_ACKS)


def _refuse_historical(message: Any) -> None:
    if message.HasField("original_partition_name"):
        raise UnsupportedOperation(
            "Forebay does not serve historical partitions yet (docs/limits.md)",
            ErrorCode.PARTITION_NOT_EXISTS,
        )


@serves(ApiKey.PRODUCE_LOG)
async def produce_log(context: ServerContext, call: ServerCall) -> Message:
    """Append log batches to buckets of a log table."""
    request = call.message
    _check_acks(request.acks)
    response = pb.ProduceLogResponse()

    async def append(message: Any, payload: memoryview, answer: Any) -> None:
        _refuse_historical(message)
        bucket = TableBucket(request.table_id, message.bucket_id, partition_id_of(message))
        async with context.using(bucket) as replica:
            written = FutureReceiver[AppendResult]()
            replica.submit(AppendCommand.of(AppendRequest(payload, request.acks)), written)
            result: AppendResult | None = await acknowledged(
                call.memory, written.future, request.acks, request.timeout_ms
            )
        if result is not None:
            if result.error is not None:
                raise result.error
            answer.base_offset = result.base_offset

    await _for_each_bucket(context, call, response.buckets_resp, append)
    return response


@serves(ApiKey.PUT_KV)
async def put_kv(context: ServerContext, call: ServerCall) -> Message:
    """Put and delete rows in buckets of a primary-key table."""
    request = call.message
    _check_acks(request.acks)
    if request.HasField("agg_mode") and request.agg_mode == _LOCAL_AGGREGATE:
        raise UnsupportedOperation("aggregation mode 2 (local aggregate) is not supported by any Fluss server")
    targets = tuple(request.target_columns)
    overwrite = request.agg_mode == _OVERWRITE

    response = pb.PutKvResponse()

    async def put(message: Any, payload: memoryview, answer: Any) -> None:
        _refuse_historical(message)
        bucket = TableBucket(request.table_id, message.bucket_id, partition_id_of(message))
        async with context.using(bucket) as replica:
            check_key_version(replica.table.info, call.api_version)
            written = FutureReceiver[PutResult]()
            replica.submit(PutCommand.of(PutRequest(payload, targets, request.acks, overwrite)), written)
            result: PutResult | None = await acknowledged(call.memory, written.future, request.acks, request.timeout_ms)
        if result is not None:
            if result.error is not None:
                raise result.error
            answer.log_end_offset = result.log_end_offset

    await _for_each_bucket(context, call, response.buckets_resp, put)
    if call.api_version < _BACKPRESSURE_VERSION:
        for answer in response.buckets_resp:
            if answer.error_code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION:
                answer.error_code = ErrorCode.KV_STORAGE_EXCEPTION
    return response


def check_key_version(info: TableInfo, api_version: int) -> None:
    """Refuse clients that would use the old key encoding if it differs (docs/protocol.md, PUT_KV)."""
    descriptor = info.descriptor
    if (
        api_version == 0
        and descriptor.kv_format_version >= 2
        and descriptor.lake_format is not None
        and not descriptor.is_default_bucket_key
    ):
        raise UnsupportedOperation(
            f"table {info.path} encodes its keys in a way that this client's version of the request does not know; "
            "use a newer client"
        )


async def _for_each_bucket(
    context: ServerContext, call: ServerCall, answers: Any, work: Callable[[Any, memoryview, Any], Awaitable[None]]
) -> None:
    """Process all buckets of a request concurrently; a failure affects only its bucket. Results keep the request's
    order.

    Very many buckets are started in time slices, and later requests of the connection wait until all are started
    (forebay.server.wire.rpc).
    """
    messages = call.message.buckets_req
    context.limits.check_items(len(messages), "buckets")

    async def one(message: Any, payload: memoryview, answer: Any) -> None:
        try:
            await work(message, payload, answer)
        except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
            put_error(answer, e)

    jobs: list[tuple[Any, memoryview, Any]] = []

    def begin(message: Any) -> None:
        answer = answers.add(bucket_id=message.bucket_id, partition_id=partition_id_of(message))
        jobs.append((message, call.payloads[len(jobs)], answer))

    await context.limits.each(messages, len(messages), begin)
    if len(jobs) == 1:
        await one(*jobs[0])
        return
    for first in range(0, len(jobs), SHORT_LIST):
        tasks = [begun(one(*job)) for job in jobs[first : first + SHORT_LIST]]
        await asyncio.gather(*(task for task in tasks if task is not None))


async def acknowledged(memory: ResponseMemory, future: Future[Any], acks: int, timeout_ms: int) -> Any:
    """Return the result of a queued write, or None if acks=0. Its memory counts until it is done."""
    memory.keep_until(future)
    if acks == _ACKS_NONE:
        return None
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def written(_: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(written)
    timer = loop.call_later(timeout_ms / 1000, wake)
    try:
        await waiter
    finally:
        timer.cancel()
    if not future.done():
        raise write_too_late(timeout_ms)
    return future.result()
