"""Writing rounds of a log into a lake table.

In a round, workers each write one bucket's records with a `LakeWriter` and send their results, small and picklable, to
the driver. There, a `LakeCommitter` creates one lake snapshot from all of them, with the tiered log offsets in the
snapshot's properties. A round that ends before its commit leaves only files that `abort` deletes or the format's own
clean-up finds.

Two rounds never both commit (Fluss issue 2648): a committer is created for a *base*, the newest tiering snapshot when
its round started, and a commit is rejected if the lake has another one by then. The snapshot also stores the tiering
epoch, and a committer refuses to build on a snapshot of a newer epoch.

Others may roll a lake table back. A snapshot behind that is *undone*: it is not in the table's history any more,
though some formats still find it by its id, and others give its id to another snapshot. So a snapshot is known by its
id and by the name of its offsets (`offsets_name`), which is unique. Only snapshots of the history count: the newest
tiering snapshot of a table that was rolled back is the one before those that were undone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.base.errors import Conflict, ErrorCode, UnsupportedOperation
from forebay.lake.offsets import BucketOffsets
from forebay.lake.records import ChangeRows
from forebay.metadata.table import TableBucket, TableInfo

TIERING_USER = "__fluss_lake_tiering"
"""The name of the committer of tiering rounds, in formats that record the writer of a snapshot."""

OFFSETS_PROPERTY = "fluss-offsets"
"""The snapshot property with the location of the log offsets: the path of a file of `BucketOffsets`."""

EPOCH_PROPERTY = "forebay.tiering-epoch"
"""The snapshot property with the epoch of the worker that tiered it."""

TABLE_PROPERTY = "forebay.table-id"
"""The snapshot property with the stream table's id: a recreated table has the same name, but another id."""

CREATED_PROPERTY = "forebay.table-created-ms"
"""The snapshot property with that table's creation time: tables of two clusters may have the same id."""

LOG_EPOCH_PROPERTY = "forebay.log-epoch"
"""The snapshot property with the epoch of the logs that were tiered (docs/format/log_epochs.md)."""

KEEP_ALL_PREVIOUS = -1
"""`LakeCommitResult.earliest_snapshot_to_keep`: the cluster keeps all earlier lake snapshots."""


@dataclass(frozen=True, slots=True)
class WriterContext:
    """The task of a writer: one bucket of one table in one round.

    `partition` is the partition's values by key, None in tables without partitions. `attempt` differs between attempts
    at the same bucket, so that their file names differ.
    """

    info: TableInfo
    bucket: int
    partition: Mapping[str, str] | None = None
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class CommitterContext:
    """The task of a committer. `base` is the newest tiering snapshot when the round started; None without one.

    `takes_over`: the base belongs to a stream table of another cluster, whose lake table this was until now.
    `base_offsets` is the name of the base's offsets (`offsets_name`), None if it is unknown.
    """

    info: TableInfo
    epoch: int
    base: int | None
    takes_over: bool = False
    base_offsets: str | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The properties of each snapshot of the round that identify its table and epoch."""
        own = {EPOCH_PROPERTY: str(self.epoch), TABLE_PROPERTY: str(self.info.table_id)}
        return own if self.info.created_ms < 0 else {**own, CREATED_PROPERTY: str(self.info.created_ms)}


@dataclass(frozen=True, slots=True)
class TieringStats:
    """The contents of a table's newest lake snapshot; None if the format does not know."""

    file_bytes: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class LakeCommitResult:
    """A committed lake snapshot.

    `readable_snapshot_id` is the newest snapshot from which a union read may start; it is the committed one unless the
    format needs a compaction first. `earliest_snapshot_to_keep`: the cluster keeps snapshots from it on; None keeps
    only the committed one.
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
    """A snapshot committed by tiering, with its properties (`OFFSETS_PROPERTY`, `EPOCH_PROPERTY`)."""

    snapshot_id: int
    properties: Mapping[str, str] = field(default_factory=dict)


def offsets_name(properties: Mapping[str, str]) -> str | None:
    """The name of the file of a snapshot's offsets, by its properties: no other snapshot ever has it.

    None for snapshots without offsets, or with the offsets themselves (Fluss 0.8).
    """
    held = properties.get(OFFSETS_PROPERTY)
    return None if held is None or _is_inline(held) else held.rpartition("/")[2]


def inline_offsets(properties: Mapping[str, str]) -> BucketOffsets | None:
    """The offsets that a snapshot's properties hold themselves, as in Fluss 0.8; None for all others."""
    held = properties.get(OFFSETS_PROPERTY)
    return None if held is None or not _is_inline(held) else BucketOffsets.from_json(held)


def _is_inline(held: str) -> bool:
    return held.lstrip().startswith("{")


def has_offsets(properties: Mapping[str, str], name: str | None, offsets: Mapping[TableBucket, int]) -> bool:
    """Whether a snapshot with these properties is the one that a cluster knows by the name of its offsets (None if the
    cluster has no names), and not another one with a reused id."""
    if OFFSETS_PROPERTY not in properties:
        return False
    inline = inline_offsets(properties)
    if inline is not None:
        return all(offsets.get(bucket) == offset for bucket, offset in inline.offsets.items())
    return name is None or offsets_name(properties) == name


