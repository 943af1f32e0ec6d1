"""Splits: the units of a scan that readers process, as values."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass
from typing import Any

from forebay.paimon.format.file_meta import EMPTY_STATS, DataFileMeta


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """The location of a data file's deletion vector: a path relative to the table, and a byte range."""

    path: str
    offset: int
    length: int
    cardinality: int | None = None


@dataclass(frozen=True, slots=True)
class DataSplit:
    """Files of one bucket that are read together.

    In a primary-key table, no key is in two splits of a plan. `raw_convertible`: each file can be read separately,
    because none of its rows is superseded or deleted by another file. `is_streaming`: a delta or changelog of
    `snapshot_id`, whose row kinds are needed, and which is not merged into a state. `deletion_files` is parallel to
    `files`, or None.

    Splits are sent to workers, so they pickle small (a few hundred bytes for a few files, about 50 for each more).
    Fields that only planners need are not included: statistics of values and keys, creation times, file sources.
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
        """The number of physical records in the files; an upper limit for the number of rows read."""
        return sum(f.row_count for f in self.files)

    def __reduce__(self) -> tuple[Any, ...]:
        plain = pickle.dumps(
            (
                self.snapshot_id,
                self.partition,
                self.bucket,
                self.total_buckets,
                _columns(self.files),
                self.raw_convertible,
                self.is_streaming,
                _columns(self.before_files),
                None if self.deletion_files is None else tuple(_deletion_row(d) for d in self.deletion_files),
            ),
            protocol=5,
        )
        return _unpacked, (zlib.compress(plain, 6),)


_READ = (
    "file_name",
    "file_size",
    "row_count",
    "min_key",
    "max_key",
    "min_sequence_number",
    "max_sequence_number",
    "schema_id",
    "level",
    "extra_files",
    "delete_row_count",
    "embedded_index",
    "external_path",
    "first_row_id",
    "write_cols",
    "write_cols_sequences",
)
"""The fields of a file that readers need."""


def _columns(files: tuple[DataFileMeta, ...]) -> list[Any]:
    """The files column by column, which compresses well; a constant column is a list of one value."""
    if not files:
        return []
    columns: list[Any] = [tuple(getattr(f, name) for f in files) for name in _READ]
    return [len(files), *([c[0]] if len(set(c)) == 1 else c for c in columns)]


def _files(columns: list[Any]) -> tuple[DataFileMeta, ...]:
    if not columns:
        return ()
    count, *packed = columns
    rows = zip(*(c * count if isinstance(c, list) else c for c in packed), strict=True)
    return tuple(
        DataFileMeta(**dict(zip(_READ, row, strict=True)), key_stats=EMPTY_STATS, value_stats=EMPTY_STATS)
        for row in rows
    )


def _deletion_row(deletion: DeletionFile | None) -> tuple[str, int, int, int | None] | None:
    return None if deletion is None else (deletion.path, deletion.offset, deletion.length, deletion.cardinality)


def _unpacked(data: bytes) -> DataSplit:
    """The split that `DataSplit.__reduce__` packed."""
    snapshot_id, partition, bucket, total, files, raw, streaming, before, deletions = pickle.loads(
        zlib.decompress(data)
    )
    return DataSplit(
        snapshot_id,
        partition,
        bucket,
        total,
        _files(files),
        raw,
        streaming,
        _files(before),
        None if deletions is None else tuple(None if d is None else DeletionFile(*d) for d in deletions),
    )
