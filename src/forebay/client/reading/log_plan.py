"""Planning of log reads: which buckets, from which offsets to which.

`open_log_reader` implements `Table.changes`; `LogRowReader` is the scan source "log", which reads a log table up to
now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.api.scan import RowReader, ScanRequest
from forebay.base.errors import InvalidRequest
from forebay.client.cluster.buckets import check_bucket, plan_buckets
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets, place_of
from forebay.client.cluster.partitions import PartitionSelector
from forebay.client.reading.key_check import may_fix_keys
from forebay.client.reading.log_epochs import check_offsets
from forebay.client.reading.log_reader import LogReader
from forebay.client.reading.snapshot_scan import open_snapshot_reader
from forebay.client.reading.table_snapshot import open_table_snapshot
from forebay.client.row_view import RowView
from forebay.client.session import Session
from forebay.metadata.log_offset import LogPosition, epoch_of, is_position_json
from forebay.metadata.table import TableBucket, TableInfo


def open_log_reader(
    session: Session,
    view: RowView,
    start: Any,
    stop: Any,
    include: Sequence[str],
    *,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None,
    buckets: Sequence[int | TableBucket] | None,
    timeout: float | None,
    new_partitions: bool | None = None,
    kind: type[LogReader] = LogReader,
) -> LogReader:
    """Plan a log read and open its reader, a `kind` of one. Parameters are as in `Table.changes`."""
    info = view.info
    first: RowReader | None = None
    release: Callable[[], None] | None = None
    if start == FULL and info.has_primary_key:
        snapshot = open_table_snapshot(session, info, partitions=partitions)
        selected = snapshot.buckets if buckets is None else plan_buckets(session.cluster, info, partitions, buckets)
        starts = {bucket: snapshot.log_offsets[bucket] for bucket in selected if bucket in snapshot.log_offsets}
        first, release = open_snapshot_reader(snapshot, view, list(starts)), snapshot.release
    elif isinstance(start, Mapping):
        if is_position_json(start):
            start = LogPosition.from_json(start)
        if partitions is not None or buckets is not None:
            raise InvalidRequest("the buckets to read are given by start already")
        starts = _given_offsets(session, info, start, "start")
    else:
        starts = _offsets_at(session, info, plan_buckets(session.cluster, info, partitions, buckets), start, "start")
    stops = None
    if isinstance(stop, Mapping):
        stops = _given_offsets(session, info, stop, "stop")
        without = [bucket for bucket in starts if bucket not in stops]
        if without:
            raise InvalidRequest(f"no stop offset is given for buckets {[str(bucket) for bucket in without]}")
    elif stop is not None:
        stops = _offsets_at(session, info, list(starts), stop, "stop")
    if stops is not None and isinstance(start, Mapping):
        _check_unread(session, info, starts, stops)
    everything = stops is None and partitions is None and buckets is None and not isinstance(start, Mapping)
    if new_partitions and stops is not None:
        raise InvalidRequest("a reader with an end does not look for new partitions: leave out stop, or new_partitions")
    discover = info.is_partitioned and (everything if new_partitions is None else new_partitions)
    return kind(session, info, starts, stops, view, include, timeout, discover, first, release)


def _check_unread(
    session: Session, info: TableInfo, starts: Mapping[TableBucket, int], stops: Mapping[TableBucket, int]
) -> None:
    """Check the starts of buckets of which nothing is to be read: those of the others are checked as they are read.

    Otherwise a reader would have no rows, and not say that its start does not belong to the log.
    """
    doubtful = {
        bucket: start
        for bucket, start in starts.items()
        if start > stops[bucket] or (start == stops[bucket] and epoch_of(start) not in (None, epoch_of(stops[bucket])))
    }
    check_offsets(session, info, doubtful)


def _given_offsets(session: Session, info: TableInfo, offsets: Mapping[Any, Any], what: str) -> dict[TableBucket, int]:
    """Offsets by bucket; those given as places ("earliest", a time) are resolved by the servers."""
    exact: dict[TableBucket, int] = {}
    places: dict[Any, list[TableBucket]] = {}
    for key, value in offsets.items():
        bucket = check_bucket(info, key)
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 0:
                raise InvalidRequest(f"bucket {bucket} cannot be read at offset {value}; write 'earliest' or 'latest'")
            exact[bucket] = value
        else:
            places.setdefault(value, []).append(bucket)
    for place, requested in places.items():
        exact |= _offsets_at(session, info, requested, place, what)
    return {bucket: exact[bucket] for bucket in (check_bucket(info, key) for key in offsets)}


def _offsets_at(
    session: Session, info: TableInfo, buckets: Sequence[TableBucket], place: Any, what: str
) -> dict[TableBucket, int]:
    if place == FULL and what == "start":
        place = EARLIEST  # the current rows of a log table are all that it keeps
    offsets = list_offsets(session.cluster, info, buckets, place_of(place, what))
    return {bucket: offsets[bucket] for bucket in buckets}


FULL = "full"
"""The start "the current rows, then their changes"."""


class LogRowReader(RowReader):
    """A reader of everything appended to a log table up to now: `table.scan(source="log").reader()`."""

    def __init__(
        self,
        session: Session,
        view: RowView,
        limit: int | None,
        starts: Mapping[TableBucket, int] | None = None,
        stops: Mapping[TableBucket, int] | None = None,
        *,
        partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
        buckets: Sequence[int | TableBucket] | None = None,
    ) -> None:
        """`starts` and `stops` (default: all that the servers have) are in place of `partitions` and `buckets`."""
        self._log = open_log_reader(
            session,
            view,
            EARLIEST if starts is None else starts,
            LATEST if stops is None else stops,
            (),
            partitions=partitions,
            buckets=buckets,
            timeout=None,
        )
        super().__init__(self._log.schema, limit)

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        return self._log.stop_offsets or {}

    def _described(self) -> str:
        return f" of {self._log.described}"

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        if self._left == 0:
            return
        try:
            for batch in self._log:
                yield self._log.last_bucket, batch
        finally:
            self._log.close()


@dataclass(frozen=True)
class LogRange:
    """A fixed range of the log of each bucket, from `starts` to before `stops`."""

    starts: Mapping[TableBucket, int]
    stops: Mapping[TableBucket, int]

    @classmethod
    def now(cls, session: Session, info: TableInfo, request: ScanRequest) -> LogRange:
        """All that the buckets of `request` have now."""
        buckets = plan_buckets(session.cluster, info, request.partitions, request.buckets)
        starts = list_offsets(session.cluster, info, buckets, EARLIEST)
        return cls(starts, list_offsets(session.cluster, info, buckets, LATEST))

    def of_buckets(self, buckets: Sequence[int | TableBucket]) -> LogRange:
        """The part of the range that is in these buckets."""
        return LogRange({b: self.starts[b] for b in self.starts if b in buckets}, self.stops)

    def reader(self, session: Session, view: RowView, limit: int | None) -> LogRowReader:
        """A reader of the rows in the range; a filter that fixes the bucket key reads only these buckets."""
        buckets: Sequence[TableBucket] = [b for b in self.starts if self.starts[b] < self.stops[b]]
        if may_fix_keys(view):
            from forebay.client.reading.key_filter import possible_buckets

            buckets = possible_buckets(view, buckets)
        starts, stops = ({b: ends[b] for b in buckets} for ends in (self.starts, self.stops))
        return LogRowReader(session, view, limit, starts, stops)
