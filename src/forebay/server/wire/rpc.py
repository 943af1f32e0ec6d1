"""Connections: bytes in, requests dispatched to handlers, answers out.

One `RpcProtocol` per connection joins the sans-I/O `ServerConnection` to asyncio. Requests start in order of arrival;
responses leave when they are ready (clients match them by id). A failing request gets an error response and does not
affect others; a stream that does not speak the Fluss protocol is closed.

Turns: a connection starts a few requests when bytes arrive, and more of the pending ones when its turn comes again
(`forebay.server.flow.fair_queue`).

States: whether requests may start, and whether bytes are read, changes by the tables of `forebay.server.wire.states`.

Back-pressure: a connection with too many unanswered requests, or too many bytes of them, or whose peer does not read,
is neither served nor read from. Only two responses that may be large are built at a time, and the next one when the
peer has read one of them (`ResponseMemory`). Memory for large requests, for bodies of unanswered ones, and for large
responses comes from the server's memory pools (`forebay.server.flow.memory_pool`).
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from forebay.base.eager_task import begun
from forebay.base.errors import AccessDenied, ErrorCode, ForebayError, InvalidRequest, Unavailable, error_name
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol._short import ShortRequest
from forebay.protocol.api import BULK_REQUESTS, Api, ApiKey, ServerRole
from forebay.protocol.connection import (
    ConnectionClosed,
    ProtocolViolation,
    RequestReceived,
    RequestRejected,
    ServerConnection,
)
from forebay.protocol.messages import Buffer, Message, check_entries, entries_of, error_to_wire, serialize
from forebay.protocol.proxy_header import ProxyHeader
from forebay.protocol.sasl import ANONYMOUS, Authenticator
from forebay.server.connections import FIRST_FRAME_BYTES_MAX, ConnectionDescription, Connections
from forebay.server.context import Answer, ServerCall, ServerContext
from forebay.server.counters import request_name
from forebay.server.flow.connection_memory import ConnectionMemory
from forebay.server.flow.fair_executor import context_of
from forebay.server.flow.fair_queue import REQUESTS_PER_TURN
from forebay.server.flow.request_limits import SHORT_LIST
from forebay.server.flow.response_memory import ResponseMemory
from forebay.server.journal.store_gate import passed
from forebay.server.wire._peer import OPEN_REQUEST_BYTES, Peer
from forebay.server.wire._transport import SocketTransport
from forebay.server.wire.send_queue import SendQueue
from forebay.server.wire.short_requests import VERSIONS_MIN as SHORT_VERSIONS_MIN
from forebay.server.wire.short_requests import ShortRequests
from forebay.server.wire.states import (
    BLOCKED_STATES,
    HELD_STATES,
    ConnectionEvent,
    ConnectionState,
    Reading,
    ReadingEvent,
    next_reading,
    next_state,
)

if TYPE_CHECKING:
    from forebay.base.tracing import Tracing

_LOGGER = logging.getLogger(__name__)

_LARGE_ANSWERS = {
    ApiKey.LIMIT_SCAN: 4 << 20,
    ApiKey.LOOKUP: 64 << 10,
    ApiKey.PREFIX_LOOKUP: 1 << 20,
    ApiKey.SCAN_KV: 4 << 20,
}
"""APIs whose calls wait for memory, and how much is reserved for a response while it is built.

