"""Data types in Paimon's schema JSON: a string for plain types, an object for nested ones.

`parse_type("DECIMAL(10, 2) NOT NULL")`, `parse_type({"type": "ARRAY NOT NULL", "element": "INT"})`. Three types of
Paimon have no separate root: VARCHAR(n) is STRING with length n, VARBINARY(n) is BYTES with length n, and MULTISET<t>
is MAP<t, INT NOT NULL> with length -1. Without a length, STRING and BYTES have the maximum length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField, TypeRoot, child

MULTISET_MARK = -1
"""The `length` of a MAP that represents a MULTISET."""

LENGTH_MAX = (1 << 31) - 1

_ATOMIC = re.compile(
    r"^\s*(?P<name>[A-Za-z_]+(?:\s+PRECISION)?)\s*(?:\(\s*(?P<first>\d+)\s*(?:,\s*(?P<second>\d+)\s*)?\))?"
    r"(?P<zone>\s+WITH(?:OUT)?(?:\s+LOCAL)?\s+TIME\s+ZONE)?(?P<null>\s+(?:NOT\s+)?NULL)?\s*$",
    re.IGNORECASE,
)
_SYNONYMS = {"INTEGER": "INT", "NUMERIC": "DECIMAL", "DEC": "DECIMAL", "DOUBLE PRECISION": "DOUBLE"}
_PLAIN = {
    "BOOLEAN": types.boolean(),
    "TINYINT": types.tinyint(),
    "SMALLINT": types.smallint(),
    "INT": types.int_(),
    "BIGINT": types.bigint(),
    "FLOAT": types.float_(),
    "DOUBLE": types.double(),
    "STRING": types.string(),
    "BYTES": types.bytes_(),
    "DATE": types.date(),
}
_PLAIN_NAMES = {t.root: name for name, t in _PLAIN.items()}
_NOT_BUILT = {"VARIANT", "BLOB", "VECTOR", "GEOMETRY", "GEOGRAPHY", "INTERVAL", "RAW", "LEGACY"}


def parse_type(json: str | Mapping[str, Any], numbering: list[int] | None = None) -> DataType:
    """The type described by `json`.

    `numbering` gives ids to nested fields that have none, as in very old schemas; it holds the last id assigned. Raises
    `UnsupportedOperation` for types of Paimon that are not implemented, and `CorruptData` for anything else.
    """
    if isinstance(json, str):
        return _parse_atomic(json)
    numbering = [-1] if numbering is None else numbering
    if not isinstance(json, Mapping) or not isinstance(json.get("type"), str):
        raise CorruptData(f"{json!r} is not a data type")
    kind = json["type"].strip()
    root = kind.split(None, 1)[0].upper() if kind else ""
    try:
        parsed = _parse_nested(root, json, numbering)
    except KeyError as e:
        raise CorruptData(f"the {root} type {json!r} lacks {e}") from e
    return parsed.not_null() if "NOT NULL" in kind.upper() else parsed


def _parse_nested(root: str, json: Mapping[str, Any], numbering: list[int]) -> DataType:
    if root == "ARRAY":
        return types.array(parse_type(json["element"], numbering))
    if root == "MULTISET":
        element = parse_type(json["element"], numbering)
        return DataType(TypeRoot.MAP, key=element, value=types.int_().not_null(), length=MULTISET_MARK)
    if root == "MAP":
        # Paimon's map keys may be declared nullable; the declaration is kept, so that schemas are not changed.
        return DataType(
            TypeRoot.MAP, key=parse_type(json["key"], numbering), value=parse_type(json["value"], numbering)
        )
    if root == "ROW":
        return DataType(TypeRoot.ROW, fields=tuple(_parse_row_field(f, numbering) for f in json["fields"]))
    if root in _NOT_BUILT:
        raise UnsupportedOperation(f"the data type {root} is not supported; leave the column out of the table")
    raise CorruptData(f"{json!r} is not a data type")


def _parse_row_field(json: Mapping[str, Any], numbering: list[int]) -> RowField:
    if "id" in json:
        field_id = int(json["id"])
    else:
        numbering[0] += 1
        field_id = numbering[0]
    return RowField(json["name"], parse_type(json["type"], numbering), json.get("description"), field_id)


def _parse_atomic(text: str) -> DataType:
    match = _ATOMIC.match(text)
    if match is None:
        raise CorruptData(f"{text!r} is not a data type")
    name = re.sub(r"\s+", " ", match["name"].upper())
    if name in _NOT_BUILT:
        raise UnsupportedOperation(f"the data type {name} is not supported; leave the column out of the table")
    first = None if match["first"] is None else int(match["first"])
    second = None if match["second"] is None else int(match["second"])
    zone = re.sub(r"\s+", " ", (match["zone"] or "").strip().upper())
    try:
        parsed = _atomic(_SYNONYMS.get(name, name), first, second, zone)
    except InvalidRequest as e:
        raise CorruptData(f"{text!r} is not a data type: {e.message}") from e
    if parsed is None:
        raise CorruptData(f"{text!r} is not a data type")
    return parsed.not_null() if (match["null"] or "").strip().upper().startswith("NOT") else parsed


def _atomic(name: str, first: int | None, second: int | None, zone: str) -> DataType | None:
    if zone and name not in ("TIME", "TIMESTAMP"):
        return None
    if name in _PLAIN and first is None:
        return _PLAIN[name]
    match name:
        case "CHAR":
            return types.char(1 if first is None else first)
        case "BINARY":
            return types.binary(1 if first is None else first)
        case "VARCHAR":
            return _with_length(types.string(), first)
        case "VARBINARY":
            return _with_length(types.bytes_(), first)
        case "DECIMAL":
            return types.decimal(10 if first is None else first, second or 0)
        case "TIME":
            return types.time(first or 0)
        case "TIMESTAMP":
            make = types.timestamp_ltz if "LOCAL" in zone else types.timestamp
            return make(6 if first is None else first)
        case "TIMESTAMP_LTZ":
            return types.timestamp_ltz(6 if first is None else first)
    return None


def _with_length(t: DataType, length: int | None) -> DataType:
    length = 1 if length is None else length
    return t if length == LENGTH_MAX else replace(t, length=length)


def format_type(t: DataType) -> str | dict[str, Any]:
    """The JSON of `t`, as Java writes it."""
    suffix = "" if t.nullable else " NOT NULL"
    match t.root:
        case TypeRoot.ARRAY:
            return {"type": "ARRAY" + suffix, "element": format_type(child(t.element))}
        case TypeRoot.MAP if t.length == MULTISET_MARK:
            return {"type": "MULTISET" + suffix, "element": format_type(child(t.key))}
        case TypeRoot.MAP:
            return {"type": "MAP" + suffix, "key": format_type(child(t.key)), "value": format_type(child(t.value))}
        case TypeRoot.ROW:
            return {"type": "ROW" + suffix, "fields": [_format_row_field(f) for f in t.fields]}
    return _format_atomic(t) + suffix


def _format_row_field(f: RowField) -> dict[str, Any]:
    if f.field_id is None:
        raise InvalidRequest(f"the nested field '{f.name}' has no id; a schema gives every field one")
    json: dict[str, Any] = {"id": f.field_id, "name": f.name, "type": format_type(f.data_type)}
    return json if f.description is None else {**json, "description": f.description}


def _format_atomic(t: DataType) -> str:
    match t.root:
        case TypeRoot.STRING if t.length is not None:
            return f"VARCHAR({t.length})"
        case TypeRoot.BYTES if t.length is not None:
            return f"VARBINARY({t.length})"
        case TypeRoot.CHAR | TypeRoot.BINARY:
            return f"{t.root.name}({t.length})"
        case TypeRoot.DECIMAL:
            return f"DECIMAL({t.precision}, {t.scale})"
        case TypeRoot.TIME:
            return f"TIME({t.precision})"
        case TypeRoot.TIMESTAMP:
            return f"TIMESTAMP({t.precision})"
        case TypeRoot.TIMESTAMP_LTZ:
            return f"TIMESTAMP({t.precision}) WITH LOCAL TIME ZONE"
    return _PLAIN_NAMES[t.root]
