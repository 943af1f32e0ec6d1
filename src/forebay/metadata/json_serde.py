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

NESTING_MAX = 100
"""Levels of lists and objects that a document may have: each level of a type costs the call stack some frames."""

ENTRIES_MAX = 200_000
"""Commas and brackets that a document may have: Python makes up to 100 bytes of three."""

Json = dict[str, Any]


def dumps(document: Json) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def loads(data: bytes | str, what: str, code: ErrorCode = ErrorCode.INVALID_TABLE_EXCEPTION) -> Json:
    """A JSON object; `InvalidRequest`, with `code`, says which document `what` was not one."""
    text = data if isinstance(data, bytes) else data.encode()
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > ENTRIES_MAX:
        raise InvalidRequest(
            f"the {what} has {len(text)} bytes and more than {ENTRIES_MAX} commas and brackets: use fewer columns and "
            "options, or shorter texts",
            code,
        )
    try:
        document = json.loads(data)
    except RecursionError as e:
        raise _too_deep(what, code) from e
    except (ValueError, UnicodeDecodeError) as e:
        raise InvalidRequest(f"the {what} is not valid JSON: {e}", code) from e
    if not isinstance(document, dict):
        raise InvalidRequest(f"the {what} must be a JSON object, not {type(document).__name__}", code)
    level: list[Any] = [document]
    for _ in range(NESTING_MAX):
        nested = [node for node in level if isinstance(node, dict | list)]
        level = [child for node in nested for child in (node.values() if isinstance(node, dict) else node)]
        if not level:
            return document
    raise _too_deep(what, code)


def _too_deep(what: str, code: ErrorCode) -> InvalidRequest:
    return InvalidRequest(f"the {what} is nested deeper than {NESTING_MAX} levels: use fewer nested types", code)


# ---- data types -----------------------------------------------------------------------------------------------------


def data_type_to_json(t: DataType) -> Json:
    """Return a data type in Fluss's JSON form. A type is nullable unless `nullable` is false."""
    out: Json = {"type": t.root.value}
    if not t.nullable:
        out["nullable"] = False
    match t.root:
        case TypeRoot.CHAR | TypeRoot.BINARY:
            out["length"] = t.length
        case TypeRoot.STRING if t.length is not None:
            out["length"] = t.length  # Fluss ignores it
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
            return types.char(_whole(node.get("length", 1), "length"))
        case TypeRoot.BINARY:
            return types.binary(_whole(node.get("length", 1), "length"))
        case TypeRoot.STRING:
            return types.string(None if node.get("length") is None else _whole(node["length"], "length"))
        case TypeRoot.DECIMAL:
            return types.decimal(_whole(node["precision"], "precision"), _whole(node.get("scale", 0), "scale"))
        case TypeRoot.TIME:
            return types.time(_whole(node.get("precision", 0), "precision"))
        case TypeRoot.TIMESTAMP:
            return types.timestamp(_whole(node.get("precision", 6), "precision"))
        case TypeRoot.TIMESTAMP_LTZ:
            return types.timestamp_ltz(_whole(node.get("precision", 6), "precision"))
        case TypeRoot.ARRAY:
            return types.array(data_type_from_json(node["element_type"]))
        case TypeRoot.MAP:
            return types.map_(data_type_from_json(node["key_type"]), data_type_from_json(node["value_type"]))
        case TypeRoot.ROW:
            return types.row(*(_row_field_from_json(f) for f in node["fields"]))
        case _:
            return DataType(root)


def _row_field_from_json(node: Json) -> RowField:
    return RowField(
        _text(node["name"], "name"),
        data_type_from_json(node["field_type"]),
        _text_or_none(node.get("description"), "description"),
        _id(node.get("field_id"), "field_id"),
    )


# ---- schema ---------------------------------------------------------------------------------------------------------


def schema_to_json(schema: Schema) -> Json:
    """Return a schema in Fluss's JSON form."""
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
    """Return a checked schema. Raises `InvalidRequest` (INVALID_TABLE_EXCEPTION) for a malformed document."""
    try:
        columns = [_column_from_json(c) for c in node["columns"]]
        primary_key = node.get("primary_key", ())
        if primary_key == []:
            raise _invalid("'primary_key' is empty; leave it out for a table without primary key")
        if isinstance(primary_key, dict):  # 0.8 wrote {"name": ..., "columns": [...]}
            primary_key = primary_key["columns"]
        auto_increment = _names(node.get("auto_increment_column"), "auto_increment_column")
        if len(auto_increment) > 1:
            raise _invalid(f"columns {', '.join(auto_increment)} are auto-increment; a table can have one such column")
        schema = Schema.of(columns, _names(primary_key, "primary_key"), next(iter(auto_increment), None))
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
        aggregate = AggregateFunction.of(function)
    elif function is not None:
        parameters = _string_map(function.get("parameters"), "parameters")
        aggregate = AggregateFunction.of(_text(function["type"], "type"), parameters)
    return Column(
        _text(node["name"], "name"),
        data_type_from_json(node["data_type"]),
        _text_or_none(node.get("comment"), "comment"),
        _id(node.get("id"), "id"),
        aggregate,
    )


# ---- table and database descriptors ---------------------------------------------------------------------------------


def descriptor_to_json(descriptor: TableDescriptor) -> Json:
    """Return a table's description, with its schema, in Fluss's JSON form."""
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
        bucket_count = node.get("bucket_count")
        return TableDescriptor(
            schema,
            _names(node.get("partition_key"), "partition_key"),
            _names(node.get("bucket_key"), "bucket_key"),
            None if bucket_count is None else _whole(bucket_count, "bucket_count"),
            _text_or_none(node.get("comment"), "comment"),
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
    return DatabaseInfo(name, _text_or_none(node.get("comment"), "comment"), properties, created_ms, modified_ms)


# ---- values of a kind ----------------------------------------------------------------------------------------------


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _invalid(f"'{what}' must be a string, got {value!r}")
    return value


def _text_or_none(value: Any, what: str) -> str | None:
    return None if value is None else _text(value, what)


def _whole(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(f"'{what}' must be an integer, got {value!r}")
    return value


def _id(value: Any, what: str) -> int | None:
    """The id of a column; null, like a negative one, leaves it to the server."""
    number = -1 if value is None else _whole(value, what)
    return None if number < 0 else number


def _names(value: Any, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise _invalid(f"'{what}' must be a list of names, got {value!r}")
    return tuple(value)


def _string_map(node: Mapping[str, Any] | None, what: str) -> dict[str, str]:
    if node is None:
        return {}
    if not isinstance(node, dict) or not all(isinstance(v, str) for v in node.values()):
        raise _invalid(f"'{what}' must map strings to strings, got {node!r}")
    return dict(node)


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_TABLE_EXCEPTION)
