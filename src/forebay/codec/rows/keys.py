"""Keys as bytes: primary keys, bucket keys and their prefixes.

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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec.rows._layout import RowLayout
from forebay.codec.rows._slices import RowSlices
from forebay.codec.rows.floats import canonical_floats
from forebay.codec.rows.row_codec import DecodedRows, RowCodec, row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.codec.storage_values import big_endian, unscaled
from forebay.metadata.table import Column, TableDescriptor
from forebay.metadata.table_options import is_added_lake_format
from forebay.metadata.types import TypeRoot


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

    def shown(self, keys: Sequence[bytes]) -> str:
        """Some keys as text, for a message."""
        rows = self.decode(keys).to_pylist()
        return " and ".join(", ".join(f"{name} = {value!r}" for name, value in row.items()) for row in rows)

    def match(self, rows: DecodedRows, keys: RowSlices) -> bool:
        """Whether `keys` are the keys of `rows`; False, too, if keys are not encoded as rows are."""
        return self.row_layout is not None and rows.encodes_to(self.row_layout, self.positions_in(rows.codec), keys)

    def positions_in(self, codec: RowCodec) -> tuple[int, ...]:
        """Where the key columns are among those of `codec`."""
        cached_codec, positions = self._positions
        if cached_codec is not codec:
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
            [big_endian(unscaled(decimal, v)) for v in batch.column(0).to_pylist()], pa.binary()
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
