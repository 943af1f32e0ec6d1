"""The compaction interface that writers use; its implementation is in a higher layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from forebay.paimon.format.commit_message import CompactIncrement
from forebay.paimon.format.file_meta import DataFileMeta

FreshRows: TypeAlias = Mapping[str, Sequence[pa.RecordBatch]]
"""The rows of files that were just written, by file name: of those that are so small that memory still has them."""


class BucketCompaction(Protocol):
    """Compacts one bucket during writing. Not thread-safe."""

    def compact(self, new_files: Sequence[DataFileMeta], fresh: FreshRows, *, full: bool) -> CompactIncrement:
        """Register files just written, and compact if due (`full`: compact everything).

        Files whose rows are in `fresh` are not read.
        """
        ...


class WriteCompaction(Protocol):
    """The compaction of the buckets that one `TableWrite` writes."""

    def of_bucket(
        self, partition: bytes, bucket: int, files: Sequence[DataFileMeta], new_bucket: bool
    ) -> BucketCompaction | None:
        """The compaction of a bucket with `files`; None if the bucket is not compacted during writing.

        `new_bucket`: the written rows replace the bucket, so `files` are not part of it.
        """
        ...

    def full_is_due(self) -> bool:
        """Whether the commit being prepared should compact everything. Called once per commit."""
        ...
