"""The layout of Paimon's Parquet files: the Arrow schema with field ids, and the configuration of pyarrow's writer.

Java Paimon finds columns by name and nested fields by the ids in the file, so ids are written at all depths: a column's
own id; inside ARRAY and MAP, ids computed from the column's id and the depth.

Timestamps of more than six digits are INT96 and the others INT64; otherwise, Java Paimon 1.x fails or reads other
values. pyarrow writes either all of a file's timestamps as INT96 or none. So in a file that has both, those of at most
six digits are written as plain integers, INT64 without a logical type, which Java reads by the table's schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.base.errors import InvalidRequest
from forebay.metadata.types import DataType, TypeRoot, child, walk
from forebay.paimon.format.arrow import arrow_type
from forebay.paimon.format.schema import DataField

NESTED_ID_BASE = ((1 << 31) - 1) // 4
NESTED_ID_STEP = 1 << 10
"""The base of Parquet field ids of nested fields, and the number of ids for each column, as in Java Paimon."""

_ID_KEY = b"PARQUET:field_id"

COMPRESSIONS = {"none": "NONE", "uncompressed": "NONE", "snappy": "SNAPPY", "gzip": "GZIP", "zstd": "ZSTD",
                "lz4": "LZ4", "lz4_raw": "LZ4", "brotli": "BROTLI"}  # fmt: skip
_LEVELLED = frozenset({"ZSTD", "GZIP", "BROTLI"})


def parquet_schema(fields: Sequence[DataField]) -> pa.Schema:
    """The Arrow schema for writing columns `fields` with pyarrow, with Paimon's field ids in its metadata."""
    bare = has_nanoseconds(f.type for f in fields)
    return pa.schema([_field(f.name, f.type, f.id, bare) for f in fields])


def _field(name: str, t: DataType, field_id: int, bare: bool) -> pa.Field:
    return _with_id(pa.field(name, _typed(t, field_id, 0, bare), nullable=t.nullable), field_id)


def _with_id(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({_ID_KEY: str(_int32(field_id)).encode()})


def _int32(value: int) -> int:
    """`value`, wrapped around like Java's int."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _typed(t: DataType, column_id: int, depth: int, bare: bool) -> pa.DataType:
    """The Arrow type to write; `bare`: timestamps of at most six digits as integers."""
    inner = depth + 1
    upper = NESTED_ID_BASE + column_id * NESTED_ID_STEP + inner
    match t.root:
        case TypeRoot.ARRAY:
            element = child(t.element)
            field = pa.field("element", _typed(element, column_id, inner, bare), nullable=element.nullable)
            return pa.list_(_with_id(field, upper))
        case TypeRoot.MAP:
            key, value = child(t.key), child(t.value)
            key_field = pa.field("key", _typed(key, column_id, inner, bare), nullable=False)
            value_field = pa.field("value", _typed(value, column_id, inner, bare), nullable=value.nullable)
            lower = NESTED_ID_BASE - column_id * NESTED_ID_STEP - inner
            return pa.map_(_with_id(key_field, lower), _with_id(value_field, upper))
        case TypeRoot.ROW:
            return pa.struct([_field(f.name, f.data_type, f.field_id or 0, bare) for f in t.fields])
        case _:
            plain = arrow_type(t)
            return pa.int64() if bare and pa.types.is_timestamp(plain) and plain.unit != "ns" else plain


def compression_arguments(name: str, zstd_level: int) -> dict[str, Any]:
    """The arguments for pyarrow's Parquet writer. Raises `InvalidRequest` for an unknown compression."""
    codec = COMPRESSIONS.get(name.lower())
    if codec is None:
        raise InvalidRequest(f"file.compression '{name}' is unknown; there are {', '.join(COMPRESSIONS)}")
    arguments: dict[str, Any] = {"compression": codec}
    if codec in _LEVELLED and codec == "ZSTD":
        arguments["compression_level"] = zstd_level
    return arguments


def open_writer(
    sink: Any,
    schema: pa.Schema,
    has_int96: bool,
    compression: str,
    zstd_level: int,
    footers: list[Any],
    dictionaries: Sequence[str],
) -> pq.ParquetWriter:
    """A Parquet writer of a table's columns to `sink`; when closed, it appends the file's metadata to `footers`.

    `has_int96`: timestamps are INT96. `dictionaries` are the paths of the Parquet columns for which dictionaries are
    tried.
    """
    return pq.ParquetWriter(
        sink,
        schema,
        **compression_arguments(compression, zstd_level),
        use_dictionary=list(dictionaries),
        use_deprecated_int96_timestamps=has_int96,
        store_decimal_as_integer=True,
        store_schema=False,
        metadata_collector=footers,
        write_time_adjusted_to_utc=True,  # as Paimon annotates TIME
    )


def has_nanoseconds(types: Iterable[DataType]) -> bool:
    """Whether a timestamp of more than six digits occurs at any depth."""
    stamps = (t for top in types for t in walk(top) if t.root in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ))
    return any(arrow_type(t).unit == "ns" for t in stamps)
