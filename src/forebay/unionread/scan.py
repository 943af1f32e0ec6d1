"""`table.scan(source="union")`: found by its entry point in `forebay.scan_sources`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import pyarrow as pa

from forebay.api.scan import RowReader, ScanRequest
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.client.live_scan import LiveReader
from forebay.client.session import Session
from forebay.client.table import Table
from forebay.client.table_scan import TableScan
from forebay.metadata.table import TableBucket, TableInfo
from forebay.unionread.plan import UnionPlan
from forebay.unionread.planning import plan_union
from forebay.unionread.reading import KeyLookupSplit, KvSnapshotSplit, LakeSnapshotSplit, UnionSplit

_PLANNINGS = 3
_OUTDATED = (ErrorCode.LAKE_SNAPSHOT_NOT_EXIST, ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION)


class UnionScan(TableScan):
    """A scan of lake and stream combined. Each run is planned when it starts, and reads up to that moment.

    The splits of `plan` may be read in other processes: send the scan along, which knows the plan then.
    """

    _plan: UnionPlan | None = None

    def reader(self) -> UnionRowReader:
        return UnionRowReader(self._session, self._info, self._request)

    def _rows(self) -> RowReader:
        return UnionRowReader(self._session, self._info, self._request, look_up=True)

    def explain(self) -> str:
        """An explanation of the lake splits and log ranges that a run would read now, and why."""
        return self._planned().explain()

    def plan(self) -> Sequence[UnionSplit]:
        self._plan = self._planned()
        return self._plan.splits

    def _planned(self) -> UnionPlan:
        return planned(Table(self._session, self._info), self._request, look_up=True)

    def read_split(self, split: UnionSplit) -> RowReader:
        if self._plan is None:
            self._plan = self._planned()
        return _SplitReader(self._session, self._plan, split, self._request.limit)

    def __setstate__(self, plan: UnionPlan | None) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), self._plan)


def planned(table: Table, request: ScanRequest, *, look_up: bool) -> UnionPlan:
    """The plan of a run that starts now; `look_up` as for `plan_union`. Raises `InvalidRequest` for chosen buckets."""
    if request.buckets is not None:
        raise InvalidRequest(
            "a union scan reads whole partitions: lake files of some tables do not belong to buckets. Leave out "
            "'buckets', or use the source 'live'"
        )
    wanted = (request.columns, request.predicate, request.limit)
    if request.as_of is not None:
        from forebay.unionread.time_travel import plan_as_of

        return plan_as_of(table, request.as_of, *wanted, partitions=request.partitions)
    return plan_union(table, *wanted, partitions=request.partitions, look_up=look_up)


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

    def __init__(self, session: Session, info: TableInfo, request: ScanRequest, *, look_up: bool = False) -> None:
        self._table, self._request, self._look_up = Table(session, info), request, look_up
        self.plan: UnionPlan = planned(self._table, request, look_up=look_up)
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
                self.plan = planned(self._table, self._request, look_up=self._look_up)
            else:
                return

    def _rows(self) -> Iterator[tuple[UnionSplit, pa.RecordBatch]]:
        reader, session = self.plan.reader, self._table.connection
        by_kind = groupby(self.plan.splits, lambda split: isinstance(split, KvSnapshotSplit))
        for is_kv, splits in by_kind:
            if not is_kv:
                yield from reader.read_each(list(splits), session)
                continue
            for split in splits:
                assert isinstance(split, KvSnapshotSplit)
                one = replace(self._request, partitions=None, buckets=[split.bucket])
                with LiveReader(session, self._table.info, one) as rows:
                    for batch in rows:
                        yield split, batch
                    self._scanned.update(rows.log_offsets)


def _bucket(split: UnionSplit) -> TableBucket | None:
    return None if isinstance(split, LakeSnapshotSplit | KeyLookupSplit) else split.bucket
