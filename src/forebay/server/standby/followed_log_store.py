"""The logs of a standby that serves reads: `forebay.server.storage.log_store.LogStore` by what it repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NoReturn

from forebay.base.errors import ErrorCode, ForebayError, Unavailable, UnsupportedOperation
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.log.log_ends import EndMarks
from forebay.log.remote import RemoteReads
from forebay.metadata.table import PhysicalTablePath, TableBucket
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.metadata_store import (
    SELECT_STATE_SNAPSHOTS,
    MetadataStore,
    bucket_columns,
    state_snapshots_of,
)
from forebay.server.remote_log.remote_logs import RemoteLogs
from forebay.server.remote_state.state_snapshots import fetch_state
from forebay.server.storage.log_store import LogLoan
from forebay.store.objects import ObjectStore


def refuse_write() -> NoReturn:
    """Raise the error of everything that would change something."""
    raise UnsupportedOperation(
        "this server is a standby, which serves reads alone: write to the server that it follows (the addresses of "
        "`forebay server`, not those of `--read-port`)"
    )


class FollowedLogStore:
    """What a standby has of each log. Any thread, except for `show`."""

    def __init__(
        self, fs: FileSystem, standby_dir: str, store: ObjectStore, logs: FollowedLogs, remote_logs: RemoteLogs,
        metadata: MetadataStore,
    ) -> None:  # fmt: skip
        self._fs, self._standby_dir, self._store = fs, standby_dir, store
        self._logs, self._remote_logs, self._metadata = logs, remote_logs, metadata
        self._ends: dict[TableBucket, int] = {}

    def show(self, ends: Mapping[TableBucket, int], gone: Iterable[TableBucket] = ()) -> None:
        """Let clients read these logs up to these ends from now on, and forget those that are `gone`."""
        self._ends.update(ends)
        for bucket in gone:
            self._ends.pop(bucket, None)

    def borrow(self, bucket: TableBucket) -> LogLoan:
        log = self._logs.borrow(bucket)
        if log is None:
            raise Unavailable(
                f"bucket {bucket} was dropped on the server that this standby follows",
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            )
        return LogLoan(log, partial(self._logs.give_back, bucket), refuse_write)

    def has_records(self, bucket: TableBucket) -> bool:
        return self._ends.get(bucket, 0) > 0

    def marks(self, bucket: TableBucket, marks: EndMarks) -> EndMarks:
        return marks

    def stored_end(self, bucket: TableBucket) -> int:
        return 0

    def visible_end(self, bucket: TableBucket) -> int:
        return self._ends.get(bucket, 0)

    def remote(self, bucket: TableBucket, table: PhysicalTablePath) -> RemoteReads:
        return self._remote_logs.log(bucket, table)

    def remote_end(self, bucket: TableBucket) -> int:
        return self._remote_logs.end(bucket)

    def writers_at_end(self, bucket: TableBucket, table: PhysicalTablePath) -> bytes | None:
        return None

    def fetch_state(self, bucket: TableBucket, path: str) -> bool:
        query = f"{SELECT_STATE_SNAPSHOTS} WHERE table_id = ? AND partition_id = ? AND bucket = ?"
        snapshot = state_snapshots_of(self._metadata.rows(query, *bucket_columns(bucket))).get(bucket)
        table = self._logs.path(bucket)
        if snapshot is None or table is None:
            return False
        warm = names.join(self._standby_dir, names.tablet_folder("kv", table, bucket))
        try:
            fetch_state(self._store, self._fs, path, snapshot, near=warm)
        except ForebayError:  # the standby's own copy was replaced meanwhile
            fetch_state(self._store, self._fs, path, snapshot)
        return True
