"""Parsing of user input about columns: values, lists of columns, and SQL conditions such as `amount >= 100`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.filters import as_predicate
from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import Predicate, all_of


def typed_values(table: str, column: str, data_type: pa.DataType, texts: Sequence[str]) -> pa.Array:
    """The values of a column's type for texts. Raises `InvalidRequest`, naming the column and the text."""
    try:
        return _typed(data_type, pa.array(texts))
    except (pa.ArrowException, ValueError) as e:
        raise InvalidRequest(f"column {column} of {table} is {data_type}; {', '.join(texts)} is not: {e}") from e


def from_texts(column: str, data_type: pa.DataType, texts: pa.Array) -> pa.Array:
    """The values of a column of a file. Raises `InvalidRequest`, naming the column."""
    try:
        return _typed(data_type, texts)
    except (pa.ArrowException, ValueError) as e:
        raise InvalidRequest(f"column {column} is {data_type}: {e}") from e


def _typed(data_type: pa.DataType, texts: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(data_type) and data_type.tz:
        zoned = pc.fill_null(pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$"), True)
        if pc.all(zoned).as_py():
            return texts.cast(data_type)
        if not pc.any(pc.and_(zoned, texts.is_valid())).as_py():
            return texts.cast(pa.timestamp(data_type.unit)).cast(data_type)
        return pa.concat_arrays([_typed(data_type, texts.slice(i, 1)) for i in range(len(texts))])
    if pa.types.is_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts.to_pylist()], data_type)
    if pa.types.is_time(data_type):
        return pa.array([_nanoseconds(text) for text in texts.to_pylist()], pa.time64("ns")).cast(data_type)
    return texts.cast(data_type)


def _nanoseconds(text: str | None) -> int | None:
    """The nanoseconds since midnight for 12:30, 12:30:05 or 12:30:05.123456789. Raises `ValueError`."""
    if text is None:
        return None
    match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time like 12:30:05")
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + int((match[4] or "0").ljust(9, "0"))


def column_names(text: str | None) -> list[str] | None:
    """The names in `"a, b"`; None for None, which means all."""
    return None if text is None else [name.strip() for name in text.split(",")]


def where_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--where`."""
    parser.add_argument(
        "--where", action="append", default=[], metavar="CONDITION",
        help="only rows for which this SQL condition holds, such as \"amount >= 100 AND day = '2026-01-31'\"; may be "
        "repeated",
    )  # fmt: skip


def conjunction(schema: pa.Schema, conditions: Sequence[str]) -> Predicate | None:
    """The conjunction of the SQL `conditions`; None if there are none. Raises `InvalidRequest` for invalid SQL."""
    return all_of(part for part in (as_predicate(condition, schema) for condition in conditions) if part is not None)
