"""Sparse indexes alone: lookups, files, and the rest of damaged ones."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.log.segment import SegmentIndex, SparseIndex
from tests.log.log_batches import faulty_fs

PATH = "/d/x.index"


def make(count: int, key_code: str = "i", fs: object = None) -> SparseIndex:
    fs = fs or faulty_fs()
    fs.make_directories("/d")  # type: ignore[attr-defined]
    index = SparseIndex(fs, PATH, key_code)  # type: ignore[arg-type]
    for number in range(count):
        index.append(number * 10 + 5, number * 100 + 50)
    return index


@given(st.integers(0, 40), st.integers(-5, 500))
def test_lookups_find_the_neighbours(count: int, key: int) -> None:
    index = make(count)
    entries = [(number * 10 + 5, number * 100 + 50) for number in range(count)]
    below = [entry for entry in entries if entry[0] <= key]
    above = [entry for entry in entries if entry[0] >= key]
    assert index.floor(key) == (below[-1] if below else None)
    assert index.ceiling(key) == (above[0] if above else None)
    assert index.last() == (entries[-1] if entries else None)
    assert len(index) == count


@pytest.mark.parametrize(("key_code", "entry"), [("i", ">ii"), ("q", ">qi")])
def test_the_file_holds_big_endian_entries_and_is_read_back(key_code: str, entry: str) -> None:
    fs = faulty_fs()
    index = make(300, key_code, fs)
    assert 0 < len(fs.content(PATH)) < 300 * struct.calcsize(entry)
    index.flush()
    index.flush()
    expected = [(number * 10 + 5, number * 100 + 50) for number in range(300)]
    assert list(struct.iter_unpack(entry, fs.content(PATH))) == expected
    again = make(0, key_code, fs)
    again.load(10**6)
    assert [again.floor(key) for key, _ in expected] == expected
    again.append(5000, 50_000)
    again.flush()
    assert list(struct.iter_unpack(entry, fs.content(PATH))) == [*expected, (5000, 50_000)]


def test_loading_stops_where_the_order_breaks_or_the_segment_ends() -> None:
    good = [(5, 50), (15, 150), (25, 250)]
    for bad in [(25, 350), (24, 350), (35, 250), (35, 240), (35, 10_000), (35, -350), (-35, 350), (0, 0)]:
        fs = faulty_fs()
        fs.make_directories("/d")
        entries = [*good, bad, (45, 450)]
        fs.set_content(PATH, b"".join(struct.pack(">ii", *entry) for entry in entries))
        index = SparseIndex(fs, PATH, "i")
        index.load(10_000)
        assert len(index) == 3, bad
        index.append(26, 251)
        index.flush()
        assert list(struct.iter_unpack(">ii", fs.content(PATH))) == [*good, (26, 251)]


@pytest.mark.parametrize("bad", [(5, 0), (5, -1), (-1, 50), (5, 10_000)])
def test_a_first_entry_that_cannot_be_is_not_taken(bad: tuple[int, int]) -> None:
    fs = faulty_fs()
    fs.make_directories("/d")
    fs.set_content(PATH, struct.pack(">ii", *bad))
    index = SparseIndex(fs, PATH, "i")
    index.load(10_000)
    assert len(index) == 0
    fs.set_content(PATH, struct.pack(">ii", 0, 9999))
    index.load(10_000)
    assert index.last() == (0, 9999)


def test_a_torn_entry_at_the_end_of_the_file_is_dropped() -> None:
    fs = faulty_fs()
    make(3, fs=fs).flush()
    fs.set_content(PATH, fs.content(PATH)[:-3])
    index = SparseIndex(fs, PATH, "i")
    index.load(10_000)
    assert len(index) == 2


@pytest.mark.parametrize("effect", ["before", "partial", "after"])
def test_a_failed_write_is_repeated_whole_by_the_next_flush(effect: str) -> None:
    fs = faulty_fs()
    index = make(5, fs=fs)
    fs.inject("append", error=errno.ENOSPC, effect=effect)  # type: ignore[arg-type]
    index.flush()
    index.append(1000, 1000)
    index.flush()
    assert len(list(struct.iter_unpack(">ii", fs.content(PATH)))) == 6


def test_what_was_truncated_is_gone_from_the_file_at_the_next_flush() -> None:
    fs = faulty_fs()
    index = make(10, fs=fs)
    index.flush()
    index.truncate_values(450)
    assert len(index) == 4
    index.flush()
    assert len(fs.content(PATH)) == 4 * 8
    index.remove_file()
    assert not fs.exists(PATH)
    index.flush()
    assert len(fs.content(PATH)) == 4 * 8


def test_a_lookup_keeps_its_view_while_the_index_is_truncated() -> None:
    index = make(10)
    columns = index._columns
    index.truncate(0)
    assert len(columns[0]) == 10
    assert index.last() is None


def test_a_batch_gets_an_entry_when_the_interval_is_passed_and_a_time_entry_when_its_time_is_new() -> None:
    fs = faulty_fs()
    fs.make_directories("/d")
    index = SegmentIndex(fs, "/d", 1000, 100)
    for number in range(20):
        index.note(1000 + number, number * 50, 7 + number // 6)
    assert index.floor(1000) == (1000, 0)
    assert index.floor(1002) == (1000, 0)
    assert index.floor(1003) == (1003, 150)
    assert index.floor(1011) == (1009, 450)
    assert index.ceiling_position(1004) == 300
    assert index.ceiling_position(1019) is None
    assert index.last() == (1018, 900)
    assert index.floor_time(7) is None
    assert index.floor_time(8) == (7, 1003)
    assert index.floor_time(100) == (10, 1018)
    index.truncate(1010, 500)
    assert index.last() == (1009, 450)
    assert index.floor_time(100) == (8, 1006)
    index.note(1010, 500, 8)
    assert index.last() == (1009, 450)
    index.note(1011, 551, 9)
    assert index.last() == (1011, 551)


def test_the_files_of_a_segment_go_both() -> None:
    fs = faulty_fs()
    fs.make_directories("/d")
    index = SegmentIndex(fs, "/d", 1000, 100)
    for number in range(20):
        index.note(1000 + number, number * 50, number)
    index.flush()
    assert len(fs.list_directory("/d")) == 2
    index.remove_files()
    assert fs.list_directory("/d") == []
