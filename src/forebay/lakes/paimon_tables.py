"""The Paimon table of a stream table: columns, keys, buckets and options, and whether an existing table fits.

There are two *layouts*. Released Fluss (up to 0.9.1, the newest) creates tables that end with three *system columns*
(`__bucket`, `__offset`, `__timestamp`), and only reads and tiers these; Fluss's main branch (improvement proposal 27)
creates tables without them, and reads, tiers and alters both. So new tables have them, unless `LAYOUT_OPTION` says
otherwise. The layout of an existing table is detected from its columns, regardless of the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from forebay.base.errors import AlreadyExists, Conflict, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.quantity import parse_bool
from forebay.lake.shared_options import lake_options
from forebay.lake.source import BUCKET_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN
from forebay.lake.storage import LakeCatalog
from forebay.metadata.table import Column, TableDescriptor, TablePath
from forebay.metadata.types import DataType, TypeRoot, bigint, child, int_, timestamp_ltz
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.schema_changes import (
    IMMUTABLE_OPTIONS,
    AddColumn,
    Position,
    RemoveOption,
    SchemaChange,
    SetOption,
)
from forebay.paimon.table import Table

SYSTEM_COLUMNS: dict[str, DataType] = {
    BUCKET_COLUMN: int_(),
    OFFSET_COLUMN: bigint(),
    TIMESTAMP_COLUMN: timestamp_ltz(3),
}
"""The last columns of tables with system columns, as in Fluss 0.9; up to 0.8 the time has 6 digits."""

LAYOUT_OPTION = "forebay.system-columns"
"""Whether new tables have system columns: an option of the lake, and with the prefix `paimon.` of a table."""

RESERVED_OPTIONS = ("bucket", "bucket-key", "partition.legacy-name")
"""Options of the Paimon table that follow from the stream table and cannot be set."""

_PAIMON_PREFIX, _FLUSS_PREFIX, _LAKE_PREFIX = "paimon.", "fluss.", "table.datalake.paimon."
_VECTORS = "deletion-vectors.enabled"
_WRITTEN_FORMAT = "parquet"


def open_catalog(options: Mapping[str, str]) -> Catalog:
    """The catalog for a lake's options."""
    return Catalog.open(options)


def has_system_columns(schema: TableSchema) -> bool:
    """Whether the table has Fluss's system columns (Fluss checks for this one, too)."""
    return "__timestamp" in schema.names


def business_fields(schema: TableSchema) -> tuple[DataField, ...]:
    """The columns of the stream table."""
    return schema.fields[: -len(SYSTEM_COLUMNS)] if has_system_columns(schema) else schema.fields


# ---- the definition -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LakeDefinition:
    """The Paimon table that a stream table requires. `fields` are the stream's columns, without system columns."""

    fields: tuple[DataField, ...]
    primary_keys: tuple[str, ...]
    partition_keys: tuple[str, ...]
    options: Mapping[str, str]
    comment: str | None = None


