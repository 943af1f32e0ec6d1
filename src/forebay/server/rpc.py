"""Connections: bytes in, requests dispatched to handlers, answers out.

One `RpcProtocol` per connection joins the sans-I/O `ServerConnection` to asyncio. Requests start in the order in
which they came; answers leave when they are ready (clients match them by id). A request that fails, however badly,
answers with an error bound to it and hurts nobody else; a stream that is no Fluss protocol is closed.

Back-pressure: a connection with too many unanswered requests, or too many bytes of them, or whose peer does not read,
is not read from. Of the answers that may be large only two are made at a time, and the next one when the peer has taken
one of them (`AnswerRoom`): a client that asks for much and takes nothing costs memory for two answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from forebay.base.errors import ErrorCode, ForebayError
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import Api, ApiKey, ServerRole, api_versions_response
from forebay.protocol.connection import (
    ConnectionClosed,
    ProtocolViolation,
    RequestReceived,
    RequestRejected,
    ServerConnection,
)
from forebay.protocol.convert import error_to_wire
from forebay.protocol.messages import Message
from forebay.protocol.sasl import Authenticator
from forebay.server.context import HANDLERS, Answer, AnswerRoom, Call, ServerContext

_LOGGER = logging.getLogger(__name__)

_LARGE_ANSWERS = frozenset({ApiKey.LIMIT_SCAN, ApiKey.LOOKUP, ApiKey.PREFIX_LOOKUP, ApiKey.SCAN_KV})
"""APIs whose calls wait for room. FetchLog waits for it by itself, because it may wait long for news before."""

_LARGE_ANSWERS_MAX = 2
"""Large answers of one connection that are being made, or that the peer has not taken yet."""

_OPEN_BYTES_MAX = 64 << 20
"""Bytes of unanswered requests above which a connection is not read from."""


class RpcProtocol(asyncio.BufferedProtocol):
    """One connection of a client."""

    def __init__(
        self,
        context: ServerContext,
        role: ServerRole,
        listener: str,
        offered: Mapping[int, Api],
        authenticator: Authenticator,
        connections: set[RpcProtocol],
    ) -> None:
        self._context = context
        self._role = role
        self._listener = listener
        self._offered = offered
        self._authenticator = authenticator
        self._connections = connections
        self._connection = ServerConnection(
            offered,
            authenticate=authenticator.principal is None,
            frame_bytes_max=context.config.value("netty.server.max-request-size"),
        )
        self._open_requests_max: int = context.config.value("netty.server.max-queued-requests")
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_LARGE_ANSWERS_MAX)
        self._drained = asyncio.Event()
        self._drained.set()
        self._open_bytes = 0
        self._unsent_before = 0
        self._reading = True
        self._peer_reads = True
        self.last_active = context.clock.monotonic()

    # ---- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.close()
        self._connections.discard(self)
        for task in self._tasks:
            task.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._context.clock.monotonic()
        self._connection.buffer_updated(nbytes)
        self._take_events()

    def eof_received(self) -> bool:
        self._connection.receive_eof()
        self._take_events()
        return False

    def pause_writing(self) -> None:
        self._drained.clear()
        self._peer_reads = False
        self._balance()

    def resume_writing(self) -> None:
        self._drained.set()
        self._peer_reads = True
        self.last_active = self._context.clock.monotonic()
        self._balance()

    def stop_reading(self) -> None:
        """Take no more requests; those under way are answered."""
        self._peer_reads = False
        self._balance()

    def close(self) -> None:
        """Close the connection, whatever is still under way. A peer that does not read loses what waits for it."""
        if self._transport is not None:
            if self._drained.is_set():
                self._transport.close()
            else:
                self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request is waiting for its answer."""
        return self._connection.open_requests == 0

    @property
    def is_stalled(self) -> bool:
        """Whether the peer has taken nothing of what waits for it since this was asked the last time."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        stalled = not self._drained.is_set() and unsent >= self._unsent_before > 0
        if not stalled and unsent:
            self.last_active = self._context.clock.monotonic()
        self._unsent_before = unsent
        return stalled

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _take_events(self) -> None:
        while (event := self._connection.next_event()) is not None:
            match event:
                case RequestReceived():
                    self._serve(event)
                case RequestRejected():
                    self._send_error(event.request_id, event.error)
                case ProtocolViolation():
                    _LOGGER.warning("closing a connection on listener %s: %s", self._listener, event.error)
                    self.close()
                    return
                case ConnectionClosed():
                    return
                case _:
                    _LOGGER.error("unexpected event %r", event)
        self._balance()

    def _serve(self, request: RequestReceived) -> None:
        room = AnswerRoom(self._room)
        try:
            outcome = self._start(request, room)
        except Exception as e:  # noqa: BLE001 - the boundary: a bug is answered as one, and other requests go on
            self._send_error(request.request_id, e)
            return
        if isinstance(outcome, Answer | Message):
            self._send(request.request_id, outcome)
            return
        self._open_bytes += len(request.body)
        task = asyncio.get_running_loop().create_task(self._finish(request, outcome, room))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start(self, request: RequestReceived, room: AnswerRoom) -> Any:
        key = request.api.key
        if key is ApiKey.API_VERSIONS:
            return api_versions_response(self._offered, self._role)
        if key is ApiKey.AUTHENTICATE:
            return self._authenticate(request)
        message, payloads = request.parse_split(request.api.request)
        principal = self._authenticator.principal
        call = Call(
            message,
            payloads,
            request.api_version,
            self._role,
            self._listener,
            None if principal is None else principal.name,
            room,
        )
        return HANDLERS[key](self._context, call)

    def _authenticate(self, request: RequestReceived) -> Message:
        was_known = self._authenticator.principal is not None
        response = self._authenticator.receive(request.parse(pb.AuthenticateRequest))
        if not was_known and self._authenticator.principal is not None:
            self._connection.authenticated()
        return response

    async def _finish(
        self, request: RequestReceived, outcome: Coroutine[Any, Any, Answer | Message], room: AnswerRoom
    ) -> None:
        size = len(request.body)
        try:
            if request.api.key in _LARGE_ANSWERS:
                await room.enter()
            self._send(request.request_id, await outcome)
            if room.is_held:
                await self._drained.wait()
        except Exception as e:  # noqa: BLE001 - the boundary, as above
            self._send_error(request.request_id, e)
        finally:
            outcome.close()  # if it was cancelled before it began
            room.leave()
            self._open_bytes -= size
        self._balance()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _send(self, request_id: int, answer: Answer | Message) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        message, payloads = (answer.message, answer.payloads) if isinstance(answer, Answer) else (answer, ())
        self._transport.writelines(self._connection.send_response(request_id, message, payloads))

    def _send_error(self, request_id: int, error: BaseException) -> None:
        if not isinstance(error, ForebayError):
            _LOGGER.error("internal error", exc_info=error)
        code, text = error_to_wire(error)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(self._connection.send_error(request_id, code, text))
            if code == ErrorCode.AUTHENTICATE_EXCEPTION and self._authenticator.principal is None:
                self._transport.close()

    def _balance(self) -> None:
        """Stop reading while the peer does not read or has too much under way; go on when that is over."""
        if self._transport is None or self._transport.is_closing():
            return
        waiting = self._connection.open_requests
        is_full = waiting >= self._open_requests_max or self._open_bytes >= _OPEN_BYTES_MAX
        has_room = waiting <= self._open_requests_max // 2 and self._open_bytes <= _OPEN_BYTES_MAX // 2
        if self._reading and (not self._peer_reads or is_full):
            self._reading = False
            self._transport.pause_reading()
        elif not self._reading and self._peer_reads and has_room:
            self._reading = True
            self._transport.resume_reading()


ProtocolFactory = Callable[[], RpcProtocol]
