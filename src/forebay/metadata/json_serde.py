"""Schemas, descriptors and databases to and from Fluss's JSON documents (version 1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata import types
from forebay.metadata.table import AggregateFunction, Column, DatabaseInfo, Schema, TableDescriptor
from forebay.metadata.types import DataType, RowField, TypeRoot

_VERSION = 1

Json = dict[str, Any]


def dumps(document: Json) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def loads(data: bytes | str, what: str, code: ErrorCode = ErrorCode.INVALID_TABLE_EXCEPTION) -> Json:
    """A JSON object; `InvalidRequest`, with `code`, says which document `what` was not one."""
    try:
        document = json.loads(data)
    except (ValueError, UnicodeDecodeError) as e:
        raise InvalidRequest(f"the {what} is not valid JSON: {e}", code) from e
    if not isinstance(document, dict):
        raise InvalidRequest(f"the {what} must be a JSON object, not {type(document).__name__}", code)
    return document


# ---- data types -----------------------------------------------------------------------------------------------------


def data_type_to_json(t: DataType) -> Json:
    out: Json = {"type": t.root.value}
    if not t.nullable:
        out["nullable"] = False
    match t.root:
        case TypeRoot.CHAR | TypeRoot.BINARY:
            out["length"] = t.length
        case TypeRoot.DECIMAL:
            out |= {"precision": t.precision, "scale": t.scale}
        case TypeRoot.TIME | TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            out["precision"] = t.precision
        case TypeRoot.ARRAY:
            out["element_type"] = data_type_to_json(types.child(t.element))
        case TypeRoot.MAP:
            out["key_type"] = data_type_to_json(types.child(t.key))
            out["value_type"] = data_type_to_json(types.child(t.value))
        case TypeRoot.ROW:
            out["fields"] = [_row_field_to_json(f) for f in t.fields]
    return out


def _row_field_to_json(f: RowField) -> Json:
    out: Json = {"name": f.name, "field_type": data_type_to_json(f.data_type)}
    if f.description is not None:
        out["description"] = f.description
    out["field_id"] = -1 if f.field_id is None else f.field_id
    return out


def data_type_from_json(node: Any) -> DataType:
    """A data type; missing, wrong and unknown parts raise `InvalidRequest` (code INVALID_TABLE_EXCEPTION)."""
    try:
        root = TypeRoot(node["type"])
        t = _data_type_from_json(root, node)
    except InvalidRequest:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise _invalid(f"{node!r} is not a data type: {e}") from e
    return t if node.get("nullable", True) else t.not_null()


def _data_type_from_json(root: TypeRoot, node: Json) -> DataType:
    match root:
        case TypeRoot.CHAR:
            return types.char(node.get("length", 1))
        case TypeRoot.BINARY:
            return types.binary(node.get("length", 1))
        case TypeRoot.DECIMAL:
            return types.decimal(node["precision"], node.get("scale", 0))
        case TypeRoot.TIME:
            return types.time(node.get("precision", 0))
        case TypeRoot.TIMESTAMP:
            return types.timestamp(node.get("precision", 6))
        case TypeRoot.TIMESTAMP_LTZ:
            return types.timestamp_ltz(node.get("precision", 6))
        case TypeRoot.ARRAY:
            return types.array(data_type_from_json(node["element_type"]))
        case TypeRoot.MAP:
            return types.map_(data_type_from_json(node["key_type"]), data_type_from_json(node["value_type"]))
        case TypeRoot.ROW:
            return types.row(*(_row_field_from_json(f) for f in node["fields"]))
        case _:
            return DataType(root)


def _row_field_from_json(node: Json) -> RowField:
    field_id = node.get("field_id", -1)
    return RowField(
        node["name"],
        data_type_from_json(node["field_type"]),
        node.get("description"),
        None if field_id is None or field_id < 0 else int(field_id),
    )


# ---- schema ---------------------------------------------------------------------------------------------------------


def schema_to_json(schema: Schema) -> Json:
    out: Json = {"version": _VERSION, "columns": [_column_to_json(c) for c in schema.columns]}
    if schema.primary_key:
        out["primary_key"] = list(schema.primary_key)
    if schema.auto_increment_column is not None:
        out["auto_increment_column"] = [schema.auto_increment_column]
    out["highest_field_id"] = schema.highest_field_id
    return out


def _column_to_json(column: Column) -> Json:
    out: Json = {"name": column.name, "data_type": data_type_to_json(column.data_type)}
    if column.comment is not None:
        out["comment"] = column.comment
    if column.aggregate is not None:
        out["agg_function"] = {"type": column.aggregate.name}
        if column.aggregate.parameters:
            out["agg_function"]["parameters"] = dict(column.aggregate.parameters)
    out["id"] = column.column_id
    return out


def schema_from_json(node: Json) -> Schema:
    try:
        columns = [_column_from_json(c) for c in node["columns"]]
        primary_key = node.get("primary_key", ())
        if primary_key == []:
            raise _invalid("'primary_key' is empty; leave it out for a table without primary key")
        if isinstance(primary_key, dict):  # 0.8 wrote {"name": ..., "columns": [...]}
            primary_key = primary_key["columns"]
        auto_increment = node.get("auto_increment_column") or [None]
        if len(auto_increment) > 1:
            raise _invalid(f"columns {', '.join(auto_increment)} are auto-increment; a table can have one such column")
        schema = Schema.of(columns, tuple(primary_key), auto_increment[0])
        highest = node.get("highest_field_id")
    except InvalidRequest:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise _invalid(f"the schema is malformed: {type(e).__name__}: {e}") from e
    if highest is None or highest == schema.highest_field_id:
        return schema
    if not isinstance(highest, int) or highest < schema.highest_field_id:
        raise _invalid(f"highest_field_id {highest} is below the greatest column id {schema.highest_field_id}")
    return Schema(schema.columns, schema.primary_key, schema.auto_increment_column, highest)


def _column_from_json(node: Json) -> Column:
    function = node.get("agg_function")
    aggregate = None
    if isinstance(function, str):
        aggregate = AggregateFunction(function)
    elif function is not None:
        aggregate = AggregateFunction(function["type"], tuple(sorted((function.get("parameters") or {}).items())))
    column_id = node.get("id", -1)
    return Column(
        node["name"],
        data_type_from_json(node["data_type"]),
        node.get("comment"),
        None if column_id is None or column_id < 0 else int(column_id),
        aggregate,
    )


# ---- table and database descriptors ---------------------------------------------------------------------------------


def descriptor_to_json(descriptor: TableDescriptor) -> Json:
    out: Json = {"version": _VERSION, "schema": schema_to_json(descriptor.schema)}
    if descriptor.comment is not None:
        out["comment"] = descriptor.comment
    out["partition_key"] = list(descriptor.partition_keys)
    out["bucket_key"] = list(descriptor.bucket_keys)
    if descriptor.bucket_count is not None:
        out["bucket_count"] = descriptor.bucket_count
    out["properties"] = dict(descriptor.properties)
    out["custom_properties"] = dict(descriptor.custom_properties)
    return out


def descriptor_from_json(node: Json) -> TableDescriptor:
    """A descriptor as its author wrote it: no defaults filled in, keys not yet checked against each other."""
    try:
        schema = schema_from_json(node["schema"])
        return TableDescriptor(
            schema,
            tuple(node.get("partition_key") or ()),
            tuple(node.get("bucket_key") or ()),
            node.get("bucket_count"),
            node.get("comment"),
            _string_map(node.get("properties"), "properties"),
            _string_map(node.get("custom_properties"), "custom_properties"),
        )
    except (KeyError, TypeError) as e:
        raise _invalid(f"the table descriptor is malformed: {type(e).__name__}: {e}") from e


def database_to_json(info: DatabaseInfo) -> Json:
    out: Json = {"version": _VERSION}
    if info.comment is not None:
        out["comment"] = info.comment
    out["custom_properties"] = dict(info.custom_properties)
    return out


def database_from_json(name: str, node: Json, created_ms: int = -1, modified_ms: int = -1) -> DatabaseInfo:
    properties = _string_map(node.get("custom_properties"), "custom_properties")
    return DatabaseInfo(name, node.get("comment"), properties, created_ms, modified_ms)


def _string_map(node: Mapping[str, Any] | None, what: str) -> dict[str, str]:
    if node is None:
        return {}
    if not isinstance(node, dict) or not all(isinstance(v, str) for v in node.values()):
        raise _invalid(f"'{what}' must map strings to strings, got {node!r}")
    return dict(node)


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_TABLE_EXCEPTION)