def definition_of(descriptor: TableDescriptor) -> LakeDefinition:
    """The Paimon table of a stream table. Raises `InvalidRequest` or `UnsupportedOperation` if there is none."""
    for column in descriptor.schema.columns:
        if column.name in SYSTEM_COLUMNS:
            raise InvalidRequest(
                f"column name '{column.name}' is one of the lake's system columns; choose another",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
    options = {"partition.legacy-name": "false", "bucket": "-1"}
    bucket_keys = descriptor.bucket_keys or descriptor.physical_primary_key
    if bucket_keys:
        if descriptor.bucket_count is None:
            raise InvalidRequest("a table with a bucket key needs a bucket count", ErrorCode.INVALID_TABLE_EXCEPTION)
        options |= {"bucket": str(descriptor.bucket_count), "bucket-key": ",".join(bucket_keys)}
    if descriptor.has_primary_key:
        options["changelog-producer"] = "input"
    options |= {
        key: value
        for name, value in _all_options(descriptor).items()
        if (key := _option_key(name)) is not None and key != LAYOUT_OPTION
    }
    _check_options(options)
    fields = tuple(DataField(-1, c.name, _lake_type(c.data_type), c.comment) for c in descriptor.schema.columns)
    return LakeDefinition(fields, descriptor.schema.primary_key, descriptor.partition_keys, options, descriptor.comment)


def asks_for_system_columns(descriptor: TableDescriptor, default: bool = True) -> bool:
    """Whether the lake table of a new stream table shall have system columns. Raises `InvalidRequest`."""
    name = _PAIMON_PREFIX + LAYOUT_OPTION
    layout = {**descriptor.properties, **descriptor.custom_properties}.get(name)
    return default if layout is None else _layout(name, layout)


def _layout(name: str, text: str) -> bool:
    try:
        return parse_bool(text)
    except InvalidRequest as e:
        raise InvalidRequest(f"option '{name}': {e.message}", ErrorCode.INVALID_CONFIG_EXCEPTION) from e


def layout_default(options: Mapping[str, str]) -> bool:
    """Whether new tables of a lake with these options have system columns. Raises `InvalidRequest`."""
    return _layout(LAYOUT_OPTION, options.get(LAYOUT_OPTION, "true"))


def _check_options(options: Mapping[str, str]) -> None:
    """Raise `UnsupportedOperation` for tables that could be created, but not written."""
    if parse_bool(options.get(_VECTORS, "false")):
        raise UnsupportedOperation(
            f"option 'paimon.{_VECTORS}' is not supported for tables that are tiered: their newest rows can be read "
            "only after a compaction"
        )
    function = CoreOptions(options).bucket_function_type
    if function != "default":
        raise UnsupportedOperation(
            f"option 'paimon.bucket-function.type' is '{function}', but the server and its clients choose buckets by "
            "the default function: leave it out"
        )
    if "path" in options:
        raise UnsupportedOperation("option 'paimon.path' is not supported: tables lie below the lake's warehouse")
    unwritten = _unwritten_format(options)
    if unwritten is not None:
        key, name = unwritten
        raise UnsupportedOperation(
            f"option 'paimon.{key}' asks for files in {name}, which tiering cannot write: leave it out, or set it to "
            f"'{_WRITTEN_FORMAT}'"
        )


def _unwritten_format(options: Mapping[str, str]) -> tuple[str, str] | None:
    """(option, format) if options require a file format that the engine reads but does not write."""
    core = CoreOptions(options)
    formats = {
        "file.format": [core.file_format],
        "changelog-file.format": [core.changelog_file_format or _WRITTEN_FORMAT],
        "file.format.per.level": list(core.file_format_per_level.values()),
    }
    pairs = ((key, name) for key, names in formats.items() for name in names)
    return next(((key, name) for key, name in pairs if name.lower() != _WRITTEN_FORMAT), None)


def _all_options(descriptor: TableDescriptor) -> dict[str, str]:
    return lake_options(descriptor, _PAIMON_PREFIX, RESERVED_OPTIONS, "buckets and partitions")


def _option_key(name: str) -> str | None:
    """The name of an option in Paimon; None for one that is not stored there."""
    if name.startswith(_PAIMON_PREFIX):
        return name.removeprefix(_PAIMON_PREFIX)
    return None if name.startswith(_LAKE_PREFIX) else _FLUSS_PREFIX + name


def _lake_type(t: DataType) -> DataType:
    """The type in Paimon: the same, but a TIME has no fractional digits in its name."""
    if t.root is TypeRoot.TIME:
        return replace(t, precision=0)
    return _with_children(t, _lake_type)


def _with_children(t: DataType, change: Callable[[DataType], DataType]) -> DataType:
    match t.root:
        case TypeRoot.ARRAY:
            return replace(t, element=change(child(t.element)))
        case TypeRoot.MAP:
            return replace(t, key=change(child(t.key)), value=change(child(t.value)))
        case TypeRoot.ROW:
            return replace(t, fields=tuple(replace(f, data_type=change(f.data_type)) for f in t.fields))
    return t


# ---- comparing ------------------------------------------------------------------------------------------------------


def difference(existing: TableSchema, definition: LakeDefinition, *, wider: bool = False) -> str | None:
    """The reason why `existing` does not fit the table `definition`, in words; None if it fits.

    Comments, field ids and options that do not affect the meaning of data are ignored. With `wider`, `existing` may
    have additional columns, as it has between the two steps of ADD COLUMN.
    """
    if existing.primary_keys != definition.primary_keys:
        return f"its primary key is {list(existing.primary_keys)}, and should be {list(definition.primary_keys)}"
    if existing.partition_keys != definition.partition_keys:
        return (
            f"its partition keys are {list(existing.partition_keys)}, and should be {list(definition.partition_keys)}"
        )
    if parse_bool(existing.options.get(_VECTORS, "false")):
        return "it has deletion vectors, which tiering does not support"
    unwritten = _unwritten_format(existing.options)
    if unwritten is not None:
        return f"its option '{unwritten[0]}' asks for files in {unwritten[1]}, which tiering cannot write"
    current = business_fields(existing)
    fields = definition.fields
    if len(current) < len(fields) or (len(current) > len(fields) and not wider):
        return f"its columns are {_names(current)}, and should be {_names(fields)}"
    for a, b in zip(current, fields, strict=False):
        if (a.name, _bare(a.type)) != (b.name, _bare(b.type)):
            return f"it has the column '{a.name} {a.type}' where '{b.name} {b.type}' should be"
    for key in (*RESERVED_OPTIONS, *sorted(IMMUTABLE_OPTIONS)):
        if key != "path" and existing.options.get(key) != definition.options.get(key):
            return f"its option '{key}' is {existing.options.get(key)!r}, and should be {definition.options.get(key)!r}"
    return None


def _names(fields: Sequence[DataField]) -> str:
    return ", ".join(f.name for f in fields)


def _bare(t: DataType) -> DataType:
    """`t` without field ids and comments."""
    if t.root is TypeRoot.ROW:
        bare = tuple(replace(f, field_id=None, description=None, data_type=_bare(f.data_type)) for f in t.fields)
        return replace(t, fields=bare)
    return _with_children(t, _bare)


# ---- the catalog ----------------------------------------------------------------------------------------------------


class PaimonLakeCatalog(LakeCatalog):
    """Creates and alters tables of a Paimon catalog."""

    def __init__(self, catalog: Catalog, *, system_columns: bool = True) -> None:
        """`system_columns`: whether new tables have them, unless the table's own option is set."""
        self._catalog = catalog
        self._system_columns = system_columns

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, creating: bool) -> None:
        """See `LakeCatalog.create_table`. Creates the database too. Raises `Conflict` if an existing table differs."""
        expected = definition_of(descriptor)
        fields = expected.fields
        if asks_for_system_columns(descriptor, self._system_columns):
            fields += tuple(DataField(-1, name, t) for name, t in SYSTEM_COLUMNS.items())
        self._catalog.create_database(path.database, ignore_if_exists=True)
        try:
            definition = new_schema(
                fields, expected.primary_keys, expected.partition_keys, expected.options, expected.comment
            )
            self._catalog.create_defined(str(path), definition)
        except AlreadyExists:
            self._check_existing(path, expected, creating)

    def _check_existing(self, path: TablePath, definition: LakeDefinition, creating: bool) -> None:
        table = self._catalog.table(str(path))
        problem = difference(table.schema, definition)
        if problem is None and creating and table.context.snapshots.latest_id() is not None:
            problem = "it is not empty"
        if problem is not None:
            raise Conflict(
                f"table {path} exists already in the lake, and {problem}; drop it there first, or choose another name",
                ErrorCode.LAKE_TABLE_ALREADY_EXIST,
            )

    def alter_table(self, path: TablePath, current: TableDescriptor, expected: TableDescriptor) -> None:
        """See `LakeCatalog.alter_table`. All changes are one new schema. Raises `InvalidRequest` if the table is
        neither as `current` nor as `expected`."""
        table = self._catalog.table(str(path))
        before, after = definition_of(current), definition_of(expected)
        added = _added_columns(current, expected)
        changes = _option_changes(current, expected)
        if (problem := difference(table.schema, before)) is None:
            changes = [*_add_columns(table, added), *changes]
        elif difference(table.schema, after) is not None:
            raise InvalidRequest(
                f"the lake table {path} cannot be altered: {problem}; it must be as the stream table was, or as it is "
                "going to be",
                ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            )
        if changes:
            table.context.schemas.change(changes, has_snapshots=table.context.snapshots.latest_id() is not None)


