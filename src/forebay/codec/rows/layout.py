"""Data types -> `RowLayout`, the table that drives the row kernels."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from forebay.codec.arrow.arrow_types import time_unit
from forebay.codec.rows._layout import RowLayout
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.types import DECIMAL_COMPACT_PRECISION_MAX, TIMESTAMP_COMPACT_PRECISION_MAX, DataType, TypeRoot

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


def _flatten(t: DataType, is_decoded: bool) -> Iterable[LayoutNode]:
    kind, parameter = _kind_and_parameter(t)
    children = t.children()
    yield kind, t.nullable, parameter, len(children), is_decoded
    for inner in children:
        yield from _flatten(inner, is_decoded)


@lru_cache(maxsize=1024)
def row_layout(
    types: tuple[DataType, ...], row_format: RowFormat, positions: tuple[int, ...] | None = None
) -> RowLayout:
    """The layout of rows with fields of `types`.

    `positions` (ascending) are those of the fields to decode; the others are skipped. None means all.
    """
    nodes: list[LayoutNode] = [("ROW", False, 0, len(types), True)]
    for position, t in enumerate(types):
        nodes.extend(_flatten(t, positions is None or position in positions))
    return RowLayout(nodes, row_format.value)
