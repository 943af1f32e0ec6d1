"""The guarantees of a log, one behaviour per test."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import (
    Conflict,
    CorruptData,
    ErrorCode,
    InternalError,
    InvalidRequest,
    StorageFailure,
)
from forebay.codec.log.header import iter_headers, parse_header, verify_crc
from forebay.fs import names
from forebay.fs.local import LocalFileSystem
from forebay.log.config import LogConfig
from forebay.log.segment import LogSegment, SegmentPart
from forebay.log.tablet import EARLIEST_OFFSET, LogReads, LogTablet
from forebay.log.writer_state import RETRY_HORIZON_MS
from tests.log.log_batches import FOLDER, SMALL, faulty_fs, filled_log, make_batch, open_log, payloads, read_all
from tests.open_files import open_files


def test_an_append_sets_offsets_timestamp_and_epoch_and_leaves_the_rest_and_the_request_alone() -> None:
    clock = ManualClock(5000)
    tablet = open_log(faulty_fs(), clock=clock)
    tablet.append_as_leader(make_batch(3, b"first"))
    request = b"".join(make_batch(2, b"body", magic=magic, base_offset=99) for magic in (0, 1, 2))
    buffer = bytearray(request)
    answer = tablet.append_as_leader(buffer, leader_epoch=6)
    assert buffer == request
    assert (answer.base_offset, answer.last_offset, answer.next_offset) == (3, 8, 9)
    assert (answer.commit_timestamp_ms, answer.duplicate) == (5000, False)
    data = tablet.read(3, 10_000).data
    assert payloads(data) == payloads(request)
    for (position, header), base in zip(iter_headers(data), (3, 5, 7), strict=True):
        verify_crc(data, position, header)
        assert (header.base_offset, header.commit_timestamp_ms) == (base, 5000)
        assert header.leader_epoch == (6 if header.magic == 2 else -1)


def test_a_follower_has_the_same_log() -> None:
    clock = ManualClock(5000)
    leader = open_log(faulty_fs(), clock=clock)
    for number in range(5):
        leader.append_as_leader(make_batch(3, b"%d" % number, writer_id=9, sequence=number))
        leader.append_as_leader(make_batch(0))
        clock.advance(number % 2)
    follower = open_log(faulty_fs(), clock=ManualClock(1))
    data = leader.read(0, 10_000).data
    assert follower.append_as_follower(data) == leader.log_end_offset
    assert bytes(follower.read(0, 10_000).data) == bytes(data)
    assert follower.writer_states() == leader.writer_states()
    assert follower.last_timestamp_ms == leader.last_timestamp_ms
    for timestamp_ms in (5000, 6000, 7000, 8000):
        assert follower.offset_for_timestamp(timestamp_ms) == leader.offset_for_timestamp(timestamp_ms)


def test_a_follower_refuses_what_does_not_continue_its_log() -> None:
    leader = open_log(faulty_fs())
    ends = [leader.append_as_leader(make_batch(2)).next_offset for _ in range(3)]
    data = bytes(leader.read(0, 10_000).data)
    (second, _), (third, _) = list(iter_headers(data))[1:]
    follower = open_log(faulty_fs())
    damaged = bytearray(data[:third])
    damaged[-1] ^= 1
    for wrong in (data[second:], data[:second] + data[third:], bytes(damaged), data[: third - 1]):
        with pytest.raises(CorruptData):
            follower.append_as_follower(wrong)
        assert follower.log_end_offset == 0
    assert follower.append_as_follower(data[:second]) == ends[0]
    assert follower.append_as_follower(data[second:]) == ends[2]


def test_an_empty_batch_takes_one_offset() -> None:
    tablet = open_log(faulty_fs())
    assert tablet.append_as_leader(make_batch(0)).last_offset == 0
    assert tablet.append_as_leader(make_batch(0)).last_offset == 1
    assert tablet.log_end_offset == 2


@pytest.mark.parametrize("request_bytes", [b"", b"x", make_batch()[:-1], make_batch() + b"x", bytes(100)])
def test_a_request_that_is_not_whole_batches_is_refused(request_bytes: bytes) -> None:
    tablet = open_log(faulty_fs())
    with pytest.raises(CorruptData) as caught:
        tablet.append_as_leader(request_bytes)
    assert caught.value.code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert tablet.log_end_offset == 0


def test_a_request_with_a_wrong_checksum_is_refused_whole() -> None:
    tablet = open_log(faulty_fs())
    good = make_batch(1, b"body")
    damaged = bytearray(good)
    damaged[-1] ^= 1
    with pytest.raises(CorruptData, match="log batch at byte 52: stored CRC") as caught:
        tablet.append_as_leader(good + bytes(damaged))
    assert caught.value.code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert tablet.log_end_offset == 0


def test_a_batch_above_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    tablet = open_log(faulty_fs(), config=LogConfig(batch_bytes_max=200))
    tablet.append_as_leader(make_batch(1, bytes(200 - 48)))
    with pytest.raises(InvalidRequest, match="201 bytes is larger than the limit of 200") as caught:
        tablet.append_as_leader(make_batch() + make_batch(1, bytes(201 - 48)))
    assert caught.value.code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert tablet.log_end_offset == 1


def test_a_request_that_no_segment_could_hold_is_refused_unless_it_is_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tablet = open_log(faulty_fs(), config=LogConfig())
    monkeypatch.setattr("forebay.log.tablet.SEGMENT_BYTES_LIMIT", 200)
    tablet.append_as_leader(make_batch(1, bytes(300)))
    tablet.append_as_leader(make_batch(1, bytes(52)) * 2)
    with pytest.raises(InvalidRequest, match="holds 201 bytes, more than a segment can") as caught:
        tablet.append_as_leader(make_batch(1, bytes(52)) + make_batch(1, bytes(53)))
    assert caught.value.code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert tablet.log_end_offset == 3


def test_commit_timestamps_never_go_back_with_the_clock() -> None:
    clock = ManualClock(1000)
    fs = faulty_fs()
    tablet = open_log(fs, clock=clock)
    tablet.append_as_leader(make_batch())
    clock.jump_wall_clock(-500)
    assert tablet.append_as_leader(make_batch()).commit_timestamp_ms == 1000
    tablet.roll()
    assert tablet.append_as_leader(make_batch()).commit_timestamp_ms == 1000
    tablet.close()
    tablet = open_log(fs, clock=clock, clean_shutdown=True)
    assert tablet.last_timestamp_ms == 1000
    assert tablet.append_as_leader(make_batch()).commit_timestamp_ms == 1000
    tablet.roll()
    tablet = open_log(fs.kill(), clock=clock)
    assert tablet.append_as_leader(make_batch()).commit_timestamp_ms == 1000
    clock.jump_wall_clock(800)
    assert tablet.append_as_leader(make_batch()).commit_timestamp_ms == 1300


# ---- segments


def test_segments_roll_before_they_grow_too_large_and_any_append_may_be_alone_in_one() -> None:
    tablet = open_log(faulty_fs(), config=LogConfig(segment_bytes=296))
    for body in (100, 100, 1000, 1, 199, 1):
        tablet.append_as_leader(make_batch(1, bytes(body)))
    assert [(s.base_offset, s.next_offset, s.size_bytes) for s in tablet.segments()] == [
        (0, 2, 296),
        (2, 3, 1048),
        (3, 5, 296),
        (5, 6, 49),
    ]


def test_one_request_is_never_split_over_segments() -> None:
    tablet = open_log(faulty_fs(), config=LogConfig(segment_bytes=300))
    tablet.append_as_leader(make_batch(1, bytes(10)))
    tablet.append_as_leader(b"".join(make_batch(1, bytes(100)) for _ in range(5)))
    assert [s.base_offset for s in tablet.segments()] == [0, 1]


def test_rolling_an_empty_segment_does_nothing() -> None:
    tablet = open_log(faulty_fs())
    tablet.roll()
    tablet.append_as_leader(make_batch())
    tablet.roll()
    tablet.roll()
    assert [s.base_offset for s in tablet.segments()] == [0, 1]


def test_batches_that_claim_billions_of_records_do_no_harm() -> None:
    fs = faulty_fs()
    tablet = open_log(fs, config=LogConfig(segment_bytes=10_000, index_interval_bytes=1))
    claim = make_batch(2**31 - 1, b"tiny")
    tablet.append_as_leader(claim * 3)
    tablet.append_as_leader(claim)
    tablet.append_as_leader(make_batch(1, b"end"))
    end = 4 * (2**31 - 1) + 1
    assert tablet.log_end_offset == end
    for _ in range(2):
        assert tablet.log_end_offset == end
        assert [bytes(data[48:]) for _, data in tablet.iterate_batches(0)] == [b"tiny"] * 4 + [b"end"]
        assert bytes(tablet.read(end - 1, 100).data[48:]) == b"end"
        fs = fs.kill()
        tablet = open_log(fs)


def test_sealed_segments_give_their_write_handles_back_once_synced(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    tablet = LogTablet.open(fs, f"{tmp_path}/log-0", config=SMALL)
    for number in range(40):
        tablet.append_as_leader(make_batch(1, bytes([number]) * 100))
    assert len(tablet.segments()) > 5
    tablet.sync()
    assert len([s for s in tablet._segments if s.is_open_for_append]) == 1
    tablet.close()
    del tablet
    assert not open_files(tmp_path)


# ---- reading


def test_every_read_of_every_place_with_every_bound_is_right() -> None:
    fs = faulty_fs()
    tablet = open_log(fs, config=LogConfig(segment_bytes=900, index_interval_bytes=100))
    sizes = [48, 60, 148, 400, 50, 48, 48, 100, 500, 70, 49]
    ends = []
    for number, size in enumerate(sizes):
        answer = tablet.append_as_leader(make_batch(number % 3 + 1, bytes(size - 48)))
        ends.append(answer.next_offset)
    bases = [0, *ends[:-1]]
    segment_bases = {s.base_offset for s in tablet.segments()}
    assert len(segment_bases) == 2
    budgets = [0, 1, 48, 100, 150, 300, 600, 5000]
    for offset, upper, budget, at_least_one in itertools.product(
        range(ends[-1] + 1), [*range(ends[-1] + 2), None], budgets, [True, False]
    ):
        piece = tablet.read(offset, budget, upper, min_one_batch=at_least_one)
        limit = ends[-1] if upper is None else upper
        expected: list[int] = []
        total = 0
        for base, end, size in zip(bases, ends, sizes, strict=True):
            if end <= offset:
                continue
            fits = total + size <= budget or (at_least_one and not expected)
            if end > limit or not fits or (expected and base in segment_bases):
                break
            expected.append(base)
            total += size
        got = [header.base_offset for _, header in iter_headers(piece.data)]
        assert got == expected, (offset, upper, budget, at_least_one)
        assert len(piece.data) == total


def test_how_much_a_read_may_find_is_told_without_looking_at_a_file() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs, config=replace(SMALL, writer_snapshots_retained=50))
    tablet.delete_segments_before(14)
    before = len(fs.calls)
    told = {offset: tablet.readable_bytes(offset, 60) for offset in [EARLIEST_OFFSET, *range(10, 62)]}
    limited = [tablet.readable_bytes(offset, 30) for offset in (29, 30, 31)]
    assert fs.calls[before:] == []
    assert told[EARLIEST_OFFSET] == told[14]
    assert [offset for offset, size in told.items() if size == 0] == [10, 11, 12, 13, 60, 61]
    assert limited == [told[29], 0, 0]
    for offset in range(14, 60):
        found = len(tablet.read(offset, 10_000).data)
        assert found <= told[offset] <= found + 2 * SMALL.index_interval_bytes


def test_reading_begins_at_the_log_start_when_asked_to() -> None:
    tablet = filled_log(faulty_fs())
    tablet.delete_segments_before(20)
    start = tablet.log_start_offset
    assert start > 0
    assert tablet.read(EARLIEST_OFFSET, 100).base_offset == start


def test_reading_at_the_end_gives_nothing_and_outside_is_an_error() -> None:
    tablet = filled_log(faulty_fs())
    piece = tablet.read(60, 1000)
    assert (len(piece.data), piece.base_offset, piece.next_offset) == (0, 60, 60)
    for offset in (61, -1, -3):
        with pytest.raises(InvalidRequest, match=f"offset {offset} is not in {FOLDER}, which has 0 to 60") as caught:
            tablet.read(offset, 1000)
        assert caught.value.code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_a_slice_tells_where_its_bytes_lie_in_the_file() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    for offset in range(0, 60, 7):
        piece = tablet.read(offset, 300)
        stored = fs.content(piece.path)
        assert stored[piece.position : piece.position + len(piece.data)] == piece.data


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each pread asked for."""
    asked: list[int] = []
    reader_type = type(faulty_fs().open_append("/x").reader())
    real = reader_type.pread

    def recording(self: object, offset: int, length: int) -> bytes:
        asked.append(length)
        return real(self, offset, length)  # type: ignore[arg-type]

    monkeypatch.setattr(reader_type, "pread", recording)
    return asked


