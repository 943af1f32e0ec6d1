"""`table.scan()`: lazy scans of a live table.

A `TableScan` is one source of rows applied to one table and one request (forebay.client.reading.sources has the names
of sources). The parts of a `BucketedScan` are buckets: `LiveTableScan` reads the current rows of a primary-key table,
`LogScan` what a log table was appended, and `FunctionScan` opens its readers by a function that another package
registered. Sources with other parts are subclasses of `TableScan` (forebay.unionread.scan).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.base.errors import InvalidRequest
from forebay.client.cluster.buckets import plan_buckets
from forebay.client.reading.explain import request_lines
from forebay.client.reading.key_check import may_fix_keys
from forebay.client.row_view import RowView
from forebay.client.session import Session
from forebay.metadata.table import TableInfo

if TYPE_CHECKING:
    from forebay.client.reading.key_plan import KeyPlan
    from forebay.client.reading.log_plan import LogRange

OpenReader: TypeAlias = "Callable[[Session, TableInfo, ScanRequest], RowReader]"
"""A function that opens a reader of a table."""


class TableScan(Scan):
    """A scan of a live table: `table.scan()`. Each run reads the rows current at that time."""

    def __init__(self, session: Session, info: TableInfo, request: ScanRequest, source: str) -> None:
        """`session`: whom to ask (`Session.reads`). `source` is the name that the user gave.

        Raises `InvalidRequest` for columns that the table does not have, also in the filter.
        """
        super().__init__(request)
        self._session, self._info, self._source = session, info, source
        self._view = RowView(info, request.columns, request.predicate)

    @classmethod
    def create(cls, session: Session, info: TableInfo, request: ScanRequest, source: str) -> TableScan:
        """The scan of `request` by this source. Raises `InvalidRequest` for a table that the source cannot read."""
        return cls(session, info, request, source)

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    def _traced(self, reader: RowReader) -> RowReader:
        """The reader, which has a span while it reads, if there are spans."""
        tracing = self._session.cluster.tracing
        if tracing is not None:
            name = str(self._info.path)
            reader.watched = lambda rows: tracing.each("table.scan", rows, db_collection_name=name)
        return reader

    def _described(self) -> str:
        return f" of {self._info.path}, source {self._source}"

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._session, self._info, request, self._source)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._session, self._info, self._request, self._source)


class BucketedScan(TableScan):
    """A scan whose parts are buckets."""

    @abstractmethod
    def _open(self, session: Session, request: ScanRequest) -> RowReader:
        """A reader of `request`, which is this scan's request or a part of it, at a session."""

    def reader(self) -> RowReader:
        return self._read(self._request)

    def _read(self, request: ScanRequest) -> RowReader:
        return self._traced(self._session.reading(lambda session: self._open(session, request)))

    def plan(self) -> Sequence[Any]:
        """The buckets to read, for engines that read with several workers; see `read_split`.

        A filter that fixes the bucket key leaves those out that cannot have matching rows.
        """
        return self._session.answer(self._key_plan).buckets

    def _key_plan(self, session: Session) -> KeyPlan:
        """The buckets of the request. Sources that read by keys leave out those without matching rows."""
        from forebay.client.reading.key_plan import KeyPlan

        request = self._request
        buckets = plan_buckets(session.cluster, self._info, request.partitions, request.buckets)
        return KeyPlan(buckets, len(buckets))

    def read_split(self, split: Any) -> RowReader:
        return self._read(replace(self._request, partitions=None, buckets=[split]))

    def explain(self) -> str:
        what = f"table {self._info.path}, source {self._source}, as of each reading"
        plan = self._session.answer(self._key_plan)
        lines = [f"chosen by the filter: {plan}"] if plan.is_narrow else []
        return "\n".join([what, *lines, *request_lines(self._request, len(plan.buckets))])


class FunctionScan(BucketedScan):
    """A scan whose readers are opened by a function that was registered as a source."""

    def __init__(
        self, session: Session, info: TableInfo, request: ScanRequest, source: str, open_reader: OpenReader
    ) -> None:
        super().__init__(session, info, request, source)
        self._open_reader = open_reader

    def _open(self, session: Session, request: ScanRequest) -> RowReader:
        return self._open_reader(session, self._info, request)

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._session, self._info, request, self._source, self._open_reader)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._session, self._info, self._request, self._source, self._open_reader)


