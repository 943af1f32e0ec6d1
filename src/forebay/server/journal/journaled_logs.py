"""The logs of a server with a store: `forebay.server.storage.log_store.LogStore` by journal and remote logs."""

from __future__ import annotations

from forebay.log.log_ends import EndMarks
from forebay.log.remote import RemoteReads
from forebay.metadata.table import PhysicalTablePath, TableBucket
from forebay.server.journal.server_journal import ServerJournal
from forebay.server.remote_log.remote_logs import RemoteLogs
from forebay.server.remote_state.state_snapshots import StateSnapshots
from forebay.server.storage.log_store import LogLoan


class JournaledLogs:
    """What journal and remote logs have of each log. Any thread."""

    def __init__(self, journal: ServerJournal, remote_logs: RemoteLogs, states: StateSnapshots) -> None:
        self._journal, self._remote_logs, self._states = journal, remote_logs, states

    def borrow(self, bucket: TableBucket) -> LogLoan | None:
        return None

    def has_records(self, bucket: TableBucket) -> bool:
        return self.remote_end(bucket) > 0

    def marks(self, bucket: TableBucket, marks: EndMarks) -> EndMarks:
        return self._journal.feed.marks(bucket, marks)

    def stored_end(self, bucket: TableBucket) -> int:
        return max(self._journal.stored_end(bucket), self._remote_logs.end(bucket))

    def visible_end(self, bucket: TableBucket) -> int | None:
        return self._journal.stored_end(bucket) if self._journal.is_awaited else None

    def remote(self, bucket: TableBucket, table: PhysicalTablePath) -> RemoteReads:
        return self._remote_logs.log(bucket, table)

    def remote_end(self, bucket: TableBucket) -> int:
        return self._remote_logs.end(bucket)

    def writers_at_end(self, bucket: TableBucket, table: PhysicalTablePath) -> bytes | None:
        return self._remote_logs.writers_at_end(bucket, table)

    def fetch_state(self, bucket: TableBucket, path: str) -> bool:
        return self._states.fetch(bucket, path)
