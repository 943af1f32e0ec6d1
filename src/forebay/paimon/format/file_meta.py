"""File metadata in manifests, as values: data files, manifest entries, manifests, index files.

Partitions and keys are kept as the bytes of their BinaryRow (without the arity), which are unique per value and serve
as dictionary keys; `forebay.paimon.format.binary_row` decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

EMPTY_ROW = bytes(8)
"""The BinaryRow without fields: the partition of a table without partitions, the key of an append table."""

LEVEL_0 = 0


class FileKind(IntEnum):
    """Whether a manifest entry adds a file or deletes it."""

    ADD = 0
    DELETE = 1


class FileSource(IntEnum):
    """The origin of a data file: a writer of rows, or a compaction."""

    APPEND = 0
    COMPACT = 1


@dataclass(frozen=True, slots=True)
class SimpleStats:
    """The minimum, maximum and null count of some columns.

    `min_values` and `max_values` are BinaryRows over these columns; a null there means unknown, or only nulls. A null
    count of None means unknown.
    """

    min_values: bytes = EMPTY_ROW
    max_values: bytes = EMPTY_ROW
    null_counts: tuple[int | None, ...] = ()


EMPTY_STATS = SimpleStats()


@dataclass(frozen=True, slots=True)
class DataFileMeta:
    """A data file. `value_stats_cols` names the columns of `value_stats`; None means all, in the schema's order.

    `row_count` counts all records, of which `delete_row_count` are -U or -D (None: unknown, in files of old writers).
    `creation_time` is local wall-clock time, in milliseconds as if it were UTC, like Java's LocalDateTime.
    """

    file_name: str
    file_size: int
    row_count: int
    min_key: bytes
    max_key: bytes
    key_stats: SimpleStats
    value_stats: SimpleStats
    min_sequence_number: int
    max_sequence_number: int
    schema_id: int
    level: int
    extra_files: tuple[str, ...] = ()
    creation_time: int | None = None
    delete_row_count: int | None = None
    embedded_index: bytes | None = None
    file_source: FileSource | None = None
    value_stats_cols: tuple[str, ...] | None = None
    external_path: str | None = None
    first_row_id: int | None = None
    write_cols: tuple[str, ...] | None = None
    write_cols_sequences: tuple[int, ...] | None = None

    def upgrade(self, level: int) -> DataFileMeta:
        """The same file at a higher level, which is how compaction moves a file that overlaps no other."""
        return replace(self, level=level)


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One change of the set of data files. `total_buckets` is the bucket count the file was written under."""

    kind: FileKind
    partition: bytes
    bucket: int
    total_buckets: int
    file: DataFileMeta

    @property
    def identity(self) -> tuple[bytes, int, int, str, tuple[str, ...], bytes | None, str | None]:
        """The identity of the file: equal for two entries of one file (`FileEntry.Identifier` in Java)."""
        f = self.file
        return self.partition, self.bucket, f.level, f.file_name, f.extra_files, f.embedded_index, f.external_path


@dataclass(frozen=True, slots=True)
class ManifestFileMeta:
    """One manifest, as listed in a manifest list. The optional bounds allow skipping manifests without reading them."""

    file_name: str
    file_size: int
    num_added_files: int
    num_deleted_files: int
    partition_stats: SimpleStats
    schema_id: int
    min_bucket: int | None = None
    max_bucket: int | None = None
    min_level: int | None = None
    max_level: int | None = None
    min_row_id: int | None = None
    max_row_id: int | None = None


@dataclass(frozen=True, slots=True)
class DeletionVectorMeta:
    """The location of a data file's deletion vector in an index file."""

    data_file_name: str
    offset: int
    length: int
    cardinality: int | None = None


@dataclass(frozen=True, slots=True)
class GlobalIndexMeta:
    """The global index entry of an index manifest. Such indexes are not used, only preserved."""

    row_range_start: int
    row_range_end: int
    index_field_id: int
    extra_field_ids: tuple[int, ...] | None = None
    index_meta: bytes | None = None
    source_meta: bytes | None = None


@dataclass(frozen=True, slots=True)
class IndexFileMeta:
    """An index file: `index_type` is "HASH" (key hashes of a dynamic bucket) or "DELETION_VECTORS"."""

    index_type: str
    file_name: str
    file_size: int
    row_count: int
    dv_ranges: tuple[DeletionVectorMeta, ...] | None = None
    external_path: str | None = None
    global_index: GlobalIndexMeta | None = None


@dataclass(frozen=True, slots=True)
class IndexManifestEntry:
    """One index file of a bucket, in an index manifest."""

    kind: FileKind
    partition: bytes
    bucket: int
    index_file: IndexFileMeta
