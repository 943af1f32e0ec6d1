"""Rows as text, for comparing with what other implementations read and wrote (tests/codec/golden).

`~` is null; text `'hex'`, bytes `xhex`, floats and doubles their bits in hex (every NaN the same), decimals unscaled,
DATE days, TIME milliseconds, timestamps `milliseconds.nanoseconds of the millisecond`, ARRAY `[...]`, MAP `{k:v,...}`,
ROW `(...)`.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.codec.storage_values import split_timestamp, time_millis, unscaled
from forebay.metadata.json_serde import schema_from_json
from forebay.metadata.table import Schema
from forebay.metadata.types import DataType, TypeRoot, child

GOLDEN = Path(__file__).parent / "golden"


def golden_bytes(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / name).read_text().replace("\n", ""))


def golden_rows(name: str) -> list[str]:
    return (GOLDEN / name).read_text().splitlines()


def golden_schema(name: str) -> Schema:
    return schema_from_json(json.loads((GOLDEN / name).read_text()))


def column_values(array: pa.Array, t: DataType) -> list[Any]:
    """The values of a column of the storage schema; dates, times and timestamps as the integers behind them."""
    if t.root in (TypeRoot.DATE, TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
    valid = array.is_valid().to_pylist()
    if t.root is TypeRoot.ROW:
        fields = [column_values(array.field(i), f.data_type) for i, f in enumerate(t.fields)]
        return [tuple(f[i] for f in fields) if ok else None for i, ok in enumerate(valid)]
    if t.root is TypeRoot.ARRAY:
        elements = column_values(array.values, child(t.element))
    elif t.root is TypeRoot.MAP:
        keys, items = column_values(array.keys, child(t.key)), column_values(array.items, child(t.value))
        elements = list(zip(keys, items, strict=True))
    else:
        return array.to_pylist()
    offsets = array.offsets.to_pylist()
    return [elements[offsets[i] : offsets[i + 1]] if ok else None for i, ok in enumerate(valid)]


def show(value: Any, t: DataType) -> str:
    if value is None:
        return "~"
    match t.root:
        case TypeRoot.BOOLEAN:
            return str(value).lower()
        case TypeRoot.FLOAT:
            return "7fc00000" if value != value else f"{struct.unpack('<I', struct.pack('<f', value))[0]:x}"
        case TypeRoot.DOUBLE:
            return "7ff8000000000000" if value != value else f"{struct.unpack('<Q', struct.pack('<d', value))[0]:x}"
        case TypeRoot.CHAR | TypeRoot.STRING:
            return f"'{value.encode().hex()}'"
        case TypeRoot.BINARY | TypeRoot.BYTES:
            return f"x{value.hex()}"
        case TypeRoot.DECIMAL:
            return str(unscaled(t, value))
        case TypeRoot.TIME:
            return str(time_millis(t, value))
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return ".".join(str(part) for part in split_timestamp(t, value))
        case TypeRoot.ARRAY:
            return "[" + ",".join(show(v, child(t.element)) for v in value) + "]"
        case TypeRoot.MAP:
            return "{" + ",".join(f"{show(k, child(t.key))}:{show(v, child(t.value))}" for k, v in value) + "}"
        case TypeRoot.ROW:
            return "(" + ",".join(show(v, f.data_type) for v, f in zip(value, t.fields, strict=True)) + ")"
        case _:
            return str(value)


def rows_as_text(batch: pa.RecordBatch, schema: Schema) -> list[str]:
    columns = [column_values(array, t) for array, t in zip(batch.columns, schema.types, strict=True)]
    return [
        "(" + ",".join(show(column[i], t) for column, t in zip(columns, schema.types, strict=True)) + ")"
        for i in range(batch.num_rows)
    ]
