"""Conversion between Fluss types and Spark types.

| Fluss | Spark | |
|---|---|---|
| CHAR(n), VARCHAR(n), STRING | STRING | in catalogs, columns have their lengths (`catalog_schema`) |
| BINARY(n), BYTES | BINARY | |
| TIMESTAMP(p) | TIMESTAMP_NTZ | microseconds: digits 7 to 9 are cut off |
| TIMESTAMP_LTZ(p) | TIMESTAMP | the same |
| TIME(p) | TIME(min(p, 6)) | where Spark has the type switched on |
| all others | their namesakes | |

The other way TIMESTAMP is TIMESTAMP_LTZ(6), and BINARY is BYTES. Comments of columns travel in the
metadata of Spark's fields, as Spark itself does it. Struct fields keep their descriptions the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as spark_types

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec.casting.arrays import TEXT_TYPES
from forebay.metadata import types
from forebay.metadata.table import Column, TableInfo
from forebay.metadata.types import DataType, TypeRoot, walk
from forebay.spark.jvm.releases import TIME_TYPE, arrow_schema

if TYPE_CHECKING:
    from forebay.paimon.format.schema import DataField, TableSchema

MICROSECOND_DIGITS = 6
"""The precision of Spark's timestamps and times: microseconds."""

CURRENT_DEFAULT = "CURRENT_DEFAULT"
"""The key of a field's default value, as SQL text, in its metadata."""

EXISTS_DEFAULT = "EXISTS_DEFAULT"
"""The metadata key of the value that older rows have in an added column."""

