"""Packing the files of a bucket into splits: pure planning, equivalent to Paimon's split generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forebay.paimon.format.binary_row import RowLayout
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta
from forebay.paimon.merge.intervals import Section, rank_keys, sections_by_age

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SplitRules:
    """The packing rules: the target size of a split, and the minimum weight of a file (its open cost), in bytes."""

    target_size: int
    open_file_cost: int

    def weight(self, files: Iterable[DataFileMeta]) -> int:
        return max(sum(f.file_size for f in files), self.open_file_cost)


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """Files that are read together; `raw_convertible` if each can be read without merging."""

    files: tuple[DataFileMeta, ...]
    raw_convertible: bool


def pack_in_order(items: Iterable[T], weight: Callable[[T], int], target: int) -> list[list[T]]:
    """Consecutive items in bins of at most `target`; a larger item gets a bin of its own."""
    bins: list[list[T]] = []
    filled = 0
    for item in items:
        size = weight(item)
        if not bins or filled + size > target:
            bins.append([])
            filled = 0
        bins[-1].append(item)
        filled += size
    return bins


def append_splits(files: Sequence[DataFileMeta], rules: SplitRules) -> list[SplitGroup]:
    """The splits of a bucket of an append table, in the order rows were written."""
    ordered = sorted(files, key=lambda f: f.min_sequence_number)
    bins = pack_in_order(ordered, lambda f: rules.weight((f,)), rules.target_size)
    return [SplitGroup(tuple(files), True) for files in bins]


def merge_tree_splits(
    files: Sequence[DataFileMeta],
    rules: SplitRules,
    keys: RowLayout,
    one_file_is_enough: bool,
    may_hold: Callable[[Sequence[DataFileMeta]], bool] = lambda files: True,
) -> list[SplitGroup]:
    """The splits of a bucket of a primary-key table. No key is in two splits.

    Files on one level above 0 without deletes do not overlap, so each can be read separately; with `one_file_is_enough`
    (deletion vectors, first-row) this also holds across levels. Otherwise, files with overlapping keys stay together,
    and a split of one file without deletes needs no merging. A group of overlapping files is left out if `may_hold`
    returns False for it, that is if none of them can contain a matching row.
    """
    settled = all(f.level != LEVEL_0 and without_deletes(f) for f in files)
    if settled and (one_file_is_enough or len({f.level for f in files}) == 1):
        bins = pack_in_order((f for f in files if may_hold((f,))), lambda f: rules.weight((f,)), rules.target_size)
        return [SplitGroup(tuple(packed), True) for packed in bins]
    sections = [[f for run in section for f in run] for section in sections_of(files, keys)]
    packed_sections = pack_in_order(filter(may_hold, sections), rules.weight, rules.target_size)
    groups = [tuple(f for section in packed for f in section) for packed in packed_sections]
    return [SplitGroup(group, len(group) == 1 and without_deletes(group[0])) for group in groups]


def sections_of(files: Sequence[DataFileMeta], keys: RowLayout) -> list[Section]:
    """The files of one bucket as sections of overlapping runs, by ascending key. `keys` is the layout of their keys.

    `files` are in the order of their commits.
    """
    if not files:
        return []
    ends = keys.decode_all([f.min_key for f in files] + [f.max_key for f in files])
    ranks = rank_keys(ends.columns)
    return sections_by_age(files, ranks[: len(files)], ranks[len(files) :])


def without_deletes(file: DataFileMeta) -> bool:
    """Whether the file contains no deletes.

    Old writers did not count deletes. Like Java, a missing count is taken as zero, except at level 0, where files often
    hold deletes and merging is cheap.
    """
    if file.delete_row_count is None:
        return file.level != LEVEL_0
    return file.delete_row_count == 0
