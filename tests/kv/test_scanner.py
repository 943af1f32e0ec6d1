"""Full-scan sessions: the ScanKv rules of FIP-17, and the scenarios of docs/failure-scenarios.md for a manager."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.ambient import ManualClock, SeededIds
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound, StorageFailure, Unavailable
from forebay.codec.kv.value_batch import parse_value_batch, stored_value
from forebay.kv.engine import EngineState, KvPage, KvRows
from forebay.kv.scanner import PRESSED_SECONDS, ScannerLimits, ScannerManager, ScanPage, ScanSession
from forebay.kv.value_pages import page_of
from forebay.kv.value_pages import rows_of as rows_of_page
from forebay.metadata.table import TableBucket
from tests.patience import PATIENCE

BUCKET = TableBucket(1, 0)


class FakeSnapshot:
    """A snapshot that counts how often it was closed and can pause in the middle."""

    def __init__(self, rows: list[bytes], offset: int = 42) -> None:
        self.state = EngineState(offset, len(rows))
        self.rows = [stored_value(1, row) for row in rows]
        self.closes = 0
        self.paused = threading.Event()
        self.resume = threading.Event()
        self.pause_at: int | None = None
        self.read_after_close = False
        self.is_opened = False

    def values(self, first: int = 0) -> Iterator[bytes]:
        for position in range(first, len(self.rows)):
            if position == self.pause_at and self.is_opened:
                self.paused.set()
                assert self.resume.wait(PATIENCE)
            self.read_after_close = self.read_after_close or self.closes > 0
            self.taken = position + 1
            yield self.rows[position]

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        self.is_opened = rows_max > 1  # opening a scan asks for one row
        return page_of(self.values(int(after or b"0")), lambda: b"%d" % self.taken, bytes_max, rows_max)

    def rows(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvRows:
        return rows_of_page(self.page(after, bytes_max, rows_max))

    def close(self) -> None:
        self.closes += 1


class Bench:
    def __init__(self, **limits: float) -> None:
        self.clock = ManualClock()
        self.manager = ScannerManager(ScannerLimits(**limits), self.clock, SeededIds(1))  # type: ignore[arg-type]
        self.snapshot = FakeSnapshot([b"a", b"bb", b"ccc"])

    def open(self, limit: int | None = None, bucket: TableBucket = BUCKET) -> ScanSession:
        session, offset = self.manager.open(bucket, lambda: self.snapshot, limit)
        assert session is not None
        assert offset == 42
        return session


def rows_of(page: ScanPage) -> list[bytes]:
    _, rows = parse_value_batch(page.records)
    return [row for i in range(len(rows)) if (row := rows[i]) is not None]


def code_of(error: pytest.ExceptionInfo[Exception]) -> int:
    return error.value.code  # type: ignore[attr-defined, no-any-return]


@given(
    rows=st.lists(st.binary(max_size=12), min_size=1, max_size=12),
    bytes_max=st.integers(1, 60),
    limit=st.none() | st.integers(0, 14),
)
def test_pages_hold_every_row_once_and_end_with_the_last_row(rows, bytes_max, limit):
    bench = Bench()
    bench.snapshot = FakeSnapshot(rows)
    session = bench.open(limit)
    seen: list[bytes] = []
    call = 0
    while True:
        page = bench.manager.page(session.scanner_id, call, bytes_max)
        got = rows_of(page)
        assert got
        assert sum(len(r) + 6 for r in got[:-1]) < bytes_max
        seen += got
        if not page.has_more:
            break
        call += 1
    assert seen == rows[: limit or None]
    assert bench.manager.session_count == 0
    assert bench.snapshot.closes > 0


def test_empty_bucket_answers_without_a_session_but_with_an_offset():
    bench = Bench()
    bench.snapshot = FakeSnapshot([], offset=7)
    assert bench.manager.open(BUCKET, lambda: bench.snapshot, None) == (None, 7)
    assert (bench.snapshot.closes, bench.manager.session_count) == (1, 0)
    assert bench.manager.bucket_session_count(BUCKET) == 0


def test_retry_of_the_same_page_after_lost_response_gives_the_same_bytes():
    bench = Bench()
    session = bench.open()
    first = bench.manager.page(session.scanner_id, 0, 1)
    assert bench.manager.page(session.scanner_id, 0, 1000) == first
    second = bench.manager.page(session.scanner_id, 1, 1)
    assert bench.manager.page(session.scanner_id, 1, 1) == second
    last = bench.manager.page(session.scanner_id, 2, 1)
    assert not last.has_more
    assert bench.manager.page(session.scanner_id, 2, 1) == last
    with pytest.raises(NotFound) as gone:
        bench.manager.page(session.scanner_id, 3, 1)
    assert code_of(gone) == ErrorCode.UNKNOWN_SCANNER_ID


@pytest.mark.parametrize("call", [None, -1, 2, 5, 2**31 - 1])
def test_a_call_out_of_order_ends_the_scan(call):
    bench = Bench()
    session = bench.open()
    bench.manager.page(session.scanner_id, 0, 1)
    with pytest.raises(InvalidRequest, match="Out-of-order") as wrong:
        bench.manager.page(session.scanner_id, call, 1)
    assert code_of(wrong) == ErrorCode.INVALID_SCAN_REQUEST
    with pytest.raises(NotFound) as gone:
        bench.manager.page(session.scanner_id, 1, 1)
    assert code_of(gone) == ErrorCode.UNKNOWN_SCANNER_ID
    assert bench.snapshot.closes > 0


def test_close_twice_and_close_unknown_id_are_fine():
    bench = Bench()
    session = bench.open()
    bench.manager.close(session.scanner_id)
    bench.manager.close(session.scanner_id)
    bench.manager.close(b"never was")
    with pytest.raises(NotFound) as gone:
        bench.manager.page(session.scanner_id, 0, 1)
    assert code_of(gone) == ErrorCode.UNKNOWN_SCANNER_ID


def test_client_dies_without_close_ttl_frees_everything():
    bench = Bench(ttl_seconds=10)
    session = bench.open()
    bench.clock.advance(11)
    assert bench.manager.expire() == 1
    assert (bench.manager.session_count, bench.manager.bucket_session_count(BUCKET)) == (0, 0)
    assert bench.snapshot.closes > 0
    with pytest.raises(NotFound) as gone:
        bench.manager.page(session.scanner_id, 0, 1)
    assert code_of(gone) == ErrorCode.SCANNER_EXPIRED
    bench.clock.advance(21)
    bench.manager.expire()
    with pytest.raises(NotFound) as forgotten:
        bench.manager.page(session.scanner_id, 0, 1)
    assert code_of(forgotten) == ErrorCode.UNKNOWN_SCANNER_ID


def test_ten_thousand_opens_leave_no_session_behind():
    bench = Bench(ttl_seconds=1)
    for _ in range(1250):
        for _ in range(8):
            bench.open()
        bench.clock.advance(2)
        bench.manager.expire()
    assert (bench.manager.session_count, bench.manager.bucket_session_count(BUCKET)) == (0, 0)
    assert bench.snapshot.closes >= 10_000


def test_times_to_live_end_after_their_last_moment_and_not_at_it():
    bench = Bench(ttl_seconds=10)
    ended, idle = bench.open(), bench.open()
    last = bench.manager.page(ended.scanner_id, 0, 1000)
    bench.clock.advance(10)
    assert bench.manager.expire() == 0
    assert bench.manager.page(ended.scanner_id, 0, 1000) == last
    bench.clock.advance(0.5)
    assert bench.manager.expire() == 1
    assert (len(bench.manager._drained), bench.manager.session_count) == (0, 0)
    for wait, code in ((20, ErrorCode.SCANNER_EXPIRED), (0.5, ErrorCode.UNKNOWN_SCANNER_ID)):
        bench.clock.advance(wait)
        bench.manager.expire()
        with pytest.raises(NotFound) as gone:
            bench.manager.page(idle.scanner_id, 0, 1)
        assert code_of(gone) == code


def test_using_a_scan_keeps_it_alive_and_clock_jumps_do_not_matter():
    bench = Bench(ttl_seconds=10)
    session = bench.open()
    for call in range(2):
        bench.clock.advance(8)
        bench.clock.jump_wall_clock(10**9)
        bench.manager.expire()
        bench.manager.page(session.scanner_id, call, 1)
    bench.clock.jump_wall_clock(-(10**9))
    assert bench.manager.expire() == 0


def test_a_scan_that_was_dropped_makes_room_for_others_where_there_are_too_many():
    bench = Bench(per_bucket_max=2, per_server_max=2)
    dropped, used = bench.open(), bench.open()
    bench.clock.advance(PRESSED_SECONDS)
    bench.manager.page(used.scanner_id, 0, 1)
    with pytest.raises(LimitExceeded):
        bench.open()
    bench.clock.advance(1)
    opened = bench.open()
    with pytest.raises(NotFound) as gone:
        bench.manager.page(dropped.scanner_id, 0, 1)
    assert code_of(gone) == ErrorCode.SCANNER_EXPIRED
    with pytest.raises(LimitExceeded):
        bench.open()
    for session, call in ((used, 1), (opened, 0)):
        assert bench.manager.page(session.scanner_id, call, 1).records


def test_a_full_bucket_loses_its_own_scan_and_not_one_of_another():
    bench = Bench(per_bucket_max=1, per_server_max=3)
    other = bench.open(bucket=TableBucket(9, 0))
    mine = bench.open()
    bench.clock.advance(PRESSED_SECONDS + 1)
    bench.open()
    assert bench.manager.page(other.scanner_id, 0, 1).records
    with pytest.raises(NotFound):
        bench.manager.page(mine.scanner_id, 0, 1)


def test_limits_per_bucket_and_per_server():
    bench = Bench(per_bucket_max=2, per_server_max=3)
    sessions = [bench.open(), bench.open()]
    with pytest.raises(LimitExceeded, match="per-bucket") as too_many:
        bench.open()
    assert code_of(too_many) == ErrorCode.TOO_MANY_SCANNERS
    bench.open(bucket=TableBucket(1, 1))
    with pytest.raises(LimitExceeded, match="per-server"):
        bench.open(bucket=TableBucket(1, 2))
    bench.manager.close(sessions[0].scanner_id)
    bench.open()


def test_a_snapshot_that_cannot_be_taken_leaves_no_trace():
    bench = Bench()

    def broken() -> FakeSnapshot:
        raise NotFound("no such bucket")

    with pytest.raises(NotFound):
        bench.manager.open(BUCKET, broken, None)
    assert (bench.manager.session_count, bench.manager.bucket_session_count(BUCKET)) == (0, 0)


def test_two_requests_with_one_scanner_id_at_once():
    bench = Bench()
    bench.snapshot.pause_at = 1
    session = bench.open()
    running, results = _page_in_thread(bench, session)
    with pytest.raises(InvalidRequest, match="at the same time") as wrong:
        bench.manager.page(session.scanner_id, 0, 100)
    assert code_of(wrong) == ErrorCode.INVALID_SCAN_REQUEST
    bench.snapshot.resume.set()
    running.join()
    assert rows_of(results[0]) == [b"a", b"bb", b"ccc"]
    assert not bench.snapshot.read_after_close
    assert bench.snapshot.closes > 0


def test_a_scan_that_two_calls_ended_is_freed_although_it_had_more_rows():
    bench = Bench()
    bench.snapshot.pause_at = 1
    session = bench.open()
    running = threading.Thread(target=bench.manager.page, args=(session.scanner_id, 0, 1))
    running.start()
    assert bench.snapshot.paused.wait(PATIENCE)
    with pytest.raises(InvalidRequest, match="at the same time"):
        bench.manager.page(session.scanner_id, 0, 1)
    assert bench.snapshot.closes == 0
    bench.snapshot.resume.set()
    running.join()
    assert bench.snapshot.closes > 0
    assert (bench.manager.session_count, bench.manager.bucket_session_count(BUCKET)) == (0, 0)


def test_close_while_fetching_does_not_free_the_snapshot_under_the_fetch():
    """1a: close during an active batch must fence, not free."""
    bench = Bench()
    bench.snapshot.pause_at = 1
    session = bench.open()
    running, results = _page_in_thread(bench, session)
    with pytest.raises(InvalidRequest, match="closed while"):
        bench.manager.close(session.scanner_id)
    assert bench.snapshot.closes == 0
    bench.snapshot.resume.set()
    running.join()
    assert len(rows_of(results[0])) == 3
    assert not bench.snapshot.read_after_close
    assert bench.snapshot.closes > 0


def test_closing_a_bucket_expires_its_scans_without_racing_a_running_call():
    bench = Bench()
    bench.snapshot.pause_at = 1
    session = bench.open()
    running, results = _page_in_thread(bench, session)
    assert bench.manager.close_bucket(BUCKET) == 1
    assert bench.manager.close_bucket(TableBucket(9, 9)) == 0
    assert bench.snapshot.closes == 0
    bench.snapshot.resume.set()
    running.join()
    assert len(rows_of(results[0])) == 3
    assert bench.snapshot.closes > 0
    assert not bench.snapshot.read_after_close


def _page_in_thread(bench: Bench, session: ScanSession) -> tuple[threading.Thread, list[ScanPage]]:
    results: list[ScanPage] = []
    thread = threading.Thread(target=lambda: results.append(bench.manager.page(session.scanner_id, 0, 100)))
    thread.start()
    assert bench.snapshot.paused.wait(PATIENCE)
    return thread, results


def test_a_scan_whose_next_call_has_begun_does_not_expire():
    bench = Bench(ttl_seconds=10, per_bucket_max=1)
    session = bench.open()
    bench.clock.advance(PRESSED_SECONDS + 1)
    assert session.try_begin_use()
    assert bench.manager.expire() == 0
    with pytest.raises(LimitExceeded):
        bench.open()
    session.end_use()
    assert bench.manager.page(session.scanner_id, 0, 1).records
    bench.clock.advance(11)
    assert bench.manager.expire() == 1
    assert bench.snapshot.closes == 1


@pytest.mark.parametrize("end", ["bucket", "client", "idle"])
def test_a_scan_that_ends_just_before_a_call_begins_gives_no_page(end):
    """It would be the last page of a scan that has more rows."""
    bench = Bench()
    session = bench.open()
    begin = session.try_begin_use

    def ended_meanwhile() -> bool:
        if end == "bucket":
            bench.manager.close_bucket(BUCKET)
        elif end == "client":
            bench.manager.close(session.scanner_id)
        else:
            bench.clock.advance(ScannerLimits().ttl_seconds + 1)
            bench.manager.expire()
        return begin()

    session.try_begin_use = ended_meanwhile
    with pytest.raises(NotFound) as gone:
        bench.manager.page(session.scanner_id, 0, 1)
    assert code_of(gone) == (ErrorCode.UNKNOWN_SCANNER_ID if end == "client" else ErrorCode.SCANNER_EXPIRED)
    assert bench.snapshot.closes == 1


def test_a_call_that_comes_between_the_end_of_another_and_the_end_of_the_scan_does_not_begin():
    bench = Bench()
    session = bench.open()
    assert session.try_begin_use()
    bench.manager.close_bucket(BUCKET)
    assert bench.snapshot.closes == 0
    session._use.release()  # the first step of `end_use`; the second releases the snapshot
    assert not session.try_begin_use()
    assert bench.snapshot.closes == 1


def test_a_page_that_has_more_behind_it_does_not_end_its_scan():
    bench = Bench()
    session = bench.open()
    assert bench.manager.page(session.scanner_id, 0, 1).has_more
    assert (bench.manager.session_count, len(bench.manager._drained)) == (1, 0)


def test_register_after_close_is_rejected_and_leaks_nothing():
    """1a: server close() then a late register()."""
    bench = Bench()

    def close_meanwhile() -> FakeSnapshot:
        bench.manager.shut_down()
        return bench.snapshot

    with pytest.raises(LimitExceeded, match="shutting down"):
        bench.manager.open(BUCKET, close_meanwhile, None)
    assert bench.snapshot.closes > 0
    with pytest.raises(LimitExceeded, match="shutting down"):
        bench.open()


def test_shutdown_closes_all_and_later_calls_are_told_that_they_expired():
    bench = Bench()
    session = bench.open()
    bench.manager.shut_down()
    assert bench.manager.session_count == 0
    with pytest.raises(NotFound) as gone:
        bench.manager.page(session.scanner_id, 0, 1)
    assert code_of(gone) == ErrorCode.SCANNER_EXPIRED


def test_pages_kept_for_replay_stay_within_their_budget():
    bench = Bench(replayable_bytes_max=40)
    sessions = [bench.open() for _ in range(3)]
    for session in sessions:
        bench.manager.page(session.scanner_id, 0, 1)
        bench.clock.advance(1)
    with pytest.raises(InvalidRequest, match="no longer kept"):
        bench.manager.page(sessions[0].scanner_id, 0, 1)
    assert rows_of(bench.manager.page(sessions[2].scanner_id, 0, 1)) == [b"a"]


def test_scans_that_have_ended_stay_within_their_number_and_their_pages_are_counted():
    bench = Bench(finished_max=100)
    sessions = [bench.open() for _ in range(8)]
    while len(sessions) < 258:
        bench.manager.page(sessions[-8].scanner_id, 0, 100)
        sessions.append(bench.open())
    for session in sessions[-8:]:
        bench.manager.page(session.scanner_id, 0, 100)
    assert (bench.manager.session_count, len(bench.manager._drained)) == (0, 100)
    assert bench.manager._kept_bytes == 100 * len(bench.manager.page(sessions[-1].scanner_id, 0, 100).records)
    with pytest.raises(NotFound):
        bench.manager.page(sessions[157].scanner_id, 0, 100)
    bench.manager.close(sessions[200].scanner_id)
    bench.clock.advance(10_000)
    bench.manager.expire()
    assert (len(bench.manager._drained), bench.manager._kept_bytes) == (0, 0)


def test_of_scans_that_expired_only_so_many_are_remembered():
    bench = Bench(finished_max=10)
    sessions = []
    for _ in range(15):
        sessions.append(bench.open())
        bench.manager.close_bucket(BUCKET)
    for session, code in ((sessions[4], ErrorCode.UNKNOWN_SCANNER_ID), (sessions[5], ErrorCode.SCANNER_EXPIRED)):
        with pytest.raises(NotFound) as gone:
            bench.manager.page(session.scanner_id, 0, 1)
        assert code_of(gone) == code


def test_kept_pages_may_fill_their_budget_and_the_oldest_ended_scan_gives_way_first():
    bench = Bench(replayable_bytes_max=10**6)
    size = len(bench.manager.page(bench.open().scanner_id, 0, 1000).records)
    bench = Bench(replayable_bytes_max=2 * size)
    ended = [bench.open() for _ in range(3)]
    for session in ended[:2]:
        bench.manager.page(session.scanner_id, 0, 1000)
    assert len(bench.manager._drained) == 2
    bench.manager.page(ended[2].scanner_id, 0, 1000)
    assert len(bench.manager._drained) == 2
    with pytest.raises(NotFound):
        bench.manager.page(ended[0].scanner_id, 0, 1000)
    for session in ended[1:]:
        assert len(rows_of(bench.manager.page(session.scanner_id, 0, 1000))) == 3


def test_of_each_scan_only_the_last_page_counts_for_the_budget():
    bench = Bench()
    size = len(bench.manager.page(bench.open().scanner_id, 0, 1).records)
    bench = Bench(replayable_bytes_max=2 * (size + 2))
    first, second = bench.open(), bench.open()
    page = bench.manager.page(first.scanner_id, 0, 1)
    for call in range(3):
        bench.manager.page(second.scanner_id, call, 1)
    assert bench.manager.page(first.scanner_id, 0, 1) == page


def test_the_page_of_a_scan_that_is_closed_half_way_no_longer_counts_for_the_budget():
    bench = Bench()
    size = len(bench.manager.page(bench.open().scanner_id, 0, 1).records)
    bench = Bench(replayable_bytes_max=2 * size)
    first = bench.open()
    page = bench.manager.page(first.scanner_id, 0, 1)
    for _ in range(3):
        other = bench.open()
        bench.manager.page(other.scanner_id, 0, 1)
        bench.manager.close(other.scanner_id)
    assert bench.manager.page(first.scanner_id, 0, 1) == page


def test_shutting_down_forgets_the_pages_of_scans_that_have_ended():
    bench = Bench()
    sessions = [bench.open() for _ in range(3)]
    for session in sessions[:2]:
        bench.manager.page(session.scanner_id, 0, 1000)
    bench.manager.shut_down()
    assert (bench.manager.session_count, len(bench.manager._drained)) == (0, 0)
    with pytest.raises(NotFound):
        bench.manager.page(sessions[0].scanner_id, 0, 1000)


def test_expiry_goes_by_the_last_use():
    bench = Bench()
    first, second = bench.open(), bench.open()
    bench.clock.advance(400)
    bench.manager.page(first.scanner_id, 0, 1)
    bench.clock.advance(400)
    assert bench.manager.expire() == 1
    with pytest.raises(NotFound):
        bench.manager.page(second.scanner_id, 0, 1)
    bench.manager.page(first.scanner_id, 1, 1)


def test_a_single_row_larger_than_the_page_is_delivered():
    bench = Bench(page_bytes_max=10)
    bench.snapshot = FakeSnapshot([bytes(5000), b"x"])
    session = bench.open()
    page = bench.manager.page(session.scanner_id, 0, 2**31 - 1)
    assert (rows_of(page), page.has_more) == ([bytes(5000)], True)


def test_iterator_error_mid_scan_is_an_error_and_ends_the_scan():
    class Damaged(FakeSnapshot):
        def values(self, first: int = 0) -> Iterator[bytes]:
            for self.taken in (1, 2):
                yield self.rows[self.taken - 1]
            raise StorageFailure("a block cannot be read")

    bench = Bench()
    snapshot = Damaged([b"a", b"b", b"c"])
    session, _ = bench.manager.open(BUCKET, lambda: snapshot, None)
    assert session is not None
    with pytest.raises(StorageFailure, match="a block cannot be read"):
        bench.manager.page(session.scanner_id, 0, 1 << 20)
    assert (bench.manager.session_count, snapshot.closes) == (0, 1)
    with pytest.raises(NotFound):
        bench.manager.page(session.scanner_id, 1, 1 << 20)


def test_a_scan_does_not_begin_on_a_bucket_that_goes_away_while_its_snapshot_is_taken() -> None:
    manager = ScannerManager(ScannerLimits(), ManualClock(), SeededIds(1))
    snapshots = [FakeSnapshot([b"a"]) for _ in range(2)]

    def take(bucket: TableBucket) -> FakeSnapshot:
        manager.close_bucket(bucket)
        return snapshots.pop()

    with pytest.raises(Unavailable, match="while a scan of it began"):
        manager.open(BUCKET, lambda: take(BUCKET), None)
    assert (manager.session_count, manager.bucket_session_count(BUCKET)) == (0, 0)
    session, _ = manager.open(BUCKET, lambda: take(TableBucket(1, 1)), None)
    assert session is not None
    assert manager.session_count == 1
