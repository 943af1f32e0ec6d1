"""A manifest as columns: planning can filter without creating an object per entry.

    rows = read_manifest_rows(data)
    keep = np.flatnonzero(rows.levels > 0)
    entries = rows.entries(keep)            # objects for these only

A row is the index of an entry in its manifest; sets of rows are int64 arrays. `live_rows` merges manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import CorruptData
from forebay.paimon.format._avro import Records
from forebay.paimon.format._manifest import ENTRY_FIELDS, build_entries, merge_rows, partition_codes
from forebay.paimon.format.avro_columns import AvroField, read_columns
from forebay.paimon.format.file_meta import EMPTY_ROW, FileKind, ManifestEntry

VERSION = 2

Rows = npt.NDArray[np.int64]

_ENTRY_COLUMNS = tuple(AvroField(path, kind, required) for path, kind, required in ENTRY_FIELDS)
_SLOTS = {w.path.rpartition(".")[2] if "STATS." not in w.path else w.path: i for i, w in enumerate(_ENTRY_COLUMNS)}
_ARITY_BYTES = 4
_INT32 = np.iinfo(np.int32)
_UNKNOWN = -1


class ManifestRows:
    """The entries of one manifest. Immutable and thread-safe."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def __len__(self) -> int:
        return self.records.count

    @property
    def nbytes(self) -> int:
        """The approximate memory size in bytes."""
        return self.records.nbytes + 12 * len(self)

    @property
    def all(self) -> Rows:
        """Every row."""
        return np.arange(len(self), dtype=np.int64)

    def entries(self, rows: Rows | None = None) -> list[ManifestEntry]:
        """The entries at `rows`; all by default. Raises `CorruptData`."""
        try:
            return build_entries(self.records, self.all if rows is None else rows)
        except UnicodeDecodeError as e:
            raise CorruptData(f"a text in a manifest entry is not UTF-8: {e}") from e

    # -- columns ------------------------------------------------------------------------------------------------------

    def _numbers(self, name: str) -> Rows:
        return self.records.values[:, _SLOTS[name]]

    @property
    def deletions(self) -> npt.NDArray[np.bool_]:
        """Whether each entry deletes a file."""
        return np.equal(self._numbers("_KIND"), int(FileKind.DELETE))

    @property
    def buckets(self) -> Rows:
        return self._numbers("_BUCKET")

    @property
    def total_buckets(self) -> Rows:
        return self._numbers("_TOTAL_BUCKETS")

    @property
    def levels(self) -> Rows:
        return self._numbers("_LEVEL")

    @property
    def row_counts(self) -> Rows:
        return self._numbers("_ROW_COUNT")

    @property
    def file_sizes(self) -> Rows:
        return self._numbers("_FILE_SIZE")

    @property
    def schema_ids(self) -> Rows:
        return self._numbers("_SCHEMA_ID")

    @cached_property
    def _partitions(self) -> tuple[npt.NDArray[np.int32], list[bytes]]:
        return partition_codes(self.records)

    @property
    def partitions(self) -> list[bytes]:
        """The distinct partitions of the entries."""
        return self._partitions[1]

    @property
    def partition_codes(self) -> npt.NDArray[np.int32]:
        """The partition of each entry: its position in `partitions`."""
        return self._partitions[0]

    def of_partitions(self, allowed: Sequence[bool]) -> npt.NDArray[np.bool_]:
        """Whether each entry is in a partition for which `allowed`, in the order of `partitions`, is true."""
        return np.asarray(allowed, np.bool_)[self._partitions[0]]

    @cached_property
    def _bucket_pairs(self) -> tuple[Rows, list[tuple[int, int]]]:
        pairs, codes = np.unique(self.buckets << 32 | self.total_buckets & 0xFFFFFFFF, return_inverse=True)
        first = np.zeros(len(pairs), np.int64)
        first[codes] = np.arange(len(self))
        return codes, list(zip(self.buckets[first].tolist(), self.total_buckets[first].tolist(), strict=True))

    @property
    def buckets_of_totals(self) -> list[tuple[int, int]]:
        """The distinct pairs of bucket and bucket count of the entries."""
        return self._bucket_pairs[1]

    def of_buckets(self, allowed: Sequence[bool]) -> npt.NDArray[np.bool_]:
        """Whether each entry has a pair for which `allowed`, in the order of `buckets_of_totals`, is true."""
        return np.asarray(allowed, np.bool_)[self._bucket_pairs[0]]

    def bucket_counts(self) -> dict[bytes, int]:
        """The bucket count of the last addition to each partition, except partitions with postponed buckets."""
        codes, partitions = self._partitions
        additions = np.flatnonzero(~self.deletions & (self.total_buckets > 0))
        last = np.full(len(partitions), -1, np.int64)
        np.maximum.at(last, codes[additions], additions)
        counts = self.total_buckets
        return {partitions[code]: int(counts[row]) for code, row in enumerate(last.tolist()) if row >= 0}

    # -- statistics ---------------------------------------------------------------------------------------------------

    def least(self, rows: Rows, *, keys: bool) -> pa.BinaryArray:
        """The BinaryRows of minimum values: of the key columns, or of all columns with statistics."""
        return self._bounds(rows, f"_FILE.{_stats(keys)}._MIN_VALUES")

    def greatest(self, rows: Rows, *, keys: bool) -> pa.BinaryArray:
        """The BinaryRows of maximum values."""
        return self._bounds(rows, f"_FILE.{_stats(keys)}._MAX_VALUES")

    def _bounds(self, rows: Rows, path: str) -> pa.BinaryArray:
        return self.records.binary(rows, _SLOTS[path], skip=_ARITY_BYTES, instead=EMPTY_ROW)

    def null_counts(self, rows: Rows, position: int, *, keys: bool) -> Rows:
        """The null counts of the column at `position` of the statistics; -1 if unknown."""
        return self.records.item(rows, _SLOTS[f"_FILE.{_stats(keys)}._NULL_COUNTS"], position, _UNKNOWN)

    def stats_columns(self, row: int) -> tuple[str, ...] | None:
        """The names of the columns with value statistics of an entry; None means all."""
        names = self.records.array_at(row, _SLOTS["_VALUE_STATS_COLS"], True)
        return None if names is None else tuple(name or "" for name in names)

    def by_statistics(self, rows: Rows, *, keys: bool) -> dict[tuple[int, tuple[str, ...] | None], Rows]:
        """`rows`, grouped by schema id and, for value statistics, by the columns that have statistics."""
        schema_ids = self.schema_ids[rows]
        if keys:
            return {(int(i), None): rows[schema_ids == i] for i in np.unique(schema_ids)}
        slot = _SLOTS["_VALUE_STATS_COLS"]
        if (self.records.sizes[rows, slot] < 0).all():
            return {(int(i), None): rows[schema_ids == i] for i in np.unique(schema_ids)}
        groups: dict[tuple[int, bytes | None], list[int]] = {}
        for row, schema_id in zip(rows.tolist(), schema_ids.tolist(), strict=True):
            groups.setdefault((schema_id, self.records.bytes_at(row, slot)), []).append(row)
        by_columns: dict[tuple[int, tuple[str, ...] | None], list[int]] = {}
        for (schema_id, _), members in groups.items():
            by_columns.setdefault((schema_id, self.stats_columns(members[0])), []).extend(members)
        return {key: np.array(members, np.int64) for key, members in by_columns.items()}


