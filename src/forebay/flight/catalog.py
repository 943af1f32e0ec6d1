"""Answers about catalogs, databases, tables and keys, as Arrow tables with the columns that Flight SQL prescribes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from forebay.base.errors import NotFound
from forebay.flight import flight_sql_pb2 as pb
from forebay.metadata.types import DataType, TypeRoot
from forebay.protocol.messages import Message
from forebay.query.run import SqlDatabase
from forebay.query.statement import TableName

TABLE = "TABLE"
KEY_SEQUENCE = "FOREBAY:KEY_SEQUENCE"
"""Metadata of a column of the primary key: its place there. ADBC's driver does not ask for primary keys."""

COMMENT = "FOREBAY:COMMENT"
"""Metadata of a table's schema: its comment, for which Flight SQL has no place."""

_TEXT, _NOT_NULL = pa.string(), False
_CATALOGS = pa.schema([pa.field("catalog_name", _TEXT, _NOT_NULL)])
_SCHEMAS = pa.schema([pa.field("catalog_name", _TEXT), pa.field("db_schema_name", _TEXT, _NOT_NULL)])
_TABLES = pa.schema(
    [
        pa.field("catalog_name", _TEXT),
        pa.field("db_schema_name", _TEXT),
        pa.field("table_name", _TEXT, _NOT_NULL),
        pa.field("table_type", _TEXT, _NOT_NULL),
    ]
)
_TABLES_WITH_SCHEMAS = _TABLES.append(pa.field("table_schema", pa.binary(), _NOT_NULL))
_TABLE_TYPES = pa.schema([pa.field("table_type", _TEXT, _NOT_NULL)])
_PRIMARY_KEYS = pa.schema(
    [
        pa.field("catalog_name", _TEXT),
        pa.field("db_schema_name", _TEXT),
        pa.field("table_name", _TEXT, _NOT_NULL),
        pa.field("column_name", _TEXT, _NOT_NULL),
        pa.field("key_name", _TEXT),
        pa.field("key_sequence", pa.int32(), _NOT_NULL),
    ]
)
_FOREIGN_KEYS = pa.schema(
    [
        pa.field("pk_catalog_name", _TEXT),
        pa.field("pk_db_schema_name", _TEXT),
        pa.field("pk_table_name", _TEXT, _NOT_NULL),
        pa.field("pk_column_name", _TEXT, _NOT_NULL),
        pa.field("fk_catalog_name", _TEXT),
        pa.field("fk_db_schema_name", _TEXT),
        pa.field("fk_table_name", _TEXT, _NOT_NULL),
        pa.field("fk_column_name", _TEXT, _NOT_NULL),
        pa.field("key_sequence", pa.int32(), _NOT_NULL),
        pa.field("fk_key_name", _TEXT),
        pa.field("pk_key_name", _TEXT),
        pa.field("update_rule", pa.uint8(), _NOT_NULL),
        pa.field("delete_rule", pa.uint8(), _NOT_NULL),
    ]
)


def catalog_schema(command: Message) -> pa.Schema | None:
    """The columns of the answer to a command; None if it is not one about the catalog."""
    if isinstance(command, pb.CommandGetTables):
        return _TABLES_WITH_SCHEMAS if command.include_schema else _TABLES
    return _ANSWERS.get(type(command))


def catalog_rows(command: Message, database: SqlDatabase) -> pa.Table:
    """The answer to a command about the catalog."""
    schema = catalog_schema(command)
    assert schema is not None
    rows: Any = ()
    if isinstance(command, pb.CommandGetCatalogs):
        rows = [(name,) for name in sorted(database.tables.catalogs)]
    elif isinstance(command, pb.CommandGetDbSchemas):
        catalog = command.catalog if command.HasField("catalog") else None
        pattern = command.db_schema_filter_pattern if command.HasField("db_schema_filter_pattern") else None
        rows = sorted(_databases(database, catalog, pattern))
    elif isinstance(command, pb.CommandGetTableTypes):
        rows = [(TABLE,)]
    elif isinstance(command, pb.CommandGetTables):
        rows = list(_tables(database, command))
    elif isinstance(command, pb.CommandGetPrimaryKeys):
        rows = list(_primary_key(database, command))
    columns = list(zip(*rows)) or [()] * len(schema)
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, schema)], schema=schema)