def test_a_read_is_one_pread_of_little_more_than_it_returns(lengths: list[int]) -> None:
    tablet = open_log(faulty_fs(), config=LogConfig(index_interval_bytes=500))
    for _ in range(300):
        tablet.append_as_leader(make_batch(1, bytes(52)))
    for offset, budget, upper in [(0, 5000, 300), (77, 2000, 300), (123, 100, 300), (10, 10**6, 40), (299, 10**6, 300)]:
        lengths.clear()
        piece = tablet.read(offset, budget, upper)
        assert len(piece.data) == min(budget, (upper - offset) * 100)
        assert len(lengths) == 1
        assert lengths[0] <= len(piece.data) + 500 + 600


def test_iterating_holds_no_more_than_the_scan_window_or_the_largest_batch(lengths: list[int]) -> None:
    tablet = open_log(faulty_fs(), config=LogConfig(scan_bytes=1000, index_interval_bytes=500))
    for _ in range(50):
        tablet.append_as_leader(make_batch(1, bytes(300)))
    tablet.append_as_leader(make_batch(1, bytes(5000)))
    assert len(list(tablet.iterate_batches(0))) == 51
    assert max(lengths) <= max(1500, 5048)


def test_iterating_ends_where_it_is_told_to_or_at_the_end_that_the_log_had() -> None:
    tablet = filled_log(faulty_fs())
    for start, end in ((0, 60), (5, 21), (0, 20), (20, 20), (60, 60), (10, 1000)):
        bases = [header.base_offset for header, _ in tablet.iterate_batches(start, end)]
        assert bases == [base for base in range(0, 60, 2) if base + 2 > start and base + 2 <= end], (start, end)
    bases = []
    for header, _ in tablet.iterate_batches(30):
        bases.append(header.base_offset)
        tablet.append_as_leader(make_batch(2, bytes(40)))
    assert bases == list(range(30, 60, 2))


