"""The files of a primary-key table's bucket as the levels of an LSM tree.

Each file of level 0 is a sorted run, and newer runs come first; each higher level is one run of non-overlapping files.
Rows of a lower run are newer than rows of a higher one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.paimon.format.binary_row import RowLayout
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta
from forebay.paimon.merge.intervals import Section, rank_keys, sections_by_age


@dataclass(frozen=True, slots=True)
class LevelRun:
    """A sorted run and the level it is on."""

    level: int
    files: tuple[DataFileMeta, ...]

    @property
    def size(self) -> int:
        """The total size of the files in bytes."""
        return sum(f.file_size for f in self.files)


class Levels:
    """The files of one bucket. `num_levels` includes level 0; it grows if files are on higher levels."""

    def __init__(self, files: Iterable[DataFileMeta], num_levels: int) -> None:
        self._files = {f.file_name: f for f in files}
        self.num_levels = max(2, num_levels, 1 + max((f.level for f in self._files.values()), default=0))

    @property
    def top(self) -> int:
        """The highest level, which may be empty."""
        return self.num_levels - 1

    @property
    def files(self) -> list[DataFileMeta]:
        return list(self._files.values())

    @property
    def highest_filled(self) -> int:
        """The highest level that has files; -1 if none has."""
        return max((f.level for f in self._files.values()), default=-1)

    def runs(self) -> list[LevelRun]:
        """Sorted runs, the newest first."""
        by_level: dict[int, list[DataFileMeta]] = {}
        for f in self._files.values():
            by_level.setdefault(f.level, []).append(f)
        newest_first = sorted(by_level.pop(LEVEL_0, []), key=_age)
        runs = [LevelRun(LEVEL_0, (f,)) for f in newest_first]
        return [*runs, *(LevelRun(level, tuple(by_level[level])) for level in sorted(by_level))]

    def update(self, before: Iterable[DataFileMeta], after: Iterable[DataFileMeta]) -> None:
        """Replace the files `before` with `after`."""
        for f in before:
            self._files.pop(f.file_name, None)
        for f in after:
            self._files[f.file_name] = f
            self.num_levels = max(self.num_levels, f.level + 1)


def _age(f: DataFileMeta) -> tuple[int, int, int, str]:
    return -f.max_sequence_number, f.min_sequence_number, f.creation_time or 0, f.file_name


class KeyRanges:
    """The key ranges of a bucket's files as integers, for fast comparison."""

    def __init__(self, files: Sequence[DataFileMeta], keys: RowLayout) -> None:
        """`files` are in the order of their commits; `keys` is the layout of their keys."""
        self._order = {f.file_name: i for i, f in enumerate(files)}
        self._bounds: dict[str, tuple[int, int]] = {}
        if files:
            ends = keys.decode_all([f.min_key for f in files] + [f.max_key for f in files])
            ranks = rank_keys(ends.columns)
            pairs = zip(ranks[: len(files)], ranks[len(files) :], strict=True)
            self._bounds = {f.file_name: bounds for f, bounds in zip(files, pairs, strict=True)}

    def sections(self, files: Sequence[DataFileMeta]) -> list[Section]:
        """`files` as sections of overlapping runs, by ascending key."""
        committed = sorted(files, key=lambda f: self._order[f.file_name])
        bounds = [self._bounds[f.file_name] for f in committed]
        return sections_by_age(committed, [low for low, _ in bounds], [high for _, high in bounds])

    def overlapping(self, files: Iterable[DataFileMeta], section: Section) -> list[DataFileMeta]:
        """The files that may contain a key of the section, by ascending key."""
        bounds = [self._bounds[f.file_name] for run in section for f in run]
        low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
        matches = [f for f in files if self._bounds[f.file_name][0] <= high and self._bounds[f.file_name][1] >= low]
        return sorted(matches, key=lambda f: self._bounds[f.file_name])
