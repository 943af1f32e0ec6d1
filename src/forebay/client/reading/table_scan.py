"""`table.scan()`: a lazy scan of a live table.

A source (forebay.client.reading.table_scan) opens readers for it. The parts of a scan are its buckets, unless the
source defines its own: then it is a subclass of `TableScan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import pyarrow as pa

from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.base.errors import InvalidRequest
from forebay.client.cluster.buckets import plan_buckets
from forebay.client.reading.planning import explained, fixes_keys
from forebay.client.session import Session
from forebay.client.views import RowView
from forebay.metadata.table import TableInfo

if TYPE_CHECKING:
    from forebay.client.reading.key_reader import KeyPlan

OpenReader: TypeAlias = "Callable[[Session, TableInfo, ScanRequest], RowReader]"
"""A function that opens a reader of a table."""


class TableScan(Scan):
    """A scan of a live table: `table.scan()`. Each run reads the rows current at that time."""

    def __init__(
        self,
        session: Session,
        info: TableInfo,
        request: ScanRequest,
        source: str,
        open_reader: OpenReader | None = None,
    ) -> None:
        """Raises `InvalidRequest` for columns that the table does not have, in the filter, too."""
        super().__init__(request)
        self._session, self._info, self._source, self._open = session, info, source, open_reader
        self._view = RowView(info, request.columns, request.predicate)

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    def reader(self) -> RowReader:
        return self._read(self._request)

    def _read(self, request: ScanRequest) -> RowReader:
        assert self._open is not None
        return self._traced(self._open(self._session, self._info, request))

    def _traced(self, reader: RowReader) -> RowReader:
        """The reader, which has a span while it reads, if there are spans."""
        tracing = self._session.cluster.tracing
        if tracing is not None:
            name = str(self._info.path)
            reader.watched = lambda rows: tracing.each("table.scan", rows, db_collection_name=name)
        return reader

    def _rows(self) -> RowReader:
        found = None
        if self._open is _live and self._info.has_primary_key and self._fixes_keys:
            from forebay.client.reading.key_reader import open_reader

            found = open_reader(self._session, self._info, self._request, with_position=False)
        return self.reader() if found is None else self._traced(found)

    @property
    def _fixes_keys(self) -> bool:
        """Whether the filter may choose keys or buckets, and the source reads by it."""
        return self._open in (_live, _log) and fixes_keys(self._info, self._request.predicate)

    def plan(self) -> Sequence[Any]:
        """The buckets to read, for engines that read with several workers; see `read_split`.

        A filter that fixes the bucket key leaves those out that cannot have matching rows.
        """
        return self._key_plan().buckets

    def _key_plan(self) -> KeyPlan:
        from forebay.client.reading.key_reader import KeyPlan, plan_keys

        found = plan_keys(self._session.cluster, self._info, self._request) if self._fixes_keys else None
        if found is not None:
            return found
        request = self._request
        buckets = plan_buckets(self._session.cluster, self._info, request.partitions, request.buckets)
        return KeyPlan(buckets, len(buckets))

    def read_split(self, split: Any) -> RowReader:
        return self._read(replace(self._request, partitions=None, buckets=[split]))

    def pinned(self) -> Scan:
        if self._request.limit is None and self._open in (_live, _log):
            if self._open is _live and self._info.has_primary_key:
                from forebay.client.reading.table_snapshot import pinned_scan

                found = pinned_scan(self._session, self._info, self._request)
                return super().pinned() if found is None else found
            return self._pinned_log()
        return super().pinned()

    def _pinned_log(self) -> Scan:
        from forebay.client.reading.log_plan import LogRange

        request = self._request
        log_range = LogRange.now(self._session, self._info, request)
        unplaced = replace(request, partitions=None, buckets=None)
        return PinnedLogScan(self._session, self._info, unplaced, self._source, log_range.reader)

    def explain(self) -> str:
        what = f"table {self._info.path}, source {self._source}, as of each reading"
        plan = self._key_plan()
        chosen = [f"chosen by the filter: {plan}"] if plan.is_narrow else []
        return "\n".join([what, *chosen, *explained(self._request, len(plan.buckets))])

    def _described(self) -> str:
        return f" of {self._info.path}, source {self._source}"

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._session, self._info, request, self._source, self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._session, self._info, self._request, self._source, self._open)


class PinnedLogScan(TableScan):
    """A scan of a fixed range of a table's logs."""

    def pinned(self) -> Scan:
        return self


# The sources that rows of a table can be read from, registered by name.
#
#     table.scan()                       the rows as they are now: source "live"
#     table.scan(source="log")           what a log table has been appended
#
# "live" and "log" are the client's own; others ("union") are brought by packages above this one, by `register_source`
# or by an entry point of the group `forebay.scan_sources`.

Source: TypeAlias = "OpenReader | type[TableScan]"
"""A function that opens a reader; or a class of scans, for sources with their own planning."""

ENTRY_POINTS = "forebay.scan_sources"

_sources: dict[str, Source] = {}


def register_source(name: str, source: Source) -> None:
    """Register `source` for `table.scan(source=name)`. A later registration replaces an earlier one."""
    _sources[name] = source


def scan_source(name: str) -> Source:
    """The source called `name`. Raises `InvalidRequest`, which lists the known ones."""
    source = _sources.get(name)
    if source is None:
        from importlib.metadata import entry_points

        for entry in entry_points(group=ENTRY_POINTS):
            if entry.name == name:
                source = _sources[name] = entry.load()
    if source is None:
        known = ", ".join(repr(known) for known in sorted(_sources))
        raise InvalidRequest(f"there is no scan source {name!r}; there are {known}")
    return source


def scan_of(session: Session, info: TableInfo, request: ScanRequest, name: str) -> TableScan:
    """The scan that the source called `name` creates. Raises `InvalidRequest`, which lists the known sources."""
    source = scan_source(name)
    if source is _log and info.has_primary_key:
        raise InvalidRequest(
            f"table {info.path} has a primary key: its log holds changes, not rows. Use source='live' for the current "
            "rows, or table.changes() for the changes"
        )
    if isinstance(source, type) and issubclass(source, TableScan):
        return source(session, info, request, name)
    return TableScan(session, info, request, name, cast(OpenReader, source))


def _live(session: Session, info: TableInfo, request: ScanRequest) -> RowReader:
    if not info.has_primary_key:
        return _log(session, info, request)
    from forebay.client.reading.live_scan import LiveReader

    found = None
    if fixes_keys(info, request.predicate):
        from forebay.client.reading.key_reader import open_reader

        found = open_reader(session, info, request, with_position=True)
    return LiveReader(session, info, request) if found is None else found


def _log(session: Session, info: TableInfo, request: ScanRequest) -> RowReader:
    from forebay.client.reading.log_plan import LogRowReader

    if fixes_keys(info, request.predicate):
        from forebay.client.reading.key_reader import plan_keys

        plan = plan_keys(session.cluster, info, request)
        if plan is not None and plan.is_narrow:
            request = replace(request, partitions=None, buckets=plan.buckets)
    return LogRowReader(session, info, request)


register_source("live", _live)
register_source("log", _log)
