"""Compaction of append tables: choosing which small files to rewrite (pure functions), and rewriting them.

Tables without buckets are unordered, so any files can be packed together. In a bucket, rows are in the order they were
written, so only adjacent files can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.paimon.compact.rewrite import BucketVectors
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.files.writer import FileSettings, RollingWriter
from forebay.paimon.format.commit_message import CompactIncrement
from forebay.paimon.format.file_meta import DataFileMeta, FileSource
from forebay.paimon.io.closing import closed_after
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext
from forebay.paimon.write.compaction import FreshRows

FORCED_AGE = 5
"""A partition with few small files is compacted anyway after more planning rounds than this."""
DROPPED_AGE = 10
"""A partition without writes for this many rounds is dropped from the coordinator."""

_FULL_FILES_MIN = 3


@dataclass(frozen=True, slots=True)
class AppendRules:
    """The options of append compaction. Sizes are in bytes."""

    target_size: int
    small_size: int
    open_cost: int
    files_min: int

    @classmethod
    def of(cls, options: CoreOptions) -> AppendRules:
        """The rules that a table's options set. Sizes are in bytes."""
        return cls(
            target_size=options.target_file_size(False),
            small_size=options.compaction_file_size(False),
            open_cost=options.source_split_open_file_cost,
            files_min=options.compaction_min_file_num,
        )

    def is_small(self, f: DataFileMeta) -> bool:
        return f.file_size < self.small_size


def pack(files: Iterable[DataFileMeta], rules: AppendRules, *, full: bool = False) -> list[list[DataFileMeta]]:
    """Packs of small files of a partition without buckets; each pack is rewritten by one task.

    A pack is full at twice the target size. The last one is deferred if it has too few files, unless `full`.
    """
    packs: list[list[DataFileMeta]] = []
    waiting: list[DataFileMeta] = []
    weight = 0
    for f in sorted(filter(rules.is_small, files), key=lambda f: (f.file_size, f.file_name)):
        waiting.append(f)
        weight += f.file_size + rules.open_cost
        if len(waiting) > 1 and weight >= 2 * rules.target_size:
            packs.append(waiting)
            waiting, weight = [], 0
    if len(waiting) >= (2 if full else max(2, rules.files_min)):
        packs.append(waiting)
    return packs


def pick_neighbours(files: Iterable[DataFileMeta], rules: AppendRules) -> list[DataFileMeta]:
    """Adjacent files of a bucket that are worth rewriting as one task; empty if there are none.

    A window slides over the files in order: it is returned once it has enough files, and drops its oldest file as soon
    as it is large enough without it.
    """
    window: list[DataFileMeta] = []
    size = 0
    for f in in_order(files):
        window.append(f)
        size += f.file_size
        if len(window) >= rules.files_min:
            return window
        if size >= 2 * rules.target_size:
            size -= window.pop(0).file_size
    return []


def pick_all_neighbours(
    files: Iterable[DataFileMeta], rules: AppendRules, *, rewrite_all: bool = False
) -> list[DataFileMeta]:
    """All files of a bucket from the first small one on, if most of these are small."""
    picks = in_order(files)
    if rewrite_all:
        return picks
    while picks and not rules.is_small(picks[0]):
        picks.pop(0)
    small = sum(rules.is_small(f) for f in picks)
    return picks if len(picks) >= _FULL_FILES_MIN and small > len(picks) - small else []


def in_order(files: Iterable[DataFileMeta]) -> list[DataFileMeta]:
    """The files of a bucket in the order in which their rows were written."""
    return sorted(files, key=lambda f: (f.min_sequence_number, f.max_sequence_number, f.file_name))


