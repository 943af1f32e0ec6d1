"""Fluss types as Arrow types and back, and users' Arrow data cast to exactly what a table stores.

The mapping is Fluss's (docs/format/log_batch.md). Two points surprise people: TIMESTAMP_LTZ travels *without* a time
zone inside log batches, and strings are always 32-bit-offset Utf8. Towards our users an LTZ column carries
`tz="UTC"`; `storage_schema` and `user_schema` are the two views, and casting between them copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import DataType, TypeRoot

_PLAIN: dict[TypeRoot, pa.DataType] = {
    TypeRoot.BOOLEAN: pa.bool_(),
    TypeRoot.TINYINT: pa.int8(),
    TypeRoot.SMALLINT: pa.int16(),
    TypeRoot.INT: pa.int32(),
    TypeRoot.BIGINT: pa.int64(),
    TypeRoot.FLOAT: pa.float32(),
    TypeRoot.DOUBLE: pa.float64(),
    TypeRoot.CHAR: pa.string(),
    TypeRoot.STRING: pa.string(),
    TypeRoot.BYTES: pa.binary(),
    TypeRoot.DATE: pa.date32(),
}


def time_unit(precision: int | None) -> str:
    """Arrow's unit for a TIME or TIMESTAMP precision: 0 -> s, 1-3 -> ms, 4-6 -> us, 7-9 -> ns."""
    digits = 6 if precision is None else precision
    return "s" if digits == 0 else "ms" if digits <= 3 else "us" if digits <= 6 else "ns"


@lru_cache(maxsize=4096)
def arrow_type(t: DataType, ltz_zone: str | None = None) -> pa.DataType:
    """The Arrow type of `t`; `ltz_zone` is the zone that TIMESTAMP_LTZ carries (None on the wire, "UTC" for users)."""
    plain = _PLAIN.get(t.root)
    if plain is not None:
        return plain
    match t.root:
        case TypeRoot.BINARY:
            return pa.binary(t.length)
        case TypeRoot.DECIMAL:
            return pa.decimal128(t.precision, t.scale)
        case TypeRoot.TIME:
            unit = time_unit(t.precision)
            return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        case TypeRoot.TIMESTAMP:
            return pa.timestamp(time_unit(t.precision))
        case TypeRoot.TIMESTAMP_LTZ:
            return pa.timestamp(time_unit(t.precision), tz=ltz_zone)
        case TypeRoot.ARRAY:
            return pa.list_(_arrow_field("element", types.child(t.element), ltz_zone))
        case TypeRoot.MAP:
            return pa.map_(
                _arrow_field("key", types.child(t.key).not_null(), ltz_zone),
                _arrow_field("value", types.child(t.value), ltz_zone),
            )
        case TypeRoot.ROW:
            return pa.struct([_arrow_field(f.name, f.data_type, ltz_zone) for f in t.fields])
        case _:
            raise InvalidRequest(f"{t} has no Arrow type")


def _arrow_field(name: str, t: DataType, ltz_zone: str | None) -> pa.Field:
    return pa.field(name, arrow_type(t, ltz_zone), nullable=t.nullable)


def arrow_schema(columns: Sequence[Column], ltz_zone: str | None = None) -> pa.Schema:
    """Return the Arrow schema of columns; `ltz_zone` is the zone of TIMESTAMP_LTZ columns."""
    return pa.schema([_arrow_field(c.name, c.data_type, ltz_zone) for c in columns])


@lru_cache(maxsize=1024)
def _schemas_of(columns: tuple[Column, ...]) -> tuple[pa.Schema, pa.Schema]:
    return arrow_schema(columns), arrow_schema(columns, "UTC")


