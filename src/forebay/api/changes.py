"""The change types, shared by the changelogs of live tables and lake tables, and data that brings them.

They are those of Fluss's changelog tables; Paimon and Flink write them +I, -U, +U and -D.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.casting.encodings import decoded
from forebay.codec.casting.frames import arrow_stream, is_pandas_frame, with_named_index

CHANGE_TYPE_COLUMN = "_change_type"
"""The column with the change type of a row, dictionary-encoded strings: one of `CHANGE_TYPES`."""

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = CHANGE_TYPES = ("insert", "update_before", "update_after", "delete")
"""The values of that column, in the order of the row kinds +I, -U, +U, -D."""

LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN, BUCKET_COLUMN = "_log_offset", "_commit_timestamp", "__bucket"
"""The columns with the place of a change of a live table: its log offset, its time in the log, its bucket."""

BEFORE, AFTER, UPDATE = "before", "after", "update"
"""The columns of a binlog with the rows before and after a change, and its change type for an update."""

ROW_KINDS = ("+I", "-U", "+U", "-D")
"""The same in short, as Paimon and Flink write them."""

SPARK_CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")
"""The same as Spark's CHANGES have them."""


def split_changes(data: Any) -> Iterator[tuple[Any, npt.NDArray[np.int8]]]:
    """The rows without their column `_change_type`, and their change types as numbers, batch by batch.

    A number is an index of `CHANGE_TYPES`. Raises `InvalidRequest` if the column is missing or has other values.
    """
    done = 0
    for rows, column in _parts(data):
        kinds = change_numbers(column, done)
        done += len(kinds)
        yield rows, kinds


def _parts(data: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(data, Mapping):
        raise InvalidRequest(f"changes are rows, got {data!r}: write a list of rows, [{{...}}]")
    if isinstance(data, list | tuple):
        _require(all(isinstance(row, Mapping) and CHANGE_TYPE_COLUMN in row for row in data))
        bare = [{name: value for name, value in row.items() if name != CHANGE_TYPE_COLUMN} for row in data]
        yield bare, pa.array([row[CHANGE_TYPE_COLUMN] for row in data], pa.string())
    elif is_pandas_frame(data):
        data = with_named_index(data)
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
        return arrow_stream(data)
    raise InvalidRequest(f"{type(data).__name__} is no data: give Arrow data, a data frame or a list of dicts")


def _require(there: bool) -> None:
    if not there:
        raise InvalidRequest(
            f"the rows lack column '{CHANGE_TYPE_COLUMN}', which says what each is: {', '.join(CHANGE_TYPES)}"
        )


def change_numbers(column: pa.Array, before: int = 0, name: str = CHANGE_TYPE_COLUMN) -> npt.NDArray[np.int8]:
    """The indexes in `CHANGE_TYPES` of texts, in any of the three spellings. `before`: the rows in earlier batches."""
    try:
        indexes = pc.index_in(
            decoded(column).cast(pa.string()), value_set=pa.array(CHANGE_TYPES + ROW_KINDS + SPARK_CHANGE_TYPES)
        )
    except pa.ArrowException as e:
        raise InvalidRequest(f"column '{name}' is {column.type}; its values are texts") from e
    if indexes.null_count:
        row = pc.index(pc.is_null(indexes), True).as_py()
        raise InvalidRequest(
            f"row {before + row} has {name}={column[row].as_py()!r}, which is none of "
            f"{', '.join(CHANGE_TYPES)} ({', '.join(ROW_KINDS)}; {', '.join(SPARK_CHANGE_TYPES[1:3])})"
        )
    numbers: npt.NDArray[np.int8] = (indexes.to_numpy(zero_copy_only=False) % len(CHANGE_TYPES)).astype(np.int8)
    return numbers
