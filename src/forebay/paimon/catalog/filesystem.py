"""The file system catalog: a warehouse directory that contains `<database>.db/<table>`; no service is needed.

A database is its directory; a table is a directory with a schema file. Creating the first schema file creates the
table, so that of two concurrent creators only one wins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.arguments import did_you_mean
from forebay.base.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, StorageFailure, UnsupportedOperation
from forebay.base.locations import check_name, is_local, location
from forebay.paimon.catalog.catalog import BRANCH_MARK, Catalog, split_name
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.opening import open_file_io
from forebay.paimon.store.lock import CommitGuard
from forebay.paimon.store.manifests import ManifestCache
from forebay.paimon.store.paths import MAIN_BRANCH, PathFactory, join
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.table import Table

DATABASE_SUFFIX = ".db"


class FileSystemCatalog(Catalog):
    """Databases and tables below one directory. Thread-safe."""

    def __init__(
        self,
        io: FileIO,
        warehouse: str,
        *,
        lock: CommitGuard | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
    ) -> None:
        self.io, self.warehouse = io, location(warehouse, "the warehouse")
        self._lock, self._clock, self._ids = lock, clock, ids

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls(*cls._warehouse(options))

    @staticmethod
    def _warehouse(options: Mapping[str, str]) -> tuple[FileIO, str]:
        """The warehouse that the options name, and how its files are reached."""
        warehouse = options.get("warehouse")
        if not warehouse:
            kind = options.get("metastore", "filesystem")
            raise InvalidRequest(f"a {kind} catalog needs option 'warehouse', its directory")
        place = location(warehouse, "option 'warehouse'")
        if is_local(place) and os.path.isfile(place):
            raise InvalidRequest(f"the warehouse {place} is a file; give the folder of a Paimon warehouse")
        return open_file_io(place, options), place

    def lock_of(self, name: str) -> CommitGuard | None:
        """The guard that makes commits to table `name` exclusive where the file system does not."""
        return self._lock

    # -- databases ----------------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        entries = self.io.list(self.warehouse)
        if not entries and not self.warehouse_exists():
            raise NotFound(
                f"there is no warehouse {self.warehouse}: correct its path, or create it with its first database, by "
                "create_database()"
            )
        names = (entry.path.rstrip("/").rpartition("/")[2] for entry in entries if entry.is_directory)
        return sorted(name.removesuffix(DATABASE_SUFFIX) for name in names if name.endswith(DATABASE_SUFFIX))

    def warehouse_exists(self) -> bool:
        return self.io.exists(self.warehouse)

    def _create_database(self, name: str, properties: Mapping[str, str], ignore_if_exists: bool) -> None:
        path = self._database_path(name)
        if properties:
            raise UnsupportedOperation(
                f"database '{name}' cannot have {', '.join(sorted(properties))}: in a filesystem catalog it is a "
                "directory and nothing else; a JDBC, Hive or REST catalog keeps comments and options of databases"
            )
        if self.io.exists(path):
            if ignore_if_exists:
                return
            raise AlreadyExists(f"database '{name}' exists already in {self.warehouse}")
        self.io.make_directory(path)

    def drop_database(self, name: str, *, cascade: bool = False, ignore_if_not_exists: bool = False) -> None:
        """Delete the directory of the database. Raises `InvalidRequest` if it has tables, unless `cascade`.

        Raises `Conflict` if another process is writing files into it.
        """
        if not self.database_exists(name):
            if ignore_if_not_exists:
                return
            raise self._no_database(name)
        if cascade:
            self.io.delete_directory(self._database_path(name))
            return
        self._refuse_tables(name)
        self._delete_leftovers(name)
        if not self.io.delete_empty_directory(self._database_path(name)):
            self._refuse_tables(name)  # one that was created meanwhile
            raise Conflict(f"database '{name}' is being written to; try again")

    def _refuse_tables(self, name: str) -> None:
        tables = self.list_tables(name)
        if tables:
            raise InvalidRequest(f"database '{name}' has tables ({', '.join(tables[:5])}); drop them first")

    def _delete_leftovers(self, name: str) -> None:
        """Delete what is beside tables, such as what is left of one that was not created, or dropped, to the end."""
        for status in self.io.list(self._database_path(name)):
            path = status.path.rstrip("/")
            if not status.is_directory:
                self.io.delete(path)
            elif not self.io.list(f"{path}/schema"):
                self.io.delete_directory(path)

    # -- tables -------------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        path = self._database_path(database)
        if not self.database_exists(database):
            raise self._no_database(database)
        directories = [s.path.rstrip("/") for s in self.io.list(path) if s.is_directory]
        return sorted(d.rpartition("/")[2] for d in directories if self.io.list(f"{d}/schema"))

    def create_defined(self, name: str, definition: TableSchema, *, ignore_if_exists: bool = False) -> Table:
        """Create a table in the warehouse. Raises `UnsupportedOperation` if its options place it elsewhere.

        Raises `NotFound` without the database, `AlreadyExists` unless `ignore_if_exists`.
        """
        database, _ = self._split(name)
        if not self.database_exists(database):
            raise self._no_database(database)
        if "path" in definition.options:
            raise UnsupportedOperation(
                f"table '{name}' cannot lie in {definition.options['path']}: this catalog keeps all tables in its "
                "warehouse; a Hive or REST catalog can place tables"
            )
        try:
            self._create(name, definition)
        except AlreadyExists as e:
            if not ignore_if_exists:
                raise AlreadyExists(f"table '{name}' exists already") from e
        return self.table(name)

    def _create(self, name: str, schema: TableSchema) -> None:
        """Create the table. Raises `AlreadyExists` if it exists."""
        SchemaManager(self.io, PathFactory(self.table_path(name)), self.lock_of(name), self._clock).create(schema)

    def _place(self, name: str) -> str:
        return self.table_path(name)

    def _opened(
        self,
        name: str,
        place: str,
        branch: str,
        options: Mapping[str, Any] | None,
        manifest_cache: ManifestCache | None = None,
    ) -> Table:
        try:
            return Table(
                self.io, place, name=name, branch=branch, options=options, lock=self.lock_of(name), clock=self._clock,
                ids=self._ids, manifest_cache=manifest_cache,
            )  # fmt: skip
        except NotFound as e:
            shown_name = name if branch == MAIN_BRANCH else f"{name}{BRANCH_MARK}{branch}"
            raise NotFound(f"there is no table '{shown_name}' in {self.warehouse}") from e

    def table_exists(self, name: str) -> bool:
        return bool(self.io.list(f"{self.table_path(name)}/schema"))

    def drop_table(self, name: str, *, ignore_if_not_exists: bool = False) -> None:
        if not self.table_exists(name):
            if ignore_if_not_exists:
                return
            raise NotFound(f"there is no table '{name}' in {self.warehouse}")
        self._delete_table(name)

    def _delete_table(self, name: str) -> None:
        """Delete the files of a table, and none of another one that is created under its name meanwhile.

        So its directory is first moved away, where the file system does that in one step.
        """
        path = self.table_path(name)
        if not self.io.is_remote:
            aside = join(self.warehouse, f".dropped-{self._ids.token_hex()}")
            try:
                self.io.rename(path, aside)
            except (NotFound, StorageFailure):  # another process was faster, or the folder is a mount point
                aside = path
            path = aside
        self.io.delete_directory(path)

    def rename_table(self, name: str, new_name: str) -> None:
        """Move a table. Raises `AlreadyExists` if the new name is taken. Not atomic on object stores."""
        if not self.table_exists(name):
            raise NotFound(f"there is no table '{name}' in {self.warehouse}")
        if not self.database_exists(self._split(new_name)[0]):
            raise self._no_database(self._split(new_name)[0])
        try:
            self.io.rename(self.table_path(name), self.table_path(new_name))
        except Conflict as e:
            raise AlreadyExists(f"table '{new_name}' exists already") from e

    # -- paths --------------------------------------------------------------------------------------------------------

    def table_path(self, name: str) -> str:
        """The directory of the table `database.table`."""
        database, table = self._split(name)
        return f"{self._database_path(database)}/{table}"

    def _split(self, name: str) -> tuple[str, str]:
        database, table = split_name(name)
        if "$" in table:
            base, _, system = table.partition("$")
            raise InvalidRequest(
                f"'{name}' names a system table; open it by table('{database}.{base}').system('{system}')"
            )
        return database, table

    def _database_path(self, name: str) -> str:
        if not name or "/" in name or "." in name:
            raise InvalidRequest(f"'{name}' cannot name a database")
        return join(self.warehouse, check_name(name, "database") + DATABASE_SUFFIX)

    def database_exists(self, name: str) -> bool:
        return self.io.exists(self._database_path(name)) or bool(self.io.list(self._database_path(name)))

    def _no_database(self, name: str) -> NotFound:
        names = self.list_databases() if self.warehouse_exists() else []
        others = ", ".join(names) or "no databases yet"
        return NotFound(
            f"there is no database '{name}' in {self.warehouse}, only {others}; make it by create_database('{name}')"
            f"{did_you_mean(name, names)}"
        )
