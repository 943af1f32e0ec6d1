"""Frames: how requests and responses are delimited on a byte stream. See docs/format/frame.md.

Nouns: a *frame* is a 4-byte length and that many bytes; its *header* says what the frame is (8 bytes in requests, 5 in
answers); the rest is the *body*, one protobuf message.

The rule: bytes go in, whole frames come out, whatever the cuts between reads; nothing here reads a socket. A peer can
break the rules in only two ways that matter here, a length that cannot be and a length above the limit, and both end
the connection, because the start of the next frame is unknown.

Flow: a transport asks for room with `get_buffer`, fills it and says how much with `buffer_updated` (that is
asyncio.BufferedProtocol; a blocking client does the same around `socket.recv_into`), or hands in bytes with
`receive_data`. Frames of up to `SMALL_FRAME_BYTES_MAX` are cut out of one shared buffer, many per read, one for each
call of `next_frame`: what a peer pipelines costs nothing before its turn. The body of a larger frame gets a buffer of
its own, into which the socket then writes directly. Both buffers grow with the data that has really come, so a peer
that announces 100 MB and sends ten bytes costs one step, not 100 MB.

A server that counts memory asks `wanted_bytes` after each read, grants them with `grow`, or gives the frame up with
`drop_large`: then the rest of its bytes are thrown away as they come, and the stream goes on behind them.

Prior art: h11 (`receive_data`, `next_event`), Netty's LengthFieldBasedFrameDecoder in Fluss's server (the limit).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from forebay.base.errors import CorruptData, ErrorCode, InternalError, check
from forebay.protocol import _short
from forebay.protocol._short import ShortRequest
from forebay.protocol.messages import Buffer

# The sizes of a frame's length field, and of the headers behind it (docs/format/frame.md).
LENGTH_BYTES = 4
REQUEST_HEADER_BYTES = 8
RESPONSE_HEADER_BYTES = 5

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""The longest accepted frame, without its length field (Fluss: netty.server.max-request-size)."""

SHARED_BUFFER_BYTES = 64 * 1024
FIRST_BUFFER_BYTES = 4 * 1024
"""The shared buffer's size at first; it grows to `SHARED_BUFFER_BYTES` for a peer that fills it."""

SMALL_FRAME_BYTES_MAX = 32 * 1024
"""Frames up to this size are copied out of the shared buffer; half of it, so that one always fits behind another."""

BODY_STEP_BYTES = 1024 * 1024
"""The first size of a large body's own buffer; from there it doubles."""

UNPROVEN_STEP_BYTES = 16 * 1024
"""The same on a server, for a peer that has not finished a large frame yet."""

_REQUEST = struct.Struct(">ihhi")
_RESPONSE = struct.Struct(">ibi")
_SERVER_FAILURE = struct.Struct(">ib")
_LENGTH = struct.Struct(">i")


class FrameType(IntEnum):
    """The first byte of a response header."""

    SUCCESS = 0
    ERROR = 1
    SERVER_FAILURE = 2


class Frame(NamedTuple):
    """A whole frame without its length field: the first bytes apart, for they tell what the body is."""

    header: bytes
    body: bytes | bytearray
    dropped_bytes: int = 0
    """Bytes of a body that was longer than `body_bytes_max` allows, and is thrown away; `body` is then empty."""


