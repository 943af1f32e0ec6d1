"""The Iceberg table of a stream table: columns, keys, partitions and options, and whether an existing table fits.

Three system columns follow the stream's columns: `__bucket`, `__offset` and `__timestamp` (as in Fluss's
`IcebergSchemaUtils`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, TimestamptzType

from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.locations import file_uri, is_local, located, location
from forebay.lake.shared_options import lake_options
from forebay.lake.source import BUCKET_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN
from forebay.lake.storage import LakeCatalog
from forebay.lakes.iceberg_errors import lake_errors
from forebay.lakes.iceberg_types import iceberg_type, numbered, shape
from forebay.metadata.table import Column, TableDescriptor, TablePath
from forebay.metadata.types import TypeRoot

SYSTEM_COLUMNS: dict[str, IcebergType] = {
    BUCKET_COLUMN: IntegerType(),
    OFFSET_COLUMN: LongType(),
    TIMESTAMP_COLUMN: TimestamptzType(),
}
"""The last columns of every lake table."""

RESERVED_OPTIONS = ("write.delete.mode", "write.update.mode", "write.merge.mode")
"""Options of the Iceberg table that follow from the stream table and cannot be set."""

_MERGE_ON_READ = "merge-on-read"
_FORMAT_VERSION, _VERSION = "format-version", "2"
_FORMATS, _WRITTEN_FORMAT = ("write.format.default", "write.delete.format.default"), "parquet"
_ICEBERG_PREFIX, _FLUSS_PREFIX = "iceberg.", "fluss."
_SQLITE = "sqlite:///"
_CUT_BY_PYICEBERG = re.compile(r"[?#\x00-\x1f]")
_CATALOG_NAME = "fluss-iceberg-catalog"
_CATALOG_TYPES = ("sql", "rest", "hive", "glue", "dynamodb", "bigquery", "in-memory")


# ---- the catalog of pyiceberg ---------------------------------------------------------------------------------------


def settled(options: Mapping[str, str]) -> dict[str, str]:
    """A lake's options that mean the same in each process: the warehouse and a SQLite file have absolute paths."""
    settings: dict[str, str] = located(options)
    if settings.get("uri", "").startswith(_SQLITE):
        settings["uri"] = _absolute_database(settings["uri"])
    return settings


def _absolute_database(uri: str) -> str:
    """SQLAlchemy's URI of a SQLite file; a relative path becomes absolute."""
    if uri.startswith(_SQLITE + "/"):
        return uri
    from sqlalchemy import make_url

    path, (_, mark, parameters) = make_url(uri).database, uri.partition("?")
    if not path or path.startswith((":", "file:")):
        return uri
    return _sqlite_uri(location(path, "the file in option 'uri'")) + mark + parameters


def _sqlite_uri(path: str) -> str:
    """SQLAlchemy's URI of a SQLite file."""
    if "%" not in path:
        return _SQLITE + path
    from sqlalchemy import make_url

    is_decoded = make_url(f"{_SQLITE}/%25").database == "/%"  # from SQLAlchemy 2.1 on
    return _SQLITE + (path.replace("%", "%25") if is_decoded else path)


def catalog_properties(options: Mapping[str, str]) -> dict[str, str]:
    """pyiceberg's properties for a lake's options: by default a SQL catalog in a SQLite file in the warehouse.

    Raises `InvalidRequest` if the warehouse is missing, `UnsupportedOperation` for a catalog that pyiceberg lacks.
    """
    properties = {"type": "sql", **settled(options)}
    properties["type"] = properties["type"].lower()
    if properties["type"] == "jdbc":  # Java's name for the same tables
        properties["type"] = "sql"
        properties["uri"] = properties.get("uri", "").replace("jdbc:sqlite:", "sqlite:///").removeprefix("jdbc:")
    if properties["type"] not in _CATALOG_TYPES or "catalog-impl" in properties:
        name = properties.get("catalog-impl", properties["type"])
        raise UnsupportedOperation(f"Iceberg catalog {name!r} is not supported; use one of {list(_CATALOG_TYPES)}")
    warehouse = properties.get("warehouse")
    if warehouse is None and properties["type"] == "sql":
        raise InvalidRequest("option 'warehouse' is missing: the folder of the lake's tables")
    if warehouse is not None and properties["type"] == "sql":
        is_here = is_local(warehouse)
        if is_here:
            properties["warehouse"] = file_uri(_readable(warehouse))
        if "uri" not in properties:
            if not is_here:
                raise InvalidRequest(
                    f"option 'uri' is missing: the database of the SQL catalog of {warehouse}, such as "
                    "'postgresql+psycopg2://host/name'"
                )
            properties["uri"] = _sqlite_uri(f"{warehouse}/catalog.db")
    return properties


