"""Converts Debezium's change events to rows with a `_change_type`, as writes to live and lake tables expect them.

Python workers decode batches of events with `forebay.debezium`, as `forebay ingest` does. Spark passes the texts to the
workers, and receives the rows, as Arrow columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, BooleanType, DataType, LongType, StringType, StructField, StructType

from forebay.api.changes import CHANGE_TYPE_COLUMN, DELETE
from forebay.base.arguments import one_or_more_names
from forebay.base.errors import InvalidRequest
from forebay.debezium.columns import columns_of
from forebay.debezium.events import EventRow, Fault, decode, unlogged, unlogged_fault, with_changed_key
from forebay.debezium.marks import KAFKA_OFFSET, Marks, VersionColumn
from forebay.metadata.table import Column
from forebay.spark.schemas import from_spark_schema, spark_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FAIL, DROP, ONLY = WRONG = ("fail", "drop", "only")
ERROR_COLUMN = "_error"

_EVENT, _KIND, _ROW, _ERROR = (f"__forebay_{step}" for step in ("event", "kind", "row", "error"))
_TIME_UNIT = "ms"
"""The unit of timestamps that are numbers in events without a schema part."""


def from_debezium(
    df: DataFrame,
    schema: StructType | str,
    *,
    column: str = "value",
    keep: Sequence[str] | str = (),
    wrong: str = FAIL,
    key: Sequence[str] | str = (),
    deleted_column: str | None = None,
    version_column: str | None = None,
) -> DataFrame:
    """The rows of Debezium's change events in `column`, a text or bytes, with `_change_type` in front of the columns.

    `schema` is the schema of the rows: DDL text, or a StructType. A delete has the old row. Empty values (tombstones)
    are skipped. Values are read in Debezium's notation, and are never rounded. In events with a schema part, timestamps
    have the unit that it names, and decimals may be bytes. In events without one, numeric timestamps are milliseconds,
    and decimals are numbers or texts (`decimal.handling.mode`). Rows must be complete: an event without a value that
    the database did not log (a large value of PostgreSQL that an update left unchanged) is invalid.

    `keep` names columns of `df` that are appended to those of the rows. An example is the event's position in the
    database's log or in a topic, by which `write.sequence.field` orders; the old row of a delete has no such position.

    `deleted_column` names a BOOLEAN column that is added: a delete is then the old row, as far as the database logs it,
    with true, and every other row has false. The rows have no `_change_type`, because all of them are upserts.
    `version_column`, as "lsn=source.lsn", adds a BIGINT column with the value of a field of the event; "binlog" is
    MySQL's file, position and row as one number. Together they fill a table with the merge engine `versioned`, which
    takes changes in any order.

    `key` names the primary key of the table, where that of the source is another one: an update that changes it also
    deletes the old row.

    `wrong` determines what happens to invalid events, and to events whose values do not have the column's type. "fail"
    ends the query. "drop" skips them; a stream reports their number as the observed metric `forebay_debezium.wrong`.
    "only" returns only them, with a column `_error`, to be written to a separate table. Raises `InvalidRequest`.
    """
    version = None if version_column is None else _version_of(version_column)
    row_type = schema if isinstance(schema, StructType) else _type_of(f"struct<{schema}>")
    if not isinstance(row_type, StructType):
        raise InvalidRequest(f"schema={schema!r} is no list of columns and types, as in 'id BIGINT, name STRING'")
    if wrong not in WRONG:
        raise InvalidRequest(f"wrong={wrong!r} is none of {', '.join(map(repr, WRONG))}")
    if column not in df.columns:
        raise InvalidRequest(f"the data has no column '{column}', only {', '.join(df.columns)}")
    marked = _Marked(row_type, one_or_more_names(key, "key"), deleted_column, version)
    retained = one_or_more_names(keep, "keep")
    for name in retained:
        if name not in df.columns or name in marked.row_type.names:
            existing = (
                f"the columns of the data are {', '.join(df.columns)}, those of the rows "
                f"{', '.join(marked.row_type.names)}"
            )
            raise InvalidRequest(f"keep={name!r} is not a column of the data alone: {existing}")
    events = df.where(f.col(column).isNotNull())
    read = _read(
        events if wrong == ONLY else events.select(column, *(k for k in retained if k != column)), column, marked
    )
    error = f.col(_ERROR)
    if wrong == ONLY:
        return read.where(error.isNotNull()).select(error.alias(ERROR_COLUMN), *df.columns)
    if wrong == FAIL:
        message = f.concat(f.lit("no change event of Debezium: "), error, f.lit(" in "), f.col(column).cast("string"))
        right = read.where(f.when(error.isNull(), True).otherwise(f.raise_error(message).cast("boolean")))
    else:
        counted = read.observe("forebay_debezium", f.count(error).alias("wrong"))
        right = counted.where(error.isNull())
    columns = [f.col(f"{_ROW}.`{field.name}`").alias(field.name) for field in marked.row_type.fields]
    kinds = [f.col(_KIND).alias(CHANGE_TYPE_COLUMN)] if deleted_column is None else []
    return right.select(*kinds, *columns, *retained)


def _version_of(text: str) -> VersionColumn:
    version = VersionColumn.parse(text)
    if version.field == KAFKA_OFFSET:
        raise InvalidRequest(f"version_column={text!r}: Spark's Kafka source has a column 'offset', for keep='offset'")
    return version


class _Marked:
    """The rows of events: their type with the columns that are added, and the key of their table."""

    def __init__(
        self, row_type: StructType, key: Sequence[str], flag: str | None, version: VersionColumn | None
    ) -> None:
        """Raises `InvalidRequest` for names that the rows have already, or do not have."""
        self.key, self.flag, self.version = tuple(key), flag, version
        added = [StructField(flag, BooleanType(), False)] if flag is not None else []
        added += [StructField(version.name, LongType(), False)] if version is not None else []
        existing = f"the columns of the rows are {', '.join(row_type.names)}"
        names = [field.name.lower() for field in (*row_type.fields, *added)]
        for field in added:
            if names.count(field.name.lower()) > 1:
                raise InvalidRequest(f"column '{field.name}' cannot be added, because there is one: {existing}")
        for name in self.key:
            if name not in row_type.names:
                raise InvalidRequest(f"key={name!r} is not a column: {existing}")
        self.row_type = StructType([*row_type.fields, *added])
        self.columns: Sequence[Column] = tuple(from_spark_schema(self.row_type))
        self.names = {column.name for column in self.columns}

    def rows(self, texts: Sequence[bytes | None]) -> tuple[list[EventRow], dict[int, str]]:
        """The rows of events, and what is wrong with others, by their index."""
        read, wrong = decode(texts, None if self.version is None else self.version.of)
        marks = Marks(self.columns, self.flag, self.version)
        rows: list[EventRow] = []
        for row in read:
            try:
                rows += self._whole(row, texts[row.at] or b"", marks)
            except Fault as e:
                wrong[row.at] = str(e)
        return rows, wrong

    def _whole(self, row: EventRow, text: bytes, marks: Marks) -> list[EventRow]:
        if self.flag is None or row.kind != DELETE:  # a row that is marked as deleted may lack values
            fault = unlogged_fault(row, unlogged(row, text, self.names), self.names)
            if fault is not None:
                raise Fault(fault)
        return [marks.marked(each) for each in (with_changed_key(row, self.key) if self.key else [row])]


def _type_of(text: str) -> DataType:
    parsed = StructType.fromDDL(f"t {text}")
    return parsed.fields[0].dataType if isinstance(parsed, StructType) else parsed


def _read(df: DataFrame, column: str, marked: _Marked) -> DataFrame:
    """`df` with three more columns: the change type of each row of an event, the row, and why an event is invalid."""
    row = StructType([StructField(field.name, field.dataType) for field in marked.row_type.fields])
    read = [StructField(_KIND, StringType()), StructField(_ROW, row), StructField(_ERROR, StringType())]
    texts = df.withColumn(_EVENT, f.col(column).cast("string").cast(BinaryType()))
    return texts.mapInArrow(_decoder(marked, spark_arrow_schema(StructType(read))), StructType([*df.schema, *read]))


def _decoder(marked: _Marked, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that workers apply to batches: it replaces the last column, the events, by those of `schema`."""

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            places, events = _decoded(batch.column(batch.num_columns - 1).to_pylist(), marked, schema)
            arrays = [*(column.take(places) for column in batch.columns[:-1]), *events]
            yield pa.RecordBatch.from_arrays(arrays, [*batch.schema.names[:-1], *schema.names])

    return decoded


def _decoded(texts: list[bytes | None], marked: _Marked, schema: pa.Schema) -> tuple[pa.Array, list[pa.Array]]:
    """The change type, row and error of each row, with the types of `schema`, behind the indexes of their texts.

    A text has rows, mostly one, or an error.
    """
    rows, wrong = marked.rows(texts)
    fitting = columns_of(rows, marked.columns, _TIME_UNIT, marked.names)
    wrong |= fitting.wrong
    found: list[tuple[int, int | None]] = [(row.at, place) for place, row in enumerate(fitting.rows)]
    found = sorted([*found, *((at, None) for at in wrong)], key=lambda each: each[0])
    take = pa.array([place for _, place in found], pa.int32())
    kinds = pa.array([row.kind for row in fitting.rows], pa.string()).take(take)
    row_type = schema.field(_ROW).type
    values = [array.take(take).cast(row_type.field(i).type) for i, array in enumerate(fitting.arrays)]
    errors = pa.array([wrong.get(at) for at, _ in found], pa.string())
    places = pa.array([at for at, _ in found], pa.int32())
    return places, [kinds, pa.StructArray.from_arrays(values, fields=list(row_type)), errors]
