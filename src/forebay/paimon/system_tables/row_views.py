"""System tables with other views of a table's rows: with row kinds, as a binlog, or read-optimized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.batch_modes import BatchScan
from forebay.paimon.read.change_planner import ChangePlanner, ChangeSplit
from forebay.paimon.read.change_reader import ChangeReader
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.read.table_stream import SplitChanges
from forebay.paimon.store.context import TableContext
from forebay.paimon.system_tables.metadata import scanned_snapshot

ROW_KIND = "rowkind"


def schema_of(name: str, table: TableContext) -> pa.Schema:
    """The schema of `audit_log`, `binlog` or `ro`."""
    if name == "ro":
        return SplitReader(table).schema
    schema = ChangeReader(table, kind_column=ROW_KIND, kind_first=True).schema
    return binlog_schema(schema) if name == "binlog" else schema


def audit_log(table: TableContext) -> pa.RecordBatchReader:
    """Column `rowkind` and the table's columns: of the state, or of the changes chosen by options.

    In the state, each key has its last kind, and deleted keys are included until compaction removes them. Options such
    as `incremental-between` choose changes.
    """
    reader = ChangeReader(table, kind_column=ROW_KIND, kind_first=True)
    return pa.RecordBatchReader.from_batches(reader.schema, _changes(table, reader))


def binlog(table: TableContext) -> pa.RecordBatchReader:
    """The rows of `audit_log` with a list in each column: the values before and after an update, else one value.

    In the state of a table, no rows are combined, because they have different keys.
    """
    reader = BinlogRows(table)
    return pa.RecordBatchReader.from_batches(reader.schema, _changes(table, reader))


class BinlogRows:
    """Reads splits of changes, or of a state, as rows of a binlog. Thread-safe."""

    def __init__(self, table: TableContext) -> None:
        self._changes = ChangeReader(table, kind_column=ROW_KIND, kind_first=True)
        self.schema = binlog_schema(self._changes.schema)

    def read(self, split: ChangeSplit, *, keep_deletes: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows of `split`, in the same order on each call; `keep_deletes` as for a `ChangeReader`."""
        changes = self._changes.read(split, keep_deletes=keep_deletes)
        if isinstance(split, DataSplit) and not split.is_streaming:
            return (_packed(batch, self.schema, pairs=False) for batch in changes)
        return packed(changes, self.schema)


def _changes(table: TableContext, reader: SplitChanges) -> Iterator[pa.RecordBatch]:
    for split in _splits(table):
        yield from reader.read(split, keep_deletes=True)


def _splits(table: TableContext) -> Sequence[ChangeSplit]:
    return BatchScan(table).plan(ScanFilter.of(table.schema, None)).splits


def binlog_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a binlog of changes with `schema`."""
    lists = [pa.field(f.name, pa.list_(pa.field("item", f.type)), f.nullable) for f in list(schema)[1:]]
    return pa.schema([schema.field(0), *lists])


def packed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Changes as a binlog: a -U and the following +U become one row of kind +U. Columns are not copied."""
    waiting: pa.RecordBatch | None = None  # a -U at the end of a batch
    for batch in batches:
        if waiting is not None:
            both = [pa.concat_arrays([a, b]) for a, b in zip(waiting.columns, batch.columns, strict=True)]
            batch, waiting = pa.RecordBatch.from_arrays(both, schema=batch.schema), None
        if batch.column(0)[-1].as_py() == "-U":
            waiting, batch = batch.slice(batch.num_rows - 1), batch.slice(0, batch.num_rows - 1)
        if batch.num_rows:
            yield _packed(batch, schema)
    if waiting is not None:
        yield _packed(waiting, schema)


def _packed(batch: pa.RecordBatch, schema: pa.Schema, pairs: bool = True) -> pa.RecordBatch:
    kinds = np.asarray(batch.column(0).to_pylist())
    is_second = np.zeros(len(kinds), bool)
    if pairs:
        is_second[1:] = (kinds[:-1] == "-U") & (kinds[1:] == "+U")
    starts = np.flatnonzero(~is_second)
    offsets = pa.array(np.append(starts, len(kinds)), pa.int32())
    lasts = np.append(starts[1:], len(kinds)) - 1
    lists = [
        pa.ListArray.from_arrays(offsets, column, type=field.type)
        for column, field in zip(batch.columns[1:], list(schema)[1:], strict=True)
    ]
    return pa.RecordBatch.from_arrays([batch.column(0).take(pa.array(lasts)), *lists], schema=schema)


def read_optimized(table: TableContext, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
    """The rows as of the last full compaction.

    In primary-key tables, these are the files of the top level, which need no merging; in append tables, all files.
    """
    top = table.options.num_levels - 1
    keep = (lambda e: e.file.level == top) if table.schema.has_primary_key else None
    planner = ChangePlanner(table, keep)
    plan = planner.plan(scanned_snapshot(table))
    reader = SplitReader(table, columns)
    return pa.RecordBatchReader.from_batches(reader.schema, (b for split in plan.splits for b in reader.read(split)))
