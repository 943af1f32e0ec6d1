"""One connection, seen from either end, without any I/O.

Nouns: a *connection* turns bytes into *events* and requests or answers into *buffers* to be sent. `ClientConnection`
gives out request ids and remembers which of them are in flight; `ServerConnection` (forebay.protocol.connection)
remembers which requests are open, that is, not answered yet.

The rule: whatever a peer sends, `next_event` returns an event or None and raises nothing. What concerns one request
(an API that does not exist, a body that is not protobuf, an error answer) stays bound to it, and the connection goes
on. What concerns the stream (a length or type that cannot be) is a `ProtocolViolation`, and the transport has to be
closed. Misuse by our own side is a bug and raises `InternalError`.

Flow: read into `get_buffer()`, call `buffer_updated(n)` (or `receive_data(bytes)`), then call `next_event()` until it
returns None. At the end of the stream call `receive_eof()`, and `next_event()` again. An event is judged when it is
taken, not when its bytes came: so handle each event before taking the next one, and a request sent right behind an
Authenticate is judged by the outcome of that.

Client states. Left of the arrow is what may be sent in the state, right of it what leads on:

    START           ApiVersions           -- ApiVersions sent -->                 NEGOTIATING
    NEGOTIATING     nothing               -- negotiated(versions) -->             AUTHENTICATING
    AUTHENTICATING  Authenticate          -- authenticated() -->                  READY
    READY           everything
    CLOSED          nothing               (from every state: violation, server failure, end of stream, close())

Server states, with what is accepted in them; all else is answered with error 46:

    AUTHENTICATING  ApiVersions, Authenticate    -- authenticated() -->           READY
    READY           everything
    CLOSED          nothing               (from every state: violation, end of stream, close())

The rounds that lead from one state to the next are in forebay.protocol.handshake (client) and .sasl (both).
Prior art: h11's Connection and its state tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from forebay.base.errors import (
    AccessDenied,
    CorruptData,
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    Unavailable,
    UnsupportedOperation,
    check,
    error_from_wire,
)
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol._short import FRAME_BYTES_MAX as SHORT_BYTES_MAX
from forebay.protocol._short import ShortRequest
from forebay.protocol.api import APIS, Api, ApiKey, NegotiatedVersions
from forebay.protocol.frames import (
    FRAME_BYTES_MAX,
    REQUEST_HEADER_BYTES,
    RESPONSE_HEADER_BYTES,
    UNPROVEN_STEP_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    encode_request,
    encode_response,
    encode_server_failure,
)
from forebay.protocol.messages import Buffer, M, Message, parse, parse_split, sendable_text, serialize

_REQUEST_ID_MAX = (1 << 31) - 1
_REQUEST_ID = struct.Struct(">i")


# --- events ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """Server: a request to serve. It stays open until the response is sent."""

    request_id: int
    api: Api
    api_version: int
    body: bytes | bytearray

    def parse(self, message_class: type[M]) -> M:
        """The request's message; `message_class` is the API's request class. `CorruptData` if it is malformed."""
        check_carries(self.api, message_class)
        return parse(message_class, self.body)

    def parse_split(self, message_class: type[M]) -> tuple[M, list[memoryview]]:
        """The request's message and, apart, its payloads (see `messages.parse_split`)."""
        check_carries(self.api, message_class)
        return parse_split(message_class, self.body)


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """Server: a request that may not be served. Answer it with `error`; the connection goes on.

    The error says why: the API does not exist or is not offered here (UNSUPPORTED_VERSION), the version is not offered
    (UNSUPPORTED_VERSION), or the client has not been authenticated (AUTHENTICATE_EXCEPTION). Fluss's own server keeps
    silent about an unknown API, and its clients wait until they time out.
    """

    request_id: int
    api_key: int
    api_version: int
    error: ForebayError


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """Client: the response to a request, success or error. The request is no longer in flight."""

    request_id: int
    api: Api
    api_version: int
    body: bytes | bytearray
    error: ForebayError | None = None

    def parse(self, message_class: type[M]) -> M:
        """The message of the response. Raises the error that the server sent, or `CorruptData` if the body is
        malformed.
        """
        self._check(message_class)
        return parse(message_class, self.body)

    def parse_split(self, message_class: type[M]) -> tuple[M, list[memoryview]]:
        """The answer's message and, apart, its payloads (see `messages.parse_split`). Raises as `parse` does."""
        self._check(message_class)
        return parse_split(message_class, self.body)

    def _check(self, message_class: type[Message]) -> None:
        check_answers(self.api, message_class)
        if self.error is not None:
            raise self.error


