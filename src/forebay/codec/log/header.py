"""The header of a log record batch, in the three versions ("magic") that Fluss defines.

Nouns: a *batch* is the unit of the log, one checksummed append; its *header* has a fixed size per magic;
*statistics* (magic 1 and 2, optional) follow the header and the *body* (records) follows those. All integers are
little-endian.

    magic 0: base offset 8, length 4, magic 1, commit timestamp 8,                 CRC 4, schema id 2, ...
    magic 2: base offset 8, length 4, magic 1, commit timestamp 8, leader epoch 4, CRC 4, schema id 2, ...
    then all: attributes 1, last offset delta 4, writer id 8, batch sequence 4, record count 4
    magic 1 and 2: statistics length 4

Rules: `length` counts the bytes after itself. The CRC-32C covers schema id to the end of the batch, so that the
server may set base offset, commit timestamp and leader epoch (`stamp`) without recomputing it. A batch of n > 0
records has last offset delta n - 1; an empty batch has delta 0 and still takes one offset, because a changelog
without changes must remember its writer's sequence. Everything here treats its input as hostile: it raises
`CorruptData` and reads nothing outside the buffer.

Format: Apache Fluss 1.x, itself a descendant of the Kafka record batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.crc import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC_V0 = 0
MAGIC_V1 = 1
"""V0 plus statistics."""
MAGIC_V2 = 2
"""V1 plus the leader epoch."""

NO_WRITER_ID = -1
NO_BATCH_SEQUENCE = -1
NO_LEADER_EPOCH = -1
BATCH_SEQUENCE_MAX = 2**31 - 1
"""The sequence after which a writer begins again at 0."""

BASE_OFFSET_OFFSET = 0
LENGTH_OFFSET = 8
MAGIC_OFFSET = 12
COMMIT_TIMESTAMP_OFFSET = 13
LEADER_EPOCH_OFFSET = 21
"""Magic 2 only; earlier versions have the CRC here."""

LENGTH_OVERHEAD = 12
"""Bytes up to and with the length field: a batch is `length` plus this long."""
MAGIC_END = MAGIC_OFFSET + 1

APPEND_ONLY_FLAG = 0x01
"""Attribute bit: every record is an append, and an Arrow body has no change-type vector."""

_STRUCTS = (struct.Struct("<qiBqIhBiqii"), struct.Struct("<qiBqIhBiqiii"), struct.Struct("<qiBqiIhBiqiii"))
HEADER_SIZES = tuple(layout.size for layout in _STRUCTS)
"""Bytes of the fixed header, by magic, without statistics: 48, 52, 56."""
HEADER_SIZE_MIN = min(HEADER_SIZES)
HEADER_SIZE_MAX = max(HEADER_SIZES)
CRC_OFFSETS = (21, 21, 25)
SCHEMA_ID_OFFSETS = (25, 25, 29)
"""Where the checksummed part begins, by magic."""

_WRITER_AFTER_SCHEMA_ID = 7
"""Where writer id and sequence are, counted from the schema id."""

_UNPACK = tuple(layout.unpack_from for layout in _STRUCTS)
_PACK_CRC = struct.Struct("<I").pack_into
_PACK_INT64 = struct.Struct("<q").pack_into
_PACK_INT32 = struct.Struct("<i").pack_into


class LogBatchHeader(NamedTuple):
    """The fields of a batch header, in the order of magic 2.

    `leader_epoch` is -1 before magic 2 and `statistics_length` 0 before magic 1. Positions (`statistics_start`,
    `body_start`) count from the beginning of the batch.
    """

    base_offset: int
    length: int
    magic: int
    commit_timestamp_ms: int
    leader_epoch: int
    crc: int
    schema_id: int
    attributes: int
    last_offset_delta: int
    writer_id: int
    batch_sequence: int
    record_count: int
    statistics_length: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def append_only(self) -> bool:
        """Whether every record is an append (+A)."""
        return self.attributes & APPEND_ONLY_FLAG != 0

    @property
    def has_writer_id(self) -> bool:
        """Whether the writer is idempotent, so that sequence rules apply."""
        return self.writer_id != NO_WRITER_ID

    @property
    def statistics_start(self) -> int:
        """The position of the statistics in the batch."""
        return HEADER_SIZES[self.magic]

    @property
    def body_start(self) -> int:
        """The position of the records in the batch."""
        return HEADER_SIZES[self.magic] + self.statistics_length


def parse_header(buffer: Buffer, position: int = 0, available: int | None = None) -> LogBatchHeader:
    """The header of the batch that begins at `position` of `buffer`.

    `available` says how many bytes the batch may take (None: all that `buffer` holds from `position` on). It may be
    larger than the buffer, when only the head of a batch was read. Raises `CorruptData` for a batch that does not fit
    into `available`, and for values that no correct writer can have made. Does not check the CRC: see `verify_crc`.
    """
    view = memoryview(buffer)
    remaining_bytes = view.nbytes - position
    if available is None:
        available = remaining_bytes
    if position < 0 or remaining_bytes < MAGIC_END:
        raise _corrupt(
            position, f"only {max(remaining_bytes, 0)} bytes, fewer than the {MAGIC_END} up to the magic byte"
        )
    magic = view[position + MAGIC_OFFSET]
    if magic > MAGIC_V2:
        raise _corrupt(position, f"unknown magic {magic} (0, 1 and 2 exist)")
    header_size = HEADER_SIZES[magic]
    if remaining_bytes < header_size:
        raise _corrupt(position, f"only {remaining_bytes} bytes, fewer than the header of {header_size}")
    fields = _UNPACK[magic](view, position)
    if magic == MAGIC_V2:
        header = LogBatchHeader._make(fields)
    elif magic == MAGIC_V1:
        header = LogBatchHeader._make((*fields[:4], NO_LEADER_EPOCH, *fields[4:]))
    else:
        header = LogBatchHeader._make((*fields[:4], NO_LEADER_EPOCH, *fields[4:], 0))
    _check_values(header, header_size, position, available)
    return header


def iter_headers(
    buffer: Buffer, position: int = 0, *, allow_truncated: bool = False
) -> Iterator[tuple[int, LogBatchHeader]]:
    """Yield (position, header) of each of the batches that lie one after the other from `position` to the end.

    With `allow_truncated` a last batch that the end of the buffer cuts off is left out, as in an answer to a fetch;
    otherwise it raises `CorruptData`, as any impossible header does.
    """
    view = memoryview(buffer)
    end = view.nbytes
    while position < end:
        if allow_truncated and _is_truncated(view, position, end):
            return
        header = parse_header(view, position)
        yield position, header
        position += header.length + LENGTH_OVERHEAD


def stamp(
    buffer: bytearray | memoryview,
    position: int,
    base_offset: int,
    commit_timestamp_ms: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> None:
    """Set, in place, what the server decides about the batch at `position`. The CRC stays right.

    `leader_epoch` is written for magic 2 only; earlier versions have no room for it.
    """
    _PACK_INT64(buffer, position, base_offset)
    _PACK_INT64(buffer, position + COMMIT_TIMESTAMP_OFFSET, commit_timestamp_ms)
    if buffer[position + MAGIC_OFFSET] == MAGIC_V2:
        _PACK_INT32(buffer, position + LEADER_EPOCH_OFFSET, leader_epoch)


def compute_crc(buffer: Buffer, position: int, header: LogBatchHeader) -> int:
    """The CRC-32C of the batch at `position`, computed from its bytes."""
    return crc32c(buffer, position + SCHEMA_ID_OFFSETS[header.magic], position + header.length + LENGTH_OVERHEAD)


def verify_crc(buffer: Buffer, position: int, header: LogBatchHeader) -> None:
    """Raise `CorruptData` unless the batch at `position` has the checksum that its header says.

    The whole batch must lie in `buffer`.
    """
    computed = compute_crc(buffer, position, header)
    if computed != header.crc:
        raise _corrupt(position, f"stored CRC {header.crc:#010x}, computed {computed:#010x}")


def pack_header(header: LogBatchHeader) -> bytes:
    """The bytes of `header`: what `parse_header` reads back. The CRC is the header's own: see `seal`."""
    if not 0 <= header.magic <= MAGIC_V2:
        raise InvalidRequest(f"log batches of magic {header.magic} do not exist (0, 1 and 2 do)")
    fields = tuple(header)
    if header.magic == MAGIC_V1:
        fields = fields[:4] + fields[5:]
    elif header.magic == MAGIC_V0:
        fields = fields[:4] + fields[5:12]
    return _STRUCTS[header.magic].pack(*fields)


