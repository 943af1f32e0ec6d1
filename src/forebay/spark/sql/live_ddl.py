"""CREATE TABLE and ALTER TABLE of Spark -> table descriptors and changes, and descriptors -> table properties.

The properties are those of Fluss's Spark connector: `primary.key`, `bucket.key`, `bucket.num` and `comment` describe
the table, `table.*` are options of the server, all others are custom properties, which are stored and not interpreted.
A name that looks like a misspelled property of the first kind raises an error, because as a custom property it would
have no effect. `CLUSTERED BY (k) INTO n BUCKETS` and `PRIMARY KEY (k)` are equivalent to the properties.

DEFAULT of a column is a custom property under the name that it has in Paimon: `fields.<column>.default-value`.
Its value is SQL, which Spark evaluates when it fills columns; servers and other clients do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from forebay.base import options as parsers
from forebay.base.arguments import did_you_mean
from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.base.options import Option
from forebay.metadata.merge_engines import with_function_options
from forebay.metadata.table import Column, Schema, TableDescriptor, TableInfo
from forebay.metadata.table_options import TABLE_PREFIX
from forebay.spark.schemas import default_of, default_option, from_spark_schema, from_spark_type
from forebay.spark.sql.requests import (
    ColumnAddition,
    ColumnChange,
    ColumnDeletion,
    ColumnRenaming,
    CommentChange,
    DefaultChange,
    NullabilityChange,
    OtherChange,
    PositionChange,
    SetProperty,
    TableChange,
    TableRequest,
    Transform,
    TypeChange,
)

PRIMARY_KEY = "primary.key"
BUCKET_KEY = "bucket.key"
BUCKET_COUNT = "bucket.num"
COMMENT = "comment"
AUTO_INCREMENT = "auto-increment.fields"
PROVIDER = "provider"
_SPECIAL = (PRIMARY_KEY, BUCKET_KEY, BUCKET_COUNT, COMMENT, AUTO_INCREMENT)

PROVIDERS = ("forebay", "fluss")
"""The providers that `USING` may name."""

_DEFAULT = re.compile(r"fields\.(?P<column>.+)\.default-value")

MANAGED = "is_managed_location"
SPARKS_OWN = ("owner", MANAGED, "table_type")
"""Properties that Spark adds automatically."""

HIVE_FILES = dict.fromkeys(
    ("hive.stored-as", "hive.serde", "hive.input-format", "hive.output-format"),
    "tables have no file format of Hive; leave STORED AS and ROW FORMAT out",
)
_REFUSED = {
    "location": "the server decides where tables are kept; leave LOCATION out",
    "external": "all tables are kept by the server; leave EXTERNAL out",
    "collation": "only the default collation UTF8_BINARY can be stored",
    **HIVE_FILES,
}


@dataclass(frozen=True)
class NewTable:
    """The table that CREATE TABLE requests."""

    columns: Sequence[Column]
    transforms: Sequence[Transform] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    primary_key: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: TableRequest) -> NewTable:
        """The table of a request, with Fluss types. Raises `UnsupportedOperation` for types without a Fluss type."""
        texts = {f.name: default_of(f, request.is_copy) for f in request.schema.fields}
        defaults = {name: text for name, text in texts.items() if text is not None}
        columns = from_spark_schema(request.schema)
        return cls(columns, request.transforms, request.properties, request.primary_key, defaults)


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_TABLE_EXCEPTION)


def new_descriptor(new: NewTable) -> TableDescriptor:
    """The descriptor of a new table. Raises `InvalidRequest` for contradictions and unknown properties."""
    properties = _own_properties(new.properties)
    partition_keys, bucket_keys, buckets = _layout(new.transforms)
    primary_key = _one_of(new.primary_key, parsers.names(properties.pop(PRIMARY_KEY, "")), "primary key")
    bucket_keys = _one_of(bucket_keys, parsers.names(properties.pop(BUCKET_KEY, "")), "bucket key")
    if BUCKET_COUNT in properties:
        from_property = Option(BUCKET_COUNT, parsers.positive).read(properties.pop(BUCKET_COUNT))
        if buckets is not None and buckets != from_property:
            raise _invalid(f"CLUSTERED BY asks for {buckets} buckets, but '{BUCKET_COUNT}' is {from_property}")
        buckets = from_property
    automatic = parsers.names(properties.pop(AUTO_INCREMENT, ""))
    if len(automatic) > 1:
        raise _invalid(f"'{AUTO_INCREMENT}' names {len(automatic)} columns; a table can have one")
    comment = properties.pop(COMMENT, None)
    schema = Schema.of(new.columns, primary_key, automatic[0] if automatic else None)
    for key, what in ((partition_keys, "partition"), (bucket_keys, "bucket")):
        for name in key:
            if name not in schema.names:
                raise _invalid(f"{what} key '{name}' is not a column; the columns are {', '.join(schema.names)}")
    own, custom = divided(properties)
    for name, text in new.defaults.items():
        custom |= default_property(schema, name, text)
    return with_function_options(TableDescriptor(schema, partition_keys, bucket_keys, buckets, comment, own, custom))


def _one_of(in_statement: tuple[str, ...], in_properties: tuple[str, ...], what: str) -> tuple[str, ...]:
    if in_statement and in_properties and in_statement != in_properties:
        raise _invalid(
            f"the {what} is stated twice, as ({', '.join(in_statement)}) and as ({', '.join(in_properties)})"
        )
    return in_statement or in_properties


def _own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of the table, without those that Spark adds. Raises for unsupported ones."""
    provider = properties.get(PROVIDER)
    if provider is not None and provider.lower() not in PROVIDERS:
        raise _invalid(
            f"a table in this catalog cannot be USING {provider}; leave USING out, or write USING forebay (DataFrames: "
            "df.write.format('forebay').saveAsTable, or df.writeTo)"
        )
    for name, why in _REFUSED.items():
        if name in properties:
            raise _invalid(f"table property '{name}' = '{properties[name]}' cannot be: {why}")
    ours = {}
    for name, value in properties.items():
        # OPTIONS(...) arrives twice, plain and with this prefix.
        if name == PROVIDER or name in SPARKS_OWN or name.startswith("option."):
            continue
        check_name(name)
        ours[name] = value
    return ours


