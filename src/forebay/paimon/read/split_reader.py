"""Reading one split: files are read separately where possible, and merged by key otherwise.

The filter is applied after merging: a row that does not match may replace one that does. Only conditions on the key are
applied before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.small_arrays import int8_array
from forebay.codec.filters import BoundPredicate, columns_of, filter_rows
from forebay.metadata.types import bigint, tinyint
from forebay.paimon.files.reader import GROUP_BYTES_MAX, ROW_INDEX_FIELD, DataFileReader, Positions
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.deletion_vector import read_deletion_vector
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta
from forebay.paimon.format.schema import (
    SEQUENCE_NUMBER,
    SEQUENCE_NUMBER_ID,
    VALUE_KIND,
    VALUE_KIND_ID,
    DataField,
)
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.io.closing import close_sources, closed_after
from forebay.paimon.io.read_ahead import SOURCES_MAX, ReadAhead, Source, one_after_the_other, read_ahead
from forebay.paimon.merge.intervals import Section
from forebay.paimon.merge.leveled import LevelRules, merge_leveled, with_level, without_deletes
from forebay.paimon.merge.runs import merge_runs
from forebay.paimon.merge.spec import MergeEngine, MergeSpec, merge_function
from forebay.paimon.read.key_order import RowKeyOrder
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.projection import cut_batch, project, read_schema
from forebay.paimon.read.splits import sections_of
from forebay.paimon.store.context import TableContext

SEQUENCE_FIELD = DataField(SEQUENCE_NUMBER_ID, SEQUENCE_NUMBER, bigint().not_null())
KIND_FIELD = DataField(VALUE_KIND_ID, VALUE_KIND, tinyint().not_null())
_DELETES = int8_array(1, 3)
_UNPACKED_FACTOR = 4
"""The approximate ratio of the size of rows in memory to the size of their file."""

_FOLDING = (MergeEngine.PARTIAL_UPDATE, MergeEngine.AGGREGATION)


class SplitReader:
    """Reads splits of a table as batches of the requested columns. Stateless between splits; thread-safe."""

    def __init__(
        self,
        table: TableContext,
        columns: Sequence[str] | None = None,
        scan_filter: ScanFilter | None = None,
        *,
        with_row_index: bool = False,
    ) -> None:
        """`with_row_index`: rows of an append table have a last column, their position in their file."""
        self._table = table
        self._filter = scan_filter or ScanFilter.of(table.schema, None)
        self._rows = self._filter.rows
        self.fields = (*project(table.schema, columns), *([ROW_INDEX_FIELD] if with_row_index else []))
        self.schema = read_schema(self.fields)
        self._spec: MergeSpec | None = (
            merge_function(table.schema, table.paths.root) if table.schema.has_primary_key else None
        )
        self._raw_fields = self._with_filter_columns(self.fields)

    def _with_filter_columns(self, fields: Sequence[DataField]) -> tuple[DataField, ...]:
        """`fields`, complete where the filter reads nested parts, and the other columns that the filter reads."""
        filter_columns = columns_of(self._rows) if self._rows is not None else set()
        schema = self._table.schema
        by_name = {f.name: schema.field_named(f.name) if f.name in filter_columns else f for f in fields}
        for name in schema.names:
            if name in filter_columns:
                by_name.setdefault(name, schema.field_named(name))
        return tuple(by_name.values())

    # -- a split ------------------------------------------------------------------------------------------------------

    def read(self, split: DataSplit) -> Iterator[pa.RecordBatch]:
        """The matching rows of `split`, in no guaranteed order (append tables: in the order they were written)."""
        return self.read_all([split])

    def read_all(self, splits: Sequence[DataSplit]) -> Iterator[pa.RecordBatch]:
        """The rows of `splits`, one after the other, each as `read` returns them."""
        sources = [source for split in splits for source in self._sources(split)]
        if len(sources) < 2 or not self._table.io.is_remote:
            return one_after_the_other(sources)
        return read_ahead(sources)

    def _sources(self, split: DataSplit) -> list[Source]:
        """The rows of a split, in parts that can be read at the same time."""
        if self._spec is not None and not split.raw_convertible:
            size = sum(_memory(file) for file in split.files)
            return [Source(min(size, GROUP_BYTES_MAX), partial(self._read_merged, split))]
        return self._files(split)

    def read_sorted(self, split: DataSplit) -> Iterator[pa.RecordBatch]:
        """The rows of a split by ascending key; of append tables, in the order in which they were written."""
        return self.read(split) if self._spec is None else self._read_merged(split)

    def read_bucket(self, splits: Sequence[DataSplit]) -> Iterator[pa.RecordBatch]:
        """The rows of all `splits` of one bucket as one sorted read: ascending by `order`, each key once.

        Raises `InvalidRequest` for splits of different buckets or snapshots.
        """
        if not splits:
            return iter(())
        if len({(s.snapshot_id, s.partition, s.bucket) for s in splits}) > 1:
            raise InvalidRequest("these splits are of several buckets, or snapshots; read each bucket separately")
        if len(splits) == 1:
            return self.read_sorted(splits[0])
        deletions = tuple(d for s in splits for d in s.deletion_files or (None,) * len(s.files))
        files = tuple(f for s in splits for f in s.files)
        return self.read_sorted(
            replace(splits[0], files=files, raw_convertible=False, deletion_files=deletions if any(deletions) else None)
        )

    @property
    def order(self) -> RowKeyOrder | None:
        """The order of sorted reads; None in append tables, which return rows in the order they were written."""
        if self._spec is None:
            return None
        return RowKeyOrder(self._table.schema.fields_named(self._table.schema.trimmed_primary_keys))

    def _files(self, split: DataSplit) -> list[Source]:
        """The rows of each file of a split in which no row replaces another one."""
        deletions = split.deletion_files or (None,) * len(split.files)
        return [
            Source(_memory(file), partial(self._read_file, split, file, deletion))
            for file, deletion in zip(split.files, deletions, strict=True)
        ]

    def _read_file(
        self, split: DataSplit, file: DataFileMeta, deletion: DeletionFile | None
    ) -> Iterator[pa.RecordBatch]:
        # Delete counts are missing in old files, and wrong (0) in level 0 files of one known writer.
        checks = self._spec is not None and (file.level == LEVEL_0 or file.delete_row_count is None)
        path = self._table.paths.data_file(split.partition, split.bucket, file)
        reader = self._kinded_reader if checks else self._plain_reader
        with closed_after(reader.read(file, path, self._deleted(deletion))) as batches:
            for batch in batches:
                yield from self._finished(_without_deletes(batch) if checks else batch, self._raw_fields, None)

    @cached_property
    def _plain_reader(self) -> DataFileReader:
        return self._file_reader(self._raw_fields)

    @cached_property
    def _kinded_reader(self) -> DataFileReader:
        return self._file_reader((*self._raw_fields, KIND_FIELD))

    def _file_reader(self, fields: Sequence[DataField]) -> DataFileReader:
        table = self._table
        return DataFileReader(table.io, table.schemas.schema, fields, keep=self._rows, schema_id=table.schema.id)

    def _read_merged(self, split: DataSplit) -> Iterator[pa.RecordBatch]:
        fields = self._merge_fields()[1]
        with closed_after(self._merged(split, [f.name for f in fields], keep_deletes=False)) as merged:
            for batch in merged:
                yield from self._finished(batch, fields, self._rows)

    def _merged(self, split: DataSplit, names: Sequence[str], *, keep_deletes: bool) -> Iterator[pa.RecordBatch]:
        """The columns `names` of the merged rows, by ascending key, before filtering."""
        assert self._spec is not None
        for section in self.sections(split.files):
            part = self._spec.part_bytes(len(section))
            runs: Sequence[Iterable[pa.RecordBatch]] = [self._run(split, run, part) for run in section]
            if len(runs) > 1 and self._newest_decides:
                runs = self._newest(section, runs)
            elif 1 < len(runs) <= SOURCES_MAX and self._table.io.is_remote:
                runs = [ReadAhead(partial(iter, run), part // 2) for run in runs]
            merged = (
                _merged_lowest(runs, self._spec, names, keep_deletes)
                if self._lowest_only
                else merge_runs(runs, self._spec, columns=names, keep_deletes=keep_deletes)
            )
            try:
                with closed_after(merged):
                    yield from merged
            finally:
                close_sources(runs)

    @property
    def _newest_decides(self) -> bool:
        """Whether there is one key to read, whose row with the greatest sequence number is its state."""
        spec = self._spec
        return (
            spec is not None
            and self._filter.fixes_key
            and spec.engine is MergeEngine.DEDUPLICATE
            and not (spec.sequence_fields or spec.ignore_delete)
        )

    def _newest(self, section: Section, runs: Sequence[Iterable[pa.RecordBatch]]) -> list[Iterable[pa.RecordBatch]]:
        """Runs of one key with the rows that can decide it: files that are older than a found row are not read."""
        runs_read: list[Iterable[pa.RecordBatch]] = [()] * len(runs)
        newest = [max(f.max_sequence_number for f in run) for run in section]
        decisive = -1
        try:
            for at in sorted(range(len(runs)), key=lambda at: -newest[at]):
                if newest[at] < decisive:
                    break
                runs_read[at] = batches = list(runs[at])
                decisive = max([decisive, *(pc.max(batch.column(SEQUENCE_NUMBER)).as_py() for batch in batches)])
        finally:
            close_sources(runs)
        return runs_read

    @property
    def _lowest_only(self) -> bool:
        """Whether the lowest level above 0 has a key's final row, as compaction looked up and merged the others."""
        spec = self._spec
        return spec is not None and spec.needs_lookup and spec.engine in _FOLDING

    def _merge_fields(self) -> tuple[tuple[DataField, ...], tuple[DataField, ...]]:
        """The columns that go into a merge, and those that it returns."""
        assert self._spec is not None
        schema = self._table.schema
        out = [f.name for f in self._with_filter_columns(self.fields)]
        values = schema.fields_named(self._spec.required_columns(out))
        out_fields = schema.fields_named(out)
        return (*schema.key_fields, SEQUENCE_FIELD, KIND_FIELD, *values), out_fields

    def _run(self, split: DataSplit, files: Sequence[DataFileMeta], part_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of a run, in batches of about `part_bytes`, as a merge takes them."""
        deletion_of = dict(zip((f.file_name for f in split.files), split.deletion_files or (), strict=False))
        for file in files:
            batches = self._run_file(split, file, deletion_of.get(file.file_name), part_bytes)
            yield from with_level(batches, file.level) if self._lowest_only else batches

    def _run_file(
        self, split: DataSplit, file: DataFileMeta, deletion: DeletionFile | None, part_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one file of a run."""
        path = self._table.paths.data_file(split.partition, split.bucket, file)
        return self._run_reader.read(file, path, self._deleted(deletion), part_bytes)

    @cached_property
    def _run_reader(self) -> DataFileReader:
        table, fields = self._table, self._merge_fields()[0]
        return DataFileReader(table.io, table.schemas.schema, fields, keep=self._filter.key, schema_id=table.schema.id)

    def sections(self, files: Sequence[DataFileMeta]) -> list[Section]:
        """The files of a bucket as sections of overlapping runs, by ascending key."""
        schema = self._table.schema
        return sections_of(files, row_layout(schema.fields_named(schema.trimmed_primary_keys)))

    def _finished(
        self, batch: pa.RecordBatch, fields: Sequence[DataField], rows: BoundPredicate | None
    ) -> Iterator[pa.RecordBatch]:
        """The requested columns of the rows that match `rows`."""
        matches = batch if rows is None else _filtered(batch, rows)
        if matches.num_rows == 0:
            return
        if tuple(fields) == self.fields and matches.schema.equals(self.schema):
            yield matches
        else:
            yield cut_batch(matches, {f.name: f for f in fields}, self.fields)

    def _deleted(self, deletion: DeletionFile | None) -> Positions | None:
        if deletion is None:
            return None
        with self._table.io.open_input(deletion.path) as source:
            source.seek(deletion.offset)
            # The recorded length excludes the length field before the bitmap and the checksum after it.
            data = source.read(deletion.length + 8)
        return np.asarray(read_deletion_vector(data), np.int64)


def _memory(file: DataFileMeta) -> int:
    """About the bytes that reading a file takes in memory at a time."""
    return min(_UNPACKED_FACTOR * file.file_size, GROUP_BYTES_MAX)


def _merged_lowest(
    runs: Sequence[Iterable[pa.RecordBatch]], spec: MergeSpec, names: Sequence[str], keep_deletes: bool
) -> Iterator[pa.RecordBatch]:
    """The merged rows; of a key's rows above level 0, only that of the lowest level counts."""
    columns = list(dict.fromkeys([*names, VALUE_KIND]))
    with closed_after(merge_leveled(runs, spec, columns, LevelRules(lowest_only=True))) as windows:
        for window in windows:
            batch = window.rows if keep_deletes else without_deletes(window.rows)
            yield batch.select(list(names))


def _filtered(batch: pa.RecordBatch, rows: BoundPredicate) -> pa.RecordBatch:
    matches: pa.RecordBatch = filter_rows(batch, rows)
    return matches


def _without_deletes(batch: pa.RecordBatch) -> pa.RecordBatch:
    kinds = batch.column(batch.schema.get_field_index(VALUE_KIND))
    if not pc.any(pc.is_in(kinds, value_set=_DELETES), min_count=0).as_py():
        return batch
    return batch.filter(pc.invert(pc.is_in(kinds, value_set=_DELETES)))
