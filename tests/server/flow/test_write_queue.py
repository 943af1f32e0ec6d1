"""Write queues: groups of writes, in order, and the turns of queues that share threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from forebay.base import threads
from forebay.base.threads import Executor, Future
from forebay.server.flow.write_queue import (
    GROUP_BYTES_MAX,
    GROUP_ITEMS_MAX,
    SHORT_BYTES,
    SHORT_IN_A_ROW,
    FutureReceiver,
    WriteQueue,
    WriteScheduler,
)
from tests.patience import PATIENCE

Groups = list[list[str]]


class Held:
    """One thread with queues on it, which begins to write when `go` is called."""

    def __init__(self, pool: Executor) -> None:
        self._begin = threads.event()
        self.scheduler = WriteScheduler(pool)
        self.groups: Groups = []
        self._first = pool.submit(self._begin.wait)

    def go(self, *last: Future[str]) -> Groups:
        """The groups as they were written."""
        self._begin.set()
        for future in last:
            future.result(PATIENCE)
        return self.groups

    def work(self, items: Sequence[str]) -> Sequence[str]:
        self.groups.append(list(items))
        return items

    def queue(self) -> WriteQueue[str, str]:
        return WriteQueue(self.scheduler)


def submitted(
    queue: WriteQueue[str, str], item: str, work: Callable[[Sequence[str]], Sequence[str]], size: int
) -> Future[str]:
    written = FutureReceiver[str]()
    queue.submit((item,), written, work, size)
    return written.future


@pytest.fixture
def held() -> Iterator[Held]:
    with threads.executor(1, "writers") as pool:
        yield Held(pool)


def test_a_queue_that_never_runs_dry_does_not_keep_others_waiting(held: Held) -> None:
    busy, other = held.queue(), held.queue()
    last: list[Future[str]] = []
    rounds = 50

    def work_that_brings_more(items: Sequence[str]) -> Sequence[str]:
        if len(held.groups) < rounds:
            last.append(submitted(busy, "busy", work_that_brings_more, 1))
        return held.work(items)

    last.append(submitted(busy, "busy", work_that_brings_more, 1))
    waiting = submitted(other, "other", held.work, 1)
    held.go(waiting)
    while not all(future.done() for future in last):
        last[-1].result(PATIENCE)
    assert held.groups[:3] == [["busy"], ["other"], ["busy"]]
    assert len(held.groups) > rounds


def test_a_group_is_bounded_by_bytes_and_by_writes(held: Held) -> None:
    queue = held.queue()
    half = GROUP_BYTES_MAX // 2
    futures = [submitted(queue, f"large{number}", held.work, half) for number in range(3)]
    futures += [submitted(queue, "huge", held.work, 10 * GROUP_BYTES_MAX), submitted(queue, "small", held.work, 1)]
    futures += [submitted(queue, "tiny", held.work, 0) for _ in range(2 * GROUP_ITEMS_MAX)]
    groups = held.go(futures[-1])
    assert groups[:2] == [["large0", "large1"], ["large2", "huge"]]
    assert [len(group) for group in groups[2:]] == [GROUP_ITEMS_MAX, GROUP_ITEMS_MAX, 1]
    assert [future.result(0) for future in futures] == [item for group in groups for item in group]


def test_little_goes_before_much_but_not_for_ever(held: Held) -> None:
    much = [held.queue() for _ in range(2)]
    futures = [submitted(queue, "much", held.work, SHORT_BYTES + 1) for queue in much]
    little = [held.queue() for _ in range(SHORT_IN_A_ROW + 1)]
    futures += [submitted(queue, "little", held.work, SHORT_BYTES) for queue in little]
    groups = held.go(*futures)
    written = [item for group in groups for item in group]
    assert written == ["little"] * SHORT_IN_A_ROW + ["much", "little", "much"]


def test_a_failure_reaches_every_write_of_its_group_and_no_other(held: Held) -> None:
    queue = held.queue()

    def fail_once(items: Sequence[str]) -> Sequence[str]:
        if not held.groups:
            held.groups.append(list(items))
            raise ValueError("the first group fails")
        return held.work(items)

    futures = [submitted(queue, str(number), fail_once, GROUP_BYTES_MAX // 2) for number in range(3)]
    held.go(futures[2])
    assert held.groups == [["0", "1"], ["2"]]
    for future in futures[:2]:
        with pytest.raises(ValueError, match="the first group fails"):
            future.result(0)
    assert futures[2].result(0) == "2"
