"""Writing to a table: takes batches, returns commit messages.

`TableWrite` splits rows by partition and bucket and passes them to one writer per bucket. Nothing is visible until the
messages of `prepare_commit` are committed. The buffers of all buckets together stay below `write-buffer-size`: the
largest buffers are flushed first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.api.changes import split_changes
from forebay.base.arguments import one_or_more_names
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.lake_events import LakeCompaction, table_of, tell
from forebay.codec.arrow.empty_offsets import with_offsets
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement, DataIncrement
from forebay.paimon.format.file_meta import DataFileMeta, IndexFileMeta, IndexManifestEntry, ManifestEntry
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.merge.spec import MergeSpec, merge_function
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import delete_quietly
from forebay.paimon.write.bucketing import UNAWARE, FixedBuckets, Part, PartitionSplitter, parts_of
from forebay.paimon.write.compaction import BucketCompaction, WriteCompaction
from forebay.paimon.write.dynamic_buckets import DynamicBuckets
from forebay.paimon.write.incoming import DELETE, INSERT, UPDATE_BEFORE, Intake, names_of, parse_kinds
from forebay.paimon.write.partial import partial_columns
from forebay.paimon.write.retractions import (
    check_delete_rows,
    check_group_columns,
    check_kinds,
    check_takes_deletes,
)
from forebay.paimon.write.writers import AppendWriter, BucketWriter, KeyValueWriter

OPEN_FILES_MAX = 64
"""With more buckets than this, an early flush also closes the file, to limit the number of open files."""

_LOGGER = logging.getLogger(__name__)

Key = tuple[bytes, int]
_Prepared = tuple[DataIncrement, CompactIncrement]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WriterShard:
    """The index of a writer among the `count` writers that write the same buckets for one commit.

    Writer `index` numbers its rows next + index, next + index + count, ..., so that sequence numbers are unique within
    a commit, and every merge agrees on which of two rows with the same key is newer.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InvalidRequest(f"writer {self.index} is none of {self.count}")


class ExistingFiles:
    """The state of a snapshot's buckets that writers need: files, last sequence numbers, bucket counts."""

    def __init__(self, entries: Iterable[ManifestEntry]) -> None:
        self._sequence: dict[Key, int] = {}
        self._files: dict[Key, list[DataFileMeta]] = {}
        self._totals: dict[bytes, int] = {}
        for e in entries:
            key = (e.partition, e.bucket)
            self._files.setdefault(key, []).append(e.file)
            self._sequence[key] = max(self._sequence.get(key, -1), e.file.max_sequence_number)
            if e.bucket >= 0:  # postponed rows are in no bucket yet
                self._totals[e.partition] = e.total_buckets

    def next_sequence(self, key: Key) -> int:
        return self._sequence.get(key, -1) + 1

    def files(self, key: Key) -> Sequence[DataFileMeta]:
        return self._files.get(key, ())

    def total_buckets(self, partition: bytes) -> int | None:
        """The bucket count of the partition's files; None if it is empty."""
        return self._totals.get(partition)


