"""A disk that fails at any step: promised data stays, failed data is absent, and the log reports its abilities."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from forebay.base.errors import InternalError, StorageFailure
from forebay.fs import names
from forebay.fs.interface import DiskFull
from forebay.log.segment import LogSegment
from forebay.log.tablet import LogTablet
from tests.fs.faulty_fs import FaultEffect, FaultyFileSystem
from tests.log.log_batches import DISK_ERRORS, FOLDER, faulty_fs, filled_log, make_batch, open_log


class Workload:
    """A fixed series of operations on a log, with what may be found after each of them fails."""

    def __init__(self, fs: FaultyFileSystem) -> None:
        self.fs = fs
        self.tablet: LogTablet
        self.batches: list[int] = []
        self.maybe: list[int] = []
        self.synced = 0
        self.start = 0
        self.start_maybe = 0
        self.end_at_least = 0
        self.failures = 0

    def run(self) -> None:
        steps: list[Callable[[], None]] = [self.open, self.append, self.append, self.sync, self.append]
        steps += [self.append] * 6 + [self.roll, self.append, self.snapshot, self.sync, self.append, self.delete]
        steps += [self.append] * 3 + [self.sync, self.append, self.append, self.truncate, self.append, self.sync]
        steps += [self.append, self.close]
        for step in steps:
            try:
                step()
            except StorageFailure:
                self.failures += 1
                if not hasattr(self, "tablet"):
                    return
            if self.tablet.is_offline:
                return

    def open(self) -> None:
        self.tablet = open_log(self.fs)

    def append(self) -> None:
        number = len(self.batches)
        try:
            self.tablet.append_as_leader(make_batch(1, bytes([number]) * (100 + 30 * (number % 4))))
        except StorageFailure:
            if self.tablet.is_offline:
                self.maybe = [number]
            raise
        self.batches.append(number)

    def sync(self) -> None:
        self.tablet.sync()
        self.synced = len(self.batches)

    def roll(self) -> None:
        self.tablet.roll()

    def snapshot(self) -> None:
        self.tablet.snapshot_writers()

    def delete(self) -> None:
        self.start_maybe = len(self.batches) - 2
        self.tablet.delete_segments_before(self.start_maybe)
        self.start = self.tablet.log_start_offset

    def truncate(self) -> None:
        target = len(self.batches) - 1
        self.synced = min(self.synced, target)
        self.maybe = self.batches[target:]
        del self.batches[target:]
        self.tablet.truncate_to(target)
        self.maybe = []

    def close(self) -> None:
        self.tablet.close()
        self.synced = len(self.batches)

    def check(self, fs: FaultyFileSystem, lost_power: bool) -> None:
        tablet = open_log(fs, recovery_point=min(self.synced, 3))
        start, end = tablet.log_start_offset, tablet.log_end_offset
        assert self.start <= start <= max(self.start, self.start_maybe)
        possible = self.batches + self.maybe
        least = self.synced if lost_power or self.failures else len(self.batches)
        assert least <= end <= len(possible)
        found = [(header.base_offset, data[60]) for header, data in tablet.iterate_batches(start)]
        assert found == [(offset, possible[offset]) for offset in range(start, end)]
        tablet.append_as_leader(make_batch(1, b"goes on"))


@pytest.mark.parametrize("error", DISK_ERRORS)
@pytest.mark.parametrize("effect", ["before", "partial", "after", "drop"])
@pytest.mark.parametrize("times", [1, 10_000])
@pytest.mark.parametrize("ending", ["kill", "crash"])
@pytest.mark.one_in(2)
def test_enospc_or_eio_at_every_call_loses_nothing_and_invents_nothing(
    error: int, effect: FaultEffect, times: int, ending: str
) -> None:
    for call in itertools.count(1):
        fs = faulty_fs(call)
        fault = fs.inject("any", on_call=call, times=times, error=error, effect=effect)
        workload = Workload(fs)
        workload.run()
        if not fault.fired:
            assert workload.failures == 0
            break
        workload.check(getattr(fs, ending)(), ending == "crash")
    assert call > 60


def test_a_full_disk_is_a_passing_trouble() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    for operation in ("append", "open", "write_atomic"):
        fs.inject(operation, error=errno.ENOSPC, effect="partial", times=100)  # type: ignore[arg-type]
    for _ in range(5):
        with pytest.raises(DiskFull):
            tablet.append_as_leader(make_batch(1, bytes(100)))
    fs.clear_faults()
    assert tablet.append_as_leader(make_batch(2, bytes(100), writer_id=9, sequence=30)).base_offset == 60
    assert tablet.sync() == 62


@pytest.mark.parametrize("effect", ["before", "partial", "after"])
def test_a_failed_append_leaves_no_trace_also_after_a_power_loss(effect: FaultEffect) -> None:
    for seed in range(60):
        fs = faulty_fs(seed)
        tablet = open_log(fs)
        tablet.append_as_leader(make_batch(1, b"kept" * 10))
        tablet.sync()
        fs.inject("append", effect=effect, error=errno.ENOSPC)
        failed = b"".join(make_batch(1, b"fail" * 10) for _ in range(5))
        with pytest.raises(DiskFull):
            tablet.append_as_leader(failed)
        # The same size as the first of the failed ones, so that the next of them would follow it perfectly.
        tablet.append_as_leader(make_batch(1, b"next" * 10))
        after = open_log(fs.crash(), recovery_point=1)
        assert [bytes(data[48:52]) for _, data in after.iterate_batches(0)] in ([b"kept"], [b"kept", b"next"])


def test_an_append_that_cannot_be_undone_takes_the_log_offline() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    fs.inject("append")
    fs.inject("truncate")
    with pytest.raises(StorageFailure, match="append"):
        tablet.append_as_leader(make_batch())
    assert tablet.is_offline
    with pytest.raises(StorageFailure, match=r"offline since a storage failure \(cannot truncate .*opened again"):
        tablet.append_as_leader(make_batch())


def test_an_append_that_is_interrupted_after_it_was_published_takes_the_log_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    real = LogSegment.append

    def interrupted(self: LogSegment, *arguments: Any) -> None:
        real(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(LogSegment, "append", interrupted)
    with pytest.raises(InternalError, match="published a failed append"):
        tablet.append_as_leader(make_batch())
    monkeypatch.undo()
    with pytest.raises(StorageFailure, match="offline"):
        tablet.append_as_leader(make_batch())
    assert open_log(fs.kill()).log_end_offset == 61


def test_after_a_failed_sync_the_log_is_offline_for_good() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    synced = tablet.synced_offset
    fs.inject("sync")
    with pytest.raises(StorageFailure, match="EIO"):
        tablet.sync()
    assert tablet.is_offline
    assert tablet.synced_offset == synced
    for work in (
        tablet.sync,
        tablet.roll,
        lambda: tablet.append_as_leader(make_batch()),
        lambda: tablet.read(0, 1),
        lambda: tablet.offset_for_timestamp(0),
        lambda: tablet.truncate_to(0),
        lambda: tablet.delete_segments_before(50),
        lambda: tablet.find_duplicate(1, 1),
    ):
        with pytest.raises(StorageFailure, match="offline since a storage failure"):
            work()


def test_an_offline_log_does_not_count_as_gracefully_closed() -> None:
    """Its owner would otherwise mark a clean shutdown, and the next start would trust unverified data."""
    fs = faulty_fs()
    tablet = filled_log(fs)
    fs.inject("sync")
    with pytest.raises(StorageFailure, match="EIO"):
        tablet.sync()
    with pytest.raises(StorageFailure, match="offline since a storage failure"):
        tablet.close()
    tablet.close()


def test_a_failed_last_sync_is_told_and_the_log_is_closed_all_the_same() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    fs.inject("sync")
    with pytest.raises(StorageFailure, match="EIO"):
        tablet.close()
    tablet.close()
    with pytest.raises(StorageFailure, match="offline"):
        tablet.read(0, 1)


@pytest.mark.parametrize("effect", ["before", "after"])
@pytest.mark.parametrize("operation", ["open", "sync_directory"])
def test_a_roll_that_fails_leaves_no_segment_that_would_contradict_the_active_one(
    operation: str, effect: FaultEffect
) -> None:
    fs = faulty_fs()
    tablet = open_log(fs)
    tablet.append_as_leader(make_batch(1, bytes(500)))
    fs.inject(operation, effect=effect)  # type: ignore[arg-type]
    with pytest.raises(StorageFailure):
        tablet.append_as_leader(make_batch(1, bytes(500)))
    assert not tablet.is_offline
    assert not fs.exists(names.log_file(FOLDER, 1))
    tablet.append_as_leader(make_batch(2, bytes(20)))
    assert len(tablet.segments()) == 1
    tablet.sync()
    tablet.append_as_leader(make_batch(1, bytes(500)))
    for after in (open_log(fs.kill(), recovery_point=3),):
        assert [s.base_offset for s in after.segments()] == [0, 3]
        assert after.log_end_offset == 4


def test_a_roll_that_fails_and_cannot_be_undone_takes_the_log_offline() -> None:
    """The file of the segment that was not to be may come back, and would contradict the active one."""
    fs = faulty_fs()
    tablet = open_log(fs)
    tablet.append_as_leader(make_batch(1, bytes(500)))
    fs.inject("sync_directory", times=2)
    with pytest.raises(StorageFailure):
        tablet.append_as_leader(make_batch(1, bytes(500)))
    assert tablet.is_offline
    with pytest.raises(StorageFailure, match="offline"):
        tablet.append_as_leader(make_batch(1, bytes(20)))
    after = open_log(fs.crash())
    assert after.log_end_offset <= 1


def test_a_writer_snapshot_or_index_that_cannot_be_written_does_not_fail_an_append() -> None:
    fs = faulty_fs()
    fs.inject("write_atomic", path_suffix=names.WRITER_SNAPSHOT_SUFFIX, times=1000, error=errno.ENOSPC)
    fs.inject("open", path_suffix=names.OFFSET_INDEX_SUFFIX, times=1000, error=errno.ENOSPC)
    fs.inject("open", path_suffix=names.TIME_INDEX_SUFFIX, times=1000, error=errno.ENOSPC)
    tablet = filled_log(fs)
    assert not tablet.snapshot_writers()
    states = tablet.writer_states()
    tablet.close()
    fs.clear_faults()
    after = open_log(fs, recovery_point=60, clean_shutdown=True)
    assert (after.log_end_offset, after.writer_states()) == (60, states)
    assert after.read(7, 1).base_offset == 6


def test_a_read_that_fails_is_told_and_the_next_one_works() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    fs.inject("read")
    with pytest.raises(StorageFailure, match="EIO"):
        tablet.read(0, 100)
    assert tablet.read(0, 100).base_offset == 0


@pytest.mark.parametrize("drop", [True, False])
def test_a_removal_interrupted_at_any_step_leaves_no_hole(drop: bool) -> None:
    """Segments go one by one, each durably, oldest first for retention and newest first for cuts."""
    for call, seed in itertools.product(range(1, 25), range(8)):
        fs = faulty_fs(seed)
        tablet = filled_log(fs)
        tablet.sync()
        fs.inject("any", on_call=call, times=10_000, effect="before")
        try:
            if drop:
                tablet.delete_segments_before(50)
            else:
                tablet.truncate_to(8)
        except StorageFailure:
            pass
        after = open_log(fs.crash(), recovery_point=60 if drop else 8)
        start, end = after.log_start_offset, after.log_end_offset
        assert (end == 60) if drop else (start == 0 and 8 <= end <= 60)
        assert [data[60] for _, data in after.iterate_batches(start)] == list(range(start // 2, end // 2))
        assert [batch.sequence for batch in after.writer_states()[9]] == list(range(end // 2))[-5:]