def test_iterating_notices_bytes_that_rotted_and_names_the_place() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs, 3)
    path = names.log_file(FOLDER, 0)
    fs.flip_byte(path, 48 + 40 + 80)
    iterator = tablet.iterate_batches(0)
    assert next(iterator)[0].base_offset == 0
    with pytest.raises(CorruptData, match=f"{path} is damaged at byte 88, where offset 2 should begin: stored CRC"):
        next(iterator)


def test_times_are_found_by_the_batch_that_was_committed_then() -> None:
    clock = ManualClock(1000)
    tablet = open_log(faulty_fs(), clock=clock)
    assert tablet.offset_for_timestamp(0) is None
    for _ in range(40):
        tablet.append_as_leader(make_batch(2, bytes(40)))
        tablet.append_as_leader(make_batch(1, bytes(40)))
        clock.advance(0.01)
    for number in range(40):
        for time in range(1000 + number * 10 - 9, 1000 + number * 10 + 1):
            assert tablet.offset_for_timestamp(time) == number * 3, time
    assert tablet.offset_for_timestamp(1391) is None
    assert tablet.offset_for_timestamp(1390, upper_offset=117) is None
    assert tablet.offset_for_timestamp(1390, upper_offset=119) == 117
    assert tablet.last_timestamp_ms == 1390