def storage_schema(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of log batches: TIMESTAMP_LTZ without a zone."""
    return _schemas_of(tuple(columns))[0]


def user_schema(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema that users see: TIMESTAMP_LTZ with zone UTC."""
    return _schemas_of(tuple(columns))[1]


# ---- Arrow -> Fluss -------------------------------------------------------------------------------------------------

_FROM_PLAIN: tuple[tuple[str, DataType], ...] = (
    ("is_boolean", types.boolean()),
    ("is_int8", types.tinyint()),
    ("is_int16", types.smallint()),
    ("is_uint8", types.smallint()),
    ("is_int32", types.int_()),
    ("is_uint16", types.int_()),
    ("is_int64", types.bigint()),
    ("is_uint32", types.bigint()),
    ("is_float16", types.float_()),
    ("is_float32", types.float_()),
    ("is_float64", types.double()),
    ("is_string", types.string()),
    ("is_large_string", types.string()),
    ("is_string_view", types.string()),
    ("is_binary", types.bytes_()),
    ("is_large_binary", types.bytes_()),
    ("is_binary_view", types.bytes_()),
    ("is_date", types.date()),
)
_UNIT_PRECISION = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def from_arrow_type(t: pa.DataType) -> DataType:
    """The Fluss type for an Arrow type that a user brings. A timestamp with a zone becomes TIMESTAMP_LTZ."""
    for predicate, fluss_type in _FROM_PLAIN:
        if getattr(pa.types, predicate)(t):
            return fluss_type
    if pa.types.is_fixed_size_binary(t):
        return types.binary(t.byte_width)
    if pa.types.is_decimal(t):
        return types.decimal(t.precision, t.scale)
    if pa.types.is_time(t):
        return types.time(_UNIT_PRECISION[t.unit])
    if pa.types.is_timestamp(t):
        make = types.timestamp if t.tz is None else types.timestamp_ltz
        return make(_UNIT_PRECISION[t.unit])
    if pa.types.is_dictionary(t) or pa.types.is_run_end_encoded(t):
        return from_arrow_type(t.value_type)
    if isinstance(t, pa.BaseExtensionType):
        return types.boolean() if t.extension_name == "arrow.bool8" else from_arrow_type(t.storage_type)
    if pa.types.is_map(t):
        return types.map_(from_arrow_type(t.key_type), _from_arrow_field(t.item_field))
    if is_list(t):
        return types.array(_from_arrow_field(t.value_field))
    if pa.types.is_struct(t):
        fields = [t.field(i) for i in range(t.num_fields)]
        return types.row(*(types.field(f.name, _from_arrow_field(f)) for f in fields))
    raise InvalidRequest(f"Arrow type {t} has no Fluss type; cast the column first")


def is_list(t: pa.DataType) -> bool:
    """Whether values of this type are lists, in any of Arrow's layouts."""
    is_view = pa.types.is_list_view(t) or pa.types.is_large_list_view(t)
    return bool(is_view or pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t))


def sql_name(t: pa.DataType) -> str:
    """The SQL name of the type of a column, for messages; Arrow's where SQL has none."""
    try:
        return str(from_arrow_type(t))
    except InvalidRequest:
        return str(t)


def sql_fault(error: Exception, t: pa.DataType) -> str:
    """Return Arrow's message about a value that does not fit type `t`, with the type's SQL name."""
    return str(error).replace(f"of type {t}", f"of type {sql_name(t)}")


def arrow_name(t: pa.DataType) -> str:
    """How messages name the type of Arrow data that a user gave: Arrow's name, and SQL's behind it."""
    sql = sql_name(t)
    return str(t) if sql == str(t) else f"{t} ({sql})"


def _from_arrow_field(f: pa.Field) -> DataType:
    t = from_arrow_type(f.type)
    return t if f.nullable else t.not_null()


def from_arrow_schema(
    schema: pa.Schema, primary_key: Sequence[str] = (), auto_increment_column: str | None = None
) -> Schema:
    """A Fluss schema for an Arrow schema; field metadata `comment` becomes the column comment."""
    columns = []
    for f in schema:
        try:
            data_type = _from_arrow_field(f)
        except InvalidRequest as e:
            raise InvalidRequest(f"column '{f.name}': {e.message}") from e
        comment = (f.metadata or {}).get(b"comment")
        columns.append(Column(f.name, data_type, None if comment is None else comment.decode()))
    return Schema.of(columns, tuple(primary_key), auto_increment_column)
