"""What a server's store has of its logs, as the buckets see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from forebay.log.log_ends import EndMarks
from forebay.log.remote import RemoteReads
from forebay.log.tablet import LogTablet
from forebay.metadata.table import PhysicalTablePath, TableBucket


class LogLoan(NamedTuple):
    """A log that is not a server's own: something else appends to it, and closes it after `give_back`."""

    log: LogTablet
    give_back: Callable[[], None]
    refuse_write: Callable[[], None]
    """Raises the error of a write."""


class LogStore(Protocol):
    """The store of a server's logs: their journal, and their remote logs. Called in any thread."""

    def borrow(self, bucket: TableBucket) -> LogLoan | None:
        """Return the log of a bucket where something else appends to it; None if the server opens its own.

        Clients read it up to `visible_end`, and key-value state is brought up to there.
        """
        ...

    def has_records(self, bucket: TableBucket) -> bool:
        """Return whether a bucket has records that no file in its folder shows."""
        ...

    def marks(self, bucket: TableBucket, marks: EndMarks) -> EndMarks:
        """Return the marks of a log that the journal notes, too."""
        ...

    def stored_end(self, bucket: TableBucket) -> int:
        """Return up to which offset the store has a log: the log on this machine is not shorter."""
        ...

    def visible_end(self, bucket: TableBucket) -> int | None:
        """Return up to which offset clients read a log now, which `ReplicaManager.stored` moves; None: up to what is
        durable here."""
        ...

    def remote(self, bucket: TableBucket, table: PhysicalTablePath) -> RemoteReads | None:
        """The remote log of a bucket."""
        ...

    def remote_end(self, bucket: TableBucket) -> int:
        """Up to which offset a log was ever copied. Where a new machine has nothing of the log, it begins there."""
        ...

    def writers_at_end(self, bucket: TableBucket, table: PhysicalTablePath) -> bytes | None:
        """The writer snapshot of that place, if there is one."""
        ...

    def fetch_state(self, bucket: TableBucket, path: str) -> bool:
        """Make the folder `path` of a bucket's key-value state from its snapshot; return False if it has none."""
        ...


class NoLogStore:
    """For servers without a store."""

    def borrow(self, bucket: TableBucket) -> LogLoan | None:
        return None

    def has_records(self, bucket: TableBucket) -> bool:
        return False

    def marks(self, bucket: TableBucket, marks: EndMarks) -> EndMarks:
        return marks

    def stored_end(self, bucket: TableBucket) -> int:
        return 0

    def visible_end(self, bucket: TableBucket) -> int | None:
        return None

    def remote(self, bucket: TableBucket, table: PhysicalTablePath) -> RemoteReads | None:
        return None

    def remote_end(self, bucket: TableBucket) -> int:
        return 0

    def writers_at_end(self, bucket: TableBucket, table: PhysicalTablePath) -> bytes | None:
        return None

    def fetch_state(self, bucket: TableBucket, path: str) -> bool:
        return False
