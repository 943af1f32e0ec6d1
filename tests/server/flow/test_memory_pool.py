"""Memory pools: who gets memory, who loses it, and who is refused; without sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forebay.base.errors import ErrorCode, Unavailable
from forebay.base.host import machine_memory
from forebay.server.config import ServerConfig
from forebay.server.flow.memory_pool import MemoryPool, MemoryPools
from tests.virtual_time import run


class Hoarder:
    """A connection that holds memory, and gives it back when it is told to."""

    def __init__(self, held: int = 0, still: bool = False) -> None:
        self.held = held
        self.still = still
        self.reasons: list[str] = []

    def held_bytes(self, pool: MemoryPool) -> int:
        return self.held

    def stands_still(self, pool: MemoryPool) -> bool:
        return self.still

    def give_back(self, pool: MemoryPool, reason: str) -> None:
        self.reasons.append(reason)
        held, self.held = self.held, 0
        pool.give(held)


def pool_of(*consumers: Hoarder, limit: int = 100, wait: float = 0.01) -> MemoryPool:
    pool = MemoryPools(2 * limit, lambda: consumers, wait).requests
    for each in consumers:
        pool.take(each.held)
    return pool


def test_memory_is_granted_in_the_order_in_which_it_was_requested():
    async def test() -> None:
        pool, order = pool_of(Hoarder(90), wait=60), []

        async def ask(name: str, size: int) -> None:
            await pool.reserve(Hoarder(), size)
            order.append(name)

        tasks = [asyncio.create_task(ask("large", 60)), asyncio.create_task(ask("small", 5))]
        await asyncio.sleep(0)
        assert not pool.try_take(1)  # what comes later does not overtake those who wait
        pool.give(60)
        await asyncio.gather(*tasks)
        assert order == ["large", "small"]
        assert pool.used == 30 + 60 + 5
        pool.close()

    run(test)


def test_the_largest_consumer_loses_what_it_holds_when_others_have_waited_long_enough():
    async def test() -> None:
        small, large = Hoarder(30), Hoarder(60)
        pool = pool_of(small, large)
        await pool.reserve(Hoarder(), 50)
        assert (small.held, large.held) == (30, 0)
        assert "60" in large.reasons[0]
        assert "server.connections.memory" in large.reasons[0]
        pool.close()

    run(test)


def test_a_consumer_that_stands_still_loses_it_before_a_somewhat_larger_one_that_moves():
    async def test() -> None:
        moving, still = Hoarder(60), Hoarder(30, still=True)
        pool = pool_of(moving, still)
        await pool.reserve(Hoarder(), 20)
        assert (moving.held, still.held) == (60, 0)
        pool.close()

    run(test)


def test_as_many_consumers_lose_as_must_for_the_first_who_waits():
    async def test() -> None:
        hoarders = [Hoarder(25) for _ in range(4)]
        pool = pool_of(*hoarders)
        await pool.reserve(Hoarder(), 70)
        assert sorted(each.held for each in hoarders) == [0, 0, 0, 25]
        pool.close()

    run(test)


def test_who_waits_is_refused_with_an_error_to_try_again_when_there_is_nothing_to_take():
    async def test() -> None:
        pool = pool_of()
        pool.take(100)  # requests under way, which cannot be taken back
        with pytest.raises(Unavailable) as refused:
            await pool.reserve(Hoarder(), 10)
        assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION
        assert refused.value.retriable
        assert "100 bytes" in str(refused.value)
        assert pool.used == 100
        pool.close()

    run(test)


def test_a_request_larger_than_the_budget_is_granted_when_there_is_no_other():
    async def test() -> None:
        pool = pool_of()
        await pool.reserve(Hoarder(), 1000)
        assert pool.used == 1000

    run(test)


def test_one_who_stops_waiting_takes_nothing():
    async def test() -> None:
        pool = pool_of(Hoarder(100), wait=60)
        task = asyncio.create_task(pool.reserve(Hoarder(), 10))
        await asyncio.sleep(0)
        pool.give(100)  # granted, but the task is cancelled before it hears of it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.used == 0
        pool.take(100)
        task = asyncio.create_task(pool.reserve(Hoarder(), 10))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pool.give(100)
        assert pool.used == 0
        pool.close()

    run(test)


def test_memory_is_given_up_to_the_last_byte():
    pool = pool_of()
    assert pool.try_take(60)
    assert pool.try_take(40)
    assert not pool.try_take(1)
    pool.give(100)
    assert pool.try_take(101)  # larger than all, and alone
    assert not pool.try_take(1)


def test_those_who_come_later_do_not_prolong_the_wait_of_the_first():
    async def test() -> None:
        pool = pool_of(wait=0.05)
        pool.take(100)
        first = asyncio.create_task(pool.reserve(Hoarder(), 10))
        later = []
        for _ in range(50):
            await asyncio.sleep(0.01)
            if first.done():
                break
            later.append(asyncio.create_task(pool.reserve(Hoarder(), 10)))
        assert first.done()
        assert len(later) < 45
        found = await asyncio.gather(first, *later, return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in found)
        pool.close()

    run(test)


def test_the_second_who_waits_has_its_own_time_after_the_first_was_served():
    async def test() -> None:
        pool = pool_of(wait=0.2)
        pool.take(100)
        tasks = [asyncio.create_task(pool.reserve(Hoarder(), size)) for size in (10, 95)]
        await asyncio.sleep(0.15)
        pool.give(10)
        await tasks[0]
        await asyncio.sleep(0.1)  # the first one's time is over by now
        assert not tasks[1].done()
        with pytest.raises(Unavailable):
            await tasks[1]
        pool.close()

    run(test)


@pytest.mark.parametrize(("used", "is_overfull", "is_twice_full"), [(124, 0, 0), (125, 1, 0), (199, 1, 0), (200, 1, 1)])
def test_what_was_taken_without_asking_may_exceed_the_limit_by_so_much(used, is_overfull, is_twice_full):
    pool = pool_of()
    pool.take(used)
    assert (pool.is_overfull, pool.is_twice_full) == (bool(is_overfull), bool(is_twice_full))


def test_those_held_up_continue_when_there_is_room_and_the_largest_gives_it():
    async def test() -> None:
        large, gone = Hoarder(150), Hoarder()
        pool = pool_of(large, wait=0.02)
        went_on = asyncio.Event()
        pool.wait_for_relief(Hoarder(), went_on.set)
        pool.wait_for_relief(gone, lambda: pytest.fail("a connection that is gone goes on"))
        pool.forget(gone)
        assert pool.is_overfull
        await went_on.wait()
        assert large.reasons
        pool.take(130)
        went_on.clear()
        pool.wait_for_relief(Hoarder(), went_on.set)
        pool.give(4)
        await asyncio.sleep(0)
        assert not went_on.is_set()
        pool.give(2)
        await asyncio.sleep(0)
        assert went_on.is_set()
        pool.close()

    run(test)


def test_one_after_the_other_loses_what_it_holds_until_those_held_up_can_continue():
    async def test() -> None:
        largest, other, small = Hoarder(150), Hoarder(120), Hoarder(10)
        pool = pool_of(small, other, largest)
        went_on = asyncio.Event()
        pool.wait_for_relief(Hoarder(), went_on.set)
        await went_on.wait()
        assert [len(each.reasons) for each in (largest, other, small)] == [1, 1, 0]
        while pool._relief is not None:  # nothing is left to be relieved: nothing looks again
            await asyncio.sleep(0.01)
        assert small.reasons == []
        pool.close()

    run(test)


def test_a_consumer_with_little_loses_nothing_where_queued_writes_have_taken_the_memory():
    async def test() -> None:
        modest = Hoarder(24)
        pool = pool_of(modest)
        pool.take(110)  # of writes, which end by themselves
        pool.wait_for_relief(Hoarder(), lambda: pytest.fail("there is no relief yet"))
        with pytest.raises(Unavailable, match="used up"):
            await pool.reserve(Hoarder(), 10)
        assert (modest.held, modest.reasons) == (24, [])
        pool.give(110)
        assert pool.try_take(10)
        pool.close()
        modest.held = 25  # a quarter
        pool = pool_of(modest)
        pool.take(76)
        await pool.reserve(Hoarder(), 10)
        assert modest.reasons
        pool.close()

    run(test)


def test_a_connection_that_is_gone_waits_no_more():
    async def test() -> None:
        pool = pool_of(wait=60)
        pool.take(100)
        gone, other = Hoarder(), Hoarder()
        granted: list[str] = []
        pool.wait(gone, 50, lambda: granted.append("gone"), lambda _: None)
        pool.wait(other, 50, lambda: granted.append("other"), lambda _: None)
        assert pool._waiting
        pool.forget(gone)
        pool.give(100)
        assert granted == ["other"]
        assert (pool.used, bool(pool._waiting)) == (50, False)
        pool.close()

    run(test)


@pytest.mark.parametrize(
    ("machine", "memory"), [(1 << 40, 1 << 30), (8 << 30, 1 << 30), (4 << 30, 512 << 20), (1 << 29, 128 << 20)]
)
def test_the_default_is_an_eighth_of_the_memory_between_two_bounds(machine, memory, monkeypatch):
    monkeypatch.setattr("forebay.server.config.machine_memory", lambda: machine)
    assert ServerConfig(Path("unused")).connection_memory == memory


def test_the_default_is_a_part_of_the_machines_memory():
    memory = ServerConfig(Path("unused")).connection_memory
    assert 128 << 20 <= memory <= 1 << 30
    assert memory <= machine_memory()
