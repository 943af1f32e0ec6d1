"""Rows <-> Arrow, for one list of column types and one row format.

`RowCodec` joins the kernels to pyarrow. Batches given to it must have the storage schema exactly (codec.cast brings
users' data there); batches taken from it have it. Encoded rows are a `pa.BinaryArray`, one value a row.

Docs: docs/format/rows.md. The plain-Python codec in codec.reference is the oracle of this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.codec._layout import RowLayout
from forebay.codec._row_decode import decode
from forebay.codec._row_encode import encode
from forebay.codec._slices import RowSlices
from forebay.codec.arrow_types import storage_schema, time_unit
from forebay.metadata.table import Column
from forebay.metadata.types import (
    DECIMAL_COMPACT_PRECISION_MAX,
    TIMESTAMP_COMPACT_PRECISION_MAX,
    DataType,
    TypeRoot,
)

# Data types -> `RowLayout`, the table that drives the row kernels.

LayoutNode = tuple[str, bool, int, int, bool]


class RowFormat(Enum):
    """How a row lies in bytes.

    COMPACTED and INDEXED are the formats of values; KEY is compacted fields without null bits; ALIGNED has eight
    bytes a field and is what Paimon calls BinaryRow (keys of Paimon-format tables, batch statistics).
    """

    COMPACTED = "COMPACTED"
    INDEXED = "INDEXED"
    KEY = "KEY"
    ALIGNED = "ALIGNED"


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