_ANSWERS: dict[type[Message], pa.Schema] = {
    pb.CommandGetCatalogs: _CATALOGS,
    pb.CommandGetDbSchemas: _SCHEMAS,
    pb.CommandGetTableTypes: _TABLE_TYPES,
    pb.CommandGetPrimaryKeys: _PRIMARY_KEYS,
    pb.CommandGetExportedKeys: _FOREIGN_KEYS,  # no table has foreign keys
    pb.CommandGetImportedKeys: _FOREIGN_KEYS,
    pb.CommandGetCrossReference: _FOREIGN_KEYS,
}


def _databases(database: SqlDatabase, catalog: str | None, pattern: str | None) -> Iterator[tuple[str, str]]:
    matches = _like(pattern)
    for name in sorted(database.tables.catalogs):
        if catalog is None or name == catalog:
            yield from ((name, each) for each in sorted(database.tables.databases(name)) if matches(each))


def _tables(database: SqlDatabase, command: pb.CommandGetTables) -> Iterator[tuple[Any, ...]]:
    if command.table_types and TABLE not in command.table_types:
        return
    catalog = command.catalog if command.HasField("catalog") else None
    schemas = command.db_schema_filter_pattern if command.HasField("db_schema_filter_pattern") else None
    matches = _like(command.table_name_filter_pattern if command.HasField("table_name_filter_pattern") else None)
    for place, schema in _databases(database, catalog, schemas):
        try:
            names = sorted(database.tables.names(place, schema))
        except NotFound:  # dropped meanwhile
            continue
        for name in filter(matches, names):
            if not command.include_schema:
                yield place, schema, name, TABLE
                continue
            try:
                columns = _described(database, TableName((place, schema, name)))
            except NotFound:
                continue
            yield place, schema, name, TABLE, columns.serialize().to_pybytes()


def _like(pattern: str | None) -> Any:
    """Whether a name matches a pattern of LIKE, in which a backslash makes the next character a plain one."""
    if pattern is None:
        return lambda name: True
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    translated = {"%": ".*", "_": "."}
    text = "".join(translated.get(part) or re.escape(part[-1]) for part in parts)
    return re.compile(text, re.DOTALL).fullmatch


def _primary_key(database: SqlDatabase, command: pb.CommandGetPrimaryKeys) -> Iterator[tuple[Any, ...]]:
    if not command.HasField("db_schema"):
        return
    catalog = command.catalog if command.HasField("catalog") else None
    for place in sorted(database.tables.catalogs):
        if catalog is not None and place != catalog:
            continue
        try:
            key = database.tables.definition(TableName((place, command.db_schema, command.table))).primary_key
        except NotFound:
            continue
        yield from (
            (place, command.db_schema, command.table, column, None, sequence)
            for sequence, column in enumerate(key, start=1)
        )


def _described(database: SqlDatabase, name: TableName) -> pa.Schema:
    """A table's columns, with what JDBC asks about them as metadata, and its comment."""
    fields, definition = list[pa.Field](), database.tables.definition(name)
    key = list(definition.primary_key)
    for field, t, comment in definition.columns:
        described = {
            "CATALOG_NAME": name.parts[0],
            "DB_SCHEMA_NAME": name.parts[1],
            "TABLE_NAME": name.parts[2],
            "TYPE_NAME": str(t.as_nullable() if isinstance(t, DataType) else t),
            "IS_CASE_SENSITIVE": "1" if pa.types.is_string(field.type) else "0",
            "IS_READ_ONLY": "0",
            "IS_SEARCHABLE": "1",
            "IS_AUTO_INCREMENT": str(int(field.name == definition.numbered)),
        }
        if isinstance(t, DataType) and t.root is TypeRoot.DECIMAL:
            described |= {"PRECISION": str(t.precision), "SCALE": str(t.scale)}
        if comment:
            described["REMARKS"] = comment
        metadata = {f"ARROW:FLIGHT:SQL:{each}": value for each, value in described.items()}
        if field.name in key:
            metadata[KEY_SEQUENCE] = str(key.index(field.name) + 1)
        fields.append(field.with_metadata(metadata))
    return pa.schema(fields, None if definition.comment is None else {COMMENT: definition.comment})
