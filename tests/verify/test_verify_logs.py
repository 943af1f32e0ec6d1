"""The files of one log, examined without opening it: faults, notes, and neither."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from forebay.codec.log.header import iter_headers
from forebay.fs import names
from forebay.fs.local import LocalFileSystem
from forebay.log.log_ends import LogEndEvidence
from forebay.log.tablet import LogTablet
from forebay.verify.logs import LogImage, check_log
from forebay.verify.report import Report
from tests.fs.faulty_fs import FaultyFileSystem
from tests.log.log_batches import FOLDER, SMALL, faulty_fs, filled_log, make_batch

END = 60
"""Offsets of a filled log, of two records a batch."""


@pytest.fixture
def fs() -> FaultyFileSystem:
    fs = faulty_fs()
    filled_log(fs).close()
    return fs


def checked(fs: FaultyFileSystem, recovery_point: int | None = END, clean: bool = True) -> tuple[LogImage, Report]:
    report = Report()
    return check_log(fs, FOLDER, LogEndEvidence(clean, recovery_point), report, lambda *_: None), report


def segments(fs: FaultyFileSystem) -> list[str]:
    return [entry.name for entry in fs.list_directory(FOLDER) if entry.name.endswith(names.LOG_SUFFIX)]


def path_of(name: str) -> str:
    return f"{FOLDER}/{name}"


@pytest.mark.parametrize("clean", [True, False])
def test_a_sound_log_is_counted_and_read_back(fs: FaultyFileSystem, clean: bool) -> None:
    image, report = checked(fs, clean=clean)
    assert report.findings == []
    assert (image.start, image.end, image.is_whole) == (0, END, True)
    assert report.counts["batches"] == END // 2
    assert report.counts["log segments"] == len(segments(fs)) > 3
    assert report.counts["bytes of log"] == sum(len(fs.content(path_of(name))) for name in segments(fs))
    for start, end in ((0, END), (7, 23), (8, 22), (END, END), (20, 20)):
        found = [header.base_offset for header, _ in image.batches(start, end)]
        assert found == [base for base in range(0, END, 2) if base + 2 > start and base < end]


def test_a_log_that_ends_elsewhere_than_it_was_closed_or_synced_is_a_fault(fs: FaultyFileSystem) -> None:
    for recovery_point, clean, told in (
        (END - 2, True, "was closed gracefully at offset 58: it has batches beyond that"),
        (END + 2, True, "was closed gracefully at offset 62: offsets 60 to 61 are lost"),
        (END + 2, False, "was durable up to offset 62: offsets 60 to 61 are lost"),
    ):
        image, report = checked(fs, recovery_point, clean)
        assert not image.is_whole
        assert [f.message for f in report.faults] == [f"{FOLDER} ends at offset 60, and {told}"]
    for recovery_point in (0, END - 2, None):
        assert checked(fs, recovery_point, clean=False)[1].findings == []
    assert checked(fs, None)[1].findings == []


def test_a_missing_log_is_a_fault_where_something_was_durable() -> None:
    fs = faulty_fs()
    fs.make_directories(FOLDER)
    assert checked(fs, 0)[1].findings == []
    assert checked(fs, 1, clean=False)[1].faults
    image, report = checked(fs, None)
    assert (image.start, image.end, report.findings) == (0, 0, [])


@pytest.mark.parametrize(("recovery_point", "clean"), [(END, True), (END, False), (20, False)])
def test_a_missing_segment_is_a_fault_below_the_recovery_point(
    fs: FaultyFileSystem, recovery_point: int, clean: bool
) -> None:
    fs.remove(path_of(segments(fs)[1]))
    image, report = checked(fs, recovery_point, clean)
    assert not image.is_whole
    assert "ends with offset 14, and the next segment begins at 28: offsets 14 to 27 are lost" in str(report.faults[0])


def test_a_missing_segment_above_the_recovery_point_is_what_the_server_cuts_off(fs: FaultyFileSystem) -> None:
    fs.remove(path_of(segments(fs)[1]))
    image, report = checked(fs, 14, clean=False)
    assert report.faults == []
    assert (image.is_whole, image.end) == (True, 14)
    assert "the unsynced end of the log, which the server truncates" in report.findings[0].message


@pytest.mark.parametrize(
    ("recovery_point", "clean", "is_fault"), [(END, True, True), (END, False, True), (END - 2, False, False)]
)
def test_a_torn_end_is_a_fault_below_the_recovery_point_and_else_a_note(
    fs: FaultyFileSystem, recovery_point: int, clean: bool, is_fault: bool
) -> None:
    last = path_of(segments(fs)[-1])
    fs.set_content(last, fs.content(last)[:-1])
    image, report = checked(fs, recovery_point, clean)
    assert (image.end, image.is_whole) == (END - 2, not is_fault)
    assert [finding.is_fault for finding in report.findings if last in finding.message] == [is_fault]


@pytest.mark.parametrize("segment", [0, -1])
def test_damage_in_front_of_sound_batches_is_a_fault_though_nothing_was_synced(
    fs: FaultyFileSystem, segment: int
) -> None:
    damaged = path_of(segments(fs)[segment])
    fs.flip_byte(damaged, 60)  # in the body of its first batch
    image, report = checked(fs, 0, clean=False)
    assert not image.is_whole
    assert [finding.place for finding in report.faults] == [damaged]


def test_damage_hides_nothing_that_is_behind_it(fs: FaultyFileSystem) -> None:
    damaged = path_of(segments(fs)[1])
    whole = fs.content(damaged)
    batches = [position for position, _ in iter_headers(whole)]
    for position in (batches[0] + 3, batches[0] + 9, batches[2] + 30, batches[-1] + 9):  # heads and a body
        fs.set_content(damaged, whole)
        fs.flip_byte(damaged, position, 1)
        image, report = checked(fs, 0, clean=False)
        number = max(n for n, start in enumerate(batches) if start <= position)
        assert [(gap.position, gap.offset, gap.next_offset) for gap in image.gaps] == [
            (batches[number], 14 + 2 * number, 16 + 2 * number)
        ]
        assert report.counts["batches"] == END // 2 - 1
        (fault,) = report.faults
        assert fault.message.endswith(f": offsets {14 + 2 * number} to {15 + 2 * number} are lost")


def test_the_last_batch_of_all_may_be_torn_where_nothing_was_synced(fs: FaultyFileSystem) -> None:
    last = path_of(segments(fs)[-1])
    *_, (position, _) = iter_headers(whole := fs.content(last))
    fs.set_content(last, whole[:position] + bytes(len(whole) - position))
    image, report = checked(fs, 0, clean=False)
    assert (report.faults, image.is_whole, image.end) == ([], True, END - 2)


@pytest.mark.parametrize("suffix", [names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX])
def test_an_index_entry_that_names_no_batch_is_a_fault_and_zeros_are_none(fs: FaultyFileSystem, suffix: str) -> None:
    base = next(
        name.removesuffix(names.LOG_SUFFIX)
        for name in segments(fs)
        if fs.exists(index := path_of(name.removesuffix(names.LOG_SUFFIX) + suffix)) and fs.content(index)
    )
    index = path_of(base + suffix)
    whole = fs.content(index)
    entry_bytes = 8 if suffix == names.OFFSET_INDEX_SUFFIX else 12
    fs.set_content(index, whole + bytes(2 * entry_bytes))
    assert checked(fs)[1].findings == []
    for position in (entry_bytes - 5, entry_bytes - 1):  # of the key, and of the value
        fs.set_content(index, whole)
        fs.flip_byte(index, position, 1)
        image, report = checked(fs)
        assert [finding.place for finding in report.faults] == [index]
        assert f"{index} is damaged at byte 0: no batch is as it says" in report.faults[0].message
        assert image.is_whole
    fs.set_content(index, whole + struct.pack(">ii" if entry_bytes == 8 else ">qi", 2**31 - 1, 2**31 - 1))
    assert checked(fs)[1].findings == []  # behind the end: entries of batches that were cut


def test_writer_snapshots_are_read_and_compared_with_the_end(fs: FaultyFileSystem) -> None:
    report = checked(fs)[1]
    found = [entry.name for entry in fs.list_directory(FOLDER) if entry.name.endswith(names.WRITER_SNAPSHOT_SUFFIX)]
    assert report.counts["writer snapshots"] == len(found) > 0
    newest = path_of(found[-1])
    whole = fs.content(newest)
    fs.flip_byte(newest, 8)
    assert [finding.place for finding in checked(fs)[1].faults] == [newest]
    fs.set_content(newest, whole)
    last = path_of(segments(fs)[-1])
    fs.set_content(last, b"")
    image, report = checked(fs, 0, clean=False)
    assert report.faults == []
    assert f"stands for the batches below offset {END}, and the log ends at {image.end}" in report.findings[-1].message
    report = checked(fs, image.end)[1]
    assert [finding.place for finding in report.faults] == [newest]


def test_no_file_of_a_log_stays_open(tmp_path: Path) -> None:
    local = LocalFileSystem()
    tablet = LogTablet.open(local, f"{tmp_path}/log-0", config=SMALL)
    for _ in range(20):
        tablet.append_as_leader(make_batch(2, bytes(80)))
    tablet.close()
    before = len(os.listdir("/proc/self/fd"))
    for damaged in (False, True):
        if damaged:
            (tmp_path / "log-0" / f"{0:020d}.log").write_bytes(b"torn")
        image = check_log(local, f"{tmp_path}/log-0", LogEndEvidence(True, None), Report(), lambda *_: None)
        assert len(list(image.batches(0, 10))) == (0 if damaged else 5)
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_summary_counts_what_was_checked_and_found() -> None:
    report = Report()
    assert report.summary() == "checked nothing: no faults, no notes"
    assert report.is_clean
    report.count("rows", 1234)
    report.count("rows")
    report.note("a", "odd")
    assert report.is_clean
    report.fault("b", "b is bad")
    assert not report.is_clean
    assert report.summary() == "checked 1,235 rows: 1 fault, 1 note"
    assert [str(finding) for finding in report.findings] == ["note  a: odd", "FAULT b is bad"]
