"""Memory for responses that may be large."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from forebay.base.errors import Unavailable
from forebay.server.flow.memory_pool import MemoryPools
from forebay.server.flow.response_memory import ResponseMemory
from tests.virtual_time import run

LIMIT = 1600
LARGE, SHORT = 700, 100
"""The sizes of the pools for large and for short responses; one short response takes at most an eighth of the
latter."""


class Quiet:
    """A connection that holds nothing."""

    def held_bytes(self, pool: Any) -> int:
        return 0

    def stands_still(self, pool: Any) -> bool:
        return False

    def give_back(self, pool: Any, reason: str) -> None:
        raise AssertionError("it has nothing to give")


def checked(scenario: Any) -> None:
    """Run `scenario(pools, new_memory)`; afterwards everything must have been given back."""

    async def test() -> None:
        pools = MemoryPools(LIMIT, list, wait_seconds=0.05)
        assert (pools.responses.limit, pools.short_responses.limit) == (LARGE, SHORT)
        places = asyncio.Semaphore(2)
        memories: list[ResponseMemory] = []

        def new_memory() -> ResponseMemory:
            memories.append(ResponseMemory(places, pools, Quiet()))
            return memories[-1]

        await scenario(pools, new_memory)
        for memory in memories:
            memory.close()
        assert (pools.responses.used, pools.short_responses.used) == (0, 0)
        assert not places.locked()
        await places.acquire()
        assert not places.locked()
        pools.close()

    run(test)


async def waits(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task for `work`, which is not done by what can be done at once."""
    task = asyncio.ensure_future(work)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def test_a_large_answer_is_counted_until_it_is_made():
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        memory = new_memory()
        await memory.enter(300)
        assert (memory.reserved, pools.responses.used, pools.short_responses.used) == (300, 300, 0)
        memory.settle()
        assert (memory.reserved, pools.responses.used) == (0, 0)

    checked(scenario)


def test_a_short_answer_has_memory_of_its_own():
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        await pools.responses.reserve(Quiet(), LARGE)
        memory = new_memory()
        await memory.enter(12)
        assert (memory.reserved, pools.short_responses.used) == (12, 12)
        pools.responses.give(LARGE)

    checked(scenario)


def test_a_short_answer_that_grows_moves_to_the_large_ones():
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        memory = new_memory()
        await memory.enter(12)
        await memory.grow_to(11)
        assert (memory.reserved, pools.responses.used, pools.short_responses.used) == (12, 0, 12)
        await memory.grow_to(200)
        assert (memory.reserved, pools.responses.used, pools.short_responses.used) == (200, 200, 0)
        await memory.grow_to(250)
        assert (memory.reserved, pools.responses.used) == (250, 250)

    checked(scenario)


def test_one_that_wants_more_waits_for_others():
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        one, other = new_memory(), new_memory()
        await one.enter(300)
        await other.enter(300)
        growing = await waits(one.grow_to(500))
        other.leave()
        await growing
        assert (one.reserved, pools.responses.used) == (500, 500)

    checked(scenario)


@pytest.mark.parametrize("way", ["grow_to", "change_to"])
def test_nothing_wants_more_than_there_is(way):
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        memory = new_memory()
        await memory.enter(300)
        await getattr(memory, way)(10 * LARGE)
        assert (memory.reserved, pools.responses.used) == (LARGE, LARGE)

    checked(scenario)


def test_what_is_reserved_ahead_leaves_reservation_for_another():
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        one, other = new_memory(), new_memory()
        await one.enter(10 * LARGE)
        await other.enter(10 * LARGE)
        assert (one.reserved, other.reserved) == (LARGE // 2, LARGE // 2)

    checked(scenario)


def test_two_that_begin_again_with_more_do_not_wait_for_each_other():
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        one, other = new_memory(), new_memory()
        await one.enter(300)
        await other.enter(300)
        first = await waits(one.change_to(600))
        second = await waits(other.change_to(600))
        assert pools.responses.used == 600
        await first
        one.leave()
        await second
        assert (other.reserved, pools.responses.used) == (600, 600)

    checked(scenario)


@pytest.mark.parametrize("way", ["enter", "grow_to", "change_to"])
def test_who_gets_none_in_time_is_refused_and_holds_nothing(way):
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        await pools.responses.reserve(Quiet(), 600)
        memory = new_memory()
        if way != "enter":
            await memory.enter(50)
        with pytest.raises(Unavailable, match="memory for answers of all connections is used up"):
            await getattr(memory, way)(300)
        memory.close()
        assert pools.responses.used == 600
        pools.responses.give(600)

    checked(scenario)


@pytest.mark.parametrize("way", ["grow_to", "change_to"])
def test_without_a_reservation_nothing_is_counted(way):
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        await getattr(new_memory(), way)(300)
        assert pools.responses.used == 0

    checked(scenario)


def test_a_place_is_kept_until_the_reservation_is_closed():
    async def scenario(pools: MemoryPools, new_memory: Any) -> None:
        one, other, third = new_memory(), new_memory(), new_memory()
        await one.take_place()
        await one.enter(10)
        one.leave()
        await one.enter(10)  # in the place that it has
        await other.enter(10)
        waiting = await waits(third.enter(10))
        one.leave()
        await asyncio.sleep(0)
        assert not waiting.done()
        one.close()
        await waiting
        assert third.is_held

    checked(scenario)
