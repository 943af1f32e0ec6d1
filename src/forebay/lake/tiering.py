"""Writing rounds of a log into a lake table.

A round: workers each write one bucket's records with a `LakeWriter` and hand their results, small and picklable, to
the driver; there a `LakeCommitter` makes one lake snapshot of all of them, with the log offsets that it holds in the
snapshot's properties. A round that ends before its commit leaves nothing but files that `abort` removes or the
format's own clean-up finds.

Two rounds never both commit (Fluss issue 2648): a committer is made for a *base*, the newest tiering snapshot that
its round started from, and a commit is refused where the lake has another one by then. The tiering epoch is stored in
the snapshot too, and a committer refuses to follow a snapshot of a newer epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.base.errors import Conflict, ErrorCode
from forebay.lake.records import ChangeRows
from forebay.metadata.table import TableInfo

TIERING_USER = "__fluss_lake_tiering"
"""The name of the committer of tiering rounds, in formats that record the writer of a snapshot."""

OFFSETS_PROPERTY = "fluss-offsets"
"""The snapshot property that says where the snapshot's log offsets are: the path of a file of `BucketOffsets`."""

EPOCH_PROPERTY = "forebay.tiering-epoch"
"""The snapshot property with the epoch of the worker that tiered it."""

TABLE_PROPERTY = "forebay.table-id"
"""The snapshot property with the id of the stream table: another table has the name if the table was recreated."""

CREATED_PROPERTY = "forebay.table-created-ms"
"""The snapshot property that says when that table was created: tables of two clusters may have the same id."""

KEEP_ALL_PREVIOUS = -1
"""`LakeCommitResult.earliest_snapshot_to_keep`: the cluster forgets no earlier lake snapshot."""


@dataclass(frozen=True, slots=True)
class WriterContext:
    """The task of a writer: one bucket of one table in one round.

    `partition` is the partition's values by key, None in tables without partitions. `attempt` differs between
    attempts at the same bucket, so that their files do.
    """

    info: TableInfo
    bucket: int
    partition: Mapping[str, str] | None = None
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class CommitterContext:
    """What a committer is for. `base` is the newest tiering snapshot that the round started from; None without one.

    `takes_over`: the base is of another stream table, of another cluster, whose lake table this was until now.
    """

    info: TableInfo
    epoch: int
    base: int | None
    takes_over: bool = False

    @property
    def properties(self) -> dict[str, str]:
        """What each snapshot of the round says of its table and epoch."""
        own = {EPOCH_PROPERTY: str(self.epoch), TABLE_PROPERTY: str(self.info.table_id)}
        return own if self.info.created_ms < 0 else {**own, CREATED_PROPERTY: str(self.info.created_ms)}


@dataclass(frozen=True, slots=True)
class TieringStats:
    """What a table's newest lake snapshot holds; None where the format does not know."""

    file_bytes: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class LakeCommitResult:
    """A committed lake snapshot.

    `readable_snapshot_id` is the newest snapshot from which a union read may start; it is the committed one unless
    the format needs a compaction first. `earliest_snapshot_to_keep`: snapshots from it on stay known to the
    cluster; None forgets all but the committed one.
    """

    snapshot_id: int
    readable_snapshot_id: int | None
    earliest_snapshot_to_keep: int | None = None
    stats: TieringStats = TieringStats()

    @property
    def is_readable(self) -> bool:
        return self.readable_snapshot_id == self.snapshot_id


@dataclass(frozen=True, slots=True)
class CommittedLakeSnapshot:
    """A snapshot that tiering has committed, with its properties (`OFFSETS_PROPERTY`, `EPOCH_PROPERTY`)."""

    snapshot_id: int
    properties: Mapping[str, str] = field(default_factory=dict)


def belongs_to(properties: Mapping[str, str], info: TableInfo) -> bool:
    """Whether a snapshot with these properties may be one of this table: nothing in them says otherwise."""
    table = properties.get(TABLE_PROPERTY, str(info.table_id))
    created = properties.get(CREATED_PROPERTY, str(info.created_ms))
    return table == str(info.table_id) and (info.created_ms < 0 or created == str(info.created_ms))