def _added_columns(current: TableDescriptor, expected: TableDescriptor) -> tuple[Column, ...]:
    """The additional columns of `expected`. Raises `UnsupportedOperation` if anything else but options differs."""
    count = len(current.schema.columns)
    old, new = current.schema.columns, expected.schema.columns
    is_prefix = [(c.name, _bare(c.data_type)) for c in new[:count]] == [(c.name, _bare(c.data_type)) for c in old]
    fixed = [(d.schema.primary_key, d.partition_keys, d.bucket_keys, d.bucket_count) for d in (current, expected)]
    if not is_prefix or fixed[0] != fixed[1]:
        raise UnsupportedOperation(
            "a lake table takes new options, and new columns at the end; keys, buckets and existing columns stay"
        )
    for column in new[count:]:
        if not column.data_type.nullable:
            raise UnsupportedOperation(f"the new column '{column.name}' must be nullable: old rows have no value")
    return new[count:]


def _add_columns(table: Table, columns: Sequence[Column]) -> list[SchemaChange]:
    position = Position("before", "__bucket") if has_system_columns(table.schema) else Position("last")
    return [AddColumn((c.name,), _lake_type(c.data_type), c.comment, position) for c in columns]


def _option_changes(current: TableDescriptor, expected: TableDescriptor) -> list[SchemaChange]:
    old, new = _all_options(current), _all_options(expected)
    changes: list[SchemaChange] = []
    for name in sorted({*old, *new}):
        key = _option_key(name)
        if key is None or old.get(name) == new.get(name):
            continue
        if key in IMMUTABLE_OPTIONS or key == LAYOUT_OPTION:
            raise InvalidRequest(f"option '{name}' cannot be changed", ErrorCode.INVALID_CONFIG_EXCEPTION)
        changes.append(SetOption(key, new[name]) if name in new else RemoveOption(key))
    return changes


def check_fits(table: Table, descriptor: TableDescriptor, path: TablePath) -> None:
    """Raise `InvalidRequest` unless rows of the stream table can be written to the lake table."""
    problem = difference(table.schema, definition_of(descriptor), wider=True)
    if problem is not None:
        raise InvalidRequest(
            f"the lake table {path} does not fit the stream's: {problem}", ErrorCode.INVALID_TABLE_EXCEPTION
        )


def lake_table(options: Mapping[str, str], path: TablePath, dynamic: Mapping[str, str] | None = None) -> Table:
    """The lake table of `path`, with `dynamic` options. Raises `NotFound`."""
    try:
        return open_catalog(options).table(str(path), options=dynamic)
    except NotFound as e:
        raise NotFound(f"the lake table {path} does not exist: {e.message}") from e