# ---- writers (failure-scenarios 1b)


def test_idempotent_writer_lost_response_while_later_batches_succeed() -> None:
    tablet = open_log(faulty_fs())
    batches = [make_batch(2, bytes([n]), writer_id=7, sequence=n) for n in range(6)]
    answers = [tablet.append_as_leader(batch) for batch in batches[:5]]
    for batch, answer in zip(batches, answers, strict=False):
        again = tablet.append_as_leader(batch)
        assert again == answer._replace(duplicate=True)
    assert tablet.log_end_offset == 10
    tablet.append_as_leader(batches[5])
    with pytest.raises(Conflict, match="batch sequence 0 of writer 7 is out of order: the last one here is 5, so 6"):
        tablet.append_as_leader(batches[0])


def test_one_duplicate_answers_the_whole_request_and_nothing_of_it_is_appended() -> None:
    tablet = open_log(faulty_fs())
    first = tablet.append_as_leader(make_batch(3, writer_id=7, sequence=0))
    both = make_batch(3, writer_id=7, sequence=0) + make_batch(1, b"new", writer_id=7, sequence=1)
    assert tablet.append_as_leader(both) == first._replace(duplicate=True)
    assert tablet.log_end_offset == 3


def test_several_batches_of_a_request_must_follow_each_other() -> None:
    tablet = open_log(faulty_fs())
    tablet.append_as_leader(b"".join(make_batch(1, writer_id=7, sequence=n) for n in range(3)))
    with pytest.raises(Conflict) as caught:
        tablet.append_as_leader(make_batch(1, writer_id=7, sequence=3) + make_batch(1, writer_id=7, sequence=5))
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
    with pytest.raises(Conflict):
        tablet.append_as_leader(make_batch(1, writer_id=7, sequence=3) + make_batch(1, writer_id=7, sequence=3))
    assert tablet.log_end_offset == 3
    tablet.append_as_leader(make_batch(1, writer_id=7, sequence=3) + make_batch(1, writer_id=8, sequence=0))


def test_an_unknown_writer_must_begin_with_zero_also_with_a_clock_that_jumped() -> None:
    clock = ManualClock()
    tablet = open_log(faulty_fs(), clock=clock)
    with pytest.raises(Conflict, match="the last one here is -1, so 0 must follow"):
        tablet.append_as_leader(make_batch(writer_id=7, sequence=1))
    tablet.append_as_leader(make_batch())
    clock.jump_wall_clock(-30 * 86_400_000)
    with pytest.raises(Conflict):
        tablet.append_as_leader(make_batch(writer_id=7, sequence=1))


def test_a_writer_without_id_is_not_checked() -> None:
    tablet = open_log(faulty_fs())
    for sequence in (5, 5, -1, 0):
        tablet.append_as_leader(make_batch(writer_id=-1, sequence=sequence))
    assert tablet.log_end_offset == 4
    assert tablet.writer_states() == {}


