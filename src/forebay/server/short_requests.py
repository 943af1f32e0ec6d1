"""Short requests: appends, puts and lookups of one open bucket each, from the wire's bytes to their answers.

Clients that wait for every row send these, so each takes few steps: no protobuf objects, no task and no future.

Lookups are answered at once. Writes of one iteration of the event loop are collected and written at its end, in a group
for each bucket: in the loop's own thread where it need not wait (`forebay.server.replica.BucketReplica.write_now`),
else in the bucket's lane, whose thread wakes the loop once for all that is done. No write overtakes another one of its
connection: the handlers of longer writes begin after `ShortRequests.flush`.

The rule: a request that is special in any way, or cannot be served, is left to its handler before anything is done, so
only there are errors made. What fails later, in writing, is answered here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from forebay.base.errors import ForebayError
from forebay.kv.tablet import PutRequest
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol._short import ShortRequest, encode_values, encode_written
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message
from forebay.server.context import ServerContext, put_error, write_too_late
from forebay.server.replica import AppendRequest, BucketReplica

_LOGGER = logging.getLogger(__name__)

_PRODUCE_LOG, _LOOKUP = int(ApiKey.PRODUCE_LOG), int(ApiKey.LOOKUP)
_VERSIONS_MIN = {int(ApiKey.PRODUCE_LOG): 0, int(ApiKey.PUT_KV): 2, int(ApiKey.LOOKUP): 1}
"""Older versions have rules of their own, for keys or for errors."""

_ACKNOWLEDGED = (-1, 1)

_ANSWER_BYTES_MAX = 1 << 16
"""Values of a lookup that is answered at once."""

_KEYS_AT_FIRST, _BYTES_AT_FIRST = 16, 1 << 12
"""More keys are looked up if the values of the first ones are small."""

_COLLECTED_MAX = 256
_COLLECTED_BYTES_MAX = 256 << 10
"""Writes that are collected before the iteration has ended, and their size."""

_NOW_SECONDS = 5e-3
"""After this time the groups of further buckets go to their lanes: a round of the loop takes no longer elsewhere."""


class Client(Protocol):
    """The part of a connection that short requests use."""

    def begin_short(self, request: ShortRequest) -> None:
        """Take the request, which is answered later."""
        ...

    def answer_short(self, request: ShortRequest, frame: bytes, *, was_begun: bool = True) -> None: ...

    def answer(self, request_id: int, message: Message) -> None: ...

    def count_short(self, request: ShortRequest, *, ends: bool = False) -> None:
        """Count the memory of a write that waits for its lane, until it `ends`."""
        ...


class _Write:
    """A write: its request, and what becomes of it (`forebay.server.replica.Receiver`)."""

    __slots__ = ("began", "client", "finished", "is_late", "item", "outcome", "replica", "request", "timer")

    def __init__(self, client: Client, request: ShortRequest, replica: BucketReplica, item: Any, began: float) -> None:
        self.client = client
        self.request = request
        self.replica = replica
        self.item = item
        self.began = began
        self.outcome: Any = None
        self.is_late = False

    finished: Callable[[_Write], None]
    timer: asyncio.TimerHandle

    def set_result(self, result: Any) -> None:
        self.outcome = result
        self.finished(self)

    def set_exception(self, exception: BaseException) -> None:
        self.outcome = exception
        self.finished(self)


def _size(values: list[bytes | None]) -> int:
    return sum([len(value) for value in values if value is not None])


class ShortRequests:
    """Those of one server. `serve` and `flush` belong to the event loop's thread."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._begin, self._end = context.replicas.begin_if_open, context.replicas.end
        self._collected: list[_Write] = []
        self._collected_bytes = 0
        self._finished: deque[_Write] = deque()
        self._is_waking = False

    def serve(self, client: Client, request: ShortRequest) -> bool:
        """Serve the request, the client's next one; False, and nothing is done, if it is for its handler."""
        began = self._context.clock.monotonic()
        key = request.api_key
        if request.api_version < _VERSIONS_MIN[key] or self._context.has_openings:
            return False
        replica = self._begin(request.bucket)  # type: ignore[arg-type] # equal to a TableBucket
        if replica is None:
            return False
        if key == _LOOKUP:
            return self._look_up(client, request, replica, began)
        if request.acks not in _ACKNOWLEDGED or replica.closed or replica.has_kv is (key == _PRODUCE_LOG):
            self._end(replica)
            return False
        client.begin_short(request)
        records = request.records
        item: Any
        if key == _PRODUCE_LOG:
            item = AppendRequest(records, request.acks)
        else:
            item = PutRequest(records, request.targets, request.acks)
        collected = self._collected
        collected.append(_Write(client, request, replica, item, began))
        self._collected_bytes += len(records)
        if len(collected) >= _COLLECTED_MAX or self._collected_bytes >= _COLLECTED_BYTES_MAX:
            self.flush()
        elif len(collected) == 1:
            self._loop.call_soon(self.flush)
        return True

    # ---- lookups ----------------------------------------------------------------------------------------------------

    def _look_up(self, client: Client, request: ShortRequest, replica: BucketReplica, began: float) -> bool:
        keys = request.keys
        try:
            values = replica.kv.lookup(keys[:_KEYS_AT_FIRST])
            if len(keys) > _KEYS_AT_FIRST:
                if _size(values) > _BYTES_AT_FIRST:
                    return False
                values += replica.kv.lookup(keys[_KEYS_AT_FIRST:])
        except ForebayError:
            return False
        finally:
            self._end(replica)
        if _size(values) > _ANSWER_BYTES_MAX:
            return False
        client.answer_short(request, encode_values(request, values), was_begun=False)
        self._count(_LOOKUP, sum(map(len, keys)), began)
        return True

    # ---- writes -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what was collected, or queue it."""
        collected, self._collected = self._collected, []
        self._collected_bytes = 0
        if len(collected) == 1:
            self._write(collected[0].replica, collected)
            return
        groups: dict[BucketReplica, list[_Write]] = {}
        for write in collected:
            groups.setdefault(write.replica, []).append(write)
        monotonic = self._context.clock.monotonic
        end = monotonic() + _NOW_SECONDS
        for replica, group in groups.items():
            self._write(replica, group, may_be_now=monotonic() < end)

    def _write(self, replica: BucketReplica, group: list[_Write], *, may_be_now: bool = True) -> None:
        size = sum(len(write.request.records) for write in group)
        results: Sequence[Any] | None = None
        try:
            if may_be_now:
                results = replica.write_now([write.item for write in group], size)
        except Exception as e:  # noqa: BLE001 - as in a lane, it is the outcome of each
            results = [e] * len(group)
        if results is not None:
            for write, result in zip(group, results, strict=True):
                self._end(replica)
                self._answer(write, result)
            return
        for write in group:
            write.finished = self._has_finished
            write.client.count_short(write.request)
            write.timer = self._loop.call_later(write.request.timeout_ms / 1000, self._expire, write)
        replica.write_later([(write.item, write, len(write.request.records)) for write in group])

    def _has_finished(self, write: _Write) -> None:
        """Called in the lane's thread."""
        self._finished.append(write)
        if not self._is_waking:
            self._is_waking = True
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._answer_finished)

    def _answer_finished(self) -> None:
        self._is_waking = False  # first, so that what finishes from now on wakes the loop again
        finished = self._finished
        while finished:
            write = finished.popleft()
            write.timer.cancel()
            self._end(write.replica)
            if not write.is_late:
                self._answer(write, write.outcome)
            write.client.count_short(write.request, ends=True)

    def _expire(self, write: _Write) -> None:
        write.is_late = True
        self._answer(write, write_too_late(write.request.timeout_ms))

    def _count(self, key: int, size: int, began: float) -> None:
        context = self._context
        context.counters.count_request(key, size, context.clock.monotonic() - began)

    def _answer(self, write: _Write, outcome: Any) -> None:
        request = write.request
        self._count(request.api_key, len(request.records), write.began)
        error = outcome if isinstance(outcome, Exception) else outcome.error
        is_append = request.api_key == _PRODUCE_LOG
        if error is None:
            offset = outcome.base_offset if is_append else outcome.log_end_offset
            write.client.answer_short(request, encode_written(request, offset))
            return
        response: Any = pb.ProduceLogResponse() if is_append else pb.PutKvResponse()
        _, bucket_id, partition_id = request.bucket
        put_error(response.buckets_resp.add(bucket_id=bucket_id, partition_id=partition_id), error)
        write.client.answer(request.request_id, response)
