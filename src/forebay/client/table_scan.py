"""`table.scan()`: what to read of a live table, as a value.

A source (forebay.client.sources) begins a reading of it. The parts of a scan are its buckets, unless the source has
its own idea of parts: then it is a subclass of `TableScan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.client.planning import plan_buckets
from forebay.client.views import RowView
from forebay.metadata.predicate_text import predicate_text
from forebay.metadata.table import TableInfo

if TYPE_CHECKING:
    from forebay.client.session import Session


OpenReader: TypeAlias = "Callable[[Session, TableInfo, ScanRequest], RowReader]"
"""What begins a reading of a table."""


class TableScan(Scan):
    """The rows of a live table: `table.scan()`. Each reading of it is of the rows as they are then."""

    def __init__(
        self,
        session: Session,
        info: TableInfo,
        request: ScanRequest,
        source: str,
        open_reader: OpenReader | None = None,
    ) -> None:
        """Raises `InvalidRequest` for columns that the table does not have, also in the filter."""
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
        return self._open(self._session, self._info, request)

    def plan(self) -> Sequence[Any]:
        """The buckets to read, for engines that read with several workers; see `read_split`."""
        return plan_buckets(self._session.cluster, self._info, self._request.partitions, self._request.buckets)

    def read_split(self, split: Any) -> RowReader:
        return self._read(replace(self._request, partitions=None, buckets=[split]))

    def explain(self) -> str:
        what = f"table {self._info.path}, source {self._source}, as of each reading"
        return "\n".join([what, *told(self._request, len(self.plan()))])

    def _described(self) -> str:
        return f" of {self._info.path}, source {self._source}"

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._session, self._info, request, self._source, self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._session, self._info, self._request, self._source, self._open)


def told(request: ScanRequest, buckets: int) -> list[str]:
    """A request in words, for `explain`."""
    columns = "all" if request.columns is None else ", ".join(request.columns) or "none, rows are counted"
    lines = [f"buckets: {buckets}", f"columns: {columns}"]
    if request.predicate is not None:
        lines.append(f"filter: {predicate_text(request.predicate)}")
    if request.limit is not None:
        lines.append(f"limit: {request.limit} rows, of one bucket after the other")
    return lines