FetchLog handles its own waiting, because it may wait long for new data first.
"""

_LARGE_ANSWERS_MAX = 2
"""Large responses of one connection that are being built, or that the peer has not read yet."""

_OPEN_BYTES_MAX = 64 << 20
"""Bytes of unanswered requests above which a connection is not read from."""

_PARSED_APART_BYTES = 64 << 10
"""Requests without records are parsed in a thread if they are longer."""

_PARSED_APART_ENTRIES = 1024
"""All requests are, too, if they have more entries than this."""

_COUNTED_BYTES = 2 << 10
"""The entries of longer requests are counted; a shorter one has no more messages than `_PARSED_APART_ENTRIES`."""

_ENTRIES_PER_ITEM = 2
"""Entries of a request for each item that it may have: a bucket of a table of its own is two."""

_ENTRY_BYTES = 384
"""Memory of an entry of a request once it is parsed and its fields were read."""

_PARSED_FACTOR = 2
"""Memory of a parsed request without records beside its entries, as a multiple of its length."""

_GREETING_BYTES_MAX = 256
"""The longest ApiVersions request that is kept: it has the name of the client, for whoever asks who is connected."""

_REFUSAL_SECONDS = 1.0
_REFUSALS_MAX = 64
"""Maximum number of refused connections that get the reason at a time; further ones are only closed."""


_BEGUN_AT_ONCE = frozenset({ApiKey.PRODUCE_LOG, ApiKey.PUT_KV, ApiKey.LOOKUP})
"""Requests that are often small: a task for each, which begins an iteration of the loop later, would cost more than
they do. Writes all begin at once, so that none overtakes another one of its connection."""


_WITHOUT_THE_STORE = frozenset({ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE, ApiKey.DESCRIBE_SERVER})
"""Requests whose answers tell of no row. The console has to see a server whose store is away."""

_OF_WHAT_IS_STORED = frozenset({ApiKey.FETCH_LOG, ApiKey.LIST_OFFSETS})
"""Requests whose answers need the lease, and do not wait for the store: they have what is there."""


async def _later(answer: Answer | Message) -> Answer | Message:
    return answer


async def _failing(error: Exception) -> Answer | Message:
    raise error


class RpcProtocol(Peer, asyncio.BufferedProtocol):
    """One connection of a client. Its `state` changes by `forebay.server.wire.states` only."""

    def __init__(
        self,
        context: ServerContext,
        role: ServerRole,
        listener: str,
        offered: Mapping[int, Api],
        authenticator: Authenticator,
        connections: Connections,
        short: ShortRequests,
    ) -> None:
        self._context = context
        self._short = short
        self._clock = context.clock
        self._role = role
        self._listener = listener
        self._offered = offered
        self._authenticator = authenticator
        self._connections = connections
        self._connection = ServerConnection(
            offered,
            authenticate=authenticator.principal is None,
            frame_bytes_max=connections.frame_bytes_max,
            first_frame_bytes_max=FIRST_FRAME_BYTES_MAX,
            body_limits=connections.body_bytes_max,
            open_requests=self.open,
        )
        for key, api in self._connection.short_apis.items():
            if key in SHORT_VERSIONS_MIN and not context.counters.logs_all:
                versions = api.server_versions
                self.offer_short(api, max(versions.min, SHORT_VERSIONS_MIN[key]), versions.max)
        me = weakref.proxy(self)  # no cycles: its buffers must go with the connection, not with the next full round
        self.memory = ConnectionMemory(me, self._connection, connections.memory_pools, self._clock)
        self.open_requests_max = connections.open_requests_max
        self.address = self.peer = ""
        self._transport: asyncio.Transport | None = None
        self._send_queue = SendQueue(lambda: me._unsent_changed(), me)
        self._tasks: set[asyncio.Task[None]] = set()
        self._spans: dict[int, Any] = {}
        self._tasks_context = context_of(id(self))
        self._places = asyncio.Semaphore(_LARGE_ANSWERS_MAX)
        self.open_bytes_max = _OPEN_BYTES_MAX
        self.state, self.reading = ConnectionState.SERVING, Reading.ON
        self.last_active = self.opened = self._clock.monotonic()
        self._greeting = b""
        self._idle_seconds = 0.0  # of the login that is being answered
        self._proxy: ProxyHeader | None = None

    # ---- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport | SocketTransport)
        self._transport = self._send_queue.transport = transport
        peer = transport.get_extra_info("peername")
        self._name_peer(*(peer[:2] if isinstance(peer, tuple) and len(peer) > 1 else ("an unknown address", 0)))
        if self._connections.is_proxy(self.address):
            self._proxy = ProxyHeader()
        error = self._connections.admit(self, self.address)
        if error is not None:
            self._refuse(transport, error)

    def _name_peer(self, address: str, port: int) -> None:
        self.address = str(address)
        self.peer = f"[{address}]:{port}" if ":" in self.address else f"{address}:{port}"

    def _receive_header(self, header: ProxyHeader, count: int) -> None:
        """Receive bytes of a proxy's header; behind it, the connection is that of the proxy's client."""
        assert self._transport is not None
        try:
            header.received(count)
        except InvalidRequest as e:
            _LOGGER.warning("closing a connection of the proxy %s: %s", self.peer, e)
            self._transport.abort()
            return
        if not header.is_complete:
            return
        self._proxy = None
        if header.client is not None:
            proxy = self.address
            self._name_peer(*header.client)
            error = self._connections.readdress(self, proxy)
            if error is not None:
                self._refuse(self._transport, error)

    def _refuse(self, transport: asyncio.Transport, error: ForebayError) -> None:
        """Send the client the reason, give it a moment to read it, and close."""
        self._take(ConnectionEvent.REFUSE)
        refused = self._connections.refused
        if len(refused) >= _REFUSALS_MAX:
            transport.abort()
            return
        refused.add(transport)
        transport.writelines(self._connection.send_failure(*error_to_wire(error)))

        def end() -> None:
            refused.discard(transport)
            transport.abort()

        try:
            if transport.can_write_eof():
                transport.write_eof()
        except OSError:  # the peer has gone already
            end()
            return
        asyncio.get_running_loop().call_later(_REFUSAL_SECONDS, end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._take(ConnectionEvent.CLOSE)
        self._connection.close()
        self._connections.remove(self, self.address)
        self.memory.give_all()
        self._send_queue.clear()
        for task in self._tasks:
            task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._proxy is not None and self.state != ConnectionState.REFUSED:
            return self._proxy.room()
        return (
            memoryview(bytearray(4096))
            if self.state == ConnectionState.REFUSED
            else self._connection.get_buffer(sizehint)
        )

    def buffer_updated(self, nbytes: int) -> None:
        if self.state == ConnectionState.REFUSED:
            return
        self.last_active = self._clock.monotonic()
        if self._proxy is not None:
            self._receive_header(self._proxy, nbytes)
            return
        connection = self._connection
        connection.buffer_updated(nbytes)
        may_start = self.state == ConnectionState.SERVING
        if may_start and self._connections.fair_queue.is_idle and self._serve_lone_short():
            self.is_plain = True
            return
        if connection.large_bytes:
            self.memory.feed_large()
        elif not may_start:
            self._take(ConnectionEvent.BYTES)
            self._change_reading(ReadingEvent.FALL_BEHIND)
            self.balance()
        elif not self._connections.fair_queue.is_idle or self.take_turn():
            self._join()
        self.is_plain = connection.takes_short

    def _serve_lone_short(self) -> bool:
        """Serve a short request, as a turn would; whether it was all that has arrived. Most often it is."""
        connection = self._connection
        short = connection.next_short()
        if short is None or self._must_wait() or not self._short.take(self, short):
            return False
        connection.pass_short(short)
        return not connection.has_unread_bytes

    def eof_received(self) -> bool:
        self._short.flush()
        self._connection.receive_eof()
        if self.state == ConnectionState.REFUSED:
            return False
        if self.state == ConnectionState.SERVING:
            if not self._connections.fair_queue.is_idle or self.take_turn():
                self._join()
            elif self.state not in HELD_STATES:
                return False
        self._change_reading(ReadingEvent.END)  # pending requests are served first
        return True

    def pause_writing(self) -> None:
        self._send_queue.pause()
        self._unsent_changed()

    def resume_writing(self) -> None:
        self._send_queue.resume()
        self.last_active = self._clock.monotonic()
        self._unsent_changed()

    def _unsent_changed(self) -> None:
        self.memory.count_unsent()
        self.balance()

    def stop_reading(self) -> None:
        """Accept no more requests; those in flight are answered."""
        self._take(ConnectionEvent.STOP)
        self._short.flush()
        self.balance()

    def close(self) -> None:
        """Close the connection, even with requests in flight. A peer that does not read loses its pending responses."""
        if self._transport is not None:
            end = self._transport.close if self._send_queue.drained.is_set() else self._transport.abort
            end()

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes of responses that the peer has not read; 0 while it reads fast enough."""
        return 0 if self._send_queue.drained.is_set() else self._send_queue.unsent_bytes

    def abort(self) -> None:
        """Close the connection immediately; unsent data is lost."""
        if self._transport is not None:
            self._transport.abort()

    def description(self) -> ConnectionDescription:
        now, user = self._clock.monotonic(), self._authenticator.principal
        return ConnectionDescription(
            self.address,
            None if user is None or user == ANONYMOUS else user.name,
            self._greeting,
            self._role,
            self._listener,
            self._connection.open_requests,
            self.open_bytes,
            self._send_queue.unsent_bytes,
            now - self.opened,
            now - self.last_active,
        )

    @property
    def is_known(self) -> bool:
        """Return whether the client has authenticated or, without SASL, has sent a request."""
        return self._connection.is_trusted

    @property
    def is_idle(self) -> bool:
        """Return whether no request is in flight."""
        return self._connection.open_requests == 0

    @property
    def is_stalled(self) -> bool:
        """Return whether the peer has read nothing since the last call although data waits for it."""
        stalled = self._send_queue.has_stalled()
        if not stalled and self._send_queue.unsent_bytes:
            self.last_active = self._clock.monotonic()
        return stalled

    # ---- turns ------------------------------------------------------------------------------------------------------

    def _join(self, is_new: bool = True) -> None:
        self._take(ConnectionEvent.JOIN)
        self._connections.fair_queue.join(self, is_new=is_new)

    def take_turn(self, requests_max: int = REQUESTS_PER_TURN) -> bool:
        """Start a few requests. Return whether more are waiting and may start."""
        self._take(ConnectionEvent.TURN)
        more = self._start_some(requests_max)
        self._take(ConnectionEvent.MORE if more else ConnectionEvent.DONE)
        if not more:
            self._change_reading(ReadingEvent.CATCH_UP)
        if self.memory.large_counted != self._connection.large_bytes:
            self.memory.feed_large()
        self.balance()
        return more

    def _start_some(self, requests_max: int) -> bool:
        connection = self._connection
        for _ in range(requests_max):
            if self._must_wait():
                self._take(ConnectionEvent.HOLD)
                return False
            short = connection.next_short()
            if short is not None and self._short.take(self, short):
                connection.pass_short(short)
                if connection.has_unread_bytes or self.reading == Reading.ENDED:
                    continue
                return False
            if self.reading == Reading.ENDED:
                self._short.flush()  # its answers go before the end
            event = connection.next_event()
            match event:
                case None:
                    return False
                case RequestReceived():
                    self._serve(event)
                case RequestRejected():
                    self.send_error(event.request_id, event.error)
                case ProtocolViolation():
                    self._end_violated(event)
                    return False
                case ConnectionClosed():
                    if self.reading == Reading.ENDED:
                        self.close()
                    return False
                case _:
                    _LOGGER.error("unexpected event %r", event)
        return connection.has_unread_bytes

    def _must_wait(self) -> bool:
        """Return whether no further request may start now."""
        if (
            self._connection.open_requests >= self.open_requests_max
            or self.open_bytes >= self.open_bytes_max
            or self.state in BLOCKED_STATES
            or self.state == ConnectionState.DRAINING
            or not self._send_queue.drained.is_set()
        ):
            return True
        if self._is_over_share:
            self.memory.request_pool.wait_for_relief(self.memory, self.balance)
            return True
        return False

    @property
    def _is_over_share(self) -> bool:
        """Return whether small requests have to wait for memory: first those of connections with much in flight."""
        return self.memory.is_overfull and (
            self.open_bytes > self._connections.open_bytes_share or self.memory.request_pool.is_twice_full
        )

    def balance(self) -> None:
        """Stop reading while too much is in flight or pending; continue afterwards."""
        transport, connection = self._transport, self._connection
        if transport is None or transport.is_closing() or self.state == ConnectionState.REFUSED:
            return
        waiting = connection.open_requests
        is_unread = not self._send_queue.drained.is_set()
        state = self.state
        is_barred = state in BLOCKED_STATES or state == ConnectionState.DRAINING or self.memory.is_starved or is_unread
        has_room = waiting <= self.open_requests_max // 2 and self.open_bytes <= self.open_bytes_max // 2
        if state == ConnectionState.HELD and has_room and not is_barred and not self._is_over_share:
            self._join(is_new=False)
        is_full = waiting >= self.open_requests_max or self.open_bytes >= self.open_bytes_max
        must_pause = is_barred or is_full or self.state in HELD_STATES
        self._change_reading(ReadingEvent.PAUSE if must_pause else ReadingEvent.RESUME)

    def _take(self, event: ConnectionEvent) -> None:
        """Go to the state that follows by `event`."""
        self.state = next_state(self.state, event)

    def _change_reading(self, event: ReadingEvent) -> None:
        """Go to the reading that follows by `event`, and pause or resume the transport accordingly."""
        before, self.reading = self.reading, next_reading(self.reading, event)
        if self.reading == before or self._transport is None or self._transport.is_closing():
            return
        if self.reading == Reading.ON:
            self._transport.resume_reading()
        elif before == Reading.ON and self.reading != Reading.ENDED:
            self._transport.pause_reading()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _serve(self, request: RequestReceived) -> None:
        if request.api.key in BULK_REQUESTS:
            self._short.flush()  # earlier writes of this client go first
        memory = ResponseMemory(self._places, self._connections.memory_pools, self.memory)
        began = self._clock.monotonic()
        if self._context.counters.tracing is not None:
            self._begin_span(self._context.counters.tracing, request)
        gate = self._context.gate
        try:
            if gate is not None and request.api.key not in _WITHOUT_THE_STORE:
                gate.require_lease()
        except ForebayError as e:  # nothing is done, and the client may ask another server
            self._answered(request, began, self.send_error(request.request_id, e))
            return
        try:
            outcome = self._start(request, memory)
        except Exception as e:  # noqa: BLE001 - the boundary: a bug is answered as one, and other requests go on
            if self._may_pass(request.api.key):
                self._answered(request, began, self.send_error(request.request_id, e))
                return
            outcome = _failing(e)
        if isinstance(outcome, Answer | Message):
            if self._may_pass(request.api.key):
                self._send(request.request_id, outcome)
                self._answered(request, began)
                return
            outcome = _later(outcome)
        size = len(request.body) + OPEN_REQUEST_BYTES
        if self.state not in BLOCKED_STATES:
            size += self._parsed_bytes(request, self._entries(request))
        self._count_open(request.api.key, size)
        answering = self._finish(request, outcome, memory, began)
        task: asyncio.Task[None] | None
        if request.api.key in _BEGUN_AT_ONCE:
            task = begun(answering, self._tasks_context)
        else:
            task = asyncio.get_running_loop().create_task(answering, context=self._tasks_context)
        if task is None:
            self._finished(request.api.key, size, outcome, memory)
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(self._finished, request.api.key, size, outcome, memory))

    # ---- short requests (forebay.server.wire.short_requests.Client) --------------------------------------------------

    def serve_apart(self, request: ShortRequest, message: Message) -> None:
        if self._may_open(request):
            self._serve(self._connection.received_short(request, message))

    def fail_short(self, request: ShortRequest, message: Message) -> None:
        if self._may_open(request):
            self._connection.open_short(request)
            self._send(request.request_id, message)

    def _may_open(self, request: ShortRequest) -> bool:
        """Return whether a request that was taken may be opened now: the next one of the client may have its id."""
        if self.is_open and request.request_id in self.open:
            self.end_reused(request.request_id)
        return self.is_open

    def end_reused(self, request_id: int) -> None:
        """Close the connection because of a request with the id of an open one."""
        self._end_violated(self._connection.reused(request_id))

    def _end_violated(self, violation: ProtocolViolation) -> None:
        _LOGGER.warning("closing a connection on listener %s: %s", self._listener, violation.error)
        self.close()

    def send_frame(self, frame: bytes) -> None:
        """Send a frame behind what the peer has not read yet."""
        self._send_queue.send((frame,))
        if self.is_unread:
            self.memory.count_unsent()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # ---- all others -------------------------------------------------------------------------------------------------

    def _count_open(self, key: ApiKey, size: int) -> None:
        """Count the memory of an unanswered request, or release it."""
        self.open_bytes += size
        if key not in BULK_REQUESTS:
            self.memory.open_control_bytes += size
        if size > 0:
            self.memory.request_pool.take(size)
        else:
            self.memory.request_pool.give(-size)
            self.balance()

    def _start(self, request: RequestReceived, memory: ResponseMemory) -> Any:
        key = request.api.key
        if key is ApiKey.API_VERSIONS:
            if len(request.body) <= _GREETING_BYTES_MAX:
                self._greeting = bytes(request.body)
            return self._connections.version_answer(self._listener, self._role, self._offered)
        if key is ApiKey.AUTHENTICATE:
            return self._authenticate(request)
        entries = self._entries(request)
        if entries > _PARSED_APART_ENTRIES or (key not in BULK_REQUESTS and len(request.body) >= _PARSED_APART_BYTES):
            check_entries(request.api.request, request.body, entries, self._entries_max)
            self._take(ConnectionEvent.BLOCK)
            return self._parse_apart(request, memory, entries)
        return self._dispatch(request, memory, *request.parse_split(request.api.request), is_long=False)

    @property
    def _entries_max(self) -> int:
        return max(_ENTRIES_PER_ITEM * self._context.limits.items_max, _PARSED_APART_ENTRIES)

    def _entries(self, request: RequestReceived) -> int:
        """The entries of a request, before it is parsed; 0 for a short one."""
        if len(request.body) <= _COUNTED_BYTES:
            return 0
        return entries_of(request.api.request, request.body, self._entries_max)

    def _parsed_bytes(self, request: RequestReceived, entries: int) -> int:
        """The memory that a request takes once it is parsed, beside its body. Records are not copied."""
        copied = 0 if request.api.key in BULK_REQUESTS else _PARSED_FACTOR * len(request.body)
        return copied + _ENTRY_BYTES * entries

    def _dispatch(
        self,
        request: RequestReceived,
        memory: ResponseMemory,
        message: Message,
        payloads: Sequence[memoryview],
        *,
        is_long: bool,
    ) -> Any:
        user = self._authenticator.principal
        name = None if user is None else user.name
        call = ServerCall(message, payloads, request.api_version, self._role, self._listener, name, memory, is_long)
        outcome = self._context.handlers[request.api.key](self._context, call)
        if len(payloads) > SHORT_LIST and not isinstance(outcome, Answer | Message):
            self._take(ConnectionEvent.BLOCK)
            return self._write_alone(outcome)
        return outcome

    async def _write_alone(self, outcome: Coroutine[Any, Any, Answer | Message]) -> Answer | Message:
        """Answer a write of very many buckets, which are started one after the other without being overtaken."""
        try:
            return await outcome
        finally:
            self._unblock()

    async def _parse_apart(self, request: RequestReceived, memory: ResponseMemory, entries: int) -> Answer | Message:
        """Answer a long request, or one with very many entries; later ones wait until it is parsed."""
        key, parsed = request.api.key, self._parsed_bytes(request, entries)
        async with AsyncExitStack() as inside:
            try:
                await memory.take_place()
                await inside.enter_async_context(self._context.limits.admission.admitted(parsed))
                self._count_open(key, parsed)
                inside.callback(self._count_open, key, -parsed)
                message, payloads = await self._context.in_io(request.parse_split, request.api.request)
            finally:
                self._unblock()
            outcome = self._dispatch(request, memory, message, payloads, is_long=True)
            return outcome if isinstance(outcome, Answer | Message) else await outcome

    def _unblock(self) -> None:
        self._take(ConnectionEvent.UNBLOCK)
        self.balance()

    def _authenticate(self, request: RequestReceived) -> Message | Coroutine[Any, Any, Message]:
        message = request.parse(pb.AuthenticateRequest)
        user = self._authenticator.claimed_user(message)
        if user is None:
            return self._authenticator.receive(message)
        throttle = self._connections.login_throttle
        throttle.check(self.address, user)
        try:
            response = self._authenticator.receive(message)
        except AccessDenied as e:
            self._context.counters.failed_logins += 1
            seconds = throttle.failed(self.address, user)
            if not seconds:
                raise
            self._take(ConnectionEvent.BLOCK)
            return self._deny_later(e, seconds)
        throttle.succeeded(self.address, user)
        self._connection.authenticated()
        return response

    async def _deny_later(self, denied: AccessDenied, seconds: float) -> Message:
        """Answer a wrong password after a while, which is not work: it does not make a slow request."""
        self._idle_seconds += seconds
        try:
            await asyncio.sleep(seconds)
            raise denied
        finally:
            self._unblock()

    def _may_pass(self, key: ApiKey) -> bool:
        """Whether an answer that was made now may be sent at once: see `AnswerGate`."""
        gate = self._context.gate
        return (
            gate is None or gate.is_open or key in _WITHOUT_THE_STORE or (key in _OF_WHAT_IS_STORED and gate.has_lease)
        )

    async def _pass_gate(self, key: ApiKey) -> None:
        """Wait until an answer may be sent that was made now. An error tells of what was found as an answer does."""
        gate = self._context.gate
        if gate is None or self._may_pass(key):
            return
        try:
            if key in _OF_WHAT_IS_STORED:
                gate.require_lease()
            else:
                await passed(gate)
        except Unavailable as e:  # with a code that does not say that nothing was done
            raise Unavailable(f"{e.message}. What was asked for may be done or not", ErrorCode.REQUEST_TIME_OUT) from e

    async def _passed(self, key: ApiKey, outcome: Coroutine[Any, Any, Answer | Message]) -> Answer | Message:
        """The answer to a request when it may be sent. Raises its error when that may be sent."""
        try:
            answer = await outcome
        except Exception:
            await self._pass_gate(key)
            raise
        await self._pass_gate(key)
        return answer

    async def _finish(
        self,
        request: RequestReceived,
        outcome: Coroutine[Any, Any, Answer | Message],
        memory: ResponseMemory,
        began: float,
    ) -> None:
        try:
            if (size := _LARGE_ANSWERS.get(request.api.key)) is not None:
                await memory.enter(size)
            answer, serialized = await self._passed(request.api.key, outcome), None
            if isinstance(answer, Answer) and len(answer.payloads) > SHORT_LIST:
                serialized = await self._context.in_io(serialize, answer.message, answer.payloads)
            self._send(request.request_id, answer, serialized)
            self._answered(request, began)
            del answer, serialized  # what the peer does not read immediately is kept by `_send_queue`
            if memory.is_held:
                memory.settle()
                await self._send_queue.drained.wait()
        except Exception as e:  # noqa: BLE001 - the boundary, as above
            self._answered(request, began, self.send_error(request.request_id, e))

    def _finished(
        self,
        key: ApiKey,
        size: int,
        outcome: Coroutine[Any, Any, Any],
        memory: ResponseMemory,
        _task: asyncio.Task[None] | None = None,
    ) -> None:
        outcome.close()  # if it was cancelled before it began
        memory.close()
        memory.when_written(partial(self._count_open, key, -size))
        self.balance()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _send(self, request_id: int, answer: Answer | Message, serialized: Sequence[Buffer] | None = None) -> None:
        message, payloads = (answer.message, answer.payloads) if isinstance(answer, Answer) else (answer, ())
        self._send_queue.send(self._connection.send_response(request_id, message, payloads, serialized=serialized))
        if not self._send_queue.drained.is_set():
            self.memory.count_unsent()

    def _answered(self, request: RequestReceived, began: float, error: int = 0) -> None:
        seconds = max(self._clock.monotonic() - began - self._idle_seconds, 0.0)
        self._idle_seconds = 0.0
        tracing, span = self._context.counters.tracing, self._spans.pop(request.request_id, None)
        if tracing is not None and span is not None:
            tracing.end(span, error_name(error) if error else None)
        name = self.peer, request.request_id
        self._context.counters.count_requests(request.api.key, 1, len(request.body), seconds, error, name)

    def _begin_span(self, tracing: Tracing, request: RequestReceived) -> None:
        method = request.api.key.fluss_name
        self._spans[request.request_id] = tracing.begin(
            f"fluss.{method}",
            tracing.parent_in(request.body),
            "SERVER",
            rpc_system="fluss",
            rpc_method=method,
            client_address=self.address,
            forebay_request=request_name(self.peer, request.request_id),
        )

    def send_error(self, request_id: int, error: BaseException) -> int:
        """Send an error, and return its code."""
        if not isinstance(error, ForebayError):
            name = request_name(self.peer, request_id)
            _LOGGER.error("internal error in request %s", name, exc_info=error, extra={"request": name})
        code, text = error_to_wire(error)
        if self._transport is not None and self.is_open:
            self._send_queue.send(self._connection.send_error(request_id, code, text))
            if code == ErrorCode.AUTHENTICATE_EXCEPTION and self._authenticator.principal is None:
                self._transport.close()
        return int(code)
