"""Preparation of log records, shared by the writers of all lakes: validation, and mapping to the lake's columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.codec.arrow.arrow_types import sql_name
from forebay.codec.log.log_batch import ChangeType
from forebay.lake.records import ChangeRows
from forebay.lake.tiering import WriterContext
from forebay.metadata.partitions import partition_text
from forebay.metadata.table import TableInfo
from forebay.metadata.types import TypeRoot

SYSTEM_COLUMN_COUNT = 3
"""The number of system columns (bucket, offset and timestamp) at the end of lake tables that have them."""

_PLAIN_ROOTS = frozenset({TypeRoot.STRING, TypeRoot.INT, TypeRoot.BIGINT, TypeRoot.DATE, TypeRoot.BOOLEAN})
"""The types of partition keys whose values have one text form that all writers share."""


class LakeRows:
    """Converts rows from the stream's schema to the lake table's."""

    def __init__(self, context: WriterContext, schema: pa.Schema, *, has_system_columns: bool) -> None:
        """`schema` is the lake table's, including system columns if it has them."""
        self._path, self._bucket = context.info.path, context.bucket
        self._schema, self._has_system_columns = schema, has_system_columns
        self._names = schema.names[:-SYSTEM_COLUMN_COUNT] if has_system_columns else schema.names

    def lake_batch(self, records: ChangeRows) -> pa.RecordBatch:
        """The records as a batch of all of the lake table's columns; columns that the stream lacks yet are null.

        Raises `InvalidRequest` if the records do not have the lake's first columns, and for a null in a column that is
        NOT NULL in the lake.
        """
        rows, names = records.rows, self._names
        if rows.schema.names != names[: rows.num_columns]:
            raise InvalidRequest(
                f"records of {self._path} have the columns {rows.schema.names}, but its lake table has {names}: "
                "alter the lake table first",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        columns = []
        for i, target in enumerate(self._schema.field(n) for n in names):
            is_present = i < rows.num_columns
            columns.append(_cast(rows.column(i), target) if is_present else pa.nulls(len(records), target.type))
        if self._has_system_columns:
            moment = self._schema.field(len(names) + 2).type
            buckets = pa.repeat(pa.scalar(self._bucket, pa.int32()), len(records))
            columns += [buckets, records.offsets, records.timestamps.cast(pa.timestamp("ms", "UTC")).cast(moment)]
        for column, f in zip(columns, self._schema, strict=True):
            if column.null_count and not f.nullable:
                raise InvalidRequest(f"column '{f.name}' of {self._path} is NOT NULL in the lake, and a row has a null")
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _cast(column: pa.Array, target: pa.Field) -> pa.Array:
    try:
        return column.cast(target.type)
    except pa.ArrowException as e:
        raise InvalidRequest(
            f"column '{target.name}' is {sql_name(column.type)}, which does not fit the lake's "
            f"{sql_name(target.type)}: {e}",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        ) from e


def check_appended(info: TableInfo, records: ChangeRows) -> None:
    """Raise `InvalidRequest` for changes in a table without a primary key."""
    if np.any(records.kinds != ChangeType.APPEND_ONLY):
        raise InvalidRequest(f"table {info.path} has no primary key, so its log can only contain appended rows")


def check_partition(context: WriterContext, row: Mapping[str, pa.Scalar]) -> None:
    """Raise `InvalidRequest` unless the partition of `row`, by column, is the writer's."""
    for key, text in (context.partition or {}).items():
        t = context.info.schema.column(key).data_type
        if t.root in _PLAIN_ROOTS and partition_text(t, row[key].as_py()) != text:
            raise InvalidRequest(
                f"a row with {key} = {row[key]} came to the writer of partition '{text}' of {context.info.path}"
            )
