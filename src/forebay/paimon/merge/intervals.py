"""Overlap of a bucket's files: sections with disjoint key ranges, each with the minimum number of sorted runs.

Sections can be read one after the other; only the runs within a section must be merged (`IntervalPartition` in Java).
Keys are compared by their rank among all keys of the files, so that 10,000 files take milliseconds.

Merging takes the row of the later run if two rows of a key have the same sequence number. Writers that overlapped, and
whose commits did not renumber their rows (Java Paimon), leave such rows. Where there may be any, the runs of a section
are ordered by age: higher levels before lower ones, and within a level in the order of the files, which is that of
their commits. Reads and compactions then agree.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta
from forebay.paimon.merge._order import group_starts, sort_rows
from forebay.paimon.merge.order import sort_key

Section = list[list[DataFileMeta]]
"""Runs whose key ranges overlap; the files of a run are in ascending order and do not overlap."""


def interval_partition(
    files: Sequence[DataFileMeta], decode: Callable[[bytes], Sequence[Any]], key_types: Sequence[pa.DataType]
) -> list[Section]:
    """Sections, ascending by key. `decode` returns the values of a key's BinaryRow; `key_types` their Arrow types."""
    if not files:
        return []
    keys = [decode(f.min_key) for f in files] + [decode(f.max_key) for f in files]
    columns = [pa.array([key[i] for key in keys], t) for i, t in enumerate(key_types)]
    ranks = rank_keys(columns)
    return [
        [[files[i] for i in run] for run in section]
        for section in partition_ranges(ranks[: len(files)], ranks[len(files) :])
    ]


def sections_by_age(files: Sequence[DataFileMeta], least: Sequence[int], greatest: Sequence[int]) -> list[Section]:
    """The sections of `files`, which are in the order of their commits and have the keys `least` to `greatest`."""
    sections: list[Section] = []
    for runs in partition_ranges(least, greatest):
        members = [i for run in runs for i in run]
        if len(runs) > 1 and _may_tie([files[i] for i in members]):
            oldest_first = sorted(members, key=lambda i: (-files[i].level, i))
            runs = _runs_by_age(oldest_first, least, greatest)
        sections.append([[files[i] for i in run] for run in runs])
    return sections


def _may_tie(files: Sequence[DataFileMeta]) -> bool:
    """Whether rows of different levels, or of different files of level 0, may have the same sequence number."""
    ranges: list[tuple[int, int]] = []
    levels: dict[int, tuple[int, int]] = {}
    for f in files:
        low, high = f.min_sequence_number, f.max_sequence_number
        if f.level == LEVEL_0:
            ranges.append((low, high))
        else:
            other = levels.get(f.level, (low, high))
            levels[f.level] = min(low, other[0]), max(high, other[1])
    ranges = sorted([*ranges, *levels.values()])
    return any(before[1] >= after[0] for before, after in itertools.pairwise(ranges))


def _runs_by_age(oldest_first: Sequence[int], least: Sequence[int], greatest: Sequence[int]) -> list[list[int]]:
    """Runs in which each range is in a later run than the older ranges that it overlaps."""
    low = min(least[i] for i in oldest_first)
    height = np.zeros(max(greatest[i] for i in oldest_first) - low + 1, np.int64)  # the number of runs at each key
    runs: list[list[int]] = []
    for i in oldest_first:
        place = slice(least[i] - low, greatest[i] - low + 1)
        number = int(height[place].max())
        height[place] = number + 1
        if number == len(runs):
            runs.append([])
        runs[number].append(i)
    return [sorted(run, key=least.__getitem__) for run in runs]


def rank_keys(columns: Sequence[pa.Array]) -> list[int]:
    """Numbers that order rows like their keys; equal keys have equal numbers."""
    key = sort_key(columns, zeros_equal=True)
    order = sort_rows([key])
    starts = group_starts(key, order)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    result: list[int] = ranks.tolist()
    return result


def partition_ranges(least: Sequence[int], greatest: Sequence[int]) -> list[list[list[int]]]:
    """Sections, their runs, and the indexes of the ranges in each run. Both ends of a range are inclusive."""
    sections: list[list[list[int]]] = []
    section: list[int] = []
    bound = 0
    for i in sorted(range(len(least)), key=lambda i: (least[i], greatest[i])):
        if section and least[i] > bound:
            sections.append(_runs(section, least, greatest))
            section = []
        bound = max(bound, greatest[i]) if section else greatest[i]
        section.append(i)
    if section:
        sections.append(_runs(section, least, greatest))
    return sections


def _runs(section: Sequence[int], least: Sequence[int], greatest: Sequence[int]) -> list[list[int]]:
    """Assign each range to the run that ended first, if it ended before the range begins; otherwise start a new run."""
    runs: list[list[int]] = []
    open_runs: list[tuple[int, int]] = []
    for i in section:
        if open_runs and least[i] > open_runs[0][0]:
            number = open_runs[0][1]
            runs[number].append(i)
            heapq.heapreplace(open_runs, (greatest[i], number))
        else:
            runs.append([i])
            heapq.heappush(open_runs, (greatest[i], len(runs) - 1))
    return runs
