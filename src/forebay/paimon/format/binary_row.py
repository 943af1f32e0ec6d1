"""BinaryRow: the encoding of partitions, keys and bounds, and the input of bucket hashes.

The layout is `RowFormat.ALIGNED` (docs/format/rows.md). In manifests, a row is preceded by its number of fields as four
big-endian bytes; `with_arity` and `without_arity` add and remove them.

Single values are column values as defined by `forebay.codec.casting.literals`: what `to_pylist()` returns, but dates as
days, times as milliseconds, and timestamps as integers in the unit of the storage type.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from forebay.base.errors import CorruptData, InvalidRequest
from forebay.codec.arrow.arrow_types import arrow_type as codec_arrow_type
from forebay.codec.rows.aligned_row import decode_row, encode_row
from forebay.codec.rows.row_codec import RowCodec, row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.table import Column
from forebay.metadata.types import DataType
from forebay.paimon.format.arrow import arrow_type, storage_type
from forebay.paimon.format.file_meta import EMPTY_ROW
from forebay.paimon.format.schema import DataField

_ARITY = struct.Struct(">i")


def with_arity(row: bytes, field_count: int) -> bytes:
    """`row` as stored in manifests."""
    return _ARITY.pack(field_count) + row


def without_arity(data: bytes) -> bytes:
    """The row of a manifest's bytes. Empty bytes, which some writers use for no row, are the row without fields."""
    if not data:
        return EMPTY_ROW
    if len(data) < 4:
        raise CorruptData(f"a BinaryRow of {len(data)} bytes lacks its number of fields")
    return bytes(data[4:]) or EMPTY_ROW


class RowLayout:
    """Encodes and decodes rows of the given columns. Stateless and thread-safe; created by `row_layout`."""

    def __init__(self, fields: Sequence[DataField]) -> None:
        self.fields = tuple(fields)
        self.names = [f.name for f in self.fields]
        self._types = tuple(storage_type(f.type) for f in self.fields)
        self._columns = tuple(Column(f.name, t.as_nullable()) for f, t in zip(self.fields, self._types, strict=True))

    @cached_property
    def _codec(self) -> RowCodec:
        return row_codec(self._columns, RowFormat.ALIGNED)

    def __reduce__(self) -> tuple[Any, ...]:
        return row_layout, (self.fields,)  # a codec cannot be pickled

    @property
    def types(self) -> tuple[DataType, ...]:
        return self._types

    def encode(self, batch: pa.RecordBatch | pa.Table) -> pa.BinaryArray:
        """One encoded row for each row of `batch`, which has a column of the layout's type for each of its names."""
        if not self.fields:
            return pa.array([EMPTY_ROW] * batch.num_rows, pa.binary())
        return self._codec.encode(self.stored(batch))

    def stored(self, batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        """The layout's columns of `batch`, in the types that rows are encoded from: timestamps without a zone."""
        columns = []
        for f, column in zip(self.fields, self._columns, strict=True):
            values = batch.column(f.name)
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            columns.append(_as_stored(values, f, column.data_type))
        return pa.RecordBatch.from_arrays(columns, schema=self._codec.schema)

    def encode_one(self, values: Sequence[Any]) -> bytes:
        """The encoded row of column values. Raises `InvalidRequest`, naming a value that does not fit its type."""
        return encode_row(self._types, values)

    def decode(self, row: bytes) -> tuple[Any, ...]:
        """The column values of `row`. Raises `CorruptData`."""
        return tuple(decode_row(self._types, row))

    def decode_all(self, rows: Sequence[bytes] | pa.BinaryArray) -> pa.RecordBatch:
        """The values of many rows, as Arrow columns of the types of `forebay.paimon.format.arrow`."""
        decoded = self._codec.decode(rows)
        columns = [
            column if column.type == arrow_type(f.type) else column.cast(arrow_type(f.type))
            for f, column in zip(self.fields, decoded.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=self.names)


def _as_stored(values: pa.Array, f: DataField, stored: DataType) -> pa.Array:
    """`values` in the type that the row kernels accept: timestamps without a zone."""
    target = codec_arrow_type(stored)
    if values.type == target:
        return values
    try:
        return values.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise InvalidRequest(f"column '{f.name}' is {values.type}, which is not a {f.type}: {e}") from e


@lru_cache(maxsize=4096)
def _cached(fields: tuple[DataField, ...]) -> RowLayout:
    return RowLayout(fields)


def row_layout(fields: Iterable[DataField]) -> RowLayout:
    """The layout of rows of `fields`."""
    return _cached(tuple(fields))