def whose_snapshot(properties: Mapping[str, str]) -> str:
    """The table that a snapshot's properties name, in words."""
    created = properties.get(CREATED_PROPERTY)
    return f"table {properties.get(TABLE_PROPERTY)}" + ("" if created is None else f" (created {created})")


def check_base(context: CommitterContext, base: int | None, newest: CommittedLakeSnapshot | None) -> None:
    """Raise `Conflict` (FENCED_TIERING_EPOCH_EXCEPTION) unless a round on `base` may follow on `newest`.

    `newest` is the lake's newest tiering snapshot. Formats call this at a point where no other commit can intervene.
    """
    problem = None
    if (newest and newest.snapshot_id) != base:
        problem = f"it started from lake snapshot {base}, and the newest one is {newest and newest.snapshot_id}"
    elif newest is not None and not context.takes_over:
        epoch = int(newest.properties.get(EPOCH_PROPERTY, context.epoch))
        if epoch > context.epoch:
            problem = f"its epoch is {context.epoch}, and lake snapshot {base} is of epoch {epoch}"
        elif not belongs_to(newest.properties, context.info):
            whose = whose_snapshot(newest.properties)
            problem = f"it is for table {context.info.table_id}, and lake snapshot {base} is of {whose}"
    if problem is not None:
        raise Conflict(
            f"the tiering round of {context.info.path} is fenced off: {problem}; nothing was committed",
            ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
        )


class LakeWriter(ABC):
    """Writes the records of one bucket in one round. Not thread-safe."""

    @abstractmethod
    def write(self, records: ChangeRows) -> None:
        """Take records, in the order of the log. Memory is bounded by the format's options.

        Tables without a primary key take APPEND_ONLY records; those with one take INSERT and UPDATE_AFTER as upserts,
        DELETE as deletes, and ignore UPDATE_BEFORE.
        """

    @abstractmethod
    def complete(self) -> Any:
        """Finish the files; a picklable result for the committer. Nothing is visible yet."""

    @abstractmethod
    def abort(self) -> None:
        """Remove what was written. Does nothing after `complete`."""


class LakeCommitter(ABC):
    """Makes lake snapshots of what writers wrote, on the driver."""

    @abstractmethod
    def commit(self, results: Sequence[Any], properties: Mapping[str, str]) -> LakeCommitResult:
        """One snapshot of all results, with `properties` and the epoch; also without results, so offsets advance.

        Raises `Conflict` (FENCED_TIERING_EPOCH_EXCEPTION) where the newest tiering snapshot is not the base of this
        committer, or is of a newer epoch: nothing is visible then, and the files are still there for `abort`. After
        any other error, `OutcomeUnknown` above all, ask `get_missing_lake_snapshot` whether it is there. A second
        commit of one committer has the first one's snapshot as its base.
        """

    @abstractmethod
    def abort(self, results: Sequence[Any]) -> None:
        """Remove the files of results that were not committed."""

    @abstractmethod
    def get_missing_lake_snapshot(self, latest_known: int | None) -> CommittedLakeSnapshot | None:
        """The newest tiering snapshot in the lake if the cluster, which knows `latest_known`, does not know it."""

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Return whether a snapshot can still be read. Another process may have expired it."""
        return True

    def maintain(self) -> None:
        """What the table's options ask for after a commit, such as expiry and compaction. May take long."""
        return

    def close(self) -> None:
        """Release resources."""
        return


class LakeTieringFactory(ABC):
    """Creates writers (on workers) and committers (on the driver). Picklable."""

    @abstractmethod
    def validate(self, info: TableInfo) -> None:
        """Check that the lake table fits the stream's. Raises `InvalidRequest` or `NotFound` saying what differs."""

    @abstractmethod
    def create_writer(self, context: WriterContext) -> LakeWriter: ...

    @abstractmethod
    def create_committer(self, context: CommitterContext) -> LakeCommitter: ...
