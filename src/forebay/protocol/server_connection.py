"""The server's end of a connection, without any I/O. The states and the flow stand in forebay.protocol.connection."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from forebay.base.errors import (
    AccessDenied,
    CorruptData,
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    UnsupportedOperation,
)
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import APIS, Api, ApiKey
from forebay.protocol.connection import Connection, Event, RequestReceived, RequestRejected, State, Step, check_answers
from forebay.protocol.frames import (
    FRAME_BYTES_MAX,
    REQUEST_HEADER_BYTES,
    UNPROVEN_STEP_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    encode_response,
    encode_server_failure,
)
from forebay.protocol.messages import Buffer, Message, sendable_text, serialize

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


class ServerConnection(Connection):
    """The server's end. See the module for the flow and the states.

    `offered` is what this server serves here (`api.offered`). With `authenticate` the client has to authenticate
    first. Frames are at most `frame_bytes_max` long; before the client has authenticated, or has sent a first request
    where it need not, at most `first_frame_bytes_max`. `body_limits` says how long the body of a request of an API may
    be, by its key; a longer one is thrown away as it comes, and rejected.
    """

    def __init__(
        self,
        offered: Mapping[int, Api],
        authenticate: bool = False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        *,
        first_frame_bytes_max: int | None = None,
        body_limits: Callable[[int], int] | None = None,
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
        self._open: dict[int, Api | None] = {}
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
        """Whether bytes have come that no event was made of yet: whole requests, or the beginning of one."""
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
        """Give the large request the memory that it wants."""
        self.decoder.grow()

    def go_in_small_steps(self) -> None:
        """Let the buffers of large requests begin small again, as for a client that has not finished any."""
        self.decoder.step_bytes = UNPROVEN_STEP_BYTES

    def give_up_large(self, error: ForebayError) -> RequestRejected | None:
        """Free the large request that is being received; None if there is none, or it has the id of another one.

        What the event says is to be answered; the rest of the request is thrown away as it comes.
        """
        header = self.decoder.drop_large()
        if header is None:
            return None
        api_key, api_version, request_id = _REQUEST_HEADER.unpack(header)
        if request_id in self._open:
            return None
        self._open[request_id] = None
        return RequestRejected(request_id, api_key, api_version, error)

    # ---- requests and answers ---------------------------------------------------------------------------------------

    @property
    def open_requests(self) -> int:
        """How many requests have not been answered."""
        return len(self._open)

    def authenticated(self) -> None:
        """Take note that the client has proved who it is: from now on everything that is offered is served."""
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
        check_answers(self._open[request_id], type(message))
        body = serialize(message, payloads) if serialized is None else serialized
        buffers = encode_response(FrameType.SUCCESS, request_id, body)
        del self._open[request_id]
        return buffers

    def send_error(self, request_id: int, code: int, text: str | None = None) -> list[Buffer]:
        """The frame that answers an open request with an error; none if the connection has been closed meanwhile."""
        if self.state is State.CLOSED:
            return []
        self._check_open(request_id)
        message = pb.ErrorResponse(error_code=code)
        if text is not None:
            message.error_message = sendable_text(text)
        buffers = encode_response(FrameType.ERROR, request_id, serialize(message))
        del self._open[request_id]
        return buffers

    def send_failure(self, code: int, text: str) -> list[Buffer]:
        """The frame by which the server gives up the connection, which is then closed from this side."""
        self.close()
        (body,) = serialize(pb.ErrorResponse(error_code=code, error_message=sendable_text(text)))
        return [encode_server_failure(body)]

    def _check_open(self, request_id: int) -> None:
        if request_id not in self._open:
            raise InternalError(f"request {request_id} is not open: it was answered already, or never came")

    def give_up_requests(self) -> tuple[int, ...]:
        request_ids = tuple(self._open)
        self._open.clear()
        return request_ids

    def judge(self, frame: Frame) -> Event:
        api_key, api_version, request_id = _REQUEST_HEADER.unpack(frame.header)
        if request_id in self._open:
            return self.violated(CorruptData(f"the client used request id {request_id} again before its answer"))
        api = self._select(api_key, api_version)
        if isinstance(api, ForebayError):
            self._open[request_id] = None
            return RequestRejected(request_id, api_key, api_version, api)
        body_bytes = frame.dropped_bytes or len(frame.body)
        if self._body_limits is not None and body_bytes > (limit := self._body_limits(api_key)):
            self._open[request_id] = None
            return RequestRejected(request_id, api_key, api_version, _too_long(api.key, body_bytes, limit))
        if not self.is_trusted and self.state is State.READY:
            self._trust()
        self._open[request_id] = api
        return RequestReceived(request_id, api, api_version, frame.body)

    def _select(self, api_key: int, api_version: int) -> Api | ForebayError:
        """The API that a request means, or why it is not served."""
        if api_key not in _SERVER_ACCEPTS[self.state] and self.state is State.AUTHENTICATING:
            return AccessDenied(
                "authenticate first: this listener wants SASL (client.security.protocol=sasl)",
                ErrorCode.AUTHENTICATE_EXCEPTION,
            )
        api = self._offered.get(api_key)
        if api is None:
            known = APIS.get(api_key)
            name = f"API {api_key}" if known is None else f"{known.key.name} ({api_key})"
            return UnsupportedOperation(f"this server does not offer {name}; ask ApiVersions for what it offers")
        # Clients ask for versions in the newest version they know, before they can know ours.
        if api_version not in api.server_versions and api.key is not ApiKey.API_VERSIONS:
            return UnsupportedOperation(
                f"this server offers versions {api.server_versions} of {api.key.name}, not {api_version}"
            )
        return api


def _too_long(key: ApiKey, size: int, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"a {key.name} request of {size} bytes is longer than the limit of {limit} bytes "
        "(netty.server.max-request-size for requests with records, server.request.max-control-size for others): ask "
        "for less at a time",
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
    )
