"""Long work of requests in time slices: others have their turn after each slice."""

from __future__ import annotations

import asyncio

import pytest

from forebay.base.ambient import ManualClock
from forebay.server.flow.request_limits import _SLICE_ITEMS, _SLICE_SECONDS, SHORT_LIST, RequestLimits
from tests.virtual_time import run


def test_short_work_is_done_at_once_and_others_have_their_turn_after_each_slice_of_long_work() -> None:
    async def test() -> None:
        limits, order = RequestLimits(ManualClock()), list[object]()

        async def other() -> None:
            order.append("other")

        task = asyncio.ensure_future(other())
        await limits.each(range(SHORT_LIST), SHORT_LIST, order.append)
        assert order == list(range(SHORT_LIST))
        order.clear()
        long = _SLICE_ITEMS + 1
        assert await limits.distinct(iter(range(long)), long) == list(range(long))
        assert task.done()
        order.clear()
        task = asyncio.ensure_future(other())
        await limits.each(range(long), long, order.append)
        assert order.index("other") == _SLICE_ITEMS
        assert order[-1] == long - 1
        await task

    run(test)


def test_a_slice_ends_after_its_number_of_items_or_its_time_and_the_next_one_starts_over() -> None:
    async def test() -> None:
        clock = ManualClock()
        async with RequestLimits(clock).time_slices() as slices:
            assert not slices.is_over(_SLICE_ITEMS - 1)
            assert slices.is_over()
            await slices.next()
            assert not slices.is_over(_SLICE_ITEMS - 1)
            await slices.next()
            clock.advance(_SLICE_SECONDS / 2)
            assert not slices.is_over()
            clock.advance(_SLICE_SECONDS / 2)
            assert slices.is_over()
            await slices.next()
            assert not slices.is_over()

    run(test)


def test_the_long_work_of_two_requests_takes_turns_slice_by_slice() -> None:
    async def test() -> None:
        limits, order = RequestLimits(ManualClock()), list[str]()

        async def work(name: str) -> None:
            async with limits.time_slices() as slices:
                for _ in range(3):
                    order.append(name)
                    await slices.next()

        await asyncio.gather(work("a"), work("b"))
        assert order == ["a", "b"] * 3
        with pytest.raises(ZeroDivisionError):
            async with limits.time_slices():
                raise ZeroDivisionError
        await work("a")  # a failure gives the turn back

    run(test)
