"""The catalog: which databases, tables and partitions exist, in memory, in step with the metadata store.

Reads take no lock and see whole changes: every change replaces an immutable value. Changes are made one at a time
(a lock), checked first, stored durably, then shown. Errors are Fluss's (docs/protocol.md).

What clients ask of a table again and again is described once (`Descriptions`): a table of a thousand columns takes
milliseconds to describe, on the event loop. Descriptions are cached up to a number of bytes, with the least recently
used evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import AlreadyExists, ErrorCode, InvalidRequest, LimitExceeded, NotFound
from forebay.base.threads import WriteGate
from forebay.fs import names
from forebay.metadata import json_serde
from forebay.metadata.auto_partition import AutoPartitioning
from forebay.metadata.names import check_database_name, check_table_path
from forebay.metadata.partitions import resolve_spec
from forebay.metadata.table import (
    Column,
    DatabaseInfo,
    PartitionInfo,
    PhysicalTablePath,
    Schema,
    TableBucket,
    TableDescriptor,
    TableInfo,
    TablePath,
    assign_ids,
)
from forebay.server.metadata.lake_tables import LakeTables
from forebay.server.metadata.merge_rules import check_schema_functions
from forebay.server.metadata.table_rules import (
    altered_properties,
    check_column_count,
    check_description_size,
    check_new_table,
    check_schema_history,
    with_defaults,
)
from forebay.server.metadata_store import MetadataStore, TableRecord

_DESCRIBED_BYTES_MAX = 32 << 20
"""Maximum memory of the cached descriptions."""
_ENTRY_BYTES = 512
"""Approximate memory of an entry in addition to its text."""


class Descriptions:
    """JSON by table and schema. For the event loop only."""

    def __init__(
        self, public_form: Callable[[TableDescriptor], TableDescriptor], bytes_max: int = _DESCRIBED_BYTES_MAX
    ) -> None:
        """`public_form`: a descriptor as clients see it, always the same of one descriptor."""
        self._public_form = public_form
        self._bytes_max = bytes_max
        self._texts: OrderedDict[tuple[int, int | None], tuple[object, bytes]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    def table(self, info: TableInfo) -> bytes:
        """The descriptor of a table as it is now."""
        descriptor = info.descriptor
        return self._get(
            (info.table_id, None), info, lambda: json_serde.descriptor_to_json(self._public_form(descriptor))
        )

    def schema(self, table_id: int, schema_id: int, schema: Schema) -> bytes:
        """One schema of a table."""
        return self._get((table_id, schema_id), schema, lambda: json_serde.schema_to_json(schema))

    def _get(self, key: tuple[int, int | None], of: object, describe: Callable[[], Any]) -> bytes:
        cached = self._texts.get(key)
        if cached is not None and cached[0] is of:  # an altered table is another object
            self._texts.move_to_end(key)
            return cached[1]
        text = json_serde.dumps(describe())
        if cached is not None:
            self._forget(key)
        self._texts[key] = (of, text)
        self._bytes += len(text) + _ENTRY_BYTES
        while self._bytes > self._bytes_max:
            self._forget(next(iter(self._texts)))
        return text

    def _forget(self, key: tuple[int, int | None]) -> None:
        self._bytes -= len(self._texts.pop(key)[1]) + _ENTRY_BYTES


DEFAULT_DATABASE = "fluss"


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    """Cluster-wide limits and defaults (`max.bucket.num` and so on)."""

    bucket_count_default: int = 1
    bucket_count_max: int = 4096
    partition_count_max: int = 1000
    replication_factor_default: int = 1
    log_tables_allowed: bool = True
    kv_tables_allowed: bool = True


@dataclass(frozen=True)
class CatalogTable:
    """A table as it is now. Replaced as a whole when anything about it changes."""

    info: TableInfo
    schemas: Mapping[int, Schema]
    partitions_by_id: Mapping[int, PartitionInfo] = field(default_factory=dict)
    partition_ids: Mapping[str, int] = field(default_factory=dict)

    def partition(self, name: str) -> PartitionInfo:
        """Return a partition by its name. Raises `NotFound` (PARTITION_NOT_EXISTS)."""
        partition_id = self.partition_ids.get(name)
        if partition_id is None:
            # Programs that were written for Fluss look for this sentence (a test of its Rust client does).
            message = f"Table partition '{PhysicalTablePath(self.info.path, name)}' does not exist."
            raise NotFound(message, ErrorCode.PARTITION_NOT_EXISTS)
        return self.partitions_by_id[partition_id]


class LiveTable:
    """A handle to a table that stays valid while the table changes (`forebay.kv.tablet.TableView`)."""

    def __init__(self, table: CatalogTable) -> None:
        self.write_gate = WriteGate()
        self.commit_gate = WriteGate()
        """The gate that a transaction passes while its rows are written: a table snapshot has all of them or none."""
        self.show(table)

    def show(self, table: CatalogTable) -> None:
        """Replace what is known of the table."""
        self.current = table
        self.info: TableInfo = table.info  # after the schemas that it may name; every write asks for it

    def schema_by_id(self, schema_id: int) -> Schema:
        """Return a version of the table's schema. Raises `NotFound` (SCHEMA_NOT_EXIST)."""
        schema = self.current.schemas.get(schema_id)
        if schema is None:
            raise NotFound(
                f"table {self.info.path} has no schema {schema_id}; the latest is {self.info.schema_id}",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        return schema


class TableCatalog:
    """All metadata of one server."""

    def __init__(
        self, store: MetadataStore, clock: Clock, limits: CatalogLimits, lake: LakeTables | None = None
    ) -> None:
        self._store = store
        self._lake = lake or LakeTables()
        self._clock = clock
        self._limits = limits
        self._changing = threads.rlock()
        self._databases = {info.name: info for info in store.databases()}
        self._tables: dict[TablePath, LiveTable] = {}
        self._tables_by_id: dict[int, LiveTable] = {}
        for stored in store.tables():
            self._show(LiveTable(_catalog_table(stored)))
        self._checksums = store.table_checksums()
        """Of the tables as they were when they were loaded from the store."""
        if DEFAULT_DATABASE not in self._databases:
            self.create_database(DatabaseInfo(DEFAULT_DATABASE), ignore_if_exists=True)

    def _show(self, table: LiveTable) -> None:
        self._tables = {**self._tables, table.info.path: table}
        self._tables_by_id = {**self._tables_by_id, table.info.table_id: table}

    def reload(self) -> dict[TableBucket, PhysicalTablePath]:
        """Show what the store has, whose content was replaced; return the buckets that are gone, with their names."""
        with self._changing:
            before, after = self._checksums, self._store.table_checksums()
            self._databases = {info.name: info for info in self._store.databases()}
            changed = {table_id for table_id, checksum in after.items() if before.get(table_id) != checksum}
            gone: dict[TableBucket, PhysicalTablePath] = {}
            tables = {table_id: table for table_id, table in self._tables_by_id.items() if table_id in after}
            for table_id, table in self._tables_by_id.items():
                if table_id not in after:
                    gone |= _named_buckets(table, table.current.partitions_by_id)
            for stored in self._store.tables(changed) if changed else ():
                shown, known = _catalog_table(stored), tables.get(stored.info.table_id)
                if known is None:
                    tables[stored.info.table_id] = LiveTable(shown)
                    continue
                if known.info.is_partitioned:
                    gone |= _named_buckets(known, known.current.partitions_by_id.keys() - shown.partitions_by_id)
                known.show(shown)
            self._tables_by_id = tables
            self._tables = {table.info.path: table for table in tables.values()}
            self._checksums = after
            return gone

    # ---- databases --------------------------------------------------------------------------------------------------

    def databases(self) -> list[DatabaseInfo]:
        """All databases by name, with their numbers of tables."""
        counts: dict[str, int] = {}
        for path in self._tables:
            counts[path.database] = counts.get(path.database, 0) + 1
        return [replace(d, table_count=counts.get(d.name, 0)) for d in sorted(self._databases.values(), key=_by_name)]

    def database_exists(self, name: str) -> bool:
        return name in self._databases

    def database(self, name: str) -> DatabaseInfo:
        """Return a database. Raises `NotFound` (DATABASE_NOT_EXIST)."""
        info = self._databases.get(name)
        if info is None:
            raise NotFound(f"there is no database '{name}'", ErrorCode.DATABASE_NOT_EXIST)
        return info

    def create_database(self, info: DatabaseInfo, ignore_if_exists: bool) -> None:
        """Create a database; the times in `info` are ignored. Raises `AlreadyExists` unless `ignore_if_exists`, and
        `InvalidRequest` for an invalid name.
        """
        check_database_name(info.name)
        with self._changing:
            if info.name in self._databases:
                if ignore_if_exists:
                    return
                raise AlreadyExists(f"database '{info.name}' exists already", ErrorCode.DATABASE_ALREADY_EXIST)
            now = self._clock.now_ms()
            created = replace(info, created_ms=now, modified_ms=now)
            self._store.put_database(created)
            self._databases = {**self._databases, info.name: created}

    def alter_database(
        self, name: str, to_set: Mapping[str, str], to_reset: Sequence[str], comment: str | None
    ) -> None:
        """Change a database's custom properties: `to_reset` are removed, also if they are in `to_set`. A `comment` of
        None keeps the current one. Raises `NotFound` (DATABASE_NOT_EXIST).
        """
        with self._changing:
            info = self.database(name)
            properties = {k: v for k, v in {**info.custom_properties, **to_set}.items() if k not in to_reset}
            altered = replace(
                info,
                custom_properties=properties,
                comment=info.comment if comment is None else comment,
                modified_ms=self._clock.now_ms(),
            )
            self._store.put_database(altered)
            self._databases = {**self._databases, name: altered}

    def drop_database(self, name: str, cascade: bool) -> list[CatalogTable]:
        """Drop a database; return the tables that went with it, whose data the caller removes."""
        with self._changing:
            self.database(name)
            paths = [path for path in self._tables if path.database == name]
            if paths and not cascade:
                raise InvalidRequest(
                    f"database '{name}' is not empty: it has {len(paths)} tables; drop them first, or use cascade",
                    ErrorCode.DATABASE_NOT_EMPTY,
                )
            dropped = [self.drop_table(path) for path in paths]
            self._store.delete_database(name)
            self._databases = {key: info for key, info in self._databases.items() if key != name}
            return dropped

    # ---- tables -----------------------------------------------------------------------------------------------------

    def tables(self) -> list[LiveTable]:
        return list(self._tables.values())

    def table_names(self, database: str) -> list[str]:
        """Return the names of a database's tables. Raises `NotFound` (DATABASE_NOT_EXIST)."""
        self.database(database)
        return sorted(path.table for path in self._tables if path.database == database)

    def table_exists(self, path: TablePath) -> bool:
        return path in self._tables

    def table(self, path: TablePath) -> LiveTable:
        """Return the handle of a table. Raises `NotFound` (TABLE_NOT_EXIST)."""
        table = self._tables.get(path)
        if table is None:
            raise NotFound(f"there is no table {path}", ErrorCode.TABLE_NOT_EXIST)
        return table

    def table_by_id(self, table_id: int) -> LiveTable | None:
        """Return the table with this id; None if it does not exist."""
        return self._tables_by_id.get(table_id)

    def create_table(self, path: TablePath, descriptor: TableDescriptor, ignore_if_exists: bool) -> None:
        """Create a table, and first its lake table if it is to be tiered. Defaults complete the description.

        Raises `InvalidRequest` if the description is invalid or exceeds a limit, `NotFound` if the database does not
        exist, `AlreadyExists` unless `ignore_if_exists`, and the lake's errors.
        """
        check_table_path(path)
        limits = self._limits
        complete = with_defaults(descriptor, limits.bucket_count_default, limits.replication_factor_default)
        complete = self._lake.with_format(complete)
        check_new_table(complete, limits.bucket_count_max)
        check_description_size(path, complete, versions=1)
        self._lake.check(complete)
        if not (limits.kv_tables_allowed if complete.has_primary_key else limits.log_tables_allowed):
            kind = "kv" if complete.has_primary_key else "log"
            raise InvalidRequest(
                f"this server creates no such tables ('allow.create.{kind}.tables' is false)",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        with self._changing:
            self.database(path.database)
            if path in self._tables:
                if ignore_if_exists:
                    return
                raise AlreadyExists(f"table {path} exists already", ErrorCode.TABLE_ALREADY_EXIST)
            self._lake.create(path, complete)
            now = self._clock.now_ms()
            info = self._store.create_table(TableInfo(path, -1, 1, complete, now, now))
            self._show(LiveTable(CatalogTable(info, {1: info.schema})))
            self._lake.created(info)

    def drop_table(self, path: TablePath) -> CatalogTable:
        """Drop a table; return it as it was, for the caller to remove its data."""
        with self._changing:
            table = self.table(path)
            info = table.info
            self._store.delete_table(info.table_id, table_folder(info))
            self._tables = {key: t for key, t in self._tables.items() if key != path}
            self._tables_by_id = {key: t for key, t in self._tables_by_id.items() if key != info.table_id}
            self._lake.dropped(info)
            return table.current

    def alter_properties(self, path: TablePath, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        """Set and reset options of a table. Raises `InvalidRequest` for options that cannot be altered."""
        with self._changing:
            table = self.table(path)
            descriptor = altered_properties(table.info.descriptor, to_set, to_reset)
            descriptor = self._lake.for_alter(path, table.info.descriptor, descriptor)
            self._change(table, replace(table.info, descriptor=descriptor, modified_ms=self._clock.now_ms()))

    def add_columns(self, path: TablePath, columns: Sequence[Column]) -> None:
        """Append nullable columns, under a new schema id."""
        with self._changing:
            table = self.table(path)
            schema = _with_columns(table.info.schema, columns, path)
            check_schema_functions(table.info.descriptor, schema)
            check_schema_history(path, table.current.schemas.values(), schema)
            descriptor = replace(table.info.descriptor, schema=schema)
            info = replace(
                table.info,
                descriptor=descriptor,
                schema_id=table.info.schema_id + 1,
                modified_ms=self._clock.now_ms(),
            )
            self._change(table, info)

    def _change(self, table: LiveTable, info: TableInfo) -> None:
        before = table.info
        versions = len(table.current.schemas.keys() | {info.schema_id})
        check_description_size(info.path, info.descriptor, versions)
        self._lake.alter(info.path, before.descriptor, info.descriptor)
        self._store.update_table(info)
        schemas = {**table.current.schemas, info.schema_id: info.schema}
        table.show(replace(table.current, info=info, schemas=schemas))
        self._lake.altered(before, info)

    # ---- partitions -------------------------------------------------------------------------------------------------

    def create_partition(self, path: TablePath, spec: Mapping[str, str], ignore_if_exists: bool) -> None:
        """Create the partition of a table that `spec` names, a value for each partition column.

        Raises `NotFound` if the table does not exist, `InvalidRequest` for a table without partitions, an invalid value
        or one partition too many, and `AlreadyExists` unless `ignore_if_exists`.
        """
        with self._changing:
            table = self.table(path)
            resolved = resolve_spec(_partitioned(table), spec, creating=True)
            rules = AutoPartitioning.of(table.info.descriptor)
            if rules is not None:
                rules.check_new(dict(resolved)[rules.key], self._clock.now_ms())
            name = PartitionInfo(-1, resolved).name
            current = table.current
            if name in current.partition_ids:
                if ignore_if_exists:
                    return
                raise AlreadyExists(
                    f"table {path} has a partition '{name}' already", ErrorCode.PARTITION_ALREADY_EXISTS
                )
            _check_folders(table.info, name, resolved)
            self._check_partition_count(current)
            partition = self._store.create_partition(table.info.table_id, resolved)
            by_id = {**current.partitions_by_id, partition.partition_id: partition}
            ids = {**current.partition_ids, name: partition.partition_id}
            table.show(replace(current, partitions_by_id=by_id, partition_ids=ids))

    def _check_partition_count(self, table: CatalogTable) -> None:
        count = len(table.partitions_by_id) + 1
        if count > self._limits.partition_count_max:
            raise LimitExceeded(
                f"table {table.info.path} has its {self._limits.partition_count_max} partitions "
                "('max.partition.num') already",
                ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
            )
        if count * table.info.bucket_count > self._limits.bucket_count_max:
            raise LimitExceeded(
                f"{count} partitions of {table.info.bucket_count} buckets are more buckets than the "
                f"{self._limits.bucket_count_max} that 'max.bucket.num' allows",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )

    def drop_partition(self, path: TablePath, spec: Mapping[str, str]) -> PartitionInfo:
        """Drop a partition; return it, for the caller to remove its data."""
        with self._changing:
            table = self.table(path)
            resolved = resolve_spec(_partitioned(table), spec, creating=False)
            partition = table.current.partition(PartitionInfo(-1, resolved).name)
            self._store.delete_partition(partition.partition_id, partition_folder(table.info, partition))
            current = table.current
            by_id = {key: p for key, p in current.partitions_by_id.items() if key != partition.partition_id}
            ids = {key: i for key, i in current.partition_ids.items() if key != partition.name}
            table.show(replace(current, partitions_by_id=by_id, partition_ids=ids))
            return partition


def _catalog_table(stored: TableRecord) -> CatalogTable:
    by_id = {partition.partition_id: partition for partition in stored.partitions}
    ids = {partition.name: partition.partition_id for partition in stored.partitions}
    return CatalogTable(stored.info, stored.schemas, by_id, ids)


def table_folder(info: TableInfo) -> str:
    """The folder of a table's tablets and partitions, relative to the data directory."""
    return names.table_folder(info.path, info.table_id)


def partition_folder(info: TableInfo, partition: PartitionInfo) -> str:
    """The folder of a partition's tablets, relative to the data directory."""
    path = PhysicalTablePath(info.path, partition.name)
    return names.bucket_parent_folder(path, TableBucket(info.table_id, 0, partition.partition_id))


def _check_folders(info: TableInfo, name: str, spec: Sequence[tuple[str, str]]) -> None:
    """Raise `InvalidRequest` (PARTITION_SPEC_INVALID) if the name of a directory of the partition would be too long.

    In a lake each partition key has its own directory, `key=value`, in which some letters of the key are escaped.
    """

    def refuse(what: str, length: int, most: int) -> InvalidRequest:
        return InvalidRequest(
            f"table {info.path} cannot have the partition '{name}': {what} of {length} bytes is longer than {most}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )

    length = len(name.encode())
    if length > names.PARTITION_NAME_BYTES_MAX:
        raise refuse("a name", length, names.PARTITION_NAME_BYTES_MAX)
    if info.descriptor.lake_format is None:
        return
    for key, value in spec:
        length = len(quote(key, safe="")) + len("=") + len(quote(value, safe=""))
        if length > names.NAME_BYTES_MAX:
            raise refuse(f"a folder '{key}=...' in the lake", length, names.NAME_BYTES_MAX)


def _by_name(info: DatabaseInfo) -> str:
    return info.name


def _partitioned(table: LiveTable) -> TableInfo:
    if not table.info.is_partitioned:
        raise InvalidRequest(f"table {table.info.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
    return table.info


def _with_columns(schema: Schema, columns: Sequence[Column], path: TablePath) -> Schema:
    """`schema` with `columns` at its end; ids go on behind the highest ever used, nested fields included."""

    def refuse(message: str) -> InvalidRequest:
        return InvalidRequest(f"table {path}: {message}", ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)

    check_column_count(len(schema.columns) + len(columns), f"table {path}")
    names = set(schema.names)
    added: list[Column] = []
    highest = schema.highest_field_id
    for column in columns:
        if column.name in names:
            raise refuse(f"column '{column.name}' exists already")
        if not column.data_type.nullable:
            raise refuse(f"column '{column.name}' is NOT NULL; rows that exist have no value for a new column")
        numbered, highest = assign_ids((replace(column, column_id=None),), first_id=highest + 1)
        added.extend(numbered)
        names.add(column.name)
    return Schema((*schema.columns, *added), schema.primary_key, schema.auto_increment_column, highest)


def _named_buckets(table: LiveTable, partition_ids: Iterable[int]) -> dict[TableBucket, PhysicalTablePath]:
    path, partitions = table.info.path, table.current.partitions_by_id
    return {
        each: PhysicalTablePath(path, None if each.partition_id is None else partitions[each.partition_id].name)
        for each in buckets_of(table.info, partition_ids)
    }


def buckets_of(info: TableInfo, partition_ids: Iterable[int]) -> list[TableBucket]:
    """All buckets of a table: of these partitions, or of the table itself where it is not partitioned."""
    parents: list[int | None] = list(partition_ids) if info.is_partitioned else [None]
    return [TableBucket(info.table_id, bucket, parent) for parent in parents for bucket in range(info.bucket_count)]
