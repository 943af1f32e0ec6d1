"""The Arrow types of Paimon's types, as readers of Paimon's Parquet files return them.

TIMESTAMP and TIMESTAMP_LTZ have unit ms up to precision 3, us up to 6, otherwise ns; LTZ has the time zone UTC. TIME is
time32 in milliseconds at any precision, as Paimon stores no more. CHAR and VARCHAR are strings, BINARY and VARBINARY
binary, MULTISET a map to int32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa

from forebay.codec.arrow import arrow_types
from forebay.metadata.types import DataType, TypeRoot, child
from forebay.paimon.format.schema import DataField

_MILLISECONDS, _MICROSECONDS, _NANOSECONDS = 3, 6, 9


@lru_cache(maxsize=4096)
def storage_type(t: DataType) -> DataType:
    """The type as which files and rows store `t`: one for all types with the same storage. Nullability is kept."""
    match t.root:
        case TypeRoot.CHAR | TypeRoot.STRING:
            return DataType(TypeRoot.STRING, t.nullable)
        case TypeRoot.BINARY | TypeRoot.BYTES:
            return DataType(TypeRoot.BYTES, t.nullable)
        case TypeRoot.TIME:
            return replace(t, precision=_MILLISECONDS)
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            digits = t.precision if t.precision is not None else _MICROSECONDS
            return replace(t, precision=next(p for p in (_MILLISECONDS, _MICROSECONDS, _NANOSECONDS) if digits <= p))
        case TypeRoot.ARRAY:
            return replace(t, element=storage_type(child(t.element)))
        case TypeRoot.MAP:
            key, value = storage_type(child(t.key)).not_null(), storage_type(child(t.value))
            return replace(t, key=key, value=value, length=None)
        case TypeRoot.ROW:
            return replace(t, fields=tuple(replace(f, data_type=storage_type(f.data_type)) for f in t.fields))
    return t


@lru_cache(maxsize=4096)
def arrow_type(t: DataType) -> pa.DataType:
    """The Arrow type of `t`."""
    return arrow_types.arrow_type(storage_type(t), "UTC")


def arrow_field(f: DataField) -> pa.Field:
    """The Arrow field of a column; nullability is the column's."""
    return pa.field(f.name, arrow_type(f.type), nullable=f.type.nullable)


def arrow_schema(fields: Iterable[DataField]) -> pa.Schema:
    """The Arrow schema of columns, in their order."""
    return pa.schema([arrow_field(f) for f in fields])
