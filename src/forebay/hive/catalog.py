"""The Hive catalog: tables are registered in a Hive Metastore, shared with Hive, Spark and Java Paimon.

The metastore lists databases and tables with their locations. The schema file is authoritative for a table's columns
and options; its description in the metastore follows (`tables`, `commits`). A schema file is written before
the table is registered, and deleted if the metastore rejects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from forebay.base import locations
from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.quantity import parse_bool, parse_duration_ms
from forebay.hive.commits import TAG_TO_PARTITION, HiveCommits, HiveLock, check_supported
from forebay.hive.metastore import Metastore, hive_options
from forebay.hive.tables import TableDescriber, is_external, is_paimon
from forebay.hive.views import described, is_view, view_of
from forebay.paimon.catalog.catalog import Catalog, split_name
from forebay.paimon.catalog.filesystem import DATABASE_SUFFIX
from forebay.paimon.catalog.views import View
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.io.opening import open_file_io
from forebay.paimon.store.lock import CommitLock
from forebay.paimon.store.manifests import ManifestCache
from forebay.paimon.store.paths import PathFactory, join
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.table import Table

_TABLES_AT_ONCE = 300
_PATH = "path"


class HiveCatalog(Catalog):
    """Databases, tables and views of a Hive Metastore. Thread-safe."""

    has_views: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, str], *, clock: Clock = SYSTEM_CLOCK, ids: IdSource = SYSTEM_IDS) -> None:
        """Create a catalog without connecting.

        `options`: `uri`, `warehouse` (the directory of new databases), `hive-conf-dir`, `client-pool-size`,
        `table.type`, `sync-all-properties`, `location-in-properties`, `lock.enabled` and the other lock options, and
        those of file systems. Raises `InvalidRequest`, and `UnsupportedOperation` for secured metastores.
        """
        self._options = hive_options(options)
        lock_type = self._options.get("lock.type", "hive")
        if lock_type != "hive":
            raise UnsupportedOperation(f"option 'lock.type' is '{lock_type}'; a Hive catalog locks by 'hive' only")
        warehouse = self._options.get("warehouse") or self._options.get("hive.metastore.warehouse.dir")
        if not warehouse:
            raise InvalidRequest("a hive catalog needs option 'warehouse', the directory of new databases")
        self.warehouse = locations.location(warehouse, "option 'warehouse'")
        self._metastore = Metastore(self._options, clock)
        self._describer = TableDescriber(
            self._metastore,
            sync_all=parse_bool(self._options.get("sync-all-properties", "true")),
            location_in_properties=parse_bool(self._options.get("location-in-properties", "false")),
        )
        self._external = _table_type(self._options.get("table.type", "managed"))
        self._wait_ms = parse_duration_ms(self._options.get("lock-acquire-timeout", "8 min"))
        self._max_sleep_ms = parse_duration_ms(self._options.get("lock-check-max-sleep", "8 s"))
        self._clock, self._ids = clock, ids

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls(options)

    # -- databases ----------------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        return sorted(self._metastore.call("get_all_databases"))

    def _create_database(self, name: str, properties: Mapping[str, str], ignore_if_exists: bool) -> None:
        _check_name(name)
        path = join(self.warehouse, name + DATABASE_SUFFIX)
        try:
            # The metastore creates directories as its own user, who may not be the user that writes there.
            self._io(path).make_directory(path)
            self._metastore.call("create_database", self._describer.new_database(name, path, properties))
        except AlreadyExists as e:
            if not ignore_if_exists:
                raise AlreadyExists(f"database '{name}' exists already in {self._metastore}") from e

    def drop_database(self, name: str, *, cascade: bool = False, ignore_if_not_exists: bool = False) -> None:
        """Drop a database: see `Catalog.drop_database`. `cascade` drops other tables, too; external ones keep files."""
        try:
            description = self._database(name)
        except NotFound:
            if ignore_if_not_exists:
                return
            raise
        tables = self._tables(name)
        if tables and not cascade:
            names = sorted(t.tableName for t in tables)
            kind = "views" if all(map(is_view, tables)) else "tables"
            raise InvalidRequest(f"database '{name}' has {kind} ({', '.join(names[:5])}); drop them first")
        keeps_files = any(is_external(t) for t in tables)
        for table in tables:
            if is_paimon(table):
                self.drop_table(f"{name}.{table.tableName}", ignore_if_not_exists=True)
        location = self._describer.database_location(description)
        self._metastore.call("drop_database", name, not keeps_files, cascade)
        if location and not keeps_files:
            place = locations.location(location, f"the location of database '{name}'")
            self._io(place).delete_directory(place)

    def _database(self, name: str) -> Any:
        try:
            return self._metastore.call("get_database", name)
        except NotFound as e:
            raise NotFound(f"there is no database '{name}' in {self._metastore}") from e

    # -- tables -------------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        tables = self._tables(database)
        if not tables:
            self._database(database)
        return sorted(table.tableName for table in tables if is_paimon(table))

    def _tables(self, database: str) -> list[Any]:
        """Everything in a database, as described by the metastore, including views and tables of other formats."""
        names = self._metastore.call("get_all_tables", database)
        tables = []
        for start in range(0, len(names), _TABLES_AT_ONCE):
            some = names[start : start + _TABLES_AT_ONCE]
            request = self._metastore.new("GetTablesRequest", dbName=database, tblNames=some)
            tables += self._metastore.call("get_table_objects_by_name_req", request).tables
        return tables

    def create_defined(self, name: str, definition: TableSchema, *, ignore_if_exists: bool = False) -> Table:
        """Create a table: see `Catalog.create_defined`. With option `path`, it is external and located there.

        An existing table there is registered unchanged if its definition matches.
        """
        database, table = _split(name)
        _check_name(table)
        check_supported(definition)
        description = self._database(database)
        try:
            there = self._find(database, table)
            if there is not None:
                raise self._name_conflict("table", name, there)
            self._create(description, table, definition)
        except AlreadyExists:
            if not ignore_if_exists:
                raise
        return self.table(name)

    def _create(self, database: Any, table: str, schema: TableSchema) -> None:
        location = schema.options.get(_PATH)
        external = location is not None or self._is_external(schema.options)
        path = (
            self._new_path(database, table) if location is None else locations.location(location, f"option '{_PATH}'")
        )
        io = self._io(path)
        schemas = SchemaManager(io, PathFactory(path), self._lock(io, database.name, table), self._clock)
        is_new = True
        try:
            schemas.create(schema)
        except AlreadyExists as e:
            is_new = False
            if self._find(database.name, table) is not None:  # another process was faster
                raise
            if not external:
                raise InvalidRequest(
                    f"{path} holds files of a table that is not registered: it is just being created, or was not "
                    "created or dropped to the end; wait, or delete the directory"
                ) from e
            schema = _agreeing(schemas.latest(), schema, path)
        described = self._describer.new_table(
            database.name, table, schema, path, external=external, seconds=self._clock.now_ms() // 1000
        )
        try:
            self._metastore.call("create_table", described)
        except (AlreadyExists, NotFound, InvalidRequest, UnsupportedOperation):  # after other errors it may exist
            if is_new and not external:
                io.delete_directory(path)
            elif is_new:
                schemas.delete(schema.id)
            raise

    def _is_external(self, options: Mapping[str, str]) -> bool:
        value = options.get("external", options.get("EXTERNAL", ""))
        return self._external or value.lower() == "true"

    def _place(self, name: str) -> tuple[str, str, str, int]:
        """The table's directory, its names as the metastore writes them, and the second of its creation."""
        description = self._paimon_table(*_split(name))
        return self._path(description), description.dbName, description.tableName, description.createTime

    def _opened(
        self,
        name: str,
        place: tuple[str, str, str, int],
        branch: str,
        options: Mapping[str, Any] | None,
        manifest_cache: ManifestCache | None = None,
    ) -> Table:
        path, database, table, _ = place
        io = self._io(path)
        opened = Table(
            io, path, name=name, branch=branch, options=options,
            lock=HiveCommits(
                self._metastore, self._describer, database, table, path, self._lock(io, *_split(name))
            ),
            clock=self._clock, ids=self._ids, manifest_cache=manifest_cache,
        )  # fmt: skip
        if TAG_TO_PARTITION in opened.schema.options:
            check_supported(opened.schema)
        return opened

    def table_exists(self, name: str) -> bool:
        description = self._find(*_split(name))
        return description is not None and is_paimon(description)

    def drop_table(self, name: str, *, ignore_if_not_exists: bool = False) -> None:
        """Remove the table from the metastore, and delete its files unless it is external. Raises `NotFound`."""
        database, table = _split(name)
        try:
            description = self._paimon_table(database, table)
        except NotFound:
            if ignore_if_not_exists:
                return
            raise
        external, path = is_external(description), self._path(description)
        before = None if external else self._first_schema(path)
        purge = self._metastore.new("EnvironmentContext", properties={"ifPurge": "TRUE"})
        self._metastore.call("drop_table_with_environment_context", database, table, not external, purge)
        # The metastore deletes the files if it can reach them; in any case, none may be left here. Those of a table
        # that another process has created there since are not ours.
        if not external and self._first_schema(path) in (None, before):
            self._io(path).delete_directory(path)

    def _first_schema(self, path: str) -> bytes | None:
        """The oldest schema file of the table in a directory, which identifies the table; None without a table."""
        io, paths = self._io(path), PathFactory(path)
        ids = SchemaManager(io, paths).ids()
        try:
            return io.read(paths.schema(ids[0])) if ids else None
        except NotFound:
            return None

    def rename_table(self, name: str, new_name: str) -> None:
        """Rename a table, and move its files if they are where the catalog put them. Raises `AlreadyExists`."""
        (database, table), (new_database, new_table) = _split(name), _split(new_name)
        _check_name(new_table)
        description = self._paimon_table(database, table)
        target = self._database(new_database)
        there = self._find(new_database, new_table)
        if there is not None:
            raise self._name_conflict("table", new_name, there)
        old_path = self._path(description)
        description.dbName, description.tableName = new_database, new_table
        self._alter(database, table, description)
        io = self._io(old_path)
        if is_external(description) or not SchemaManager(io, PathFactory(old_path)).ids():
            return  # the files stay, or the metastore has moved them
        new_path = self._new_path(target, new_table)
        try:
            io.rename(old_path, new_path)
            self._describer.move(description, new_path)
            self._alter(new_database, new_table, description)
        except BaseException:
            self._undo_rename(io, description, (database, table), (old_path, new_path))
            raise

    def _undo_rename(self, io: FileIO, description: Any, old: tuple[str, str], paths: tuple[str, str]) -> None:
        old_path, new_path = paths
        if not SchemaManager(io, PathFactory(old_path)).ids():
            io.rename(new_path, old_path)
        here = description.dbName, description.tableName
        description.dbName, description.tableName = old
        self._describer.move(description, old_path)
        self._alter(*here, description)

    def _alter(self, database: str, table: str, described: Any) -> None:
        self._metastore.call(
            "alter_table_with_environment_context", database, table, described,
            self._metastore.new("EnvironmentContext", properties={}),
        )  # fmt: skip

    # -- views --------------------------------------------------------------------------------------------------------

    def list_views(self, database: str) -> list[str]:
        descriptions = self._tables(database)
        if not descriptions:
            self._database(database)
        return sorted(table.tableName for table in descriptions if is_view(table))

    def view(self, name: str) -> View:
        return view_of(name, self._view(name))

    def _view(self, name: str) -> Any:
        """The description of a view."""
        description = self._find(*_split(name))
        if description is None:
            raise NotFound(f"there is no view '{name}' in {self._metastore}")
        if not is_view(description):
            raise NotFound(f"'{name}' in {self._metastore} is not a view, but a table")
        return description

    def _put_view(self, view: View, replace: bool) -> None:
        database, name = _split(view.name)
        _check_name(name)
        self._database(database)
        new = described(self._metastore, view, self._clock.now_ms() // 1000)
        there = self._find(database, name)
        if there is None:
            self._metastore.call("create_table", new)
        elif replace and is_view(there):
            new.owner, new.createTime = there.owner, there.createTime
            self._alter(database, name, new)
        else:
            raise self._name_conflict("view", view.name, there)

    def drop_view(self, name: str, *, ignore_if_not_exists: bool = False) -> None:
        """Raises `NotFound` if there is no such view, unless `ignore_if_not_exists`."""
        try:
            self._view(name)
        except NotFound:
            if ignore_if_not_exists:
                return
            raise
        context = self._metastore.new("EnvironmentContext", properties={})
        self._metastore.call("drop_table_with_environment_context", *_split(name), False, context)

    def rename_view(self, name: str, new_name: str) -> None:
        """Raises `NotFound` for the view or the new database, `AlreadyExists` if the new name is taken."""
        (database, view), (new_database, new_view) = _split(name), _split(new_name)
        _check_name(new_view)
        description = self._view(name)
        self._database(new_database)
        there = self._find(new_database, new_view)
        if there is not None:
            raise self._name_conflict("view", new_name, there)
        description.dbName, description.tableName = new_database, new_view
        self._alter(database, view, description)

    # -- shared steps -------------------------------------------------------------------------------------------------

    def _find(self, database: str, table: str) -> Any | None:
        request = self._metastore.new("GetTableRequest", dbName=database, tblName=table)
        try:
            return self._metastore.call("get_table_req", request).table
        except NotFound:
            return None

    def _name_conflict(self, kind: str, name: str, there: Any) -> AlreadyExists:
        """The error for a new table or view, the `kind`, whose name another one has."""
        other = "view" if is_view(there) else "table"
        if other == kind:
            return AlreadyExists(f"{kind} '{name}' exists already in {self._metastore}")
        return AlreadyExists(f"{kind} '{name}' cannot be created: there is a {other} of this name in {self._metastore}")

    def _paimon_table(self, database: str, table: str) -> Any:
        description = self._find(database, table)
        if description is None:
            raise NotFound(f"there is no table '{database}.{table}' in {self._metastore}")
        if not is_paimon(description):
            raise NotFound(
                f"'{database}.{table}' in {self._metastore} is not a Paimon table, but a {description.tableType}"
            )
        return description

    def _path(self, description: Any) -> str:
        """The directory of a table, from its description in the metastore."""
        location = self._describer.table_location(description)
        if not location:
            raise InvalidRequest(
                f"{self._metastore} does not say where '{description.dbName}.{description.tableName}' is"
            )
        return locations.location(location, f"the location of table '{description.dbName}.{description.tableName}'")

    def _new_path(self, database: Any, table: str) -> str:
        """The directory of a new table of a database."""
        location = self._describer.database_location(database)
        if not location:
            raise InvalidRequest(f"{self._metastore} does not say where database '{database.name}' is")
        place = locations.location(location, f"the location of database '{database.name}'")
        return locations.child(place, table, "table")

    def _io(self, path: str) -> FileIO:
        return open_file_io(path, self._options)

    def _lock(self, io: FileIO, database: str, table: str) -> CommitLock | None:
        enabled = self._options.get("lock.enabled")
        # Writers of other software lock on object stores, so ours must, too.
        if not (parse_bool(enabled) if enabled is not None else not isinstance(io, LocalFileIO)):
            return None
        return HiveLock(self._metastore, database, table, self._wait_ms, self._max_sleep_ms, self._clock)


def _table_type(text: str) -> bool:
    """Whether option `table.type` makes new tables external."""
    if text.lower() not in ("managed", "external"):
        raise InvalidRequest(f"option 'table.type' is '{text}'; write 'managed' or 'external'")
    return text.lower() == "external"


def _agreeing(there: TableSchema, definition: TableSchema, path: str) -> TableSchema:
    """The schema of an existing table to register, if it agrees with `definition`."""
    same_columns = [(f.name, str(f.type)) for f in there.fields] == [(f.name, str(f.type)) for f in definition.fields]
    different = {k: v for k, v in definition.options.items() if k not in (_PATH, "owner") and there.options.get(k) != v}
    if not same_columns or (there.primary_keys, there.partition_keys) != (
        definition.primary_keys,
        definition.partition_keys,
    ):
        raise InvalidRequest(
            f"{path} holds a table with other columns or keys: {there.names}, key {there.primary_keys}"
        )
    if different:
        raise InvalidRequest(f"{path} holds a table with other options; asked for {different}")
    return there


def _split(name: str) -> tuple[str, str]:
    return split_name(name, "a table or view")


def _check_name(name: str) -> None:
    """Raise `InvalidRequest` for a name that a metastore would change, so that it would not be found as written."""
    if not name or "/" in name or "." in name or name != name.lower():
        raise InvalidRequest(f"'{name}' cannot be a name in a Hive Metastore, which keeps names in lower case")
    locations.check_name(name)