class FrameDecoder:
    """Cuts a byte stream into frames.

    `header_bytes` of each frame come apart from its body; a frame shorter than that has an empty body. A frame shorter
    than `frame_bytes_min` or longer than `frame_bytes_max` breaks the rules: `error` is set, and all further bytes
    are dropped; frames that were whole before stay available.

    `body_bytes_max`, given a frame's header, says how long its body may be; a longer one is dropped as it comes, and
    the frame is reported without it (`Frame.dropped_bytes`). `step_bytes` is the first size of a large body's buffer.
    """

    def __init__(
        self,
        header_bytes: int,
        frame_bytes_min: int,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        *,
        step_bytes: int | None = None,
        body_bytes_max: Callable[[bytes], int] | None = None,
    ) -> None:
        self._header_bytes = header_bytes
        self._frame_bytes_min = frame_bytes_min
        self.frame_bytes_max = frame_bytes_max
        self.frame_bytes_max_reason = ""
        self.step_bytes = BODY_STEP_BYTES if step_bytes is None else step_bytes
        self._body_bytes_max = body_bytes_max
        self._frames: deque[Frame] = deque()
        self._shared = memoryview(bytearray(min(FIRST_BUFFER_BYTES, SHARED_BUFFER_BYTES)))
        self._start = self._end = 0
        self._large_header = b""
        self._large = bytearray()
        self._large_received = self._large_total = 0
        self._to_drop = 0
        self.error: CorruptData | None = None

    @property
    def has_partial_frame(self) -> bool:
        """Whether there are bytes after the frames that `next_frame` has returned."""
        return self._start != self._end or self._large_total > 0 or self._to_drop > 0

    @property
    def has_frames(self) -> bool:
        """Whether anything has arrived that `next_frame` has not returned, whole or in part, or `error` is set."""
        return bool(self._frames) or self.has_partial_frame or self.error is not None

    # ---- memory -----------------------------------------------------------------------------------------------------

    @property
    def large_bytes(self) -> int:
        """The buffer size of the large frame being received; 0 between large frames."""
        return len(self._large)

    @property
    def wanted_bytes(self) -> int:
        """How much the large frame's buffer has to grow before more can be received; 0 while there is room."""
        if not self._large_total or self._large_received < len(self._large):
            return 0
        return self._grown_size() - len(self._large)

    def grow(self) -> None:
        """Allocate the room that `wanted_bytes` reported."""
        grown = self._grown_size()
        try:
            self._large += bytes(grown - len(self._large))
        except BufferError:
            # A transport still holds the room that it had before (asyncio's feeder on Windows does).
            larger = bytearray(grown)
            larger[: len(self._large)] = self._large
            self._large = larger

    def drop_large(self) -> bytes | None:
        """Free the large frame that is under way and return its header; None if there is none.

        The rest of its body is thrown away as it comes, and the stream goes on with the next frame.
        """
        if not self._large_total:
            return None
        header = self._large_header
        self._to_drop = self._large_total - self._large_received
        self._forget_large()
        return header

    # ---- bytes in, frames out ---------------------------------------------------------------------------------------

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Room for the next bytes of the stream, never empty. Fill it from its start, then call `buffer_updated`.

        The room is valid until that call. `size_hint` is ignored; it is there because asyncio passes one.
        """
        if not self._large_total:
            if self._start == self._end:
                self._start = self._end = 0
            if self._end > len(self._shared) // 2:
                self._make_room()
        if self._large_total:
            if self._large_received == len(self._large):
                self.grow()
            return memoryview(self._large)[self._large_received :]
        return self._shared[self._end :]

    def buffer_updated(self, received: int) -> None:
        """Mark the first `received` bytes of the room as filled."""
        if self.error is not None:
            self._start = self._end = 0
            return
        if self._large_total:
            self._large_received += received
            check(self._large_received <= len(self._large), "more bytes received than there was room for")
            if self._large_received == self._large_total:
                self._frames.append(Frame(self._large_header, self._large))
                self.step_bytes = max(self.step_bytes, min(self._large_total, BODY_STEP_BYTES))
                self._forget_large()
            return
        self._end += received
        check(self._end <= len(self._shared), "more bytes received than there was room for")
        if self._end == len(self._shared) < SHARED_BUFFER_BYTES:
            self._move(min(4 * len(self._shared), SHARED_BUFFER_BYTES))

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that the caller has already read."""
        view = memoryview(data)
        while len(view):
            with self.get_buffer() as room:
                count = min(len(room), len(view))
                room[:count] = view[:count]
            self.buffer_updated(count)
            view = view[count:]

    def next_frame(self) -> Frame | None:
        """The next complete frame, or None until more bytes are received."""
        return self._frames.popleft() if self._frames else self._cut()

    def peek_short(self) -> ShortRequest | None:
        """The next frame as a short request, if it is one and is whole; it stays until `pass_short`."""
        if self._frames or self._large_total or self._to_drop or self.error is not None:
            return None
        return _short.decode(self._shared, self._start, self._end)

    def pass_short(self, request: ShortRequest) -> None:
        """Go on behind the request that `peek_short` returned."""
        self._start = request.end

    def _cut(self) -> Frame | None:
        """The frame that begins where the shared buffer stands, if it is whole; the buffer of a large one is begun."""
        if self._large_total or self.error is not None:
            return None
        if self._to_drop:
            dropped = min(self._to_drop, self._end - self._start)
            self._to_drop -= dropped
            self._start += dropped
        start, end = self._start, self._end
        if end - start < LENGTH_BYTES:
            return None
        shared, header_bytes = self._shared, self._header_bytes
        (length,) = _LENGTH.unpack_from(shared, start)
        if not self._frame_bytes_min <= length <= self.frame_bytes_max:
            first_bytes = bytes(shared[start : start + LENGTH_BYTES])
            self.error = _wrong_length(length, self.frame_bytes_max, self.frame_bytes_max_reason, first_bytes)
            self._start = self._end = 0
            return None
        header_start = start + LENGTH_BYTES
        body_start = header_start + min(header_bytes, length)
        frame_end = header_start + length
        if frame_end <= end:
            self._start = frame_end
            return Frame(bytes(shared[header_start:body_start]), bytes(shared[body_start:frame_end]))
        if length <= SMALL_FRAME_BYTES_MAX or body_start > end:
            return None
        header = bytes(shared[header_start:body_start])
        body_bytes = length - len(header)
        if self._body_bytes_max is not None and body_bytes > self._body_bytes_max(header):
            self._to_drop = frame_end - end
            self._start = end
            return Frame(header, b"", body_bytes)
        self._begin_large(header, shared[body_start:end], length)
        self._start = end
        return None

    def _make_room(self) -> None:
        """Room behind what the shared buffer holds: at least half of it, unless a large frame has begun instead."""
        if self._start:
            self._move(len(self._shared))
        if self._end <= len(self._shared) // 2:
            return
        if len(self._shared) < SHARED_BUFFER_BYTES:
            self._move(min(4 * len(self._shared), SHARED_BUFFER_BYTES))
            return
        # More than half: either whole frames that were not asked for yet, or the beginning of a large one.
        while (frame := self._cut()) is not None:
            self._frames.append(frame)
        if self._start == self._end:
            self._start = self._end = 0
        else:
            self._move(len(self._shared))

    def _move(self, size: int) -> None:
        """Bring what the shared buffer holds to its front, in a buffer of `size` bytes."""
        pending = bytes(self._shared[self._start : self._end])
        if size != len(self._shared):
            self._shared = memoryview(bytearray(size))
        self._shared[: len(pending)] = pending
        self._start, self._end = 0, len(pending)

    def _begin_large(self, header: bytes, received: memoryview, length: int) -> None:
        self._large_header = header
        self._large_total = length - len(header)
        self._large = bytearray(min(self._large_total, max(self.step_bytes, len(received))))
        self._large[: len(received)] = received
        self._large_received = len(received)

    def _grown_size(self) -> int:
        return min(self._large_total, max(2 * len(self._large), self.step_bytes))

    def _forget_large(self) -> None:
        self._large_header, self._large = b"", bytearray()
        self._large_received = self._large_total = 0


