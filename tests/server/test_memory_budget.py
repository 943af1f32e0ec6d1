"""The budget that all connections share, and the rotation of their turns, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from forebay.base.clock import ManualClock
from forebay.base.errors import ErrorCode, Unavailable
from forebay.server.memory_budget import Half, MemoryBudget, default_budget, machine_memory
from forebay.server.turns import REQUESTS_PER_TURN, Turns


class Hoarder:
    """A connection that holds memory, and gives it back when it is told to."""

    def __init__(self, held: int = 0, still: bool = False) -> None:
        self.held = held
        self.still = still
        self.reasons: list[str] = []

    def held_bytes(self, half: Half) -> int:
        return self.held

    def stands_still(self, half: Half) -> bool:
        return self.still

    def give_back(self, half: Half, reason: str) -> None:
        self.reasons.append(reason)
        held, self.held = self.held, 0
        half.give(held)


def budget_of(*consumers: Hoarder, limit: int = 100, wait: float = 0.01) -> Half:
    half = MemoryBudget(2 * limit, lambda: consumers, wait).receiving
    for each in consumers:
        half.take(each.held)
    return half


def run(test: Callable[[], object]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))  # type: ignore[arg-type]


def test_memory_is_granted_in_the_order_in_which_it_was_asked_for():
    async def test() -> None:
        half, order = budget_of(Hoarder(90), wait=60), []

        async def ask(name: str, size: int) -> None:
            await half.reserve(Hoarder(), size)
            order.append(name)

        tasks = [asyncio.create_task(ask("large", 60)), asyncio.create_task(ask("small", 5))]
        await asyncio.sleep(0)
        assert not half.try_take(1)  # what comes later does not overtake those who wait
        half.give(60)
        await asyncio.gather(*tasks)
        assert order == ["large", "small"]
        assert half.used == 30 + 60 + 5
        half.close()

    run(test)


def test_the_largest_consumer_loses_what_it_holds_when_others_have_waited_long_enough():
    async def test() -> None:
        small, large = Hoarder(30), Hoarder(60)
        half = budget_of(small, large)
        await half.reserve(Hoarder(), 50)
        assert (small.held, large.held) == (30, 0)
        assert "60" in large.reasons[0]
        assert "server.connections.memory" in large.reasons[0]
        half.close()

    run(test)


def test_a_consumer_that_stands_still_loses_it_before_a_somewhat_larger_one_that_moves():
    async def test() -> None:
        moving, still = Hoarder(60), Hoarder(30, still=True)
        half = budget_of(moving, still)
        await half.reserve(Hoarder(), 20)
        assert (moving.held, still.held) == (60, 0)
        half.close()

    run(test)


def test_as_many_consumers_lose_as_must_for_the_first_who_waits():
    async def test() -> None:
        hoarders = [Hoarder(25) for _ in range(4)]
        half = budget_of(*hoarders)
        await half.reserve(Hoarder(), 70)
        assert sorted(each.held for each in hoarders) == [0, 0, 0, 25]
        half.close()

    run(test)


def test_who_waits_is_refused_with_an_error_to_try_again_when_there_is_nothing_to_take():
    async def test() -> None:
        half = budget_of()
        half.take(100)  # requests under way, which cannot be taken back
        with pytest.raises(Unavailable) as refused:
            await half.reserve(Hoarder(), 10)
        assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION
        assert refused.value.retriable
        assert "100 bytes" in str(refused.value)
        assert half.used == 100
        half.close()

    run(test)


def test_a_request_larger_than_the_budget_is_granted_when_there_is_no_other():
    async def test() -> None:
        half = budget_of()
        await half.reserve(Hoarder(), 1000)
        assert half.used == 1000

    run(test)


def test_one_who_stops_waiting_takes_nothing():
    async def test() -> None:
        half = budget_of(Hoarder(100), wait=60)
        task = asyncio.create_task(half.reserve(Hoarder(), 10))
        await asyncio.sleep(0)
        half.give(100)  # granted, but the task is cancelled before it hears of it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert half.used == 0
        half.take(100)
        task = asyncio.create_task(half.reserve(Hoarder(), 10))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        half.give(100)
        assert half.used == 0
        half.close()

    run(test)


def test_the_default_is_a_part_of_the_machines_memory():
    assert 128 << 20 <= default_budget() <= 1 << 30
    assert default_budget() <= machine_memory()


class Pipeline:
    """A connection with requests waiting; it notes in `served` when it was served."""

    def __init__(self, name: str, waiting: int, served: list[str]) -> None:
        self.name, self.waiting, self.served = name, waiting, served

    def take_turn(self) -> bool:
        count = min(self.waiting, REQUESTS_PER_TURN)
        self.waiting -= count
        self.served.append(self.name)
        return self.waiting > 0


def test_connections_take_turns_and_other_work_of_the_loop_runs_between_rounds():
    async def test() -> None:
        loop, served = asyncio.get_running_loop(), list[str]()
        turns = Turns(loop, ManualClock())
        for name in ("greedy", "greedier"):
            turns.join(Pipeline(name, 100 * REQUESTS_PER_TURN, served))
        turns.join(Pipeline("modest", 1, served))
        rounds = 0
        while not turns.is_idle:
            await asyncio.sleep(0)
            rounds += 1
        assert served[:5] == ["greedy", "greedier", "modest", "greedy", "greedier"]
        assert served.count("greedy") == served.count("greedier") == 100
        assert rounds > 3  # 201 turns do not fit into one round, although the clock stands still

    run(test)
