"""Framing: the same frames come out however the bytes are cut, and wrong lengths end the stream."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import ErrorCode, InternalError
from forebay.protocol import frames
from forebay.protocol.frames import (
    BODY_STEP_BYTES,
    FIRST_BUFFER_BYTES,
    SHARED_BUFFER_BYTES,
    SMALL_FRAME_BYTES_MAX,
    FrameDecoder,
    FrameType,
    encode_request,
    encode_response,
)

HEADER_BYTES = 8


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Buffers so small that frames of a few dozen bytes take every path."""
    monkeypatch.setattr(frames, "SHARED_BUFFER_BYTES", 64)
    monkeypatch.setattr(frames, "SMALL_FRAME_BYTES_MAX", 24)
    monkeypatch.setattr(frames, "BODY_STEP_BYTES", 16)
    return


def drain(decoder: FrameDecoder) -> list[tuple[bytes, bytes]]:
    found = []
    while (frame := decoder.next_frame()) is not None:
        found.append((frame.header, bytes(frame.body)))
    return found


def feed(decoder: FrameDecoder, data: bytes, cuts: list[int]) -> list[tuple[bytes, bytes]]:
    """Feed `data` in pieces of the sizes `cuts` (repeated), by receive_data and by get_buffer in turn."""
    found, at, turn = [], 0, 0
    while at < len(data):
        piece = data[at : at + cuts[turn % len(cuts)]]
        if turn % 2:
            decoder.receive_data(piece)
        else:
            room = decoder.get_buffer(1)
            piece = piece[: len(room)]
            room[: len(piece)] = piece
            decoder.buffer_updated(len(piece))
        at += len(piece)
        turn += 1
        found += drain(decoder)
    return found


BODIES = st.lists(st.binary(max_size=150), max_size=8)
CUTS = st.lists(st.integers(1, 90), min_size=1, max_size=12)


@pytest.mark.usefixtures("small_buffers")
@given(bodies=BODIES, cuts=CUTS, partial=st.binary(max_size=60))
def test_whole_frames_come_out_whatever_the_cuts_between_reads(
    bodies: list[bytes], cuts: list[int], partial: bytes
) -> None:
    stream = b"".join(struct.pack(">i8s", 8 + len(body), b"%08d" % i) + body for i, body in enumerate(bodies))
    trailing = struct.pack(">i", 8 + 2 * len(partial)) + partial if partial else b""
    expected = [(b"%08d" % i, body) for i, body in enumerate(bodies)]
    whole, in_bytes, in_pieces = (FrameDecoder(HEADER_BYTES, HEADER_BYTES, 1000) for _ in range(3))
    whole.receive_data(stream + trailing)
    assert drain(whole) == expected
    assert feed(in_bytes, stream + trailing, [1]) == expected
    assert feed(in_pieces, stream + trailing, cuts) == expected
    for decoder in (whole, in_bytes, in_pieces):
        assert decoder.error is None
        assert decoder.has_partial_frame is bool(partial)


@pytest.mark.usefixtures("small_buffers")
@given(data=st.binary(max_size=400), cuts=CUTS)
def test_random_bytes_give_frames_or_an_error_the_same_for_all_cuts(data: bytes, cuts: list[int]) -> None:
    whole, in_pieces = FrameDecoder(5, 1, 300), FrameDecoder(5, 1, 300)
    whole.receive_data(data)
    assert drain(whole) == feed(in_pieces, data, cuts)
    assert str(whole.error) == str(in_pieces.error)
    assert whole.has_partial_frame is in_pieces.has_partial_frame


@pytest.mark.parametrize("size", [32 * 1024 - 8, 32 * 1024 - 7, 64 * 1024, 1024 * 1024, 3_000_000])
@pytest.mark.parametrize("piece", [10_000, 65_536, 10_000_000])
def test_large_frames_come_out_with_the_real_buffer_sizes(size: int, piece: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    stream = (struct.pack(">i8s", 8 + size, b"header--") + body) * 2
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    assert feed(decoder, stream, [piece]) == [(b"header--", body)] * 2


@pytest.mark.parametrize("length", [0, 7, -1, -(2**31), 1001, 2**31 - 1])
def test_a_length_that_cannot_be_or_is_above_the_limit_ends_the_stream(length: int) -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES, frame_bytes_max=1000)
    good = struct.pack(">i8s", 8, b"12345678")
    decoder.receive_data(good + struct.pack(">i", length) + good)
    assert drain(decoder) == [(b"12345678", b"")]
    assert decoder.error is not None
    assert decoder.error.code == ErrorCode.CORRUPT_MESSAGE
    assert str(length) in str(decoder.error)
    decoder.receive_data(good * 1000)
    assert drain(decoder) == []


