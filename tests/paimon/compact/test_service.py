"""The compaction service: every table has its turns, independently of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.ambient import SYSTEM_CLOCK, ManualClock
from forebay.base.errors import ForebayError, InvalidRequest, NotFound, StorageFailure
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.compact.running import TaskThreads
from forebay.paimon.compaction_service import DONE, FAILED, GONE, CompactionRun, CompactionService, CompactionSettings
from forebay.paimon.table import Table
from tests.paimon.lake import live_files, new_catalog, put, rows_of
from tests.patience import PATIENCE, until

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
DUE = {"write-only": "true", "compaction.min.file-num": "3"}


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def filled(catalog: FileSystemCatalog, name: str, files: int = 4) -> Table:
    table = catalog.create_table(f"db.{name}", COLUMNS, options=DUE)
    for version in range(files):
        put(table, [{"id": i, "v": version} for i in range(5)])
    return table


class Watched:
    """A service in a thread, and what its turns told."""

    def __init__(self, catalog: FileSystemCatalog, names: Callable[[], list[str]], **more: Any) -> None:
        self.turns: list[CompactionRun] = []
        runner = more.pop("runner", lambda table: TaskThreads(2))
        self.service = CompactionService(
            names, catalog.table, runner, CompactionSettings(), interval_seconds=0, on_turn=self.turns.append, **more
        )
        self._thread = threading.Thread(target=self.service.watch, kwargs={"tick_seconds": 0.01})

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop()
        self._thread.join()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        until(holds, lambda: f"{what}: {self.service.states()}")

    def phase(self, name: str) -> str | None:
        return next((s.phase for s in self.service.states() if s.table == name), None)


def names_in(catalog: FileSystemCatalog) -> Callable[[], list[str]]:
    return lambda: [f"db.{name}" for name in catalog.list_tables("db")]


def service(catalog: FileSystemCatalog, how: CompactionSettings | None = None, **more: Any) -> CompactionService:
    return CompactionService(names_in(catalog), catalog.table, lambda table: TaskThreads(2), how, **more)


def test_each_table_is_compacted_once_and_a_broken_one_is_told(catalog: FileSystemCatalog) -> None:
    good, broken, _empty = filled(catalog, "good"), filled(catalog, "broken"), filled(catalog, "empty", 0)
    next(Path(broken.context.paths.root).rglob("data-*")).unlink()
    turns: list[CompactionRun] = []
    states = service(catalog, CompactionSettings(full=True), on_turn=turns.append, tables_max=1).run_once()
    assert [(s.table, s.phase) for s in states] == [("db.broken", FAILED), ("db.empty", DONE), ("db.good", DONE)]
    assert "there is no file" in (states[0].last_error or "") or "data-" in (states[0].last_error or "")
    assert {(t.table, t.snapshot_id, t.files_before, t.files_after) for t in turns if t.error is None} == {
        ("db.empty", None, 0, 0),
        ("db.good", 5, 4, 1),
    }
    assert len(live_files(good)) == 1
    assert len(rows_of(good)) == 20


def test_a_table_that_cannot_be_opened_is_told() -> None:
    def refuse(name: str) -> Table:
        raise StorageFailure(f"no room for {name}")

    (state,) = CompactionService(lambda: ["db.t"], refuse, lambda table: TaskThreads(1)).run_once()
    assert (state.table, state.phase, state.last_error) == ("db.t", FAILED, "no room for db.t")


@pytest.mark.parametrize(
    ("error", "times"),
    [(StorageFailure("no room"), [0, 10, 30, 70, 150, 310]), (NotFound("no table"), list(range(0, 320, 10)))],
)
def test_a_table_that_fails_is_tried_after_pauses_that_grow_and_one_that_is_gone_always_as_soon(
    error: ForebayError, times: list[int]
) -> None:
    clock = ManualClock()
    tried: list[float] = []
    turns: list[CompactionRun] = []
    began = clock.monotonic()

    def refuse(name: str) -> Table:
        tried.append(clock.monotonic() - began)
        raise error

    def tick() -> None:
        wait(watching._turns.values())
        clock.advance(1)
        if clock.monotonic() - began >= 320:
            watching.stop()

    watching = CompactionService(
        lambda: ["db.t"], refuse, lambda table: TaskThreads(1), interval_seconds=10, on_turn=turns.append, clock=clock
    )
    watching.watch(tick, tick_seconds=0)
    assert tried == times
    (state,) = watching.states()
    assert (state.failures, state.last_error) == (len(times), error.message)
    assert [turn.error for turn in turns] == [error.message], "the same error is told once"


def test_the_state_of_a_table_counts_what_was_done(catalog: FileSystemCatalog) -> None:
    filled(catalog, "t")
    (state,) = service(catalog).run_once()
    assert (state.phase, state.failures, state.last_error) == (DONE, 0, None)
    assert (state.compactions, state.files_before, state.files_after) == (1, 4, 1)
    assert (state.rows_done, state.rows) == (20, 20)


def test_an_error_of_ours_is_told_with_its_kind_and_in_the_log(
    catalog: FileSystemCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    class Mistaken(TaskThreads):
        def run(self, function: Any, tasks: Any, **named: Any) -> Any:
            raise ZeroDivisionError("by zero")

    filled(catalog, "t")
    (state,) = CompactionService(names_in(catalog), catalog.table, lambda table: Mistaken(1)).run_once()
    assert (state.phase, state.last_error) == (FAILED, "ZeroDivisionError: by zero")
    assert "compacting db.t failed" in caplog.text


def test_a_watch_waits_between_its_looks(catalog: FileSystemCatalog) -> None:
    watching = service(catalog)
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(SYSTEM_CLOCK.monotonic())
        if len(ticks) == 3:
            watching.stop()

    watching.watch(tick, tick_seconds=0.05)
    assert len(ticks) == 3
    assert ticks[2] - ticks[0] >= 0.09


def test_of_tasks_that_wait_none_begins_after_one_failed() -> None:
    begun: list[int] = []

    def work(task: int) -> int:
        begun.append(task)
        threading.Event().wait(0.02)
        if task == 1:
            raise StorageFailure("the disk is gone")
        return task

    thrown_away: list[int] = []
    with pytest.raises(StorageFailure, match="the disk is gone"):
        TaskThreads(1).run(work, range(60), rows=[1] * 60, discard=thrown_away.extend)
    assert len(begun) < 60
    assert thrown_away == [task for task in begun if task != 1]


def test_what_writers_add_is_compacted_and_new_tables_are_found(catalog: FileSystemCatalog) -> None:
    table = filled(catalog, "t", 1)
    with Watched(catalog, names_in(catalog)) as watched:
        watched.until(lambda: watched.phase("db.t") == DONE, "the first turn")
        assert watched.turns[0].snapshot_id is None, "a single file is not due"
        for version in range(4):
            put(table, [{"id": 100 + version, "v": 0}])
        later = filled(catalog, "later")
        watched.until(lambda: max(len(live_files(t)) for t in (table, later)) < 3, "compactions")
    assert len(rows_of(table)) == 9
    assert len(rows_of(later)) == 20


def test_a_slow_table_and_a_broken_one_hold_no_other_back(catalog: FileSystemCatalog) -> None:
    goes_on, waits = threading.Event(), threading.Event()

    class Slow(TaskThreads):
        def run(self, function: Any, tasks: Any, **named: Any) -> Any:
            waits.set()
            goes_on.wait(PATIENCE)
            return super().run(function, tasks, **named)

    class Broken(TaskThreads):
        def run(self, function: Any, tasks: Any, **named: Any) -> Any:
            raise StorageFailure("the disk is on fire")

    kinds = {"db.slow": Slow(1), "db.broken": Broken(1)}
    slow, _broken, good = filled(catalog, "slow"), filled(catalog, "broken"), filled(catalog, "good")
    with Watched(catalog, names_in(catalog), runner=lambda name: kinds.get(name, TaskThreads(1))) as watched:
        watched.until(waits.is_set, "the slow table's turn")
        watched.until(lambda: len(live_files(good)) == 1, "the good table is compacted")
        watched.until(lambda: watched.phase("db.broken") == FAILED, "the broken table has failed")
        assert len(live_files(slow)) == 4
        goes_on.set()
        watched.until(lambda: len(live_files(slow)) == 1, "the slow table is compacted")
    errors = [t.error for t in watched.turns if t.error]
    assert errors == ["the disk is on fire"], "the same error is told once"


def test_a_table_may_be_dropped_and_come_back(catalog: FileSystemCatalog) -> None:
    filled(catalog, "t")
    listed = filled(catalog, "listed")
    with Watched(catalog, lambda: ["db.t", *[n for n in names_in(catalog)() if n != "db.t"]]) as watched:
        watched.until(lambda: watched.phase("db.t") == DONE and watched.phase("db.listed") == DONE, "first turns")
        catalog.drop_table("db.t")
        catalog.drop_table("db.listed")
        watched.until(lambda: watched.phase("db.t") == GONE, "a table that is named is waited for")
        watched.until(lambda: watched.phase("db.listed") is None, "one that was listed is forgotten")
        back = filled(catalog, "t")
        watched.until(lambda: len(live_files(back)) < 3, "it is compacted again")
    assert listed.name == "db.listed"


def test_a_catalog_that_is_away_for_a_while_stops_nothing_but_must_be_there_at_first(
    catalog: FileSystemCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    table = filled(catalog, "t", 1)
    away = threading.Event()
    tried: list[bool] = []

    def names() -> list[str]:
        tried.append(away.is_set())
        if away.is_set():
            raise StorageFailure("the catalog is away")
        return ["db.t"]

    with Watched(catalog, names) as watched:
        watched.until(lambda: watched.phase("db.t") == DONE, "the first turn")
        away.set()
        watched.until(lambda: tried.count(True) > 2, "listings that fail")
        for version in range(3):
            put(table, [{"id": 100 + version, "v": 0}])
        watched.until(lambda: len(live_files(table)) < 3, "a compaction without the catalog")
    assert caplog.text.count("the catalog is away") == 1
    with pytest.raises(StorageFailure, match="the catalog is away"):
        CompactionService(names, catalog.table, lambda name: TaskThreads(1)).watch()


def test_stopping_finishes_what_is_under_way_and_stopping_now_gives_it_up(catalog: FileSystemCatalog) -> None:
    table = filled(catalog, "t")
    files = {p.name for p in Path(table.context.paths.root).rglob("data-*")}
    began = threading.Event()

    class Noticed(TaskThreads):
        def run(self, function: Any, tasks: Any, **named: Any) -> Any:
            def slowly(task: Any) -> Any:
                began.set()
                threading.Event().wait(0.5)
                return function(task)

            return super().run(slowly, tasks, **named)

    with Watched(catalog, names_in(catalog), runner=lambda name: Noticed(1)) as watched:
        watched.until(began.is_set, "the turn")
        watched.service.stop(now=True)
        assert [(s.phase, s.last_error) for s in watched.service.states()] == [(FAILED, "given up")]
    assert {p.name for p in Path(table.context.paths.root).rglob("data-*")} == files
    assert len(live_files(table)) == 4
    began.clear()
    with Watched(catalog, names_in(catalog), runner=lambda name: Noticed(1)) as watched:
        watched.until(began.is_set, "the turn")
    assert len(live_files(table)) == 1


def test_numbers_that_make_no_sense_are_refused(catalog: FileSystemCatalog) -> None:
    with pytest.raises(InvalidRequest, match="at least 1 table"):
        service(catalog, tables_max=0)
    with pytest.raises(InvalidRequest, match="interval of -1"):
        service(catalog, interval_seconds=-1)
