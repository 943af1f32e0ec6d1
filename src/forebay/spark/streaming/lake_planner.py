"""Plans the micro-batches of a stream of a Paimon table.

A stream of an append table has the rows that are added. A stream of a primary-key table has inserted rows and the new
images of updates; deletes and old images are left out, because a row without its kind could not be distinguished. With
`read.changelog`, and of `t$changelog` and `t$audit_log`, it has every change with its kind. The stream begins with all
rows of the latest snapshot, unless `scan.mode` says otherwise.

A micro-batch has all new files, or as many as the limits allow; files are never split. One task reads the changes of a
bucket, in the order of the commits. The first rows of a primary-key table have no order; they come in micro-batches of
their own, before all changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, NotFound
from forebay.paimon.read.change_planner import ChangeSplit
from forebay.paimon.read.pieces import byte_count, file_count
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.stream import STATE_VERSION, StreamScan, check_streamable
from forebay.paimon.store.schemas import SchemaManager
from forebay.spark.options import StreamLimits
from forebay.spark.reading.lake_plan import PaimonScan, deal_groups, in_order
from forebay.spark.reading.lake_read import BINLOG
from forebay.spark.reading.plan import Pushdown, SplitsPartition
from forebay.spark.streaming.planner import StreamPlanner

if TYPE_CHECKING:
    from forebay.paimon.read.commit_changes import CommitScan
    from forebay.spark.reading.lake_changes import LakeChangesScan

CONSUMER_REFRESHES = 4
"""How often in its expiration time a consumer that waits for new snapshots renews itself."""


class Admission:
    """Decides for each split whether it fits into a micro-batch. The first split always does."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self.files = self.rows = self.bytes = 0

    def admit(self, split: ChangeSplit) -> bool:
        """Whether `split` still fits; it is counted if it does."""
        files, rows, size = self.files + file_count(split), self.rows + split.row_count, self.bytes + byte_count(split)
        limits = ((files, self._limits.files), (rows, self._limits.rows), (size, self._limits.bytes))
        if self.files and any(limit is not None and value > limit for value, limit in limits):
            return False
        self.files, self.rows, self.bytes = files, rows, size
        return True


