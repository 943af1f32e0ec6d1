"""Compacting files of a primary-key table's bucket: takes the picked files, returns a `CompactIncrement`.

Files with overlapping keys are merged. A file that overlaps no other and is large enough only moves to the output
level, unless it has deletes that the top level must not contain, or its rows are needed for a changelog. Deletes are
dropped where no older rows remain that they could hide. Rows keep their sequence numbers. Memory holds one batch of
each run, regardless of file sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pyarrow as pa

from forebay.metadata.predicate import col
from forebay.metadata.types import TypeRoot
from forebay.paimon.compact.changelog import ChangelogRules, changes_of, inserts_of
from forebay.paimon.compact.levels import KeyRanges, Levels
from forebay.paimon.compact.universal import CompactUnit
from forebay.paimon.files.pruning import bind_filter
from forebay.paimon.files.reader import DataFileReader, Positions
from forebay.paimon.files.writer import FileSettings, RollingWriter, key_value_fields
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.commit_message import CompactIncrement
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta, FileSource, IndexFileMeta
from forebay.paimon.format.schema import VALUE_KIND, DataField
from forebay.paimon.io.closing import closed_after
from forebay.paimon.merge.intervals import Section
from forebay.paimon.merge.leveled import LevelRules, merge_leveled, with_level, without_deletes
from forebay.paimon.merge.runs import merge_runs
from forebay.paimon.merge.spec import MergeEngine, MergeSpec, merge_function
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import delete_quietly
from forebay.paimon.write.compaction import FreshRows

NO_ROWS: FreshRows = MappingProxyType({})

FULL_COMPACTION = "full-compaction"
LOOKUP = "lookup"

_RANGED = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT, TypeRoot.STRING)
"""The types of first key columns for which a lookup prunes row groups."""


@dataclass(frozen=True)
class BucketVectors:
    """The deletion vectors of a bucket: positions of deleted rows by file, and the index files that hold them."""

    positions: Mapping[str, Positions] = field(default_factory=dict)
    index_files: tuple[IndexFileMeta, ...] = ()


@dataclass
class _RewrittenFiles:
    before: list[DataFileMeta] = field(default_factory=list)
    after: list[DataFileMeta] = field(default_factory=list)
    changelog: list[DataFileMeta] = field(default_factory=list)


class MergeTreeRewriter:
    """Compacts files of one bucket. `new_bucket`: it had no rows before, so no changelog is needed."""

    def __init__(
        self,
        table: TableContext,
        partition: bytes,
        bucket: int,
        *,
        vectors: BucketVectors | None = None,
        new_bucket: bool = False,
        fresh: FreshRows = NO_ROWS,
    ) -> None:
        """`fresh`: rows of files that need not be read."""
        options = table.options
        self._table, self._partition, self._bucket = table, partition, bucket
        self._vectors = vectors or BucketVectors()
        self._fresh = fresh
        self._names = table.paths.data_file_names()
        self._directory = table.paths.bucket_directory(partition, bucket)
        self._spec, self._fields, self._reader, self._changelog_rules = table.once(
            MergeTreeRewriter, lambda: _shared_parts(table)
        )
        self._columns = [f.name for f in self._fields]
        self._small = options.compaction_file_size(True)
        self._rewrite_all = options.compaction_force_rewrite_all_files
        self._producer = options.changelog_producer
        self._looks_up = options.needs_lookup and self._producer != FULL_COMPACTION
        self._tells = self._producer == FULL_COMPACTION or (self._producer == LOOKUP and not new_bucket)
        self._formats = options.file_format_per_level

    # -- one compaction -----------------------------------------------------------------------------------------------

    def compact(self, unit: CompactUnit, levels: Levels) -> CompactIncrement:
        """Compact `unit`, which was picked from `levels`. An error leaves no new files."""
        return _Compaction(self, unit, levels).run()

    def counted(self, f: DataFileMeta) -> DataFileMeta:
        """`f` with its actual number of deletes: one known writer records 0 for every file of level 0.

        Above level 0 readers trust the count, so it is recomputed from one narrow column when a file moves up.
        """
        if f.level != LEVEL_0 or f.delete_row_count != 0:
            return f
        kinds = next(column for column in self._fields if column.name == VALUE_KIND)
        reader = DataFileReader(self._table.io, self._table.schemas.schema, (kinds,))
        row_count = sum(without_deletes(batch).num_rows for batch in self.batches([f], reader=reader))
        return f if row_count == f.row_count else replace(f, delete_row_count=f.row_count - row_count)

    def batches(
        self, files: Sequence[DataFileMeta], runs: int = 1, reader: DataFileReader | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of `files` in sequence, with all stored columns. `runs` are read side by side."""
        for f in files:
            if f.file_name in self._fresh:
                yield from self._fresh[f.file_name]
                continue
            path = self._table.paths.data_file(self._partition, self._bucket, f)
            deleted = self._vectors.positions.get(f.file_name)
            yield from (reader or self._reader).read(f, path, deleted, self._spec.part_bytes(runs))