def test_a_frame_of_exactly_the_limit_passes() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES, frame_bytes_max=1000)
    decoder.receive_data(struct.pack(">i", 1000) + bytes(1000))
    assert [len(body) for _, body in drain(decoder)] == [992]


def test_a_frame_announced_as_100_mb_costs_no_more_room_than_what_came_and_one_step() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    decoder.receive_data(struct.pack(">i8s", 100 * 1024 * 1024, b"header--") + b"ten bytes.")
    assert decoder.next_frame() is None
    received = 10
    for _ in range(6):
        room = len(decoder.get_buffer())
        assert received + room <= max(BODY_STEP_BYTES, 2 * received)
        decoder.buffer_updated(room)
        received += room
    assert received == 32 * BODY_STEP_BYTES


def test_room_grows_even_while_the_transport_holds_the_room_before() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    body = bytes(range(256)) * (3 * BODY_STEP_BYTES // 256)
    decoder.receive_data(struct.pack(">i8s", 8 + len(body), b"header--"))
    held, at = [], 0
    while at < len(body):
        room = decoder.get_buffer()
        held.append(room)
        taken = min(len(room), len(body) - at)
        room[:taken] = body[at : at + taken]
        decoder.buffer_updated(taken)
        at += taken
    assert drain(decoder) == [(b"header--", body)]


def test_a_large_body_is_written_straight_into_its_own_buffer() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    decoder.receive_data(struct.pack(">i8s", 8 + 200_000, b"header--"))
    assert decoder.next_frame() is None
    room = decoder.get_buffer()
    assert len(room) == 200_000
    room[:] = b"x" * 200_000
    decoder.buffer_updated(200_000)
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.body == b"x" * 200_000
    room[0] = ord("y")
    assert frame.body[0] == ord("y")


def test_encoded_frames_carry_the_length_of_header_and_body() -> None:
    assert encode_request(1000, 1, 7, [b"ab", b"c"]) == [bytes.fromhex("0000000b03e80001000000076162"), b"c"]
    assert encode_response(FrameType.ERROR, 7, [b""]) == [bytes.fromhex("000000050100000007")]
    large = b"x" * 100_000
    assert encode_response(FrameType.SUCCESS, 7, [large])[1] is large


@pytest.mark.parametrize(
    ("sent", "protocol"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", "HTTP"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
    ],
)
def test_a_peer_that_speaks_another_protocol_is_told_by_what_it_sent(sent: bytes, protocol: str) -> None:
    decoder = FrameDecoder(5, 5)
    decoder.receive_data(sent)
    assert decoder.next_frame() is None
    assert decoder.error is not None
    assert f"speaks {protocol}" in decoder.error.message
    assert repr(sent[:4]) in decoder.error.message


# ---- the memory of a large frame, which a server counts -------------------------------------------------------------


def test_a_large_frame_says_when_it_needs_more_room_and_how_much() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES, step_bytes=10_000)
    body = bytes(range(250)) * 200
    assert (decoder.large_bytes, decoder.wanted_bytes, decoder.has_partial_frame) == (0, 0, False)
    decoder.receive_data(struct.pack(">i8s", 8 + len(body), b"header--") + body[:4000])
    assert decoder.next_frame() is None
    told, at = [], 4000
    while at < len(body):
        told.append((decoder.large_bytes, decoder.wanted_bytes))
        assert decoder.has_partial_frame
        if decoder.wanted_bytes:
            decoder.grow()
            continue
        room = decoder.get_buffer()
        room[:] = body[at : at + len(room)]
        at += len(room)
        decoder.buffer_updated(len(room))
    full = [(10_000, 0), (10_000, 10_000), (20_000, 0), (20_000, 20_000), (40_000, 0), (40_000, 10_000), (50_000, 0)]
    assert told == full
    assert (decoder.large_bytes, decoder.wanted_bytes, decoder.has_partial_frame) == (0, 0, False)
    assert drain(decoder) == [(b"header--", body)]


def test_a_large_frame_can_be_given_up_and_the_stream_continues_after_it() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    assert decoder.drop_large() is None
    decoder.receive_data(struct.pack(">i8s", 8 + 100_000, b"header--") + bytes(4000))
    assert decoder.next_frame() is None
    assert decoder.drop_large() == b"header--"
    assert (decoder.large_bytes, decoder.wanted_bytes, decoder.has_partial_frame) == (0, 0, True)
    good = struct.pack(">i8s", 12, b"12345678") + b"next"
    assert feed(decoder, bytes(96_000) + good, [7000]) == [(b"12345678", b"next")]
    assert not decoder.has_partial_frame
    assert decoder.drop_large() is None


