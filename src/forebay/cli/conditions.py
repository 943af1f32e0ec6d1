"""Parsing of user input about columns: values, lists of columns, and SQL conditions such as `amount >= 100`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pyarrow as pa

from forebay.api.filters import as_predicate
from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import Predicate, all_of


def typed_values(table: str, column: str, data_type: pa.DataType, texts: Sequence[str]) -> pa.Array:
    """The values of a column's type for texts. Raises `InvalidRequest`, naming the column and the text."""
    try:
        if pa.types.is_timestamp(data_type) and data_type.tz:
            return pa.array(texts).cast(pa.timestamp(data_type.unit)).cast(data_type)
        if pa.types.is_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
            return pa.array([bytes.fromhex(text) for text in texts], data_type)
        return pa.array(texts).cast(data_type)
    except (pa.ArrowException, ValueError) as e:
        raise InvalidRequest(f"column {column} of {table} is {data_type}; {', '.join(texts)} is not: {e}") from e


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
