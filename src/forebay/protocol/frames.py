"""Frames: how requests and answers follow one another on a byte stream. See docs/format/frame.md.

Nouns: a *frame* is a 4-byte length and that many bytes; its *header* says what the frame is (8 bytes in requests, 5 in
answers); the rest is the *body*, one protobuf message.

The rule: bytes go in, whole frames come out, whatever the cuts between reads; nothing here reads a socket. A peer can
break the rules in only two ways that matter here, a length that cannot be and a length above the limit, and both end
the connection, because nobody knows where the next frame would begin.

Flow: a transport asks for room with `get_buffer`, fills it and says how much with `buffer_updated` (that is
asyncio.BufferedProtocol; a blocking client does the same around `socket.recv_into`), or hands in bytes with
`receive_data`. Frames of up to `SMALL_FRAME_BYTES_MAX` are cut out of one shared buffer, many per read. The body of a
larger frame gets a buffer of its own, into which the socket then writes directly. That buffer grows with the data that
has really come, so a peer that announces 100 MB and sends ten bytes costs one step, not 100 MB.

Prior art: h11 (`receive_data`, `next_event`), Netty's LengthFieldBasedFrameDecoder in Fluss's server (the limit).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from forebay.base.checks import check
from forebay.base.errors import CorruptData, ErrorCode, InternalError
from forebay.protocol.messages import Buffer

LENGTH_BYTES = 4
REQUEST_HEADER_BYTES = 8
RESPONSE_HEADER_BYTES = 5

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""The longest frame that is accepted, without its length field (Fluss: netty.server.max-request-size)."""

SHARED_BUFFER_BYTES = 64 * 1024
SMALL_FRAME_BYTES_MAX = 32 * 1024
"""Frames up to this size are copied out of the shared buffer; half of it, so that one always fits behind another."""

BODY_STEP_BYTES = 1024 * 1024
"""The first size of a large body's own buffer; from there it doubles."""

_REQUEST = struct.Struct(">ihhi")
_RESPONSE = struct.Struct(">ibi")
_LENGTH = struct.Struct(">i")


class FrameType(IntEnum):
    """The first byte of an answer's header."""

    SUCCESS = 0
    ERROR = 1
    SERVER_FAILURE = 2


class Frame(NamedTuple):
    """A whole frame without its length field: the first bytes apart, for they tell what the body is."""

    header: bytes
    body: bytes | bytearray


class FrameDecoder:
    """Cuts a byte stream into frames.

    `header_bytes` of each frame come apart from its body; a frame shorter than that has an empty body. A frame shorter
    than `frame_bytes_min` or longer than `frame_bytes_max` breaks the rules: `error` is set, and all further bytes
    are dropped; frames that were whole before stay available.
    """

    def __init__(self, header_bytes: int, frame_bytes_min: int, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._header_bytes = header_bytes
        self._frame_bytes_min = frame_bytes_min
        self._frame_bytes_max = frame_bytes_max
        self._frames: deque[Frame] = deque()
        self._shared = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self._start = self._end = 0
        self._large_header = b""
        self._large = bytearray()
        self._large_received = self._large_total = 0
        self.error: CorruptData | None = None

    @property
    def has_partial_frame(self) -> bool:
        """Whether the stream stands in the middle of a frame."""
        return self._start != self._end or self._large_total > 0

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Room for the next bytes of the stream, never empty. Fill it from its start, then call `buffer_updated`.

        The room is valid until that call. `size_hint` is ignored; it is there because asyncio passes one.
        """
        if self._large_total:
            if self._large_received == len(self._large):
                self._grow()
            return memoryview(self._large)[self._large_received :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start > len(self._shared) - SMALL_FRAME_BYTES_MAX - LENGTH_BYTES:
            pending = self._end - self._start
            self._shared[:pending] = bytes(self._shared[self._start : self._end])
            self._start, self._end = 0, pending
        return self._shared[self._end :]

    def buffer_updated(self, received: int) -> None:
        """Take note that the first `received` bytes of the room have been filled."""
        if self.error is not None:
            self._start = self._end = 0
            return
        if self._large_total:
            self._large_received += received
            check(self._large_received <= len(self._large), "more bytes received than there was room for")
            if self._large_received == self._large_total:
                self._frames.append(Frame(self._large_header, self._large))
                self._forget_large()
            return
        self._end += received
        check(self._end <= len(self._shared), "more bytes received than there was room for")
        self._cut_shared()

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that somebody else has read already."""
        view = memoryview(data)
        while len(view):
            with self.get_buffer() as room:
                taken = min(len(room), len(view))
                room[:taken] = view[:taken]
            self.buffer_updated(taken)
            view = view[taken:]

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more bytes have come."""
        return self._frames.popleft() if self._frames else None

    def _cut_shared(self) -> None:
        shared, start, end, header_bytes = self._shared, self._start, self._end, self._header_bytes
        while end - start >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(shared, start)
            if not self._frame_bytes_min <= length <= self._frame_bytes_max:
                self._start = self._end = 0
                self.error = _wrong_length(length, self._frame_bytes_max)
                return
            body_start = start + LENGTH_BYTES + min(header_bytes, length)
            frame_end = start + LENGTH_BYTES + length
            if frame_end <= end:
                header = bytes(shared[start + LENGTH_BYTES : body_start])
                self._frames.append(Frame(header, bytes(shared[body_start:frame_end])))
                start = frame_end
            elif length <= SMALL_FRAME_BYTES_MAX or body_start > end:
                break
            else:
                self._begin_large(bytes(shared[start + LENGTH_BYTES : body_start]), shared[body_start:end], length)
                start = end
        self._start, self._end = start, end

    def _begin_large(self, header: bytes, received: memoryview, length: int) -> None:
        self._large_header = header
        self._large_total = length - len(header)
        self._large = bytearray(min(self._large_total, BODY_STEP_BYTES))
        self._large[: len(received)] = received
        self._large_received = len(received)

    def _grow(self) -> None:
        size = min(self._large_total, 2 * len(self._large))
        try:
            self._large += bytes(size - len(self._large))
        except BufferError:
            # A transport still holds the room that it had before (asyncio's feeder on Windows does).
            grown = bytearray(size)
            grown[: len(self._large)] = self._large
            self._large = grown

    def _forget_large(self) -> None:
        self._large_header, self._large = b"", bytearray()
        self._large_received = self._large_total = 0


def encode_request(api_key: int, api_version: int, request_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    """The frame of a request, as buffers to be sent one after the other."""
    header = _REQUEST.pack(_frame_length(REQUEST_HEADER_BYTES, body), api_key, api_version, request_id)
    return _with_header(header, body)


def encode_response(frame_type: FrameType, request_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    """The frame of an answer (SUCCESS or ERROR), as buffers to be sent one after the other."""
    check(frame_type is not FrameType.SERVER_FAILURE, "a server failure frame has no request id, and is never sent")
    return _with_header(_RESPONSE.pack(_frame_length(RESPONSE_HEADER_BYTES, body), frame_type, request_id), body)


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


def _wrong_length(length: int, frame_bytes_max: int) -> CorruptData:
    if length > frame_bytes_max:
        text = f"the peer announced a frame of {length} bytes; the limit is {frame_bytes_max} bytes"
        return CorruptData(f"{text}. Send less at once, or raise the limit", ErrorCode.CORRUPT_MESSAGE)
    return CorruptData(
        f"the peer announced a frame of {length} bytes, which cannot be: it does not speak the Fluss protocol",
        ErrorCode.CORRUPT_MESSAGE,
    )