def encode_request(api_key: int, api_version: int, request_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    """The frame of a request, as buffers to send in order."""
    header = _REQUEST.pack(_frame_length(REQUEST_HEADER_BYTES, body), api_key, api_version, request_id)
    return _with_header(header, body)


def encode_response(frame_type: FrameType, request_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    """The frame of a response (SUCCESS or ERROR), as buffers to send in order."""
    check(frame_type is not FrameType.SERVER_FAILURE, "a server failure frame has no request id")
    return _with_header(_RESPONSE.pack(_frame_length(RESPONSE_HEADER_BYTES, body), frame_type, request_id), body)


def encode_server_failure(body: Buffer) -> bytes:
    """The frame with which a server abandons a connection; `body` is an ErrorResponse."""
    return _SERVER_FAILURE.pack(1 + len(body), FrameType.SERVER_FAILURE) + bytes(body)


def _frame_length(header_bytes: int, body: Sequence[Buffer]) -> int:
    length = header_bytes + sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in body)
    if length >= 1 << 31:
        raise InternalError(f"a frame of {length} bytes cannot be sent: its length field has 31 bits")
    return length


def _with_header(header: bytes, body: Sequence[Buffer]) -> list[Buffer]:
    if len(body) == 1 and len(body[0]) > SMALL_FRAME_BYTES_MAX:
        return [header, body[0]]
    first, *rest = body
    return [header + bytes(first), *rest]


_OTHER_PROTOCOLS = {
    b"HTTP": "HTTP",
    b"GET ": "HTTP",
    b"POST": "HTTP",
    b"PUT ": "HTTP",
    b"HEAD": "HTTP",
    b"PRI ": "HTTP/2",
    b"<": "HTML or XML",
    b"{": "JSON",
    b"SSH-": "SSH",
    b"\x16\x03": "TLS",
    b"\x15\x03": "TLS",
    b"-ERR": "the Redis protocol",
    b"E\x00": "the PostgreSQL protocol",
}
"""What strangers send first. As a frame's length each of these is far above any limit."""


def _wrong_length(length: int, frame_bytes_max: int, reason: str, first_bytes: bytes) -> CorruptData:
    for beginning, protocol in _OTHER_PROTOCOLS.items():
        if first_bytes.startswith(beginning):
            text = f"the peer speaks {protocol}, not the Fluss protocol; its first bytes are {first_bytes!r}"
            return CorruptData(text, ErrorCode.CORRUPT_MESSAGE)
    if length > frame_bytes_max:
        text = f"the peer announced a frame of {length} bytes; the limit is {frame_bytes_max} bytes{reason}"
        return CorruptData(f"{text}. Send less at once, or raise the limit", ErrorCode.CORRUPT_MESSAGE)
    return CorruptData(
        f"the peer announced a frame of {length} bytes, which is impossible: it does not speak the Fluss protocol",
        ErrorCode.CORRUPT_MESSAGE,
    )
