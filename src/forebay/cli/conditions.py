"""Parsing of user input about columns: lists of columns, and SQL conditions such as `amount >= 100`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pyarrow as pa

from forebay.api.filters import as_predicate
from forebay.metadata.predicate import Predicate, all_of


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
