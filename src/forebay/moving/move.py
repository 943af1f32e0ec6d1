"""The steps of a move, in an order in which each may fail or be repeated.

    tier      the source's lake gets all records of its logs (tables with a lake)
    create    the table on the target, without a lake, marked as a copy; its partitions
    copy      logs in order, or rows by upserts
    compare   the source's logs have not grown meanwhile; both sides' records are equal
    hand over the lake table gets a snapshot with the target's offsets: from here on it is the target's
    switch on the target's table gets the lake. If the target refuses, the lake table goes back to the source
    compare   both sides' rows of lake and stream are equal

No state is stored besides the results of the steps: the marked table and the ends of its logs, the lake's snapshots,
and the target's knowledge of these. A repeated move checks them and continues. The source is only read, except for
tiering rounds of its lake, until it is dropped, which is the last step and optional.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.base.errors import Conflict, CorruptData, ErrorCode, ForebayError, OutcomeUnknown, Unavailable
from forebay.client.connection import Connection
from forebay.lake.formats import create_lake_storage
from forebay.lake.storage import LakeStorage
from forebay.metadata.table import TableDescriptor, TablePath
from forebay.moving.checksum import Checksum, live_checksum, union_checksum
from forebay.moving.history import belongs_to_side, check_readable, hand_over, newest_snapshot, register_again
from forebay.moving.plan import ENABLED, LAKE_FORMAT, MovePlan, Side, plan_move
from forebay.moving.rows import check_logs, copy_logs, copy_rows
from forebay.tiering.now import tier_table
from forebay.tiering.round import TieringLake

ROUNDS_MAX = 20
"""The maximum number of tiering rounds that a move waits for; each ends when the table's freshness is over."""

OnProgress = Callable[[TablePath, str, int], None]
"""Called with the table, the step, and the number of rows that the step has copied so far."""


@dataclass(frozen=True, slots=True)
class MoveReport:
    """The result of a move: equal counts and checksums of both sides. `lake_snapshot` is the one handed over."""

    path: TablePath
    rows: Checksum
    log_records: int
    lake_snapshot: int | None = None

    def __str__(self) -> str:
        lake = "" if self.lake_snapshot is None else f", lake snapshot {self.lake_snapshot}"
        return f"{self.path}: {self.rows}, {self.log_records:,} log records{lake}; equal on both sides"


def move_table(
    source: Connection,
    target: Connection,
    path: str | TablePath,
    *,
    with_log: bool = True,
    leave_out: Sequence[str] = (),
    drop_source: bool = False,
    lake: TieringLake | None = None,
    on_progress: OnProgress | None = None,
) -> MoveReport:
    """Move one table, or continue an interrupted move; parameters are those of `plan_move`.

    `lake` has lake options that servers do not publish. Writers must have been stopped: raises `Conflict` if the
    source's logs grow meanwhile, and the lake then still belongs to the source. Raises `CorruptData` if the rows of
    both sides differ in the end.
    """
    plan = plan_move(source, target, path, with_log=with_log, leave_out=leave_out)
    return _Move(plan, target, lake, on_progress).run(drop_source)


def move_database(
    source: Connection,
    target: Connection,
    database: str,
    *,
    with_log: bool = True,
    drop_source: bool = False,
    lake: TieringLake | None = None,
    on_progress: OnProgress | None = None,
) -> list[MoveReport]:
    """Move all tables of a database, one after the other. Stops at the first failure; a repeated move continues."""
    return [
        move_table(
            source, target, TablePath(database, table),
            with_log=with_log, drop_source=drop_source, lake=lake, on_progress=on_progress,
        )
        for table in source.list_tables(database)
    ]  # fmt: skip


