"""CREATE TABLE and ALTER TABLE of Spark -> definitions and schema changes of the lake engine.

Table properties are Paimon's options, with Paimon's names. `primary-key` is the primary key (a PRIMARY KEY constraint
is equivalent), and `comment` is the table's comment. PARTITIONED BY takes columns. The engine rejects options that
contradict each other or look misspelled; users see its messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from forebay.base import options as parsers
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata.types import DataType
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.option_names import check_spelling
from forebay.paimon.store.schema_changes import (
    AddColumn,
    DropColumn,
    MoveColumn,
    Position,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
    UpdateColumnComment,
    UpdateColumnDefault,
    UpdateColumnNullability,
    UpdateColumnType,
    UpdateComment,
)
from forebay.paimon.write.incoming import missing_column
from forebay.spark.schemas import from_spark_type, to_fields
from forebay.spark.sql import requests
from forebay.spark.sql.live_ddl import COMMENT, HIVE_FILES, PROVIDER, SPARKS_OWN
from forebay.spark.sql.requests import ColumnPosition, TableChange, TableRequest, Transform

PAIMON = "paimon"
"""The provider of every table here, which `USING` may name."""

_PROVIDERS = (PAIMON, "forebay-paimon")

PRIMARY_KEY = "primary-key"
LOCATION = "location"
PATH = "path"
_TYPED_LITERAL = re.compile(r"(?:DATE|TIMESTAMP(?:_NTZ|_LTZ)?)\s*(?P<value>'[^']*')$", re.IGNORECASE)
_REFUSED = {"collation": "only the default collation UTF8_BINARY can be stored", **HIVE_FILES}


def is_paimon(provider: str | None) -> bool:
    """Whether a table with this provider is a lake table."""
    return provider is not None and provider.lower() in _PROVIDERS


@dataclass(frozen=True)
class Definition:
    """The definition of a table to create."""

    fields: Sequence[DataField]
    primary_keys: tuple[str, ...]
    partition_keys: tuple[str, ...]
    options: Mapping[str, str]
    comment: str | None


def definition(request: TableRequest) -> Definition:
    """The definition of a new table, or of a copy: CREATE TABLE LIKE.

    Raises `InvalidRequest` for contradictions and unknown options.
    """
    properties = _own_properties(request.properties)
    keys = parsers.names(properties.pop(PRIMARY_KEY, ""))
    if request.primary_key and keys and request.primary_key != keys:
        raise InvalidRequest(
            f"the primary key is stated twice, as ({', '.join(request.primary_key)}) and, by property '{PRIMARY_KEY}', "
            f"as ({', '.join(keys)})"
        )
    comment = properties.pop(COMMENT, None)
    location = properties.pop(LOCATION, None)
    if location is not None:
        properties[PATH] = location
    fields = [
        replace(f, default=stored_default(f.name, f.type, f.default))
        for f in to_fields(request.schema, request.is_copy)
    ]
    return Definition(fields, request.primary_key or keys, _partition_keys(request.transforms), properties, comment)


def stored_default(column: str, t: DataType, text: str | None) -> str | None:
    """The text that a table stores for DEFAULT `text`: a value's text, which all engines can read.

    Raises `InvalidRequest` for expressions. Only Spark and Java Paimon can read the text of nested types.
    """
    if text is None or text.upper() == "NULL":
        return None
    if t.is_nested:
        return text
    literal = _TYPED_LITERAL.match(text)
    stored = literal["value"] if literal else text
    try:
        if stored[:2].upper() == "X'":
            raise InvalidRequest("bytes are written as text")
        missing_column(DataField(-1, column, t, None, stored), 1, deletes=False)
    except (InvalidRequest, UnsupportedOperation) as e:
        raise InvalidRequest(
            f"column '{column}' cannot have DEFAULT {text}: a lake keeps a value, no expression; write a literal of "
            f"type {t} ({e.message})"
        ) from e
    return stored


def _own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    provider = properties.get(PROVIDER, PAIMON)
    if not is_paimon(provider):
        raise InvalidRequest(
            f"a table of a lake cannot be USING {provider}; leave USING out, or write USING paimon (DataFrames: "
            "df.writeTo(table).create(), or .format('forebay-paimon') before .saveAsTable or .toTable)"
        )
    for name, why in _REFUSED.items():
        if name in properties:
            raise InvalidRequest(f"table property '{name}' = '{properties[name]}' cannot be: {why}")
    # OPTIONS(...) arrives twice, plain and with a prefix.
    own = {k: v for k, v in properties.items() if k not in (PROVIDER, *SPARKS_OWN) and not k.startswith("option.")}
    if "primary.key" in own:
        raise InvalidRequest(f"there is no table property 'primary.key'; did you mean '{PRIMARY_KEY}'?")
    return own


def _partition_keys(transforms: Iterable[Transform]) -> tuple[str, ...]:
    keys: list[str] = []
    for transform in transforms:
        names = [".".join(column) for column in transform.columns]
        if transform.name == "bucket":
            raise UnsupportedOperation(
                f"CLUSTERED BY ({', '.join(names)}) is not possible: say TBLPROPERTIES('bucket' = "
                f"'{transform.number}', 'bucket-key' = '{','.join(names)}')"
            )
        if transform.name != "identity":
            raise UnsupportedOperation(
                f"PARTITIONED BY {transform.name}({', '.join(names)}) is not possible: tables are partitioned by the "
                "values of columns; store what you partition by in a column of its own"
            )
        nested = [".".join(column) for column in transform.columns if len(column) > 1]
        if nested:
            raise InvalidRequest(f"field {nested[0]} inside a column cannot be a partition key")
        keys += names
    return tuple(keys)


def table_properties(schema: TableSchema) -> dict[str, str]:
    """The properties shown by SHOW TBLPROPERTIES, from which CREATE TABLE recreates the table."""
    properties = {name: value for name, value in schema.options.items() if name != PATH}
    if schema.primary_keys:
        properties[PRIMARY_KEY] = ",".join(schema.primary_keys)
    if schema.comment is not None:
        properties[COMMENT] = schema.comment
    return {**properties, PROVIDER: PAIMON}


# ---- ALTER TABLE ----------------------------------------------------------------------------------------------------


def schema_change(schema: TableSchema, change: TableChange) -> SchemaChange:
    """One change of ALTER TABLE for the lake engine.

    Raises `InvalidRequest` and `UnsupportedOperation` for unsupported changes.
    """
    match change:
        case requests.SetProperty(name, value):
            return property_change(name, value)
        case requests.ColumnAddition(path, spark_type, nullable, comment, position, has_default):
            t = from_spark_type(spark_type, ".".join(path))
            if has_default:
                raise UnsupportedOperation(
                    f"column '{'.'.join(path)}' cannot be added with a DEFAULT: rows that are there have null in a new "
                    "column. Add it without, then ALTER COLUMN ... SET DEFAULT for new rows"
                )
            return AddColumn(path, t if nullable else t.not_null(), comment, _position(position))
        case requests.ColumnRenaming(path, new_name):
            return RenameColumn(path, new_name)
        case requests.ColumnDeletion(path):
            return DropColumn(path)
        case requests.TypeChange(path, spark_type):
            return UpdateColumnType(path, from_spark_type(spark_type, ".".join(path)), keep_nullability=True)
        case requests.NullabilityChange(path, nullable):
            return UpdateColumnNullability(path, nullable)
        case requests.CommentChange(path, comment):
            return UpdateColumnComment(path, comment)
        case requests.PositionChange(path, position):
            if len(path) > 1:
                raise UnsupportedOperation(f"field '{'.'.join(path)}' is inside a column; only columns can be moved")
            return MoveColumn(path[0], _position(position) or Position("first"))
        case requests.DefaultChange(path, text):
            if len(path) == 1 and text:
                text = stored_default(path[0], schema.field_named(path[0]).type, text)
            return UpdateColumnDefault(path, text)
        case requests.OtherChange(kind):
            raise UnsupportedOperation(_OTHER.get(kind, f"tables know no change of kind {kind}"))


_OTHER = {
    "ClusterBy": "the buckets of a table are set by 'bucket' and 'bucket-key'",
    "AddConstraint": "constraints cannot be added: the primary key is fixed when a table is created",
    "DropConstraint": "constraints cannot be dropped: the primary key is fixed when a table is created",
}


def property_change(name: str, value: str | None) -> SchemaChange:
    """The change for one property of SET TBLPROPERTIES, or for COMMENT ON; without a value of UNSET TBLPROPERTIES."""
    if name == PRIMARY_KEY:
        raise UnsupportedOperation(f"'{PRIMARY_KEY}' is fixed when a table is created")
    if name in (LOCATION, PROVIDER, *SPARKS_OWN):
        raise UnsupportedOperation(f"a table has no {name} that could be changed")
    if value is not None:
        check_spelling(name)
    if name == COMMENT:
        return UpdateComment(value)
    return RemoveOption(name) if value is None else SetOption(name, value)


def _position(position: ColumnPosition | None) -> Position | None:
    if position is None:
        return None
    return Position("first") if position.after is None else Position("after", position.after)
