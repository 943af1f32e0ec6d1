"""Plain batches: what is found to be plain passes every check of the long way, and is stamped as `stamp` does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData
from forebay.codec.arrow.arrow_message import DECODED_BYTES_MAX, message_codec
from forebay.codec.log._plain_batches import PlainBatch, read_plain, stamp_together
from forebay.codec.log.header import iter_headers, seal, stamp, verify_crc
from forebay.codec.log.log_batch import build_arrow_batch, build_empty_batch, validate_arrow_body
from tests.codec.log.log_batch_samples import ROWS, SCHEMA
from tests.codec.log_batch_strategies import batch_of

LAYOUT = message_codec(SCHEMA.columns).layout
BYTES_MAX = 1 << 20


def built(**options: Any) -> bytes:
    return bytes(build_arrow_batch(batch_of(SCHEMA, ROWS), **{"schema_id": 3, **options}))


def of_magic_2(batch: bytes) -> bytes:
    """`batch`, of magic 1, with a leader epoch."""
    longer = bytearray(batch[:21] + b"\xff\xff\xff\xff" + batch[21:])
    longer[8:12] = (len(longer) - 12).to_bytes(4, "little")
    longer[12] = 2
    seal(longer)
    return bytes(longer)


def plain(batch: bytes, bytes_max: int = BYTES_MAX) -> PlainBatch | None:
    (found,) = read_plain([batch], LAYOUT, 3, bytes_max, DECODED_BYTES_MAX)
    return found


BATCHES = [
    built(),
    built(compression="zstd", writer_id=77, batch_sequence=4),
    built(statistics_columns=[0, 1], compression="lz4"),
    of_magic_2(built(statistics_columns=[0], writer_id=1 << 40, batch_sequence=0)),
]


@pytest.mark.parametrize("batch", BATCHES)
def test_what_clients_send_is_plain(batch: bytes) -> None:
    ((_, header),) = iter_headers(batch)
    found = plain(batch)
    assert found is not None
    for name in ("size_bytes", "magic", "last_offset_delta", "writer_id", "batch_sequence", "has_writer_id"):
        assert getattr(found, name) == getattr(header, name)


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        bytes(47),
        BATCHES[0] + BATCHES[1],
        BATCHES[0][:-1],
        bytes(build_empty_batch(schema_id=3, append_only=True)),
        built(schema_id=2),
        built(schema_id=4),
        built(change_types=bytes([1, 1, 1])),
    ],
)
def test_what_is_special_is_not_plain(batch: bytes) -> None:
    assert plain(batch) is None


def test_a_batch_above_the_limit_is_not_plain() -> None:
    assert plain(BATCHES[0], len(BATCHES[0])) is not None
    assert plain(BATCHES[0], len(BATCHES[0]) - 1) is None


@given(st.data())
def test_damaged_batches_are_not_plain_or_pass_the_checks_of_the_long_way(data: st.DataObject) -> None:
    batch = bytearray(data.draw(st.sampled_from(BATCHES)))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        try:
            seal(batch)  # the checksum alone shall not be what refuses it
        except CorruptData:
            return
    if plain(bytes(batch)) is None:
        return
    ((position, header),) = iter_headers(batch)
    verify_crc(batch, position, header)
    assert header.append_only
    assert header.schema_id == 3
    validate_arrow_body(batch, position, header, SCHEMA)


@given(st.lists(st.sampled_from(BATCHES), min_size=1, max_size=5), st.integers(0, 1 << 40), st.integers(-1, 5))
def test_batches_are_stamped_together_as_each_is_alone(batches: list[bytes], base: int, epoch: int) -> None:
    found = read_plain(batches, LAYOUT, 3, BYTES_MAX, DECODED_BYTES_MAX)
    stamped, places, ranges = stamp_together(batches, [each for each in found if each is not None], base, 1234, epoch)
    expected, offset = bytearray(), base
    for batch, place, offsets in zip(batches, places, ranges, strict=True):
        assert place == (offset, len(expected))
        assert offsets == (offset, offset + len(ROWS))
        one = bytearray(batch)
        stamp(one, 0, offset, 1234, epoch)
        expected += one
        offset += len(ROWS)
    assert stamped == bytes(expected)


def test_a_batch_of_another_request_is_refused() -> None:
    with pytest.raises(ValueError, match="another request"):
        stamp_together([BATCHES[0]], [plain(BATCHES[1])], 0, 0, -1)  # type: ignore[list-item]
