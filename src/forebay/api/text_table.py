"""Rows as text, for terminals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

_CELL_CHARACTERS_MAX = 48
_NUMBERS_ALIGN_RIGHT = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: set[int] | frozenset[int] = frozenset()
) -> Iterator[str]:
    """The lines of a table; columns whose index is in `right` are right-aligned."""
    widths = [max([len(header[i]), *(len(row[i]) for row in rows)]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    yield line(header)
    yield "  ".join("-" * width for width in widths)
    for row in rows:
        yield line(row)


def row_lines(batch: pa.RecordBatch) -> list[str]:
    """The lines of a table of rows, each cell in one short line."""
    columns = [[cell(value) for value in column.to_pylist()] for column in batch.columns]
    rows = list(zip(*columns)) if columns else [()] * batch.num_rows
    right = {i for i, f in enumerate(batch.schema) if any(test(f.type) for test in _NUMBERS_ALIGN_RIGHT)}
    return list(text_table(batch.schema.names, rows, right))


def cell(value: Any) -> str:
    """A value in one short line."""
    text = str(as_text(value)).replace("\n", "\\n")
    return text if len(text) <= _CELL_CHARACTERS_MAX else text[: _CELL_CHARACTERS_MAX - 1] + "…"


def as_text(value: Any) -> Any:
    """A value for a cell: bytes as hexadecimal, nested values as JSON, nulls as empty text."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value, default=plain, ensure_ascii=False) if isinstance(value, list | dict) else value


def plain(value: Any) -> str:
    """A value that JSON does not support: bytes as hexadecimal, times and decimals as text."""
    return value.hex() if isinstance(value, bytes) else str(value)
