"""`table.scan(source="union")`: found by its entry point in `forebay.scan_sources`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.base.errors import ErrorCode, ForebayError, InternalError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.cluster.offsets import LATEST, list_offsets
from forebay.client.reading.live_cursor import live_reader
from forebay.client.reading.snapshot_scan import open_snapshot_reader
from forebay.client.reading.table_scan import TableScan
from forebay.client.results import LakeSnapshot
from forebay.client.row_view import RowView
from forebay.client.session import Session
from forebay.client.table import Table
from forebay.metadata.table import TableBucket, TableInfo
from forebay.unionread.plan import UnionPlan
from forebay.unionread.planning import plan_at_snapshot, plan_view, readable_snapshot
from forebay.unionread.splits import KeyLookupSplit, KvBucketSplit, LakeSnapshotSplit, UnionSplit

if TYPE_CHECKING:
    from forebay.client.reading.table_snapshot import TableSnapshot

_PLANNINGS = 3
"""Maximum attempts at a read if what it was planned on expires before its first row."""

_OUTDATED = (ErrorCode.LAKE_SNAPSHOT_NOT_EXIST, ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION)


class UnionScan(TableScan):
    """A scan of lake and stream combined. Each run is planned when it starts, and reads up to that moment.

    The splits of `plan` may be read in other processes: send the scan along, which knows the plan then.
    """

    _plan: UnionPlan | None = None

    def reader(self) -> RowReader:
        return self._session.reading(lambda session: UnionRowReader(session, self._view, self._request))

    def _rows(self) -> RowReader:
        return self._session.reading(lambda session: UnionRowReader(session, self._view, self._request, look_up=True))

    def explain(self) -> str:
        """An explanation of the lake splits and log ranges that a run would read now, and why."""
        return self._planned().explain()

    def plan(self) -> Sequence[UnionSplit]:
        self._plan = self._planned()
        return self._plan.splits

    def _planned(self) -> UnionPlan:
        return self._session.answer(
            lambda session: planned(Table(session, self._info), self._view, self._request, look_up=True)
        )

    def read_split(self, split: UnionSplit) -> RowReader:
        plan = self._plan = self._planned() if self._plan is None else self._plan
        return self._session.reading(lambda session: _SplitReader(session, plan, split, self._request.limit))

    def pinned(self) -> Scan:
        if self._request.limit is not None:
            return super().pinned()
        return self._session.answer(lambda session: PinnedUnionScan.of(session, self._info, self._request))

    def __setstate__(self, plan: UnionPlan | None) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), self._plan)


def planned(table: Table, view: RowView, request: ScanRequest, *, look_up: bool) -> UnionPlan:
    """The plan of a run that starts now; `view` has the columns and the filter of `request`, `look_up` is as for
    `plan_union`. Raises `InvalidRequest` for chosen buckets.
    """
    if request.buckets is not None:
        raise InvalidRequest(
            "a union scan reads whole partitions: lake files of some tables do not belong to buckets. Leave out "
            "'buckets', or use the source 'live'"
        )
    if request.as_of is not None:
        from forebay.unionread.time_travel import plan_view_as_of

        return plan_view_as_of(table, request.as_of, view, request.limit, partitions=request.partitions)
    return plan_view(table, view, request.limit, partitions=request.partitions, look_up=look_up)


class PinnedUnionScan(UnionScan):
    """A union scan of one instant: a lake snapshot, and an end of each log.

    Of a primary-key table a table snapshot says where the logs end, all at the same instant, and has the rows of
    buckets that the lake does not have. (On a cluster without table snapshots the rows are kept in memory.)
    """

    _state: _PinnedState

    @classmethod
    def of(cls, session: Session, info: TableInfo, request: ScanRequest) -> Scan:
        """Return a scan pinned at `request.as_of`, or at the current instant.

        The rows are pinned in memory where a cluster cannot take a snapshot of a primary-key table.
        """
        table = Table(session, info)
        from forebay.unionread.time_travel import ReadPoint, resolve

        snapshot: TableSnapshot | None = None
        if request.as_of is not None:
            point = resolve(table, request.as_of)
            stops: Mapping[TableBucket, int] | None = point.stops
        else:
            point = ReadPoint(readable_snapshot(table), None)  # before the ends of the logs, as every plan does
            if info.has_primary_key:
                snapshot = table.snapshot(partitions=request.partitions, name="pinned scan")
                if not snapshot.is_exact and snapshot.buckets:
                    return Scan.pinned(UnionScan(session, info, request, "union"))
                stops = snapshot.log_offsets
            else:
                buckets = table.buckets(request.partitions)
                stops = list_offsets(session.cluster, info, buckets, LATEST)
        scan = cls(session, info, request, "union")
        scan._state = _PinnedState(point.lake_snapshot, stops, point.lake_only, snapshot, point.identity)
        return scan

    @classmethod
    def of_lake(cls, table: Table) -> PinnedUnionScan:
        """A scan of nothing but the lake, as of the newest snapshot that a union read starts from."""
        if not table.info.lake_enabled:
            raise InvalidRequest(f"table {table.path} has no lake: 'table.datalake.enabled' is not true")
        scan = cls(table.connection, table.info, ScanRequest(), "union")
        scan._state = _PinnedState(readable_snapshot(table), None, True, None)
        return scan

    def pinned(self) -> Scan:
        return self

    def is_current(self) -> bool:
        """Whether the table has not been written to since it was pinned. Of an earlier state: yes."""
        if self._state.stops is None or self._request.as_of is not None:
            return True
        table, stops = Table(self._session, self._info), dict(self._state.stops)
        buckets = table.buckets(self._request.partitions)
        return set(buckets) == set(stops) and (
            not buckets or dict(list_offsets(self._session.cluster, self._info, buckets, LATEST)) == stops
        )

    def release(self) -> None:
        if self._state.table_snapshot is not None:
            self._state.table_snapshot.release()

    def reader(self) -> RowReader:
        return _PinnedReader(self._planned(), self._session, self._request.limit, self._state.table_snapshot)

    def _rows(self) -> RowReader:
        return self.reader()

    def read_split(self, split: UnionSplit) -> RowReader:
        """Return a reader of one split, by the plan of the last `plan`, or by a new plan of the same pinned state."""
        return _PinnedReader(
            replace(self._plan or self._planned(), splits=(split,)),
            self._session,
            self._request.limit,
            self._state.table_snapshot,
        )

    def _planned(self) -> UnionPlan:
        request, state = self._request, self._state
        try:
            return plan_at_snapshot(
                Table(self._session, self._info), self._view, request.limit, request.partitions,
                lake_snapshot=state.lake_snapshot, stop=state.stops, lake_only=state.lake_only,
                within_stop=state.stops is not None, from_snapshot=state.table_snapshot is not None,
                identity=state.identity,
            )  # fmt: skip
        except NotFound as e:
            raise NotFound(
                f"the pinned state of table {self._info.path} no longer exists, pin it again: {e.message}", e.code
            ) from e

    def _with(self, request: ScanRequest) -> Self:
        scan = super()._with(request)
        scan._state = self._state
        return scan

    def __reduce__(self) -> tuple[object, ...]:
        raise UnsupportedOperation("a pinned scan stays in its process: send its splits, or a table snapshot")


def union_scan(table: Table, as_of: Any = None) -> Scan:
    """`table.scan(source="union", as_of=as_of)`, without a notice if the table has no lake."""
    return UnionScan.create(table.connection, table.info, ScanRequest(as_of=as_of), "union")


@dataclass(frozen=True)
class _PinnedState:
    lake_snapshot: LakeSnapshot | None
    stops: Mapping[TableBucket, int] | None
    lake_only: bool
    table_snapshot: TableSnapshot | None
    identity: str | None = None


class _PinnedReader(RowReader):
    """The rows of a plan, those of buckets that the lake does not have from a table snapshot."""

    def __init__(self, plan: UnionPlan, session: Session, limit: int | None, snapshot: TableSnapshot | None) -> None:
        super().__init__(plan.reader.schema, limit)
        self._plan, self._session, self._snapshot = plan, session, snapshot

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        return {**self._plan.log_offsets, **(self._snapshot.log_offsets if self._snapshot is not None else {})}

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        reader = self._plan.reader
        current = [split.bucket for split in self._plan.splits if isinstance(split, KvBucketSplit)]
        others = [split for split in self._plan.splits if not isinstance(split, KvBucketSplit)]
        for split, batch in reader.read_each(others, self._session):
            yield _bucket(split), batch
        if current:
            if self._snapshot is None:
                raise InternalError(f"a pinned plan of table {reader.info.path} has current rows, but no snapshot")
            with open_snapshot_reader(self._snapshot, reader.view, current) as rows:
                yield from rows.with_buckets()


class _SplitReader(RowReader):
    """The rows of one split of a plan."""

    def __init__(self, session: Session, plan: UnionPlan, split: UnionSplit, limit: int | None) -> None:
        super().__init__(plan.reader.schema, limit)
        self._session, self._plan, self._split = session, plan, split

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        for batch in self._plan.reader.read(self._split, self._session):
            yield _bucket(self._split), batch


class UnionRowReader(RowReader):
    """A reader of lake and stream combined. Planned when it is created, so it reads up to that moment.

    Lake snapshots expire, and logs are trimmed after that. If that happens between the plan and its first rows, the
    read is replanned; later the reader's error is raised.
    """

    def __init__(self, session: Session, view: RowView, request: ScanRequest, *, look_up: bool = False) -> None:
        self._table, self._view, self._request, self._look_up = Table(session, view.info), view, request, look_up
        self.plan: UnionPlan = planned(self._table, view, request, look_up=look_up)
        super().__init__(self.plan.reader.schema, request.limit)
        self._scanned: dict[TableBucket, int] = {}

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        """For each bucket: the log offset up to which its changes are contained.

        Known from the start, but for buckets that the lake does not have yet: these are read as they are then.
        """
        return {**self.plan.log_offsets, **self._scanned}

    def _described(self) -> str:
        return f" of {self._table.path}, {len(self.plan.splits)} splits"

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        if self._request.limit == 0:
            return
        begun = False
        for attempt in range(_PLANNINGS):
            try:
                for split, batch in self._rows():
                    begun = True
                    yield _bucket(split), batch
            except ForebayError as e:
                if begun or e.code not in _OUTDATED or attempt == _PLANNINGS - 1:
                    raise
                self.plan = planned(self._table, self._view, self._request, look_up=self._look_up)
            else:
                return

    def _rows(self) -> Iterator[tuple[UnionSplit, pa.RecordBatch]]:
        reader, session = self.plan.reader, self._table.connection
        by_kind = groupby(self.plan.splits, lambda split: isinstance(split, KvBucketSplit))
        for is_kv, splits in by_kind:
            if not is_kv:
                yield from reader.read_each(list(splits), session)
                continue
            for split in splits:
                assert isinstance(split, KvBucketSplit)
                with live_reader(session, self._view, [split.bucket], self._request.limit) as rows:
                    for batch in rows:
                        yield split, batch
                    self._scanned.update(rows.log_offsets)


def _bucket(split: UnionSplit) -> TableBucket | None:
    return None if isinstance(split, LakeSnapshotSplit | KeyLookupSplit) else split.bucket
