"""Limits of requests, the admission of long ones, and which waiters progress wakes up, without sockets."""

from __future__ import annotations

import asyncio

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, LimitExceeded
from forebay.metadata.table import TableBucket
from forebay.server.flow.request_limits import RequestAdmission, RequestLimits
from forebay.server.lake.lake_tiering import TieringManager
from forebay.server.storage.progress_notifier import ProgressNotifier
from tests.virtual_time import run


def test_requests_and_answers_may_be_as_large_as_their_limits_and_no_larger() -> None:
    limits = RequestLimits(ManualClock(), items_max=10, answer_bytes_max=1000)
    limits.check_items(10, "buckets")
    limits.check_answer_bytes(1000, "tables")
    with pytest.raises(LimitExceeded, match="names 11 buckets; one request may name 10") as items:
        limits.check_items(11, "buckets")
    with pytest.raises(LimitExceeded, match=r"larger than 1000 B \(tables") as size:
        limits.check_answer_bytes(1001, "tables")
    assert {items.value.code, size.value.code} == {ErrorCode.BUCKET_MAX_NUM_EXCEPTION}


class Passers:
    """Tasks that are admitted and stay until they are let out."""

    def __init__(self, admission: RequestAdmission) -> None:
        self.admission = admission
        self.entered: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, size: int) -> None:
        self._leave[name] = asyncio.Event()

        async def run_admitted() -> None:
            async with self.admission.admitted(size):
                self.entered.append(name)
                await self._leave[name].wait()

        self._tasks[name] = asyncio.create_task(run_admitted())
        await asyncio.sleep(0)

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await asyncio.sleep(0)


def test_requests_that_fit_are_admitted_in_order_of_arrival() -> None:
    async def test() -> None:
        passers = Passers(RequestAdmission(10))
        await passers.come("six", 6)
        await passers.come("four", 4)
        await passers.come("five", 5)
        await passers.come("one", 1)  # would fit later, but does not overtake
        assert passers.entered == ["six", "four"]
        await passers.leave("four")
        assert passers.entered == ["six", "four"]
        await passers.leave("six")
        assert passers.entered == ["six", "four", "five", "one"]
        assert passers.admission.inside == 6
        for name in ("five", "one"):
            await passers.leave(name)
        assert passers.admission.inside == 0

    run(test)


def test_a_request_larger_than_the_limit_is_admitted_alone() -> None:
    async def test() -> None:
        passers = Passers(RequestAdmission(10))
        await passers.come("huge", 100)
        await passers.come("small", 1)
        assert passers.entered == ["huge"]
        await passers.leave("huge")
        await passers.come("huge again", 100)
        assert passers.entered == ["huge", "small"]
        await passers.leave("small")
        assert passers.entered == ["huge", "small", "huge again"]
        await passers.leave("huge again")

    run(test)


def test_cancelled_requests_leave_their_place_to_others() -> None:
    async def test() -> None:
        passers = Passers(RequestAdmission(10))
        await passers.come("first", 8)
        await passers.come("large", 9)
        await passers.come("small", 2)
        await passers.give_up("large")
        assert passers.entered == ["first", "small"]
        await passers.give_up("first")
        assert passers.admission.inside == 2
        await passers.come("next", 8)
        assert passers.entered[-1] == "next"
        await passers.give_up("small")
        await passers.give_up("next")
        assert passers.admission.inside == 0

    run(test)


def test_a_request_cancelled_when_just_admitted_takes_no_place() -> None:
    async def test() -> None:
        passers = Passers(RequestAdmission(10))
        async with passers.admission.admitted(10):
            await passers.come("second", 10)
        await passers.give_up("second")  # its turn has come, and its task has not run yet
        assert passers.admission.inside == 0
        await passers.come("third", 10)
        assert passers.entered == ["third"]
        await passers.leave("third")

    run(test)


def test_waiters_hear_of_their_buckets_until_they_end_their_watch() -> None:
    async def test() -> None:
        notifier = ProgressNotifier(asyncio.get_running_loop(), TieringManager(ManualClock()))
        mine, other = TableBucket(1, 0), TableBucket(1, 1)
        event, second = asyncio.Event(), asyncio.Event()
        notifier.watch(event, mine)
        notifier.watch(second, mine)
        notifier.progressed(other)
        await asyncio.sleep(0)
        assert not event.is_set()
        notifier.progressed(mine)
        await asyncio.sleep(0)
        assert event.is_set()
        assert second.is_set()
        event.clear()
        second.clear()
        notifier.unwatch(event, mine)
        notifier.unwatch(event, other)
        notifier.progressed(mine)
        await asyncio.sleep(0)
        assert (event.is_set(), second.is_set()) == (False, True)
        notifier.unwatch(second, mine)
        assert not notifier._waiters

    run(test)