def check_name(name: str) -> None:
    """Raise `InvalidRequest` for a property that looks like a misspelt one of the table's own."""
    if is_property(name) or name.startswith("client."):
        return
    if default := _DEFAULT.fullmatch(name):
        raise _invalid(
            f"table property '{name}' is the DEFAULT of column '{default['column']}': say DEFAULT in CREATE TABLE, or "
            f"ALTER TABLE ... ALTER COLUMN {default['column']} SET DEFAULT"
        )
    plain = name.lower().replace("_", ".").replace("-", ".")
    hint = did_you_mean(plain, _SPECIAL[:3], 0.8)
    if hint:
        raise _invalid(f"there is no table property '{name}'{hint}")


def is_property(name: str) -> bool:
    """Whether a name is that of one of the table's own properties."""
    return name in _SPECIAL or name.startswith(TABLE_PREFIX)


def divided(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(options of the server, custom properties)."""
    own = {key: value for key, value in properties.items() if key.startswith(TABLE_PREFIX)}
    return own, {key: value for key, value in properties.items() if key not in own}


def _layout(transforms: Iterable[Transform]) -> tuple[tuple[str, ...], tuple[str, ...], int | None]:
    """(partition keys, bucket keys, bucket count)."""
    partition_keys: list[str] = []
    bucket_keys: tuple[str, ...] = ()
    buckets: int | None = None
    for transform in transforms:
        nested = [".".join(column) for column in transform.columns if len(column) > 1]
        if nested:
            raise _invalid(f"field {nested[0]} inside a column cannot be a partition or bucket key")
        names = tuple(column[0] for column in transform.columns)
        if transform.name == "identity":
            partition_keys += names
        elif transform.name == "bucket" and transform.number is not None:
            bucket_keys, buckets = names, transform.number
        else:
            raise UnsupportedOperation(
                f"PARTITIONED BY {transform.name}({', '.join(names)}) is not possible: tables are partitioned by the "
                "values of columns"
            )
    return tuple(partition_keys), bucket_keys, buckets


def table_properties(info: TableInfo, *, with_defaults: bool = True) -> dict[str, str]:
    """The properties that SHOW TBLPROPERTIES shows: CREATE TABLE recreates the table with them."""
    descriptor = info.descriptor
    properties: dict[str, str] = {}
    if info.has_primary_key:
        properties[PRIMARY_KEY] = ",".join(info.schema.primary_key)
    if descriptor.bucket_keys:
        properties[BUCKET_KEY] = ",".join(descriptor.bucket_keys)
    properties[BUCKET_COUNT] = str(info.bucket_count)
    if info.schema.auto_increment_column is not None:
        properties[AUTO_INCREMENT] = info.schema.auto_increment_column
    if descriptor.comment is not None:
        properties[COMMENT] = descriptor.comment
    # The location of the lake is a setting of the server, which CREATE TABLE may not repeat.
    of_lake = descriptor.lake_options_prefix
    own = {key: value for key, value in descriptor.properties.items() if of_lake is None or not key.startswith(of_lake)}
    custom = descriptor.custom_properties
    if not with_defaults:
        custom = {name: value for name, value in custom.items() if _DEFAULT.fullmatch(name) is None}
    return {**properties, **own, **custom}


def shown_properties(info: TableInfo) -> dict[str, str]:
    """The properties of a table without those that a server fills in, so that statements show what users have said."""
    properties = table_properties(info, with_defaults=False)
    if info.descriptor.is_default_bucket_key:
        properties.pop(BUCKET_KEY, None)
    return {name: value for name, value in properties.items() if _FILLED_IN.get(name) != value}


_FILLED_IN = {
    "table.replication.factor": "1",
    "table.kv.format-version": "2",
    "table.kv.standby-replica.enabled": "true",
}
"""Properties of each table that is created without them."""


def default_property(schema: Schema, column: str, text: str) -> dict[str, str]:
    """The property that keeps DEFAULT `text` of a column; none for NULL. Raises `InvalidRequest` for numbered ones."""
    if column == schema.auto_increment_column:
        raise _invalid(f"column '{column}' cannot have DEFAULT {text}: the server numbers it")
    return {} if text.upper() == "NULL" else {default_option(column): text}


def difference(info: TableInfo, new: NewTable) -> str | None:
    """The first difference between `new` and the existing table, for an error's text; None if only the rows can differ.

    Anything that `new` does not state (primary key, partitions, properties) stays as in the existing table.
    """
    descriptor = new_descriptor(new)
    columns = [(c.name, replace(c.data_type, nullable=True)) for c in descriptor.schema.columns]
    if columns != [(c.name, replace(c.data_type, nullable=True)) for c in info.schema.columns]:
        return f"its columns are {', '.join(info.schema.names)}, of the types that it was created with"
    if descriptor.schema.primary_key not in ((), info.schema.primary_key):
        return f"its primary key is ({', '.join(info.schema.primary_key)})"
    if descriptor.partition_keys not in ((), info.descriptor.partition_keys):
        return f"it is partitioned by ({', '.join(info.descriptor.partition_keys)})"
    current = table_properties(info)
    requested = {**_own_properties(new.properties), **descriptor.properties, **descriptor.custom_properties}
    if descriptor.bucket_count is not None:
        requested[BUCKET_COUNT] = str(descriptor.bucket_count)
    for name, value in requested.items():
        if name not in (PRIMARY_KEY, BUCKET_KEY) and current.get(name) != value:
            return f"its property '{name}' is {current.get(name)!r}"
    return None


# ---- ALTER TABLE ----------------------------------------------------------------------------------------------------


_CANNOT: Mapping[type[ColumnChange], str] = {
    ColumnRenaming: "columns cannot be renamed",
    ColumnDeletion: "columns cannot be dropped",
    TypeChange: "the type of a column cannot be changed",
    NullabilityChange: "the nullability of a column cannot be changed",
    CommentChange: "the comment of a column cannot be changed",
    PositionChange: "columns cannot be moved",
}
_OTHER_CHANGES = {
    "ClusterBy": "the bucket key cannot be changed",
    "AddConstraint": "constraints cannot be added: the primary key is fixed when a table is created",
    "DropConstraint": "constraints cannot be dropped: the primary key is fixed when a table is created",
}


@dataclass(frozen=True)
class Alteration:
    """The effect of ALTER TABLE: options to set and reset, and columns to add."""

    to_set: dict[str, str]
    to_reset: tuple[str, ...]
    columns: tuple[Column, ...]


def alteration(info: TableInfo, changes: Sequence[TableChange]) -> Alteration:
    """The changes, checked. Raises `InvalidRequest` and `UnsupportedOperation` for unsupported changes."""
    to_set: dict[str, str] = {}
    to_reset: list[str] = []
    columns: list[Column] = []
    for change in changes:
        match change:
            case SetProperty(name, value):
                _check_property(name, value)
                if value is None:
                    to_reset.append(name)
                else:
                    to_set[name] = value
            case ColumnAddition():
                columns.append(_added(change))
            case DefaultChange(path, text):
                defaults = _new_default(info, path, text)
                to_set |= defaults
                if not defaults:
                    to_reset.append(default_option(path[0]))
            case _:
                raise _other_change(change)
    return Alteration(to_set, tuple(to_reset), tuple(columns))


def _check_property(name: str, value: str | None) -> None:
    if name in _SPECIAL:
        raise InvalidRequest(f"'{name}' is fixed when a table is created", ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)
    if name in _REFUSED and value is not None:
        raise UnsupportedOperation(
            f"table property '{name}' = '{value}' cannot be: {_REFUSED[name]}", ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
        )
    check_name(name)


def _other_change(change: ColumnChange | OtherChange) -> UnsupportedOperation:
    if isinstance(change, OtherChange):
        why = _OTHER_CHANGES.get(change.kind, f"{change.kind} is not known")
    else:
        why = f"column '{'.'.join(change.path)}': {_CANNOT[type(change)]}"
    return UnsupportedOperation(why, ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)


def _new_default(info: TableInfo, path: tuple[str, ...], text: str | None) -> dict[str, str]:
    if len(path) > 1:
        raise InvalidRequest(
            f"field '{'.'.join(path)}' is inside a column; only columns have a DEFAULT",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )
    return {} if text is None else default_property(info.schema, path[0], text)


def _added(change: ColumnAddition) -> Column:
    name = ".".join(change.path)
    problem = None
    if len(change.path) > 1:
        problem = "fields cannot be added inside a column"
    elif change.position is not None:
        problem = f"new columns come last, not {change.position}"
    elif not change.nullable:
        problem = "a new column must be nullable, because the rows that are there have no value for it"
    elif change.has_default:
        problem = (
            "it cannot come with a DEFAULT, because the rows that are there have null in it. Add it without, then "
            "ALTER COLUMN ... SET DEFAULT for new rows"
        )
    if problem is not None:
        raise InvalidRequest(f"ADD COLUMN {name}: {problem}", ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)
    return Column(change.path[-1], from_spark_type(change.data_type, name), change.comment)
