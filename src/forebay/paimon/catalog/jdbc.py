"""The JDBC catalog: tables are registered in a SQL database, shared with Java Paimon.

The database lists databases and tables, and holds the locks for stores that cannot create a file atomically. Files are
where the file system catalog would put them: `<warehouse>/<database>.db/<table>`. A table's schema file is written
before the table is registered, and the table is unregistered before its files are deleted, so that all registered
tables exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Self

from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound, OutcomeUnknown, StorageFailure, Unavailable
from forebay.base.quantity import parse_bool, parse_duration_ms
from forebay.paimon.catalog.database import Database
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.lock import CommitLock

_TABLES = (
    "CREATE TABLE IF NOT EXISTS paimon_tables (catalog_key VARCHAR(255) NOT NULL, database_name VARCHAR(255) NOT NULL, "
    "table_name VARCHAR(255) NOT NULL, PRIMARY KEY (catalog_key, database_name, table_name))",
    "CREATE TABLE IF NOT EXISTS paimon_database_properties (catalog_key VARCHAR(255) NOT NULL, database_name "
    "VARCHAR(255) NOT NULL, property_key VARCHAR(255), property_value VARCHAR(1000), "
    "PRIMARY KEY (catalog_key, database_name, property_key))",
    "CREATE TABLE IF NOT EXISTS paimon_distributed_locks (lock_id VARCHAR({length}) NOT NULL, acquired_at TIMESTAMP "
    "DEFAULT CURRENT_TIMESTAMP NOT NULL, expire_time_seconds BIGINT DEFAULT 0 NOT NULL, PRIMARY KEY (lock_id))",
)
_EXISTS = "exists"
"""The property that every database has, so that one without tables and properties exists, too."""

_FIRST_SLEEP_MS = 50
"""Waits for a lock double from here on, up to the maximum."""

_DEFAULT_WAIT_MS = 8 * 60 * 1000
_DEFAULT_MAX_SLEEP_MS = 8 * 1000


class JdbcCatalog(FileSystemCatalog):
    """Databases and tables registered in a SQL database. Thread-safe."""

    def __init__(
        self,
        io: FileIO,
        warehouse: str,
        options: Mapping[str, str],
        *,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
    ) -> None:
        """`options`: `uri`, `jdbc.user`, `jdbc.password`, `catalog-key` and those of locks (`lock.enabled`, ...)."""
        super().__init__(io, warehouse, clock=clock, ids=ids)
        if not options.get("uri"):
            raise InvalidRequest("a JDBC catalog needs option 'uri', such as jdbc:sqlite:/path/of/catalog.db")
        self._database = Database.open(options["uri"], options)
        self._key = options.get("catalog-key", "jdbc")
        enabled = options.get("lock.enabled")
        # Writers of other software lock on every store but the local one, so ours must, too.
        self._locks = parse_bool(enabled) if enabled is not None else not isinstance(io, LocalFileIO)
        self._wait_ms = parse_duration_ms(options.get("lock-acquire-timeout", str(_DEFAULT_WAIT_MS) + " ms"))
        self._max_sleep_ms = parse_duration_ms(options.get("lock-check-max-sleep", str(_DEFAULT_MAX_SLEEP_MS) + " ms"))
        length = int(options.get("lock-key-max-length", "255"))
        for statement in _TABLES:
            self._create_if_missing(statement.format(length=length))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls(*cls._warehouse(options), options)

    def _create_if_missing(self, statement: str) -> None:
        # PostgreSQL may fail one of two creators despite "if not exists"; a retry finds the table.
        with contextlib.suppress(AlreadyExists, StorageFailure, OutcomeUnknown):
            self._database.run(statement)
            return
        self._database.run(statement)

    def lock_of(self, name: str) -> CommitLock | None:
        if not self._locks:
            return None
        lock_id = ".".join((self._key, *self._split(name)))
        return JdbcLock(self._database, lock_id, self._wait_ms, self._max_sleep_ms, self._clock)

    # -- databases ----------------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        """The names, sorted. A database without a row of its own counts if it has tables, as in Java Paimon."""
        rows = self._database.rows(
            "SELECT database_name FROM paimon_tables WHERE catalog_key = ? "
            "UNION SELECT database_name FROM paimon_database_properties WHERE catalog_key = ?",
            self._key,
            self._key,
        )
        return sorted(name for (name,) in rows)

    def warehouse_exists(self) -> bool:
        """True: databases are rows, and are listed before the warehouse has a directory."""
        return True

    def _create_database(self, name: str, properties: Mapping[str, str], ignore_if_exists: bool) -> None:
        location = self._database_path(name)
        rows = {**properties, _EXISTS: "true", "location": location}
        insert = f"INSERT INTO paimon_database_properties VALUES {', '.join(['(?, ?, ?, ?)'] * len(rows))}"
        try:
            if self.database_exists(name):
                raise AlreadyExists(f"database '{name}' exists already in {self._database}")
            self._database.change(insert, *(v for row in rows.items() for v in (self._key, name, *row)))
        except AlreadyExists as e:
            if not ignore_if_exists:
                raise AlreadyExists(f"database '{name}' exists already in {self._database}") from e

    def drop_database(self, name: str, *, cascade: bool = False, ignore_if_not_exists: bool = False) -> None:
        """Remove the database from the catalog. Raises `InvalidRequest` if it has tables, unless `cascade` drops
        them."""
        if not self.database_exists(name):
            if ignore_if_not_exists:
                return
            raise self._no_database(name)
        tables = self.list_tables(name)
        if tables and not cascade:
            raise InvalidRequest(f"database '{name}' has tables ({', '.join(tables[:5])}); drop them first")
        for table in tables:
            self.drop_table(f"{name}.{table}", ignore_if_not_exists=True)
        self._database.change(
            "DELETE FROM paimon_database_properties WHERE catalog_key = ? AND database_name = ?", self._key, name
        )

    def database_exists(self, name: str) -> bool:
        return name in self.list_databases()

    # -- tables -------------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        """The names, sorted. Raises `NotFound` if there is no such database."""
        rows = self._database.rows(
            "SELECT table_name FROM paimon_tables WHERE catalog_key = ? AND database_name = ?", self._key, database
        )
        if not rows and not self.database_exists(database):
            raise self._no_database(database)
        return sorted(name for (name,) in rows)

    def table_exists(self, name: str) -> bool:
        """Whether the table is registered in the SQL database; its files are not checked."""
        rows = self._database.rows(
            "SELECT 1 FROM paimon_tables WHERE catalog_key = ? AND database_name = ? AND table_name = ?",
            self._key,
            *self._split(name),
        )
        return bool(rows)

    def _create(self, name: str, schema: TableSchema) -> None:
        if self.table_exists(name):
            raise AlreadyExists(f"table '{name}' exists already")
        try:
            super()._create(name, schema)
        except AlreadyExists as e:
            if self.table_exists(name):  # another process was faster
                raise
            raise InvalidRequest(
                f"{self.table_path(name)} holds files of a table that is not registered: it is just being created, or "
                "was not created or dropped to the end; wait, or delete the directory"
            ) from e
        self._database.change("INSERT INTO paimon_tables VALUES (?, ?, ?)", self._key, *self._split(name))

    def _place(self, name: str) -> str:
        if not self.table_exists(name.partition("$")[0]):
            raise NotFound(f"there is no table '{name}' in {self._database}")
        return super()._place(name)

    def drop_table(self, name: str, *, ignore_if_not_exists: bool = False) -> None:
        """Unregister the table, then delete its files. Raises `NotFound`, unless `ignore_if_not_exists`."""
        dropped = self._database.change(
            "DELETE FROM paimon_tables WHERE catalog_key = ? AND database_name = ? AND table_name = ?",
            self._key,
            *self._split(name),
        )
        if not dropped and not ignore_if_not_exists:
            raise NotFound(f"there is no table '{name}' in {self._database}")
        if dropped:
            self._delete_table(name)

    def rename_table(self, name: str, new_name: str) -> None:
        """Register the table under the new name, then move its directory; undo the first if the second fails.

        Raises `NotFound` without the table or the new database, `AlreadyExists` if the new name is taken.
        """
        old, new = self._split(name), self._split(new_name)
        if not self.database_exists(new[0]):
            raise self._no_database(new[0])
        change = (
            "UPDATE paimon_tables SET database_name = ?, table_name = ? "
            "WHERE catalog_key = ? AND database_name = ? AND table_name = ?"
        )
        try:
            changed = self._database.change(change, *new, self._key, *old)
        except AlreadyExists as e:
            raise AlreadyExists(f"table '{new_name}' exists already") from e
        if not changed:
            raise NotFound(f"there is no table '{name}' in {self._database}")
        try:
            self.io.rename(self.table_path(name), self.table_path(new_name))
        except BaseException:
            self._database.change(change, *old, self._key, *new)
            raise


class JdbcLock:
    """The lock of one table: a row in `paimon_distributed_locks`, as in Java Paimon. Can be pickled.

    If the holder crashes, its row can be taken over after `wait_ms`, which every holder writes into its row.
    """

    def __init__(self, database: Database, lock_id: str, wait_ms: int, max_sleep_ms: int, clock: Clock) -> None:
        self._database, self._id, self._clock = database, lock_id, clock
        self._wait_ms, self._max_sleep_ms = wait_ms, max_sleep_ms

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock: see `CommitLock.hold`. Raises `OutcomeUnknown` at the end if the lock was taken over."""
        acquired_at = self._acquire()
        try:
            yield
        except BaseException:
            self._release(acquired_at)
            raise
        if not self._release(acquired_at):
            raise OutcomeUnknown(
                f"lock '{self._id}' expired while it was held: the work took longer than lock-acquire-timeout, "
                f"{self._wait_ms} ms, and others may have done the same meanwhile"
            )

    def _acquire(self) -> object:
        """Wait for the lock. The time of acquisition distinguishes our row from that of a process that took over."""
        began, sleep_ms = self._clock.monotonic(), _FIRST_SLEEP_MS
        while True:
            acquired_at = self._try_acquire()
            if acquired_at is not None:
                return acquired_at
            waited_ms = (self._clock.monotonic() - began) * 1000
            if waited_ms > self._wait_ms:
                raise Unavailable(f"lock '{self._id}' was not free for {waited_ms:.0f} ms; another process holds it")
            sleep_ms = min(2 * sleep_ms, self._max_sleep_ms)
            self._clock.sleep(sleep_ms / 1000)

    def _try_acquire(self) -> object | None:
        old = f"DELETE FROM paimon_distributed_locks WHERE {self._database.lock_is_old} AND lock_id = ?"
        self._database.change(old, self._id)
        try:
            rows = self._database.rows(
                "INSERT INTO paimon_distributed_locks (lock_id, expire_time_seconds) VALUES (?, ?) "
                "RETURNING acquired_at",
                self._id,
                self._wait_ms // 1000,
            )
        except AlreadyExists:
            return None
        acquired_at: object = rows[0][0]
        return acquired_at

    def _release(self, acquired_at: object) -> bool:
        delete = "DELETE FROM paimon_distributed_locks WHERE lock_id = ? AND acquired_at = ?"
        return self._database.change(delete, self._id, acquired_at) > 0
