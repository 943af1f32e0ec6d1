"""The changes of a commit, collected from the commit messages of its writers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.file_meta import (
    DataFileMeta,
    FileKind,
    IndexFileMeta,
    IndexManifestEntry,
    ManifestEntry,
)

DELETION_VECTORS = "DELETION_VECTORS"
HASH = "HASH"


@dataclass
class Changes:
    """The manifest entries of one snapshot: data files, changelog files, index files."""

    files: list[ManifestEntry] = field(default_factory=list)
    changelog: list[ManifestEntry] = field(default_factory=list)
    index: list[IndexManifestEntry] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.changelog or self.index)

    @property
    def partitions(self) -> set[bytes]:
        """The affected partitions."""
        return {e.partition for e in self.files} | {e.partition for e in self.index}

    @property
    def removes_rows(self) -> bool:
        """Whether files or rows are deleted. Streaming readers see such a commit as an OVERWRITE."""
        return any(e.kind is FileKind.DELETE for e in self.files) or any(
            e.index_file.index_type == DELETION_VECTORS for e in self.index
        )


def collect_changes(messages: Iterable[CommitMessage]) -> tuple[Changes, Changes]:
    """The changes of new rows and those of compaction, which are committed as two snapshots."""
    append, compact = Changes(), Changes()
    for message in messages:
        data, compaction = message.data, message.compact
        if not data.is_empty:
            _add_files(append.files, message, FileKind.ADD, data.new_files)
            _add_files(append.files, message, FileKind.DELETE, data.deleted_files)
            _add_files(append.changelog, message, FileKind.ADD, data.changelog_files)
            _add_index(append.index, message, FileKind.DELETE, data.deleted_index_files)
            _add_index(append.index, message, FileKind.ADD, data.new_index_files)
        if not compaction.is_empty:
            _add_files(compact.files, message, FileKind.DELETE, compaction.compact_before)
            _add_files(compact.files, message, FileKind.ADD, compaction.compact_after)
            _add_files(compact.changelog, message, FileKind.ADD, compaction.changelog_files)
            _add_index(compact.index, message, FileKind.DELETE, compaction.deleted_index_files)
            _add_index(compact.index, message, FileKind.ADD, compaction.new_index_files)
    return append, compact


def _add_files(to: list[ManifestEntry], message: CommitMessage, kind: FileKind, files: Iterable[DataFileMeta]) -> None:
    for file in files:
        to.append(ManifestEntry(kind, message.partition, message.bucket, message.total_buckets, file))


def _add_index(
    to: list[IndexManifestEntry], message: CommitMessage, kind: FileKind, files: Iterable[IndexFileMeta]
) -> None:
    for file in files:
        to.append(IndexManifestEntry(kind, message.partition, message.bucket, file))


def record_count(entries: Iterable[ManifestEntry]) -> int:
    """Records added minus records deleted."""
    return sum(e.file.row_count if e.kind is FileKind.ADD else -e.file.row_count for e in entries)