class _Move:
    def __init__(
        self, plan: MovePlan, target: Connection, lake: TieringLake | None, on_progress: OnProgress | None
    ) -> None:
        self._plan, self._to = plan, target
        self._lake = lake or TieringLake()
        self._on_progress = on_progress or (lambda path, step, rows: None)
        self._source = plan.source

    def run(self, drop_source: bool) -> MoveReport:
        plan = self._plan
        handed_over = plan.target is not None and self._is_handed_over(plan.target)
        if plan.with_lake and not handed_over:
            self._tier()
        target = plan.target if handed_over and plan.target is not None else self._created()
        if plan.with_lake and not handed_over:
            check_readable(self._storage(), self._source, target)
        records = 0 if handed_over else self._copied(target)
        target = target.again()
        snapshot = self._with_lake(target, handed_over) if plan.with_lake else None
        report = self._compared(target.again(), records, snapshot)
        if drop_source:
            self._step("dropping the source's table")
            self._source.connection.drop_table(plan.path)
        return report

    def _step(self, name: str, rows: int = 0) -> None:
        self._on_progress(self._plan.path, name, rows)

    def _storage(self) -> LakeStorage:
        options = {**self._source.info.lake_options(), **self._lake.options}
        return create_lake_storage(LAKE_FORMAT, options)

    def _is_handed_over(self, target: Side) -> bool:
        """Whether the lake table is already the target's: a snapshot is registered there, or about to be."""
        if not self._plan.with_lake:
            return False
        newest = newest_snapshot(self._storage(), self._source)
        if newest is None or belongs_to_side(newest, self._source):
            return False
        if target.lake_snapshot is not None:
            return True
        if not belongs_to_side(newest, target):
            return False
        self._step("registering the lake snapshot with the target")
        register_again(newest, target, target.ends)
        return True

    def _tier(self) -> None:
        """Run rounds of the source until its lake has everything that its logs had when the move began."""
        for _ in range(ROUNDS_MAX):
            snapshot = self._source.lake_snapshot
            tiered = {} if snapshot is None else snapshot.log_offsets
            if all(tiered.get(self._source.buckets[p], 0) >= end for p, end in self._source.ends.items()):
                return
            self._step("tiering")
            tier_table(self._source.connection, self._plan.path, lake=self._lake)
        raise Conflict(
            f"the lake of table {self._plan.path} is not up to date after {ROUNDS_MAX} rounds: stop its writers, tier "
            "it (forebay tiering --once), and run the move again"
        )

    def _created(self) -> Side:
        plan = self._plan
        if plan.target is None:
            self._step("creating the table")
            self._to.create_database(plan.path.database, ignore_if_exists=True)
            self._to.admin.create_table_as(plan.path, plan.descriptor)
        for name in sorted({place[0] for place in self._source.buckets if place[0] is not None}):
            spec = dict(zip(plan.descriptor.partition_keys, name.split("$"), strict=True))
            self._to.table(plan.path).create_partition(spec, ignore_if_exists=True)
        target = Side.of(self._to, plan.path)
        missing_partitions = {place[0] for place in self._source.buckets if place not in target.buckets}
        if missing_partitions:
            raise Conflict(
                f"table {plan.path} has no partition {', '.join(sorted(map(repr, missing_partitions)))} on the "
                "target: it was dropped there while the table was being moved; run the move again"
            )
        return target

    def _copied(self, target: Side) -> int:
        """Copy missing records, and return the number of log records that both sides have."""
        copied = 0

        def on_rows(rows: int) -> None:
            nonlocal copied
            copied += rows
            self._step("copying", copied)

        keyed = self._source.info.has_primary_key
        if keyed:
            copy_rows(self._source, target, on_rows)
        elif self._plan.with_log:
            copy_logs(self._source, target, on_rows)
        self._check_unmoved()
        if keyed or not self._plan.with_log:
            return 0
        self._step("comparing logs")
        return check_logs(self._source, target.again())

    def _check_unmoved(self) -> None:
        now = self._source.again()
        if now.ends != self._source.ends:
            raise Conflict(
                f"table {self._plan.path} was written to while it was being moved: stop its writers, and run the move "
                "again; copied records are kept, and the source has not changed"
            )

    # ---- the lake ---------------------------------------------------------------------------------------------------

    def _with_lake(self, target: Side, handed_over: bool) -> int:
        """Hand the lake table over, switch it on, and return the lake snapshot of the target."""
        recorded = target.lake_snapshot if handed_over else None
        if recorded is None:
            self._step("handing the lake table over")
            self._align(target)
            snapshot = hand_over(self._storage(), self._source, target, target.ends)
        else:
            snapshot = recorded.snapshot_id
        if not target.info.lake_enabled:
            self._step("switching the lake on")
            try:
                self._to.table(self._plan.path).alter(set={ENABLED: "true"})
            except ForebayError as e:
                if not isinstance(e, Unavailable | OutcomeUnknown):  # otherwise it may be on: the next run finds out
                    self._give_back(target, e)
                raise
        return snapshot

    def _align(self, target: Side) -> None:
        """Set the lake table's options to those of the target's table: released Fluss requires that they are equal."""
        here, there = self._source.info.descriptor, target.info.descriptor
        expected = TableDescriptor(
            here.schema,
            here.partition_keys,
            here.bucket_keys,
            here.bucket_count,
            here.comment,
            {**there.properties, ENABLED: "true"},
            there.custom_properties,
        )
        with self._storage().create_catalog() as catalog:
            catalog.alter_table(self._plan.path, here, expected)

    def _give_back(self, target: Side, refusal: ForebayError) -> None:
        """Give the lake table back to the source after the target has refused it."""
        hand_over(self._storage(), target.again(), self._source, self._source.ends)
        refusal.add_note("the lake table was given back to the source, which has not changed")

    # ---- the proof --------------------------------------------------------------------------------------------------

    def _compared(self, target: Side, records: int, snapshot: int | None) -> MoveReport:
        self._step("comparing rows")
        path = self._plan.path
        here = self._source.connection.table(self._source.info).at_server
        there = target.connection.table(target.info).at_server
        pairs = [(union_checksum(here), union_checksum(there))]
        if target.info.has_primary_key:
            pairs.append((pairs[0][0] if self._plan.with_lake else live_checksum(here), live_checksum(there)))
        for source_sum, target_sum in pairs:
            if source_sum != target_sum:
                raise CorruptData(
                    f"table {path} has {source_sum} on the source, and {target_sum} on the target: it is not a copy. "
                    "Nothing was dropped; drop the table on the target and start again, with the writers of both sides "
                    "stopped",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )
        return MoveReport(path, pairs[0][0], records, snapshot)