def test_a_silent_writer_is_forgotten_after_the_expiry_and_starts_over() -> None:
    clock = ManualClock()
    fs = faulty_fs()
    tablet = open_log(fs, clock=clock)
    for sequence in range(3):
        tablet.append_as_leader(make_batch(1, b"old", writer_id=7, sequence=sequence))
    clock.advance(7 * 86_400)
    assert tablet.expire_writers() == 0
    tablet.append_as_leader(make_batch(1, writer_id=8, sequence=0))
    clock.advance(0.001)
    assert tablet.expire_writers() == 1
    with pytest.raises(Conflict):
        tablet.append_as_leader(make_batch(1, writer_id=7, sequence=3))
    tablet.append_as_leader(make_batch(1, b"new", writer_id=7, sequence=0))
    # Without a snapshot, the replay meets the old batches too; the new 1 is no repetition of the old one.
    tablet = open_log(fs.kill(), clock=clock)
    assert not tablet.append_as_leader(make_batch(1, b"new", writer_id=7, sequence=1)).duplicate


def test_opening_forgets_the_writers_that_were_silent_for_too_long() -> None:
    clock = ManualClock()
    fs = faulty_fs()
    tablet = open_log(fs, clock=clock)
    tablet.append_as_leader(make_batch(writer_id=7, sequence=0))
    clock.advance(3 * 86_400)
    tablet.append_as_leader(make_batch(writer_id=8, sequence=0))
    tablet.close()
    clock.advance(5 * 86_400)
    assert set(open_log(fs, clock=clock, recovery_point=2, clean_shutdown=True).writer_states()) == {8}


def test_duplicates_can_be_requested_before_an_append() -> None:
    tablet = open_log(faulty_fs())
    assert tablet.find_duplicate(7, 0) is None
    answer = tablet.append_as_leader(make_batch(2, writer_id=7, sequence=0))
    found = tablet.find_duplicate(7, 0)
    assert found is not None
    assert (found.base_offset, found.last_offset) == (answer.base_offset, answer.last_offset)
    assert tablet.find_duplicate(7, 1) is None


def test_a_restart_does_not_forget_which_repeats_are_harmless() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    tablet.close()
    tablet = open_log(fs.kill(), clean_shutdown=True)
    assert tablet.recovery.replayed_batches == 0
    for sequence in range(25, 30):
        answer = tablet.append_as_leader(make_batch(2, writer_id=9, sequence=sequence))
        assert (answer.base_offset, answer.duplicate) == (sequence * 2, True)


# ---- high watermark, sync


def test_the_high_watermark_stays_inside_the_log() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    tablet.high_watermark = 60
    with pytest.raises(InternalError, match="high watermark 61"):
        tablet.high_watermark = 61
    tablet.truncate_to(40)
    assert tablet.high_watermark == 40
    fs = fs.kill()
    assert open_log(fs, high_watermark=1000).high_watermark == 40
    assert open_log(fs, high_watermark=12).high_watermark == 12


