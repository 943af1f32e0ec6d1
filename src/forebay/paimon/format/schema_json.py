"""Schema files (`schema/schema-<id>`) as JSON."""

from __future__ import annotations

import json
from typing import Any

from forebay.base.errors import CorruptData
from forebay.metadata.types import DataType, RowField
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.format.types_json import format_type, parse_type

_VERSION_07 = 1
_VERSION_08 = 2


def parse_schema(data: bytes | str) -> TableSchema:
    """The schema in a schema file. Raises `CorruptData` for malformed files.

    Files of Paimon 0.7 and 0.8 get the defaults of those versions as explicit options: one bucket, ORC.
    """
    try:
        node = json.loads(data)
        version = int(node.get("version", _VERSION_07))
        options = {str(key): str(value) for key, value in node["options"].items()}
        if version <= _VERSION_07:
            options.setdefault("bucket", "1")
        if version <= _VERSION_08:
            options.setdefault("file.format", "orc")
        return TableSchema(
            id=int(node["id"]),
            fields=tuple(parse_field(f) for f in node["fields"]),
            highest_field_id=int(node["highestFieldId"]),
            partition_keys=tuple(node["partitionKeys"]),
            primary_keys=tuple(node["primaryKeys"]),
            options=options,
            comment=node.get("comment"),
            time_millis=int(node.get("timeMillis", 0)),
            version=version,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptData(f"this is not a schema file: {type(e).__name__} {e}") from e


def format_schema(schema: TableSchema) -> bytes:
    """The schema file of `schema`."""
    node: dict[str, Any] = {
        "version": schema.version,
        "id": schema.id,
        "fields": [format_field(f) for f in schema.fields],
        "highestFieldId": schema.highest_field_id,
        "partitionKeys": list(schema.partition_keys),
        "primaryKeys": list(schema.primary_keys),
        "options": dict(schema.options),
    }
    if schema.comment is not None:
        node["comment"] = schema.comment
    node["timeMillis"] = schema.time_millis
    return json.dumps(node, indent=2, ensure_ascii=False).encode()


def parse_field(node: dict[str, Any]) -> DataField:
    """A column from its JSON object."""
    # Nested fields without ids are numbered per column, as in Java.
    data_type = parse_type(node["type"], [-1])
    return DataField(int(node["id"]), node["name"], data_type, node.get("description"), node.get("defaultValue"))


def format_field(f: DataField) -> dict[str, Any]:
    """The JSON object of a column."""
    node: dict[str, Any] = {"id": f.id, "name": f.name, "type": format_type(f.type)}
    if f.description is not None:
        node["description"] = f.description
    if f.default is not None:
        node["defaultValue"] = f.default
    return node


def highest_field_id(fields: tuple[DataField, ...]) -> int:
    """The highest id of all columns and nested fields; -1 if there are none."""
    ids = [-1]
    for f in fields:
        ids.append(f.id)
        ids.extend(nested.field_id for nested in _nested_fields(f.type) if nested.field_id is not None)
    return max(ids)


def _nested_fields(t: DataType) -> list[RowField]:
    fields = list(t.fields)
    for inner in t.children():
        fields.extend(_nested_fields(inner))
    return fields
