"""Splits as bytes, in Java Paimon's serialization.

    split     = magic:i64 version:i32=9 snapshot:i64 row(partition) bucket:i32 path:utf total-buckets?
                0:i32 0:u8 files deletion-files is-streaming:u8 raw-convertible:u8
    files     = count:i32 (length:i32 BinaryRow)*       each a row of the fields that a manifest has for a data file
    row       = length:i32 fields:i32 BinaryRow
    x?        = 0:u8 | 1:u8 x

All numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from forebay.base.errors import CorruptData, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField, TypeRoot
from forebay.paimon.format.binary_row import RowLayout, row_layout, with_arity, without_arity
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.manifest_codec import Arities, data_file_record, parse_data_file
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.split import DataSplit, DeletionFile

SPLIT_VERSION = 9

_SPLIT_MAGIC = -2394839472490812314
_UNKNOWN_CARDINALITY = -1


def _layout(**fields: DataType) -> RowLayout:
    return row_layout(DataField(i, name, t) for i, (name, t) in enumerate(fields.items()))


_STATS = DataType(
    TypeRoot.ROW,
    fields=(
        RowField("_MIN_VALUES", types.bytes_()),
        RowField("_MAX_VALUES", types.bytes_()),
        RowField("_NULL_COUNTS", types.array(types.bigint())),
    ),
)
_FILE = _layout(
    _FILE_NAME=types.string(),
    _FILE_SIZE=types.bigint(),
    _ROW_COUNT=types.bigint(),
    _MIN_KEY=types.bytes_(),
    _MAX_KEY=types.bytes_(),
    _KEY_STATS=_STATS,
    _VALUE_STATS=_STATS,
    _MIN_SEQUENCE_NUMBER=types.bigint(),
    _MAX_SEQUENCE_NUMBER=types.bigint(),
    _SCHEMA_ID=types.bigint(),
    _LEVEL=types.int_(),
    _EXTRA_FILES=types.array(types.string()),
    _CREATION_TIME=types.timestamp(3),
    _DELETE_ROW_COUNT=types.bigint(),
    _EMBEDDED_FILE_INDEX=types.bytes_(),
    _FILE_SOURCE=types.tinyint(),
    _VALUE_STATS_COLS=types.array(types.string()),
    _EXTERNAL_PATH=types.string(),
    _FIRST_ROW_ID=types.bigint(),
    _WRITE_COLS=types.array(types.string()),
    _WRITE_COLS_SEQUENCES=types.array(types.bigint()),
)


class DataSplitCodec:
    """Serializes splits of one table, given the arities of its partitions and keys. Stateless."""

    def __init__(self, partition_arity: int, key_arity: int) -> None:
        self._partition_arity = partition_arity
        self._arities = Arities(partition_arity, key_arity)

    def encode(self, split: DataSplit, bucket_path: str) -> bytes:
        """The bytes of `split`, whose files are in the directory `bucket_path`.

        Raises `UnsupportedOperation` for a split with before files, which the format does not support.
        """
        if split.before_files:
            raise UnsupportedOperation("a split with before files has no such form; pickle it")
        out = bytearray(struct.pack(">qiq", _SPLIT_MAGIC, SPLIT_VERSION, split.snapshot_id))
        out += self._partition(split.partition) + struct.pack(">i", split.bucket) + _utf(bucket_path)
        out += struct.pack(">?i", True, split.total_buckets)
        out += struct.pack(">iB", 0, 0)
        out += self._files(split.files)
        out += _deletion_files(split.deletion_files)
        out += struct.pack(">??", split.is_streaming, split.raw_convertible)
        return bytes(out)

    def decode(self, data: bytes) -> tuple[DataSplit, str]:
        """The split in `data`, and its bucket's directory. Raises `CorruptData`."""
        read = _DataSplitReader(data)
        magic, version = read.number(">q"), read.number(">i")
        if magic != _SPLIT_MAGIC or version != SPLIT_VERSION:
            raise CorruptData(f"this is not a split of version {SPLIT_VERSION} (magic {magic}, version {version})")
        snapshot_id, partition, bucket = read.number(">q"), read.partition(), read.number(">i")
        path = read.utf()
        total_buckets = read.number(">i") if read.number(">?") else -1
        if read.number(">i") or read.number(">?"):
            raise CorruptData("a split with before files cannot be read")
        files = read.files()
        deletions = tuple(_deletion_file(read) for _ in range(read.number(">i"))) if read.number(">?") else None
        is_streaming, raw_convertible = read.number(">?"), read.number(">?")
        read.finish()
        split = DataSplit(
            snapshot_id,
            partition,
            bucket,
            total_buckets,
            files,
            bool(raw_convertible),
            bool(is_streaming),
            deletion_files=deletions,
        )
        return split, path

    def _partition(self, partition: bytes) -> bytes:
        row = with_arity(partition, self._partition_arity)
        return struct.pack(">i", len(row)) + row

    def _files(self, files: Sequence[DataFileMeta]) -> bytes:
        out = bytearray(struct.pack(">i", len(files)))
        for file in files:
            record = data_file_record(file, self._arities)
            row = _FILE.encode_one([record[name] for name in _FILE.names])
            out += struct.pack(">i", len(row)) + row
        return bytes(out)


def _utf(text: str) -> bytes:
    """Java's modified UTF-8, for text without NUL and characters beyond 16 bits, which paths do not have."""
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded


def _deletion_files(files: Sequence[DeletionFile | None] | None) -> bytes:
    if files is None:
        return b"\0"
    out = bytearray(struct.pack(">?i", True, len(files)))
    for f in files:
        if f is None:
            out += b"\0"
        else:
            cardinality = _UNKNOWN_CARDINALITY if f.cardinality is None else f.cardinality
            out += b"\1" + _utf(f.path) + struct.pack(">qqq", f.offset, f.length, cardinality)
    return bytes(out)


def _deletion_file(read: _DataSplitReader) -> DeletionFile | None:
    if not read.number(">?"):
        return None
    path, offset, length, cardinality = read.utf(), read.number(">q"), read.number(">q"), read.number(">q")
    return DeletionFile(path, offset, length, None if cardinality == _UNKNOWN_CARDINALITY else cardinality)


class _DataSplitReader:
    """Reads values sequentially from bytes; raises `CorruptData` at a premature end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise CorruptData(f"{size} bytes expected at {self._at} of {len(self._data)}")
        chunk = self._data[self._at : end]
        self._at = end
        return chunk

    def partition(self) -> bytes:
        return without_arity(self.take(self.number(">i")))

    def utf(self) -> str:
        try:
            return self.take(self.number(">H")).decode()
        except UnicodeDecodeError as e:
            raise CorruptData(f"a path is not UTF-8: {e}") from e

    def files(self) -> tuple[DataFileMeta, ...]:
        count = self.number(">i")
        if count < 0:
            raise CorruptData(f"a list of {count} rows")
        rows = (_FILE.decode(self.take(self.number(">i"))) for _ in range(count))
        try:
            return tuple(parse_data_file(dict(zip(_FILE.names, row, strict=True))) for row in rows)
        except (TypeError, ValueError, IndexError) as e:
            raise CorruptData(f"a row is malformed: {type(e).__name__} {e}") from e

    def finish(self) -> None:
        if self._at != len(self._data):
            raise CorruptData(f"{len(self._data) - self._at} bytes are left over")
