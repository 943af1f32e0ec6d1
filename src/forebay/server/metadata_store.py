"""Databases, tables, schemas, partitions and counters on disk: one SQLite file.

SQLite commits are atomic and synced (`synchronous=FULL`), so what a client was told about survives a power cut. This
module only stores and loads; rules and caching are the catalog's (server.catalog). All methods may be called from any
thread; a lock serialises them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.base.errors import StorageFailure
from forebay.metadata import json_serde
from forebay.metadata.table import DatabaseInfo, PartitionInfo, Schema, TableInfo, TablePath

FORMAT_VERSION = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS databases (
    name TEXT PRIMARY KEY, document TEXT NOT NULL, created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS tables (
    table_id INTEGER PRIMARY KEY, database TEXT NOT NULL, name TEXT NOT NULL, schema_id INTEGER NOT NULL,
    document TEXT NOT NULL, created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, UNIQUE (database, name));
CREATE TABLE IF NOT EXISTS schemas (
    table_id INTEGER NOT NULL, schema_id INTEGER NOT NULL, document TEXT NOT NULL, PRIMARY KEY (table_id, schema_id));
CREATE TABLE IF NOT EXISTS partitions (
    partition_id INTEGER PRIMARY KEY, table_id INTEGER NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL,
    UNIQUE (table_id, name));
CREATE TABLE IF NOT EXISTS doomed_folders (path TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS producer_offsets (
    producer_id TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL, offsets BLOB NOT NULL);
"""


@dataclass(frozen=True)
class StoredTable:
    """A table with all versions of its schema and its partitions."""

    info: TableInfo
    schemas: dict[int, Schema]
    partitions: list[PartitionInfo]


