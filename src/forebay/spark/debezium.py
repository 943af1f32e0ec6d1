"""Debezium's change events as rows with a `_change_type`, which live tables and lake tables take.

Source of the envelope and of how values are written: Debezium's documentation of its connectors ("Change events",
"Data type mappings"), for the JSON converter with and without the schema part (`value.converter.schemas.enable`).

Everything here is expressions of Spark, so it runs in the JVM, in batches and in streams.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.base.arguments import one_or_more_names
from forebay.base.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

FAIL, DROP, ONLY = WRONG = ("fail", "drop", "only")
ERROR_COLUMN = "_error"

_EVENT, _PAYLOAD, _KIND, _VALUES, _TYPES, _ROW, _ERROR = (
    f"__forebay_{step}" for step in ("event", "payload", "kind", "values", "types", "row", "error")
)
_KINDS = {"c": "insert", "r": "insert", "u": "update_after", "d": "delete"}
"""By Debezium's `op`: create, read (of a snapshot), update, delete. Others (truncate, message) are no rows."""

_PLACEHOLDER = "__debezium_unavailable_value"
_UNAVAILABLE = (_PLACEHOLDER, f'["{_PLACEHOLDER}"]', base64.b64encode(_PLACEHOLDER.encode()).decode())
"""What stands for a large value of PostgreSQL that an update has left as it is: as a text, an array and bytes."""

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_PER_SECOND = {
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1_000_000,
    "io.debezium.time.NanoTimestamp": 1_000_000_000,
}
"""Ticks of the types whose values are numbers since 1970."""


def from_debezium(
    df: DataFrame,
    schema: StructType | str,
    *,
    column: str = "value",
    keep: Sequence[str] | str = (),
    wrong: str = FAIL,
) -> DataFrame:
    """The rows of Debezium's change events in `column`, a text or bytes, with `_change_type` in front of the columns.

    `schema` is that of the rows: DDL text, or a StructType. A delete has the old row. Empty values (tombstones) are
    left out. Dates, times, decimals and bytes are read as Debezium writes them. With the schema part, timestamps have
    the unit that it names, and decimals may be bytes (of up to 18 digits); without it, timestamps that are numbers are
    milliseconds, and decimals numbers or texts (`decimal.handling.mode`).

    `keep` names columns of `df` that stay, behind those of the rows: an event's place in the database's log or a topic
    (`write.sequence.field` orders by it), which the old row of a delete does not have.

    `wrong` says what happens to events that are none, or whose values are not of the type: "fail" ends the query,
    "drop" leaves them out (a stream reports their number as the observed metric `forebay_debezium.wrong`), and "only"
    returns nothing but them, with a column `_error`: for a table of their own. Raises `InvalidRequest`.
    """
    wanted = schema if isinstance(schema, StructType) else _type_of(f"struct<{schema}>")
    if not isinstance(wanted, StructType):
        raise InvalidRequest(f"schema={schema!r} is no list of columns and types, as in 'id BIGINT, name STRING'")
    if wrong not in WRONG:
        raise InvalidRequest(f"wrong={wrong!r} is none of {', '.join(map(repr, WRONG))}")
    if column not in df.columns:
        raise InvalidRequest(f"the data has no column '{column}', only {', '.join(df.columns)}")
    kept = one_or_more_names(keep, "keep")
    for name in kept:
        if name not in df.columns or name in wanted.names:
            found = f"the columns of the data are {', '.join(df.columns)}, those of the rows {', '.join(wanted.names)}"
            raise InvalidRequest(f"keep={name!r} is not a column of the data alone: {found}")
    given = df.where(f.col(column).isNotNull())
    read = _read(given if wrong == ONLY else given.select(column, *(k for k in kept if k != column)), column, wanted)
    error = f.col(_ERROR)
    if wrong == ONLY:
        return read.where(error.isNotNull()).select(error.alias(ERROR_COLUMN), *df.columns)
    if wrong == FAIL:
        shown = f.concat(f.lit("no change event of Debezium: "), error, f.lit(" in "), f.col(column).cast("string"))
        right = read.where(f.when(error.isNull(), True).otherwise(f.raise_error(shown).cast("boolean")))
    else:
        counted = read.observe("forebay_debezium", f.count(error).alias("wrong"))
        right = counted.where(error.isNull())
    columns = [f.col(f"{_ROW}.`{field.name}`").alias(field.name) for field in wanted.fields]
    return right.select(f.col(_KIND).alias(CHANGE_TYPE_COLUMN), *columns, *kept)


