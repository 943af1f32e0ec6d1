"""Splits: the units in which a scan is handed to readers, as values."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.paimon.format.file_meta import DataFileMeta


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """Where a data file's deletion vector lies: a path relative to the table, and a range of bytes."""

    path: str
    offset: int
    length: int
    cardinality: int | None = None


@dataclass(frozen=True, slots=True)
class DataSplit:
    """Files of one bucket that one reader reads.

    In a primary-key table, no key is in two splits of a plan. `raw_convertible`: each file may be read by itself, as
    nothing in it is superseded or deleted elsewhere. `is_streaming`: a delta or changelog of `snapshot_id`, whose row
    kinds are wanted, and not merged into a state. `deletion_files` is parallel to `files`, or None.
    """

    snapshot_id: int
    partition: bytes
    bucket: int
    total_buckets: int
    files: tuple[DataFileMeta, ...]
    raw_convertible: bool
    is_streaming: bool = False
    before_files: tuple[DataFileMeta, ...] = ()
    deletion_files: tuple[DeletionFile | None, ...] | None = None

    @property
    def row_count(self) -> int:
        """Physical records in the files; an upper limit of what a reader returns."""
        return sum(f.row_count for f in self.files)