@dataclass(frozen=True, slots=True)
class StrayResponse:
    """Client: a response to a request that is not in flight, for instance an abandoned one. Ignore it."""

    request_id: int


@dataclass(frozen=True, slots=True)
class ServerFailed:
    """Client: the server abandoned the connection (frame type 2). In-flight requests get no response."""

    error: ForebayError
    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProtocolViolation:
    """The peer violated the stream protocol. Close the transport; pending requests get no response."""

    error: CorruptData
    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The stream has ended. `error` is the client's error for the requests in flight."""

    error: Unavailable
    request_ids: tuple[int, ...]


def check_carries(api: Api, message_class: type[Message]) -> None:
    if message_class is not api.request:
        raise InternalError(f"{api.key.name} does not carry a {message_class.__name__}")


def check_answers(api: Api | None, message_class: type[Message]) -> None:
    if api is None or message_class is not api.response:
        raise InternalError(
            f"{api.key.name if api else 'a rejected request'} is not answered by {message_class.__name__}"
        )


Event = (
    RequestReceived
    | RequestRejected
    | ResponseReceived
    | StrayResponse
    | ServerFailed
    | ProtocolViolation
    | ConnectionClosed
)


# --- states ----------------------------------------------------------------------------------------------------


class State(Enum):
    """The state of a connection; see the diagram in the module docstring."""

    START = "start"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"


class Step(Enum):
    """A transition from one state to the next."""

    ASKED_VERSIONS = "asked for versions"
    NEGOTIATED = "negotiated"
    AUTHENTICATED = "authenticated"
    CLOSED = "closed"


_CLIENT_STEPS: Mapping[tuple[State, Step], State] = {
    (State.START, Step.ASKED_VERSIONS): State.NEGOTIATING,
    (State.NEGOTIATING, Step.NEGOTIATED): State.AUTHENTICATING,
    (State.AUTHENTICATING, Step.AUTHENTICATED): State.READY,
    **{(state, Step.CLOSED): State.CLOSED for state in State},
}
_CLIENT_SENDS: Mapping[State, frozenset[int]] = {
    State.START: frozenset({ApiKey.API_VERSIONS}),
    State.NEGOTIATING: frozenset(),
    State.AUTHENTICATING: frozenset({ApiKey.AUTHENTICATE}),
    State.READY: frozenset(APIS),
    State.CLOSED: frozenset(),
}


