"""Rows and keys <-> Arrow, and the batches in which clients put them.

`RowCodec` joins the kernels to pyarrow, for one list of column types and one row format. Batches given to it must have
the storage schema exactly (codec.casting.cast brings users' data there); batches taken from it have it. Encoded rows
are a `pa.BinaryArray`, one value a row. Docs: docs/format/rows.md. The plain-Python codec in codec.reference is its
oracle.

`KeyEncoder` makes key bytes of key columns: they identify a row in the key-value state, and its bucket is hashed from
them. The encoding of a table was decided when it was created (reference: KeyEncoder in Apache Fluss):

- compacted keys, unless the table records a lake format;
- the lake's own encoding for the bucket key, and for the primary key too while prefix lookups are impossible
  (format version 1, or a bucket key equal to the primary key);
- Hudi hashes are lossy, so Hudi tables keep compacted primary keys;
- formats that other packages add (`is_added_lake_format`) have compacted keys.

Compacted encoding has the prefix property: the bytes of the first key columns are a prefix of the bytes of all. Of
FLOAT and DOUBLE, -0.0 is encoded as 0.0 and every NaN as one: they are one key for SQL and for the lake. Other clients
encode the bits as they are; the server brings their keys to this form (`canonical`).

A KV record batch is what a client sends to put and delete rows (docs/format/kv_batch.md). Header, little-endian: length
i32 (of what follows it), magic i8 = 0, CRC-32C u32 (from the schema id on), schema id i16, attributes i8 = 0, writer id
i64, batch sequence i32, record count i32; then the records: length i32, key length varint, key, row (nothing: delete).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec import reference
from forebay.codec._hash import buckets
from forebay.codec.arrow.arrow_types import storage_schema, time_unit
from forebay.codec.crc import crc32c
from forebay.codec.kv._records import kv_record_sizes, parse_kv_records, write_kv_records
from forebay.codec.reference import RowFormat, fluss_bucket
from forebay.codec.rows._layout import RowLayout
from forebay.codec.rows._row_decode import decode, is_plainly_sound
from forebay.codec.rows._row_encode import encode, encodes_to
from forebay.codec.rows._slices import RowSlices
from forebay.metadata.table import Column, TableDescriptor, is_added_lake_format
from forebay.metadata.types import (
    DECIMAL_COMPACT_PRECISION_MAX,
    TIMESTAMP_COMPACT_PRECISION_MAX,
    DataType,
    TypeRoot,
)

# Data types -> `RowLayout`, the table that drives the row kernels.

LayoutNode = tuple[str, bool, int, int, bool]


_KINDS = {
    TypeRoot.BOOLEAN: "BOOLEAN",
    TypeRoot.TINYINT: "INT8",
    TypeRoot.SMALLINT: "INT16",
    TypeRoot.INT: "INT32",
    TypeRoot.DATE: "INT32",
    TypeRoot.BIGINT: "INT64",
    TypeRoot.FLOAT: "FLOAT",
    TypeRoot.DOUBLE: "DOUBLE",
    TypeRoot.STRING: "STRING",
    TypeRoot.BYTES: "BYTES",
    TypeRoot.TIME: "TIME",
    TypeRoot.CHAR: "CHAR",
    TypeRoot.BINARY: "BINARY",
    TypeRoot.ARRAY: "ARRAY",
    TypeRoot.MAP: "MAP",
    TypeRoot.ROW: "ROW",
}
_TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _kind_and_parameter(t: DataType) -> tuple[str, int]:
    if t.root is TypeRoot.DECIMAL:
        compact = (t.precision or 0) <= DECIMAL_COMPACT_PRECISION_MAX
        return ("DECIMAL_COMPACT" if compact else "DECIMAL"), t.precision or 0
    if t.root in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ):
        compact = (t.precision or 0) <= TIMESTAMP_COMPACT_PRECISION_MAX
        return ("TIMESTAMP_COMPACT" if compact else "TIMESTAMP"), _TICKS_PER_SECOND[time_unit(t.precision)]
    if t.root is TypeRoot.TIME:
        return "TIME", _TICKS_PER_SECOND[time_unit(t.precision)]
    return _KINDS[t.root], t.length or 0


def _flatten(t: DataType, wanted: bool) -> Iterable[LayoutNode]:
    kind, parameter = _kind_and_parameter(t)
    children = t.children()
    yield kind, t.nullable, parameter, len(children), wanted
    for inner in children:
        yield from _flatten(inner, wanted)


@lru_cache(maxsize=1024)
def row_layout(types: tuple[DataType, ...], row_format: RowFormat, wanted: tuple[int, ...] | None = None) -> RowLayout:
    """The layout of rows with fields of `types`.

    `wanted` names the positions that decoding shall produce (ascending); the others are walked over. None means all.
    """
    nodes: list[LayoutNode] = [("ROW", False, 0, len(types), True)]
    for position, t in enumerate(types):
        nodes.extend(_flatten(t, wanted is None or position in wanted))
    return RowLayout(nodes, row_format.value)


class _Exported:
    """An array made by a kernel, for pyarrow to import by the Arrow PyCapsule interface."""

    def __init__(self, schema: pa.Schema | pa.DataType, capsule: Any) -> None:
        self._schema = schema
        self._capsule = capsule

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._schema.__arrow_c_schema__(), self._capsule


class DecodedRows:
    """Decoded rows of all columns, which are no batch of pyarrow yet: that would be a third of a small put."""

    def __init__(self, codec: RowCodec, capsule: Any, count: int) -> None:
        self._codec = codec
        self._capsule = capsule
        self.num_rows = count

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._codec.schema_capsule, self._capsule

    def is_plainly_sound(self, required: tuple[int, ...]) -> bool:
        """Whether the rows are those of a sound batch with values in all `required` columns, without a closer look."""
        return is_plainly_sound(self._codec.layout, self._capsule, required)

    def has_keys(self, encoder: KeyEncoder, keys: RowSlices) -> bool:
        """Whether `keys` are the keys of the rows, as far as keys are encoded like rows; False for others."""
        return encoder.row_layout is not None and encodes_to(
            encoder.row_layout, self._capsule, encoder.positions_in(self._codec), keys
        )

    def to_batch(self) -> pa.RecordBatch:
        """The rows as a batch. They are in that alone from then on."""
        return pa.record_batch(_Exported(self._codec.schema, self._capsule))


class RowCodec:
    """Encodes and decodes rows of the given columns. Stateless and thread-safe; get one from `row_codec`."""

    def __init__(self, columns: tuple[Column, ...], row_format: RowFormat, wanted: tuple[int, ...] | None) -> None:
        types = tuple(column.data_type for column in columns)
        self.columns = columns
        self.row_format = row_format
        self.schema: pa.Schema = storage_schema(columns)
        self.decoded_schema: pa.Schema = (
            self.schema if wanted is None else storage_schema([columns[position] for position in wanted])
        )
        self._layout = row_layout(types, row_format, wanted)

    @property
    def layout(self) -> Any:
        """The compiled layout, for kernels."""
        return self._layout

    @cached_property
    def schema_capsule(self) -> Any:
        """The schema for the Arrow PyCapsule interface, to be read only."""
        return self.schema.__arrow_c_schema__()

    def decode_rows(self, rows: RowSlices) -> DecodedRows:
        """All columns of `rows`, for kernels. Raises `CorruptData` naming the first malformed row."""
        return DecodedRows(self, decode(self._layout, rows), len(rows))

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """Rows of `batch`, one Binary value each.

        Raises `InvalidRequest` when names and types are not those of the storage schema, or a value has no encoding.
        """
        given = batch.schema
        if not (given.equals(self.schema) or (given.names, given.types) == (self.schema.names, self.schema.types)):
            raise InvalidRequest(f"expected a batch of schema {self.schema}, got {given}")
        return pa.array(_Exported(pa.binary(), encode(self._layout, batch.__arrow_c_array__()[1])))

    def decode(self, rows: pa.BinaryArray | RowSlices | Sequence[bytes]) -> pa.RecordBatch:
        """The wanted columns of `rows`. Raises `CorruptData` naming the first malformed row."""
        if isinstance(rows, RowSlices):
            slices = rows
        elif isinstance(rows, pa.Array):
            slices = RowSlices.from_arrow(rows)
        else:
            slices = RowSlices.from_values(list(rows))
        return pa.record_batch(_Exported(self.decoded_schema, decode(self._layout, slices)))


@lru_cache(maxsize=1024)
def row_codec(columns: tuple[Column, ...], row_format: RowFormat, wanted: tuple[int, ...] | None = None) -> RowCodec:
    """The codec for rows of `columns`; `wanted` (ascending positions) restricts what decoding produces."""
    return RowCodec(columns, row_format, wanted)


# Floating-point numbers in keys: -0.0 is 0.0, and there is one NaN.
#
# SQL, Spark and the lake take the two zeros for equal, and all NaNs. Key bytes are compared as bytes, so keys hold one
# pattern for each: 0.0, and the NaN that Java writes (`Double.NaN`).


def canonical_floats(column: pa.Array) -> pa.Array:
    """`column` with 0.0 for -0.0 and one NaN for all, if it holds FLOAT or DOUBLE; else `column`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not pa.types.is_floating(column.type) or column.type.bit_width < 32:
        return column
    values = column.to_numpy(zero_copy_only=False)  # nulls are NaN in it
    plain = np.where(np.isnan(values), values.dtype.type(np.nan), values) + values.dtype.type(0.0)
    return pa.array(plain, mask=None if column.null_count == 0 else column.is_null().to_numpy(zero_copy_only=False))


