"""Planning the compaction of a primary-key table's bucket, and compacting it during writing."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.base.ambient import Clock
from forebay.paimon.compact.levels import Levels
from forebay.paimon.compact.rewrite import BucketVectors, MergeTreeRewriter
from forebay.paimon.compact.universal import CompactUnit, UniversalRules, pick, pick_full
from forebay.paimon.files.writer import local_millis
from forebay.paimon.format.commit_message import CompactIncrement
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext
from forebay.paimon.write.compaction import FreshRows


@dataclass(frozen=True)
class TreePolicy:
    """The table options for picking files. Can be pickled."""

    rules: UniversalRules
    num_levels: int
    force_rewrite: bool
    deletion_vectors: bool

    @classmethod
    def of(cls, options: CoreOptions) -> TreePolicy:
        """The policy that a table's options set."""
        return cls(
            UniversalRules.of(options),
            options.num_levels,
            options.compaction_force_rewrite_all_files,
            options.deletion_vectors_enabled,
        )

    def levels(self, files: Sequence[DataFileMeta]) -> Levels:
        return Levels(files, self.num_levels)

    def pick(self, levels: Levels, clock: Clock, *, full: bool, has_vectors: bool = False) -> CompactUnit | None:
        """The files to compact now, or None; all files if `full`.

        With deletion vectors, everything is compacted as soon as level 0 has a file, because new vectors are never
        written.
        """
        if self.deletion_vectors:
            fresh = any(f.level == LEVEL_0 for f in levels.files)
            if not (full or fresh):
                return None
            return pick_full(levels.runs(), levels.num_levels, rewrite_all=self.force_rewrite or has_vectors)
        if full:
            return pick_full(levels.runs(), levels.num_levels, rewrite_all=self.force_rewrite)
        now = local_millis(clock)
        top_times = [f.creation_time for f in levels.files if f.level == levels.top and f.creation_time is not None]
        hour = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC).hour
        return pick(levels.runs(), levels.num_levels, self.rules, now - max(top_times) if top_times else None, hour)


class TreeCompaction:
    """Compacts a bucket during writing. Not thread-safe."""

    def __init__(
        self,
        table: TableContext,
        partition: bytes,
        bucket: int,
        files: Sequence[DataFileMeta],
        vectors: BucketVectors | None = None,
        new_bucket: bool = False,
    ) -> None:
        """`files` are those of the bucket. `new_bucket`: they are not visible yet, so compaction causes no changes."""
        self._table, self._partition, self._bucket = table, partition, bucket
        self._vectors, self._new_bucket = vectors or BucketVectors(), new_bucket
        self._policy = table.once(TreePolicy, lambda: TreePolicy.of(table.options))
        self._levels = self._policy.levels(files)

    def compact(self, new_files: Sequence[DataFileMeta], fresh: FreshRows, *, full: bool) -> CompactIncrement:
        """Add files that were just written, and compact if due. After an error they are not added."""
        levels = self._policy.levels([*self._levels.files, *new_files])
        vectors = self._vectors
        unit = self._policy.pick(levels, self._table.clock, full=full, has_vectors=bool(vectors.index_files))
        increment = CompactIncrement()
        if unit is not None:
            table = self._table.able_to_rewrite(levels.files)
            rewriter = MergeTreeRewriter(
                table,
                self._partition,
                self._bucket,
                vectors=vectors,
                new_bucket=self._new_bucket,
                fresh=fresh if table is self._table else {},  # those have the columns of this writer's schema
            )
            increment = rewriter.compact(unit, levels)
            levels.update(increment.compact_before, increment.compact_after)
            self._vectors = BucketVectors()
        self._levels = levels
        return increment