def _stats(keys: bool) -> str:
    return "_KEY_STATS" if keys else "_VALUE_STATS"


def read_manifest_rows(data: bytes) -> ManifestRows:
    """The entries of a manifest. Raises `CorruptData`."""
    records = read_columns(data, _ENTRY_COLUMNS)
    versions = records.values[:, _SLOTS["_VERSION"]]
    if (versions != VERSION).any():
        raise CorruptData(f"manifest version {versions[versions != VERSION][0]} is not known; version {VERSION} is")
    for name, low, high in (
        ("_KIND", 0, 1),
        ("_FILE_SOURCE", 0, 1),
        ("_BUCKET", _INT32.min, _INT32.max),
        ("_TOTAL_BUCKETS", _INT32.min, _INT32.max),
        ("_LEVEL", _INT32.min, _INT32.max),
    ):
        values = records.values[:, _SLOTS[name]]
        if len(values) and (values.min() < low or values.max() > high):
            raise CorruptData(f"a manifest entry is malformed: {name} is not between {low} and {high}")
    return ManifestRows(records)


def live_rows(parts: Sequence[tuple[ManifestRows, Rows]], *, with_deletions: bool = False) -> list[Rows]:
    """The net additions of the entries of `parts`, in order, as rows of each part.

    `with_deletions`: also the deletions of files that were added before all parts. Raises `Conflict` if a file is added
    or deleted twice.
    """
    return merge_rows([(rows.records, selection) for rows, selection in parts], with_deletions)
