"""Splitting batches by partition and bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.codec.rows.buckets import split_by_group
from forebay.paimon.bucket_function import bucket_function
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import EMPTY_ROW
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.options import POSTPONE_BUCKET, CoreOptions

UNAWARE = -1
"""The `bucket` option of append tables without buckets, and of primary-key tables with dynamic buckets."""

_DENSE_GROUPS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one partition and bucket, in input order. `rows` are positions; None means all."""

    partition: bytes
    bucket: int
    rows: pa.Array | None


class PartitionSplitter:
    """Splits batches by partition."""

    def __init__(self, schema: TableSchema) -> None:
        self._layout = row_layout(schema.partition_fields)

    def split(self, batch: pa.RecordBatch) -> tuple[list[bytes], npt.NDArray[np.int64]]:
        """The partitions in `batch`, and the index of each row's partition."""
        if not self._layout.fields:
            return [EMPTY_ROW], np.zeros(batch.num_rows, np.int64)
        encoded = self._layout.encode(batch).dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


class FixedBuckets:
    """Bucket numbers of rows, by the bucket function and the bucket key. A single bucket needs neither."""

    def __init__(self, schema: TableSchema) -> None:
        self.total = CoreOptions(schema.options).bucket
        if self.total == POSTPONE_BUCKET:
            raise UnsupportedOperation("writing to tables with postponed buckets (bucket = -2) is not supported")
        if self.total == 0 or self.total < UNAWARE:
            raise InvalidRequest(f"option 'bucket' is {self.total}; write a positive number, or -1")
        keys = schema.bucket_keys
        if self.total > 1 and not keys:
            raise InvalidRequest("a table with several buckets needs option 'bucket-key' or a primary key")
        self._function = bucket_function(schema)

    def of(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        if self.total <= 1:
            return np.zeros(batch.num_rows, np.int32)
        return self._function.buckets(batch, self.total)


def parts_of(
    partitions: Sequence[bytes], partition_of: npt.NDArray[np.int64], bucket_of: npt.NDArray[np.int32]
) -> Iterator[Part]:
    """The rows of a batch grouped by partition and bucket, which are given per row."""
    width = int(bucket_of.max(initial=0)) + 1
    groups = partition_of * width + bucket_of
    if len(groups) and groups[0] == groups[-1] and bool((groups == groups[0]).all()):
        yield Part(partitions[int(groups[0]) // width], int(groups[0]) % width, None)
        return
    count = len(partitions) * width
    names = None
    if count > _DENSE_GROUPS_MAX:  # the dense method's memory grows with the number of groups
        names, groups = np.unique(groups, return_inverse=True)
        count = len(names)
    order, borders = split_by_group(groups, count)
    for group in np.flatnonzero(np.diff(borders)).tolist():
        rows = pa.array(order[borders[group] : borders[group + 1]])
        name = group if names is None else int(names[group])
        yield Part(partitions[name // width], name % width, rows)


def java_row_hash(rows: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """`BinaryRow.hashCode` of encoded rows: murmur3 over 4-byte words with seed 42."""
    offsets = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
    data = np.frombuffer(rows.buffers()[2], np.uint8)
    lengths = np.diff(offsets)
    hashes = np.zeros(len(rows), np.uint32)
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        state = np.full(len(places), 42, np.uint32)
        for word in range(0, length, 4):
            at = offsets[places] + word
            values = np.zeros(len(places), np.uint32)
            for byte in range(4):
                values |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
            state = _mix(state, values)
        hashes[places] = _finish(state ^ np.uint32(length))
    return hashes.view(np.int32)


def _rotate(values: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return (values << np.uint32(by)) | (values >> np.uint32(32 - by))


def _mix(state: npt.NDArray[np.uint32], word: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    mixed = _rotate(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotate(state ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(state: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))