class _ConnectionEnd:
    """The base class of both ends: the byte stream and the state. Use one of the two subclasses."""

    def __init__(self, decoder: FrameDecoder, steps: Mapping[tuple[State, Step], State], state: State) -> None:
        self.decoder = decoder
        self._steps = steps
        self._eof = False
        self.state = state
        self.get_buffer = decoder.get_buffer
        self.buffer_updated = decoder.buffer_updated
        self.receive_data = decoder.receive_data
        self.pass_short = decoder.pass_short

    def receive_eof(self) -> None:
        """Mark the end of the peer's stream; `next_event` reports it after all earlier events."""
        self._eof = True

    def next_event(self) -> Event | None:
        """The next event, or None until more bytes are received (always None once the state is CLOSED)."""
        if self.state is State.CLOSED:
            return None
        frame = self.decoder.next_frame()
        if frame is not None:
            return self.judge(frame)
        if self.decoder.error is not None:
            return self.violated(self.decoder.error)
        if self._eof:
            where = "in the middle of a frame" if self.decoder.has_partial_frame else "between two frames"
            return ConnectionClosed(Unavailable(f"the peer closed the connection {where}"), self.close())
        return None

    def close(self) -> tuple[int, ...]:
        """Close the connection from this side. Returns the ids of the requests that get no response."""
        self.take(Step.CLOSED)
        return self.give_up_requests()

    def judge(self, frame: Frame) -> Event:
        raise NotImplementedError

    def give_up_requests(self) -> tuple[int, ...]:
        raise NotImplementedError

    def take(self, step: Step) -> None:
        """Go to the state that follows by `step`."""
        check(
            (self.state, step) in self._steps, f"'{step.value}' cannot follow in connection state '{self.state.value}'"
        )
        self.state = self._steps[self.state, step]

    def violated(self, error: CorruptData) -> ProtocolViolation:
        return ProtocolViolation(error, self.close())


# --- client ----------------------------------------------------------------------------------------------------


class InFlight(NamedTuple):
    """A request that is pending a response."""

    api: Api
    api_version: int


class SentRequest(NamedTuple):
    """A request to send: its id, and the buffers to send in order."""

    request_id: int
    buffers: list[Buffer]


