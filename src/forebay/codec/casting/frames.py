"""Data frames of pandas and polars, and other libraries' Arrow data, as Arrow reads them; no library is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest


def is_pandas_frame(data: Any) -> bool:
    """Whether `data` is a pandas DataFrame, or of a class derived from it."""
    return any(_is(kind, "pandas", "DataFrame") for kind in type(data).__mro__)


def is_series(data: Any) -> bool:
    """Whether `data` is a Series of pandas or polars."""
    return any(_is(kind, "pandas", "Series") or _is(kind, "polars", "Series") for kind in type(data).__mro__)


def _is(kind: type, library: str, name: str) -> bool:
    return kind.__name__ == name and kind.__module__.partition(".")[0] == library


def with_named_index(frame: Any) -> Any:
    """A pandas DataFrame with the named levels of its index as its first columns; no values are copied.

    As in Arrow's `Table.from_pandas`, a column has precedence over a level of the same name. Levels without a name are
    row numbers, which are no data.
    """
    names = [(level, name) for level, name in enumerate(frame.index.names) if name is not None]
    added = [(level, name) for level, name in names if name not in frame.columns]
    if not added:
        return frame
    whole = frame.copy(deep=False)
    for place, (level, name) in enumerate(added):
        whole.insert(place, name, frame.index.get_level_values(level))
    return whole


def check_index(frame: Any, column_names: Sequence[str]) -> None:
    """Raise `InvalidRequest` for a named level of a DataFrame's index that is none of the table's columns."""
    for name in frame.index.names:
        if name is not None and name not in column_names:
            raise InvalidRequest(
                f"the index of the DataFrame is named {name!r}, but the table has the columns "
                f"{', '.join(column_names)}: rename it, or leave it out by reset_index(drop=True)"
            )


def arrow_stream(data: Any) -> pa.RecordBatchReader:
    """The record batches of an object with `__arrow_c_stream__` or `__arrow_c_array__`.

    Raises `InvalidRequest` for data without columns, and for columns that Arrow cannot carry, by name.
    """
    pointers = _columns_of_objects(data)
    if pointers:  # polars exports the addresses of the objects, as eight bytes each
        raise InvalidRequest(f"column '{pointers[0]}' has polars type Object, which Arrow cannot carry: cast it first")
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
        batch = pa.record_batch(data)
        return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise InvalidRequest(_why_no_stream(data, e)) from None


def _columns_of_objects(data: Any) -> list[str]:
    if type(data).__module__.partition(".")[0] != "polars" or not hasattr(data, "columns"):
        return []
    return [name for name, kind in data.schema.items() if str(kind) == "Object"]


def _why_no_stream(data: Any, error: Exception) -> str:
    kind = type(data)
    if kind.__module__.partition(".")[0] == "polars" and hasattr(data, "columns"):
        for name, column_type in data.schema.items():
            try:
                pa.RecordBatchReader.from_stream(data.select(name).clear())
            except (pa.ArrowException, TypeError, ValueError):
                return f"column '{name}' has polars type {column_type}, which pyarrow cannot read: cast it first"
    return f"the Arrow data of a {kind.__name__} has no columns of a table: {error}"
