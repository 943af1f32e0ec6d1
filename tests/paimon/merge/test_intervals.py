"""Sections and runs of files."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from forebay.paimon.format.file_meta import EMPTY_STATS, DataFileMeta
from forebay.paimon.merge import interval_partition, partition_ranges

ranges = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)).map(lambda r: (r[0], r[0] + r[1])), max_size=15)


def most_overlaps(section: list[tuple[int, int]]) -> int:
    return max(sum(low <= point <= high for low, high in section) for point, _ in section)


@given(ranges)
def test_sections_are_disjoint_and_runs_are_as_few_as_can_be(found):
    sections = partition_ranges([r[0] for r in found], [r[1] for r in found])
    assert sorted(i for section in sections for run in section for i in run) == list(range(len(found)))
    bounds = []
    for section in sections:
        members = [found[i] for run in section for i in run]
        bounds.append((min(m[0] for m in members), max(m[1] for m in members)))
        assert len(section) == most_overlaps(members)
        for run in section:
            assert all(found[a][1] < found[b][0] for a, b in itertools.pairwise(run))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(bounds))


@given(ranges)
def test_sections_cannot_be_divided_further(found):
    for section in partition_ranges([r[0] for r in found], [r[1] for r in found]):
        members = sorted(found[i] for run in section for i in run)
        for i in range(1, len(members)):
            assert members[i][0] <= max(m[1] for m in members[:i])


def test_files_are_compared_by_their_decoded_keys():
    def file(name: str, low: str, high: str) -> DataFileMeta:
        return DataFileMeta(name, 1, 1, low.encode(), high.encode(), EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0)

    files = [file("a", "b", "d"), file("b", "x", "z"), file("c", "c", "f"), file("d", "é", "é")]
    sections = interval_partition(files, lambda key: (key.decode(),), [pa.string()])
    assert [[[f.file_name for f in run] for run in section] for section in sections] == [
        [["a"], ["c"]],
        [["b"]],
        [["d"]],
    ]
    assert interval_partition([], lambda key: (key,), [pa.string()]) == []
