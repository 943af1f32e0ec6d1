"""Request bodies of a REST catalog: new tables and schema changes, in Java Paimon's JSON."""

from __future__ import annotations

from typing import Any

from forebay.base.errors import UnsupportedOperation
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.schema_json import format_field
from forebay.paimon.format.types_json import format_type
from forebay.paimon.store import schema_changes as changes


def new_table_to_json(database: str, table: str, schema: TableSchema) -> dict[str, Any]:
    """The request body that creates a table."""
    return {
        "identifier": {"database": database, "object": table},
        "schema": {
            "fields": [format_field(f) for f in schema.fields],
            "partitionKeys": list(schema.partition_keys),
            "primaryKeys": list(schema.primary_keys),
            "options": dict(schema.options),
            "comment": schema.comment,
        },
    }


def change_to_json(change: changes.SchemaChange) -> dict[str, Any]:
    """The JSON of a schema change."""
    match change:
        case changes.SetOption(key, value):
            return {"action": "setOption", "key": key, "value": value}
        case changes.RemoveOption(key):
            return {"action": "removeOption", "key": key}
        case changes.UpdateComment(comment):
            return {"action": "updateComment", "comment": comment}
        case changes.AddColumn(path, data_type, comment, position):
            move = None if position is None else _move(path[-1], position)
            kind = format_type(data_type)
            return {"action": "addColumn", "fieldNames": list(path), "dataType": kind, "comment": comment, "move": move}
        case changes.RenameColumn(path, new_name):
            return {"action": "renameColumn", "fieldNames": list(path), "newName": new_name}
        case changes.DropColumn(path):
            return {"action": "dropColumn", "fieldNames": list(path)}
        case changes.UpdateColumnType(path, data_type, keep):
            kind = format_type(data_type)
            return {
                "action": "updateColumnType", "fieldNames": list(path), "newDataType": kind, "keepNullability": keep
            }  # fmt: skip
        case changes.UpdateColumnNullability(path, nullable):
            return {"action": "updateColumnNullability", "fieldNames": list(path), "newNullability": nullable}
        case changes.UpdateColumnComment(path, comment):
            return {"action": "updateColumnComment", "fieldNames": list(path), "newComment": comment}
        case changes.UpdateColumnDefault(path, default):
            return {"action": "updateColumnDefaultValue", "fieldNames": list(path), "newDefaultValue": default}
        case changes.MoveColumn(name, position):
            return {"action": "updateColumnPosition", "move": _move(name, position)}
        case changes.DropPrimaryKey():
            return {"action": "dropPrimaryKey"}
    raise UnsupportedOperation(f"{type(change).__name__} cannot be sent to a REST catalog")


def _move(name: str, position: changes.Position) -> dict[str, Any]:
    return {"fieldName": name, "referenceFieldName": position.reference, "type": position.place.upper()}
