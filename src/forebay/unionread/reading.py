"""Reads a split of a union read as record batches, on a worker.

A `UnionReader` is the common part of all splits of a plan; it pickles, and is sent to a worker once. A split that is
read twice returns the same rows, except a `KvSnapshotSplit`, which is read as it is then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.api.scan import ScanRequest
from forebay.base.errors import InternalError
from forebay.client.connection import shared_connection
from forebay.client.live_scan import LiveReader
from forebay.client.log_reader import LogReader
from forebay.client.options import Settings
from forebay.client.views import RowView
from forebay.codec.keys import primary_key_encoder
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column, TableInfo
from forebay.unionread.lake_side import LakeSide
from forebay.unionread.merging import merge_sorted, override
from forebay.unionread.splits import (
    KvSnapshotSplit,
    LakeSnapshotAndLogSplit,
    LakeSnapshotSplit,
    LogSplit,
    SplitCodec,
    UnionSplit,
)
from forebay.unionread.tail import check_read_to_the_end, read_tail

if TYPE_CHECKING:
    from forebay.client.session import Session


@dataclass(frozen=True)
class UnionReader:
    """How the splits of one plan are read.

    `lake` is None if the plan has no lake. At most `limit` rows of each split are needed. With `ordered`, a bucket
    whose lake reader is sorted comes in the order of its key.
    """

    settings: Settings
    info: TableInfo
    columns: tuple[str, ...] | None
    predicate: Predicate | None
    limit: int | None = None
    lake: LakeSide | None = None
    ordered: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches: the requested columns, TIMESTAMP_LTZ with the zone UTC."""
        return self.view.schema

    @cached_property
    def view(self) -> RowView:
        return RowView(self.info, self.columns, self.predicate)

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
            case KvSnapshotSplit():
                return self._current_rows(split, session or self._shared())
            case LakeSnapshotAndLogSplit():
                return self._merged_rows(split, session or self._shared())

    def _shared(self) -> Session:
        return shared_connection(self.settings)

    def _lake_rows(self, split: LakeSnapshotSplit) -> Iterator[pa.RecordBatch]:
        lake = self._lake_side()
        for batch in lake.read(split.lake, self.limit):
            shown = self.view.show(batch.select(self._read_names)) if lake.columns else batch
            if shown.num_rows:
                yield shown

    def _log_rows(self, split: LogSplit, session: Session) -> Iterator[pa.RecordBatch]:
        starts, stops = {split.bucket: split.start}, {split.bucket: split.stop}
        with LogReader(session, self.info, starts, stops, self.view, ()) as reader:
            yield from reader
            check_read_to_the_end(self.info, reader, stops)

    def _current_rows(self, split: KvSnapshotSplit, session: Session) -> Iterator[pa.RecordBatch]:
        request = ScanRequest(self.columns, self.predicate, self.limit, None, [split.bucket])
        with LiveReader(session, self.info, request) as rows:
            yield from rows

    def _merged_rows(self, split: LakeSnapshotAndLogSplit, session: Session) -> Iterator[pa.RecordBatch]:
        columns = merge_columns(self.info, self.view)
        tail = read_tail(session, self.info, split.bucket, split.start, split.stop, columns)
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


def merge_columns(info: TableInfo, view: RowView) -> tuple[Column, ...]:
    """Return the columns to read for merging a bucket: those of the view and the key, in the table's order."""
    names = {column.name for column in view.read} | set(info.descriptor.physical_primary_key)
    return tuple(column for column in info.schema.columns if column.name in names)