class _KeyedScan(BucketedScan):
    """A scan of the servers' rows, which reads fewer buckets if the filter fixes keys, buckets or partitions."""

    def _key_plan(self, session: Session) -> KeyPlan:
        plan = self._narrow_plan(session, self._request)
        return super()._key_plan(session) if plan is None else plan

    def _narrow_plan(self, session: Session, request: ScanRequest) -> KeyPlan | None:
        """Return the plan that the filter of `request` allows; None if it fixes nothing."""
        if not may_fix_keys(self._view):
            return None
        from forebay.client.reading.key_plan import plan_keys

        return plan_keys(session.cluster, self._view, request.partitions, request.buckets)


class LiveTableScan(_KeyedScan):
    """The source "live": the current rows of a primary-key table. Log tables are read by `LogScan`."""

    @classmethod
    def create(cls, session: Session, info: TableInfo, request: ScanRequest, source: str) -> TableScan:
        return (cls if info.has_primary_key else LogScan)(session, info, request, source)

    def _open(self, session: Session, request: ScanRequest) -> RowReader:
        return self._open_with(session, request, with_position=True)

    def _open_with(self, session: Session, request: ScanRequest, *, with_position: bool) -> RowReader:
        """A reader of `request`; `with_position`: its `log_offsets` are needed."""
        view, limit = self._view, request.limit
        plan = self._narrow_plan(session, request)
        if plan is not None and plan.keys is not None:
            from forebay.client.reading.key_cursor import key_reader

            return key_reader(session, view, plan.keys, limit, with_position=with_position)
        from forebay.client.reading.live_cursor import live_reader

        if plan is not None:
            return live_reader(session, view, plan.buckets, limit)
        buckets = plan_buckets(session.cluster, self._info, request.partitions, request.buckets)
        return live_reader(session, view, buckets, limit)

    def _rows(self) -> RowReader:
        def open_reader(session: Session) -> RowReader:
            return self._open_with(session, self._request, with_position=False)

        return self._traced(self._session.reading(open_reader))

    def pinned(self) -> Scan:
        """Pin a new table snapshot. With a limit, and on clusters without table snapshots, pin the rows in memory."""
        if self._request.limit is not None:
            return super().pinned()
        from forebay.client.reading.table_snapshot import pinned_scan

        pinned = self._session.answer(lambda session: pinned_scan(session, self._info, self._request))
        return super().pinned() if pinned is None else pinned


class LogScan(_KeyedScan):
    """The source "log": everything that a log table has been appended, up to the time of reading."""

    @classmethod
    def create(cls, session: Session, info: TableInfo, request: ScanRequest, source: str) -> TableScan:
        """Raises `InvalidRequest` for a primary-key table."""
        if info.has_primary_key:
            raise InvalidRequest(
                f"table {info.path} has a primary key: its log holds changes, not rows. Use source='live' for the "
                "current rows, or table.changes() for the changes"
            )
        return cls(session, info, request, source)

    def _open(self, session: Session, request: ScanRequest) -> RowReader:
        from forebay.client.reading.log_plan import LogRowReader

        plan = self._narrow_plan(session, request)
        if plan is not None and plan.is_narrow:
            return LogRowReader(session, self._view, request.limit, buckets=plan.buckets)
        return LogRowReader(session, self._view, request.limit, partitions=request.partitions, buckets=request.buckets)

    def pinned(self) -> Scan:
        """Pin the current ends of the logs. With a limit, pin the rows in memory."""
        if self._request.limit is not None:
            return super().pinned()
        from forebay.client.reading.log_plan import LogRange

        log_range = self._session.answer(lambda session: LogRange.now(session, self._info, self._request))
        unplaced = replace(self._request, partitions=None, buckets=None)
        return PinnedLogScan(self._session, self._info, unplaced, self._source, log_range)


class PinnedLogScan(BucketedScan):
    """A scan of a fixed range of a table's logs."""

    def __init__(
        self, session: Session, info: TableInfo, request: ScanRequest, source: str, log_range: LogRange
    ) -> None:
        super().__init__(session, info, request, source)
        self._range = log_range

    def _open(self, session: Session, request: ScanRequest) -> RowReader:
        log_range = self._range if request.buckets is None else self._range.of_buckets(request.buckets)
        return log_range.reader(session, self._view, request.limit)

    def pinned(self) -> Scan:
        return self

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._session, self._info, request, self._source, self._range)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._session, self._info, self._request, self._source, self._range)
