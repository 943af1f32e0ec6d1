"""Reading splits with row kinds: column `_row_kind` holds +I, -U, +U or -D.

As in Java Paimon, rows of a full read have the kind they were last written with where files are merged, and +I where a
file is read without merging. Rows of a delta or a changelog keep the kinds they were written with, in file order. An
overwrite first deletes the rows it replaced, then inserts the new ones. The filter applies to each row separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import NotFound
from forebay.codec.arrow.small_arrays import text_array
from forebay.codec.filters import filter_rows
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.schema import VALUE_KIND, DataField
from forebay.paimon.format.split import DataSplit
from forebay.paimon.io.closing import closed_after
from forebay.paimon.read.change_planner import ChangeSplit, IncrementalSplit
from forebay.paimon.read.difference import DELETE, INSERT, Changes, keyed_difference, multiset_difference
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.projection import cut_batch
from forebay.paimon.read.split_reader import KIND_FIELD, SplitReader
from forebay.paimon.store.context import TableContext

ROW_KIND = "_row_kind"
KINDS = text_array("+I", "-U", "+U", "-D")
"""The names of the row kinds; a kind's number is its index."""

_ADDED = text_array("+I", "+U")


def without_deletes(batch: pa.RecordBatch, kinds: pa.Array) -> pa.RecordBatch:
    """The rows of `batch` that were inserted or are the new row of an update; `kinds` has the kind of each row."""
    added = pc.is_in(kinds, value_set=_ADDED)
    return batch if pc.all(added, min_count=0).as_py() else batch.filter(added)


