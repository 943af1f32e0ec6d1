"""Spark's schemas and Paimon's fields, both ways.

Types are those of forebay.spark.schemas, except that VARCHAR(n) columns stay what they are: Spark then checks their
lengths itself. (CHAR(n) is STRING: Spark would pad it wherever it is read, and cannot delete from such tables.)

Comments and default values travel in the metadata of Spark's fields, as Spark has them there. A default value is the
SQL text that Spark was given, quotes and all, as Java Paimon keeps it. Beside it Spark wants the value that old rows
have in a column, which here is always NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import types as spark_types

from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.metadata.types import DataType, TypeRoot
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.spark.schemas import CURRENT_DEFAULT, EXISTS_DEFAULT, default_of, from_spark_type, to_spark_type


def columns_of(schema: TableSchema) -> tuple[Column, ...]:
    """The columns of a table, as filters are made for them."""
    return tuple(Column(f.name, f.type, f.description) for f in schema.fields)


def table_schema(fields: Sequence[DataField]) -> spark_types.StructType:
    """What DESCRIBE shows: types, comments and default values."""
    return spark_types.StructType([_spark_field(f) for f in fields])


def _spark_field(f: DataField) -> spark_types.StructField:
    metadata = {}
    if f.description is not None:
        metadata["comment"] = f.description
    if f.default is not None:
        metadata[CURRENT_DEFAULT] = f.default
        metadata[EXISTS_DEFAULT] = "NULL"
    return spark_types.StructField(f.name, _column_type(f.type), f.type.nullable, metadata)


def _column_type(t: DataType) -> spark_types.DataType:
    if t.root is TypeRoot.STRING and t.length is not None:
        return spark_types.VarcharType(t.length)
    return to_spark_type(t)


def to_fields(schema: spark_types.StructType, is_copy: bool = False) -> list[DataField]:
    """The fields of a new table; a copy also has the default values of the table that the schema comes from.

    Raises `InvalidRequest` naming the first column that cannot be.
    """
    return [_field(f, is_copy) for f in schema.fields]


def _field(f: spark_types.StructField, is_copy: bool) -> DataField:
    t = from_spark_column_type(f.dataType, f.name)
    metadata = f.metadata or {}
    default = metadata.get(CURRENT_DEFAULT) if is_copy else default_of(f)
    return DataField(-1, f.name, t if f.nullable else t.not_null(), metadata.get("comment"), default)


def from_spark_column_type(t: spark_types.DataType, path: str) -> DataType:
    """The type for a column of Spark type `t`, which may be a VARCHAR(n)."""
    if isinstance(t, spark_types.VarcharType):
        return replace(types.string(), length=t.length)
    return from_spark_type(t, path)