class _Overtaken:
    """A lock that another thread gets first: it does `work` before."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work: Callable[[], object] | None = work

    def __enter__(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()

    def __exit__(self, *_: object) -> None:
        return


def test_the_high_watermark_that_another_thread_has_raised_further_does_not_go_back() -> None:
    tablet = filled_log(faulty_fs())
    further: list[bool] = []
    tablet._watermark_lock = _Overtaken(lambda: further.append(tablet.raise_high_watermark(60)))  # type: ignore[assignment]
    assert not tablet.raise_high_watermark(20)
    assert (further, tablet.high_watermark) == ([True], 60)
    assert not tablet.raise_high_watermark(60)
    tablet._watermark_lock = _Overtaken(lambda: None)  # type: ignore[assignment]
    assert not tablet.raise_high_watermark(1_000)  # there is no more


def test_what_becomes_visible_while_segments_are_deleted_stays_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    tablet = filled_log(faulty_fs())
    bases = [s.base_offset for s in tablet.segments()]
    tablet.high_watermark = bases[1]
    start = LogReads.local_start_offset

    def read(log: LogTablet) -> int:  # a look at it after the cut: another thread raises the watermark meanwhile
        found: int = start.fget(log)  # type: ignore[attr-defined]
        if found == bases[1] and log._high_watermark == bases[1]:
            log._high_watermark = log.log_end_offset
        return found

    monkeypatch.setattr(LogReads, "local_start_offset", property(read))
    assert tablet.delete_segments_before(bases[1]) == 1
    assert tablet.high_watermark == tablet.log_end_offset


def test_a_sync_covers_all_that_came_before_it_and_a_second_one_costs_nothing() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    assert tablet.synced_offset == 0
    assert tablet.sync() == 60
    syncs = sum(operation == "sync" for operation, _ in fs.calls)
    assert syncs == len(tablet.segments())
    assert tablet.sync() == 60
    assert sum(operation == "sync" for operation, _ in fs.calls) == syncs
    tablet.append_as_leader(make_batch())
    assert (tablet.synced_offset, tablet.sync()) == (60, 61)
    assert sum(operation == "sync" for operation, _ in fs.calls) == syncs + 1


# ---- cutting


@pytest.mark.parametrize("offset", range(0, 61, 3))
def test_truncation_keeps_whole_batches_below_the_offset(offset: int) -> None:
    fs = faulty_fs(offset)
    tablet = filled_log(fs)
    tablet.sync()
    before = read_all(tablet)
    end = tablet.truncate_to(offset)
    assert end == tablet.log_end_offset == offset // 2 * 2
    assert read_all(tablet) == before[: end // 2 * 90 + sum((0, 4, 8)[n % 3] - 2 for n in range(end // 2))]
    after = open_log(fs.crash())
    assert after.log_end_offset == end
    expected = {9: list(range(end // 2))[-5:]} if end else {}
    for log in (tablet, after):
        assert {key: [b.sequence for b in batches] for key, batches in log.writer_states().items()} == expected
    after.append_as_leader(make_batch(writer_id=9, sequence=end // 2))


def test_a_truncated_log_does_not_bring_back_what_was_cut() -> None:
    for seed in range(100):
        fs = faulty_fs(seed)
        tablet = open_log(fs)
        for number in range(4):
            tablet.append_as_leader(make_batch(1, bytes([number]) * 40))
        tablet.sync()
        tablet.truncate_to(1)
        tablet.append_as_leader(make_batch(1, b"new" + bytes(37)))
        after = open_log(fs.crash())
        assert [bytes(data[48:51]) for _, data in after.iterate_batches(1)] in ([], [b"new"])


def test_what_follows_a_truncation_is_synced_again() -> None:
    for seed in range(20):
        fs = faulty_fs(seed)
        tablet = filled_log(fs)
        tablet.sync()
        assert tablet.truncate_to(20) == tablet.synced_offset == 20
        for _ in range(10):
            tablet.append_as_leader(make_batch(2, b"new" * 9))
        assert tablet.sync() == 40
        assert open_log(fs.crash(), recovery_point=20).log_end_offset == 40


@pytest.mark.parametrize("offset", [0, 5, 13])
def test_a_log_that_is_truncated_below_its_start_is_empty_there(offset: int) -> None:
    fs = faulty_fs(offset)
    tablet = filled_log(fs, config=replace(SMALL, writer_snapshots_retained=50))
    tablet.delete_segments_before(20)
    assert tablet.log_start_offset == 14
    assert tablet.truncate_to(offset) == offset
    for log in (tablet, open_log(fs.crash())):
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (offset, offset, offset)
        assert log.synced_offset == offset
        assert log.writer_states() == {}
        assert log.size_bytes == 0
    log.append_as_leader(make_batch(writer_id=9, sequence=0))
    assert read_all(log) != b""


@pytest.mark.parametrize("offset", [60, 61, 1000])
def test_truncating_at_or_behind_the_end_touches_nothing(offset: int) -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    before = len(fs.calls)
    assert tablet.truncate_to(offset) == 60
    assert fs.calls[before:] == []


def test_truncating_at_the_start_keeps_what_a_snapshot_tells_of_deleted_batches() -> None:
    tablet = filled_log(faulty_fs(), config=replace(SMALL, writer_snapshots_retained=50))
    tablet.delete_segments_before(14)
    assert (tablet.log_start_offset, tablet.truncate_to(14)) == (14, 14)
    assert [batch.sequence for batch in tablet.writer_states()[9]] == [2, 3, 4, 5, 6]


def test_truncating_below_the_start_restarts_the_log_there() -> None:
    tablet = filled_log(faulty_fs())
    tablet.delete_segments_before(30)
    assert tablet.truncate_to(5) == 5
    assert (tablet.log_start_offset, tablet.log_end_offset) == (5, 5)


def test_old_segments_are_deleted_whole_and_never_the_active_one() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    bases = [s.base_offset for s in tablet.segments()]
    assert tablet.delete_segments_before(bases[1] - 1) == 0
    assert tablet.delete_segments_before(bases[1]) == 1
    assert tablet.log_start_offset == bases[1]
    assert tablet.delete_segments_before(bases[1]) == 0
    assert tablet.delete_segments_before(10_000) == len(bases) - 2
    assert tablet.log_start_offset == bases[-1]
    assert tablet.high_watermark == bases[-1]
    after = open_log(fs.crash())
    assert after.log_start_offset == bases[-1]
    assert after.writer_states() == tablet.writer_states()


def test_deleting_segments_of_a_log_that_is_synced_syncs_no_file_again() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs, config=replace(SMALL, writer_snapshots_retained=1))
    tablet.sync()
    before = len(fs.calls)
    assert tablet.delete_segments_before(30) > 0
    assert "sync" not in dict(fs.calls[before:])


def test_deleting_segments_of_which_a_durable_snapshot_knows_the_writers_takes_no_other() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs, 4)
    tablet.roll()  # takes a snapshot where the new segment begins
    tablet.append_as_leader(make_batch())
    tablet.sync()
    before = len(fs.calls)
    assert tablet.delete_segments_before(8) == 1
    assert "write_atomic" not in dict(fs.calls[before:])


@pytest.mark.parametrize("is_synced", [True, False])
def test_deleting_segments_of_which_no_durable_snapshot_knows_the_writers_syncs_what_is_not(is_synced: bool) -> None:
    fs = faulty_fs()
    fs.inject("write_atomic", times=1000)
    tablet = filled_log(fs)
    fs.clear_faults()
    if is_synced:
        tablet.sync()
    before = len(fs.calls)
    assert tablet.delete_segments_before(30) > 0
    assert ("sync" in dict(fs.calls[before:])) == (not is_synced)


def test_no_segment_is_deleted_while_only_it_knows_its_writers() -> None:
    fs = faulty_fs()
    tablet = open_log(fs)
    fs.inject("write_atomic", times=1000)
    for number in range(20):
        tablet.append_as_leader(make_batch(1, bytes(100), writer_id=number, sequence=0))
    assert tablet.delete_segments_before(10) == 0
    fs.clear_faults()
    assert tablet.delete_segments_before(10) > 0
    assert set(open_log(fs.crash()).writer_states()) == set(range(20))


@pytest.mark.parametrize("delete_first", [True, False])
def test_writers_of_deleted_segments_survive_any_power_loss(delete_first: bool) -> None:
    for seed in range(40):
        fs = faulty_fs(seed)
        tablet = open_log(fs)
        for number in range(10):
            tablet.append_as_leader(make_batch(1, bytes(100), writer_id=number, sequence=0))
        tablet.sync()
        if delete_first:
            assert tablet.delete_segments_before(8) > 0
        for _ in range(20):  # Many unsynced rolls, each with a snapshot that a power loss may make void.
            tablet.append_as_leader(make_batch(1, bytes(400)))
        if not delete_first:
            assert tablet.delete_segments_before(8) > 0
        assert set(open_log(fs.crash()).writer_states()) == set(range(10)), seed


@pytest.mark.parametrize("suffix", [names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX])
def test_a_new_segment_takes_nothing_over_from_files_that_lie_under_its_names(suffix: str) -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    log_file = names.log_file(FOLDER, 60)
    index_file = log_file.removesuffix(names.LOG_SUFFIX) + suffix
    fs.set_content(log_file, make_batch(1, b"old"))
    fs.set_content(index_file, bytes(64))
    tablet.roll()
    assert not fs.exists(index_file)
    tablet.append_as_leader(make_batch(1, b"new"))
    expected = payloads(make_batch(1, b"new"))
    assert payloads(tablet.read(60, 1000).data) == expected
    after = open_log(fs.kill())
    assert payloads(after.read(60, 1000).data) == expected
    assert after.log_end_offset == 61


# ---- the end


def test_a_closed_log_refuses_work_and_a_second_close_does_nothing() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    tablet.close()
    before = len(fs.calls)
    tablet.close()
    for work in (
        lambda: tablet.read(0, 1),
        lambda: tablet.append_as_leader(make_batch()),
        lambda: tablet.offset_for_timestamp(0),
        lambda: next(iter(tablet.iterate_batches(0))),
        lambda: tablet.truncate_to(0),
        lambda: tablet.delete_segments_before(0),
        lambda: tablet.find_duplicate(9, 0),
        tablet.sync,
        tablet.roll,
        tablet.snapshot_writers,
    ):
        with pytest.raises(StorageFailure, match="is closed") as caught:
            work()
        assert caught.value.code == ErrorCode.LOG_STORAGE_EXCEPTION
    assert fs.calls[before:] == []


def test_closing_makes_everything_durable() -> None:
    for seed in range(20):
        fs = faulty_fs(seed)
        filled_log(fs).close()
        after = open_log(fs.crash(), recovery_point=60, clean_shutdown=True)
        assert after.log_end_offset == 60
        assert len(after.writer_states()[9]) == 5


def test_a_deleted_log_is_gone_durably_and_can_be_recreated() -> None:
    for seed in range(20):
        fs = faulty_fs(seed)
        tablet = filled_log(fs)
        tablet.delete()
        tablet.delete()
        with pytest.raises(StorageFailure, match="was deleted"):
            tablet.read(0, 1)
        fs = fs.crash()
        assert fs.list_directory("/data/db/t-1") == []
        assert open_log(fs).log_end_offset == 0


def test_a_crash_while_deleting_leaves_the_log_or_a_folder_known_as_dying() -> None:
    seen = set()
    for seed in range(60):
        fs = faulty_fs(seed)
        tablet = filled_log(fs)
        tablet.sync()
        fs.inject("any", on_call=seed % 5 + 1, times=10_000)
        with pytest.raises(StorageFailure):
            tablet.delete()
        fs = fs.crash()
        left = [entry.name for entry in fs.list_directory("/data/db/t-1")]
        assert left in (["log-0"], ["log-0.deleted"], [])
        seen.add(tuple(left))
        if left == ["log-0"]:
            assert open_log(fs).log_end_offset == 60
        else:
            assert all(names.is_deleted(name) for name in left)
    assert len(seen) >= 2


@pytest.mark.parametrize(
    "values",
    [
        {"segment_bytes": 0},
        {"segment_bytes": 2**31},
        {"batch_bytes_max": 0},
        {"batch_bytes_max": 2**31},
        {"index_interval_bytes": 0},
        {"writer_expiry_ms": -1},
        {"writers_max": 0},
        {"writer_snapshots_retained": 0},
        {"scan_bytes": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LogConfig(**values)
    assert caught.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_the_largest_settings_that_work_are_taken() -> None:
    limit = 2**31 - 1
    config = LogConfig(segment_bytes=limit, batch_bytes_max=limit)
    assert (config.segment_bytes, config.batch_bytes_max) == (limit, limit)
    assert LogConfig(segment_bytes=1, batch_bytes_max=1, writers_max=1, scan_bytes=1).writers_max == 1


def test_the_stored_form_is_the_wire_form() -> None:
    fs = faulty_fs()
    tablet = open_log(fs, clock=ManualClock(7))
    batch = make_batch(2, b"abc", writer_id=1, sequence=0)
    tablet.append_as_leader(batch)
    stored = fs.content(names.log_file(FOLDER, 0))
    assert stored == batch[:13] + (7).to_bytes(8, "little") + batch[21:]
    assert parse_header(stored).size_bytes == len(stored)


def test_of_too_many_writers_those_silent_the_longest_are_forgotten_and_refused() -> None:
    clock = ManualClock()
    tablet = open_log(faulty_fs(), config=LogConfig(writers_max=3), clock=clock)
    for writer in range(6):
        tablet.append_as_leader(make_batch(1, writer_id=writer, sequence=0))
        clock.advance(60)
    assert tablet.expire_writers() == 0  # a client may still be repeating its first batch, which must not count twice
    assert tablet.append_as_leader(make_batch(1, writer_id=0, sequence=0)).duplicate
    clock.advance(RETRY_HORIZON_MS / 1000)
    tablet.append_as_leader(make_batch(1, writer_id=0, sequence=1))
    assert tablet.expire_writers() == 3
    assert sorted(tablet.writer_states()) == [0, 4, 5]
    with pytest.raises(Conflict, match="batch sequence 1 of writer 3 is out of order"):
        tablet.append_as_leader(make_batch(1, writer_id=3, sequence=1))


def test_a_closed_segment_has_its_writer_snapshot_as_soon_as_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    looks = 0

    def looked(work: Callable[..., object], *arguments: object) -> object:
        """What a thread that copies closed segments sees at this moment."""
        nonlocal looks
        for part in tablet.closed_parts(0, tablet.log_end_offset):
            assert tablet.writer_snapshot(part.end_offset) is not None
        looks += 1
        return work(*arguments)

    for step in ("write_atomic", "open_append", "sync_directory"):
        monkeypatch.setattr(fs, step, partial(looked, getattr(fs, step)))
    tablet.copied_end = 0  # so that no snapshot is removed
    start = list(tablet.closed_parts(0, tablet.log_end_offset))[-1].end_offset
    for part in tablet.closed_parts(0, start):
        fs.set_content(names.writer_snapshot_file(FOLDER, part.end_offset), b"of any kind")
    tablet.roll()
    assert looks >= 3
    assert list(tablet.closed_parts(0, tablet.log_end_offset))[-1].end_offset == tablet.log_end_offset


def test_closed_segments_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tablet = filled_log(faulty_fs())
    end = tablet.log_end_offset
    bases = [segment.base_offset for segment in tablet.segments()]
    assert len(bases) == 5
    read: list[int] = []
    part_from = LogSegment.part_from

    def noted(segment: LogSegment, offset: int) -> SegmentPart:
        read.append(offset)
        return part_from(segment, offset)

    monkeypatch.setattr(LogSegment, "part_from", noted)
    parts = iter(tablet.closed_parts(2, end))
    assert [next(parts).start_offset, next(parts).start_offset] == read == [2, bases[1]]
    assert [part.start_offset for part in parts] == bases[2:-1]
    assert [part.end_offset for part in tablet.closed_parts(0, bases[3] + 1)] == bases[1:4]
    assert list(tablet.closed_parts(bases[-1], end)) == []


def test_closed_segments_end_where_one_is_deleted_meanwhile() -> None:
    tablet = filled_log(faulty_fs())
    bases = [segment.base_offset for segment in tablet.segments()]
    parts = iter(tablet.closed_parts(0, tablet.log_end_offset))
    assert next(parts).end_offset == bases[1]
    assert tablet.delete_segments_before(bases[3]) == 3
    assert list(parts) == []
    assert next(iter(tablet.closed_parts(0, tablet.log_end_offset))).start_offset == bases[3]
