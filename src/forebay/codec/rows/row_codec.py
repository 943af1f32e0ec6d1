"""Rows as bytes <-> Arrow record batches.

`RowCodec` joins the kernels to pyarrow, for one list of column types and one row format. Batches given to it must have
the storage schema exactly (codec.casting.batches brings users' data there); batches taken from it have it. Encoded rows
are a `pa.BinaryArray`, one value a row. Docs: docs/format/rows.md. Tests compare it with
the plain-Python codec in tests/codec/reference.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.rows._layout import RowLayout
from forebay.codec.rows._row_decode import decode, is_plainly_sound
from forebay.codec.rows._row_encode import encode, encodes_to
from forebay.codec.rows._slices import RowSlices
from forebay.codec.rows.layout import row_layout
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.table import Column


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
        self.codec = codec
        self._capsule = capsule
        self.num_rows = count

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self.codec.schema_capsule, self._capsule

    def is_plainly_sound(self, required: tuple[int, ...]) -> bool:
        """Whether the rows are those of a sound batch with values in all `required` columns, without a closer look."""
        return is_plainly_sound(self.codec.layout, self._capsule, required)

    def encodes_to(self, layout: RowLayout, positions: tuple[int, ...], rows: RowSlices) -> bool:
        """Whether the columns at `positions`, encoded in `layout`, are exactly `rows`."""
        return encodes_to(layout, self._capsule, positions, rows)

    def to_batch(self) -> pa.RecordBatch:
        """The rows as a batch. They are in that alone from then on."""
        return pa.record_batch(_Exported(self.codec.schema, self._capsule))


class RowCodec:
    """Encodes and decodes rows of the given columns. Stateless and thread-safe; get one from `row_codec`."""

    def __init__(self, columns: tuple[Column, ...], row_format: RowFormat, positions: tuple[int, ...] | None) -> None:
        types = tuple(column.data_type for column in columns)
        self.columns = columns
        self.row_format = row_format
        self.schema: pa.Schema = storage_schema(columns)
        self.decoded_schema: pa.Schema = (
            self.schema if positions is None else storage_schema([columns[position] for position in positions])
        )
        self._layout = row_layout(types, row_format, positions)

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
        batch_schema = batch.schema
        if not (
            batch_schema.equals(self.schema)
            or (batch_schema.names, batch_schema.types) == (self.schema.names, self.schema.types)
        ):
            raise InvalidRequest(f"expected a batch of schema {self.schema}, got {batch_schema}")
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
def row_codec(columns: tuple[Column, ...], row_format: RowFormat, positions: tuple[int, ...] | None = None) -> RowCodec:
    """The codec for rows of `columns`; `positions` (ascending) restricts the columns that decoding returns."""
    return RowCodec(columns, row_format, positions)
