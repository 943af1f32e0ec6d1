"""The marks that say where each log ends: what a process that dies, or a power failure, leaves of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import StorageFailure
from forebay.fs import names
from forebay.log.log_ends import HEAD_BYTES, SLOT_BYTES, LogEndEvidence, LogEnds, NoMarks, StoredMarks, read_log_ends
from forebay.metadata.table import TableBucket
from tests.fs.faulty_fs import FaultyFileSystem
from tests.log.log_batches import SMALL, make_batch, open_log

HERE = frozenset({"mount boot-1 7"})
ELSEWHERE = frozenset({"mount boot-2 7"})
FIRST, SECOND, THIRD = TableBucket(1, 0), TableBucket(1, 1), TableBucket(7, 3, 12)
FILE = f"/data/{names.log_ends_file(0)}"


def new_fs(seed: int = 1) -> FaultyFileSystem:
    fs = FaultyFileSystem(random.Random(seed), page_bytes=512)
    fs.make_directories("/data")
    return fs


def opened(fs: FaultyFileSystem, witnesses: frozenset[str] = HERE, **more: object) -> LogEnds:
    return LogEnds.open(fs, "/data", witnesses, lambda bucket: True, **more)  # type: ignore[arg-type]


def test_a_killed_process_leaves_what_it_has_written_and_what_it_has_synced() -> None:
    fs = new_fs()
    ends = opened(fs)
    for bucket, written, synced in ((FIRST, 9, 7), (THIRD, 2**40, 2**40 - 1)):
        marks = ends.marks(bucket)
        marks.begin(3)
        for end in range(4, 8):
            marks.written(end)
            marks.synced(end)
        marks.written(written)
        marks.synced(synced)
    after = opened(fs.kill())
    assert after.problems == []
    assert after.stored_marks(FIRST) == StoredMarks(7, 9)
    assert after.stored_marks(THIRD) == StoredMarks(2**40 - 1, 2**40)
    assert after.stored_marks(SECOND) is None


def test_what_was_written_counts_only_while_the_page_cache_is_the_same() -> None:
    fs = new_fs()
    marks = opened(fs).marks(FIRST)
    marks.begin(3)
    marks.written(9)
    fs = fs.kill()
    assert read_log_ends(fs, "/data", ELSEWHERE).marks == {FIRST: StoredMarks(3, None)}
    assert read_log_ends(fs, "/data", frozenset()).marks == {FIRST: StoredMarks(3, None)}
    assert opened(fs, ELSEWHERE).stored_marks(FIRST) == StoredMarks(3, None)
    assert opened(fs, ELSEWHERE).stored_marks(FIRST) == StoredMarks(3, None), "the next process has another cache, too"


def test_marks_that_were_not_used_are_there_for_the_next_process_and_power_failures_lose_none_of_them() -> None:
    fs = new_fs()
    ends = opened(fs)
    ends.marks(FIRST).begin(5)
    ends.marks(SECOND).begin(6)
    fs = fs.kill()
    ends = opened(fs)
    ends.opened(FIRST)
    ends.marks(FIRST).begin(8)
    killed = fs.kill()
    for stored in (read_log_ends(killed, "/data", HERE).marks, read_log_ends(killed.crash(), "/data", HERE).marks):
        assert stored[FIRST].synced in (5, 8)
        assert stored[SECOND] == StoredMarks(6, 6)


def test_a_power_failure_leaves_a_synced_end_that_was_true_and_never_a_higher_one() -> None:
    for seed in range(200):
        fs = new_fs(seed)
        ends = opened(fs)
        marks = ends.marks(FIRST)
        marks.begin(0)
        ends.sync()
        for end in range(1, 20):
            marks.written(end)
            marks.synced(end)
        if seed % 2:
            ends.sync()
        known = read_log_ends(fs.crash(), "/data", ELSEWHERE).marks.get(FIRST, StoredMarks(0, None))
        assert known.written is None
        assert known.synced == 19 if seed % 2 else 0 <= known.synced <= 19


def test_a_process_that_dies_between_two_stores_leaves_the_mark_before() -> None:
    fs = new_fs()
    marks = opened(fs).marks(FIRST)
    marks.begin(5)
    marks.written(6)
    whole = fs.content(FILE)
    marks.written(7)
    first_word = next(at for at in range(0, len(whole), 8) if fs.content(FILE)[at : at + 8] != whole[at : at + 8])
    fs.set_content(FILE, whole[:first_word] + fs.content(FILE)[first_word : first_word + 8] + whole[first_word + 8 :])
    assert read_log_ends(fs.kill(), "/data", HERE).marks == {FIRST: StoredMarks(5, 6)}


def test_no_flipped_bit_gives_a_mark_that_was_never_stored() -> None:
    fs = new_fs()
    marks = opened(fs).marks(THIRD)
    marks.begin(5)
    marks.written(7)
    marks.synced(6)
    whole = fs.content(FILE)
    for position in range(HEAD_BYTES + SLOT_BYTES):
        fs.set_content(FILE, whole)
        fs.flip_byte(FILE, position, 1 << position % 8)
        stored = read_log_ends(fs, "/data", HERE)
        (known,) = stored.marks.values() if stored.marks else [StoredMarks(5, None)]
        assert known.synced in (5, 6)
        assert known.written in (None, 5, 7)
        assert stored.marks.keys() <= {THIRD}
        assert all(path == FILE and "is damaged at byte" in problem for path, problem in stored.problems)
    fs.set_content(FILE, whole[: HEAD_BYTES + 10])
    assert read_log_ends(fs, "/data", HERE).marks == {}
    fs.set_content(FILE, bytes(len(whole)))
    assert [path for path, _ in read_log_ends(fs, "/data", HERE).problems] == [FILE]


def test_there_are_slots_for_any_number_of_buckets_and_those_of_dropped_ones_are_used_again() -> None:
    fs = new_fs()
    ends = opened(fs)
    buckets = [TableBucket(2, number) for number in range(600)]
    for number, bucket in enumerate(buckets):
        ends.marks(bucket).begin(number)
    for bucket in buckets[:300]:
        ends.drop(bucket)
    files = [entry.name for entry in fs.list_directory("/data")]
    for number in range(300):
        ends.marks(TableBucket(3, number)).begin(1000 + number)
    assert [entry.name for entry in fs.list_directory("/data")] == files == [f"ends-of-logs-{n}" for n in range(3)]
    after = opened(fs.kill())
    assert [after.stored_marks(bucket) for bucket in buckets[299:301]] == [None, StoredMarks(300, 300)]
    assert after.stored_marks(TableBucket(3, 299)) == StoredMarks(1299, 1299)
    assert [entry.name for entry in fs.kill().list_directory("/data")] == [names.log_ends_file(0)]


def test_buckets_that_are_gone_or_were_closed_are_forgotten() -> None:
    fs = new_fs()
    ends = opened(fs)
    ends.marks(FIRST).begin(1)
    ends.marks(SECOND).begin(2)
    after = LogEnds.open(fs.kill(), "/data", HERE, lambda bucket: bucket == SECOND)
    assert (after.stored_marks(FIRST), after.stored_marks(SECOND)) == (None, StoredMarks(2, 2))


def test_a_full_disk_costs_the_marks_of_a_log_and_not_the_log(caplog: pytest.LogCaptureFixture) -> None:
    fs = new_fs()
    opened(fs).marks(FIRST).begin(1)
    fs = fs.kill()
    fs.inject("write_atomic", "/data/ends-of-logs", times=100)
    ends = opened(fs)
    assert ends.stored_marks(FIRST) == StoredMarks(1, 1)
    ends.marks(FIRST).begin(2)
    with pytest.raises(StorageFailure):
        ends.marks(FIRST).lower(0)
    assert "the ends of logs are not kept" in caplog.text
    assert "no new file for the ends of logs" in caplog.text
    fs.clear_faults()
    assert opened(fs.kill()).stored_marks(FIRST) == StoredMarks(1, 1)


def test_a_file_that_could_not_be_begun_at_first_has_the_marks_of_all_buckets_that_are_not_open_yet() -> None:
    """A damaged bucket is not opened: without its mark, a later process would take the damage for a torn write."""
    fs = new_fs()
    ends = opened(fs)
    ends.marks(FIRST).begin(5)
    ends.marks(SECOND).begin(6)
    fs = fs.kill()
    fs.inject("write_atomic", "/data/ends-of-logs", times=1)
    ends = opened(fs)
    marks = ends.marks(FIRST)
    ends.opened(FIRST)
    marks.begin(8)
    ends.marks(THIRD).begin(1)
    stored = opened(fs.kill())
    assert [stored.stored_marks(bucket) for bucket in (FIRST, SECOND, THIRD)] == [
        StoredMarks(8, 8), StoredMarks(6, 6), StoredMarks(1, 1),
    ]  # fmt: skip


def test_a_bucket_opened_before_the_first_file_could_be_begun_has_a_slot_in_it() -> None:
    fs = new_fs()
    opened(fs).marks(FIRST).begin(5)
    fs = fs.kill()
    fs.inject("write_atomic", "/data/ends-of-logs", times=3)
    ends = opened(fs)
    marks = ends.marks(FIRST)
    marks.begin(5)
    ends.opened(FIRST)
    marks.written(8)
    marks.synced(7)
    assert read_log_ends(fs, "/data", HERE).marks == {FIRST: StoredMarks(5, 5)}, "of the earlier process"
    ends.marks(SECOND).begin(1)
    ends.marks(THIRD).begin(1)
    assert read_log_ends(fs, "/data", HERE).marks[FIRST] == StoredMarks(7, 8)
    marks.written(9)
    marks.synced(9)
    stored = opened(fs.kill())
    assert [stored.stored_marks(bucket) for bucket in (FIRST, SECOND, THIRD)] == [
        StoredMarks(9, 9), StoredMarks(1, 1), StoredMarks(1, 1),
    ]  # fmt: skip


def test_a_bucket_that_could_not_be_opened_keeps_its_mark_in_a_file_that_is_begun_late() -> None:
    fs = new_fs()
    opened(fs).marks(FIRST).begin(5)
    fs = fs.kill()
    fs.inject("write_atomic", "/data/ends-of-logs", times=2)
    ends = opened(fs)
    ends.marks(FIRST)  # its log is damaged, and stays closed
    ends.marks(SECOND).begin(1)
    assert opened(fs.kill()).stored_marks(FIRST) == StoredMarks(5, 5)


def test_a_cut_below_a_mark_of_an_earlier_process_waits_for_a_file_without_it() -> None:
    fs = new_fs()
    opened(fs).marks(FIRST).begin(5)
    fs = fs.kill()
    fs.inject("write_atomic", "/data/ends-of-logs", times=2)
    ends = opened(fs)
    marks = ends.marks(FIRST)
    marks.begin(5)
    ends.opened(FIRST)
    marks.lower(0)
    assert opened(fs.crash()).stored_marks(FIRST) == StoredMarks(0, 0)


def test_marks_are_made_durable_when_they_have_changed_and_rarely_on_a_slow_disk() -> None:
    fs, clock = new_fs(), ManualClock()
    ends = opened(fs, clock=clock)
    assert not ends.is_sync_due
    marks = ends.marks(FIRST)
    marks.begin(1)
    assert ends.is_sync_due
    ends.sync_if_due()
    assert not ends.is_sync_due
    marks.written(2)
    assert not ends.is_sync_due, "an append that is not synced may be lost anyway"
    marks.synced(2)
    fs.inject("sync", FILE)
    with pytest.raises(StorageFailure):
        ends.sync_if_due()
    assert ends.is_sync_due
    ends.sync_if_due()
    assert read_log_ends(fs.crash(), "/data", HERE).marks[FIRST].synced == 2


def test_a_log_tells_its_end_before_it_acknowledges_and_when_it_goes_offline() -> None:
    class Noted(NoMarks):
        def __init__(self) -> None:
            self.told: list[tuple[str, int]] = []

        def begin(self, end: int) -> None:
            self.told.append(("begin", end))

        def written(self, end: int) -> None:
            self.told.append(("written", end))

        def synced(self, end: int) -> None:
            self.told.append(("synced", end))

        def lower(self, end: int) -> None:
            self.told.append(("lower", end))

    fs, marks = FaultyFileSystem(random.Random(1), 512), Noted()
    tablet = open_log(fs, marks=marks, config=replace(SMALL, segment_bytes=200))
    for _ in range(4):
        tablet.append_as_leader(make_batch(2, b"x" * 50))
    tablet.sync()
    assert marks.told == [("begin", 0), *[("written", end) for end in (2, 4, 6, 8)], ("synced", 8)]
    del marks.told[:]
    tablet.truncate_to(5)
    assert marks.told == [("lower", 0), ("begin", 4), ("written", 4)]
    tablet.append_as_leader(make_batch(1))
    fs.inject("sync", effect="drop")
    with pytest.raises(StorageFailure):
        tablet.sync()
    assert marks.told[-1] == ("begin", 4), "what was written and not synced may be gone"


def test_what_is_known_of_a_log_says_where_it_may_end() -> None:
    assert LogEndEvidence(True, 5).allows(5)
    assert not LogEndEvidence(True, 5).allows(6)
    assert LogEndEvidence(False, 3, StoredMarks(5, 7)).allows(7)
    assert not LogEndEvidence(False, 3, StoredMarks(5, 7)).allows(6)
    assert LogEndEvidence(False, None).allows(0)
    assert str(LogEndEvidence(False, 3, StoredMarks(5, 7))) == "was written up to offset 7"
    assert str(LogEndEvidence(False, 5, StoredMarks(4, 5))) == "was durable up to offset 5"
    assert str(LogEndEvidence(True, 5)) == "was closed gracefully at offset 5"