class LakeStreamPlanner(StreamPlanner["PaimonOffset"]):
    """Plans the micro-batches of one stream of a lake table."""

    def __init__(
        self,
        scan: PaimonScan,
        pushdown: Pushdown,
        schema: StructType,
        limits: StreamLimits,
        cores: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Raises `UnsupportedOperation` for tables whose changes are not recorded."""
        table = scan.table
        check_streamable(table, ScanFilter.of(table.schema, pushdown.filter))
        super().__init__(scan.name, limits)
        self._scan, self._pushdown, self._cores, self._clock = scan, pushdown, cores, clock
        self._function = scan.read_function(pushdown, schema)
        self._target: int | None = None
        self._recorded_ms = 0

    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        return self._function.read(partition)

    def offset(self, values: Mapping[str, Any]) -> PaimonOffset:
        return PaimonOffset.from_json(values)

    @cached_property
    def _table_id(self) -> str:
        return self._read_table_id()

    def _read_table_id(self) -> str:
        """The identity of the table among others of its name: its first schema, and the time of that."""
        table = self._scan.table
        schemas = SchemaManager(table.io, table.paths)
        ids = schemas.ids()
        if not ids:
            raise NotFound(f"table {self._scan.name} was dropped", ErrorCode.TABLE_NOT_EXIST)
        first = schemas.schema(ids[0])
        return f"{first.id}-{first.time_millis}"

    @cached_property
    def _stream(self) -> StreamScan:
        table = self._scan.table
        return StreamScan(
            replace(table, clock=self._clock),
            ScanFilter.of(table.schema, self._pushdown.filter),
            # In a binlog the two halves of an update are one row, and may lie in two files.
            cut_by_file=self._scan.form != BINLOG,
        )

    def _here(self) -> PaimonOffset:
        return PaimonOffset.of_state(self._table_id, self._stream.state())

    # ---- beginning --------------------------------------------------------------------------------------------------

    def _beginning(self) -> PaimonOffset:
        return replace(self._begin(), is_first=True)

    def _begin(self, start: PaimonOffset | None = None) -> PaimonOffset:
        """The offset at which a new stream begins, or a stream whose table was empty at `start`, and may still be."""
        if start is not None:
            self._stream.restore(start.state())
        self._stream.begin()
        beginning = self._here()
        if self._target is not None and beginning.full is not None:
            self._target = max(self._target, beginning.full)  # the target must include the first snapshot
        return beginning

    # ---- end of a batch ---------------------------------------------------------------------------------------------

    def next_offset(self, start: PaimonOffset, limits: StreamLimits) -> PaimonOffset:
        """Return the end of the next micro-batch, see `StreamPlanner.next_offset`. A stream whose table was empty so
        far returns its beginning.
        """
        if start.is_settled:
            return super().next_offset(start, limits)
        self._check(start)
        self.read_until(start)
        # The beginning is a separate offset, so that a batch repeated after a restart begins at the same offset.
        return self._begin(start).after(start)

    @property
    def _planner_clock(self) -> Clock:
        return self._clock

    def _advance(self, start: PaimonOffset, limits: StreamLimits) -> tuple[PaimonOffset, int | None]:
        self.read_until(start)  # Spark asks for more after it has processed everything before `start`
        admission = Admission(limits)
        end = self._end(start, admission).after(start)
        return end, admission.rows if self._target is None else None

    def _confirm(self, start: PaimonOffset) -> None:
        if start.table != self._read_table_id():
            raise self.recreated()

    def _end(self, start: PaimonOffset, admission: Admission) -> PaimonOffset:
        target, stream = self._target, self._stream
        stream.restore(start.state())

        def accept(place: int, split: ChangeSplit) -> bool:
            return (target is None or split.snapshot_id <= target) and admission.admit(split)

        while True:
            plan = stream.plan(accept=accept)
            end = self._here()
            if plan is None or not plan.is_last or plan.is_full:
                break
        newest = self._scan.table.snapshots.latest_id()
        self.newest = None if newest is None else end.in_front_of(newest + 1)
        if target is not None and end.place > (target + 1, 0):
            # The plan has passed snapshots without changes. Those after the target are left to the next run.
            last = self._scan.table.snapshots.find(target)
            stop = end.in_front_of(target + 1, None if last is None else last.delta_manifest_list)
            return max(start, stop, key=lambda offset: offset.place)
        return end

    def stop_at_now(self) -> None:
        self._target = self._scan.table.snapshots.latest_id() or 0

    def _check(self, offset: PaimonOffset) -> None:
        if offset.table != self._table_id:
            raise self.recreated()

    # ---- tasks ------------------------------------------------------------------------------------------------------

    def tasks(self, start: PaimonOffset, end: PaimonOffset) -> list[SplitsPartition]:
        """The tasks of a batch. The same offsets always give the same rows."""
        start = end.start_of_batch or start
        self._check(start)
        groups = in_order(self._scan.table, self._between(start, end))
        return [SplitsPartition(task) for task in deal_groups(groups, self._cores)]

    def _between(self, start: PaimonOffset, end: PaimonOffset) -> list[ChangeSplit]:
        """The splits between two offsets, in order."""
        if not start.is_settled or start.place >= end.place:
            return []
        stream = self._stream
        stream.restore(start.state())

        def accept(place: int, split: ChangeSplit) -> bool:
            return (split.snapshot_id, place) < end.place

        splits: list[ChangeSplit] = []
        while self._here().place < end.place:
            plan = stream.plan(accept=accept)
            if plan is None:
                break
            splits += plan.splits
            if not plan.is_last:
                break
        reached = self._here()
        at_end = reached.place == end.place
        is_rewritten = at_end and None not in (reached.passed, end.passed) and reached.passed != end.passed
        if is_rewritten:
            raise NotFound(
                f"a batch of table {self._scan.name} from (snapshot, file) {start.place} to {end.place} cannot be read "
                "again: the table was rolled back, and other snapshots have these numbers now. Start the stream with "
                "another checkpoint"
            )
        if reached.place < end.place or (end.split and at_end and reached.plan != end.plan):
            raise Conflict(
                f"a batch of table {self._scan.name} from (snapshot, file) {start.place} to {end.place} cannot be read "
                f"again, it ends at {reached.place} now: a stream must be restarted with the same filter and options"
            )
        return splits

    # ---- consumer ---------------------------------------------------------------------------------------------------

    def read_until(self, offset: PaimonOffset) -> None:
        """Note that everything before `offset` has been processed, and advance the consumer (`consumer-id`) to it."""
        expires_in = self._scan.table.options.consumer_expiration_time_ms
        now = self._clock.now_ms()
        # A waiting stream renews its consumer before it expires.
        again = expires_in is not None and now - self._recorded_ms >= expires_in / CONSUMER_REFRESHES
        if again:
            self._recorded_ms = now
        self._stream.acknowledge(offset.state(), again=again)


class LakeChangesPlanner(LakeStreamPlanner):
    """Plans the micro-batches of a stream of CHANGES, which begins at the start of its range."""

    _scan: LakeChangesScan

    @cached_property
    def _stream(self) -> CommitScan:
        scan = replace(self._scan, table=replace(self._scan.table, clock=self._clock))
        return scan.commits(ScanFilter.of(scan.table.schema, self._pushdown.filter), cut_by_file=True)


_OF_SCANS = ("full", "next", "split", "plan", "began_empty", "finished", "passed")
"""The fields that an offset shares with the state of a scan."""


@dataclass(frozen=True)
class PaimonOffset:
    """A position of a stream. `began_empty`: its table had no snapshot at the start. `finished`: no change will follow.

    `is_first`: no batch has been planned from this offset yet. `began`: (`full`, `next`) of the start of the first
    batch, in the offset where that batch ends.
    """

    table: str
    full: int | None = None
    next: int | None = None
    split: int = 0
    plan: str | None = None
    began_empty: bool = False
    finished: bool = False
    passed: str | None = None
    is_first: bool = False
    began: tuple[int | None, int | None] | None = None

    @classmethod
    def of_state(cls, table: str, state: Mapping[str, Any]) -> PaimonOffset:
        """The offset of a scan's state, without redundant fields, so that equal positions are equal offsets."""
        split = int(state["split"])
        return cls(
            table, state["full"], state["next"], split, state["plan"] if split else None,
            bool(state["began_empty"]), bool(state["finished"]), state["passed"],
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The scan state at this offset."""
        values = {name: getattr(self, name) for name in _OF_SCANS}
        return {"version": STATE_VERSION, "watermark": None, **values}

    @property
    def is_settled(self) -> bool:
        """Whether the beginning of the stream is known."""
        return self.full is not None or self.next is not None

    @property
    def place(self) -> tuple[int, int]:
        """(snapshot, number of its finished splits), which grows with every split. (0, 0) before the beginning."""
        snapshot = self.full if self.full is not None else self.next
        return (0, 0) if snapshot is None else (snapshot, self.split)

    @property
    def start_of_batch(self) -> PaimonOffset | None:
        """The start of the batch that ends at this offset, if it is the stream's first batch."""
        if self.began is None:
            return None
        full, following = self.began
        return replace(
            self, full=full, next=following, split=0, plan=None, finished=False, passed=None, is_first=True, began=None
        )

    def after(self, start: PaimonOffset) -> PaimonOffset:
        """This offset as the end of the batch from `start`; `start` itself if nothing is between them."""
        if (self.full, self.next, self.split, self.finished) == (start.full, start.next, start.split, start.finished):
            return start
        return replace(self, is_first=False, began=(start.full, start.next) if start.is_first else None)

    def in_front_of(self, snapshot_id: int, passed: str | None = None) -> PaimonOffset:
        """The offset before the changes of a snapshot."""
        return replace(self, full=None, next=snapshot_id, split=0, plan=None, passed=passed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PaimonOffset:
        """The offset of these values. Raises `InvalidRequest` unless they are an offset of such a stream."""
        names = {f.name for f in fields(cls)}
        try:
            attributes = {name: value for name, value in values.items() if name in names}
            if attributes.get("began") is not None:
                full, following = attributes["began"]
                attributes["began"] = (full, following)
            offset = cls(**attributes)
            if not isinstance(offset.split, int) or not isinstance(offset.table, str):
                raise TypeError("'split' is a number, and 'table' a text")
        except (TypeError, ValueError) as e:
            raise InvalidRequest(f"this is no offset of a stream of a Paimon table: {dict(values)!r} ({e})") from e
        return offset
