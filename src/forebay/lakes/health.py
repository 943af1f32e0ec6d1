"""The state of a lake table for people who watch it: its files as columns, snapshots, tags, work to be done.

Nouns: *file columns* describe the data files of one snapshot by arrays, so that a table with 100,000 files is counted,
sorted and shown page by page without an object for each. A `LakeHealth` is one table of one format.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forebay.base.errors import InvalidRequest
from forebay.base.progress import OnProgress, no_progress
from forebay.base.quantity import Past

Numbers = npt.NDArray[np.int64]

SIZE_BOUNDS = tuple(1 << power for power in range(10, 34, 2))
"""Upper bounds of classes of file sizes: 1 KiB, 4 KiB, ... 4 GiB; larger ones are a class of their own."""

ORPHANS_LISTED_MAX = 1000
"""Paths of orphans that a search keeps; the others are only counted."""


@dataclass(frozen=True)
class LakeFile:
    """A data file, for a list of them."""

    path: str
    created: dt.datetime | None = None


@dataclass(frozen=True)
class FileColumns:
    """The data files of a snapshot. `levels` is None in formats without levels; `partitions` are codes of `names`.

    `deletes` counts the delete files, or deletion vectors, that apply to each file. `describe` gives the files at some
    positions.
    """

    sizes: Numbers
    rows: Numbers
    buckets: Numbers
    partitions: Numbers
    names: Sequence[str]
    deletes: Numbers
    levels: Numbers | None
    describe: Callable[[Numbers], list[LakeFile]]

    def __len__(self) -> int:
        return len(self.sizes)

    def by_size(self) -> list[tuple[int | None, int, int]]:
        """(upper bound, files, bytes) of each class of sizes, up to the largest that has files."""
        classes = np.searchsorted(np.array(SIZE_BOUNDS), self.sizes, side="left")
        counts = np.bincount(classes, minlength=len(SIZE_BOUNDS) + 1)
        sums = np.bincount(classes, weights=self.sizes, minlength=len(SIZE_BOUNDS) + 1)
        last = int(classes.max()) if len(self) else -1
        bounds = (*SIZE_BOUNDS, None)
        return [(bounds[i], int(counts[i]), int(sums[i])) for i in range(last + 1)]

    def by_level(self) -> list[tuple[int, int, int, int]]:
        """(level, files, bytes, rows) of each level; empty in formats without levels."""
        if self.levels is None or not len(self):
            return []
        levels, codes = np.unique(self.levels, return_inverse=True)
        return [(int(level), *self._totals(codes == i)) for i, level in enumerate(levels)]

    def _totals(self, mask: npt.NDArray[np.bool_]) -> tuple[int, int, int]:
        return int(mask.sum()), int(self.sizes[mask].sum()), int(self.rows[mask].sum())

    def by_partition(self) -> list[tuple[str, int, int, int, int]]:
        """(partition, buckets, files, bytes, rows) of each partition, those of most files first."""
        if not len(self):
            return []
        width = len(self.names)
        files = np.bincount(self.partitions, minlength=width)
        sizes = np.bincount(self.partitions, weights=self.sizes, minlength=width)
        rows = np.bincount(self.partitions, weights=self.rows, minlength=width)
        places = np.unique(self.partitions << 32 | (self.buckets & 0xFFFFFFFF))
        buckets = np.bincount(places >> 32, minlength=width)
        order = np.argsort(-files, kind="stable").tolist()
        return [(self.names[i], int(buckets[i]), int(files[i]), int(sizes[i]), int(rows[i])) for i in order if files[i]]

    def page(self, skip: int, limit: int, order: str = "size", partition: str | None = None) -> Numbers:
        """The positions of a page of files, of one partition if it is named.

        `order` is by size or rows, or descending by "-size" or "-rows", or by partition and bucket. Raises
        `InvalidRequest`.
        """
        positions = np.arange(len(self), dtype=np.int64)
        if partition is not None:
            positions = positions[self.partitions == self._code(partition)]
        by: dict[str, Numbers] = {
            "size": self.sizes, "-size": -self.sizes, "rows": self.rows, "-rows": -self.rows,
            "partition": self.partitions << 32 | (self.buckets & 0xFFFFFFFF),
        }  # fmt: skip
        if order not in by:
            raise InvalidRequest(f"files cannot be sorted by {order!r}; there are {', '.join(by)}")
        values = by[order][positions]
        return positions[np.argsort(values, kind="stable")][skip : skip + limit]

    def count(self, partition: str | None = None) -> int:
        """How many files there are, of one partition if it is named."""
        return len(self) if partition is None else int((self.partitions == self._code(partition)).sum())

    def _code(self, partition: str) -> int:
        try:
            return list(self.names).index(partition)
        except ValueError as e:
            raise InvalidRequest(f"the snapshot has no files in a partition {partition!r}") from e


@dataclass(frozen=True)
class LakeSnapshotInfo:
    """A snapshot of a lake table. `kind` is its format's word; values that it does not record are None."""

    snapshot_id: int
    at: dt.datetime
    kind: str
    user: str | None
    rows: int | None
    added_rows: int | None
    schema_id: int | None


