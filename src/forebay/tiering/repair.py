"""Lake tables that others have rolled back: what is lost, and what can be done about it.

    state = lake_state(connection, "sales.orders")
    print(state)                                       # what the cluster and the lake know, and which records are lost
    repair(connection, "sales.orders", rebuild=True)

A round does what needs no decision (`forebay.tiering.base`). It is refused where rows that were undone are gone from
the log, too. Then there are three ways out:

    restore      the snapshot that was undone is made the newest one again, if the lake still has it (Iceberg)
    rebuild      a table with a primary key: the servers have all of its current rows. The lake table gets these in
                 place of what it has, in one snapshot
    accept loss  tiering continues with the records that are left
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, NotFound
from forebay.client.admin.lake import TieringTable
from forebay.client.admin.lake_history import has_offsets_of, registered_snapshot
from forebay.client.connection import Connection
from forebay.client.results import LakeSnapshot
from forebay.codec.log.log_batch import ChangeType
from forebay.lake.records import ChangeRows
from forebay.lake.source import LakeSource, LakeSplit
from forebay.lake.tiering import (
    CommittedLakeSnapshot,
    CommitterContext,
    LakeCommitter,
    LakeTieringFactory,
    LakeWriter,
    WriterContext,
    offsets_name,
)
from forebay.metadata.table import TableInfo, TablePath
from forebay.tiering.base import BucketPartitions, LostRecords, RoundBase, added_again, held_by_rows, lost_records
from forebay.tiering.control import RoundControl
from forebay.tiering.lag import newest_lake_snapshot
from forebay.tiering.now import as_if_handed_out, tier_table
from forebay.tiering.report import RoundReport
from forebay.tiering.round import (
    TieringLake,
    TieringRound,
    buckets_with_partitions,
    commit_round,
    plan_round,
    write_round,
)
from forebay.tiering.runner import OnResult, ThreadRunner
from forebay.tiering.splits import SplitResult, SplitTask, TieringSplit

AGREED, UNREPORTED, EXPIRED, ROLLED_BACK, UNTIERED = "agreed", "not reported", "expired", "rolled back", "not tiered"
"""How the cluster and the lake compare: they agree; the lake has a newer snapshot, or none any more; others have rolled
the lake back; neither has a snapshot."""


@dataclass(frozen=True)
class LakeState:
    """The state of a lake table: the newest tiering snapshots in the cluster (`registered`) and in the lake (`newest`).

    `lost` are records that were in the lake, and are neither there nor in the stream any more. `is_known`: how much of
    the logs the lake has now is known. `can_restore`: the lake still has what was undone. `added_again`: others have
    added some of that again.
    """

    path: TablePath
    has_primary_key: bool
    state: str
    registered: int | None = None
    newest: int | None = None
    lost: tuple[LostRecords, ...] = ()
    is_known: bool = True
    can_restore: bool = False
    added_again: bool = False

    @property
    def needs_decision(self) -> bool:
        """Whether rounds are refused until `repair`."""
        return self.state == ROLLED_BACK and (bool(self.lost) or not self.is_known or self.added_again)

    @property
    def remedies(self) -> tuple[str, ...]:
        """The possible actions, in words."""
        if self.state == ROLLED_BACK and not self.needs_decision:
            return ("nothing has to be done: the next round brings the rows into the lake again, from the log",)
        if not self.needs_decision:
            return ()
        lines = []
        if self.can_restore:
            lines.append(
                f"--restore makes snapshot {self.registered} the newest of the lake table again: nothing is lost"
            )
        if self.has_primary_key:
            lines.append("--rebuild replaces the rows of the lake table by the current ones of the servers")
        elif self.added_again:
            lines.append(f"roll the lake table back to snapshot {self.newest}, without the rows that were added again")
        elif self.is_known:
            lines.append("--accept-loss goes on with the records that the log still has")
        else:
            lines.append("without log offsets nothing can go on: drop the lake table, and recreate the stream table")
        if self.has_primary_key and any(lost.is_dropped for lost in self.lost):
            lines.append("--accept-loss has to be given, too: rows of partitions that the stream has dropped are gone")
        return tuple(lines)

    def __str__(self) -> str:
        lines = [
            f"{self.path}: {self.state}; the cluster knows lake snapshot {self.registered}, the lake has {self.newest}"
        ]
        lines += [f"  lost: records {lost}" for lost in self.lost]
        if not self.is_known:
            lines.append("  how much of the logs the lake table has is not known")
        if self.added_again:
            lines.append("  rows that were undone have been added to the lake table again, as by a cherry-pick")
        return "\n".join([*lines, *(f"  {remedy}" for remedy in self.remedies)])


def lake_state(connection: Connection, path: str | TablePath, lake: TieringLake | None = None) -> LakeState:
    """Return whether the cluster and the lake agree about a table. Raises `InvalidRequest` if it is not tiered."""
    return _compare_with_lake(connection, path, lake or TieringLake())[0]


def _compare_with_lake(
    connection: Connection, path: str | TablePath, lake: TieringLake
) -> tuple[LakeState, _Comparison]:
    info = connection.cluster.table_info(TablePath.parse(path))
    factory = lake.factory(info, connection.settings)
    recorded = newest_lake_snapshot(connection.admin, info)
    context = CommitterContext(info, 0, None if recorded is None else recorded.snapshot_id)
    with closing(factory.create_committer(context)) as committer:
        newest = committer.get_missing_lake_snapshot(None)
        comparison = _Comparison(info, factory, recorded, newest, buckets_with_partitions(connection, info))
        plain = LakeState(
            info.path,
            info.has_primary_key,
            UNTIERED,
            None if recorded is None else recorded.snapshot_id,
            None if newest is None else newest.snapshot_id,
        )
        if recorded is None:
            return (plain if newest is None else replace(plain, state=UNREPORTED)), comparison
        if newest is not None and newest.snapshot_id == recorded.snapshot_id and has_offsets_of(recorded, newest):
            return replace(plain, state=AGREED), comparison
        if not committer.was_undone(recorded.snapshot_id, recorded.offsets_name):
            return replace(plain, state=EXPIRED if newest is None else UNREPORTED), comparison
        held = _held(connection, committer, comparison)
        lost = () if held is None else tuple(lost_records(connection, info, recorded, held, comparison.partitions))
        can_restore = committer.can_restore(recorded.snapshot_id)
        again = held is not None and bool(added_again(committer, info, held, comparison.partitions))
        state = replace(
            plain, state=ROLLED_BACK, lost=lost, is_known=held is not None, can_restore=can_restore, added_again=again
        )
        return state, replace(comparison, held=held)


@dataclass(frozen=True)
class _Comparison:
    """The state of one table in the cluster and in the lake. `held`: the log offsets that the lake has; None if they
    were not read, or are not known."""

    info: TableInfo
    factory: LakeTieringFactory
    registered: LakeSnapshot | None
    newest: CommittedLakeSnapshot | None
    partitions: BucketPartitions
    held: Any = None


def _held(connection: Connection, committer: LakeCommitter, comparison: _Comparison) -> Any:
    if comparison.newest is not None and comparison.registered is not None:
        earlier = registered_snapshot(connection.admin, comparison.info.path, comparison.registered, comparison.newest)
        if earlier is not None:
            return earlier.log_offsets
    elif not committer.has_rows():
        return {}
    return held_by_rows(committer, comparison.partitions)


# ---- repair ---------------------------------------------------------------------------------------------------------


def repair(
    connection: Connection,
    path: str | TablePath,
    *,
    restore: bool = False,
    rebuild: bool = False,
    accept_loss: bool = False,
    lake: TieringLake | None = None,
) -> RoundReport:
    """Bring a lake table that was rolled back up to date, in the chosen ways; return the report of the round.

    Where no decision is needed, this is a round. Raises `InvalidRequest` if what was chosen cannot be done, or is not
    enough; nothing has changed then.
    """
    lake = lake or TieringLake()
    state, comparison = _compare_with_lake(connection, path, lake)
    if rebuild and not state.has_primary_key:
        raise InvalidRequest(f"--rebuild needs a primary key, and {state.path} has none. {_choices(state)}")
    if restore and not (state.state == ROLLED_BACK and state.can_restore):
        raise InvalidRequest(f"there is no snapshot of {state.path} to restore. {_choices(state)}")
    if restore and comparison.registered is not None:
        with closing(
            comparison.factory.create_committer(CommitterContext(comparison.info, 0, comparison.registered.snapshot_id))
        ) as committer:
            committer.restore(
                comparison.registered.snapshot_id, None if comparison.newest is None else comparison.newest.snapshot_id
            )
    elif rebuild and (state.state == ROLLED_BACK):
        if any(lost.is_dropped for lost in state.lost) and not accept_loss:
            raise InvalidRequest(f"--rebuild alone is not enough for {state.path}. {_choices(state)}")
        return _rebuilt(connection, comparison, lake)
    elif state.needs_decision:
        if not accept_loss or state.has_primary_key or not state.is_known or state.added_again:
            raise InvalidRequest(f"{state.path} needs a decision. {_choices(state)}")
        return _without_lost_rows(connection, comparison, lake)
    return tier_table(connection, state.path, None, lake)


def _choices(state: LakeState) -> str:
    return "\n".join(["What can be done:", *state.remedies]) if state.remedies else f"It is {state.state}"


def _without_lost_rows(connection: Connection, comparison: _Comparison, lake: TieringLake) -> RoundReport:
    control = RoundControl()
    table = as_if_handed_out(connection, comparison.info, lake)
    planned = plan_round(connection, table, lake, accept_loss=True)
    results = write_round(connection, planned, ThreadRunner(), control)
    return commit_round(connection, planned, results, control)


def _rebuilt(connection: Connection, comparison: _Comparison, lake: TieringLake) -> RoundReport:
    """Replace the rows of the lake table by the current ones of the servers, in one snapshot."""
    info, recorded, newest = comparison.info, comparison.registered, comparison.newest
    table: TieringTable = as_if_handed_out(connection, info, lake)
    dropped = {
        bucket: offset for bucket, offset in (comparison.held or {}).items() if bucket not in comparison.partitions
    }
    base = RoundBase(
        None if newest is None else newest.snapshot_id,
        dropped,
        None if newest is None else offsets_name(newest.properties),
        must_commit=True,
        rolled_back=True,
        replaces=None if recorded is None else recorded.offsets_name,
    )
    splits = tuple(TieringSplit(bucket, partition) for bucket, partition in comparison.partitions.items())
    planned = TieringRound(table, info, comparison.factory, base, splits, {})
    control = RoundControl()
    storage = lake.storage(info, connection.settings)
    runner = _ReplacingRunner(_OldRows.of(storage.create_source(info.path), info))
    results = write_round(connection, planned, runner, control)
    return commit_round(connection, planned, results, control)


@dataclass(frozen=True)
class _OldRows:
    """The rows that a lake table has now, by partition values and bucket."""

    source: LakeSource
    splits: Sequence[LakeSplit]

    @classmethod
    def of(cls, source: LakeSource, info: TableInfo) -> _OldRows:
        names = source.schema.names
        columns = source.with_project([[names.index(name)] for name in info.schema.names if name in names])
        head = next(source.snapshots_until((1 << 63) - 1), None)
        if head is None:
            tiered = source.newest_tiered()
            head = None if tiered is None else tiered.snapshot_id
        return cls(columns, () if head is None else columns.create_planner(head).plan())

    def deletes(self, context: WriterContext) -> Iterator[ChangeRows]:
        """The rows of a bucket, as deleted."""
        values = tuple((context.partition or {}).values())
        for split in self.splits:
            if (split.partition(), split.bucket()) != (values, context.bucket):
                continue
            with self.source.create_record_reader(split) as reader:
                for batch in reader.read():
                    count = batch.num_rows
                    numbers = pa.repeat(pa.scalar(0, pa.int64()), count)
                    kinds = pa.repeat(pa.scalar(int(ChangeType.DELETE), pa.uint8()), count)
                    yield ChangeRows(batch, numbers, numbers, kinds)


@dataclass(frozen=True)
class _ReplacingFactory(LakeTieringFactory):
    """Creates writers that first delete what the lake table has of their bucket."""

    inner: LakeTieringFactory
    old: _OldRows

    def validate(self, info: TableInfo) -> None:
        self.inner.validate(info)

    def create_writer(self, context: WriterContext) -> LakeWriter:
        writer = self.inner.create_writer(context)
        try:
            for records in self.old.deletes(context):
                writer.write(records)
        except BaseException:
            writer.abort()
            raise
        return writer

    def create_committer(self, context: CommitterContext) -> LakeCommitter:
        return self.inner.create_committer(context)


@dataclass(frozen=True)
class _ReplacingRunner:
    """Writes splits in threads, by writers that delete first; of a bucket without rows, too."""

    old: _OldRows

    def run(
        self, tasks: Sequence[SplitTask], connection: Connection, control: RoundControl, on_result: OnResult
    ) -> None:
        replacing = [replace(task, factory=_ReplacingFactory(task.factory, self.old)) for task in tasks]
        contexts = {
            task.split.bucket: (task.factory, WriterContext(task.info, task.split.bucket.bucket, task.split.partition))
            for task in replacing
        }

        def finished(result: SplitResult) -> None:
            if result.written is None and not result.gone:
                factory, context = contexts[result.bucket]
                result = replace(result, written=factory.create_writer(context).complete())
            on_result(result)

        ThreadRunner().run(replacing, connection, control, finished)


def lake_states(
    connection: Connection, paths: Sequence[str | TablePath], lake: TieringLake | None = None
) -> list[LakeState | tuple[TablePath, ForebayError]]:
    """Return the state of each table, or the error that a look at it had."""
    states: list[LakeState | tuple[TablePath, ForebayError]] = []
    for path in paths:
        try:
            states.append(lake_state(connection, path, lake))
        except ForebayError as e:
            if isinstance(e, NotFound) and e.code == ErrorCode.TABLE_NOT_EXIST:
                raise
            states.append((TablePath.parse(path), e))
    return states
