"""Keys in all the ways that users write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest

_PLAIN = (str, bytes, int, float)


def key_rows(keys: Any, names: Sequence[str], table: str) -> Any:
    """`keys` as rows: Arrow data, data frames and dicts as they are, one dict, tuples and plain values by column.

    Plain values (one, a list, an Arrow array) are for tables whose key is one column. Raises `InvalidRequest`.
    """
    if isinstance(keys, Mapping):
        return [keys]
    if isinstance(keys, pa.Array | pa.ChunkedArray) and not pa.types.is_struct(keys.type):
        _require_one(names, table)
        return pa.table({names[0]: keys})
    if (
        isinstance(keys, tuple)
        and len(keys) == len(names) > 1
        and not any(isinstance(k, Mapping | tuple) for k in keys)
    ):
        raise InvalidRequest(f"{keys!r} is one key: write a list of keys, [{keys!r}]")
    if isinstance(keys, _PLAIN) or _is_value(keys):
        keys = [keys]
    if not isinstance(keys, list | tuple | set | frozenset | range):
        return keys
    return [_row(key, names, table) for key in keys]


def _is_value(keys: Any) -> bool:
    """Whether `keys` is one value of another type, such as a date."""
    return keys is None or (not hasattr(keys, "__iter__") and not hasattr(keys, "__arrow_c_stream__"))


def _row(key: Any, names: Sequence[str], table: str) -> Mapping[str, Any]:
    if isinstance(key, Mapping):
        return key
    if isinstance(key, tuple):
        if len(key) != len(names):
            raise InvalidRequest(
                f"the key {key!r} has {len(key)} values; table {table} has the key ({', '.join(names)})"
            )
        return dict(zip(names, key, strict=True))
    _require_one(names, table)
    return {names[0]: key}


def _require_one(names: Sequence[str], table: str) -> None:
    if len(names) != 1:
        raise InvalidRequest(
            f"table {table} needs {len(names)} columns for a key ({', '.join(names)}): give tuples, dicts or Arrow data"
        )
