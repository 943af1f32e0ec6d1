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
    columns = [[cell(value) for value in values_of(column)] for column in batch.columns]
    rows = list(zip(*columns)) if columns else [()] * batch.num_rows
    right = {i for i, f in enumerate(batch.schema) if any(test(f.type) for test in _NUMBERS_ALIGN_RIGHT)}
    return list(text_table(batch.schema.names, rows, right))


def cell(value: Any) -> str:
    """A value in one short line."""
    text = str(as_text(value)).replace("\n", "\\n")
    return text if len(text) <= _CELL_CHARACTERS_MAX else text[: _CELL_CHARACTERS_MAX - 1] + "…"


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as Python objects, at any depth.

    A value that Python's types do not have is text: a time with nanoseconds, a date after the year 9999.
    """
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        return [_value_of(scalar) for scalar in column]


def _value_of(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        if isinstance(scalar, pa.StructScalar):
            return {name: _value_of(value) for name, value in scalar.items()}
        if isinstance(scalar, pa.ListScalar):  # also maps and lists of other kinds
            return [_value_of(value) for value in scalar.values]
        return pa.array([scalar]).cast(pa.string())[0].as_py()


def as_text(value: Any) -> Any:
    """A value for a cell: bytes as hexadecimal, nested values as JSON, nulls as empty text."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, pa.MonthDayNano):
        return interval_text(value)
    return json.dumps(value, default=plain, ensure_ascii=False) if isinstance(value, list | dict) else value


def interval_text(value: pa.MonthDayNano) -> str:
    """An interval of SQL, such as "1 months 2 days 3.5 seconds"; parts that are zero are left out."""
    seconds = f"{value.nanoseconds / 10**9:.9f}".rstrip("0").rstrip(".")
    parts = [(value.months, "months"), (value.days, "days"), (0 if seconds in ("0", "-0") else seconds, "seconds")]
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount) or "0 seconds"


def plain(value: Any) -> str:
    """A value that JSON does not support: bytes as hexadecimal, times and decimals as text."""
    return value.hex() if isinstance(value, bytes) else str(value)
