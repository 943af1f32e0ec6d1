"""Writing changes in the public format: rows with a column `_change_type`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.changes import CHANGE_TYPE_COLUMN, CHANGE_TYPES
from forebay.base.errors import InvalidRequest
from forebay.paimon.write.table_write import TableWrite


def write_changes(writer: TableWrite, data: Any) -> int:
    """Write rows by their `_change_type`; return their number. Raises `InvalidRequest` if it is missing or invalid."""
    done = 0
    for rows, kinds in _parts(data):
        done += writer.write(rows, _kinds(kinds, done))
    return done


def _parts(data: Any) -> Iterator[tuple[Any, Any]]:
    """The rows without the change type column, and the column, batch by batch."""
    if isinstance(data, Mapping):
        raise InvalidRequest(f"changes are rows, got {data!r}: write a list of rows, [{{...}}]")
    if isinstance(data, list | tuple):
        _require(all(isinstance(row, Mapping) and CHANGE_TYPE_COLUMN in row for row in data))
        bare = [{name: value for name, value in row.items() if name != CHANGE_TYPE_COLUMN} for row in data]
        yield bare, pa.array([row[CHANGE_TYPE_COLUMN] for row in data], pa.string())
    elif type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        _require(CHANGE_TYPE_COLUMN in data.columns)
        yield data.drop(columns=[CHANGE_TYPE_COLUMN]), pa.array(data[CHANGE_TYPE_COLUMN], from_pandas=True)
    else:
        for batch in _batches(data):
            _require(CHANGE_TYPE_COLUMN in batch.schema.names)
            yield batch.drop_columns([CHANGE_TYPE_COLUMN]), batch.column(CHANGE_TYPE_COLUMN)


def _batches(data: Any) -> Any:
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        _require(CHANGE_TYPE_COLUMN in data.schema.names)
        return data.to_batches()
    if isinstance(data, pa.RecordBatchReader):
        return data
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    raise InvalidRequest(f"{type(data).__name__} is no data: give Arrow data, a data frame or a list of dicts")


def _require(there: bool) -> None:
    if not there:
        raise InvalidRequest(
            f"the rows lack column '{CHANGE_TYPE_COLUMN}', which says what each is: {', '.join(CHANGE_TYPES)}"
        )


def _kinds(column: pa.Array, before: int) -> npt.NDArray[np.int8]:
    """The row kind numbers of change types. `before`: the number of rows in earlier batches."""
    try:
        found = pc.index_in(column.cast(pa.string()), value_set=pa.array(CHANGE_TYPES))
    except pa.ArrowException as e:
        raise InvalidRequest(f"column '{CHANGE_TYPE_COLUMN}' is {column.type}; its values are texts") from e
    if found.null_count:
        row = pc.index(pc.is_null(found), True).as_py()
        raise InvalidRequest(
            f"row {before + row} has {CHANGE_TYPE_COLUMN}={column[row].as_py()!r}, which is none of "
            f"{', '.join(CHANGE_TYPES)}"
        )
    kinds: npt.NDArray[np.int8] = found.to_numpy(zero_copy_only=False).astype(np.int8)
    return kinds
