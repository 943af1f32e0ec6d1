"""Converts Debezium's change events to rows with a `_change_type`, as writes to live and lake tables expect them.

Python workers decode batches of events with `forebay.debezium`, as `forebay ingest` does. Spark passes the texts to the
workers, and receives the rows, as Arrow columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.base.arguments import one_or_more_names
from forebay.base.errors import InvalidRequest
from forebay.debezium.columns import columns_of
from forebay.debezium.events import decode, whole_rows
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
) -> DataFrame:
    """The rows of Debezium's change events in `column`, a text or bytes, with `_change_type` in front of the columns.

    `schema` is the schema of the rows: DDL text, or a StructType. A delete has the old row. Empty values (tombstones)
    are skipped. Values are read in Debezium's notation, and are never rounded. In events with a schema part, timestamps
    have the unit that it names, and decimals may be bytes. In events without one, numeric timestamps are milliseconds,
    and decimals are numbers or texts (`decimal.handling.mode`). Rows must be complete: an event without a value that
    the database did not log (a large value of PostgreSQL that an update left unchanged) is invalid.

    `keep` names columns of `df` that are appended to those of the rows. An example is the event's position in the
    database's log or in a topic, by which `write.sequence.field` orders; the old row of a delete has no such position.

    `wrong` determines what happens to invalid events, and to events whose values do not have the column's type. "fail"
    ends the query. "drop" skips them; a stream reports their number as the observed metric `forebay_debezium.wrong`.
    "only" returns only them, with a column `_error`, to be written to a separate table. Raises `InvalidRequest`.
    """
    row_type = schema if isinstance(schema, StructType) else _type_of(f"struct<{schema}>")
    if not isinstance(row_type, StructType):
        raise InvalidRequest(f"schema={schema!r} is no list of columns and types, as in 'id BIGINT, name STRING'")
    if wrong not in WRONG:
        raise InvalidRequest(f"wrong={wrong!r} is none of {', '.join(map(repr, WRONG))}")
    if column not in df.columns:
        raise InvalidRequest(f"the data has no column '{column}', only {', '.join(df.columns)}")
    retained = one_or_more_names(keep, "keep")
    for name in retained:
        if name not in df.columns or name in row_type.names:
            existing = (
                f"the columns of the data are {', '.join(df.columns)}, those of the rows {', '.join(row_type.names)}"
            )
            raise InvalidRequest(f"keep={name!r} is not a column of the data alone: {existing}")
    events = df.where(f.col(column).isNotNull())
    read = _read(
        events if wrong == ONLY else events.select(column, *(k for k in retained if k != column)), column, row_type
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
    columns = [f.col(f"{_ROW}.`{field.name}`").alias(field.name) for field in row_type.fields]
    return right.select(f.col(_KIND).alias(CHANGE_TYPE_COLUMN), *columns, *retained)


def _type_of(text: str) -> DataType:
    parsed = StructType.fromDDL(f"t {text}")
    return parsed.fields[0].dataType if isinstance(parsed, StructType) else parsed


def _read(df: DataFrame, column: str, row_type: StructType) -> DataFrame:
    """`df` with three more columns: the change type of each event, its row, and the reason if it is invalid."""
    row = StructType([StructField(field.name, field.dataType) for field in row_type.fields])
    read = [StructField(_KIND, StringType()), StructField(_ROW, row), StructField(_ERROR, StringType())]
    texts = df.withColumn(_EVENT, f.col(column).cast("string").cast(BinaryType()))
    decoded = _decoder(tuple(from_spark_schema(row_type)), spark_arrow_schema(StructType(read)))
    return texts.mapInArrow(decoded, StructType([*df.schema.fields, *read]))


def _decoder(
    columns: Sequence[Column], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that workers apply to batches: it replaces the last column, the events, by those of `schema`."""

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            events = _decoded(batch.column(batch.num_columns - 1).to_pylist(), columns, schema)
            arrays = [*batch.columns[:-1], *events]
            yield pa.RecordBatch.from_arrays(arrays, [*batch.schema.names[:-1], *schema.names])

    return decoded


def _decoded(texts: list[bytes | None], columns: Sequence[Column], schema: pa.Schema) -> list[pa.Array]:
    """The change type, row and error of each text, with the types of `schema`. A text has either a row or an error."""
    names = {column.name for column in columns}
    rows, wrong = decode(texts)
    rows, unlogged = whole_rows(rows, texts, names)
    fitting = columns_of(rows, columns, _TIME_UNIT, names)
    wrong |= unlogged | fitting.wrong
    places: list[int | None] = [None] * len(texts)
    for place, row in enumerate(fitting.rows):
        places[row.at] = place
    take = pa.array(places, pa.int32())
    kinds = pa.array([row.kind for row in fitting.rows], pa.string()).take(take)
    row_type = schema.field(_ROW).type
    values = [array.take(take).cast(row_type.field(i).type) for i, array in enumerate(fitting.arrays)]
    errors = pa.array([wrong.get(at) for at in range(len(texts))], pa.string())
    return [kinds, pa.StructArray.from_arrays(values, fields=list(row_type)), errors]
