"""A transaction of a server: its states, its limits, and what its manager holds of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from forebay.base import threads
from forebay.base.threads import WriteGate
from forebay.log.commit_times import HeldTime
from forebay.metadata.table import TableBucket
from forebay.server.metadata_store import StoredTransaction
from forebay.server.transactions.stages import Stage, StagedBatch, StageFiles


class TransactionState(IntEnum):
    """The state of a transaction; the numbers are those of the protocol and of the metadata store."""

    OPEN = 0
    DECIDED = 1
    COMMITTED = 2


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """The `transaction.*` settings."""

    open_max: int = 1000
    staged_bytes_max: int = 16 << 30
    idle_seconds_max: float = 3600.0
    ledger_ms: int = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transaction as shown to users. `changed_ms`: when it came into its state."""

    transaction_id: int
    application: str
    version: int
    state: TransactionState
    changed_ms: int
    stages: int
    staged_bytes: int


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A staged batch of an attempt that was committed."""

    files: StageFiles
    staged: StagedBatch

    @property
    def size_bytes(self) -> int:
        return self.staged.size_bytes

    @property
    def target_columns(self) -> tuple[int, ...]:
        return self.staged.target_columns

    def read(self) -> bytearray:
        return self.files.batch(self.staged)


@dataclass(frozen=True, slots=True)
class CommitAuthor:
    """Who commits a transaction, and what that calls it, for the histories of its tables."""

    user: str = ""
    operation: str = ""


NO_AUTHOR = CommitAuthor()


class ServerTransaction:
    """A transaction in memory, beside what the store has of it (`stored`)."""

    def __init__(self, stored: StoredTransaction, used_at: float) -> None:
        self.stored = stored
        self.used_at = used_at
        self.gate = WriteGate()
        """Passed to stage rows; closed to decide or end the transaction."""
        self.finishing = threads.lock()
        """Held to write what is decided."""
        self.lock = threads.lock()
        self.stages: dict[str, Stage] | None = None
        """None until they are looked for, after a restart."""
        self.stages_found = 0
        """How many there were at the start."""
        self.stage_locks: dict[str, threads.Lock] = {}
        self.staged_bytes = 0
        self.work: dict[TableBucket, list[CommittedBatch]] = {}
        self.author = NO_AUTHOR
        self.held = HeldTime(stored.changed_ms)
        """The time of the decision, at which logs that were open then stand still until the rows are in them."""

    @property
    def state(self) -> TransactionState:
        return TransactionState(self.stored.state)

    def __str__(self) -> str:
        stored = self.stored
        if not stored.application:
            return f"transaction {stored.transaction_id}"
        return f"version {stored.version} of application {stored.application!r}"
