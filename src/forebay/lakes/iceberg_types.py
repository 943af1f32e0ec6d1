"""Types and values between the stream, Iceberg and Arrow.

The mapping is that of a Fluss cluster: CHAR is a string, BINARY binary, TINYINT and SMALLINT are ints, times and
timestamps have six digits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.types import DataType, TypeRoot, child

FIELD_ID = b"PARQUET:field_id"
"""Arrow's metadata key for a column's id in Parquet files."""

_DIGITS_MAX = 6
_TO_ICEBERG: dict[TypeRoot, IcebergType] = {
    TypeRoot.BOOLEAN: BooleanType(),
    TypeRoot.TINYINT: IntegerType(),
    TypeRoot.SMALLINT: IntegerType(),
    TypeRoot.INT: IntegerType(),
    TypeRoot.BIGINT: LongType(),
    TypeRoot.FLOAT: FloatType(),
    TypeRoot.DOUBLE: DoubleType(),
    TypeRoot.CHAR: StringType(),
    TypeRoot.STRING: StringType(),
    TypeRoot.BINARY: BinaryType(),
    TypeRoot.BYTES: BinaryType(),
    TypeRoot.DATE: DateType(),
    TypeRoot.TIME: TimeType(),
    TypeRoot.TIMESTAMP: TimestampType(),
    TypeRoot.TIMESTAMP_LTZ: TimestamptzType(),
}
_PLAIN: dict[type[IcebergType], tuple[pa.DataType, DataType]] = {
    BooleanType: (pa.bool_(), types.boolean()),
    IntegerType: (pa.int32(), types.int_()),
    LongType: (pa.int64(), types.bigint()),
    FloatType: (pa.float32(), types.float_()),
    DoubleType: (pa.float64(), types.double()),
    StringType: (pa.string(), types.string()),
    BinaryType: (pa.binary(), types.bytes_()),
    DateType: (pa.date32(), types.date()),
    TimeType: (pa.time64("us"), types.time(6)),
    TimestampType: (pa.timestamp("us"), types.timestamp(6)),
    TimestamptzType: (pa.timestamp("us", "UTC"), types.timestamp_ltz(6)),
    TimestampNanoType: (pa.timestamp("ns"), types.timestamp(9)),
    TimestamptzNanoType: (pa.timestamp("ns", "UTC"), types.timestamp_ltz(9)),
    UUIDType: (pa.binary(16), types.binary(16)),
}


# ---- stream -> Iceberg ----------------------------------------------------------------------------------------------


def iceberg_type(t: DataType, next_id: Callable[[], int]) -> IcebergType:
    """The Iceberg type of a stream type; `next_id` returns ids for nested fields.

    Raises `UnsupportedOperation` for timestamps with nanoseconds, which version 2 of the table format does not support.
    """
    is_moment = t.root in (TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
    if is_moment and (t.precision or 0) > _DIGITS_MAX:
        raise UnsupportedOperation(f"{t} has more digits than the six that Iceberg tables keep")
    plain = _TO_ICEBERG.get(t.root)
    if plain is not None:
        return plain
    match t.root:
        case TypeRoot.DECIMAL:
            return DecimalType(t.precision or 10, t.scale or 0)
        case TypeRoot.ARRAY:
            element = child(t.element)
            converted = iceberg_type(element, next_id)
            return ListType(next_id(), converted, element_required=not element.nullable)
        case TypeRoot.MAP:
            key, value = child(t.key), child(t.value)
            key_id, value_id = next_id(), next_id()
            return MapType(
                key_id, iceberg_type(key, next_id), value_id, iceberg_type(value, next_id), not value.nullable
            )
        case TypeRoot.ROW:
            fields = []
            for f in t.fields:
                converted = iceberg_type(f.data_type, next_id)
                fields.append(NestedField(next_id(), f.name, converted, not f.data_type.nullable, f.description))
            return StructType(*fields)
    raise UnsupportedOperation(f"{t} has no Iceberg type")


def numbered(start: int) -> Callable[[], int]:
    """A generator of ids from `start` on."""
    numbers = count(start)
    return lambda: next(numbers)


def shape(t: IcebergType) -> Any:
    """A type without its field ids, for comparing types of different tables."""
    match t:
        case StructType():
            return "struct", tuple((f.name, f.required, shape(f.field_type)) for f in t.fields)
        case ListType():
            return "list", t.element_required, shape(t.element_type)
        case MapType():
            return "map", t.value_required, shape(t.key_type), shape(t.value_type)
    return str(t)


# ---- Iceberg -> Arrow, and back to the stream -----------------------------------------------------------------------


def arrow_type(t: IcebergType, with_ids: bool = False) -> pa.DataType:
    """The Arrow type; `with_ids`: its fields carry their Iceberg ids, as Parquet files require."""
    plain = _PLAIN.get(type(t))
    if plain is not None:
        return plain[0]
    match t:
        case DecimalType():
            return pa.decimal128(t.precision, t.scale)
        case FixedType():
            return pa.binary(len(t))
        case StructType():
            return pa.struct([arrow_field(f, with_ids) for f in t.fields])
        case ListType():
            return pa.list_(_named("element", t.element_field, with_ids))
        case MapType():
            return pa.map_(_named("key", t.key_field, with_ids), _named("value", t.value_field, with_ids))
    raise UnsupportedOperation(f"Iceberg's type {t} is not supported")


def arrow_field(f: NestedField, with_ids: bool = False) -> pa.Field:
    """The Arrow field of an Iceberg field."""
    return _named(f.name, f, with_ids)


def _named(name: str, f: NestedField, with_ids: bool) -> pa.Field:
    metadata = {FIELD_ID: str(f.field_id).encode()} if with_ids else None
    return pa.field(name, arrow_type(f.field_type, with_ids), nullable=not f.required, metadata=metadata)


def arrow_schema(fields: Iterable[NestedField], with_ids: bool = False) -> pa.Schema:
    """The Arrow schema of Iceberg fields."""
    return pa.schema([arrow_field(f, with_ids) for f in fields])


def stream_type(t: IcebergType) -> DataType:
    """The stream type for the values of an Iceberg type. Raises `InvalidRequest` for nested types."""
    plain = _PLAIN.get(type(t))
    if plain is not None:
        return plain[1]
    if isinstance(t, DecimalType):
        return types.decimal(t.precision, t.scale)
    if isinstance(t, FixedType):
        return types.binary(len(t))
    raise InvalidRequest(f"a column of Iceberg's type {t} cannot be compared")


# ---- partition values -----------------------------------------------------------------------------------------------


def internal_value(value: Any) -> Any:
    """A Python value as Iceberg's partitions store it: days and microseconds for dates and times."""
    match value:
        case dt.datetime():
            return datetime_to_micros(value.replace(tzinfo=None))
        case dt.date():
            return date_to_days(value)
        case dt.time():
            return time_to_micros(value)
    return value


def python_value(t: IcebergType, value: Any) -> Any:
    """The Python value, as returned by pyarrow, of a value in a partition of type `t`."""
    if isinstance(value, int):
        arrow = arrow_type(t)
        if pa.types.is_date32(arrow):
            return pa.scalar(value, pa.int32()).cast(arrow).as_py()
        if pa.types.is_time(arrow) or pa.types.is_timestamp(arrow):
            return pa.scalar(value, pa.int64()).cast(arrow).as_py()
    return value
