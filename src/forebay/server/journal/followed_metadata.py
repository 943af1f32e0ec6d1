"""The metadata store in a data directory that repeats a journal: what it says of tables, logs and states.

The store says itself up to which object it is, in one transaction with the statements of that object. Between two
objects nothing holds it open: an image replaces the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from forebay.fs.interface import FileSystem
from forebay.log.remote import RemoteLogSegment
from forebay.metadata.table import PhysicalTablePath, TableBucket, TablePath
from forebay.server.metadata_store import (
    FOLDER_REMOVED,
    SELECT_REMOTE_LOGS,
    SELECT_STATE_SNAPSHOTS,
    DatabaseFile,
    StateSnapshot,
    bucket_columns,
    bucket_of,
    checked_rows,
    metadata_failure,
    state_snapshots_of,
)
from forebay.store.journal import JournalObject
from forebay.store.journal_format import MetadataChanged, MetadataImage, Statement, decode_statements

_POSITION = "journal-number"
"""The key of the table `settings` with the number of the object up to which the metadata store is."""


class FollowedMetadata:
    """The metadata of a follower. Reads may be made in any thread, changes in one."""

    def __init__(self, fs: FileSystem, database: DatabaseFile) -> None:
        self._fs, self._database = fs, database
        self.number = self._stored_number()
        """Of the last object that changed the metadata."""

    @property
    def exists(self) -> bool:
        """Whether there is a metadata store yet."""
        return self._fs.exists(self._database.path)

    def content(self) -> bytes:
        """The database, as a file of SQLite."""
        return self._fs.read_bytes(self._database.path)

    def _stored_number(self) -> int:
        if not self.exists:
            return 0
        with self._connected() as sql:
            row = sql.execute("SELECT value FROM settings WHERE key = ?", (_POSITION,)).fetchone()
        return int(row[0])

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._database.connect()) as sql:
                sql.execute("PRAGMA journal_mode=TRUNCATE")
                yield sql
        except (UnicodeDecodeError, sqlite3.Error) as e:
            raise metadata_failure(e, self._database.path, "use") from e

    # ---- repeating --------------------------------------------------------------------------------------------------

    def changes(self, found: JournalObject) -> tuple[bytes | None, list[Statement]]:
        """What an object changes here (`metadata_changes`). Nothing if the store has it already."""
        return metadata_changes(found) if found.footer.identity.number > self.number else (None, [])

    def apply(self, number: int, image: bytes | None, statements: Sequence[Statement]) -> None:
        """Make the changes of the object with this number, in one transaction."""
        position = ("INSERT OR REPLACE INTO settings VALUES (?, ?)", (_POSITION, str(number)))
        if image is None:
            with self._connected() as sql:
                _execute(sql, [*statements, position])
        else:
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as sql:
                sql.deserialize(image)
                _execute(sql, [*statements, position])
                self._fs.write_atomic(self._database.path, sql.serialize())
        self.number = number

    # ---- reading ----------------------------------------------------------------------------------------------------

    def fences(self) -> set[int]:
        """The numbers of the objects with which epochs began, of which the last image knew."""
        if not self.exists:
            return set()
        with self._connected() as sql:
            return {number for (number,) in sql.execute("SELECT number FROM journal_fences").fetchall()}

    def path(self, bucket: TableBucket) -> PhysicalTablePath | None:
        """The names of a bucket's table and partition; None if it was dropped."""
        with self._connected() as sql:
            table = sql.execute("SELECT database, name FROM tables WHERE table_id = ?", (bucket.table_id,)).fetchone()
            if table is None:
                return None
            if bucket.partition_id is None:
                return PhysicalTablePath(TablePath(*table))
            partition = sql.execute(
                "SELECT name FROM partitions WHERE partition_id = ?", (bucket.partition_id,)
            ).fetchone()
            return None if partition is None else PhysicalTablePath(TablePath(*table), partition[0])

    def ids(self) -> tuple[set[int], set[int | None]]:
        """The ids of all tables and partitions; None is one of the latter, for tables without."""
        if not self.exists:
            return set(), {None}
        with self._connected() as sql:
            tables = {table_id for (table_id,) in sql.execute("SELECT table_id FROM tables").fetchall()}
            partitions = {None, *(each for (each,) in sql.execute("SELECT partition_id FROM partitions").fetchall())}
        return tables, partitions

    def copied_end(self, bucket: TableBucket) -> int:
        """Where the remote log of a bucket ends: a new log begins there."""
        with self._connected() as sql:
            query = "SELECT end_offset FROM remote_logs WHERE table_id = ? AND partition_id = ? AND bucket = ?"
            row = sql.execute(query, bucket_columns(bucket)).fetchone()
        return 0 if row is None else row[0]

    def segment_ending_at(self, bucket: TableBucket, offset: int) -> RemoteLogSegment | None:
        """The segment of a remote log that ends at an offset."""
        with self._connected() as sql:
            row = sql.execute(
                "SELECT segment_id, start_offset, end_offset, max_timestamp_ms, size_bytes FROM remote_segments "
                "WHERE table_id = ? AND partition_id = ? AND bucket = ? AND end_offset = ?",
                (*bucket_columns(bucket), offset),
            ).fetchone()
        return None if row is None else RemoteLogSegment(*row)

    def copied_ends(self) -> dict[TableBucket, int]:
        """Up to which offset the store has logs, or the key-value state that they lead to."""
        if not self.exists:
            return {}
        with self._connected() as sql:
            logs = checked_rows(sql.execute(SELECT_REMOTE_LOGS).fetchall(), self._database.path)
            states = checked_rows(sql.execute(SELECT_STATE_SNAPSHOTS).fetchall(), self._database.path)
        ends = {bucket_of(*columns): end for *columns, end, _ in logs}
        for bucket, snapshot in state_snapshots_of(states).items():
            ends[bucket] = min(ends.get(bucket, 0), snapshot.log_offset)
        return ends

    def state_snapshots(self) -> dict[TableBucket, StateSnapshot]:
        """The snapshots of key-value state."""
        if not self.exists:
            return {}
        with self._connected() as sql:
            rows = checked_rows(sql.execute(SELECT_STATE_SNAPSHOTS).fetchall(), self._database.path)
        return state_snapshots_of(rows)


def metadata_changes(found: JournalObject) -> tuple[bytes | None, list[Statement]]:
    """What an object changes in the metadata: an image, if it has one, and the statements behind it."""
    image: bytes | None = None
    statements: list[Statement] = []
    for each in found.index.entries:
        if isinstance(each.entry, MetadataImage):
            image, statements = found.payload(each), []
        elif isinstance(each.entry, MetadataChanged):
            statements += decode_statements(found.payload(each))
    return image, statements


def removed_folders(statements: Sequence[Statement]) -> list[str]:
    """The folders, relative to the data directory, that the server has removed when it executed these statements."""
    return [str(values[0]) for text, values in statements if text == FOLDER_REMOVED]


def _execute(sql: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    """Execute all statements in one transaction."""
    sql.execute("BEGIN IMMEDIATE")
    for text, values in statements:
        sql.execute(text, values)
    sql.execute("COMMIT")
