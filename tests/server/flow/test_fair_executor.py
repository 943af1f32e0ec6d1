"""Jobs of many clients on one pool of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.base import threads
from forebay.base.threads import Event, Executor, Future
from forebay.server.flow.fair_executor import FairExecutor, context_of
from tests.patience import PATIENCE


@pytest.fixture
def pool() -> Iterator[Executor]:
    with threads.executor(1, "jobs") as executor:
        yield executor


def held(pool: Executor) -> Event:
    """An event until which the only thread of `pool` does nothing."""
    begin = threads.event()
    pool.submit(begin.wait)
    return begin


def test_each_client_has_a_job_done_before_any_has_the_next_one(pool: Executor) -> None:
    jobs, begin, done = FairExecutor(pool), held(pool), list[str]()
    last: list[Future[None]] = []
    for client, count in (("greedy", 4), ("greedier", 5), ("modest", 1)):
        for number in range(count):
            last.append(context_of(client).run(jobs.submit, done.append, f"{client}{number}"))
    last.append(jobs.submit(done.append, "upkeep"))
    begin.set()
    for future in last:
        future.result(PATIENCE)
    assert done[:5] == ["greedy0", "greedier0", "modest0", "upkeep", "greedy1"]
    assert [each for each in done if each.startswith("greedier")] == [f"greedier{n}" for n in range(5)]
    assert len(done) == 11


def test_a_job_can_be_cancelled_until_it_begins_and_its_failure_is_its_own(pool: Executor) -> None:
    jobs, begin, done = FairExecutor(pool), held(pool), list[str]()
    cancelled, failing = jobs.submit(done.append, "cancelled"), jobs.submit(int, "no number")
    after = jobs.submit(done.append, "after")
    assert cancelled.cancel()
    begin.set()
    after.result(PATIENCE)
    assert done == ["after"]
    with pytest.raises(ValueError, match="no number"):
        failing.result(PATIENCE)
    assert not after.cancel()