class ClientConnection(_ConnectionEnd):
    """The client's end. See the module for the flow and the states.

    `versions` is what may be asked of this server, known once the state is past NEGOTIATING.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        decoder = FrameDecoder(RESPONSE_HEADER_BYTES, frame_bytes_min=1, frame_bytes_max=frame_bytes_max)
        super().__init__(decoder, _CLIENT_STEPS, State.START)
        self._in_flight: dict[int, InFlight] = {}
        self._next_id = 0
        self.versions: NegotiatedVersions | None = None

    @property
    def in_flight(self) -> Mapping[int, InFlight]:
        """The requests pending a response, by id."""
        return self._in_flight

    def send_request(
        self,
        api_key: ApiKey,
        message: Message,
        payloads: Sequence[Buffer] = (),
        api_version: int | None = None,
        last_field: bytes = b"",
    ) -> SentRequest:
        """The request's id and frame. `payloads` fill the empty `records` fields of `message`, in order.

        `last_field` is a field that goes behind those of `message` (forebay.base.tracing).

        Without `api_version` it is the newest one that both sides speak. Raises `UnsupportedOperation` if the server
        does not offer the API, and `Unavailable` if the connection is closed.
        """
        if self.state is State.CLOSED:
            raise Unavailable(f"cannot send {api_key.name}: the connection is closed")
        if api_key not in _CLIENT_SENDS[self.state]:
            raise InternalError(f"{api_key.name} cannot be sent in state '{self.state.value}'")
        api = APIS[api_key]
        check_carries(api, type(message))
        if api_version is None and self.versions is not None:
            api_version = self.versions.newest.get(api_key)
            if api_version is None:
                api_version = self.versions.version(api_key)  # which says why there is none
        body = serialize(message, payloads)
        if last_field:
            body.append(last_field)
        request_id = self._allocate_id()
        buffers = encode_request(api_key, api_version or 0, request_id, body)
        if api_key is ApiKey.API_VERSIONS and self.state is State.START:
            self.take(Step.ASKED_VERSIONS)
        self._in_flight[request_id] = InFlight(api, api_version or 0)
        return SentRequest(request_id, buffers)

    def negotiated(self, versions: NegotiatedVersions) -> None:
        """Store the APIs that the server offers."""
        self.take(Step.NEGOTIATED)
        self.versions = versions

    def authenticated(self) -> None:
        """Mark the client as authenticated, or authentication as not required."""
        self.take(Step.AUTHENTICATED)

    def abandon(self, request_id: int) -> None:
        """Abandon a request. A late response becomes a `StrayResponse`."""
        self._in_flight.pop(request_id, None)

    def _allocate_id(self) -> int:
        while self._next_id in self._in_flight:
            self._next_id = (self._next_id + 1) & _REQUEST_ID_MAX
        request_id = self._next_id
        self._next_id = (request_id + 1) & _REQUEST_ID_MAX
        return request_id

    def give_up_requests(self) -> tuple[int, ...]:
        request_ids = tuple(self._in_flight)
        self._in_flight.clear()
        return request_ids

    def judge(self, frame: Frame) -> Event:
        """Return the event of a response.

        A response with an unknown request id is a `StrayResponse`. A malformed frame ends the connection.
        """
        header, body = frame.header, frame.body
        frame_type = header[0]
        if frame_type == FrameType.SERVER_FAILURE:
            return ServerFailed(_error_of_body(header[1:] + body), self.close())
        if frame_type not in (FrameType.SUCCESS, FrameType.ERROR):
            return self.violated(CorruptData(f"the server sent a frame of type {frame_type}; there are 0, 1 and 2"))
        if len(header) < RESPONSE_HEADER_BYTES:
            return self.violated(CorruptData(f"the server sent an answer of {len(header)} bytes, without a request id"))
        (request_id,) = _REQUEST_ID.unpack_from(header, 1)
        request = self._in_flight.pop(request_id, None)
        if request is None:
            return StrayResponse(request_id)
        if frame_type == FrameType.ERROR:
            return ResponseReceived(request_id, request.api, request.api_version, b"", _error_of_body(body))
        return ResponseReceived(request_id, request.api, request.api_version, body)


def _error_of_body(body: Buffer) -> ForebayError:
    try:
        message = parse(pb.ErrorResponse, body)
    except CorruptData as error:
        return error
    return error_from_wire(message.error_code, message.error_message)


# The server's end of a connection, without any I/O. The states and the flow stand in forebay.protocol.connection.

_REQUEST_HEADER = struct.Struct(">hhi")
_API_KEY = struct.Struct(">h")

_SERVER_STEPS: Mapping[tuple[State, Step], State] = {
    (State.AUTHENTICATING, Step.AUTHENTICATED): State.READY,
    (State.AUTHENTICATING, Step.CLOSED): State.CLOSED,
    (State.READY, Step.CLOSED): State.CLOSED,
    (State.CLOSED, Step.CLOSED): State.CLOSED,
}
_SERVER_ACCEPTS: Mapping[State, frozenset[int]] = {
    State.AUTHENTICATING: frozenset({ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE}),
    State.READY: frozenset(APIS),
    State.CLOSED: frozenset(),
}


class ServerConnection(_ConnectionEnd):
    """The server's end. See the module for the flow and the states.

    `offered` is what this server serves here (`api.offered`). With `authenticate` the client has to authenticate
    first. Frames are at most `frame_bytes_max` long; before the client has authenticated, or has sent a first request
    where it need not, at most `first_frame_bytes_max`. `body_limits` says how long the body of a request of an API may
    be, by its key; a longer one is thrown away as it comes, and rejected. `open_requests`, if given, is where the open
    requests stand.
    """

    def __init__(
        self,
        offered: Mapping[int, Api],
        authenticate: bool = False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        *,
        first_frame_bytes_max: int | None = None,
        body_limits: Callable[[int], int] | None = None,
        open_requests: dict[int, Api | None] | None = None,
    ) -> None:
        first = frame_bytes_max if first_frame_bytes_max is None else min(first_frame_bytes_max, frame_bytes_max)
        decoder = FrameDecoder(
            REQUEST_HEADER_BYTES,
            REQUEST_HEADER_BYTES,
            first,
            step_bytes=UNPROVEN_STEP_BYTES,
            body_bytes_max=None if body_limits is None else lambda header: body_limits(_API_KEY.unpack_from(header)[0]),
        )
        super().__init__(decoder, _SERVER_STEPS, State.AUTHENTICATING if authenticate else State.READY)
        self._offered = offered
        self._body_limits = body_limits
        self.open: dict[int, Api | None] = {} if open_requests is None else open_requests
        """Requests without an answer, by id."""
        self._frame_bytes_max = frame_bytes_max
        self.is_trusted = first == frame_bytes_max
        """Whether the client has authenticated, or has sent a first request where it need not."""
        if not self.is_trusted:
            decoder.frame_bytes_max_reason = " until the client has " + (
                "authenticated" if authenticate else "sent a first request"
            )

    def _trust(self) -> None:
        self.is_trusted = True
        self.decoder.frame_bytes_max, self.decoder.frame_bytes_max_reason = self._frame_bytes_max, ""

    # ---- memory -----------------------------------------------------------------------------------------------------

    @property
    def has_unread_bytes(self) -> bool:
        """Whether there are received bytes not yet turned into events: whole requests, or the start of one."""
        return self.decoder.has_partial_frame

    @property
    def large_bytes(self) -> int:
        """The memory of the large request that is being received; 0 if there is none."""
        return self.decoder.large_bytes

    @property
    def wanted_bytes(self) -> int:
        """How much more memory the large request needs before more of it can be received; 0 while there is room."""
        return self.decoder.wanted_bytes

    def grow(self) -> None:
        """Grant the large request the memory that it needs."""
        self.decoder.grow()

    def go_in_small_steps(self) -> None:
        """Reset the initial buffer size of large requests, as for a client that has not completed any."""
        self.decoder.step_bytes = UNPROVEN_STEP_BYTES

    def give_up_large(self, error: ForebayError) -> RequestRejected | None:
        """Free the large request that is being received; None if there is none, or it has the id of another one.

        What the event says is to be answered; the rest of the request is thrown away as it comes.
        """
        header = self.decoder.drop_large()
        if header is None:
            return None
        api_key, api_version, request_id = _REQUEST_HEADER.unpack(header)
        if request_id in self.open:
            return None
        self.open[request_id] = None
        return RequestRejected(request_id, api_key, api_version, error)

    # ---- requests and answers ---------------------------------------------------------------------------------------

    @property
    def takes_short(self) -> bool:
        """Whether short requests may be served, and nothing else has arrived."""
        return self.state is State.READY and self.is_trusted and not self.decoder.has_frames

    def next_short(self) -> ShortRequest | None:
        """The next request, if it is a short one; None, and `next_event` tells, for all others, and for whatever comes
        before the client may send requests.

        It stays the next one until `pass_short`. Whether it may be served is judged by who serves it: its id must not
        be open, its API be one of `short_apis`, in a version that this offers.
        """
        if self.state is not State.READY or not self.is_trusted:
            return None
        return self.decoder.peek_short()

    @property
    def short_apis(self) -> Mapping[int, Api]:
        """The offered APIs of which a short request is no longer than a body may be."""
        limits = self._body_limits
        return {key: api for key, api in self._offered.items() if limits is None or limits(key) >= SHORT_BYTES_MAX}

    def reused(self, request_id: int) -> ProtocolViolation:
        """End the connection because of a request with the id of an open one."""
        return self.violated(CorruptData(f"the client used request id {request_id} again before its answer"))

    def open_short(self, request: ShortRequest) -> None:
        """Open a short request, which is answered later. Its id must not be open."""
        self.open[request.request_id] = self._offered[request.api_key]

    def received_short(self, request: ShortRequest, message: Message) -> RequestReceived:
        """Open such a request; the event that `next_event` would have returned for it."""
        self.open_short(request)
        body = b"".join(serialize(message))
        return RequestReceived(request.request_id, self._offered[request.api_key], request.api_version, body)

    @property
    def open_requests(self) -> int:
        """The number of requests without a response."""
        return len(self.open)

    def authenticated(self) -> None:
        """Mark the client as authenticated: from now on all offered APIs are served."""
        self.take(Step.AUTHENTICATED)
        self._trust()

    def send_response(
        self,
        request_id: int,
        message: Message,
        payloads: Sequence[Buffer] = (),
        *,
        serialized: Sequence[Buffer] | None = None,
    ) -> list[Buffer]:
        """The frame that answers an open request, as buffers; none if the connection has been closed meanwhile.

        `payloads` fill the empty `records` fields of `message`, in order. A message that cannot be sent raises
        `InternalError` and leaves the request open, so that it can still be answered with an error. `serialized` is
        what `messages.serialize` has made of both already.
        """
        if self.state is State.CLOSED:
            return []
        self._check_open(request_id)
        check_answers(self.open[request_id], type(message))
        body = serialize(message, payloads) if serialized is None else serialized
        buffers = encode_response(FrameType.SUCCESS, request_id, body)
        del self.open[request_id]
        return buffers

    def send_error(self, request_id: int, code: int, text: str | None = None) -> list[Buffer]:
        """The error response to an open request, as buffers; none if the connection has been closed meanwhile."""
        if self.state is State.CLOSED:
            return []
        self._check_open(request_id)
        message = pb.ErrorResponse(error_code=code)
        if text is not None:
            message.error_message = sendable_text(text)
        buffers = encode_response(FrameType.ERROR, request_id, serialize(message))
        del self.open[request_id]
        return buffers

    def send_failure(self, code: int, text: str) -> list[Buffer]:
        """The frame with which the server abandons the connection, which is then closed from this side."""
        self.close()
        (body,) = serialize(pb.ErrorResponse(error_code=code, error_message=sendable_text(text)))
        return [encode_server_failure(body)]

    def _check_open(self, request_id: int) -> None:
        if request_id not in self.open:
            raise InternalError(f"request {request_id} is not open: it was answered already, or never came")

    def give_up_requests(self) -> tuple[int, ...]:
        request_ids = tuple(self.open)
        self.open.clear()
        return request_ids

    def judge(self, frame: Frame) -> Event:
        """Return the event of a request. A request id that is still open ends the connection.

        A request of an API, a version or a size that is not allowed is rejected, and the connection continues.
        """
        api_key, api_version, request_id = _REQUEST_HEADER.unpack(frame.header)
        if request_id in self.open:
            return self.reused(request_id)
        api = self._select(api_key, api_version)
        if isinstance(api, ForebayError):
            self.open[request_id] = None
            return RequestRejected(request_id, api_key, api_version, api)
        body_bytes = frame.dropped_bytes or len(frame.body)
        if self._body_limits is not None and body_bytes > (limit := self._body_limits(api_key)):
            self.open[request_id] = None
            return RequestRejected(request_id, api_key, api_version, _too_long(api.key, body_bytes, limit))
        if not self.is_trusted and self.state is State.READY:
            self._trust()
        self.open[request_id] = api
        return RequestReceived(request_id, api, api_version, frame.body)

    def _select(self, api_key: int, api_version: int) -> Api | ForebayError:
        """The API of a request, or why it is not served."""
        if api_key not in _SERVER_ACCEPTS[self.state] and self.state is State.AUTHENTICATING:
            return AccessDenied(
                "authenticate first: this listener wants SASL (client.security.protocol=sasl), a user and a password",
                ErrorCode.AUTHENTICATE_EXCEPTION,
            )
        api = self._offered.get(api_key)
        if api is None:
            entry = APIS.get(api_key)
            name = f"API {api_key}" if entry is None else f"{entry.key.name} ({api_key})"
            return UnsupportedOperation(f"this server does not offer {name}; ask ApiVersions for what it offers")
        # Clients send ApiVersions in the newest version they know, before they can know ours.
        offered = api.server_versions
        if not offered.min <= api_version <= offered.max and api.key is not ApiKey.API_VERSIONS:
            return UnsupportedOperation(f"this server offers versions {offered} of {api.key.name}, not {api_version}")
        return api


def _too_long(key: ApiKey, size: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"a {key.name} request of {size} bytes is longer than the limit of {limit} bytes "
        "(netty.server.max-request-size for requests with records, server.request.max-control-size for others): ask "
        "for less at a time",
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
    )
