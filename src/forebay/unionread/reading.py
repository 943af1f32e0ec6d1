"""Reads a split of a union read as record batches, on a worker.

A `UnionReader` is the common part of all splits of a plan; it pickles, and is sent to a worker once. A split that is
read twice returns the same rows, except a `KvBucketSplit` and a `KeyLookupSplit`, which are read as they are then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.base.errors import InternalError
from forebay.client.connection import shared_connection
from forebay.client.reading.live_cursor import live_reader
from forebay.client.reading.log_reader import LogReader
from forebay.client.row_view import RowView
from forebay.client.settings import Settings
from forebay.codec.rows.keys import primary_key_encoder
from forebay.metadata.table import TableBucket, TableInfo
from forebay.unionread.lake_side import LakeSide, RecordSide, merge_columns
from forebay.unionread.merging import merge_sorted, override
from forebay.unionread.splits import (
    KeyLookupSplit,
    KvBucketSplit,
    LakeRecordsSplit,
    LakeSnapshotAndLogSplit,
    LakeSnapshotSplit,
    LogSplit,
    SplitCodec,
    UnionSplit,
)
from forebay.unionread.tail import Tail, check_read_to_the_end, read_tail, read_tails

if TYPE_CHECKING:
    from forebay.client.session import Session

_Range = LakeSnapshotAndLogSplit | LogSplit

_TOGETHER_MAX = 256
"""Maximum number of buckets that are read together: a server lets a request for more wait (docs/server.md)."""

_TOGETHER_RECORDS_MAX = 1 << 16
"""Maximum number of records that are read together, because the changes of all these buckets are in memory."""


def _short_ranges(splits: Sequence[UnionSplit]) -> list[_Range]:
    """The first splits that can be read together: of one kind, of different buckets, with few records in all."""
    ranges: dict[TableBucket, _Range] = {}
    records = 0
    for split in splits:
        if not isinstance(split, LakeSnapshotAndLogSplit | LogSplit) or type(split) is not type(splits[0]):
            break
        records += split.stop - split.start
        if split.bucket in ranges or records > _TOGETHER_RECORDS_MAX:
            break
        ranges[split.bucket] = split
    return list(ranges.values())


@dataclass(frozen=True)
class UnionReader:
    """How the splits of one plan are read.

    `view` has the columns and the filter. `lake` is None if the plan has no lake. At most `limit` rows of each split
    are needed. With `ordered`, a bucket whose lake reader is sorted comes in the order of its key.
    """

    settings: Settings
    view: RowView
    limit: int | None = None
    lake: LakeSide | None = None
    ordered: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches: the requested columns, TIMESTAMP_LTZ with the zone UTC."""
        return self.view.schema

    @property
    def info(self) -> TableInfo:
        """The table."""
        return self.view.info

    @property
    def codec(self) -> SplitCodec:
        """The codec that writes this plan's splits as bytes, and reads them."""
        return SplitCodec(None if self.lake is None else self.lake.source)

    def read(self, split: UnionSplit, session: Session | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split that match the filter. Without a connection, this process's own is used.

        Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) if the lake's snapshot has expired, and `InvalidRequest`
        (LOG_OFFSET_OUT_OF_RANGE) if the log has lost a range: plan again.
        """
        match split:
            case LakeSnapshotSplit():
                return self._lake_rows(split)
            case LogSplit():
                return self._log_rows(split, session or self._shared())
            case LakeRecordsSplit():
                return self._lake_records(split)
            case KvBucketSplit():
                return self._current_rows(split, session or self._shared())
            case LakeSnapshotAndLogSplit():
                return self._merged_rows(split, session or self._shared())
            case KeyLookupSplit():
                return self._rows_of_keys(split, session or self._shared())

    def read_each(
        self, splits: Sequence[UnionSplit], session: Session | None = None
    ) -> Iterator[tuple[UnionSplit, pa.RecordBatch]]:
        """Yield the rows of several splits, with their split. Short ranges of logs are fetched for many buckets at a
        time: a request for each would cost more than all else that a small split costs. Raises as `read`."""
        done = 0
        while done < len(splits):
            together = _short_ranges(splits[done : done + _TOGETHER_MAX])
            if len(together) > 1:
                yield from self._read_together(together, session or self._shared())
            else:
                for batch in self.read(splits[done], session):
                    yield splits[done], batch
            done += max(1, len(together))

    def _read_together(self, splits: Sequence[_Range], session: Session) -> Iterator[tuple[UnionSplit, pa.RecordBatch]]:
        if isinstance(splits[0], LogSplit):
            by_bucket = {split.bucket: split for split in splits}
            starts, stops = ({b: getattr(s, end) for b, s in by_bucket.items()} for end in ("start", "stop"))
            with LogReader(session, self.info, starts, stops, self.view, ()) as reader:
                for batch in reader:
                    assert reader.last_bucket is not None
                    yield by_bucket[reader.last_bucket], batch
                check_read_to_the_end(self.info, reader, stops)
            return
        ranges = {split.bucket: (split.start, split.stop) for split in splits}
        tails = read_tails(session, self.info, ranges, merge_columns(self.info, self.view))
        for split in splits:
            assert isinstance(split, LakeSnapshotAndLogSplit)
            for batch in self._merged_with(split, tails.pop(split.bucket)):
                yield split, batch

    def _shared(self) -> Session:
        return shared_connection(self.settings)

    def _lake_rows(self, split: LakeSnapshotSplit) -> Iterator[pa.RecordBatch]:
        lake = self._lake_side()
        for batch in lake.read(split.lake, self.limit):
            shown = self.view.show(batch.select(self._read_names)) if lake.columns else batch
            if shown.num_rows:
                yield shown

    def _lake_records(self, split: LakeRecordsSplit) -> Iterator[pa.RecordBatch]:
        lake = self._lake_side()
        assert isinstance(lake, RecordSide)
        records = lake.records(split.bucket.bucket, split.lake, split.start, split.stop)
        return self._shown(iter(records)) if lake.columns else iter(records)

    def _log_rows(self, split: LogSplit, session: Session) -> Iterator[pa.RecordBatch]:
        starts, stops = {split.bucket: split.start}, {split.bucket: split.stop}
        with LogReader(session, self.info, starts, stops, self.view, ()) as reader:
            yield from reader
            check_read_to_the_end(self.info, reader, stops)

    def _current_rows(self, split: KvBucketSplit, session: Session) -> Iterator[pa.RecordBatch]:
        with live_reader(session, self.view, [split.bucket], self.limit) as rows:
            yield from rows

    def _rows_of_keys(self, split: KeyLookupSplit, session: Session) -> Iterator[pa.RecordBatch]:
        from forebay.client.reading.key_cursor import key_reader

        with key_reader(session, self.view, dict(split.keys), self.limit, with_position=False) as rows:
            yield from rows

    def _merged_rows(self, split: LakeSnapshotAndLogSplit, session: Session) -> Iterator[pa.RecordBatch]:
        columns = merge_columns(self.info, self.view)
        tail = read_tail(session, self.info, split.bucket, split.start, split.stop, columns)
        yield from self._merged_with(split, tail)

    def _merged_with(self, split: LakeSnapshotAndLogSplit, tail: Tail) -> Iterator[pa.RecordBatch]:
        encoder = primary_key_encoder(self.info.descriptor)
        reader = self._lake_side().sorted_reader(split.lake) if self.ordered and split.lake else None
        if reader is not None:
            with reader:
                yield from self._shown(merge_sorted(reader, self._lake_side().stored, tail, encoder))
            return
        lake = (batch for lake_split in split.lake for batch in self._lake_side().read(lake_split))
        yield from self._shown(override(lake, tail, encoder))

    def _shown(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield matching rows with the columns of `merge_columns`, as users see them."""
        for batch in batches:
            shown = self.view.show(batch.select(self._read_names))
            if shown.num_rows:
                yield shown

    @cached_property
    def _read_names(self) -> list[str]:
        return [column.name for column in self.view.read]

    def _lake_side(self) -> LakeSide:
        if self.lake is None:
            raise InternalError(f"a split of table {self.info.path} has lake rows, and its plan has no lake")
        return self.lake
