"""The tiering manager: which table is next, and which workers are rejected."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, ErrorCode, NotFound
from forebay.metadata.table import TablePath
from forebay.server.lake.lake_tiering import (
    UNCHANGED_SECONDS,
    WORKER_TIMEOUT_SECONDS,
    TieringAssignment,
    TieringManager,
    TieringState,
)
from tests.every_run import examples

PATH = TablePath("db", "orders")
FRESHNESS_MS = 180_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def manager(clock: ManualClock) -> TieringManager:
    return TieringManager(clock)


def assigned(manager: TieringManager) -> TieringAssignment:
    assignment = manager.request()
    assert assignment is not None
    return assignment


def test_a_new_table_is_handed_out_after_its_freshness_and_to_one_worker_only(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(179)
    assert manager.request() is None
    clock.advance(1)
    assert manager.request() == TieringAssignment(7, PATH, 1)
    assert manager.request() is None


def test_after_a_restart_only_the_rest_of_the_freshness_is_waited_for(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS, last_round_ms=clock.now_ms() - 170_000)
    assert manager.request() is None
    clock.advance(10)
    assert assigned(manager).table_id == 7


def test_a_last_round_in_the_future_of_the_wall_clock_delays_by_one_freshness_at_most(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS, last_round_ms=clock.now_ms() + 10_000_000)
    clock.advance(180)
    assert assigned(manager).table_id == 7


def test_tables_are_handed_out_in_the_order_in_which_they_became_due(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(1, PATH, 300_000)
    manager.add(2, PATH, 100_000)
    manager.add(3, PATH, 200_000)
    clock.advance(1000)
    assert [assigned(manager).table_id for _ in range(3)] == [2, 3, 1]


def test_a_finished_table_waits_for_its_freshness_again_and_tells_what_it_holds(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    first = assigned(manager)
    clock.advance(30)
    manager.finish(7, first.epoch, file_bytes=1000, rows=50)
    status = manager.status(7)
    assert (status.state, status.last_duration_seconds, status.file_bytes, status.rows) == (
        TieringState.SCHEDULED, 30, 1000, 50,
    )  # fmt: skip
    manager.changed(7)
    clock.advance(179)
    assert manager.request() is None
    clock.advance(1)
    assert assigned(manager).epoch == first.epoch + 1


def test_a_table_without_news_is_not_handed_out_and_is_as_fresh_as_can_be(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    manager.finish(7, assigned(manager).epoch)
    clock.advance(200)
    assert manager.request() is None
    assert manager.status(7).since_last_round_seconds == 0
    clock.advance(100)
    manager.changed(7)
    assert manager.request() is None
    clock.advance(80)
    assert assigned(manager).epoch == 2


def test_what_is_written_while_a_round_is_under_way_is_news(manager: TieringManager, clock: ManualClock) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    epoch = assigned(manager).epoch
    manager.changed(7)
    manager.finish(7, epoch)
    clock.advance(180)
    assert assigned(manager).epoch == 2


def test_a_table_without_news_has_a_round_now_and_then_all_the_same(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    manager.finish(7, assigned(manager).epoch)
    rounds = 0
    for _ in range(int(10 * UNCHANGED_SECONDS / 100)):
        clock.advance(100)
        assignment = manager.request()
        if assignment is not None:
            rounds += 1
            manager.finish(7, assignment.epoch)
    assert 7 <= rounds <= 10


def test_a_round_that_was_cut_short_is_queued_again_at_once(manager: TieringManager, clock: ManualClock) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    manager.finish(7, assigned(manager).epoch, forced=True)
    assert assigned(manager).epoch == 2


def test_a_failed_table_is_queued_again_and_counted(manager: TieringManager, clock: ManualClock) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    manager.fail(7, assigned(manager).epoch)
    assert manager.status(7).failures == 1
    assert assigned(manager).epoch == 2


def test_a_worker_that_is_silent_for_two_minutes_loses_its_table(manager: TieringManager, clock: ManualClock) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    zombie = assigned(manager)
    clock.advance(WORKER_TIMEOUT_SECONDS - 1)
    manager.heartbeat(7, zombie.epoch)
    clock.advance(WORKER_TIMEOUT_SECONDS)
    for call in (manager.heartbeat, manager.fail, manager.finish):
        with pytest.raises(Conflict, match=r"epoch 1 of table db\.orders is not the current one, 2") as refused:
            call(7, zombie.epoch)
        assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    assert assigned(manager).epoch == 2


def test_a_second_report_of_the_same_round_is_refused(manager: TieringManager, clock: ManualClock) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    epoch = assigned(manager).epoch
    manager.finish(7, epoch)
    with pytest.raises(Conflict, match="Scheduled"):
        manager.finish(7, epoch)


def test_a_report_about_one_table_does_not_look_at_all_others(
    manager: TieringManager, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table_id in range(10):
        manager.add(table_id, PATH, FRESHNESS_MS)
    clock.advance(FRESHNESS_MS / 1000)
    mine = assigned(manager)
    looked: list[None] = []
    advance = manager._advance

    def look() -> None:
        looked.append(None)
        advance()

    monkeypatch.setattr(manager, "_advance", look)
    for table_id in range(20):
        with pytest.raises((Conflict, NotFound)):
            manager.heartbeat(table_id, 77)
    manager.heartbeat(mine.table_id, mine.epoch)
    assert not looked
    clock.advance(WORKER_TIMEOUT_SECONDS)
    with pytest.raises(Conflict):
        manager.heartbeat(mine.table_id, mine.epoch)
    assert len(looked) == 1


def test_a_dropped_table_is_unknown_to_its_worker_and_not_handed_out(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    manager.add(8, PATH, FRESHNESS_MS)
    clock.advance(200)
    epoch = assigned(manager).epoch
    manager.remove(7)
    manager.remove(8)
    assert manager.request() is None
    with pytest.raises(NotFound, match="7") as refused:
        manager.heartbeat(7, epoch)
    assert refused.value.code == ErrorCode.TABLE_NOT_EXIST


def test_a_table_whose_tiering_was_switched_off_and_on_is_not_that_of_its_earlier_worker(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    before = assigned(manager)
    manager.remove(7)
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(200)
    after = assigned(manager)
    assert after.epoch > before.epoch
    with pytest.raises(Conflict, match="is not the current one"):
        manager.finish(7, before.epoch)
    manager.finish(7, after.epoch)


def test_nothing_is_remembered_of_tables_that_are_not_tiered(manager: TieringManager, clock: ManualClock) -> None:
    manager.changed(8)
    manager.set_freshness(8, 1000)
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(FRESHNESS_MS / 1000)
    manager.status(7)  # it is due, and waits in the queue
    manager.remove(7)
    assert (manager._tables, list(manager._queue), manager._changed) == ({}, [], set())
    manager.remove(7)


def test_a_freshness_that_changes_during_a_round_holds_from_its_end_on(
    manager: TieringManager, clock: ManualClock
) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(FRESHNESS_MS / 1000)
    epoch = assigned(manager).epoch
    manager.set_freshness(7, 10_000)
    manager.changed(7)
    manager.finish(7, epoch)
    clock.advance(9.999)
    assert manager.request() is None
    clock.advance(0.001)
    assert assigned(manager).table_id == 7


def test_a_changed_freshness_holds_for_the_table_that_waits(manager: TieringManager, clock: ManualClock) -> None:
    manager.add(7, PATH, FRESHNESS_MS)
    clock.advance(20)
    manager.set_freshness(7, 10_000)
    assert assigned(manager).table_id == 7


class TieringMachine(RuleBasedStateMachine):
    """Workers that come, go silent, finish and fail: each table is one worker's at most, and none is forgotten."""

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.manager = TieringManager(self.clock)
        for table in range(3):
            self.manager.add(table, TablePath("db", f"t{table}"), 10_000)
        self.epochs = dict.fromkeys(range(3), 0)
        self.heard: dict[int, float] = {}
        self.unseen: dict[int, float] = {}
        """Tables with rows that no round has been begun for, and since when they may wait for one."""

    @rule(table=st.integers(0, 2))
    def write(self, table: int) -> None:
        self.manager.changed(table)
        self.unseen.setdefault(table, self.clock.monotonic())

    @rule(target=workers)
    def request(self) -> TieringAssignment | None:
        found = self.manager.request()
        if found is not None:
            silent_since = self.heard.get(found.table_id)
            assert silent_since is None or self.clock.monotonic() - silent_since >= WORKER_TIMEOUT_SECONDS
            assert found.epoch > self.epochs[found.table_id]
            self.epochs[found.table_id] = found.epoch
            self.heard[found.table_id] = self.clock.monotonic()
            self.unseen.pop(found.table_id, None)
        return found

    def _is_fenced(self, worker: TieringAssignment) -> bool:
        silent = self.clock.monotonic() - self.heard.get(worker.table_id, 0.0) >= WORKER_TIMEOUT_SECONDS
        return worker.epoch != self.epochs[worker.table_id] or worker.table_id not in self.heard or silent

    @rule(worker=workers)
    def heartbeat(self, worker: TieringAssignment | None) -> None:
        if worker is None:
            return
        if self._is_fenced(worker):
            with pytest.raises(Conflict):
                self.manager.heartbeat(worker.table_id, worker.epoch)
        else:
            self.manager.heartbeat(worker.table_id, worker.epoch)
            self.heard[worker.table_id] = self.clock.monotonic()

    @rule(worker=consumes(workers), how=st.sampled_from(["finish", "force", "fail"]))
    def report(self, worker: TieringAssignment | None, how: str) -> None:
        if worker is None:
            return
        fenced = self._is_fenced(worker)

        def tell() -> None:
            if how == "fail":
                self.manager.fail(worker.table_id, worker.epoch)
            else:
                self.manager.finish(worker.table_id, worker.epoch, forced=how == "force")

        if fenced:
            with pytest.raises(Conflict):
                tell()
        else:
            tell()
            del self.heard[worker.table_id]
            if worker.table_id in self.unseen:
                self.unseen[worker.table_id] = self.clock.monotonic()

    @rule(seconds=st.sampled_from([1, 9, 60, 119, 120, 300]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def every_table_is_somewhere(self) -> None:
        for table in range(3):
            state = self.manager.status(table).state
            assert state in (TieringState.SCHEDULED, TieringState.PENDING, TieringState.TIERING)
            held = table in self.heard and self.clock.monotonic() - self.heard[table] < WORKER_TIMEOUT_SECONDS
            assert (state is TieringState.TIERING) == held
            if table in self.unseen and state is TieringState.SCHEDULED:
                assert self.clock.monotonic() - self.unseen[table] < 10


TestTieringMachine = TieringMachine.TestCase
TestTieringMachine.settings = settings(max_examples=examples(60), deadline=None)