class ChangeReader:
    """Reads splits of changes as batches of the requested columns and `_row_kind`. Thread-safe."""

    def __init__(
        self,
        table: TableContext,
        columns: Sequence[str] | None = None,
        scan_filter: ScanFilter | None = None,
        kind_column: str = ROW_KIND,
        kind_first: bool = False,
    ) -> None:
        """`kind_column` names the column of row kinds, which comes last, or first with `kind_first`."""
        self._table = table
        self._filter = scan_filter or ScanFilter.of(table.schema, None)
        self._state = _StateReader(table, columns, self._filter)
        self._whole = _StateReader(table, None, ScanFilter.of(table.schema, None))
        self._kind_first = kind_first
        self.fields: tuple[DataField, ...] = self._state.fields
        kind = pa.field(kind_column, pa.string(), nullable=False)
        columns_only = list(self._state.schema)
        self.schema = pa.schema([kind, *columns_only] if kind_first else [*columns_only, kind])

    def read(self, split: ChangeSplit, *, keep_deletes: bool = False) -> Iterator[pa.RecordBatch]:
        """The changes of `split`, in the same order on each call.

        `keep_deletes`: a read of the state of a primary-key table also returns keys whose last record is a delete
        (unless compacted away), and returns the written row kinds even where a file is read without merging.
        """
        try:
            for batch, kinds in self._changes(split, keep_deletes):
                if batch.num_rows:
                    yield self._with_kinds(batch, kinds)
        except NotFound as e:
            if self._table.io.exists(self._table.paths.snapshot(split.snapshot_id)):
                raise
            raise NotFound(
                f"snapshot {split.snapshot_id} of {self._table.paths.root} expired while it was being read "
                f"({e.message}); raise 'snapshot.time-retained', or read with a 'consumer-id', which keeps what is not "
                "read yet"
            ) from e

    def _changes(self, split: ChangeSplit, keep_deletes: bool) -> Iterator[Changes]:
        if isinstance(split, IncrementalSplit):
            return self._overwritten(split) if split.is_streaming else self._compared(split)
        if split.is_streaming:
            return self._state.written(split)
        if keep_deletes or self._state.merges(split):
            return self._state.with_kinds(split, keep_deletes=keep_deletes)
        return _all_of(self._state.read(split), INSERT)

    def _overwritten(self, split: IncrementalSplit) -> Iterator[Changes]:
        yield from _all_of(self._state.read(split.before), DELETE)
        yield from _all_of(self._state.read(split.after), INSERT)

    def _compared(self, split: IncrementalSplit) -> Iterator[Changes]:
        schema = self._table.schema
        layout = row_layout(schema.fields)
        if schema.has_primary_key:
            before, after = (
                _kinded(self._whole.with_kinds(half, keep_deletes=False)) for half in (split.before, split.after)
            )
            compared = keyed_difference(before, after, schema.trimmed_primary_keys, layout)
            changes: Iterator[Changes] = map(_as_written, compared)
        elif not split.before.files:
            changes = _all_of(self._whole.read_sorted(split.after), INSERT)
        else:
            old, new = (_one(self._whole.read_sorted(half), self._whole.schema) for half in (split.before, split.after))
            changes = iter([multiset_difference(old, new, layout)])
        for batch, kinds in changes:
            yield self._cut(batch, kinds)

    def _cut(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> Changes:
        """The requested columns of the matching rows of a batch with all columns."""
        if self._filter.rows is not None:
            batch = filter_rows(batch.append_column(VALUE_KIND, pa.array(kinds)), self._filter.rows)
            kinds = batch.column(VALUE_KIND).to_numpy()
        return cut_batch(batch, {f.name: f for f in self._table.schema.fields}, self.fields), kinds

    def _with_kinds(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> pa.RecordBatch:
        names = KINDS.take(pa.array(kinds, pa.int8()))
        columns = [names, *batch.columns] if self._kind_first else [*batch.columns, names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _StateReader(SplitReader):
    """A `SplitReader` that can also return row kinds."""

    def written(self, split: DataSplit) -> Iterator[Changes]:
        """All rows of the files as written, without merging."""
        fields = self._raw_fields if self._spec is None else (*self._raw_fields, KIND_FIELD)
        reader = DataFileReader(
            self._table.io, self._table.schemas.schema, fields, keep=self._rows, schema_id=self._table.schema.id
        )
        for file in split.files:
            path = self._table.paths.data_file(split.partition, split.bucket, file)
            for batch in reader.read(file, path):
                yield self._divided(batch, self._raw_fields)

    def merges(self, split: DataSplit) -> bool:
        """Whether a read of `split` merges files."""
        return self._spec is not None and not split.raw_convertible

    def with_kinds(self, split: DataSplit, *, keep_deletes: bool) -> Iterator[Changes]:
        """The merged rows with their kinds, including deletes with `keep_deletes`."""
        if self._spec is None:
            yield from _all_of(self.read(split), INSERT)
            return
        out = self._merge_fields()[1]
        with closed_after(self._merged(split, [*(f.name for f in out), VALUE_KIND], keep_deletes=keep_deletes)) as rows:
            for batch in rows:
                matches = batch if self._rows is None else filter_rows(batch, self._rows)
                yield self._divided(matches, out)

    def _divided(self, batch: pa.RecordBatch, fields: Sequence[DataField]) -> Changes:
        """The requested columns of a batch, and its row kinds."""
        index = batch.schema.get_field_index(VALUE_KIND)
        kinds = np.zeros(batch.num_rows, np.int8) if index < 0 else batch.column(index).to_numpy(zero_copy_only=False)
        return cut_batch(batch, {f.name: f for f in fields}, self.fields), kinds


def _kinded(changes: Iterator[Changes]) -> Iterator[pa.RecordBatch]:
    """The rows, with their kinds added as a column."""
    for batch, kinds in changes:
        yield batch.append_column(VALUE_KIND, pa.array(kinds, pa.int8()))


def _as_written(changes: Changes) -> Changes:
    """A difference of rows with a column of kinds: new and changed rows get the kind they were written with."""
    batch, kinds = changes
    own = batch.column(VALUE_KIND).to_numpy(zero_copy_only=False)
    return batch.drop_columns([VALUE_KIND]), np.where(kinds == DELETE, kinds, own).astype(np.int8)


def _all_of(batches: Iterator[pa.RecordBatch], kind: int) -> Iterator[Changes]:
    for batch in batches:
        yield batch, np.full(batch.num_rows, kind, np.int8)


def _one(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All batches, concatenated into one."""
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    combined = table.to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema)
