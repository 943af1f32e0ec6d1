"""Short requests: appends, puts and lookups of one open bucket each, from the bytes of the wire to their responses.

Clients that wait for every row send these, so each takes few steps: no protobuf objects, no task and no future.

Short requests that arrive in one iteration of the event loop form a group for each bucket
(`forebay.server.wire._short_groups`). The lookups of a group share one access to the state. Its writes are one command
(`forebay.server.storage.write_command`), like the writes of all other requests. The event loop's thread writes it if it
need not wait (`WriteMode.AT_ONCE`). Otherwise the bucket's write queue does, and its thread wakes the loop once for all
commands that are written. No write overtakes another one of its connection: the handlers of longer writes begin after
`ShortRequests.flush`. Answers that have to wait for the store (`AnswerGate`) wait as a group.

Rule: a request that is unusual, or cannot be served, goes to its handler before it has any effect, so that errors are
raised in one place. Errors of the write itself are answered here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.codec.kv.value_batch import LENGTH_PREFIX_BYTES
from forebay.kv.tablet import PutRequest
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol._short import ShortRequest, encode_values
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message
from forebay.server.connections import Connections
from forebay.server.context import ServerContext, put_error, write_too_late
from forebay.server.storage.write_command import AppendCommand, PutCommand, WriteCommand, WriteMode
from forebay.server.wire._peer import OPEN_REQUEST_BYTES
from forebay.server.wire._short_groups import Group, ShortGroups

_LOGGER = logging.getLogger(__name__)

_PRODUCE_LOG, _PUT_KV, _LOOKUP = int(ApiKey.PRODUCE_LOG), int(ApiKey.PUT_KV), int(ApiKey.LOOKUP)
_RESPONSES = {_PRODUCE_LOG: pb.ProduceLogResponse, _PUT_KV: pb.PutKvResponse, _LOOKUP: pb.LookupResponse}
VERSIONS_MIN = {int(ApiKey.PRODUCE_LOG): 0, int(ApiKey.PUT_KV): 2, int(ApiKey.LOOKUP): 1}
"""First version of each API that is served here. Older versions have other rules for keys or errors."""

_ANSWER_BYTES_MAX = 1 << 16
"""Maximum bytes of a lookup's values; a handler answers lookups of more."""

_SAMPLE_KEYS, _SAMPLE_BYTES_MAX = 16, 1 << 12
"""The first keys of a group show how large values are; a handler looks up all keys if these values are larger."""

_STEP_KEYS = 256
"""Keys that are looked up in one step after the sample."""

_LOOP_WRITES_SECONDS = 5e-3
"""How long the event loop's thread writes groups; the groups of further buckets go to their write queues."""


class Client(Protocol):
    """The part of a connection that short requests use."""

    peer: str
    """The address of the client's end of the connection."""

    def serve_apart(self, request: ShortRequest, message: Message) -> None:
        """Serve a request by its handler; `message` is the parsed request."""
        ...

    def fail_short(self, request: ShortRequest, message: Message) -> None:
        """Answer a request that is not registered as unanswered."""
        ...


class _Lookups(NamedTuple):
    """Lookups of a group whose answers wait for the store."""

    requests: list[ShortRequest]
    frames: list[bytes]
    """The answers."""
    began: float


class _Writes:
    """The writes of a group, and their outcomes if they are queued (`forebay.server.flow.write_queue.Receiver`)."""

    __slots__ = ("began", "group", "late", "outcome", "requests", "short", "timers")

    def __init__(self, short: ShortRequests, group: Group, began: float) -> None:
        self.short = short
        self.group = group
        self.requests: list[ShortRequest] = group.writes
        self.began = began
        self.timers: list[asyncio.TimerHandle] = []
        self.late: set[ShortRequest] | None = None
        self.outcome: Sequence[Any] | BaseException = ()

    def queued(self) -> None:
        self.short.note_queued(self)

    def set_results(self, results: Sequence[Any]) -> None:
        self.outcome = results
        self.short.note_finished(self)

    def set_exception(self, exception: BaseException) -> None:
        self.outcome = exception
        self.short.note_finished(self)


def _size(values: Sequence[bytes | None]) -> int:
    return sum([len(value) for value in values if value is not None])