class TableWrite:
    """Writes rows of a table. Not thread-safe; each thread or process needs its own writer.

    Writers of different commits may write the same bucket at the same time: the later commit gives its rows greater
    sequence numbers (`forebay.paimon.commit.sequence_numbers`). Several writers of one commit may, if each has its own
    `WriterShard`; then none of them may compact.
    """

    def __init__(
        self,
        table: TableContext,
        ignore_existing: bool = False,
        compaction: WriteCompaction | None = None,
        lane: WriterShard = WriterShard(),
    ) -> None:
        """`ignore_existing`: the rows will replace the existing ones (an overwrite), so existing files are ignored.

        `compaction` compacts buckets when they are prepared; without it, nothing is compacted.
        """
        table.options.check_supported()
        self._table, self._lane = table, lane
        schema = table.schema
        self._spec: MergeSpec | None = merge_function(schema, table.paths.root) if schema.has_primary_key else None
        self._check_key_covers_partitions()
        self._partitions = PartitionSplitter(schema)
        self._fixed = FixedBuckets(schema)
        self._total = self._fixed.total
        is_dynamic = self._spec is not None and self._total == UNAWARE
        self._dynamic = DynamicBuckets(table, self._index_of) if is_dynamic else None
        self._ignore_existing = ignore_existing
        self._existing: ExistingFiles | None = None
        self._snapshot: Snapshot | None = None
        self._names = table.paths.data_file_names()
        self._writers: dict[Key, BucketWriter] = {}
        self._compaction = compaction
        self._compactions: dict[Key, BucketCompaction | None] = {}
        self._buffer_max = table.options.write_buffer_size
        self._ignored = _ignored_kinds(table.options)

    def _check_key_covers_partitions(self) -> None:
        schema = self._table.schema
        missing = [k for k in schema.partition_keys if k not in schema.primary_keys]
        if self._spec is not None and missing:
            raise UnsupportedOperation(
                f"the primary key does not have the partition columns {missing}: a row could move between partitions, "
                "which is not supported; put them into the primary key"
            )

    # -- rows ---------------------------------------------------------------------------------------------------------

    def upsert(self, data: Any, columns: Sequence[str] | str | None = None, missing: str = "error") -> int:
        """Write rows of a table with a primary key as `Table.upsert` does, and return their number."""
        if missing not in ("error", "null"):
            raise InvalidRequest(f"missing={missing!r} is neither 'error' nor 'null'")
        if columns is not None:
            return self.write(data, columns=one_or_more_names(columns, "columns"))
        if self._spec is not None and (names := names_of(data)) is not None:
            check_group_columns(self._spec, frozenset(names), f"upsert into {self._table.paths.root}")
        keeps_others = self._table.options.merge_engine in ("partial-update", "aggregation")
        return self.write(data, is_whole=missing == "error" and not keeps_others)

    def write(
        self, data: Any, kinds: Any = None, columns: Sequence[str] | None = None, *, is_whole: bool = False
    ) -> int:
        """Write rows; return the number of those that were not ignored.

        With `columns`, only these are written, and merging keeps the others.

        `data` is anything that `forebay.codec.casting.batches` accepts. `kinds` are the row kinds, one per row (a
        sequence or Arrow array of +I, -U, +U, -D or 0 to 3); by default, rows are inserts. With `is_whole`, data that
        lacks columns is an error.
        """
        kind_codes = None if kinds is None else parse_kinds(_array(kinds), "argument 'kinds'")
        names = None if columns is None else partial_columns(self._table, self._spec, columns)
        intake = Intake(self._table.schema, names, leaves_others=names is not None)
        rows = written = 0
        for batch in intake.batches(data, is_whole=is_whole):
            if kind_codes is None:
                batch_kinds = intake.kinds_of(batch, INSERT)
            else:
                batch_kinds = kind_codes[rows : rows + batch.num_rows]
                if len(batch_kinds) != batch.num_rows:
                    raise InvalidRequest(f"{len(kind_codes)} row kinds were given for more rows")
            rows += batch.num_rows
            written += self.write_batch(batch, batch_kinds)
        if kind_codes is not None and len(kind_codes) != rows:
            raise InvalidRequest(f"{len(kind_codes)} row kinds were given for {rows} rows")
        return written

    def write_changes(self, data: Any) -> int:
        """Write rows by their column `_change_type`, and return the number of those that were not ignored."""
        return sum(self.write(rows, kinds) for rows, kinds in split_changes(data))

    def delete(self, data: Any) -> int:
        """Delete the rows with the keys in `data`, and return the number of keys.

        Only the columns of the primary key are needed, and the sequence fields if the table has any. Raises
        `UnsupportedOperation` if the merge engine would keep the rows.
        """
        if self._spec is None:
            raise InvalidRequest("an append table has no primary key by which rows could be deleted")
        what, rows = f"delete from {self._table.paths.root}", 0
        check_takes_deletes(self._spec, what)
        for batch in Intake(self._table.schema).batches(data, deletes=True):
            check_delete_rows(self._spec, batch, what)
            self.write_batch(batch, np.full(batch.num_rows, DELETE, np.int8))
            rows += batch.num_rows
        return rows

    def write_batch(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> int:
        """Write rows that have exactly the table's Arrow schema; return the number of those that were not ignored.

        Rows of ignored kinds (`ignore-delete`, `ignore-update-before`) are dropped. Raises `InvalidRequest` for kinds
        that the merge engine cannot merge.
        """
        batch, kinds = self._taken(batch, kinds)
        if batch.num_rows == 0:
            return 0
        partitions, partition_of = self._partitions.split(batch)
        if self._dynamic is not None:
            buckets = self._dynamic.of(batch, partitions, partition_of)
        else:
            buckets = self._fixed.of(batch)
        for part in parts_of(partitions, partition_of, buckets):
            self._write_part(batch, kinds, part)
        self._spill()
        return len(kinds)

    def _taken(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> tuple[pa.RecordBatch, npt.NDArray[np.int8]]:
        """The rows without those of ignored kinds. Raises `InvalidRequest` for kinds that cannot be merged."""
        if self._ignored and (ignored := np.isin(kinds, self._ignored)).any():
            batch, kinds = batch.filter(pa.array(~ignored)), kinds[~ignored]
        if self._spec is not None:
            check_kinds(self._spec, kinds, f"writing to {self._table.paths.root}")
        return with_offsets(batch), kinds

    def write_bucket(self, partition: bytes, bucket: int, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> None:
        """Write rows of one partition and bucket: see `write_batch`. Partition and bucket are not checked.

        A wrong bucket results in duplicate keys. In tables without buckets, `bucket` is 0.
        """
        if self._dynamic is not None:
            raise InvalidRequest("the buckets of a table with dynamic buckets are chosen by its index; use write_batch")
        if not 0 <= bucket < max(self._total, 1):
            raise InvalidRequest(f"bucket {bucket} is none of the table's {max(self._total, 1)}")
        batch, kinds = self._taken(batch, kinds)
        if batch.num_rows:
            self._write_part(batch, kinds, Part(partition, bucket, None))
            self._spill()

    def _write_part(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8], part: Part) -> None:
        writer = self._writer((part.partition, part.bucket))
        if part.rows is None:
            writer.write(batch, kinds)
        else:
            writer.write(batch.take(part.rows), kinds[part.rows.to_numpy()])

    def _spill(self) -> None:
        """If the buffers together are too large, flush the largest, about half of the total, in parallel."""
        total = sum(w.buffered_bytes for w in self._writers.values())
        if total <= self._buffer_max:
            return
        end_file = len(self._writers) > OPEN_FILES_MAX
        flushes: list[Callable[[], None]] = []
        for writer in sorted(self._writers.values(), key=lambda w: w.buffered_bytes, reverse=True):
            if total <= self._buffer_max // 2:
                break
            total -= writer.buffered_bytes
            flushes.append(partial(writer.flush, end_file=end_file))
        for flush in _side_by_side(flushes):
            flush.result()

    # -- writers ------------------------------------------------------------------------------------------------------

    def _writer(self, key: Key) -> BucketWriter:
        writer = self._writers.get(key)
        if writer is None:
            self._check_bucket_count(key[0])
            writer = self._writers[key] = self._new_writer(key)
            self._compactions[key] = self._new_compaction(key)
        return writer

    def _new_writer(self, key: Key) -> BucketWriter:
        directory = self._table.paths.bucket_directory(*key)
        if self._spec is None:
            # Rows of tables without buckets have no order, so their numbers need not continue.
            first = 0 if self._total == UNAWARE else self._state().next_sequence(key)
            return AppendWriter(self._table, directory, self._names, first)
        first, lane = self._state().next_sequence(key) + self._lane.index, self._lane.count
        return KeyValueWriter(self._table, self._spec, directory, self._names, first, lane)

    def _new_compaction(self, key: Key) -> BucketCompaction | None:
        if self._compaction is None or (self._spec is None and self._total == UNAWARE):
            return None
        return self._compaction.of_bucket(*key, self._state().files(key), self._ignore_existing)

    def _check_bucket_count(self, partition: bytes) -> None:
        """Raise if the partition was written with another bucket count: its keys would be in two buckets."""
        if self._total == UNAWARE:
            return
        existing = self._state().total_buckets(partition)
        if existing is not None and existing != self._total:
            where = self._table.paths.partition_directory(partition) or "the table"
            raise InvalidRequest(
                f"{where} was written with {existing} buckets, and the table now has {self._total}: "
                "rescale the partition before writing to it, or overwrite it (if it was rescaled since this table was "
                "opened, reopen the table)"
            )

    def _state(self) -> ExistingFiles:
        if self._existing is None:
            self._existing = ExistingFiles(() if self._ignore_existing else self._latest_files())
        return self._existing

    def _latest_files(self) -> list[ManifestEntry]:
        while True:
            self._snapshot = self._table.snapshots.latest()
            try:
                return [] if self._snapshot is None else self._table.manifests.live_files(self._snapshot)
            except NotFound:
                if self._snapshot is None or self._table.snapshots.exists(self._snapshot.id):
                    raise  # otherwise, later snapshots were created and it expired while it was read

    @property
    def _base(self) -> int | None:
        """The snapshot that was read for sequence numbers; 0: there was none, None: it was not looked for."""
        if self._ignore_existing or self._existing is None:
            return None
        return 0 if self._snapshot is None else self._snapshot.id

    def _index_of(self, partition: bytes) -> Sequence[IndexManifestEntry]:
        self._state()
        if self._snapshot is None:
            return []
        return [e for e in self._table.manifests.read_index(self._snapshot.index_manifest) if e.partition == partition]

    # -- commits ------------------------------------------------------------------------------------------------------

    def prepare_commit(self) -> list[CommitMessage]:
        """Finish the files of everything written so far, and return the commit messages. Writing may continue."""
        items = list(self._writers.items())
        full = self._compaction is not None and self._compaction.full_is_due()
        prepared = self._prepare_all(items, full)
        indexes = self._dynamic.prepare() if self._dynamic is not None else {}
        return [
            CommitMessage(key[0], key[1], self._total, _with_index(data, indexes.get(key)), compact, self._base)
            for (key, _), (data, compact) in zip(items, prepared, strict=True)
            if not (data.is_empty and compact.is_empty)
        ]

    def _prepare_all(self, items: Sequence[tuple[Key, BucketWriter]], full: bool) -> list[_Prepared]:
        """The result of each writer's `prepare`. All or nothing."""
        if not items:
            return []
        futures = _side_by_side([partial(self._prepare_one, key, writer, full) for key, writer in items])
        failure = next((e for f in futures if (e := f.exception()) is not None), None)
        if failure is None:
            return [f.result() for f in futures]
        for (key, _), future in zip(items, futures, strict=True):
            if future.exception() is None:
                data, compact = future.result()
                before = {f.file_name for f in compact.compact_before}
                after = (f for f in compact.compact_after if f.file_name not in before)
                self._delete(key, (*data.new_files, *data.changelog_files, *after, *compact.changelog_files))
        raise failure

    def _prepare_one(self, key: Key, writer: BucketWriter, full: bool) -> _Prepared:
        data, fresh = writer.prepare()
        compaction = self._compactions.get(key)
        if compaction is None or not data.new_files:
            return data, CompactIncrement()
        began = self._table.clock.monotonic()
        try:
            increment = compaction.compact(data.new_files, fresh, full=full)
            if increment.compact_before:
                tell(LakeCompaction(table_of(self._table.paths.root), self._table.clock.monotonic() - began))
            return data, increment
        except NotFound as e:
            if self._snapshot is None or self._table.snapshots.exists(self._snapshot.id):
                self._delete(key, (*data.new_files, *data.changelog_files))
                raise
            # Another job compacted the same files, and the old ones have expired: this compaction is lost, but no rows.
            _LOGGER.info("compaction of a bucket of %s is given up: %s", self._table.paths.root, e)
            self._compactions[key] = None
            return data, CompactIncrement()
        except BaseException:
            self._delete(key, (*data.new_files, *data.changelog_files))
            raise

    def _delete(self, key: Key, files: Iterable[DataFileMeta]) -> None:
        for file in files:
            delete_quietly(self._table.io, self._table.paths.data_file(*key, file))

    def stop_compacting(self) -> None:
        """Stop compacting: compaction results prepared so far will not, or not all, be committed."""
        self._compaction = None
        self._compactions.clear()

    def abort(self) -> None:
        """Delete the files written since the last `prepare_commit`."""
        for writer in self._writers.values():
            writer.abort()
        self._writers.clear()
        self._compactions.clear()
        self._existing = None
        if self._dynamic is not None:
            self._dynamic.forget()

    def close(self) -> None:
        """Discard everything that was not prepared."""
        self.abort()

    def __enter__(self) -> TableWrite:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _side_by_side(actions: Sequence[Callable[[], _T]]) -> list[Future[_T]]:
    """The completed futures of `actions`, run in several threads because encoding releases the GIL."""
    with ThreadPoolExecutor(min(len(actions), os.cpu_count() or 1)) as pool:
        return [pool.submit(action) for action in actions]


def _ignored_kinds(options: CoreOptions) -> tuple[int, ...]:
    if options.ignore_delete:
        return UPDATE_BEFORE, DELETE
    return (UPDATE_BEFORE,) if options.ignore_update_before else ()


def _with_index(increment: DataIncrement, index: IndexFileMeta | None) -> DataIncrement:
    if index is None:
        return increment
    return DataIncrement(
        increment.new_files, increment.deleted_files, increment.changelog_files, (index,), increment.deleted_index_files
    )


def _array(kinds: Any) -> pa.Array:
    if isinstance(kinds, pa.ChunkedArray):
        return pa.concat_arrays(kinds.chunks) if kinds.num_chunks else pa.array([], pa.string())
    return kinds if isinstance(kinds, pa.Array) else pa.array(kinds)