@dataclass(frozen=True)
class LakeTag:
    """A named snapshot. `retained`: how long from `created` on; None for good."""

    name: str
    snapshot_id: int
    at: dt.datetime | None
    created: dt.datetime | None
    retained: dt.timedelta | None
    rows: int | None


@dataclass(frozen=True)
class PlannedRewrite:
    """Files of one bucket that a compaction would rewrite together."""

    partition: str
    bucket: int
    files: int
    size: int
    rows: int


@dataclass(frozen=True)
class OrphanFiles:
    """Files that nothing refers to: how many, and the paths of the first ones. `size` is None where it is unknown."""

    count: int
    size: int | None
    paths: tuple[str, ...]


class LakeHealth(ABC):
    """One lake table. Thread-safe. Each method reads the current table. All raise `NotFound` if it has
    been dropped."""

    @property
    @abstractmethod
    def format(self) -> str: ...

    @property
    @abstractmethod
    def location(self) -> str: ...

    @property
    @abstractmethod
    def partition_keys(self) -> Sequence[str]: ...

    @property
    @abstractmethod
    def options(self) -> dict[str, str]:
        """The options of the table."""

    @abstractmethod
    def latest(self) -> LakeSnapshotInfo | None:
        """The current snapshot; None before the first one."""

    @abstractmethod
    def files(self) -> FileColumns | None:
        """The data files of the current snapshot; None before the first one."""

    @abstractmethod
    def snapshots(self, skip: int, limit: int) -> tuple[list[LakeSnapshotInfo], int]:
        """A page of the snapshots, the newest first, and how many there are."""

    @abstractmethod
    def tags(self) -> list[LakeTag]:
        """The tags, by snapshot and name."""

    @abstractmethod
    def planned(self, *, full: bool) -> list[PlannedRewrite]:
        """The rewrites that a compaction would do now: those that are due, or with `full` all possible ones."""

    @abstractmethod
    def orphans(self, older_than: Past, progress: OnProgress = no_progress) -> OrphanFiles:
        """The files that nothing refers to, last modified before a time, or a timedelta before now."""

    @abstractmethod
    def compact(self, *, full: bool, progress: OnProgress = no_progress) -> int | None:
        """Compact now; return the new snapshot's id, None if there was nothing to do."""

    @abstractmethod
    def create_tag(self, name: str, snapshot_id: int | None = None, retained: dt.timedelta | None = None) -> None:
        """Tag a snapshot, by default the current one. Raises `AlreadyExists`, `NotFound`."""

    @abstractmethod
    def delete_tag(self, name: str) -> None:
        """Raises `NotFound`."""

    def readers(self) -> dict[str, int]:
        """Consumers with the next snapshot that each of them reads; empty in formats without consumers."""
        return {}