def _readable(folder: str) -> str:
    """`folder`, unless pyiceberg would cut it: it takes locations for URLs, but does not decode them."""
    match = _CUT_BY_PYICEBERG.search(folder)
    if match is not None:
        raise InvalidRequest(
            f"option 'warehouse' is {folder!r}: pyiceberg does not find files in a folder whose name has {match[0]!r}"
        )
    return folder


def new_catalog(options: Mapping[str, str]) -> Catalog:
    """The catalog of a lake's options, opened."""
    properties = catalog_properties(options)
    if properties.get("uri", "").startswith(_SQLITE):
        from sqlalchemy import make_url

        Path(make_url(properties["uri"]).database or "").parent.mkdir(parents=True, exist_ok=True)
    name = properties.pop("name", _CATALOG_NAME)
    if properties["type"] == "sql":
        from forebay.lakes.iceberg_sql import open_sql_catalog

        return open_sql_catalog(name, properties)
    return load_catalog(name, **properties)


@contextmanager
def opened(options: Mapping[str, str]) -> Iterator[Catalog]:
    """The catalog for a lake's options, closed at the end of the block."""
    properties = catalog_properties(options)
    with lake_errors(f"Iceberg catalog {properties.get('uri') or properties.get('warehouse')}"):
        catalog = new_catalog(options)
        try:
            yield catalog
        finally:
            catalog.close()


def load_table(catalog: Catalog, path: TablePath) -> Table:
    """The lake table of `path`. Raises `NotFound`."""
    try:
        return catalog.load_table((path.database, path.table))
    except (NoSuchTableError, NoSuchIcebergTableError, NoSuchNamespaceError) as e:
        raise NotFound(f"the lake table {path} does not exist", ErrorCode.TABLE_NOT_EXIST) from e


# ---- the definition -------------------------------------------------------------------------------------------------


_NO_KEY_ROOTS = frozenset({TypeRoot.FLOAT, TypeRoot.DOUBLE, TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW})


@dataclass(frozen=True)
class IcebergDefinition:
    """The Iceberg table that a stream table requires."""

    schema: Schema
    spec: PartitionSpec
    order: SortOrder
    properties: Mapping[str, str]


