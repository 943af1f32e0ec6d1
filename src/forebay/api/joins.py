"""Joins with the rows of a table by its primary key, in the ways that users write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from forebay.base.arguments import one_or_more_names
from forebay.base.errors import InvalidRequest
from forebay.codec.casting.encodings import takeable
from forebay.codec.casting.frames import arrow_stream, is_pandas_frame, with_named_index

_HOW = ("left", "inner")


@dataclass(frozen=True)
class KeyJoin:
    """A join whose arguments were checked: the rows to join, and what they get from the table."""

    left: pa.Table
    keys: pa.Table
    """The key of each row of `left`, under the names of the table's primary key."""
    added: tuple[str, ...]
    """The columns of the table that the rows get."""
    inner: bool

    @classmethod
    def of(
        cls, data: Any, on: Sequence[str] | str | None, how: str, primary_key: Sequence[str], columns: Sequence[str]
    ) -> Self:
        """The join of `data` with `columns` of a table; raises `InvalidRequest` for what cannot be joined."""
        if how not in _HOW:
            raise InvalidRequest(f"how={how!r} is not one of {', '.join(map(repr, _HOW))}")
        left = as_table(data)
        names = primary_key if on is None else one_or_more_names(on, "on")
        if len(names) != len(primary_key):
            key = ", ".join(primary_key)
            raise InvalidRequest(f"on={list(names)!r}: the primary key is ({key}); name {len(primary_key)} columns")
        missing = [name for name in names if name not in left.schema.names]
        if missing:
            raise InvalidRequest(f"the rows to join have no column '{missing[0]}'; they have {left.schema.names}")
        shared = {own for own, name in zip(primary_key, names, strict=True) if own == name}
        added = tuple(name for name in columns if name not in shared)
        twice = [name for name in added if name in left.schema.names]
        if twice:
            raise InvalidRequest(f"both sides of the join have column '{twice[0]}'; rename it, or choose columns")
        keys = left.select(list(names)).rename_columns(list(primary_key))
        return cls(left, keys, added, how == "inner")

    def rows(self, matches: pa.Table, place: pa.Array) -> pa.Table:
        """The joined rows. `place` has the position in `matches` of the row that belongs to each key; null for none."""
        joined = self.left
        if self.inner:
            joined, place = joined.filter(place.is_valid()), place.drop_null()
        right = matches.select(list(self.added)).take(place)
        for name in self.added:
            joined = joined.append_column(pa.field(name, right.schema.field(name).type), right.column(name))
        return joined


def as_table(data: Any) -> pa.Table:
    """`data` (Arrow data, a data frame, or dicts) as a table. Raises `InvalidRequest` for anything else."""
    if isinstance(data, list | tuple):
        return pa.Table.from_pylist(list(data))
    try:
        if is_pandas_frame(data):
            return takeable(pa.Table.from_pandas(with_named_index(data), preserve_index=False))
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return takeable(data if isinstance(data, pa.Table) else arrow_stream(data).read_all())
        return pa.table(data)
    except (TypeError, ValueError, AttributeError, pa.ArrowException) as e:
        raise InvalidRequest(
            f"a {type(data).__name__} cannot be joined: give Arrow data, a data frame or a list of dicts ({e})"
        ) from e
