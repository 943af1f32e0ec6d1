"""Rows of events as Arrow columns; rows whose values do not fit are reported and left out."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.api.changes import DELETE
from forebay.codec.arrow.arrow_types import user_schema
from forebay.debezium.events import EventRow
from forebay.debezium.values import BAD_VALUE, NATIVE, Convert, converter, mismatch
from forebay.metadata.table import Column

_NONE: frozenset[type] = frozenset()
_SHOWN_CHARS, _REASON_CHARS = 60, 120


class RowColumns(NamedTuple):
    """Rows that fit, an array for each column, and what is wrong with other rows, by the positions of their texts."""

    rows: Sequence[EventRow]
    arrays: list[pa.Array]
    wrong: dict[int, str]


def columns_of(rows: Sequence[EventRow], columns: Sequence[Column], time_unit: str | None, key: Set[str]) -> RowColumns:
    """The values of rows in the types of columns. `time_unit` is that of times that are numbers without a schema part.

    Of a deleted row only the columns of `key` count; the others are null. Further columns of the rows are left out.
    """
    if not rows:
        return RowColumns(rows, [pa.array([], field.type) for field in user_schema(columns)], {})
    arrays, faults = _columns_of_all(rows, columns, time_unit, key)
    if not faults:
        return RowColumns(rows, arrays, {})
    bad_texts = {rows[at].at for at in faults}  # a text may have two rows: both are left out
    fitting = columns_of([row for row in rows if row.at not in bad_texts], columns, time_unit, key)
    return fitting._replace(wrong={rows[at].at: reason for at, reason in sorted(faults.items())} | fitting.wrong)


def _columns_of_all(
    rows: Sequence[EventRow], columns: Sequence[Column], time_unit: str | None, key: Set[str]
) -> tuple[list[pa.Array], dict[int, str]]:
    """The columns of rows between which the source's schema may change."""
    chunks: list[list[pa.Array]] = []
    faults: dict[int, str] = {}
    begin = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].fields is not rows[begin].fields:
            arrays, chunk_faults = _columns(rows[begin:end], columns, time_unit, key)
            faults |= {begin + at: reason for at, reason in chunk_faults.items()}
            chunks.append(arrays)
            begin = end
    if faults or len(chunks) == 1:
        return chunks[0], faults
    return [pa.concat_arrays(list(each)) for each in zip(*chunks, strict=True)], {}


def _columns(
    rows: Sequence[EventRow], columns: Sequence[Column], time_unit: str | None, key: Set[str]
) -> tuple[list[pa.Array], dict[int, str]]:
    """The columns of rows with one schema part, and what is wrong with some of the rows."""
    arrays: list[pa.Array] = []
    faults: dict[int, str] = {}
    described = rows[0].fields
    deleted = [row.kind == DELETE for row in rows]
    for column, field in zip(columns, user_schema(columns), strict=True):
        name, t = column.name, column.data_type
        convert = converter(t, described.get(name), time_unit)
        native = _NONE if mismatch(t, described.get(name)) else NATIVE.get(t.root, _NONE)
        raw_values = [row.values.get(name) for row in rows]
        if name not in key and any(deleted):  # of a deleted row only the key counts
            raw_values = [None if is_deleted else value for is_deleted, value in zip(deleted, raw_values, strict=True)]
        try:
            if convert is not None and not set(map(type, raw_values)) <= native:
                values = [None if value is None else convert(value) for value in raw_values]
            else:
                values = raw_values
            array = pa.array(values, field.type)
        except BAD_VALUE:
            singles = [_single(value, convert, field.type) for value in raw_values]
            bad_values = {at: single for at, single in enumerate(singles) if isinstance(single, str)}
            if bad_values:
                faults |= {at: f"'{name}' is no {t}: {reason}" for at, reason in bad_values.items()}
                continue
            array = pa.concat_arrays(singles)
        arrays.append(array)
        if array.null_count and not t.nullable:
            lacking = [at for at, value in enumerate(raw_values) if value is None and (name in key or not deleted[at])]
            faults |= dict.fromkeys(lacking, f"'{name}' is missing, which is NOT NULL")
    return arrays, faults


def _single(value: Any, convert: Convert | None, arrow_type: pa.DataType) -> pa.Array | str:
    """An array of one value, or what is wrong with the value."""
    try:
        return pa.array([value if value is None or convert is None else convert(value)], arrow_type)
    except BAD_VALUE as e:
        return f"{reprlib.repr(value)[:_SHOWN_CHARS]} ({str(e)[:_REASON_CHARS]})"