def definition_of(descriptor: TableDescriptor) -> IcebergDefinition:
    """The Iceberg table of a stream table. Raises `InvalidRequest` or `UnsupportedOperation` if there is none."""
    columns = descriptor.schema.columns
    for column in columns:
        if column.name in SYSTEM_COLUMNS:
            raise InvalidRequest(
                f"column name '{column.name}' is one of the lake's system columns; choose another",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
    for name in descriptor.schema.primary_key:
        t = descriptor.schema.column(name).data_type
        if t.root in _NO_KEY_ROOTS:
            raise UnsupportedOperation(
                f"column '{name}' of type {t} cannot be part of the primary key of an Iceberg table: Iceberg's "
                "identifier fields are neither floating point numbers nor nested"
            )
    top, nested = numbered(1), numbered(len(columns) + len(SYSTEM_COLUMNS) + 1)
    fields = [
        NestedField(top(), c.name, iceberg_type(c.data_type, nested), not c.data_type.nullable, c.comment)
        for c in columns
    ]
    fields += [NestedField(top(), name, t, required=True) for name, t in SYSTEM_COLUMNS.items()]
    ids = {f.name: f.field_id for f in fields}
    schema = Schema(*fields, identifier_field_ids=[ids[name] for name in descriptor.schema.primary_key])
    order = SortOrder(
        SortField(ids[OFFSET_COLUMN], IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1
    )
    return IcebergDefinition(schema, _spec(descriptor, schema, ids), order, _properties(descriptor))


def _spec(descriptor: TableDescriptor, schema: Schema, ids: Mapping[str, int]) -> PartitionSpec:
    number = numbered(PARTITION_FIELD_ID_START)
    fields = [PartitionField(ids[key], number(), IdentityTransform(), key) for key in descriptor.partition_keys]
    bucket_keys = descriptor.bucket_keys or descriptor.physical_primary_key
    if len(bucket_keys) > 1:
        raise InvalidRequest(
            f"Iceberg tables have at most one bucket key, and this one has {list(bucket_keys)}; name one "
            "of them as the bucket key",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    if not bucket_keys:
        fields.append(PartitionField(ids[BUCKET_COLUMN], number(), IdentityTransform(), BUCKET_COLUMN))
        return PartitionSpec(*fields)
    if descriptor.bucket_count is None:
        raise InvalidRequest("a table with a bucket key needs a bucket count", ErrorCode.INVALID_TABLE_EXCEPTION)
    key = bucket_keys[0]
    transform: BucketTransform[Any] = BucketTransform(descriptor.bucket_count)
    if not transform.can_transform(schema.find_type(key)):
        raise InvalidRequest(
            f"column '{key}' of type {descriptor.schema.column(key).data_type} cannot be an Iceberg bucket key",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    fields.append(PartitionField(ids[key], number(), transform, f"{key}_bucket"))
    return PartitionSpec(*fields)


def _properties(descriptor: TableDescriptor) -> dict[str, str]:
    properties = dict.fromkeys(RESERVED_OPTIONS, _MERGE_ON_READ) if descriptor.has_primary_key else {}
    properties |= {_option_key(name): value for name, value in _all_options(descriptor).items()}
    if properties.get(_FORMAT_VERSION, _VERSION) != _VERSION:
        raise UnsupportedOperation(
            f"option 'iceberg.{_FORMAT_VERSION}' is {properties[_FORMAT_VERSION]}; tables of version {_VERSION} are "
            "tiered"
        )
    for key in _FORMATS:
        if properties.get(key, _WRITTEN_FORMAT).lower() != _WRITTEN_FORMAT:
            raise UnsupportedOperation(
                f"option 'iceberg.{key}' asks for files in {properties[key]}, which tiering cannot write: leave it "
                f"out, or set it to '{_WRITTEN_FORMAT}'"
            )
    return properties


def _all_options(descriptor: TableDescriptor) -> dict[str, str]:
    return lake_options(descriptor, _ICEBERG_PREFIX, RESERVED_OPTIONS, "primary key")


def _option_key(name: str) -> str:
    """The name of an option in Iceberg."""
    return name.removeprefix(_ICEBERG_PREFIX) if name.startswith(_ICEBERG_PREFIX) else _FLUSS_PREFIX + name


# ---- comparing ------------------------------------------------------------------------------------------------------


def difference(existing: TableMetadata, definition: IcebergDefinition, *, wider: bool = False) -> str | None:
    """The reason why `existing` does not fit the table `definition`, in words; None if it fits.

    Field ids, comments and options are ignored. With `wider`, `existing` may have additional columns, as it has between
    the two steps of ADD COLUMN.
    """
    current, schema = existing.schema(), definition.schema
    keys, expected_keys = (
        _names_of(current, current.identifier_field_ids),
        _names_of(schema, schema.identifier_field_ids),
    )
    if keys != expected_keys:
        return f"its primary key is {sorted(keys)}, and should be {sorted(expected_keys)}"
    problem = _column_difference(current, schema, wider)
    if problem is not None:
        return problem
    spec, expected_spec = _spec_shape(existing.spec(), current), _spec_shape(definition.spec, schema)
    if spec != expected_spec:
        return f"its partitions and buckets are {_spec_text(spec)}, and should be {_spec_text(expected_spec)}"
    order, expected_order = _order_shape(existing.sort_order(), current), _order_shape(definition.order, schema)
    if order != expected_order:
        return f"its sort order is {order}, and should be {expected_order}"
    if existing.format_version != int(_VERSION):
        return f"its format version is {existing.format_version}, and should be {_VERSION}"
    return None


def _names_of(schema: Schema, ids: Any) -> set[str]:
    return {schema.find_column_name(i) or "" for i in ids}


def _column_difference(current: Schema, schema: Schema, wider: bool) -> str | None:
    system = len(SYSTEM_COLUMNS)
    tail, expected_tail = ([_field_shape(f) for f in s.fields[-system:]] for s in (current, schema))
    if tail != expected_tail:
        return f"its last columns are not the system columns {list(SYSTEM_COLUMNS)}"
    columns, expected = current.fields[:-system], schema.fields[:-system]
    if len(columns) < len(expected) or (len(columns) > len(expected) and not wider):
        return (
            f"its columns are {', '.join(f.name for f in columns)}, and should be {', '.join(f.name for f in expected)}"
        )
    for a, b in zip(columns, expected, strict=False):
        if _field_shape(a) != _field_shape(b):
            return f"it has the column '{_field_text(a)}' where '{_field_text(b)}' should be"
    return None


def _field_shape(f: NestedField) -> Any:
    return f.name, f.required, shape(f.field_type)


def _field_text(f: NestedField) -> str:
    return f"{f.name} {f.field_type}{' required' if f.required else ''}"


def _spec_shape(spec: PartitionSpec, schema: Schema) -> list[tuple[str, str, str]]:
    return [(f.name, schema.find_column_name(f.source_id) or "", str(f.transform)) for f in spec.fields]


def _spec_text(fields: list[tuple[str, str, str]]) -> str:
    return ", ".join(f"{transform}({source})" for _, source, transform in fields) or "none"


def _order_shape(order: SortOrder, schema: Schema) -> list[tuple[str, str, str, str]]:
    return [
        (schema.find_column_name(f.source_id) or "", str(f.transform), f.direction.value, f.null_order.value)
        for f in order.fields
    ]


def check_fits(table: Table, descriptor: TableDescriptor, path: TablePath) -> None:
    """Raise `InvalidRequest` unless rows of the stream table can be written to the lake table."""
    problem = difference(table.metadata, definition_of(descriptor), wider=True)
    if problem is not None:
        raise InvalidRequest(
            f"the lake table {path} does not fit the stream's: {problem}", ErrorCode.INVALID_TABLE_EXCEPTION
        )


# ---- creating and altering ------------------------------------------------------------------------------------------


class IcebergLakeCatalog(LakeCatalog):
    """Creates and alters tables of an Iceberg catalog."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, creating: bool) -> None:
        """See `LakeCatalog.create_table`. Creates the namespace too. Raises `Conflict` if an existing table differs."""
        definition = definition_of(descriptor)
        with opened(self._options) as catalog:
            try:
                catalog.create_namespace_if_not_exists((path.database,))
            except NamespaceAlreadyExistsError:
                pass  # another process was faster
            try:
                catalog.create_table(
                    (path.database, path.table),
                    definition.schema,
                    partition_spec=definition.spec,
                    sort_order=definition.order,
                    properties={**definition.properties, _FORMAT_VERSION: _VERSION},
                )
            except TableAlreadyExistsError:
                _check_existing(load_table(catalog, path), path, definition, creating)

    def alter_table(self, path: TablePath, current: TableDescriptor, expected: TableDescriptor) -> None:
        """See `LakeCatalog.alter_table`. Columns and properties change in one commit. Raises `InvalidRequest` if the
        table is neither as `current` nor as `expected`."""
        before, after = definition_of(current), definition_of(expected)
        added = _added_columns(current, expected)
        with opened(self._options) as catalog:
            table = load_table(catalog, path)
            if (problem := difference(table.metadata, before)) is None:
                columns = added
            elif difference(table.metadata, after) is None:
                columns = ()
            else:
                raise InvalidRequest(
                    f"the lake table {path} cannot be altered: {problem}; it must be as the stream table was, or as "
                    "it is going to be",
                    ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
                )
            _alter(table, columns, before.properties, after.properties)


def _check_existing(table: Table, path: TablePath, definition: IcebergDefinition, creating: bool) -> None:
    problem = difference(table.metadata, definition)
    if problem is None:
        other = sorted(k for k, v in definition.properties.items() if table.properties.get(k) != v)
        if other and not (other == [_FORMAT_VERSION] and table.metadata.format_version == int(_VERSION)):
            problem = f"its property '{other[0]}' is {table.properties.get(other[0])!r}, and should be "
            problem += repr(definition.properties[other[0]])
    if problem is None and creating and table.current_snapshot() is not None:
        problem = "it is not empty"
    if problem is not None:
        raise Conflict(
            f"table {path} exists already in the lake, and {problem}; drop it there first, or choose another name",
            ErrorCode.LAKE_TABLE_ALREADY_EXIST,
        )


def _added_columns(current: TableDescriptor, expected: TableDescriptor) -> tuple[Column, ...]:
    """The additional columns of `expected`. Raises `UnsupportedOperation` if anything else but options differs."""
    old, new = current.schema.columns, expected.schema.columns
    shapes = [[(c.name, c.data_type.nullable, shape(iceberg_type(c.data_type, numbered(0)))) for c in s]
              for s in (old, new[: len(old)])]  # fmt: skip
    fixed = [(d.schema.primary_key, d.partition_keys, d.bucket_keys, d.bucket_count) for d in (current, expected)]
    if shapes[0] != shapes[1] or fixed[0] != fixed[1]:
        raise UnsupportedOperation(
            "a lake table takes new options, and new columns at the end; keys, buckets and existing columns stay"
        )
    for column in new[len(old) :]:
        if not column.data_type.nullable:
            raise UnsupportedOperation(f"the new column '{column.name}' must be nullable: old rows have no value")
    return new[len(old) :]


def _alter(table: Table, columns: tuple[Column, ...], before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Change columns and options in one commit of the table."""
    changed = {k: v for k, v in after.items() if before.get(k) != v and table.properties.get(k) != v}
    removed = [k for k in before if k not in after and k in table.properties]
    if not (columns or changed or removed):
        return
    with table.transaction() as transaction:
        if columns:
            with transaction.update_schema() as update:
                for column in columns:
                    column_type = iceberg_type(column.data_type, numbered(1))
                    update.add_column(column.name, column_type, column.comment)
                    update.move_before(column.name, BUCKET_COLUMN)
        if changed:
            transaction.set_properties(changed)
        if removed:
            transaction.remove_properties(*removed)
