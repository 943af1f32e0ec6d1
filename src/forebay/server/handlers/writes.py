"""Writing: writer ids, appends to log tables, puts into primary-key tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, Unavailable, UnsupportedOperation
from forebay.base.threads import Future
from forebay.kv.tablet import PutRequest, PutResult
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, partition_id_of
from forebay.server.context import SHORT_LIST, AnswerRoom, ServerCall, ServerContext, Written, begun, put_error, serves
from forebay.server.replica import AppendRequest, AppendResult, BucketReplica

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
def produce_log(context: ServerContext, call: ServerCall) -> Written | Coroutine[Any, Any, Message]:
    """Append log batches to buckets of a log table: to an open one without a task, to others by one."""
    request = call.message
    _check_acks(request.acks)

    def append(replica: BucketReplica, payload: memoryview) -> Future[AppendResult]:
        return replica.append(AppendRequest(payload, request.acks))

    def tell(answer: Any, result: AppendResult) -> None:
        answer.base_offset = result.base_offset

    return _written(context, call, pb.ProduceLogResponse(), append, tell) or _produce_all(context, call)


def _written(
    context: ServerContext,
    call: ServerCall,
    response: Any,
    write: Callable[[BucketReplica, memoryview], Future[Any]],
    tell: Callable[[Any, Any], None],
) -> Written | None:
    """Queue the write of one bucket that is open; None, and nothing is done, for all other requests and failures.

    No other write of the connection is overtaken: those of a bucket that is not open wait for it in order.
    """
    request = call.message
    if request.acks == _ACKS_NONE or call.is_long:
        return None
    opened = only_open_bucket(context, request)
    if opened is None:
        return None
    message, replica = opened
    try:
        future = write(replica, call.payloads[0])
    except BaseException as e:
        context.replicas.end(replica)
        if isinstance(e, ForebayError):
            return None
        raise

    def answer() -> Message:
        bucket = response.buckets_resp.add(bucket_id=message.bucket_id, partition_id=partition_id_of(message))
        try:
            if not future.done():
                raise _too_late(request.timeout_ms)
            result = future.result()
            if result.error is not None:
                raise result.error
            tell(bucket, result)
        except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
            put_error(bucket, e)
        return response  # type: ignore[no-any-return]

    return Written(future, request.timeout_ms, answer, partial(context.replicas.end, replica))


def only_open_bucket(context: ServerContext, request: Any) -> tuple[Any, BucketReplica] | None:
    """What a request says of its only bucket, and the replica, which stays open until `replicas.end`.

    None if it names several or a historical partition, or if its bucket is not open or does not exist.
    """
    if len(request.buckets_req) != 1:
        return None
    (message,) = request.buckets_req
    if message.HasField("original_partition_name"):
        return None
    try:
        replica = context.begin_if_open(TableBucket(request.table_id, message.bucket_id, partition_id_of(message)))
    except ForebayError:
        return None
    return None if replica is None else (message, replica)


async def _produce_all(context: ServerContext, call: ServerCall) -> Message:
    request = call.message
    response = pb.ProduceLogResponse()

    async def append(message: Any, payload: memoryview, answer: Any) -> None:
        _refuse_historical(message)
        bucket = TableBucket(request.table_id, message.bucket_id, partition_id_of(message))
        async with context.using(bucket) as replica:
            future = replica.append(AppendRequest(payload, request.acks))
            result: AppendResult | None = await acknowledged(call.room, future, request.acks, request.timeout_ms)
        if result is not None:
            if result.error is not None:
                raise result.error
            answer.base_offset = result.base_offset

    await _for_each_bucket(context, call, response.buckets_resp, append)
    return response


@serves(ApiKey.PUT_KV)
def put_kv(context: ServerContext, call: ServerCall) -> Written | Coroutine[Any, Any, Message]:
    """Put and delete rows in buckets of a primary-key table: in an open one without a task, in others by one."""
    request = call.message
    _check_acks(request.acks)
    if request.HasField("agg_mode") and request.agg_mode == _LOCAL_AGGREGATE:
        raise UnsupportedOperation("aggregation mode 2 (local aggregate) is not supported by any Fluss server")
    targets = tuple(request.target_columns)
    overwrite = request.agg_mode == _OVERWRITE

    def put(replica: BucketReplica, payload: memoryview) -> Future[PutResult]:
        check_key_version(replica.table.info, call.api_version)
        return replica.put(PutRequest(payload, targets, request.acks, overwrite))

    def tell(answer: Any, result: PutResult) -> None:
        answer.log_end_offset = result.log_end_offset

    if call.api_version >= _BACKPRESSURE_VERSION:
        written = _written(context, call, pb.PutKvResponse(), put, tell)
        if written is not None:
            return written
    return _put_all(context, call, put)


async def _put_all(
    context: ServerContext, call: ServerCall, write: Callable[[BucketReplica, memoryview], Future[PutResult]]
) -> Message:
    request = call.message
    response = pb.PutKvResponse()

    async def put(message: Any, payload: memoryview, answer: Any) -> None:
        _refuse_historical(message)
        bucket = TableBucket(request.table_id, message.bucket_id, partition_id_of(message))
        async with context.using(bucket) as replica:
            future = write(replica, payload)
            result: PutResult | None = await acknowledged(call.room, future, request.acks, request.timeout_ms)
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
    """Refuse clients that would use the old key encoding if it differs (reference fluss.md, 1.3)."""
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

    Very many buckets are started in pieces; later requests of the connection wait meanwhile (forebay.server.rpc).
    """
    messages = call.message.buckets_req
    context.costs.check_items(len(messages), "buckets")

    async def one(message: Any, payload: memoryview, answer: Any) -> None:
        try:
            await work(message, payload, answer)
        except Exception as e:  # noqa: BLE001 - a failure is part of the answer for its bucket
            put_error(answer, e)

    jobs: list[tuple[Any, memoryview, Any]] = []

    def begin(message: Any) -> None:
        answer = answers.add(bucket_id=message.bucket_id, partition_id=partition_id_of(message))
        jobs.append((message, call.payloads[len(jobs)], answer))

    await context.costs.each(messages, len(messages), begin)
    if len(jobs) == 1:
        await one(*jobs[0])
        return
    for first in range(0, len(jobs), SHORT_LIST):
        tasks = [begun(one(*job)) for job in jobs[first : first + SHORT_LIST]]
        await asyncio.gather(*(task for task in tasks if task is not None))


async def acknowledged(room: AnswerRoom, future: Future[Any], acks: int, timeout_ms: int) -> Any:
    """Return the result of a queued write, or None if acks=0. Its memory counts until it is done."""
    room.keep_until(future)
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
        raise _too_late(timeout_ms)
    return future.result()


def _too_late(timeout_ms: int) -> Unavailable:
    return Unavailable(
        f"the write was not acknowledged within {timeout_ms} ms; it may still be written", ErrorCode.REQUEST_TIME_OUT
    )
