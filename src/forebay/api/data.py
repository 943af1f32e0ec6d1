"""The types of data arguments, for type checkers: structural, so that no library has to be installed for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias


class ArrowData(Protocol):
    """Arrow data and data frames: pyarrow, pandas, polars, DuckDB relations, Forebay's scans."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ArrowSchema(Protocol):
    """Schemas and fields of Arrow, of any library."""

    def __arrow_c_schema__(self) -> Any: ...


class ArrowExpression(Protocol):
    """Expressions of pyarrow."""

    def to_substrait(self, schema: Any) -> Any: ...


Rows: TypeAlias = ArrowData | Sequence[Mapping[str, Any]]
"""Rows to write: Arrow data, a data frame, or a list of dicts."""

Missing: TypeAlias = Literal["null", "drop", "error"]
"""The result of a lookup for a key without a row: a row of nulls, no row, or `NotFound`."""
