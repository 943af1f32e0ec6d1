"""Reads of Paimon tables in Spark's workers: from splits to record batches with exactly Spark's schema.

A `PaimonRead` is pickled once for a scan, a `SplitsPartition` for each task. The read contains the table with the
schema of the plan, so columns that are added later have no effect. A repeated task reads the same rows, because a split
names its files.

The scan's *form* selects the rows and their columns. ROWS are rows of the table; from splits of changes, inserted rows
and the new rows of updates. CHANGES are all changes, with `_change_type` as in changelogs of live tables. AUDIT_LOG and
BINLOG are Paimon's system tables, with `rowkind`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.base.errors import UnsupportedOperation
from forebay.client.arrays import rows_without_columns
from forebay.client.reading.log_decode import CHANGE_TYPES
from forebay.metadata.predicate import Predicate
from forebay.paimon.files.reader import ROW_INDEX
from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.change_planner import ChangeSplit
from forebay.paimon.read.change_reader import KINDS, ROW_KIND, ChangeReader, without_deletes
from forebay.paimon.read.expired import with_expiry_errors
from forebay.paimon.read.pieces import by_file
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import exact_rows
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.store.context import TableContext
from forebay.paimon.system_tables.row_views import ROW_KIND as AUDIT_KIND
from forebay.paimon.system_tables.row_views import binlog_schema, packed
from forebay.spark.reading.lake_metadata import FILE_PATH, is_metadata, with_metadata
from forebay.spark.reading.live_read import TaskRead, for_spark
from forebay.spark.reading.plan import SplitsPartition
from forebay.spark.workers import short_errors

ROWS, CHANGES, AUDIT_LOG, BINLOG = "rows", "changes", "audit_log", "binlog"

KIND_COLUMNS = {ROWS: ROW_KIND, CHANGES: CHANGE_TYPE_COLUMN, AUDIT_LOG: AUDIT_KIND, BINLOG: AUDIT_KIND}
"""The name of the row kind column in each form; ROWS do not return it."""


@dataclass(frozen=True)
class PaimonRead(TaskRead):
    """Reads the splits of one scan.

    `columns` are the requested columns of the table, with parts of nested rows as paths (`address.city`). `schema` is
    the schema that Spark expects. `name` is the table's name, for errors.
    """

    table: TableContext
    name: str
    columns: tuple[str, ...]
    schema: pa.Schema
    predicate: Predicate | None = None
    limit: int | None = None
    form: str = ROWS

    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        with short_errors(f"reading table {self.name}"):
            batches = (batch for split in partition.splits for batch in self._rows(split))
            yield from for_spark(batches, self.schema, self.limit)

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    # ---- one split --------------------------------------------------------------------------------------------------

    def _rows(self, split: ChangeSplit) -> Iterator[pa.RecordBatch]:
        if self.form == ROWS and isinstance(split, DataSplit) and not split.is_streaming:
            if not self.schema.names and self._filter.rows is None:
                count = exact_rows(self.table.schema, split)
                if count is not None:
                    return iter([rows_without_columns(count)] if count else [])
            return with_expiry_errors(self._state_rows(split), self.table.snapshots, split.snapshot_id)
        hidden = self._metadata()
        if hidden:
            raise UnsupportedOperation(
                f"changes of {self.name} have no {', '.join(hidden)}, only rows of a snapshot have"
            )
        changes = self._changes.read(split, keep_deletes=self.form in (AUDIT_LOG, BINLOG))
        match self.form:
            case "rows":
                return without_deletions(changes)
            case "changes":
                return map(_in_words, changes)
            case "binlog":
                return packed(changes, binlog_schema(self._changes.schema))
        return changes

    def _metadata(self) -> list[str]:
        return [name for name in self.schema.names if is_metadata(self.table.schema, name)]

    def _state_rows(self, split: DataSplit) -> Iterator[pa.RecordBatch]:
        names = self.schema.names
        if not self._metadata():
            return self._state.read(split)
        pieces = by_file([split]) if FILE_PATH in names else [split]
        return chain.from_iterable(
            with_metadata(self.table, piece, self._state.read(piece), names)
            for piece in pieces
            if isinstance(piece, DataSplit)
        )

    @cached_property
    def _filter(self) -> ScanFilter:
        return ScanFilter.of(self.table.schema, self.predicate)

    @cached_property
    def _state(self) -> SplitReader:
        has_index = ROW_INDEX in self._metadata()
        return SplitReader(self.table, self.columns, self._filter, with_row_index=has_index)

    @cached_property
    def _changes(self) -> ChangeReader:
        return ChangeReader(self.table, self.columns, self._filter, KIND_COLUMNS[self.form], kind_first=True)


def without_deletions(changes: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The inserted rows and the new rows of updates in `changes`, without the row kind, which is the first column."""
    for batch in changes:
        remaining = without_deletes(batch, batch.column(0))
        if remaining.num_rows == 0:
            continue
        if remaining.num_columns == 1:
            yield rows_without_columns(remaining.num_rows)
        else:
            yield remaining.select(list(range(1, remaining.num_columns)))


def _in_words(changes: pa.RecordBatch) -> pa.RecordBatch:
    words = CHANGE_TYPES.take(pc.index_in(changes.column(0), value_set=KINDS))
    return pa.RecordBatch.from_arrays([words, *changes.columns[1:]], schema=changes.schema)
