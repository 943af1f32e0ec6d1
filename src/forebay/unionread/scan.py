"""`table.union_scan()`: the scan source "union", found by its entry point in `forebay.scan_sources`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.client.scan import Scan, ScanRequest
from forebay.client.session import Session
from forebay.client.table import Table
from forebay.metadata.table import TableBucket, TableInfo
from forebay.unionread.plan import UnionPlan
from forebay.unionread.planning import plan_union
from forebay.unionread.splits import KvSnapshotSplit, LakeSnapshotSplit, UnionSplit

_PLANNINGS = 3
_OUTDATED = (ErrorCode.LAKE_SNAPSHOT_NOT_EXIST, ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION)


class UnionScan(Scan):
    """The rows of lake and stream as one. Planned when it is made, so it reads up to that moment.

    Lake snapshots expire, and logs are cut off behind them. Where that happens between the plan and its first rows,
    the scan is planned anew; later it raises what the reader does.
    """

    def __init__(self, session: Session, info: TableInfo, request: ScanRequest) -> None:
        if request.buckets is not None:
            raise InvalidRequest(
                "a union scan reads whole partitions: lake files of some tables do not belong to buckets. Leave out "
                "'buckets', or use table.scan()"
            )
        self._table, self._request = Table(session, info), request
        self.plan: UnionPlan = self._planned()
        super().__init__(self.plan.reader.schema, request.limit)
        self._scanned: dict[TableBucket, int] = {}

    def _planned(self) -> UnionPlan:
        request = self._request
        return plan_union(self._table, request.columns, request.predicate, request.limit, partitions=request.partitions)

    def explain(self) -> str:
        """Which lake splits and which log ranges are read, and why."""
        return self.plan.explain()

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
                for split in self.plan.splits:
                    for batch in self._rows(split):
                        begun = True
                        yield _bucket(split), batch
            except ForebayError as e:
                if begun or e.code not in _OUTDATED or attempt == _PLANNINGS - 1:
                    raise
                self.plan = self._planned()
            else:
                return

    def _rows(self, split: UnionSplit) -> Iterator[pa.RecordBatch]:
        if not isinstance(split, KvSnapshotSplit):
            yield from self.plan.reader.read(split, self._table.connection)
            return
        request = self._request
        with self._table.scan(
            columns=request.columns, filter=request.predicate, limit=request.limit, buckets=[split.bucket]
        ) as scan:
            yield from scan
            self._scanned.update(scan.log_offsets)


def _bucket(split: UnionSplit) -> TableBucket | None:
    return None if isinstance(split, LakeSnapshotSplit) else split.bucket
