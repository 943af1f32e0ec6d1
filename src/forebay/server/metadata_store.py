"""Databases, tables, schemas, partitions and counters on disk: one SQLite file.

SQLite commits are atomic and synced (`synchronous=FULL`), so acknowledged changes survive a power failure. This
module only stores and loads; rules and caching are the catalog's (server.metadata.catalog). All methods may be called
from any thread; a lock serialises them.

SQLite notices damage to the structure of its file (`PRAGMA integrity_check`, at opening), but not to a value. So every
row ends with a checksum of its values, which is compared when the row is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from forebay.base import threads
from forebay.base.errors import Conflict, CorruptData, ErrorCode, ForebayError, LimitExceeded, StorageFailure
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import DiskFull
from forebay.fs.local import disk_of
from forebay.kv.file_checksums import ListedFile
from forebay.log.remote import RemoteLogSegment
from forebay.metadata import json_serde
from forebay.metadata.table import DatabaseInfo, PartitionInfo, Schema, TableBucket, TableInfo, TablePath

FORMAT_VERSION = 5
"""The version of `_TABLES` and of all other files of a data directory. A change of either needs a new number: an older
version of Forebay, which would not see what is new, then refuses the directory."""

_OLDER_VERSIONS = frozenset({"2", "3", "4"})
"""Versions that this one reads; it writes its own number into their stores."""

METADATA_FILE = "metadata.sqlite"

COMMITS_MAX = 1_000
"""Maximum number of commits in the history of a table."""

PRODUCERS_MAX = 10_000
PRODUCER_BYTES_MAX = 64 << 20
"""Maximum number of producers whose offsets are kept, and the total size of these offsets."""

_TABLES = """
CREATE TABLE IF NOT EXISTS settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS databases (
    name TEXT PRIMARY KEY, document TEXT NOT NULL, created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS tables (
    table_id INTEGER PRIMARY KEY, database TEXT NOT NULL, name TEXT NOT NULL, schema_id INTEGER NOT NULL,
    document TEXT NOT NULL, created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL,
    crc INTEGER NOT NULL, UNIQUE (database, name));
CREATE TABLE IF NOT EXISTS schemas (
    table_id INTEGER NOT NULL, schema_id INTEGER NOT NULL, document TEXT NOT NULL,
    crc INTEGER NOT NULL, PRIMARY KEY (table_id, schema_id));
CREATE TABLE IF NOT EXISTS partitions (
    partition_id INTEGER PRIMARY KEY, table_id INTEGER NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL,
    crc INTEGER NOT NULL, UNIQUE (table_id, name));
CREATE TABLE IF NOT EXISTS doomed_folders (path TEXT PRIMARY KEY, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS producer_offsets (
    producer_id TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL, offsets BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS lake_snapshots (
    table_id INTEGER NOT NULL, position INTEGER NOT NULL, snapshot_id INTEGER NOT NULL, committed_ms INTEGER NOT NULL,
    tiered_file TEXT NOT NULL, tiered_crc INTEGER NOT NULL, readable_file TEXT, readable_crc INTEGER,
    crc INTEGER NOT NULL, PRIMARY KEY (table_id, position));
CREATE TABLE IF NOT EXISTS transactions (
    transaction_id INTEGER PRIMARY KEY, application TEXT NOT NULL, version INTEGER NOT NULL, state INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL, writer_id INTEGER NOT NULL, attempts TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS decided_versions ON transactions (application, version)
    WHERE application <> '' AND state > 0;
CREATE TABLE IF NOT EXISTS table_commits (
    table_id INTEGER NOT NULL, number INTEGER NOT NULL, committed_ms INTEGER NOT NULL, transaction_id INTEGER NOT NULL,
    application TEXT NOT NULL, version INTEGER NOT NULL, user TEXT NOT NULL, operation TEXT NOT NULL,
    row_count INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (table_id, number));
CREATE TABLE IF NOT EXISTS log_epochs (
    number INTEGER PRIMARY KEY, epoch TEXT NOT NULL, began_ms INTEGER NOT NULL, reason TEXT NOT NULL,
    of_one_bucket INTEGER NOT NULL, first_table_id INTEGER NOT NULL, first_partition_id INTEGER NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS log_epoch_starts (
    table_id INTEGER NOT NULL, partition_id INTEGER NOT NULL, bucket INTEGER NOT NULL, number INTEGER NOT NULL,
    log_offset INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (table_id, partition_id, bucket, number));
CREATE TABLE IF NOT EXISTS remote_logs (
    table_id INTEGER NOT NULL, partition_id INTEGER NOT NULL, bucket INTEGER NOT NULL, end_offset INTEGER NOT NULL,
    manifest TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (table_id, partition_id, bucket));
CREATE TABLE IF NOT EXISTS remote_segments (
    table_id INTEGER NOT NULL, partition_id INTEGER NOT NULL, bucket INTEGER NOT NULL, segment_id TEXT NOT NULL,
    start_offset INTEGER NOT NULL, end_offset INTEGER NOT NULL, max_timestamp_ms INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (table_id, partition_id, bucket, start_offset));
CREATE TABLE IF NOT EXISTS state_snapshots (
    table_id INTEGER NOT NULL, partition_id INTEGER NOT NULL, bucket INTEGER NOT NULL, log_offset INTEGER NOT NULL,
    files TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (table_id, partition_id, bucket));
CREATE TABLE IF NOT EXISTS kv_snapshots (
    table_id INTEGER NOT NULL, partition_id INTEGER NOT NULL, bucket INTEGER NOT NULL, snapshot_id INTEGER NOT NULL,
    log_offset INTEGER NOT NULL, files TEXT NOT NULL, replaced_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (table_id, partition_id, bucket, snapshot_id));
CREATE TABLE IF NOT EXISTS kv_snapshot_leases (
    lease_id TEXT NOT NULL, table_id INTEGER NOT NULL, partition_id INTEGER NOT NULL, bucket INTEGER NOT NULL,
    snapshot_id INTEGER NOT NULL, until_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (lease_id, table_id, partition_id, bucket));
CREATE TABLE IF NOT EXISTS doomed_objects (name TEXT PRIMARY KEY, due_ms INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS journal_fences (number INTEGER PRIMARY KEY, crc INTEGER NOT NULL);
"""

TABLE_COUNTER, PARTITION_COUNTER = "table", "partition"
WRITER_COUNTER, TRANSACTION_COUNTER = "writer", "transaction"
COORDINATOR_EPOCH_COUNTER = "coordinator-epoch"

_NO_PARTITION = -1

_READING = ("SELECT", "PRAGMA")
"""How statements begin that change nothing."""


@dataclass(frozen=True)
class TableRecord:
    """A table with all versions of its schema and its partitions."""

    info: TableInfo
    schemas: dict[int, Schema]
    partitions: list[PartitionInfo]


class OffsetsFile(NamedTuple):
    """A file of a lake snapshot's log offsets: its path, relative to the data directory, and its CRC32C."""

    path: str
    crc: int


@dataclass(frozen=True, slots=True)
class StoredLakeSnapshot:
    """A lake snapshot of a table: what of the log it holds (`tiered`), and from where a union read goes on, if it may
    start there (`readable`)."""

    snapshot_id: int
    committed_ms: int
    tiered: OffsetsFile
    readable: OffsetsFile | None

    @property
    def files(self) -> tuple[OffsetsFile, ...]:
        """The offset files of the snapshot."""
        return (self.tiered,) if self.readable is None else (self.tiered, self.readable)

    @property
    def offsets_name(self) -> str:
        """The name of the file of its offsets, which names it among all snapshots that ever have its id."""
        return self.tiered.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A transaction of an application. From its decision on `attempts` are those that count, in order, and `writer_id`
    writes their rows. Attempts have no blanks in their names."""

    transaction_id: int
    application: str
    version: int
    state: int
    changed_ms: int
    writer_id: int = -1
    attempts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """What a transaction has written to a table, who committed it, and what it called that."""

    table_id: int
    number: int
    committed_ms: int
    transaction_id: int
    application: str
    version: int
    user: str
    operation: str
    rows: int


class StoredStateFile(NamedTuple):
    """A file of a snapshot of key-value state, and the name of its object in the store."""

    listed: ListedFile
    object: str


class StateSnapshot(NamedTuple):
    """A snapshot of a bucket's key-value state: the changelog offset that it contains (exclusive), and its files."""

    log_offset: int
    files: tuple[StoredStateFile, ...]


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """An epoch of the logs, of all or of one bucket's. Tables and partitions with these ids or greater ones were
    created in it, or later."""

    number: int
    epoch: str
    began_ms: int
    reason: str
    is_of_one_bucket: bool
    first_table_id: int
    first_partition_id: int


class DatabaseFile(Protocol):
    """A SQLite database file; a simulation keeps it on a disk of its own."""

    @property
    def path(self) -> str: ...

    def is_empty(self) -> bool:
        """Whether the file is missing, or has no content."""
        ...

    def connect(self) -> sqlite3.Connection:
        """Open the database; make it where there is none. Raises `sqlite3.Error`."""
        ...

    def disk(self) -> str:
        """Words for the disk that it is on."""
        ...


class LocalDatabaseFile:
    """A database file on this machine."""

    def __init__(self, path: str) -> None:
        self.path = path

    def is_empty(self) -> bool:
        path = Path(self.path)
        return not path.exists() or path.stat().st_size == 0

    def connect(self) -> sqlite3.Connection:
        Path(self.path).parent.mkdir(names.FOLDER_MODE, parents=True, exist_ok=True)
        # SQLite gives the files beside it the mode that this one has.
        with contextlib.suppress(OSError):  # where it cannot be made, SQLite says why
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, names.FILE_MODE))
        return sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)

    def disk(self) -> str:
        return disk_of(self.path)


class ChangingStatement(NamedTuple):
    """A statement that changed the store, and its values. Repeated on a copy from before it, it changes that alike:
    statements have no other source of values."""

    statement: str
    values: tuple[str | int | bytes | None, ...]


_COMMITS = "SELECT value FROM settings WHERE key = 'journal-commits'"
_SET_COMMITS = "INSERT OR REPLACE INTO settings VALUES ('journal-commits', ?)"


def commits_told(changes: Sequence[tuple[str, Sequence[Any]]]) -> int:
    """`MetadataStore.journal_commits` after the last of these changes; 0 if they do not say it."""
    numbers = [int(values[0]) for statement, values in changes if statement == _SET_COMMITS]
    return numbers[-1] if numbers else 0


class _RecordedConnection:
    """A connection that remembers the statements that may change something."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.changes: list[ChangingStatement] = []

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        if not statement.startswith(_READING):
            self.changes.append(ChangingStatement(statement, tuple(values)))
        return self._connection.execute(statement, values)


def _damaged(path: str, reason: str) -> CorruptData:
    return CorruptData(
        f"the metadata file {path} is damaged: {reason}. Restore it from a copy; only it tells "
        "which tables the other files belong to"
    )


def metadata_failure(error: UnicodeDecodeError | sqlite3.Error, path: str, doing: str) -> ForebayError:
    """What an error of SQLite means: damage, which Python may call a text that cannot be decoded, or a failure."""
    is_damage = isinstance(error, UnicodeDecodeError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )
    return (
        _damaged(path, str(error)) if is_damage else StorageFailure(f"cannot {doing} the metadata file {path}: {error}")
    )


SELECT_STATE_SNAPSHOTS = "SELECT * FROM state_snapshots"
SELECT_REMOTE_LOGS = "SELECT * FROM remote_logs"
FOLDER_REMOVED = "DELETE FROM doomed_folders WHERE path = ?"
"""The statement by which a server notes that it has removed a folder."""


def checked_rows(rows: Iterable[tuple[Any, ...]], path: str) -> list[tuple[Any, ...]]:
    """Whole rows of the metadata file `path`, without their checksums. Raises `CorruptData`."""
    checked = []
    for *row, checksum in rows:
        if checksum != _checksum(tuple(row)):
            raise _damaged(path, f"a row does not have its checksum: {row!r:.200}")
        checked.append(tuple(row))
    return checked


def state_snapshots_of(rows: Iterable[tuple[Any, ...]]) -> dict[TableBucket, StateSnapshot]:
    """The snapshots of key-value state in the checked rows of `SELECT_STATE_SNAPSHOTS`."""
    snapshots = {}
    for table_id, partition, number, log_offset, files in rows:
        bucket = bucket_of(table_id, partition, number)
        stored = (StoredStateFile(ListedFile(*listed), name) for listed, name in json.loads(files))
        snapshots[bucket] = StateSnapshot(log_offset, tuple(stored))
    return snapshots


class MetadataStore:
    """The metadata file of one data directory."""

    def __init__(self, file: DatabaseFile, *, is_new: bool = True) -> None:
        """Open the file, or make one where there is none, unless data that needs it is there (`is_new` False).

        Raises `CorruptData` and `StorageFailure`.
        """
        self._on_commit: Callable[[Sequence[ChangingStatement]], None] | None = None
        self._journal_commits = 0
        self._file, self._path = file, file.path
        self._lock = threads.rlock()
        if not is_new and file.is_empty():
            raise self._damaged("it is missing or empty, and a server has used the folder before")
        try:
            self._connection = file.connect()
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
        except (UnicodeDecodeError, sqlite3.Error) as e:
            raise metadata_failure(e, file.path, "open") from e

    def _prepare(self) -> None:
        """Check what is there; settle how commits are written, and make the tables that are missing."""
        self._check_version()
        # No write-ahead log: a flipped bit in it would silently take away all commits behind it, and tables with
        # them. A journal that is cut (and synced) ends each commit, with nothing but the checked file left.
        self._connection.execute("PRAGMA journal_mode=TRUNCATE")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._check_structure()
        self._connection.executescript(_TABLES)
        with self.transaction() as sql:
            sql.execute("INSERT OR REPLACE INTO settings VALUES ('format-version', ?)", (str(FORMAT_VERSION),))

    def _check_structure(self) -> None:
        result = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            raise self._damaged(result)

    def _damaged(self, reason: str) -> CorruptData:
        return _damaged(self._path, reason)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of `query`, which selects whole rows, without their checksums. Raises `CorruptData`."""
        with self._lock:
            try:
                rows = self._connection.execute(query, parameters).fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as e:
                raise self._damaged(str(e)) from e
        return checked_rows(rows, self._path)

    def _check_version(self) -> None:
        """Raise `StorageFailure` for a format that this version does not know, before anything is changed."""
        if not self._connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'settings'").fetchone():
            return
        row = self._connection.execute("SELECT value FROM settings WHERE key = 'format-version'").fetchone()
        if row is not None and row[0] not in {str(FORMAT_VERSION), *_OLDER_VERSIONS}:
            raise StorageFailure(
                f"{self._path} has metadata of format {row[0]}, this version of Forebay knows format "
                f"{FORMAT_VERSION}; use the version that wrote it"
            )

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def check_rows(self) -> None:
        """Read every row of every table that has checksums. Raises `CorruptData`."""
        for table in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", _TABLES):
            if table != "settings":
                self.rows(f"SELECT * FROM {table}")

    @contextmanager
    def transaction(self) -> Iterator[_RecordedConnection]:
        """All statements inside, or none. Failures become `StorageFailure`."""
        with self._lock:
            recorded = _RecordedConnection(self._connection)
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield recorded
                    is_noted = self._on_commit is not None and bool(recorded.changes)
                    if is_noted:
                        recorded.execute(_SET_COMMITS, (str(self._journal_commits + 1),))
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # on a full disk SQLite has rolled back already, or not
                        self._connection.execute("ROLLBACK")
                    raise
            except UnicodeDecodeError as e:
                raise self._damaged(str(e)) from e
            except sqlite3.Error as e:
                if getattr(e, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                    raise DiskFull(
                        f"cannot write the metadata file {self._path}: no space is left, and nothing was changed; "
                        f"free space on {self._file.disk()}, then try again",
                        ErrorCode.DISK_WRITE_LOCKED,
                    ) from e
                raise StorageFailure(f"cannot write the metadata file {self._path}: {e}") from e
            if self._on_commit is not None and is_noted:
                self._journal_commits += 1
                self._on_commit(recorded.changes)

    # ---- copies -----------------------------------------------------------------------------------------------------

    def image(self) -> bytes:
        """The content of the file, as it is between two transactions: a SQLite database."""
        with self._lock:
            return self._connection.serialize()

    def pass_image(self, to: Callable[[bytes], None]) -> None:
        """Call `to` with the image, in order with `on_commit`: it has what was committed before, and nothing else."""
        with self._lock:
            to(self._connection.serialize())

    def show(self, image: bytes) -> None:
        """Become a copy of the store that has this image. Only for a store in memory."""
        with self._lock:
            self._connection.deserialize(image)

    # ---- the journal ------------------------------------------------------------------------------------------------

    @property
    def journal_commits(self) -> int:
        """How many transactions were ever told to a journal, by this store and those that it is a copy of."""
        with self._lock:
            row = self._connection.execute(_COMMITS).fetchone()
        return 0 if row is None else int(row[0])

    def tell(self, on_commit: Callable[[Sequence[ChangingStatement]], None]) -> None:
        """Call `on_commit` with the changes of each transaction, in order, when it is durable.

        Its caller goes on after that. The last change is the number of the transaction (`commits_told`).
        """
        with self._lock:
            self._journal_commits = self.journal_commits
            self._on_commit = on_commit

    def add_journal_fences(self, numbers: Iterable[int]) -> None:
        """Store numbers of fences, the first objects of epochs."""
        with self.transaction() as sql:
            for number in numbers:
                put_row(sql, "journal_fences", number)

    def journal_fences(self) -> frozenset[int]:
        """The numbers of all fences."""
        return frozenset(number for (number,) in self.rows("SELECT * FROM journal_fences"))

    # ---- counters ---------------------------------------------------------------------------------------------------

    def take(self, counter: str, count: int = 1) -> int:
        """Take `count` numbers of a counter that begins at 1; return the first. Durable when this returns."""
        with self.transaction() as sql:
            return self._take(sql, counter, count)

    def _take(self, sql: _RecordedConnection, counter: str, count: int) -> int:
        rows = self.rows("SELECT * FROM counters WHERE name = ?", counter)
        first: int = rows[0][1] if rows else 1
        put_row(sql, "counters", counter, first + count)
        return first

    # ---- epochs of the logs -----------------------------------------------------------------------------------------

    def log_epochs(self) -> list[StoredEpoch]:
        """The epochs of the logs, oldest first."""
        return [
            StoredEpoch(number, epoch, began_ms, reason, bool(of_one_bucket), *firsts)
            for number, epoch, began_ms, reason, of_one_bucket, *firsts in self.rows(
                "SELECT * FROM log_epochs ORDER BY number"
            )
        ]

    def log_epoch_starts(self) -> dict[TableBucket, dict[int, int]]:
        """By bucket, and by the number of an epoch, the offset at which the epoch began."""
        starts: dict[TableBucket, dict[int, int]] = {}
        for table_id, partition_id, number, epoch, offset in self.rows("SELECT * FROM log_epoch_starts"):
            bucket = TableBucket(table_id, number, None if partition_id == _NO_PARTITION else partition_id)
            starts.setdefault(bucket, {})[epoch] = offset
        return starts

    def begin_log_epoch(self, epoch: StoredEpoch, skips: Mapping[str, int], keep: int) -> tuple[int, int]:
        """Store a new epoch; return the first ids of tables and partitions that are created in it.

        `skips`: how many numbers of some counters are never given out. Only the newest `keep` epochs stay.
        """
        number, name, began_ms, reason, of_one_bucket, *_ = astuple(epoch)
        with self.transaction() as sql:
            for counter, count in skips.items():
                self._take(sql, counter, count)
            firsts = self._take(sql, TABLE_COUNTER, 0), self._take(sql, PARTITION_COUNTER, 0)
            put_row(sql, "log_epochs", number, name, began_ms, reason, int(of_one_bucket), *firsts)
            for table in ("log_epochs", "log_epoch_starts"):
                sql.execute(f"DELETE FROM {table} WHERE number <= ?", (number - keep,))
        return firsts

    def put_log_epoch_starts(self, starts: Iterable[tuple[TableBucket, int, int]]) -> None:
        """Store at which offsets of buckets epochs began: (bucket, number of the epoch, offset). Durable when this
        returns."""
        with self.transaction() as sql:
            for (table_id, bucket, partition_id), number, offset in starts:
                partition = _NO_PARTITION if partition_id is None else partition_id
                put_row(sql, "log_epoch_starts", table_id, partition, bucket, number, offset)

    def place(self) -> str | None:
        """The stored place of the data directory, or None."""
        with self._lock:
            try:
                row = self._connection.execute("SELECT value FROM settings WHERE key = 'place'").fetchone()
            except (sqlite3.Error, UnicodeDecodeError) as e:
                raise self._damaged(str(e)) from e
        return None if row is None else row[0]

    def put_place(self, place: str) -> None:
        with self.transaction() as sql:
            sql.execute("INSERT OR REPLACE INTO settings VALUES ('place', ?)", (place,))

    # ---- databases --------------------------------------------------------------------------------------------------

    def databases(self) -> list[DatabaseInfo]:
        return [
            json_serde.database_from_json(name, json_serde.loads(document, "database"), created, modified)
            for name, document, created, modified in self.rows("SELECT * FROM databases")
        ]

    def put_database(self, info: DatabaseInfo) -> None:
        """Store a database, new or changed."""
        document = json_serde.dumps(json_serde.database_to_json(info)).decode()
        with self.transaction() as sql:
            put_row(sql, "databases", info.name, document, info.created_ms, info.modified_ms)

    def delete_database(self, name: str) -> None:
        with self.transaction() as sql:
            sql.execute("DELETE FROM databases WHERE name = ?", (name,))

    # ---- tables -----------------------------------------------------------------------------------------------------

    def tables(self, ids: Collection[int] | None = None) -> list[TableRecord]:
        """Return all tables, or those with these ids, with their schemas and partitions."""
        with self._lock:
            rows = self.rows("SELECT * FROM tables ORDER BY table_id")
            schemas = self.rows("SELECT * FROM schemas")
            partitions = self.rows("SELECT * FROM partitions ORDER BY partition_id")
        stored = {row[0]: TableRecord(_table_info(row), {}, []) for row in rows if ids is None or row[0] in ids}
        for table_id, schema_id, document in schemas:
            if table_id in stored:
                schema = json_serde.schema_from_json(json_serde.loads(document, "schema"))
                stored[table_id].schemas[schema_id] = schema
        for partition_id, table_id, _, spec in partitions:
            if table_id in stored:
                pairs = json_serde.loads(spec, "partition spec")
                stored[table_id].partitions.append(PartitionInfo(partition_id, tuple(pairs.items())))
        return list(stored.values())

    def table_checksums(self) -> dict[int, int]:
        """Of each table, by its id, a number that is another one when something of it has changed."""
        sums: dict[int, int] = {}
        with self._lock:
            for table, column in (("tables", "schema_id"), ("schemas", "schema_id"), ("partitions", "partition_id")):
                rows = self._connection.execute(f"SELECT table_id, {column}, crc FROM {table}").fetchall()
                for table_id, number, crc in rows:
                    sums[table_id] = sums.get(table_id, 0) + hash((table, number, crc))
        return sums

    def create_table(self, info: TableInfo) -> TableInfo:
        """Store a new table; return it with its table id (never used before) and schema id 1."""
        with self.transaction() as sql:
            table_id = self._take(sql, TABLE_COUNTER, 1)
            created = TableInfo(info.path, table_id, 1, info.descriptor, info.created_ms, info.modified_ms)
            self._put_table(sql, created)
        return created

    def update_table(self, info: TableInfo) -> None:
        """Store a table's changed descriptor, under a new schema id where the schema changed."""
        with self.transaction() as sql:
            self._put_table(sql, info)

    def _put_table(self, sql: _RecordedConnection, info: TableInfo) -> None:
        document = json_serde.dumps(json_serde.descriptor_to_json(info.descriptor)).decode()
        schema = json_serde.dumps(json_serde.schema_to_json(info.schema)).decode()
        put_row(sql, "tables", info.table_id, info.path.database, info.path.table, info.schema_id, document,
             info.created_ms, info.modified_ms)  # fmt: skip
        put_row(sql, "schemas", info.table_id, info.schema_id, schema)

    def delete_table(self, table_id: int, folder: str) -> None:
        """Forget a table; its `folder` is noted for removal, which survives a crash."""
        with self.transaction() as sql:
            for table in ("tables", "schemas", "partitions", "lake_snapshots", "table_commits", "log_epoch_starts"):
                sql.execute(f"DELETE FROM {table} WHERE table_id = ?", (table_id,))
            put_row(sql, "doomed_folders", folder)

    # ---- partitions -------------------------------------------------------------------------------------------------

    def create_partition(self, table_id: int, spec: tuple[tuple[str, str], ...]) -> PartitionInfo:
        with self.transaction() as sql:
            info = PartitionInfo(self._take(sql, PARTITION_COUNTER, 1), spec)
            document = json_serde.dumps(dict(spec)).decode()
            put_row(sql, "partitions", info.partition_id, table_id, info.name, document)
        return info

    def delete_partition(self, partition_id: int, folder: str) -> None:
        """Forget a partition; its `folder` is noted for removal, which survives a crash."""
        with self.transaction() as sql:
            sql.execute("DELETE FROM partitions WHERE partition_id = ?", (partition_id,))
            sql.execute("DELETE FROM log_epoch_starts WHERE partition_id = ?", (partition_id,))
            put_row(sql, "doomed_folders", folder)

    # ---- lake snapshots ---------------------------------------------------------------------------------------------

    def lake_snapshots(self) -> dict[int, tuple[StoredLakeSnapshot, ...]]:
        """The known lake snapshots by table id, oldest first."""
        found: dict[int, list[StoredLakeSnapshot]] = {}
        for table_id, _, snapshot_id, committed_ms, tiered, tiered_crc, readable, readable_crc in self.rows(
            "SELECT * FROM lake_snapshots ORDER BY table_id, position"
        ):
            readable_file = None if readable is None else OffsetsFile(readable, readable_crc)
            snapshot = StoredLakeSnapshot(snapshot_id, committed_ms, OffsetsFile(tiered, tiered_crc), readable_file)
            found.setdefault(table_id, []).append(snapshot)
        return {table_id: tuple(snapshots) for table_id, snapshots in found.items()}

    def put_lake_snapshots(self, table_id: int, snapshots: Sequence[StoredLakeSnapshot]) -> None:
        """Store the known lake snapshots of a table, oldest first, in place of those that were stored before."""
        with self.transaction() as sql:
            sql.execute("DELETE FROM lake_snapshots WHERE table_id = ?", (table_id,))
            for position, s in enumerate(snapshots):
                readable = (None, None) if s.readable is None else s.readable
                put_row(sql, "lake_snapshots", table_id, position, s.snapshot_id, s.committed_ms, *s.tiered, *readable)

    # ---- transactions -----------------------------------------------------------------------------------------------

    def transactions(self) -> list[StoredTransaction]:
        """The stored transactions, in the order in which they were begun."""
        return [
            StoredTransaction(
                transaction_id, application, version, state, changed_ms, writer_id, tuple(attempts.split())
            )
            for transaction_id, application, version, state, changed_ms, writer_id, attempts in self.rows(
                "SELECT * FROM transactions ORDER BY transaction_id"
            )
        ]

    def put_transaction(
        self, stored: StoredTransaction, without: Iterable[int] = (), commits: Iterable[StoredCommit] = ()
    ) -> None:
        """Store a transaction, new or changed, and forget those with the ids `without`, in one step.

        `commits` are the next ones in the histories of their tables, which number them.

        Raises `Conflict`, and changes nothing, if another one with its application and version is decided or committed.
        """
        transaction_id, application, version, state, *others, attempts = astuple(stored)
        with self.transaction() as sql:
            _delete_transactions(sql, without)
            try:
                put_row(
                    sql, "transactions", transaction_id, application, version, int(state), *others, " ".join(attempts)
                )
            except sqlite3.IntegrityError as e:
                raise Conflict(
                    f"version {version} of application {application!r} is decided already, by another transaction "
                    f"than {transaction_id}: a version is written once",
                    ErrorCode.INVALID_UPDATE_VERSION_EXCEPTION,
                ) from e
            for commit in commits:
                table_id, _, *others = astuple(commit)
                last = sql.execute("SELECT max(number) FROM table_commits WHERE table_id = ?", (table_id,)).fetchone()
                number = (last[0] or 0) + 1
                put_row(sql, "table_commits", table_id, number, *others)
                sql.execute(
                    "DELETE FROM table_commits WHERE table_id = ? AND number <= ?", (table_id, number - COMMITS_MAX)
                )

    def commits(self, table_id: int) -> list[StoredCommit]:
        """The last commits of a table, at most `COMMITS_MAX`, in their order."""
        rows = self.rows("SELECT * FROM table_commits WHERE table_id = ? ORDER BY number", table_id)
        return [StoredCommit(*row) for row in rows]

    def forget_transactions(self, ids: Iterable[int]) -> None:
        with self.transaction() as sql:
            _delete_transactions(sql, ids)

    # ---- remote logs ------------------------------------------------------------------------------------------------

    def remote_logs(self) -> dict[TableBucket, tuple[int, str]]:
        """The buckets of which segments were ever copied to the store: up to which offset, and the name of the
        manifest, empty if all have expired."""
        return {
            bucket_of(table_id, partition, bucket): (end, manifest)
            for table_id, partition, bucket, end, manifest in self.rows(SELECT_REMOTE_LOGS)
        }

    def remote_segments(self, bucket: TableBucket) -> list[RemoteLogSegment]:
        """The segments of a bucket in the store, oldest first."""
        query = "SELECT * FROM remote_segments WHERE table_id = ? AND partition_id = ? AND bucket = ? ORDER BY 5"
        return [RemoteLogSegment(*row[3:]) for row in self.rows(query, *bucket_columns(bucket))]

    def change_remote_log(
        self,
        bucket: TableBucket,
        end_offset: int,
        manifest: str,
        *,
        added: Iterable[RemoteLogSegment] = (),
        removed_until: int = 0,
        doomed: Mapping[str, int],
        kept: Iterable[str] = (),
    ) -> None:
        """Change the list of a bucket's segments in the store, all or nothing.

        `end_offset`: how far segments were ever copied. `manifest`: the name of the new one; empty if no segment is
        left. `removed_until`: segments that end there or before leave the list. `doomed`: objects to delete, and when,
        in ms; `kept`: those that are not to be deleted any more.
        """
        key = bucket_columns(bucket)
        with self.transaction() as sql:
            of_bucket = "table_id = ? AND partition_id = ? AND bucket = ?"
            put_row(sql, "remote_logs", *key, end_offset, manifest)
            sql.execute(f"DELETE FROM remote_segments WHERE {of_bucket} AND end_offset <= ?", (*key, removed_until))
            for segment in added:
                row = (*key, *segment)
                sql.execute("INSERT INTO remote_segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, _checksum(row)))
            doom(sql, doomed)
            for name in kept:
                sql.execute("DELETE FROM doomed_objects WHERE name = ?", (name,))

    def forget_remote_log(self, bucket: TableBucket, doomed: Mapping[str, int]) -> None:
        """Forget all that was copied of a bucket; `doomed`: its objects, and when to delete them, in ms."""
        with self.transaction() as sql:
            for table in ("remote_logs", "remote_segments"):
                statement = f"DELETE FROM {table} WHERE table_id = ? AND partition_id = ? AND bucket = ?"
                sql.execute(statement, bucket_columns(bucket))
            doom(sql, doomed)

    def state_snapshots(self) -> dict[TableBucket, StateSnapshot]:
        """The snapshots of key-value state in the store."""
        return state_snapshots_of(self.rows(SELECT_STATE_SNAPSHOTS))

    def put_state_snapshot(
        self, bucket: TableBucket, snapshot: StateSnapshot, *, doomed: Mapping[str, int], kept: Iterable[str]
    ) -> None:
        """Replace the snapshot of a bucket, all or nothing. `doomed` and `kept` as in `change_remote_log`."""
        files = json.dumps(snapshot.files, separators=(",", ":"))
        with self.transaction() as sql:
            put_row(sql, "state_snapshots", *bucket_columns(bucket), snapshot.log_offset, files)
            doom(sql, doomed)
            for name in kept:
                sql.execute("DELETE FROM doomed_objects WHERE name = ?", (name,))

    def forget_state_snapshot(self, bucket: TableBucket, doomed: Mapping[str, int]) -> None:
        """Forget the snapshot of a bucket; `doomed`: its objects, and when to delete them, in ms."""
        with self.transaction() as sql:
            statement = "DELETE FROM state_snapshots WHERE table_id = ? AND partition_id = ? AND bucket = ?"
            sql.execute(statement, bucket_columns(bucket))
            doom(sql, doomed)

    def doom_objects(self, doomed: Mapping[str, int]) -> None:
        """Note objects of the store to delete, and when, in ms."""
        with self.transaction() as sql:
            doom(sql, doomed)

    def doomed_objects(self, now_ms: int, limit: int) -> list[str]:
        """Objects of the store whose time to be deleted has come, at most `limit`."""
        query = "SELECT * FROM doomed_objects WHERE due_ms <= ? ORDER BY due_ms LIMIT ?"
        return [name for name, _ in self.rows(query, now_ms, limit)]

    def objects_deleted(self, deleted: Iterable[str]) -> None:
        """Forget objects that were deleted."""
        with self.transaction() as sql:
            for name in deleted:
                sql.execute("DELETE FROM doomed_objects WHERE name = ?", (name,))

    # ---- folders to remove ------------------------------------------------------------------------------------------

    def doomed_folders(self) -> list[str]:
        """Folders of dropped tables and partitions that are still to be removed."""
        return [row[0] for row in self.rows("SELECT * FROM doomed_folders")]

    def folder_removed(self, path: str) -> None:
        """Forget a folder that has been removed."""
        with self.transaction() as sql:
            sql.execute(FOLDER_REMOVED, (path,))

    # ---- producer offsets -------------------------------------------------------------------------------------------

    def put_producer_offsets(self, producer_id: str, expires_ms: int, offsets: bytes, now_ms: int) -> bool:
        """Store offsets under a producer id unless unexpired ones are there; return whether these were stored.

        Raises `LimitExceeded` where there are `PRODUCERS_MAX` ids or `PRODUCER_BYTES_MAX` bytes already.
        """
        with self.transaction() as sql:
            sql.execute("DELETE FROM producer_offsets WHERE expires_ms <= ?", (now_ms,))
            if sql.execute("SELECT 1 FROM producer_offsets WHERE producer_id = ?", (producer_id,)).fetchone():
                return False
            stored, size = sql.execute("SELECT count(*), total(length(offsets)) FROM producer_offsets").fetchone()
            if stored >= PRODUCERS_MAX or size + len(offsets) > PRODUCER_BYTES_MAX:
                raise LimitExceeded(
                    f"the offsets of producer {producer_id!r} ({len(offsets)} bytes) are not kept: there are those of "
                    f"{stored} producers already, {size:.0f} bytes; at most {PRODUCERS_MAX} producers and "
                    f"{PRODUCER_BYTES_MAX} bytes are kept. Delete those of jobs that have ended "
                    "(DeleteProducerOffsets), or register them with a shorter time to live",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )
            row = (producer_id, expires_ms, offsets)
            sql.execute("INSERT INTO producer_offsets VALUES (?, ?, ?, ?)", (*row, _checksum(row)))
            return True

    def expire_producer_offsets(self, now_ms: int) -> int:
        """Remove the offsets whose time is over; return of how many producers."""
        with self.transaction() as sql:
            sql.execute("DELETE FROM producer_offsets WHERE expires_ms <= ?", (now_ms,))
            return int(sql.execute("SELECT changes()").fetchone()[0])

    def producer_offsets(self, producer_id: str, now_ms: int) -> tuple[int, bytes] | None:
        """(expiry in ms, offsets) of a producer id, or None."""
        query = "SELECT * FROM producer_offsets WHERE producer_id = ? AND expires_ms > ?"
        rows = self.rows(query, producer_id, now_ms)
        return (rows[0][1], rows[0][2]) if rows else None

    def delete_producer_offsets(self, producer_id: str) -> None:
        with self.transaction() as sql:
            sql.execute("DELETE FROM producer_offsets WHERE producer_id = ?", (producer_id,))


def _checksum(row: tuple[Any, ...]) -> int:
    return crc32c(repr(row).encode("utf-8", "surrogatepass"))


def put_row(sql: _RecordedConnection, table: str, *row: Any) -> None:
    """Insert a row, or put it in the place of the one with the same primary key (and no other)."""
    columns = sql.execute(f"PRAGMA table_info({table})").fetchall()
    names = [name for _, name, *_ in columns]
    keys = [name for _, name, _, _, _, place_in_key in columns if place_in_key]
    marks = ", ".join("?" * len(names))
    updates = ", ".join(f"{name} = excluded.{name}" for name in names)
    sql.execute(
        f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {updates}",
        (*row, _checksum(row)),
    )


def bucket_of(table_id: int, partition_id: int, number: int) -> TableBucket:
    """The bucket of the columns table_id, partition_id and bucket."""
    return TableBucket(table_id, number, None if partition_id == _NO_PARTITION else partition_id)


def bucket_columns(bucket: TableBucket) -> tuple[int, int, int]:
    """The values of the columns table_id, partition_id and bucket."""
    return bucket.table_id, _NO_PARTITION if bucket.partition_id is None else bucket.partition_id, bucket.bucket


def doom(sql: _RecordedConnection, doomed: Mapping[str, int]) -> None:
    """Note objects of the store to delete, and when, in ms."""
    for name, due_ms in doomed.items():
        put_row(sql, "doomed_objects", name, due_ms)


def _delete_transactions(sql: _RecordedConnection, ids: Iterable[int]) -> None:
    for each in ids:
        sql.execute("DELETE FROM transactions WHERE transaction_id = ?", (each,))


def _table_info(row: tuple[Any, ...]) -> TableInfo:
    table_id, database, name, schema_id, document, created_ms, modified_ms = row
    descriptor = json_serde.descriptor_from_json(json_serde.loads(document, "table"))
    return TableInfo(TablePath(database, name), table_id, schema_id, descriptor, created_ms, modified_ms)
