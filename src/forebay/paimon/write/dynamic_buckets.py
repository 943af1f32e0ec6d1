"""Dynamic buckets: a key stays in its first bucket; new keys fill buckets up to a target number of rows.

The HASH index file of a bucket records its keys: the 32-bit hashes of their BinaryRows, big-endian. Two keys with the
same hash share a bucket. As in Paimon, only one writer at a time may assign buckets of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import LimitExceeded
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import IndexFileMeta, IndexManifestEntry
from forebay.paimon.store.context import TableContext
from forebay.paimon.write.bucketing import java_row_hash

HASH_INDEX = "HASH"
BUCKETS_MAX = (1 << 15) - 1

Int32s = npt.NDArray[np.int32]


@dataclass
class _PartitionHashes:
    """The assigned hashes, sorted, and their buckets; the rows per bucket; the buckets that changed."""

    hashes: Int32s
    buckets: Int32s
    filled: dict[int, int]
    changed: set[int] = field(default_factory=set)


class DynamicBuckets:
    """Assigns rows to buckets, and writes the assignments as index files."""

    def __init__(self, table: TableContext, index_of: Callable[[bytes], Sequence[IndexManifestEntry]]) -> None:
        """`index_of(partition)` returns the index files of a partition in the latest snapshot."""
        self._table = table
        self._index_of = index_of
        options = table.options
        self._rows_max = options.dynamic_bucket_target_row_num
        limit = options.dynamic_bucket_max_buckets
        self._limited = limit != -1
        self._buckets_max = limit if self._limited else BUCKETS_MAX
        self._layout = row_layout(table.schema.fields_named(table.schema.trimmed_primary_keys))
        self._partitions: dict[bytes, _PartitionHashes] = {}

    def of(
        self, batch: pa.RecordBatch, partitions: Sequence[bytes], partition_of: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """The bucket of each row of `batch`."""
        hashes = java_row_hash(self._layout.encode(batch))
        result = np.empty(len(hashes), np.int32)
        for i, partition in enumerate(partitions):
            rows = np.flatnonzero(partition_of == i)
            result[rows] = self._assign(partition, hashes[rows])
        return result

    def _assign(self, partition: bytes, hashes: Int32s) -> Int32s:
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = self._load(partition)
        distinct, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        at = np.searchsorted(state.hashes, distinct)
        inside = at < len(state.hashes)
        is_known = np.zeros(len(distinct), bool)
        is_known[inside] = state.hashes[at[inside]] == distinct[inside]
        buckets = np.empty(len(distinct), np.int32)
        buckets[is_known] = state.buckets[at[is_known]]
        fresh = np.flatnonzero(~is_known)
        if len(fresh):
            in_order = fresh[np.argsort(first[fresh], kind="stable")]
            buckets[in_order] = self._fill(state, len(in_order))
            merged = np.concatenate([state.hashes, distinct[fresh]])
            order = np.argsort(merged, kind="stable")
            state.hashes = merged[order]
            state.buckets = np.concatenate([state.buckets, buckets[fresh]])[order]
        return buckets[inverse.reshape(-1)]

    def _fill(self, state: _PartitionHashes, count: int) -> Int32s:
        """Buckets for `count` new keys: existing ones with free space first, then new ones."""
        result = np.empty(count, np.int32)
        done = 0
        bucket = 0
        while done < count:
            if bucket >= self._buckets_max:
                if not self._limited:
                    raise LimitExceeded(
                        f"a partition has more than {BUCKETS_MAX} buckets: raise dynamic-bucket.target-row-num"
                    )
                result[done:] = np.arange(count - done) % self._buckets_max  # all are full: spread the rest evenly
                for full, extra in enumerate(np.bincount(result[done:]).tolist()):
                    if extra:
                        state.filled[full] = state.filled.get(full, 0) + extra
                        state.changed.add(full)
                return result
            room = self._rows_max - state.filled.get(bucket, 0)
            if room > 0:
                added = min(room, count - done)
                result[done : done + added] = bucket
                state.filled[bucket] = state.filled.get(bucket, 0) + added
                state.changed.add(bucket)
                done += added
            bucket += 1
        return result

    def _load(self, partition: bytes) -> _PartitionHashes:
        hashes: list[Int32s] = []
        buckets: list[Int32s] = []
        for entry in self._index_of(partition):
            if entry.index_file.index_type != HASH_INDEX:
                continue
            data = self._table.io.read(self._table.paths.index_file(entry.index_file, partition, entry.bucket))
            file_hashes = np.frombuffer(data, ">i4").astype(np.int32)
            hashes.append(file_hashes)
            buckets.append(np.full(len(file_hashes), entry.bucket, np.int32))
        all_hashes = np.concatenate(hashes) if hashes else np.empty(0, np.int32)
        all_buckets = np.concatenate(buckets) if buckets else np.empty(0, np.int32)
        filled = {i: n for i, n in enumerate(np.bincount(all_buckets).tolist()) if n} if len(all_buckets) else {}
        order = np.argsort(all_hashes, kind="stable")
        return _PartitionHashes(all_hashes[order], all_buckets[order], filled)

    def prepare(self) -> dict[tuple[bytes, int], IndexFileMeta]:
        """Write the index files of the buckets that got new keys since the last call."""
        files: dict[tuple[bytes, int], IndexFileMeta] = {}
        for partition, state in self._partitions.items():
            for bucket in sorted(state.changed):
                hashes = state.hashes[state.buckets == bucket]
                data = hashes.astype(">i4").tobytes()
                meta = IndexFileMeta(HASH_INDEX, self._table.paths.new_index_file_name(), len(data), len(hashes))
                self._table.io.write(self._table.paths.index_file(meta, partition, bucket), data)
                files[partition, bucket] = meta
            state.changed.clear()
        return files

    def forget(self) -> None:
        """Drop the assignments because their commit was aborted; they are reread when needed."""
        self._partitions.clear()