_TEXT_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata key of the type of a STRING column that is CHAR(n) or VARCHAR(n)."""

_SIZED_TEXT = re.compile(r"(char|varchar)\((\d+)\)")

_R = TypeRoot
_TO_SPARK: dict[TypeRoot, type[spark_types.DataType]] = {
    _R.BOOLEAN: spark_types.BooleanType,
    _R.TINYINT: spark_types.ByteType,
    _R.SMALLINT: spark_types.ShortType,
    _R.INT: spark_types.IntegerType,
    _R.BIGINT: spark_types.LongType,
    _R.FLOAT: spark_types.FloatType,
    _R.DOUBLE: spark_types.DoubleType,
    _R.CHAR: spark_types.StringType,
    _R.STRING: spark_types.StringType,
    _R.BINARY: spark_types.BinaryType,
    _R.BYTES: spark_types.BinaryType,
    _R.DATE: spark_types.DateType,
    _R.TIMESTAMP: spark_types.TimestampNTZType,
    _R.TIMESTAMP_LTZ: spark_types.TimestampType,
}
_FROM_SPARK: dict[type[spark_types.DataType], DataType] = {
    spark_types.BooleanType: types.boolean(),
    spark_types.ByteType: types.tinyint(),
    spark_types.ShortType: types.smallint(),
    spark_types.IntegerType: types.int_(),
    spark_types.LongType: types.bigint(),
    spark_types.FloatType: types.float_(),
    spark_types.DoubleType: types.double(),
    spark_types.StringType: types.string(),
    spark_types.BinaryType: types.bytes_(),
    spark_types.DateType: types.date(),
    spark_types.TimestampNTZType: types.timestamp(MICROSECOND_DIGITS),
    spark_types.TimestampType: types.timestamp_ltz(MICROSECOND_DIGITS),
}


# ---- Fluss -> Spark -------------------------------------------------------------------------------------------------


def to_spark_type(t: DataType) -> spark_types.DataType:
    """The Spark type for a Fluss type. Raises `UnsupportedOperation` for TIME if this Spark does not have it."""
    plain = _TO_SPARK.get(t.root)
    if plain is not None:
        return plain()
    match t.root:
        case TypeRoot.DECIMAL:
            return spark_types.DecimalType(t.precision or 0, t.scale or 0)
        case TypeRoot.TIME:
            if TIME_TYPE is None:
                raise UnsupportedOperation("type TIME needs Spark 4.1 or newer")
            time_type: spark_types.DataType = TIME_TYPE(min(t.precision or 0, MICROSECOND_DIGITS))
            return time_type
        case TypeRoot.ARRAY:
            element = types.child(t.element)
            return spark_types.ArrayType(to_spark_type(element), element.nullable)
        case TypeRoot.MAP:
            value = types.child(t.value)
            return spark_types.MapType(to_spark_type(types.child(t.key)), to_spark_type(value), value.nullable)
        case _:
            return spark_types.StructType([_field(f.name, f.data_type, f.description) for f in t.fields])


def _field(name: str, t: DataType, comment: str | None) -> spark_types.StructField:
    metadata = {} if comment is None else {"comment": comment}
    return spark_types.StructField(name, to_spark_type(t), t.nullable, metadata)


def to_spark_schema(columns: Sequence[Column], defaults: Mapping[str, str] | None = None) -> spark_types.StructType:
    """The Spark schema of columns, with their comments and the DEFAULT values in `defaults`."""
    fields = [_field(column.name, column.data_type, column.comment) for column in columns]
    for field in fields:
        if defaults and field.name in defaults:
            _set_default(field, defaults[field.name])
    return spark_types.StructType(fields)


def catalog_schema(columns: Sequence[Column], defaults: Mapping[str, str] | None = None) -> spark_types.StructType:
    """The schema as which a catalog shows columns: as `to_spark_schema`, with lengths that Spark checks.

    They are in the metadata of STRING columns, where Spark itself keeps them: streams refuse columns of type VARCHAR. A
    CHAR(n) is shown as VARCHAR(n): Spark would expect padded values, and neither Fluss nor Paimon pad.
    """
    schema = to_spark_schema(columns, defaults)
    for column, field in zip(columns, schema.fields, strict=True):
        if column.data_type.root in TEXT_TYPES and column.data_type.length is not None:
            field.metadata[_TEXT_TYPE] = f"varchar({column.data_type.length})"
    return schema


def _set_default(field: spark_types.StructField, text: str) -> None:
    """Set DEFAULT `text`, an SQL expression for new rows. Existing rows have null."""
    field.metadata.update({CURRENT_DEFAULT: text, EXISTS_DEFAULT: "NULL"})


def uses_time(columns: Sequence[Column]) -> str | None:
    """The name of the first column whose type contains TIME."""
    return next((c.name for c in columns if _contains_time(c.data_type)), None)


@lru_cache(maxsize=4096)
def _contains_time(t: DataType) -> bool:
    return any(part.root is TypeRoot.TIME for part in walk(t))


def spark_arrow_schema(schema: spark_types.StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for rows of `schema`, including field names and metadata."""
    plain = [spark_types.StructField(field.name, field.dataType, field.nullable) for field in schema.fields]
    return arrow_schema(spark_types.StructType(plain))


# ---- Spark -> Fluss -------------------------------------------------------------------------------------------------


def from_spark_type(t: spark_types.DataType, path: str) -> DataType:
    """The Fluss type for a Spark type; `path` names the column in errors.

    Raises `InvalidRequest` for types that Fluss does not have.
    """
    plain = _FROM_SPARK.get(type(t))
    if plain is not None:
        if isinstance(t, spark_types.StringType) and not t.isUTF8BinaryCollation():
            raise _no_such_type(t, path, "only the default collation UTF8_BINARY can be stored")
        return plain
    if isinstance(t, spark_types.CharType):
        return types.char(t.length)
    if isinstance(t, spark_types.VarcharType):
        return types.string(t.length)
    if isinstance(t, spark_types.DecimalType):
        return types.decimal(t.precision, t.scale)
    if TIME_TYPE is not None and isinstance(t, TIME_TYPE):
        return types.time(t.precision)
    if isinstance(t, spark_types.ArrayType):
        return types.array(_nullable(from_spark_type(t.elementType, f"{path}.element"), t.containsNull))
    if isinstance(t, spark_types.MapType):
        key = from_spark_type(t.keyType, f"{path}.key")
        return types.map_(key, _nullable(from_spark_type(t.valueType, f"{path}.value"), t.valueContainsNull))
    if isinstance(t, spark_types.StructType):
        columns = (_column(field, f"{path}.{field.name}") for field in t.fields)
        return types.row(*(types.field(c.name, c.data_type, c.comment) for c in columns))
    raise _no_such_type(t, path, "cast it to another type")