@pytest.mark.parametrize(("size", "dropped"), [(50_000, 0), (50_001, 50_001)])
def test_a_body_longer_than_its_kind_allows_is_dropped_as_it_comes(size: int, dropped: int) -> None:
    asked = []

    def limit(header: bytes) -> int:
        asked.append(header)
        return 50_000

    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES, body_bytes_max=limit)
    stream = struct.pack(">i8s", 8 + size, b"header--") + bytes(size) + struct.pack(">i8s", 8, b"12345678")
    found = []
    for at in range(0, len(stream), 9000):
        decoder.receive_data(stream[at : at + 9000])
        while (frame := decoder.next_frame()) is not None:
            found.append((frame.header, len(frame.body), frame.dropped_bytes))
    assert found == [(b"header--", size - dropped, dropped), (b"12345678", 0, 0)]
    assert asked == [b"header--"]


# ---- room for the next bytes ----------------------------------------------------------------------------------------


def put(decoder: FrameDecoder, data: bytes) -> None:
    """Bytes for which there is room at once."""
    room = decoder.get_buffer()
    room[: len(data)] = data
    decoder.buffer_updated(len(data))


def test_what_is_left_of_a_buffer_is_brought_to_its_front_before_a_larger_one_is_made() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    put(decoder, struct.pack(">i8s", 2508, b"header--") + bytes(2500) + struct.pack(">i", 2508))
    assert drain(decoder) == [(b"header--", bytes(2500))]
    assert len(decoder.get_buffer()) == FIRST_BUFFER_BYTES - 4
    put(decoder, b"header--" + bytes(2500))
    assert drain(decoder) == [(b"header--", bytes(2500))]


def test_a_buffer_that_is_more_than_half_full_of_one_frame_grows() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    put(decoder, struct.pack(">i8s", 20_008, b"header--") + bytes(2988))
    assert decoder.next_frame() is None
    assert len(decoder.get_buffer()) == 4 * FIRST_BUFFER_BYTES - 3000


def test_unrequested_frames_leave_half_of_the_largest_buffer_free() -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    frame = struct.pack(">i8s", 1008, b"header--") + bytes(1000)
    stream = frame * 200
    at = 0
    while at < len(stream):
        taken = min(len(decoder.get_buffer()), len(stream) - at)
        put(decoder, stream[at : at + taken])
        at += taken
        if at > SHARED_BUFFER_BYTES:
            assert len(decoder.get_buffer()) >= SHARED_BUFFER_BYTES // 2
    assert drain(decoder) == [(b"header--", bytes(1000))] * 200


# ---- bounds ---------------------------------------------------------------------------------------------------------


def test_a_frame_is_large_from_one_byte_on_above_the_small_ones_and_begins_with_its_whole_header() -> None:
    for length, large_bytes in ((SMALL_FRAME_BYTES_MAX, 0), (SMALL_FRAME_BYTES_MAX + 1, SMALL_FRAME_BYTES_MAX - 7)):
        decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
        decoder.receive_data(struct.pack(">i7s", length, b"header-"))
        assert (decoder.next_frame(), decoder.large_bytes) == (None, 0)
        decoder.receive_data(b"-")
        assert (decoder.next_frame(), decoder.large_bytes) == (None, large_bytes)


@pytest.mark.parametrize("size", [0, 100_000])
def test_nothing_is_received_where_there_is_no_room_for_it(size: int) -> None:
    decoder = FrameDecoder(HEADER_BYTES, HEADER_BYTES)
    if size:
        decoder.receive_data(struct.pack(">i8s", 8 + size, b"header--"))
        assert decoder.next_frame() is None
    with pytest.raises(InternalError, match="more bytes received than there was room for"):
        decoder.buffer_updated(len(decoder.get_buffer()) + 1)


def test_a_failure_of_the_server_is_no_answer() -> None:
    with pytest.raises(InternalError, match="has no request id"):
        encode_response(FrameType.SERVER_FAILURE, 1, [b""])


class Body:
    """So many bytes, which are only counted."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def test_a_frame_is_as_long_as_its_length_field_can_tell() -> None:
    longest: Any = Body((1 << 31) - 9)
    header, body = encode_request(1000, 0, 1, [longest])
    assert (bytes(header[:4]), body) == (b"\x7f\xff\xff\xff", longest)
    with pytest.raises(InternalError, match="a frame of 2147483648 bytes cannot be sent"):
        encode_request(1000, 0, 1, [Body((1 << 31) - 8)])  # type: ignore[list-item]


@pytest.mark.parametrize(("size", "parts"), [(SMALL_FRAME_BYTES_MAX, 1), (SMALL_FRAME_BYTES_MAX + 1, 2)])
def test_a_small_body_is_sent_with_its_header_and_a_large_one_apart(size: int, parts: int) -> None:
    assert len(encode_request(1000, 0, 1, [bytes(size)])) == parts
    numbers = memoryview(bytes(4 * size)).cast("i")  # fewer items than bytes
    header = encode_request(1000, 0, 1, [b"first", numbers])[0]
    assert struct.unpack(">i", header[:4]) == (8 + 5 + 4 * size,)
