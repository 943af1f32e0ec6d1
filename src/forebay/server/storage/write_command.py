"""Commands that write into one bucket. `BucketReplica.submit` takes them all.

Nouns: a `WriteCommand` is what one caller writes into a bucket at a time. It has three forms. `AppendCommand` holds log
batches for a log table, `PutCommand` holds batches of keys and values for a primary-key table, and `DecidedCommand`
holds what a decided transaction has for the bucket. A command may hold the writes of many clients, as the groups of
short requests do. Its writes are written together, and each has its own result.

`WriteMode` says in which thread a command is written. `DecidedCommand` is always written in the thread of its caller,
which holds the gates of the transaction's tables.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from forebay.base.errors import ForebayError
from forebay.kv.tablet import ACKS_ALL, PutRequest


class Append(Protocol):
    """Log batches to append. `records` holds one or more of them, as a client sent them."""

    @property
    def records(self) -> bytes | memoryview: ...

    @property
    def acks(self) -> int: ...


class AppendRequest(NamedTuple):
    """An `Append` that does not arrive as a short request."""

    records: bytes | memoryview
    acks: int = ACKS_ALL


class AppendResult(NamedTuple):
    """The offsets of the first record and after the last one, or the error.

    For a repeated batch they are those of the original one.
    """

    base_offset: int = -1
    end_offset: int = -1
    error: ForebayError | None = None


class DecidedBatch(Protocol):
    """A batch of a decided transaction."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def target_columns(self) -> tuple[int, ...]: ...

    def read(self) -> bytearray:
        """Return the batch as it was staged. Raises `CorruptData`, `StorageFailure`."""
        ...


class WriteMode(enum.Enum):
    """The thread that writes a command, and what it may wait for."""

    QUEUED = enum.auto()
    """A writer thread, when it is the turn of the bucket's write queue."""

    AT_ONCE = enum.auto()
    """The caller's thread, which is the event loop's, if it need not wait; a writer thread otherwise."""

    AT_ONCE_FOR_LONE_CLIENT = enum.auto()
    """As `AT_ONCE`, also on somewhat slower disks: no other client waits for the event loop."""


class AppendCommand(NamedTuple):
    """Writes to a log table, of `size` bytes together."""

    requests: Sequence[Append]
    size: int

    @classmethod
    def of(cls, request: Append) -> AppendCommand:
        """Return the command with one write."""
        return cls((request,), len(request.records))


class PutCommand(NamedTuple):
    """Writes to a primary-key table, of `size` bytes together."""

    requests: Sequence[PutRequest]
    size: int

    @classmethod
    def of(cls, request: PutRequest) -> PutCommand:
        """Return the command with one write."""
        return cls((request,), len(request.records))


class DecidedCommand(NamedTuple):
    """The batches that a transaction, decided at `decided_ms`, has for a bucket, in order.

    Its writer id has written nothing else.
    """

    writer_id: int
    decided_ms: int
    batches: Iterable[DecidedBatch]


WriteCommand = AppendCommand | PutCommand | DecidedCommand