def _field_type(field: spark_types.StructField, path: str) -> DataType:
    """The type of a column, whose length may be in its metadata: CREATE TABLE LIKE has it there."""
    sized = _SIZED_TEXT.fullmatch((field.metadata or {}).get(_TEXT_TYPE, ""))
    if sized is None or not isinstance(field.dataType, spark_types.StringType):
        return from_spark_type(field.dataType, path)
    return (types.char if sized[1] == "char" else types.string)(int(sized[2]))


def _nullable(t: DataType, nullable: bool) -> DataType:
    return t if nullable else t.not_null()


def _no_such_type(t: spark_types.DataType, path: str, advice: str) -> InvalidRequest:
    return InvalidRequest(
        f"column '{path}' has type {t.simpleString()}, which tables cannot have; {advice}",
        ErrorCode.INVALID_TABLE_EXCEPTION,
    )


def default_of(field: spark_types.StructField, is_copy: bool = False) -> str | None:
    """The DEFAULT that a new column is given, as SQL text; a copy has that of the table that it comes from.

    The columns of a query also have the DEFAULT of their table in their metadata, but a new table does not get it.
    Spark marks such a column with NULL as the value of old rows, and a column with its own DEFAULT with that.
    """
    metadata = field.metadata or {}
    is_inherited = str(metadata.get(EXISTS_DEFAULT, "")).removeprefix("CAST(").startswith("NULL")
    return None if is_inherited and not is_copy else metadata.get(CURRENT_DEFAULT)


def default_option(column: str) -> str:
    """The custom property of a live table with the DEFAULT of a column, as named in Paimon."""
    return f"fields.{column}.default-value"


def default_values(info: TableInfo) -> dict[str, str]:
    """The DEFAULT values of a live table's columns, as SQL text."""
    custom = info.descriptor.custom_properties
    return {name: custom[default_option(name)] for name in info.schema.names if default_option(name) in custom}


def from_spark_schema(schema: spark_types.StructType) -> list[Column]:
    """The columns for a Spark schema. Raises `InvalidRequest` that names the first unsupported column."""
    return [_column(field, field.name) for field in schema.fields]


def _column(field: spark_types.StructField, path: str) -> Column:
    t = _nullable(_field_type(field, path), field.nullable)
    return Column(field.name, t, (field.metadata or {}).get("comment"))


def columns_of(schema: TableSchema) -> tuple[Column, ...]:
    """The columns of a table, in the form that filters refer to."""
    return tuple(Column(f.name, f.type, f.description) for f in schema.fields)


def table_schema(fields: Sequence[DataField]) -> spark_types.StructType:
    """The `catalog_schema` of a lake table or view with these fields."""
    columns = [Column(f.name, f.type, f.description) for f in fields]
    return catalog_schema(columns, {f.name: f.default for f in fields if f.default is not None})


def to_fields(schema: spark_types.StructType, is_copy: bool = False) -> list[DataField]:
    """The fields of a new table; a copy also has the default values of the table that the schema comes from.

    Raises `InvalidRequest` naming the first column that cannot be.
    """
    from forebay.paimon.format.schema import DataField  # workers of clusters' tables do not need the lake engine

    fields = []
    for f in schema.fields:
        t, metadata = _nullable(_field_type(f, f.name), f.nullable), f.metadata or {}
        fields.append(DataField(-1, f.name, t, metadata.get("comment"), default_of(f, is_copy)))
    return fields
