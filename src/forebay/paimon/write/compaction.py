"""What a writer needs of compaction, which lies in a layer above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forebay.paimon.format.commit_message import CompactIncrement
from forebay.paimon.format.file_meta import DataFileMeta


class BucketCompaction(Protocol):
    """Compacts one bucket while it is written. Not thread-safe."""

    def compact(self, new_files: Sequence[DataFileMeta], *, full: bool) -> CompactIncrement:
        """Take note of files just written, and compact if it is time (`full`: compact all)."""
        ...


class WriteCompaction(Protocol):
    """Compaction of what one `TableWrite` writes."""

    def of_bucket(
        self, partition: bytes, bucket: int, files: Sequence[DataFileMeta], new_bucket: bool
    ) -> BucketCompaction | None:
        """The compaction of a bucket with `files`; None if it is not compacted while it is written.

        `new_bucket`: what is written replaces the bucket, of which `files` are none.
        """
        ...

    def full_is_due(self) -> bool:
        """Whether the commit that is being prepared should compact all. Called once for each."""
        ...
