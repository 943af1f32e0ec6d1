"""Table snapshots: handles, pins, pages and leases, and the scenarios of docs/failure-scenarios.md for a manager."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.ambient import ManualClock, SeededIds
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound, StorageFailure
from forebay.codec.kv.value_batch import parse_value_batch, stored_value
from forebay.kv.engine import EngineState, KvEngine, KvPage, KvRows, KvSnapshot
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.kv.table_snapshots import OpenedSnapshot, TableSnapshotLimits, TableSnapshotManager
from forebay.metadata.table import TableBucket
from tests.kv.memory_engine import MemoryEngine
from tests.patience import PATIENCE

A, B = TableBucket(1, 0), TableBucket(1, 1)
BIG = 1 << 30


def rows_of(page: KvPage) -> list[bytes]:
    _, rows = parse_value_batch(page.records)
    return [row for i in range(len(rows)) if (row := rows[i]) is not None]


def filled(engine: KvEngine, rows: Sequence[tuple[bytes, bytes]], offset: int = 42) -> KvEngine:
    engine.apply({key: stored_value(1, row) for key, row in rows}, EngineState(offset, len(rows)))
    return engine


class CountedSnapshot:
    """A snapshot that can pause inside a page, and remembers whether it was closed, and read after that."""

    def __init__(self, snapshot: KvSnapshot) -> None:
        self._snapshot = snapshot
        self.state = snapshot.state
        self.closes = 0
        self.read_after_close = False
        self.pauses = False
        self.paused, self.resume = threading.Event(), threading.Event()

    def values(self) -> Iterator[bytes]:
        return self._snapshot.values()

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        self._note_read()
        return self._snapshot.page(after, bytes_max, rows_max)

    def rows(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvRows:
        self._note_read()
        return self._snapshot.rows(after, bytes_max, rows_max)

    def _note_read(self) -> None:
        if self.pauses:
            self.paused.set()
            assert self.resume.wait(PATIENCE)
        self.read_after_close = self.read_after_close or self.closes > 0

    def close(self) -> None:
        self.closes += 1
        self._snapshot.close()


class Bench:
    """A manager, and a table of two buckets with three rows each."""

    def __init__(self, **limits: float) -> None:
        self.clock = ManualClock()
        self.manager = TableSnapshotManager(TableSnapshotLimits(**limits), self.clock, SeededIds(1))  # type: ignore[arg-type]
        self.engines = {
            bucket: filled(MemoryEngine(), [(b"k%d" % i, b"%d" % (10 * bucket.bucket + i)) for i in range(3)])
            for bucket in (A, B)
        }
        self.taken: list[CountedSnapshot] = []

    def pins(self) -> dict[TableBucket, KvSnapshot]:
        made = {bucket: CountedSnapshot(engine.snapshot()) for bucket, engine in self.engines.items()}
        self.taken += made.values()
        return dict(made)

    def open(self, lease: float | None = None, name: str = "") -> OpenedSnapshot:
        return self.manager.open(1, [A, B], self.pins, lease, name)

    def read(self, opened: OpenedSnapshot, bucket: TableBucket = A, after: bytes | None = None) -> list[bytes]:
        return rows_of(self.manager.page(opened.snapshot_id, bucket, after, BIG, None))

    def ended_with(self, opened: OpenedSnapshot) -> tuple[int, str]:
        with pytest.raises(NotFound) as error:
            self.read(opened)
        return error.value.code, error.value.message

    @property
    def open_pins(self) -> int:
        return sum(snapshot.closes == 0 for snapshot in self.taken)


# ---- pages ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "lmdb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KvEngine]:
    made: KvEngine = {"memory": MemoryEngine, "lmdb": LmdbEngine}[request.param](tmp_path / "engine")
    yield made
    made.close()


LONG = b"L" * 600
KEYS = [b"a", b"ab", b"b", b"c" * 200, LONG + b"1", LONG + b"2", b"\xff\xff"]


@pytest.mark.parametrize("bytes_max", [1, 40, BIG])
@pytest.mark.parametrize("rows_max", [None, 1, 3])
def test_pages_from_position_to_position_hold_every_row_once_in_key_order(engine, bytes_max, rows_max):
    filled(engine, [(key, b"row of " + key) for key in KEYS])
    with closing(engine.snapshot()) as snapshot:
        expected = [value[6:] for value in snapshot.values()]
    manager = TableSnapshotManager(TableSnapshotLimits(), ManualClock(), SeededIds(1))
    opened = manager.open(1, [A], lambda: {A: engine.snapshot()})
    seen: list[bytes] = []
    positions: list[bytes | None] = [None]
    while True:
        page = manager.page(opened.snapshot_id, A, positions[-1], bytes_max, rows_max)
        assert rows_of(page)
        seen += rows_of(page)
        positions.append(page.position)
        if not page.has_more:
            break
    assert seen == expected
    behind_the_end = manager.page(opened.snapshot_id, A, positions[-1], BIG, None)
    assert (rows_of(behind_the_end), behind_the_end.position, behind_the_end.has_more) == ([], None, False)
    manager.shut_down()


def test_a_pin_shows_the_rows_of_its_instant_whatever_is_written_later(engine):
    filled(engine, [(b"a", b"1"), (b"b", b"2")])
    manager = TableSnapshotManager(TableSnapshotLimits(), ManualClock(), SeededIds(1))
    opened = manager.open(1, [A], lambda: {A: engine.snapshot()})
    engine.apply({b"a": stored_value(1, b"new"), b"b": None, b"aa": stored_value(1, b"x")}, EngineState(45, 2))
    for _ in range(2):
        first = manager.page(opened.snapshot_id, A, None, 1, None)
        rest = manager.page(opened.snapshot_id, A, first.position, 1, None)
        assert (rows_of(first), first.has_more, rows_of(rest), rest.has_more) == ([b"1"], True, [b"2"], False)
    assert opened.states[A].applied_offset == 42
    manager.shut_down()


@given(
    rows=st.dictionaries(st.binary(min_size=1, max_size=5), st.binary(max_size=9), min_size=1, max_size=12),
    reads=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 60), st.integers(1, 5)), max_size=12),
)
def test_any_page_can_be_requested_in_any_order_any_number_of_times(rows, reads):
    engine = filled(MemoryEngine(), sorted(rows.items()))
    manager = TableSnapshotManager(TableSnapshotLimits(), ManualClock(), SeededIds(1))
    opened = manager.open(1, [A], lambda: {A: engine.snapshot()})
    keys = sorted(rows)
    positions = [None] + [manager.page(opened.snapshot_id, A, None, BIG, n + 1).position for n in range(len(keys))]
    for start, bytes_max, rows_max in reads:
        start = min(start, len(keys))
        page = manager.page(opened.snapshot_id, A, positions[start], bytes_max, rows_max)
        got = rows_of(page)
        assert got == [rows[key] for key in keys[start : start + len(got)]]
        assert bool(got) == (start < len(keys))
        assert len(got) <= rows_max
        assert page.has_more == (start + len(got) < len(keys))
        assert page.position == (positions[start + len(got)] if got else None)


def test_an_empty_bucket_has_one_empty_page_and_an_offset(engine):
    engine.apply({}, EngineState(7, 0))
    manager = TableSnapshotManager(TableSnapshotLimits(), ManualClock(), SeededIds(1))
    opened = manager.open(1, [A], lambda: {A: engine.snapshot()})
    page = manager.page(opened.snapshot_id, A, None, BIG, None)
    assert (rows_of(page), page.position, page.has_more) == ([], None, False)
    assert opened.states[A].applied_offset == 7
    manager.shut_down()


@pytest.mark.parametrize("position", [b"", b"x" * 512])
def test_bytes_that_cannot_be_a_position_are_refused(tmp_path, position):
    engine = filled(LmdbEngine(tmp_path / "engine"), [(b"a", b"1")])
    manager = TableSnapshotManager(TableSnapshotLimits(), ManualClock(), SeededIds(1))
    opened = manager.open(1, [A], lambda: {A: engine.snapshot()})
    with pytest.raises(InvalidRequest, match="position"):
        manager.page(opened.snapshot_id, A, position, BIG, None)
    manager.shut_down()
    engine.close()


def test_a_bucket_that_the_snapshot_does_not_hold_is_refused():
    bench = Bench()
    opened = bench.open()
    with pytest.raises(InvalidRequest, match="does not hold") as error:
        bench.manager.page(opened.snapshot_id, TableBucket(1, 7), None, BIG, None)
    assert error.value.code == ErrorCode.INVALID_SCAN_REQUEST


def test_two_readers_of_one_bucket_take_turns():
    bench = Bench()
    opened = bench.open()
    pin = bench.taken[0]
    pin.pauses = True
    results: list[list[bytes]] = []
    readers = [threading.Thread(target=lambda: results.append(bench.read(opened))) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert pin.paused.wait(PATIENCE)
    assert bench.read(opened, B) == [b"10", b"11", b"12"]
    pin.resume.set()
    for reader in readers:
        reader.join(PATIENCE)
    assert results == [[b"0", b"1", b"2"]] * 2


# ---- leases ---------------------------------------------------------------------------------------------------------


def test_an_unused_snapshot_ends_with_its_lease_and_says_so():
    bench = Bench()
    opened = bench.open(lease=10)
    bench.clock.advance(9.9)
    assert bench.manager.expire() == 0
    bench.clock.advance(0.2)
    assert bench.manager.expire() == 1
    assert bench.open_pins == 0
    code, message = bench.ended_with(opened)
    assert code == ErrorCode.SCANNER_EXPIRED
    assert "lease" in message
    assert "open another" in message


def test_a_lease_is_over_even_before_idle_snapshots_are_looked_for():
    bench = Bench()
    opened = bench.open(lease=10)
    bench.clock.advance(10)
    assert bench.ended_with(opened)[0] == ErrorCode.SCANNER_EXPIRED
    with pytest.raises(NotFound):
        bench.manager.renew(opened.snapshot_id)


def test_reading_and_renewing_restart_the_lease():
    bench = Bench()
    opened = bench.open(lease=10)
    for _ in range(3):
        bench.clock.advance(9)
        bench.read(opened)
    bench.clock.advance(9)
    assert bench.manager.renew(opened.snapshot_id, 100) == 100
    bench.clock.advance(99)
    assert bench.read(opened)
    assert bench.manager.renew(opened.snapshot_id) == 100


def test_a_jump_of_the_wall_clock_changes_no_lease():
    bench = Bench()
    opened = bench.open(lease=10)
    bench.clock.jump_wall_clock(10**9)
    bench.manager.expire()
    assert bench.read(opened)


def test_no_lease_is_longer_than_the_limit_and_no_snapshot_older_than_its_own():
    bench = Bench(lease_seconds_max=20.0, age_seconds_max=50.0)
    opened = bench.open(lease=1000)
    assert opened.lease_seconds == 20
    for _ in range(4):
        bench.clock.advance(12)
        bench.read(opened)
    assert bench.manager.renew(opened.snapshot_id, 1000) == pytest.approx(2)
    bench.clock.advance(2)
    code, message = bench.ended_with(opened)
    assert code == ErrorCode.SCANNER_EXPIRED
    assert "kv.snapshot-handle.max-age" in message


@pytest.mark.parametrize("lease", [0.0, -1.0, float("nan")])
def test_a_lease_that_is_no_time_is_refused(lease):
    bench = Bench()
    with pytest.raises(InvalidRequest, match="lease"):
        bench.open(lease)
    assert bench.taken == []


# ---- limits and ends ------------------------------------------------------------------------------------------------


def test_there_are_no_more_snapshots_than_the_limit_and_an_ended_one_makes_room():
    bench = Bench(handles_max=2)
    first, second = bench.open(lease=10), bench.open(lease=100)
    with pytest.raises(LimitExceeded, match=r"kv\.snapshot-handle\.max-count") as error:
        bench.open()
    assert error.value.code == ErrorCode.TOO_MANY_SCANNERS
    assert len(bench.taken) == 4
    bench.manager.release(second.snapshot_id)
    third = bench.open(lease=100)
    bench.clock.advance(11)  # the first one's lease is over, though it has not been looked for yet
    bench.open()
    assert bench.ended_with(first)[0] == ErrorCode.SCANNER_EXPIRED
    assert bench.read(third)


@pytest.mark.slow
def test_ten_thousand_unreleased_snapshots_leave_nothing_behind():
    bench = Bench(handles_max=10_000)
    for _ in range(10_000):
        bench.open(lease=10)
    bench.clock.advance(11)
    assert bench.manager.expire() == 10_000
    assert bench.open_pins == 0
    assert bench.manager.describe() == []
    assert all(snapshot.closes == 1 for snapshot in bench.taken)


def test_of_so_many_snapshots_that_ended_it_is_known_why(monkeypatch):
    monkeypatch.setattr("forebay.kv.table_snapshots._ENDED_REMEMBERED", 2)
    bench = Bench()
    ended = [bench.open() for _ in range(3)]
    for opened in ended:
        bench.manager.release(opened.snapshot_id)
    assert [bench.ended_with(opened)[0] for opened in ended] == [
        ErrorCode.UNKNOWN_SCANNER_ID,
        ErrorCode.SCANNER_EXPIRED,
        ErrorCode.SCANNER_EXPIRED,
    ]


def test_a_released_snapshot_is_gone_and_releasing_again_does_nothing():
    bench = Bench()
    opened = bench.open()
    for _ in range(2):
        bench.manager.release(opened.snapshot_id)
    assert bench.open_pins == 0
    code, message = bench.ended_with(opened)
    assert code == ErrorCode.SCANNER_EXPIRED
    assert "released" in message


def test_an_id_of_another_life_of_the_server_is_unknown_and_says_what_to_do():
    bench = Bench()
    code, message = bench.ended_with(OpenedSnapshot(b"old", 1, {}))
    assert code == ErrorCode.UNKNOWN_SCANNER_ID
    assert "restarted" in message
    assert "open another one" in message
    bench.manager.release(b"old")


def test_nothing_is_freed_under_a_page_that_is_being_made():
    bench = Bench()
    opened = bench.open()
    pin = bench.taken[0]
    pin.pauses = True
    results: list[list[bytes]] = []
    reader = threading.Thread(target=lambda: results.append(bench.read(opened)))
    reader.start()
    assert pin.paused.wait(PATIENCE)
    releasing = threading.Thread(target=bench.manager.release, args=(opened.snapshot_id,))
    releasing.start()
    assert pin.closes == 0
    pin.resume.set()
    reader.join(PATIENCE)
    releasing.join(PATIENCE)
    assert results == [[b"0", b"1", b"2"]]
    assert (pin.closes, pin.read_after_close) == (1, False)


def test_a_bucket_that_goes_away_takes_its_pins_and_leaves_the_others():
    bench = Bench()
    opened = bench.open()
    assert bench.manager.has_pinned(A)
    assert bench.manager.close_bucket(A) == 1
    assert (bench.manager.has_pinned(A), bench.manager.has_pinned(B)) == (False, True)
    code, message = bench.ended_with(opened)
    assert code == ErrorCode.SCANNER_EXPIRED
    assert "dropped" in message
    assert bench.read(opened, B) == [b"10", b"11", b"12"]
    assert bench.manager.close_bucket(B) == 1
    assert bench.manager.describe() == []
    assert bench.ended_with(opened)[0] == ErrorCode.SCANNER_EXPIRED


def test_a_bucket_that_goes_away_while_a_snapshot_is_opened_is_not_pinned():
    bench = Bench()

    def pins() -> dict[TableBucket, KvSnapshot]:
        taken = bench.pins()
        bench.manager.close_bucket(A)
        return taken

    opened = bench.manager.open(1, [A, B], pins)
    assert bench.taken[0].closes == 1
    assert bench.ended_with(opened)[0] == ErrorCode.SCANNER_EXPIRED
    assert bench.read(opened, B)


def test_after_shut_down_nothing_is_open_and_nothing_can_be_opened():
    bench = Bench()
    opened = bench.open()

    def pins() -> dict[TableBucket, KvSnapshot]:
        taken = bench.pins()
        bench.manager.shut_down()
        return taken

    with pytest.raises(LimitExceeded, match="shutting down"):
        bench.manager.open(1, [A, B], pins)
    with pytest.raises(LimitExceeded, match="shutting down"):
        bench.open()
    assert bench.open_pins == 0
    assert bench.ended_with(opened)[0] == ErrorCode.SCANNER_EXPIRED


def test_a_snapshot_that_cannot_be_taken_leaves_its_place_to_others():
    bench = Bench(handles_max=1)

    def fail() -> dict[TableBucket, KvSnapshot]:
        raise StorageFailure("no")

    for _ in range(3):
        with pytest.raises(StorageFailure):
            bench.manager.open(1, [A], fail)
    assert bench.open()


def test_snapshots_can_be_listed_with_their_age_and_use():
    bench = Bench()
    opened = bench.open(lease=60, name="nightly job")
    bench.clock.advance(5)
    bench.read(opened)
    bench.clock.advance(1)
    (shown,) = bench.manager.describe(table_id=1)
    assert (shown.name, shown.age_seconds, shown.lease_left_seconds) == ("nightly job", 6, 59)
    assert (shown.bucket_count, shown.pages) == (2, 1)
    assert shown.read_bytes > 0
    assert bench.manager.describe(table_id=2) == []


def test_a_full_lmdb_map_grows_although_a_table_snapshot_pins_it(tmp_path):
    engine = LmdbEngine(tmp_path / "engine", map_bytes=1 << 20)
    manager = TableSnapshotManager(TableSnapshotLimits(), ManualClock(), SeededIds(1))
    engine.close_snapshots = lambda: manager.close_bucket(A)  # type: ignore[assignment,return-value]
    filled(engine, [(b"a", b"1")])
    opened = manager.open(1, [A], lambda: {A: engine.snapshot()})
    for i in range(40):
        engine.apply({b"k%d" % i: stored_value(1, bytes(60_000))}, EngineState(43 + i, i))
    with pytest.raises(NotFound, match="had to grow"):
        manager.page(opened.snapshot_id, A, None, BIG, None)
    engine.close()