def belongs_to(properties: Mapping[str, str], info: TableInfo) -> bool:
    """Whether a snapshot with these properties can belong to this table: none of them contradicts it."""
    table = properties.get(TABLE_PROPERTY, str(info.table_id))
    created = properties.get(CREATED_PROPERTY, str(info.created_ms))
    return table == str(info.table_id) and (info.created_ms < 0 or created == str(info.created_ms))


def whose_snapshot(properties: Mapping[str, str]) -> str:
    """The table that a snapshot's properties name, in words."""
    created = properties.get(CREATED_PROPERTY)
    return f"table {properties.get(TABLE_PROPERTY)}" + ("" if created is None else f" (created {created})")


def check_base(context: CommitterContext, base: int | None, newest: CommittedLakeSnapshot | None) -> None:
    """Raise `Conflict` (FENCED_TIERING_EPOCH_EXCEPTION) unless a round on `base` can be committed after `newest`.

    `newest` is the lake's newest tiering snapshot. Formats call this at a point where no other commit can intervene.
    """
    problem = None
    if (newest and newest.snapshot_id) != base:
        problem = f"it started from lake snapshot {base}, and the newest one is {newest and newest.snapshot_id}"
    elif newest is not None and base == context.base and _is_another(newest, context.base_offsets):
        problem = f"lake snapshot {base}, from which it started, was rolled back, and another one has this number now"
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


def _is_another(newest: CommittedLakeSnapshot, expected: str | None) -> bool:
    name = offsets_name(newest.properties)
    return expected is not None and name is not None and name != expected


class LakeWriter(ABC):
    """Writes the records of one bucket in one round. Not thread-safe."""

    @abstractmethod
    def write(self, records: ChangeRows) -> None:
        """Write records, in log order. Memory is bounded by the format's options.

        Tables without a primary key accept APPEND_ONLY records; those with one treat INSERT and UPDATE_AFTER as
        upserts, DELETE as deletes, and ignore UPDATE_BEFORE.
        """

    @abstractmethod
    def complete(self) -> Any:
        """Finish the files; return a picklable result for the committer. Nothing is visible yet."""

    @abstractmethod
    def abort(self) -> None:
        """Delete the written files. Does nothing after `complete`."""


class LakeCommitter(ABC):
    """Creates lake snapshots from the writers' results, on the driver."""

    @abstractmethod
    def commit(self, results: Sequence[Any], properties: Mapping[str, str]) -> LakeCommitResult:
        """Commit one snapshot of all results (even of none, to advance offsets), with `properties` and the epoch.

        Raises `Conflict` (FENCED_TIERING_EPOCH_EXCEPTION) if the newest tiering snapshot is not the base of this
        committer, or has a newer epoch: nothing is visible then, and the files remain for `abort`. After any other
        error, most of all `OutcomeUnknown`, call `get_missing_lake_snapshot` to find out whether it exists. A second
        commit of the same committer builds on the snapshot of the first.
        """

    @abstractmethod
    def abort(self, results: Sequence[Any]) -> None:
        """Delete the files of uncommitted results."""

    @abstractmethod
    def get_missing_lake_snapshot(self, latest_known: int | None) -> CommittedLakeSnapshot | None:
        """The newest tiering snapshot in the lake if the cluster, which knows `latest_known`, does not know it.

        Only the table's history counts, without other branches and without snapshots that a rollback undid.
        """

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether a snapshot can still be read. Another process may have expired it."""
        return True

    def was_undone(self, snapshot_id: int, offsets_name: str | None) -> bool:
        """Whether a tiering snapshot, with this name of its offsets (None if unknown), is not in the table's history
        any more, because the table was rolled back or replaced. One that expired is not undone.

        A format that cannot be rolled back does not override this.
        """
        return False

    def has_rows(self) -> bool:
        """Whether the table has rows now. If that is not known: yes."""
        return True

    def held_offsets(self) -> Mapping[tuple[tuple[str, ...], int], int] | None:
        """How much of each log the table has now, by its rows: for partition values and a bucket of the stream, an
        offset before which it has all records. It may have more. None if rows do not have log offsets.

        Can be slow. It is needed where a table was rolled back so far that its offsets are not known any more.
        """
        return None

    def can_restore(self, snapshot_id: int) -> bool:
        """Whether `restore` can make a snapshot that was undone the newest one again."""
        return False

    def restore(self, snapshot_id: int, newest: int | None) -> None:
        """Make a snapshot that was undone the newest one again, in place of what came after the rollback.

        `newest` is the newest tiering snapshot of the history at the time of that decision, None without one. Raises
        `Conflict` if there is another one now, `UnsupportedOperation` if the format cannot.
        """
        raise UnsupportedOperation(f"lake snapshot {snapshot_id} is gone: this format does not keep what is undone")

    def maintain(self) -> None:
        """Run the maintenance that the table's options require after a commit, such as compaction. Can be slow."""
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