class KeyEncoder:
    """Encodes the key columns of batches. `columns` are in key order, which need not be the order of the table."""

    def __init__(self, columns: tuple[Column, ...], encoding: str | None) -> None:
        self.names = [column.name for column in columns]
        self._floats = [c.name for c in columns if c.data_type.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE)]
        self.row_layout: RowLayout | None = None
        """The layout of keys that are encoded as rows are."""
        self._positions: tuple[RowCodec | None, tuple[int, ...]] = (None, ())
        self._encode: Callable[[pa.RecordBatch], pa.BinaryArray]
        self._decode: Callable[[Sequence[bytes]], pa.RecordBatch]
        if encoding in (None, "lance", "compacted") or is_added_lake_format(encoding):
            codec = row_codec(columns, RowFormat.KEY)
            self._encode, self._decode = codec.encode, codec.decode
            self.row_layout = codec.layout
        elif encoding == "paimon":
            codec = row_codec(columns, RowFormat.ALIGNED)
            self._encode, self._decode = codec.encode, codec.decode
        elif encoding == "iceberg":
            self._encode, self._decode = _iceberg_encoder(columns), partial(_decode_iceberg_float, columns[0])
        else:
            raise UnsupportedOperation(f"keys of tables with lake format '{encoding}' cannot be encoded yet")

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The key bytes of each row of `batch`, which holds the key columns (storage schema) among others.

        Raises `InvalidRequest` where a key column is null.
        """
        selected = batch if batch.schema.names == self.names else batch.select(self.names)
        self.require_values(selected)
        return self._encode(self.canonical_columns(selected))

    def decode(self, keys: Sequence[bytes]) -> pa.RecordBatch:
        """The key columns of `keys`, which `encode` has made."""
        return self._decode(keys)

    def positions_in(self, codec: RowCodec) -> tuple[int, ...]:
        """Where the key columns are among those of `codec`."""
        known, positions = self._positions
        if known is not codec:
            names = [column.name for column in codec.columns]
            positions = tuple(names.index(name) for name in self.names)
            self._positions = codec, positions
        return positions

    @property
    def changes_keys(self) -> bool:
        """Whether `canonical` may change a key."""
        return bool(self._floats)

    def canonical_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with the key columns among its columns as keys hold them (see the module's docstring)."""
        for name in self._floats:
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(place), canonical_floats(batch.column(place)))
        return batch

    def canonical(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        """Keys that any client encoded as `encode` does; the same object where nothing has to change.

        Raises `CorruptData` for bytes that are no keys of this encoding.
        """
        if not self._floats or not keys:
            return keys
        canonical: list[bytes] = self._encode(self.canonical_columns(self._decode(keys))).to_pylist()
        return keys if canonical == keys else canonical

    def require_values(self, batch: pa.RecordBatch) -> None:
        """Raise `InvalidRequest` where a key column of `batch` is null."""
        for name in self.names:
            column = batch.column(batch.schema.get_field_index(name))
            if column.null_count:
                row = column.is_null().index(True).as_py()
                raise InvalidRequest(
                    f"key column '{name}' is null in row {row} (and {column.null_count - 1} more); "
                    "key columns must have values",
                    ErrorCode.INVALID_TABLE_EXCEPTION,
                )


def _iceberg_encoder(columns: tuple[Column, ...]) -> Callable[[pa.RecordBatch], pa.BinaryArray]:
    """Iceberg's single-value serialisation of one column."""
    if len(columns) != 1:
        raise InvalidRequest(
            f"Iceberg tables need exactly one key column, got {[c.name for c in columns]}; choose it by 'bucket.key'",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    root = columns[0].data_type.root
    if root is TypeRoot.DATE:
        return lambda batch: _fixed_binary(batch.column(0).cast(pa.int32()).cast(pa.int64()))
    if root in (TypeRoot.INT, TypeRoot.BIGINT):
        return lambda batch: _fixed_binary(batch.column(0).cast(pa.int64()))
    if root is TypeRoot.TIME:
        return lambda batch: _fixed_binary(batch.column(0).cast(pa.time64("us")).cast(pa.int64()))
    if root is TypeRoot.TIMESTAMP and (columns[0].data_type.precision or 0) <= 6:  # keys must not lose digits
        return lambda batch: _fixed_binary(batch.column(0).cast(pa.timestamp("us")).cast(pa.int64()))
    if root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
        return lambda batch: _fixed_binary(batch.column(0))
    if root in (TypeRoot.STRING, TypeRoot.CHAR, TypeRoot.BYTES, TypeRoot.BINARY):
        return lambda batch: batch.column(0).cast(pa.binary())
    if root is TypeRoot.DECIMAL:
        decimal = columns[0].data_type
        return lambda batch: pa.array(
            [reference.big_endian(reference.unscaled(decimal, v)) for v in batch.column(0).to_pylist()], pa.binary()
        )
    raise InvalidRequest(
        f"column '{columns[0].name}' of type {columns[0].data_type} cannot be an Iceberg bucket key",
        ErrorCode.INVALID_TABLE_EXCEPTION,
    )


def _decode_iceberg_float(column: Column, keys: Sequence[bytes]) -> pa.RecordBatch:
    dtype = np.dtype("<f4" if column.data_type.root is TypeRoot.FLOAT else "<f8")
    if any(len(key) != dtype.itemsize for key in keys):
        raise CorruptData(f"a key of column '{column.name}' ({column.data_type}) has not {dtype.itemsize} bytes")
    return pa.record_batch([pa.array(np.frombuffer(b"".join(keys), dtype))], names=[column.name])


def _fixed_binary(array: pa.Array) -> pa.BinaryArray:
    """Each little-endian value of a fixed-width array as a byte string."""
    values = np.ascontiguousarray(array.to_numpy(zero_copy_only=False))
    offsets = np.arange(0, (len(values) + 1) * values.itemsize, values.itemsize, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


@lru_cache(maxsize=1024)
def _encoder(columns: tuple[Column, ...], encoding: str | None) -> KeyEncoder:
    return KeyEncoder(columns, encoding)


def key_encoder(descriptor: TableDescriptor, names: tuple[str, ...], encoding: str | None) -> KeyEncoder:
    """The encoder of the columns `names` of a table under a named encoding."""
    return _encoder(tuple(descriptor.schema.column(name) for name in names), encoding)


def whole_key_encoder(descriptor: TableDescriptor) -> KeyEncoder:
    """The encoder of the whole primary key, with the partition keys in it: bytes that tell any two rows apart."""
    return key_encoder(descriptor, descriptor.schema.primary_key, None)


def primary_key_encoder(descriptor: TableDescriptor) -> KeyEncoder:
    """The encoder of the physical primary key (primary key minus partition keys)."""
    lake = descriptor.lake_format
    if lake == "hudi" or (descriptor.kv_format_version >= 2 and not descriptor.is_default_bucket_key):
        lake = "compacted"
    return key_encoder(descriptor, descriptor.physical_primary_key, lake)


def bucket_key_encoder(descriptor: TableDescriptor) -> KeyEncoder | None:
    """The encoder of the bucket key; None for a log table without one (its writers choose buckets freely)."""
    if not descriptor.bucket_keys:
        return None
    return key_encoder(descriptor, descriptor.bucket_keys, descriptor.lake_format)


def prefix_encoder(descriptor: TableDescriptor) -> KeyEncoder | None:
    """The encoder of what prefix lookups ask for: the bucket key, as the first columns of the primary key have it.

    None where the bucket key is not the first columns, but not all, of the primary key (partition keys left out).
    """
    key, prefix = descriptor.physical_primary_key, descriptor.bucket_keys
    if len(prefix) >= len(key) or key[: len(prefix)] != prefix:
        return None
    compacted = key_encoder(descriptor, key, "compacted")
    # Bytes of whole keys begin with those of the bucket key, in whichever encoding the keys have.
    is_compacted = primary_key_encoder(descriptor) is compacted
    return key_encoder(descriptor, prefix, "compacted" if is_compacted else descriptor.lake_format)


# Which bucket a row belongs to: a hash of its encoded bucket key, by the rule of the table's lake format.
#
# The rule follows the recorded `table.datalake.format` even where tiering is off, so that lake files and stream
# buckets agree (reference: FlussBucketingFunction, PaimonBucketingFunction, IcebergBucketingFunction).

_FUNCTIONS = {None: 0, "lance": 0, "paimon": 1, "iceberg": 2, "hudi": 3}


def bucket_ids(keys: pa.BinaryArray, bucket_count: int, lake_format: str | None = None) -> npt.NDArray[np.int32]:
    """The bucket in [0, bucket_count) of each encoded bucket key."""
    function = _FUNCTIONS.get(lake_format)
    if function is None and lake_format is not None and is_added_lake_format(lake_format):
        function = _FUNCTIONS[None]
    if function is None:
        raise UnsupportedOperation(f"lake format '{lake_format}' has no known bucketing function")
    if bucket_count == 1:
        return np.zeros(len(keys), np.int32)
    result: npt.NDArray[np.int32] = buckets(keys.__arrow_c_array__()[1], function, bucket_count)
    return result


def rust_bucket_ids(keys: pa.BinaryArray, bucket_count: int, lake_format: str | None = None) -> npt.NDArray[np.int32]:
    """The buckets in which Fluss's Rust client up to 1.0.0, and pyfluss, put these keys: some are others.

    For few keys: they are hashed one by one.
    """
    found = bucket_ids(keys, bucket_count, lake_format)
    if bucket_count > 1 and _FUNCTIONS.get(lake_format, 0) == _FUNCTIONS[None]:
        for place, key in enumerate(keys.to_pylist()):
            if any(byte >= 128 for byte in key[len(key) // 4 * 4 :]):
                found[place] = fluss_bucket(key, bucket_count, has_sign=False)
    return found


def bucket_of(key: bytes, bucket_count: int, lake_format: str | None = None) -> int:
    """The bucket of one encoded bucket key."""
    return int(bucket_ids(pa.array([key], pa.binary()), bucket_count, lake_format)[0])


def split_by_group(groups: npt.NDArray[Any], group_count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row positions ordered by group, and where each group begins (group_count + 1 borders).

    The order within a group is kept: rows of one key must reach the log in the order in which they were written.
    """
    narrow = groups.astype(np.uint16) if group_count <= 0xFFFF else groups  # 16 bits take NumPy's radix sort
    order = np.argsort(narrow, kind="stable")
    borders = np.zeros(group_count + 1, np.int64)
    np.cumsum(np.bincount(groups, minlength=group_count), out=borders[1:])
    return order, borders


_HEADER = struct.Struct("<ibIhbqii")
HEADER_BYTES = _HEADER.size
_CRC_START = 9

NO_WRITER_ID = -1
NO_SEQUENCE = -1


class KvBatch(NamedTuple):
    """A parsed KV record batch: keys, and the rows as slices of the request's buffer (null: delete)."""

    schema_id: int
    writer_id: int
    sequence: int
    keys: list[bytes]
    rows: RowSlices


class KvHeader(NamedTuple):
    """The header of a KV record batch, without what only proves it; its records begin at `HEADER_BYTES`."""

    schema_id: int
    writer_id: int
    sequence: int
    record_count: int


def kv_batch_header(data: bytes | memoryview, *, has_checksum: bool = True) -> KvHeader:
    """The header of the one batch that fills `data`. Raises `CorruptData` (code CORRUPT_RECORD) if it is not whole.

    `has_checksum`: False for a batch that was numbered and not sealed.
    """
    if len(data) < HEADER_BYTES:
        raise _corrupt(f"{len(data)} bytes are less than a header of {HEADER_BYTES}")
    length, magic, crc, schema_id, _attributes, writer_id, sequence, count = _HEADER.unpack_from(data)
    if length != len(data) - 4:
        raise _corrupt(f"its header says {length} bytes, but {len(data) - 4} follow")
    if magic != 0:
        raise _corrupt(f"magic byte {magic} is unknown")
    if has_checksum and (actual := crc32c(data, _CRC_START, len(data))) != crc:
        raise _corrupt(f"its checksum is {actual:08x}, its header says {crc:08x}")
    return KvHeader(schema_id, writer_id, sequence, count)


def parse_kv_batch(data: bytes | memoryview, header: KvHeader | None = None) -> KvBatch:
    """Parse the one batch that fills `data`. Raises `CorruptData` (code CORRUPT_RECORD) for anything else.

    `header`: what `kv_batch_header` has returned for it, if it was asked.
    """
    header = header or kv_batch_header(data)
    keys, rows = parse_kv_records(data, HEADER_BYTES, header.record_count)
    return KvBatch(header.schema_id, header.writer_id, header.sequence, keys, rows)


class KvRecordsBuilder:
    """Builds batches of bounded size from (keys, rows) arrays; writer id and sequence are set when sent."""

    def __init__(self, keys: pa.BinaryArray, rows: pa.BinaryArray, schema_id: int) -> None:
        """`rows` may hold nulls, which delete their keys. Both arrays have the same length."""
        self._keys = keys.__arrow_c_array__()[1]
        self._rows = rows.__arrow_c_array__()[1]
        self._schema_id = schema_id
        self._ends = np.cumsum(kv_record_sizes(self._keys, self._rows))

    def batches(self, bytes_max: int) -> Iterator[tuple[bytearray, int]]:
        """Unsealed batches of at most `bytes_max` bytes (but at least one record each), with their record counts."""
        first = 0
        count = len(self._ends)
        while first < count:
            start = int(self._ends[first - 1]) if first else 0
            limit = start + bytes_max - HEADER_BYTES
            last = max(int(np.searchsorted(self._ends, limit, side="right")), first + 1)
            yield self._build(first, last, int(self._ends[last - 1]) - start), last - first
            first = last

    def _build(self, first: int, last: int, body_bytes: int) -> bytearray:
        batch = bytearray(HEADER_BYTES + body_bytes)
        _HEADER.pack_into(batch, 0, len(batch) - 4, 0, 0, self._schema_id, 0, NO_WRITER_ID, NO_SEQUENCE, last - first)
        write_kv_records(self._keys, self._rows, first, last, batch, HEADER_BYTES)
        return batch


def number_kv_batch(batch: bytearray, writer_id: int, sequence: int) -> None:
    """Set writer id and sequence of a batch, whose checksum is wrong then."""
    struct.pack_into("<qi", batch, 12, writer_id, sequence)


def seal_kv_batch(batch: bytearray, writer_id: int, sequence: int) -> None:
    """Set writer id and sequence of a batch and compute its checksum."""
    number_kv_batch(batch, writer_id, sequence)
    struct.pack_into("<I", batch, 5, crc32c(batch, _CRC_START, len(batch)))


def encode_kv_batch(
    keys: pa.BinaryArray,
    rows: pa.BinaryArray,
    schema_id: int,
    writer_id: int = NO_WRITER_ID,
    sequence: int = NO_SEQUENCE,
) -> bytes:
    """One sealed batch of all records."""
    batch = bytearray(HEADER_BYTES)
    for built, _count in KvRecordsBuilder(keys, rows, schema_id).batches(1 << 31):
        batch = built
    if len(keys) == 0:
        _HEADER.pack_into(batch, 0, HEADER_BYTES - 4, 0, 0, schema_id, 0, NO_WRITER_ID, NO_SEQUENCE, 0)
    seal_kv_batch(batch, writer_id, sequence)
    return bytes(batch)


def _corrupt(reason: str) -> CorruptData:
    return CorruptData(f"the KV record batch is malformed: {reason}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
