"""The batch header: golden bytes of a real client, round trips, and hostile input."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.crc import crc32c
from forebay.codec.log.header import (
    APPEND_ONLY_FLAG,
    CRC_OFFSETS,
    HEADER_SIZES,
    SCHEMA_ID_OFFSETS,
    LogBatchHeader,
    iter_headers,
    pack_header,
    parse_header,
    seal,
    stamp,
    verify_crc,
)
from tests.log.log_batches import make_batch

# What pyfluss 1.0.0 sent for the rows (1, "a"), (2, null). 624 bytes in all.
PYFLUSS_HEADER = bytes.fromhex(
    "0000000000000000 64020000 00 0000000000000000 7390d96f 0100 01 01000000 4d00000000000000 00000000 02000000"
)

magics = st.sampled_from([0, 1, 2])


def test_the_header_that_pyfluss_sends_is_read_field_by_field() -> None:
    header = parse_header(PYFLUSS_HEADER, available=624)
    assert header == LogBatchHeader(
        base_offset=0,
        length=612,
        magic=0,
        commit_timestamp_ms=0,
        leader_epoch=-1,
        crc=0x6FD99073,
        schema_id=1,
        attributes=APPEND_ONLY_FLAG,
        last_offset_delta=1,
        writer_id=77,
        batch_sequence=0,
        record_count=2,
        statistics_length=0,
    )
    assert header.size_bytes == 624
    assert (header.last_offset, header.next_offset) == (1, 2)
    assert (header.statistics_start, header.body_start) == (48, 48)
    assert header.append_only
    assert header.has_writer_id
    assert pack_header(header) == PYFLUSS_HEADER


def test_the_fields_lie_where_the_format_says() -> None:
    assert HEADER_SIZES == (48, 52, 56)
    fields = dict(zip(LogBatchHeader._fields, range(1, 14), strict=True))
    for magic, epoch_size in ((0, 0), (1, 0), (2, 4)):
        data = pack_header(LogBatchHeader(**{**fields, "magic": magic}))
        assert struct.unpack_from("<qiBq", data) == (1, 2, magic, 4)
        if epoch_size:
            assert struct.unpack_from("<i", data, 21) == (5,)
        assert CRC_OFFSETS[magic] == 21 + epoch_size
        assert SCHEMA_ID_OFFSETS[magic] == 25 + epoch_size
        assert struct.unpack_from("<IhBiqii", data, CRC_OFFSETS[magic]) == (6, 7, 8, 9, 10, 11, 12)
        assert magic == 0 or struct.unpack_from("<i", data, len(data) - 4) == (13,)


@given(magics, st.integers(0, 1000), st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 2**63 - 1))
def test_a_sealed_batch_is_read_back_and_has_its_checksum(
    magic: int, records: int, body: bytes, statistics: bytes, writer_id: int
) -> None:
    if magic == 0:
        statistics = b""
    batch = make_batch(records, body, magic=magic, writer_id=writer_id, sequence=5, statistics=statistics)
    header = parse_header(batch)
    verify_crc(batch, 0, header)
    assert pack_header(header) == batch[: HEADER_SIZES[magic]]
    assert batch[header.statistics_start : header.body_start] == statistics
    assert batch[header.body_start : header.size_bytes] == body
    assert header.next_offset == header.base_offset + max(records, 1)


@given(magics, st.integers(0, 2**62), st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_stamping_sets_what_the_server_decides_and_keeps_the_checksum(
    magic: int, offset: int, timestamp: int, epoch: int
) -> None:
    batch = make_batch(3, b"body", magic=magic)
    buffer = bytearray(b"..." + batch)
    stamp(buffer, 3, offset, timestamp, epoch)
    header = parse_header(buffer, 3)
    verify_crc(buffer, 3, header)
    assert (header.base_offset, header.commit_timestamp_ms) == (offset, timestamp)
    assert header.leader_epoch == (epoch if magic == 2 else -1)
    assert buffer[3 + CRC_OFFSETS[magic] :] == batch[CRC_OFFSETS[magic] :]


@given(magics, st.data())
def test_any_flipped_bit_behind_the_checksum_is_noticed(magic: int, data: st.DataObject) -> None:
    batch = bytearray(make_batch(2, b"some body", magic=magic))
    position = data.draw(st.integers(CRC_OFFSETS[magic], len(batch) - 1))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptData) as caught:
        verify_crc(batch, 0, parse_header(batch))
    assert caught.value.code == ErrorCode.CORRUPT_RECORD_EXCEPTION


def field(name: str, value: int, magic: int = 0) -> bytes:
    """A batch of 2 records, 60 bytes of body and one field set to `value`."""
    batch = make_batch(2, b"x" * 60, magic=magic)
    return pack_header(parse_header(batch)._replace(**{name: value})) + batch[HEADER_SIZES[magic] :]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (b"", "only 0 bytes"),
        (make_batch()[:12], "only 12 bytes"),
        (make_batch()[:47], "only 47 bytes"),
        (make_batch(magic=2)[:55], "only 55 bytes"),
        (bytes(100), "a batch of 12 bytes"),
        (make_batch()[:12] + b"\x03" + make_batch()[13:], "unknown magic 3"),
        (make_batch()[:12] + b"\xff" + make_batch()[13:], "unknown magic 255"),
        (field("length", -1), "a batch of 11 bytes"),
        (field("length", -(2**31)), "fewer than its header"),
        (field("length", 35), "a batch of 47 bytes"),
        (field("length", 97), "where only 108 remain"),
        (field("length", 2**31 - 1), "where only 108 remain"),
        (field("record_count", -1), "-1 records"),
        (field("record_count", 0), "0 records with a last offset delta of 1"),
        (field("record_count", 3), "3 records with a last offset delta of 1"),
        (field("last_offset_delta", -1), "delta of -1"),
        (field("last_offset_delta", 5), "2 records with a last offset delta of 5"),
        (field("statistics_length", -1, 1), "-1 bytes of statistics"),
        (field("statistics_length", 61, 1), "61 bytes of statistics"),
        (field("writer_id", -2), "writer id -2"),
        (field("batch_sequence", -2), "batch sequence -2"),
    ],
)
def test_impossible_headers_are_refused_by_name(batch: bytes, words: str) -> None:
    with pytest.raises(CorruptData, match=words) as caught:
        parse_header(batch)
    assert caught.value.code == ErrorCode.CORRUPT_RECORD_EXCEPTION


@given(st.binary(max_size=200), st.integers(-5, 210))
def test_random_bytes_give_a_header_or_corrupt_data_and_nothing_else(data: bytes, position: int) -> None:
    try:
        header = parse_header(data, position)
        assert position + header.size_bytes <= len(data)
        verify_crc(data, position, header)
    except CorruptData:
        pass


def test_an_empty_batch_takes_one_offset() -> None:
    header = parse_header(make_batch(0, base_offset=7))
    assert (header.record_count, header.last_offset_delta, header.next_offset) == (0, 0, 8)


@given(st.lists(st.tuples(magics, st.integers(0, 5), st.binary(max_size=20)), max_size=8), st.integers(0, 10))
def test_batches_in_a_row_are_found_one_by_one(batches: list[tuple[int, int, bytes]], lead: int) -> None:
    parts = [make_batch(records, body, magic=magic) for magic, records, body in batches]
    data = b"?" * lead + b"".join(parts)
    position = lead
    for (found, header), part in zip(iter_headers(data, lead), parts, strict=True):
        assert found == position
        assert data[found : found + header.size_bytes] == part
        position += len(part)


def test_a_truncated_last_batch_is_left_out_only_when_allowed() -> None:
    first, second = make_batch(1, b"a"), make_batch(2, b"bb")
    for cut in range(1, len(second)):
        data = first + second[:cut]
        assert [position for position, _ in iter_headers(data, allow_truncated=True)] == [0]
        with pytest.raises(CorruptData):
            list(iter_headers(data))
    assert len(list(iter_headers(first + second, allow_truncated=True))) == 2


def test_an_impossible_header_is_not_taken_for_a_truncated_one() -> None:
    with pytest.raises(CorruptData):
        list(iter_headers(make_batch() + bytes(60), allow_truncated=True))


def test_only_the_known_versions_are_written() -> None:
    with pytest.raises(InvalidRequest, match="magic 3"):
        pack_header(parse_header(make_batch())._replace(magic=3))


def test_sealing_returns_what_it_writes() -> None:
    batch = bytearray(make_batch(2, b"body"))
    batch[-1] ^= 0xFF
    assert seal(batch) == parse_header(batch).crc
    verify_crc(batch, 0, parse_header(batch))


def test_the_checksum_is_castagnoli_over_any_buffer_and_any_part() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA
    for size in (0, 1, 31, 4096, 32_767, 32_768, 100_000):
        data = bytes(range(256)) * (size // 256 + 1)
        for buffer in (data, bytearray(data), memoryview(data), memoryview(bytearray(data))):
            assert crc32c(buffer, 3, 3 + size) == crc32c(data[3 : 3 + size])
