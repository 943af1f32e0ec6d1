"""Overlap of a bucket's files: sections with disjoint key ranges, each with the minimum number of sorted runs.

Sections can be read one after the other; only the runs within a section must be merged (`IntervalPartition` in Java).
Keys are compared by their rank among all keys of the files, so that 10,000 files take milliseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.paimon.format.file_meta import DataFileMeta
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