_RECORD_COUNT = LogBatchHeader._fields.index("record_count")


def record_count_of_log(first: bytes) -> int:
    """The number of records of a checked batch, of which `first` are the first bytes."""
    magic = first[MAGIC_OFFSET]
    fields = _STRUCTS[magic].unpack_from(first)
    return int(fields[_RECORD_COUNT if magic == MAGIC_V2 else _RECORD_COUNT - 1])  # older ones have no leader epoch


def seal(buffer: bytearray | memoryview, position: int = 0) -> int:
    """Compute the CRC of the complete batch at `position`, write it into its header, and return it."""
    header = parse_header(buffer, position)
    crc = compute_crc(buffer, position, header)
    _PACK_CRC(buffer, position + CRC_OFFSETS[header.magic], crc)
    return crc


def seal_as(batch: bytearray, writer_id: int, sequence: int) -> None:
    """Set writer id and sequence of a single batch, and compute its checksum."""
    struct.pack_into(
        "<qi", batch, SCHEMA_ID_OFFSETS[batch[MAGIC_OFFSET]] + _WRITER_AFTER_SCHEMA_ID, writer_id, sequence
    )
    seal(batch)


def _is_truncated(view: memoryview, position: int, end: int) -> bool:
    """Whether the end of the buffer cuts off the batch at `position`, as far as its length field can tell."""
    if end - position < LENGTH_OVERHEAD:
        return True
    length = int.from_bytes(view[position + LENGTH_OFFSET : position + LENGTH_OVERHEAD], "little", signed=True)
    return length > end - position - LENGTH_OVERHEAD


def _check_values(header: LogBatchHeader, header_size: int, position: int, available: int) -> None:
    """Raise `CorruptData` for values that contradict each other or the room that the batch has."""
    (_, length, _, _, _, _, _, _, last_offset_delta, writer_id, batch_sequence, record_count, statistics_length) = (
        header
    )
    size_bytes = length + LENGTH_OVERHEAD
    if size_bytes < header_size:
        raise _corrupt(position, f"a batch of {size_bytes} bytes, fewer than its header of {header_size}")
    if size_bytes > available:
        raise _corrupt(position, f"a batch of {size_bytes} bytes where only {available} remain")
    if last_offset_delta != (record_count - 1 if record_count else 0) or record_count < 0:
        raise _corrupt(position, f"{record_count} records with a last offset delta of {last_offset_delta}")
    if statistics_length and not 0 < statistics_length <= size_bytes - header_size:
        raise _corrupt(position, f"{statistics_length} bytes of statistics in a batch of {size_bytes} bytes")
    if writer_id < NO_WRITER_ID or batch_sequence < NO_BATCH_SEQUENCE:
        raise _corrupt(position, f"writer id {writer_id} with batch sequence {batch_sequence}")


def _corrupt(position: int, what: str) -> CorruptData:
    return CorruptData(f"log batch at byte {position}: {what}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