class ShortRequests(ShortGroups):
    """The short requests of one server. All methods except `note_finished` belong to the event loop's thread."""

    def __init__(self, context: ServerContext, connections: Connections) -> None:
        super().__init__(asyncio.get_running_loop(), connections.memory_pools.requests)
        self._context = context
        self._fair_queue = connections.fair_queue
        self._begin, self._end = context.replicas.begin_if_open, context.replicas.end
        self._finished: deque[_Writes] = deque()
        self._is_waking = False

    def may_begin(self) -> bool:
        return not (self._context.has_openings or self.request_pool.is_overfull)

    def may_begin_round(self) -> bool:
        return self._fair_queue.is_idle and self.may_begin()

    def begin_group(self, bucket: tuple[int, int, int | None]) -> Group | None:
        # Earlier writes may still wait for a bucket that a thread has just opened.
        gate = self._context.gate
        if self._context.has_openings or (gate is not None and not gate.has_lease):
            return None
        replica = self._begin(bucket)  # type: ignore[arg-type] # equal to a TableBucket
        if replica is None:
            return None
        if replica.closed:
            self._end(replica)
            return None
        return Group(replica, replica.has_kv)

    def serve_groups(self, groups: list[Group]) -> None:
        monotonic = self._context.clock.monotonic
        began = monotonic()
        for group in groups:
            if group.lookups:
                self._look_up(group, began)
        end = None if len(groups) == 1 else monotonic() + _LOOP_WRITES_SECONDS
        for group in groups:
            if group.writes:
                self._write(group, began, may_be_now=end is None or monotonic() < end)
            self._end_one(group)

    def _end_one(self, group: Group) -> None:
        group.left -= 1
        if not group.left:
            self._end(group.replica)

    # ---- lookups ----------------------------------------------------------------------------------------------------

    def _look_up(self, group: Group, began: float) -> None:
        lookups = group.lookups
        keys = [key for request in lookups for key in request.keys]
        try:
            values = self._values(group, keys)
        except ForebayError:  # an invalid key, for instance: requests are looked up one by one, and one of them fails
            values = None
        if values is None:
            if len(lookups) == 1:
                self._leave_to_handler(lookups[0])
                return
            for request in lookups:
                alone = Group(group.replica, True)
                alone.lookups.append(request)
                self._look_up(alone, began)
            return
        frames, first = [], 0
        for request in lookups:
            frames.append(encode_values(request, values, first, LENGTH_PREFIX_BYTES))
            first += len(request.keys)
        if not self._is_held():
            self.answer_all(lookups, frames)
            self._count(_LOOKUP, lookups, sum(map(len, keys)), began)
        elif sum(map(len, frames)) > OPEN_REQUEST_BYTES * len(frames):
            for request in lookups:
                self._leave_to_handler(request)
        else:
            gate = self._context.gate
            assert gate is not None
            self.open_waiting(lookups)
            gate.hold(partial(self._release_lookups, _Lookups(lookups, frames, began)))

    def _release_lookups(self, lookups: _Lookups, error: ForebayError | None) -> None:
        """Answer lookups that the gate has held."""
        positions = self.close_waiting(lookups.requests, None)
        answered = [lookups.requests[i] for i in positions]
        if error is None:
            self.answer_all(answered, [lookups.frames[i] for i in positions])
        else:
            for request in answered:
                self._answer_failed(request, error)
        size = sum([len(key) for request in answered for key in request.keys])
        self._count(_LOOKUP, answered, size, lookups.began)
        self.release_waiting(lookups.requests)

    def _values(self, group: Group, keys: list[bytes]) -> list[bytes | None] | None:
        """Return the values of all keys; None if they are so large that a handler has to answer."""
        look_up = group.replica.kv.stored_values
        size_max = _ANSWER_BYTES_MAX * len(group.lookups)
        if len(keys) <= _SAMPLE_KEYS:
            values = look_up(keys)
            return values if _size(values) <= size_max else None
        values = look_up(keys[:_SAMPLE_KEYS])
        if _size(values) > _SAMPLE_BYTES_MAX:
            return None
        for first in range(_SAMPLE_KEYS, len(keys), _STEP_KEYS):
            values += look_up(keys[first : first + _STEP_KEYS])
        return values if _size(values) <= size_max else None

    def _leave_to_handler(self, request: ShortRequest) -> None:
        table_id, bucket_id, partition_id = request.bucket
        message = pb.LookupRequest(table_id=table_id)
        message.buckets_req.add(bucket_id=bucket_id, partition_id=partition_id, keys=request.keys)
        request.client.serve_apart(request, message)

    # ---- writes -----------------------------------------------------------------------------------------------------

    def _write(self, group: Group, began: float, *, may_be_now: bool) -> None:
        """Write the group's writes as one command, and answer those that are written in this thread."""
        requests, replica = group.writes, group.replica
        command: WriteCommand = AppendCommand(requests, group.bytes)
        if replica.has_kv:
            command = PutCommand([PutRequest(each.records, each.targets, each.acks) for each in requests], group.bytes)
        mode = WriteMode.QUEUED
        if may_be_now:
            mode = WriteMode.AT_ONCE_FOR_LONE_CLIENT if self.has_lone_client else WriteMode.AT_ONCE
        writes = _Writes(self, group, began)
        gate = self._context.gate
        try:
            if gate is not None:
                gate.require_lease()
            results = replica.submit(command, writes, mode)
        except Exception as e:  # noqa: BLE001 - the outcome of each write, as in a write queue
            results = [e] * len(requests)
        if results is None:
            return
        if self._is_held():
            writes.outcome = results
            self._open(writes)
            self._hold(writes)
        else:
            self._answer(requests, results, replica.has_kv, group.bytes, began)

    def note_queued(self, writes: _Writes) -> None:
        """Register a group of writes, which is about to be queued, as unanswered."""
        writes.group.left += 1
        self._open(writes)

    def _open(self, writes: _Writes) -> None:
        self.open_waiting(writes.requests)
        for timeout_ms in {request.timeout_ms for request in writes.requests}:
            writes.timers.append(self.loop.call_later(timeout_ms / 1000, self._expire, writes, timeout_ms))

    def note_finished(self, writes: _Writes) -> None:
        """Schedule the answers of a group of writes. Called in the writer thread."""
        self._finished.append(writes)
        if not self._is_waking:
            self._is_waking = True
            if not self.loop.is_closed():
                self.loop.call_soon_threadsafe(self._answer_finished)

    def _answer_finished(self) -> None:
        self._is_waking = False  # first, so that writes that finish from now on wake the loop again
        finished = self._finished
        while finished:
            writes = finished.popleft()
            self._end_one(writes.group)
            if self._is_held():
                self._hold(writes)
            else:
                self._answer_opened(writes)

    def _is_held(self) -> bool:
        """Whether answers that are made now have to wait for the store."""
        gate = self._context.gate
        return gate is not None and not gate.is_open

    def _hold(self, writes: _Writes) -> None:
        """Answer writes as soon as the gate lets their answers pass. Their timeouts go on."""
        gate = self._context.gate
        assert gate is not None
        gate.hold(partial(self._release_writes, writes))

    def _release_writes(self, writes: _Writes, error: ForebayError | None) -> None:
        if error is not None:  # the rows may be written, and be there later
            writes.outcome = Unavailable(f"{error.message}. The rows may be written or not", ErrorCode.REQUEST_TIME_OUT)
        self._answer_opened(writes)

    def _answer_opened(self, writes: _Writes) -> None:
        """Answer writes that are registered as unanswered, but for those that are answered already."""
        for timer in writes.timers:
            timer.cancel()
        requests, outcome = writes.requests, writes.outcome
        unanswered = self.close_waiting(requests, writes.late)
        results = [outcome] * len(requests) if isinstance(outcome, BaseException) else outcome
        if len(unanswered) < len(requests):
            answered, results = [requests[i] for i in unanswered], [results[i] for i in unanswered]
        else:
            answered = requests
        size = sum([len(request.records) for request in answered])
        self._answer(answered, results, writes.group.has_kv, size, writes.began)
        self.release_waiting(requests)

    def _expire(self, writes: _Writes, timeout_ms: int) -> None:
        """Answer the writes with this timeout by an error."""
        late = [request for request in writes.requests if request.timeout_ms == timeout_ms]
        answered = [late[i] for i in self.close_waiting(late, writes.late)]
        writes.late = (writes.late or set()).union(late)
        size = sum([len(request.records) for request in answered])
        results = [write_too_late(timeout_ms)] * len(answered)
        self._answer(answered, results, writes.group.has_kv, size, writes.began)

    def _answer(
        self, requests: list[ShortRequest], results: Sequence[Any], has_kv: bool, size: int, began: float
    ) -> None:
        if not requests:
            return
        for request, result in self.answer_written(requests, results):
            self._answer_failed(request, result)
        self._count(_PUT_KV if has_kv else _PRODUCE_LOG, requests, size, began)

    def _count(self, key: int, requests: list[ShortRequest], size: int, began: float) -> None:
        context = self._context
        seconds = context.clock.monotonic() - began
        context.counters.count_requests(key, len(requests), size, seconds, group=requests)

    def _answer_failed(self, request: ShortRequest, outcome: Any) -> None:
        error = outcome if isinstance(outcome, Exception) else outcome.error
        response: Any = _RESPONSES[request.api_key]()
        _, bucket_id, partition_id = request.bucket
        put_error(response.buckets_resp.add(bucket_id=bucket_id, partition_id=partition_id), error)
        request.client.fail_short(request, response)