class MetadataStore:
    """The metadata file of one data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(_TABLES)
            self._check_version()
        except sqlite3.Error as e:
            raise StorageFailure(f"cannot open the metadata file {path}: {e}") from e

    def _check_version(self) -> None:
        with self.transaction() as sql:
            sql.execute("INSERT OR IGNORE INTO settings VALUES ('format-version', ?)", (str(FORMAT_VERSION),))
            found = sql.execute("SELECT value FROM settings WHERE key = 'format-version'").fetchone()[0]
        if int(found) != FORMAT_VERSION:
            raise StorageFailure(
                f"{self._path} has metadata of format {found}, this version of Forebay knows format {FORMAT_VERSION}; "
                "use the version that wrote it"
            )

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All statements inside, or none. Failures become `StorageFailure`."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except sqlite3.Error as e:
                raise StorageFailure(f"cannot write the metadata file {self._path}: {e}") from e

    # ---- counters ---------------------------------------------------------------------------------------------------

    def take(self, counter: str, count: int = 1) -> int:
        """Take `count` numbers of a counter that begins at 1; return the first. Durable when this returns."""
        with self.transaction() as sql:
            return _take(sql, counter, count)

    # ---- databases --------------------------------------------------------------------------------------------------

    def databases(self) -> list[DatabaseInfo]:
        with self._lock:
            rows = self._connection.execute("SELECT name, document, created_ms, modified_ms FROM databases").fetchall()
        return [
            json_serde.database_from_json(name, json_serde.loads(document, "database"), created, modified)
            for name, document, created, modified in rows
        ]

    def put_database(self, info: DatabaseInfo) -> None:
        document = json_serde.dumps(json_serde.database_to_json(info)).decode()
        with self.transaction() as sql:
            sql.execute(
                "INSERT INTO databases VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
                "SET document = excluded.document, modified_ms = excluded.modified_ms",
                (info.name, document, info.created_ms, info.modified_ms),
            )

    def delete_database(self, name: str) -> None:
        with self.transaction() as sql:
            sql.execute("DELETE FROM databases WHERE name = ?", (name,))

    # ---- tables -----------------------------------------------------------------------------------------------------

    def tables(self) -> list[StoredTable]:
        with self._lock:
            rows = self._connection.execute("SELECT * FROM tables ORDER BY table_id").fetchall()
            schemas = self._connection.execute("SELECT table_id, schema_id, document FROM schemas").fetchall()
            partitions = self._connection.execute(
                "SELECT table_id, partition_id, spec FROM partitions ORDER BY partition_id"
            ).fetchall()
        stored = {row[0]: StoredTable(_table_info(row), {}, []) for row in rows}
        for table_id, schema_id, document in schemas:
            stored[table_id].schemas[schema_id] = json_serde.schema_from_json(json_serde.loads(document, "schema"))
        for table_id, partition_id, spec in partitions:
            pairs = json_serde.loads(spec, "partition spec")
            stored[table_id].partitions.append(PartitionInfo(partition_id, tuple(pairs.items())))
        return list(stored.values())

    def create_table(self, info: TableInfo) -> TableInfo:
        """Store a new table; return it with its table id (never used before) and schema id 1."""
        with self.transaction() as sql:
            table_id = _take(sql, "table", 1)
            created = TableInfo(info.path, table_id, 1, info.descriptor, info.created_ms, info.modified_ms)
            self._put_table(sql, created)
        return created

    def update_table(self, info: TableInfo) -> None:
        """Store a table's changed descriptor, under a new schema id where the schema changed."""
        with self.transaction() as sql:
            self._put_table(sql, info)

    def _put_table(self, sql: sqlite3.Connection, info: TableInfo) -> None:
        document = json_serde.dumps(json_serde.descriptor_to_json(info.descriptor)).decode()
        schema = json_serde.dumps(json_serde.schema_to_json(info.schema)).decode()
        sql.execute(
            "INSERT INTO tables VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (table_id) DO UPDATE SET "
            "schema_id = excluded.schema_id, document = excluded.document, modified_ms = excluded.modified_ms",
            (info.table_id, info.path.database, info.path.table, info.schema_id, document, info.created_ms,
             info.modified_ms),
        )  # fmt: skip
        sql.execute("INSERT OR REPLACE INTO schemas VALUES (?, ?, ?)", (info.table_id, info.schema_id, schema))

    def delete_table(self, table_id: int, folder: str) -> None:
        """Forget a table; its `folder` is noted for removal, which survives a crash."""
        with self.transaction() as sql:
            for table in ("tables", "schemas", "partitions"):
                sql.execute(f"DELETE FROM {table} WHERE table_id = ?", (table_id,))
            sql.execute("INSERT OR IGNORE INTO doomed_folders VALUES (?)", (folder,))

    # ---- partitions -------------------------------------------------------------------------------------------------

    def create_partition(self, table_id: int, spec: tuple[tuple[str, str], ...]) -> PartitionInfo:
        with self.transaction() as sql:
            info = PartitionInfo(_take(sql, "partition", 1), spec)
            document = json_serde.dumps(dict(spec)).decode()
            sql.execute(
                "INSERT INTO partitions VALUES (?, ?, ?, ?)", (info.partition_id, table_id, info.name, document)
            )
        return info

    def delete_partition(self, partition_id: int, folder: str) -> None:
        with self.transaction() as sql:
            sql.execute("DELETE FROM partitions WHERE partition_id = ?", (partition_id,))
            sql.execute("INSERT OR IGNORE INTO doomed_folders VALUES (?)", (folder,))

    # ---- folders to remove ------------------------------------------------------------------------------------------

    def doomed_folders(self) -> list[str]:
        """Folders of dropped tables and partitions that are still to be removed."""
        with self._lock:
            return [row[0] for row in self._connection.execute("SELECT path FROM doomed_folders")]

    def folder_removed(self, path: str) -> None:
        with self.transaction() as sql:
            sql.execute("DELETE FROM doomed_folders WHERE path = ?", (path,))

    # ---- producer offsets -------------------------------------------------------------------------------------------

    def put_producer_offsets(self, producer_id: str, expires_ms: int, offsets: bytes, now_ms: int) -> bool:
        """Store offsets under a producer id unless unexpired ones are there; return whether these were stored."""
        with self.transaction() as sql:
            sql.execute("DELETE FROM producer_offsets WHERE expires_ms <= ?", (now_ms,))
            cursor = sql.execute(
                "INSERT OR IGNORE INTO producer_offsets VALUES (?, ?, ?)", (producer_id, expires_ms, offsets)
            )
            return cursor.rowcount == 1

    def producer_offsets(self, producer_id: str, now_ms: int) -> tuple[int, bytes] | None:
        """(expiry in ms, offsets) of a producer id, or None."""
        with self._lock:
            row: Any = self._connection.execute(
                "SELECT expires_ms, offsets FROM producer_offsets WHERE producer_id = ? AND expires_ms > ?",
                (producer_id, now_ms),
            ).fetchone()
        return None if row is None else (row[0], row[1])

    def delete_producer_offsets(self, producer_id: str) -> None:
        with self.transaction() as sql:
            sql.execute("DELETE FROM producer_offsets WHERE producer_id = ?", (producer_id,))


def _take(sql: sqlite3.Connection, counter: str, count: int) -> int:
    sql.execute("INSERT OR IGNORE INTO counters VALUES (?, 1)", (counter,))
    first: int = sql.execute("SELECT next FROM counters WHERE name = ?", (counter,)).fetchone()[0]
    sql.execute("UPDATE counters SET next = next + ? WHERE name = ?", (count, counter))
    return first


def _table_info(row: tuple[Any, ...]) -> TableInfo:
    table_id, database, name, schema_id, document, created_ms, modified_ms = row
    descriptor = json_serde.descriptor_from_json(json_serde.loads(document, "table"))
    return TableInfo(TablePath(database, name), table_id, schema_id, descriptor, created_ms, modified_ms)
