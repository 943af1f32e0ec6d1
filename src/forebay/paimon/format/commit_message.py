"""Commit messages: what the writer of a bucket passes to the committer, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.paimon.format.file_meta import DataFileMeta, IndexFileMeta


@dataclass(frozen=True, slots=True)
class DataIncrement:
    """Files with new rows. `deleted_files` are removed by the same commit (pre-commit compaction, row deletion)."""

    new_files: tuple[DataFileMeta, ...] = ()
    deleted_files: tuple[DataFileMeta, ...] = ()
    changelog_files: tuple[DataFileMeta, ...] = ()
    new_index_files: tuple[IndexFileMeta, ...] = ()
    deleted_index_files: tuple[IndexFileMeta, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it neither adds nor removes any file."""
        return not (
            self.new_files
            or self.deleted_files
            or self.changelog_files
            or self.new_index_files
            or self.deleted_index_files
        )


@dataclass(frozen=True, slots=True)
class CompactIncrement:
    """The files that a compaction read (`compact_before`) and those that replace them (`compact_after`)."""

    compact_before: tuple[DataFileMeta, ...] = ()
    compact_after: tuple[DataFileMeta, ...] = ()
    changelog_files: tuple[DataFileMeta, ...] = ()
    new_index_files: tuple[IndexFileMeta, ...] = ()
    deleted_index_files: tuple[IndexFileMeta, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it neither adds nor removes any file."""
        return not (
            self.compact_before
            or self.compact_after
            or self.changelog_files
            or self.new_index_files
            or self.deleted_index_files
        )


@dataclass(frozen=True, slots=True)
class CommitMessage:
    """The uncommitted work of one writer in one bucket. Pickles small; the committer may be another process.

    `base` is the snapshot whose sequence numbers the new rows continue; 0: there was none, None: they continue none.
    """

    partition: bytes
    bucket: int
    total_buckets: int
    data: DataIncrement = field(default_factory=DataIncrement)
    compact: CompactIncrement = field(default_factory=CompactIncrement)
    base: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.data.is_empty and self.compact.is_empty
