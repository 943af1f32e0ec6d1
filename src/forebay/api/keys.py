"""Keys in all forms that users may pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.codec.casting.frames import is_pandas_frame, is_series

MISSING = ("null", "drop", "error")
"""The result of a lookup for a key without a row: a row of nulls, no row, or `NotFound`."""


def key_rows(keys: Any, names: Sequence[str], table: str) -> Any:
    """Return `keys` as rows with the columns `names`: a list of dicts, or Arrow data and data frames as they are.

    A single dict, tuples with one value per column, and plain values for a single-column key are accepted, too. Raises
    `InvalidRequest`, which names `table`, for anything else.
    """
    if isinstance(keys, Mapping):
        return [keys]
    if _is_array(keys):
        return pa.table({_only(names, table): _arrow_array(keys)})
    if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__") or is_pandas_frame(keys):
        return keys
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        return [{_only(names, table): keys}]
    rows = list(keys)
    if isinstance(keys, tuple) and 1 < len(names) == len(rows) and not isinstance(rows[0], tuple | list | Mapping):
        rows = [keys]
    if not rows or isinstance(rows[0], Mapping):
        return rows
    if isinstance(rows[0], tuple | list):
        return [_named(row, i, names, table) for i, row in enumerate(rows)]
    name = _only(names, table)
    return [{name: value} for value in rows]


def check_missing(missing: str) -> None:
    """Raise `InvalidRequest` unless `missing` is one of `MISSING`."""
    if missing not in MISSING:
        raise InvalidRequest(f"missing={missing!r} is not one of {', '.join(map(repr, MISSING))}")


def _is_array(keys: Any) -> bool:
    """Whether these are values of a single-column key."""
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return not pa.types.is_struct(keys.type)
    kind = type(keys)
    return is_series(keys) or (kind.__module__.partition(".")[0], kind.__name__) == ("numpy", "ndarray")


def _arrow_array(keys: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return keys
    return keys.to_arrow() if hasattr(keys, "to_arrow") else pa.array(keys)  # polars; pandas or NumPy


def _only(names: Sequence[str], table: str) -> str:
    """The single column of a key. Raises `InvalidRequest` if there are several."""
    if len(names) != 1:
        raise InvalidRequest(
            f"table {table} needs {len(names)} columns to find a row ({', '.join(names)}): give tuples, dicts or a "
            "table"
        )
    return names[0]


def _named(row: Any, index: int, names: Sequence[str], table: str) -> dict[str, Any]:
    if not isinstance(row, tuple | list) or len(row) != len(names):
        raise InvalidRequest(
            f"key {index} is {row!r}; a key of table {table} has {len(names)} values ({', '.join(names)})"
        )
    return dict(zip(names, row, strict=True))