def _read(df: DataFrame, column: str, wanted: StructType) -> DataFrame:
    """`df` with the row, its change type, and what is wrong with it, if anything.

    In steps, each a column of its own: Spark would write an expression out at each of its uses.
    """
    # Texts, which any value becomes: of other types Spark would guess values, or make them null.
    row = StructType([StructField(field.name, StringType()) for field in wanted.fields])
    event = StructType([StructField("before", row), StructField("after", row), StructField("op", StringType())])
    of_column = "struct<field: string, name: string, parameters: map<string, string>>"
    described = _type_of(f"struct<fields: array<struct<field: string, fields: array<{of_column}>>>>")
    envelope = StructType([*event.fields, StructField("payload", event), StructField("schema", described)])
    df = df.withColumn(_EVENT, f.from_json(f.col(column).cast("string"), envelope, {"mode": "PERMISSIVE"}))
    read = f.col(_EVENT)
    plain = f.struct(read["before"], read["after"], read["op"])
    df = df.withColumn(_PAYLOAD, f.when(read["payload"].isNotNull(), read["payload"]).otherwise(plain))
    kinds = f.create_map(*(f.lit(word) for pair in _KINDS.items() for word in pair))
    payload, kind, values = f.col(_PAYLOAD), f.col(_KIND), f.col(_VALUES)
    df = df.withColumn(_KIND, kinds[payload["op"]])
    of_after = f.get(f.filter(read["schema"]["fields"], lambda part: part["field"] == "after"), f.lit(0))
    df = df.withColumns(
        {
            _VALUES: f.when(kind == "delete", payload["before"]).otherwise(payload["after"]),
            _TYPES: of_after["fields"],
        }
    )
    columns = [_value(values[field.name], field, f.col(_TYPES)).alias(field.name) for field in wanted.fields]
    df = df.withColumn(_ROW, f.struct(*columns))
    error = (
        f.when(kind.isNull(), f.concat(f.lit("its op is "), f.coalesce(payload["op"], f.lit("missing"))))
        .when(values.isNull(), f.lit("it has no row"))
        .otherwise(_first_error(values, f.col(_ROW), wanted))
    )
    return df.withColumn(_ERROR, error)


def _type_of(text: str) -> DataType:
    found = StructType.fromDDL(f"t {text}")
    return found.fields[0].dataType if isinstance(found, StructType) else found


def _first_error(values: Column, row: Column, wanted: StructType) -> Column:
    found = f.lit(None).cast("string")
    for field in reversed(wanted.fields):
        given, value = values[field.name], row[field.name]
        if isinstance(field.dataType, StringType | BinaryType | ArrayType):
            unlogged = f"the database did not log '{field.name}': ALTER TABLE ... REPLICA IDENTITY FULL there"
            found = f.when(given.isin(*_UNAVAILABLE), unlogged).otherwise(found)
        if not field.nullable:
            found = f.when(value.isNull(), f"'{field.name}' is missing").otherwise(found)
        found = f.when(
            given.isNotNull() & value.isNull(), f"'{field.name}' is no {field.dataType.simpleString()}"
        ).otherwise(found)
    return found


def _value(given: Column, field: StructField, types: Column) -> Column:
    """A value in its type; null if it is none."""
    t = field.dataType
    of_field = f.get(f.filter(types, lambda part: part["field"] == field.name), f.lit(0))
    if isinstance(t, BinaryType):
        return f.try_to_binary(given, f.lit("base64"))
    if isinstance(t, DateType):
        return f.when(given.rlike(r"^-?\d+$"), f.date_from_unix_date(given.try_cast("int"))).otherwise(
            given.try_cast(t)
        )
    if isinstance(t, TimestampType | TimestampNTZType):
        ticks = f.create_map(*(f.lit(word) for pair in _PER_SECOND.items() for word in pair))
        per_second = f.coalesce(ticks[of_field["name"]], f.lit(1_000))
        number = given.try_cast("decimal(20,0)")
        moment = f.timestamp_micros((number * 1_000_000 / per_second).cast("bigint"))
        if isinstance(t, TimestampNTZType):  # the number is local time, written as if it were UTC
            moment = f.convert_timezone(f.current_timezone(), f.lit("UTC"), moment.cast("timestamp_ntz"))
        return f.when(given.rlike(r"^-?\d+$"), moment).otherwise(given.try_cast(t))
    if isinstance(t, DecimalType):
        is_bytes = of_field["name"] == _DECIMAL
        scale = f.coalesce(of_field["parameters"]["scale"].cast("int"), f.lit(0))
        return f.when(is_bytes, _decimal_text(given, scale).try_cast(t)).otherwise(given.try_cast(t))
    if isinstance(t, BooleanType):
        return f.when(given.isin("true", "1"), True).when(given.isin("false", "0"), False)
    return _nested(given, t) if isinstance(t, ArrayType | MapType | StructType) else given.try_cast(t)


def _nested(given: Column, t: DataType) -> Column:
    """The value of a nested type; null if any part of it is not of its type, of which Spark alone would make a null."""
    wrapped = StructType([StructField("v", t), StructField(_ERROR, StringType())])
    read = f.from_json(f.concat(f.lit('{"v":'), given, f.lit("}")), wrapped, {"columnNameOfCorruptRecord": _ERROR})
    return f.when(read[_ERROR].isNull(), read["v"])


def _decimal_text(given: Column, scale: Column) -> Column:
    """The digits of a decimal that was written as the bytes of a big-endian integer, in base64; null beyond 8 bytes."""
    digits = f.hex(f.try_to_binary(given, f.lit("base64")))
    sign = f.when(f.substring(digits, 1, 1) >= "8", "F").otherwise("0")
    whole = f.conv(f.lpad(digits, 16, sign), 16, -10)
    plain = f.lpad(f.ltrim(f.translate(whole, "-", " ")), f.greatest(scale + 1, f.length(whole)), f.lit("0"))
    point = f.length(plain) - scale
    text = f.concat(
        f.when(whole.startswith("-"), "-").otherwise(""),
        f.substring(plain, f.lit(1), point),
        f.lit("."),
        f.substring(plain, point + 1, scale),
    )
    return f.when(f.length(digits).between(1, 16), text)