def _shared_parts(table: TableContext) -> tuple[MergeSpec, tuple[DataField, ...], DataFileReader, ChangelogRules]:
    """What the compactions of all buckets of a table share."""
    spec, fields = merge_function(table.schema, table.paths.root), key_value_fields(table.schema)
    reader = DataFileReader(table.io, table.schemas.schema, fields)
    return spec, fields, reader, ChangelogRules.of(table.schema, table.options, spec)


class _Compaction:
    """The state of one compaction."""

    def __init__(self, rewriter: MergeTreeRewriter, unit: CompactUnit, levels: Levels) -> None:
        self._r, self._unit, self._levels = rewriter, unit, levels
        self._output = unit.output_level
        table = rewriter._table
        layout = row_layout(table.schema.fields_named(table.schema.trimmed_primary_keys))
        self._ranges = KeyRanges(levels.files, layout)
        self._drops = self._output != LEVEL_0 and self._output >= levels.highest_filled
        self._result = _RewrittenFiles()
        self._writers: list[RollingWriter] = []

    def run(self) -> CompactIncrement:
        try:
            if self._unit.rewrite_all:
                self._rewrite(self._ranges.sections(self._unit.files))
            else:
                self._compact()
        except BaseException:
            self._discard()
            raise
        r = self._result
        vectors = self._r._vectors.index_files if r.before else ()
        return CompactIncrement(tuple(r.before), tuple(r.after), tuple(r.changelog), deleted_index_files=vectors)

    def _compact(self) -> None:
        waiting: list[Section] = []
        for section in self._ranges.sections(self._unit.files):
            if len(section) > 1:
                waiting.append(section)
                continue
            for f in section[0]:
                if f.file_size < self._r._small:
                    waiting.append([[f]])
                else:
                    self._rewrite_unless_one(waiting)
                    waiting = []
                    self._upgrade(f)
        self._rewrite_unless_one(waiting)

    def _rewrite_unless_one(self, sections: list[Section]) -> None:
        """Rewrite sections, unless there is only one run, which needs no merging."""
        if len(sections) == 1 and len(sections[0]) == 1:
            for f in sections[0][0]:
                self._upgrade(f)
        elif sections:
            self._rewrite(sections)

    def _discard(self) -> None:
        for writer in self._writers:
            writer.abort()
        inputs = {f.file_name for f in self._result.before}
        for f in (*self._result.after, *self._result.changelog):
            if f.file_name not in inputs:
                delete_quietly(self._r._table.io, f"{self._r._directory}/{f.file_name}")

    # -- files that are moved -----------------------------------------------------------------------------------------

    def _upgrade(self, f: DataFileMeta) -> None:
        r = self._r
        counted = r.counted(f)
        deletes = counted.delete_row_count is None or counted.delete_row_count > 0
        to_top = self._output == self._levels.top
        if (to_top and deletes) or r._rewrite_all or f.file_name in r._vectors.positions:
            self._rewrite([[[f]]])
        elif f.level != self._output:
            if self._must_rewrite(f):
                self._rewrite([[[f]]])
                return
            if self._tells_upgrade(f):
                self._result.changelog += self._changelog_of([[[f]]])
            self._result.before.append(f)
            self._result.after.append(counted.upgrade(self._output))

    def _must_rewrite(self, f: DataFileMeta) -> bool:
        """Whether moving a level 0 file up changes its rows, as older rows of higher levels are merged into them."""
        r = self._r
        if not r._looks_up or f.level != LEVEL_0:
            return False
        if r._formats.get(f.level) != r._formats.get(self._output):
            return True
        if self._output == self._levels.top:
            return False
        return r._spec.engine is not MergeEngine.DEDUPLICATE or bool(r._spec.sequence_fields)

    def _tells_upgrade(self, f: DataFileMeta) -> bool:
        if not self._r._tells:
            return False
        if self._r._producer == FULL_COMPACTION:
            return self._output == self._levels.top
        return f.level == LEVEL_0

    # -- files that are rewritten -------------------------------------------------------------------------------------

    def _rewrite(self, sections: Sequence[Section]) -> None:
        writer = self._new_writer(changelog=False)
        files = [f for section in sections for run in section for f in run]
        tells = self._r._tells and self._has_changelog(files)
        log = self._new_writer(changelog=True) if tells else None
        for section in sections:
            if self._r._looks_up or log is not None:
                self._merge_leveled(section, writer, log)
            else:
                runs = [self._r.batches(run, len(section)) for run in section]
                with closed_after(merge_runs(runs, self._r._spec, keep_deletes=not self._drops)) as merged:
                    for batch in merged:
                        writer.write(batch)
        self._result.before += files
        self._result.after += self._closed(writer)
        if log is not None:
            self._result.changelog += self._closed(log)

    def _has_changelog(self, files: Iterable[DataFileMeta]) -> bool:
        if self._r._producer == FULL_COMPACTION:
            return self._output == self._levels.top
        return any(f.level == LEVEL_0 for f in files)

    def _changelog_of(self, sections: Sequence[Section]) -> list[DataFileMeta]:
        """The changelog files of rows that move up unchanged."""
        log = self._new_writer(changelog=True)
        for section in sections:
            if self._r._looks_up:
                self._merge_leveled(section, None, log)
            else:
                with closed_after(self._r.batches(section[0])) as batches:
                    for batch in batches:
                        log.write(inserts_of(batch))
        return self._closed(log)

    def _merge_leveled(self, section: Section, writer: RollingWriter | None, log: RollingWriter | None) -> None:
        above = self._overlapped(section) if self._r._looks_up else {}
        count = len(section) + len(above)
        runs = [self._leveled(run, count) for run in section]
        rules = LevelRules(before_level=self._levels.top)
        if self._r._looks_up:
            reader = self._range_reader(section) if above else None
            older = [self._leveled(files, count, reader) for _, files in sorted(above.items(), reverse=True)]
            runs = [*older, *runs]
            rules = LevelRules(lowest_only=True, input_max=self._output)
        with closed_after(merge_leveled(runs, self._r._spec, self._r._columns, rules)) as windows:
            for window in windows:
                if writer is not None:
                    writer.write(without_deletes(window.rows) if self._drops else window.rows)
                if log is not None:
                    log.write(changes_of(window, self._r._changelog_rules))

    def _leveled(
        self, files: Sequence[DataFileMeta], runs: int, reader: DataFileReader | None = None
    ) -> Iterator[pa.RecordBatch]:
        for f in files:
            yield from with_level(self._r.batches([f], runs, reader), f.level)

    def _overlapped(self, section: Section) -> dict[int, list[DataFileMeta]]:
        """Files above the output level that may have older rows of the section's keys: one run per level."""
        by_level: dict[int, list[DataFileMeta]] = {}
        for f in self._levels.files:
            if f.level > self._output:
                by_level.setdefault(f.level, []).append(f)
        overlaps = {level: self._ranges.overlapping(files, section) for level, files in by_level.items()}
        return {level: files for level, files in overlaps.items() if files}

    def _range_reader(self, section: Section) -> DataFileReader:
        """A reader that prunes row groups without keys of the section, as far as the first key column allows."""
        r = self._r
        schema = r._table.schema
        first = schema.key_fields[0]
        if first.type.root not in _RANGED:
            return r._reader
        layout = row_layout(schema.fields_named(schema.trimmed_primary_keys))
        ends = layout.decode_all([key for run in section for f in run for key in (f.min_key, f.max_key)])
        values = [v for v in ends.column(0).to_pylist() if v is not None]
        order = (lambda v: v.encode()) if first.type.root is TypeRoot.STRING else None
        low, high = min(values, key=order), max(values, key=order)
        bound = bind_filter((col(first.name) >= low) & (col(first.name) <= high), [first])
        return DataFileReader(r._table.io, r._table.schemas.schema, r._fields, prune=bound)

    # -- writers ------------------------------------------------------------------------------------------------------

    def _new_writer(self, *, changelog: bool) -> RollingWriter:
        r = self._r
        source = FileSource.COMPACT
        level = self._output
        settings = FileSettings.of_table(r._table, level, source, changelog)
        writer = RollingWriter(r._table.io, r._directory, settings, r._names, clock=r._table.clock)
        self._writers.append(writer)
        return writer

    def _closed(self, writer: RollingWriter) -> list[DataFileMeta]:
        files = writer.close()
        self._writers.remove(writer)
        return files