class AppendCoordinator:
    """Plans the compaction of a table without buckets in rounds, from the new files of each round.

    A few small files are deferred until there are more, but compacted anyway after `FORCED_AGE` rounds.
    """

    def __init__(self, rules: AppendRules) -> None:
        self._rules = rules
        self._waiting: dict[bytes, dict[str, DataFileMeta]] = {}
        self._ages: dict[bytes, int] = {}

    @property
    def waiting(self) -> dict[bytes, list[DataFileMeta]]:
        """The deferred files, by partition."""
        return {partition: list(files.values()) for partition, files in self._waiting.items()}

    def plan(self, new_files: Mapping[bytes, Iterable[DataFileMeta]]) -> list[tuple[bytes, list[DataFileMeta]]]:
        """The packs to compact now, each with its partition. `new_files` were added since the last round."""
        for partition, files in new_files.items():
            self._waiting.setdefault(partition, {}).update((f.file_name, f) for f in files if self._rules.is_small(f))
            self._ages[partition] = 0
        planned = []
        for partition in list(self._waiting):
            planned += [(partition, files) for files in self._plan_partition(partition)]
            if not self._waiting[partition] or self._ages[partition] > DROPPED_AGE:
                del self._waiting[partition], self._ages[partition]
        return planned

    def _plan_partition(self, partition: bytes) -> list[list[DataFileMeta]]:
        waiting = self._waiting[partition]
        packs = pack(waiting.values(), self._rules)
        if not packs:
            self._ages[partition] += 1
            if self._ages[partition] > FORCED_AGE:
                packs = pack(waiting.values(), self._rules, full=True)
        for files in packs:
            for f in files:
                del waiting[f.file_name]
        return packs


# ---- execution ------------------------------------------------------------------------------------------------------

Arrange = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def rewrite_files(
    table: TableContext,
    partition: bytes,
    bucket: int,
    files: Sequence[DataFileMeta],
    *,
    vectors: BucketVectors | None = None,
    arrange: Arrange | None = None,
) -> CompactIncrement:
    """The result of rewriting `files` in the given order, without deleted rows. An error leaves no new files.

    `arrange` may reorder the rows.
    """
    table = table.able_to_rewrite(files)
    reader = DataFileReader(table.io, table.schemas.schema, table.schema.fields)
    deletions = vectors or BucketVectors()

    def batches() -> Iterator[pa.RecordBatch]:
        for f in files:
            path = table.paths.data_file(partition, bucket, f)
            yield from reader.read(f, path, deletions.positions.get(f.file_name))

    settings = FileSettings.of(table.schema, table.options, source=FileSource.COMPACT)
    first = min((f.min_sequence_number for f in files), default=0)
    directory = table.paths.bucket_directory(partition, bucket)
    writer = RollingWriter(table.io, directory, settings, table.paths.data_file_names(), first, table.clock)
    try:
        with closed_after(batches() if arrange is None else arrange(batches())) as arranged:
            for batch in arranged:
                writer.write(batch)
        after = writer.close()
    except BaseException:
        writer.abort()
        raise
    return CompactIncrement(tuple(files), tuple(after), deleted_index_files=deletions.index_files)


class AppendCompaction:
    """Compacts a bucket of an append table during writing, in order. Not thread-safe."""

    def __init__(
        self,
        table: TableContext,
        partition: bytes,
        bucket: int,
        files: Sequence[DataFileMeta],
    ) -> None:
        self._table, self._partition, self._bucket = table, partition, bucket
        self._rules = AppendRules.of(table.options)
        self._files = {f.file_name: f for f in files}

    def compact(self, new_files: Sequence[DataFileMeta], fresh: FreshRows, *, full: bool) -> CompactIncrement:
        """Add files that were just written, and compact if due."""
        files = {**self._files, **{f.file_name: f for f in new_files}}
        picks = pick_all_neighbours(files.values(), self._rules) if full else self._pick(files)
        increment = CompactIncrement()
        if picks:
            increment = rewrite_files(self._table, self._partition, self._bucket, picks)
            for f in picks:
                del files[f.file_name]
            files.update((f.file_name, f) for f in increment.compact_after)
        self._files = files
        return increment

    def _pick(self, files: Mapping[str, DataFileMeta]) -> list[DataFileMeta]:
        """Adjacent files worth rewriting. Files that a rewrite would not change are not picked again."""
        window = pick_neighbours(self._tail(files), self._rules)
        return window if any(map(self._rules.is_small, window)) else []

    def _tail(self, files: Mapping[str, DataFileMeta]) -> list[DataFileMeta]:
        """The files after the last large one that a compaction wrote; earlier ones have been handled."""
        ordered = in_order(files.values())
        compacted = [
            i for i, f in enumerate(ordered) if f.file_source is FileSource.COMPACT and not self._rules.is_small(f)
        ]
        return ordered[compacted[-1] + 1 :] if compacted else ordered
