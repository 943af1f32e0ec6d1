"""`snapshot.scan()`: lazy scans of a table snapshot. Every run returns the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import pyarrow as pa

from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.client.reading import snapshot_cursor
from forebay.client.reading.explain import request_lines
from forebay.client.reading.key_check import may_fix_keys
from forebay.client.reading.snapshot_cursor import snapshot_reader
from forebay.client.row_view import RowView
from forebay.metadata.table import TableBucket


class Pinned(snapshot_cursor.PinnedRows, Protocol):
    """The methods of a `TableSnapshot` that a scan needs."""

    @property
    def is_exact(self) -> bool: ...

    def release(self) -> None: ...


def open_snapshot_reader(
    snapshot: Pinned, view: RowView, buckets: Sequence[TableBucket], limit: int | None = None
) -> RowReader:
    """A reader of `buckets` as of the snapshot, without those that the filter excludes; if the snapshot is not exact,
    of their current rows.
    """
    if not snapshot.is_exact and buckets:
        from forebay.client.reading.live_cursor import live_reader

        return live_reader(snapshot.connection, view, buckets, limit)
    if not may_fix_keys(view):
        return snapshot_reader(snapshot, view, buckets, limit)
    from forebay.client.reading.key_filter import possible_buckets

    return snapshot_reader(snapshot, view, possible_buckets(view, buckets), limit, covered=buckets)


class SnapshotScan(Scan):
    """A scan of a table snapshot: `snapshot.scan()`. Every run returns the same rows."""

    def __init__(self, snapshot: Pinned, request: ScanRequest, buckets: Sequence[TableBucket]) -> None:
        super().__init__(request)
        self._snapshot, self._buckets = snapshot, tuple(buckets)
        self._view = RowView(snapshot.info, request.columns, request.predicate)

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    def reader(self) -> RowReader:
        return open_snapshot_reader(self._snapshot, self._view, self._buckets, self._request.limit)

    def pinned(self) -> Scan:
        if self._request.limit is None and (self._snapshot.is_exact or not self._buckets):
            return self
        return super().pinned()

    def release(self) -> None:
        self._snapshot.release()

    def plan(self) -> Sequence[TableBucket]:
        """The buckets to read, for engines that read with several workers; see `read_split`."""
        return list(self._buckets)

    def read_split(self, split: TableBucket) -> RowReader:
        return open_snapshot_reader(self._snapshot, self._view, [split], self._request.limit)

    def explain(self) -> str:
        return "\n".join([repr(self._snapshot), *request_lines(self._request, len(self._buckets))])

    def _described(self) -> str:
        return f" of {self._snapshot.info.path}, {len(self._buckets)} buckets"

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._snapshot, request, self._buckets)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._snapshot, self._request, self._buckets)
