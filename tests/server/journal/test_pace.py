"""How often a server creates objects of its journal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import SystemClock
from forebay.server.journal.server_journal import ServerJournal
from forebay.server.server import Injected
from tests.patience import PATIENCE, until
from tests.server.journal.held_store import HeldStore
from tests.server.running import LOG_COLUMNS, Bench, log_records, running


class Wakes(threading.Event):
    """Counts who waits for it."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


class Sleeps(SystemClock):
    """Notes how long threads sleep."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def held() -> HeldStore:
    return HeldStore()


@pytest.fixture
def clock() -> Sleeps:
    return Sleeps()


@pytest.fixture
def bench(tmp_path: Path, held: HeldStore, clock: Sleeps, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A server whose journal waits for an hour, or to be woken; the parameter has more settings."""
    settings = {"store": str(tmp_path / "store"), "store_interval": "1 h", "store_lease": "1 h", **request.param}
    try:
        with running(tmp_path / "data", Injected(open_store=held.open, clock=clock), **settings) as bench:
            yield bench
            held.may_create.set()
    finally:
        held.may_create.set()


def journal_of(bench: Bench) -> Any:
    journal = bench.server.server._journal
    assert isinstance(journal, ServerJournal)
    assert journal.wait_until_stored(PATIENCE)
    return journal


def noting(journal: Any) -> Wakes:
    """What wakes the journal's thread from now on, which waits for it."""
    before, journal._wake = journal._wake, Wakes()
    before.set()
    until(lambda: journal._wake.waits == 1, "the journal waits")
    return journal._wake  # type: ignore[no-any-return]


@pytest.mark.parametrize("bench", [{"store_durability": "local"}], indirect=True)
def test_writes_without_a_pause_wait_for_the_next_interval(bench: Bench, held: HeldStore) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, log_records([0]))
    journal = journal_of(bench)
    wakes, objects, begun = noting(journal), journal.objects, held.begun
    held.may_create.clear()
    bench.append(table_id, log_records([1]))
    wakes.set()
    until(lambda: held.begun > begun, "an object is created")
    bench.append(table_id, log_records([2]))
    held.may_create.set()
    until(lambda: wakes.waits == 2, "the journal waits again")
    assert journal.objects == objects + 1
    assert len(journal.feed) > 0
    assert journal.wait_until_stored(PATIENCE)
    assert journal.objects == objects + 2


@pytest.mark.parametrize("bench", [{"store_durability": "local"}], indirect=True)
def test_what_fills_more_than_an_object_is_uploaded_without_a_pause(bench: Bench) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, log_records([0]))
    journal = journal_of(bench)
    wakes, objects = noting(journal), journal.objects
    journal._uploader._object_bytes = 1
    for _ in range(5):
        bench.append(table_id, log_records(range(5000)))
    wakes.set()
    until(lambda: wakes.waits == 2, "the journal waits again")
    assert not len(journal.feed)
    assert journal.objects > objects + 1


@pytest.mark.parametrize(
    "bench",
    [{"store_durability": "store"}, {"store_durability": "store", "store_put__interval": "100 s"}],
    indirect=True,
)
def test_objects_that_answers_wait_for_keep_their_distance(
    bench: Bench, clock: Sleeps, request: pytest.FixtureRequest
) -> None:
    table_id = bench.create("log", LOG_COLUMNS)
    bench.append(table_id, log_records([0]))
    journal_of(bench)
    clock.slept.clear()
    bench.append(table_id, log_records([1]))
    if "100 s" in str(request.node.callspec.params["bench"]):
        until(lambda: any(1 < seconds <= 100 for seconds in clock.slept), "the journal keeps its distance")
    else:
        assert journal_of(bench).feed.first() is None
        assert all(seconds < 1 for seconds in clock.slept)
