"""The budget shared by all connections, and their rotation, without sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, Unavailable
from forebay.base.host import machine_memory
from forebay.server.config import ServerConfig
from forebay.server.flow.fair_queue import NEW_IN_A_ROW, REQUESTS_PER_TURN, RoundRobin
from forebay.server.flow.memory_pool import Half, MemoryBudget
from tests.virtual_time import run


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


def test_memory_is_granted_in_the_order_in_which_it_was_requested():
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


def test_memory_is_given_up_to_the_last_byte():
    half = budget_of()
    assert half.try_take(60)
    assert half.try_take(40)
    assert not half.try_take(1)
    half.give(100)
    assert half.try_take(101)  # larger than all, and alone
    assert not half.try_take(1)


def test_those_who_come_later_do_not_prolong_the_wait_of_the_first():
    async def test() -> None:
        half = budget_of(wait=0.05)
        half.take(100)
        first = asyncio.create_task(half.reserve(Hoarder(), 10))
        later = []
        for _ in range(50):
            await asyncio.sleep(0.01)
            if first.done():
                break
            later.append(asyncio.create_task(half.reserve(Hoarder(), 10)))
        assert first.done()
        assert len(later) < 45
        found = await asyncio.gather(first, *later, return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in found)
        half.close()

    run(test)


def test_the_second_who_waits_has_its_own_time_after_the_first_was_served():
    async def test() -> None:
        half = budget_of(wait=0.2)
        half.take(100)
        tasks = [asyncio.create_task(half.reserve(Hoarder(), size)) for size in (10, 95)]
        await asyncio.sleep(0.15)
        half.give(10)
        await tasks[0]
        await asyncio.sleep(0.1)  # the first one's time is over by now
        assert not tasks[1].done()
        with pytest.raises(Unavailable):
            await tasks[1]
        half.close()

    run(test)


@pytest.mark.parametrize(("used", "is_overfull", "is_twice_full"), [(124, 0, 0), (125, 1, 0), (199, 1, 0), (200, 1, 1)])
def test_what_was_taken_without_asking_may_exceed_the_limit_by_so_much(used, is_overfull, is_twice_full):
    half = budget_of()
    half.take(used)
    assert (half.is_overfull, half.is_twice_full) == (bool(is_overfull), bool(is_twice_full))


def test_those_held_up_continue_when_there_is_room_and_the_largest_gives_it():
    async def test() -> None:
        large, gone = Hoarder(150), Hoarder()
        half = budget_of(large, wait=0.02)
        went_on = asyncio.Event()
        half.wait_for_relief(Hoarder(), went_on.set)
        half.wait_for_relief(gone, lambda: pytest.fail("a connection that is gone goes on"))
        half.forget(gone)
        assert half.is_overfull
        await went_on.wait()
        assert large.reasons
        half.take(130)
        went_on.clear()
        half.wait_for_relief(Hoarder(), went_on.set)
        half.give(4)
        await asyncio.sleep(0)
        assert not went_on.is_set()
        half.give(2)
        await asyncio.sleep(0)
        assert went_on.is_set()
        half.close()

    run(test)


def test_one_after_the_other_loses_what_it_holds_until_those_held_up_can_continue():
    async def test() -> None:
        largest, other, small = Hoarder(150), Hoarder(120), Hoarder(10)
        half = budget_of(small, other, largest)
        went_on = asyncio.Event()
        half.wait_for_relief(Hoarder(), went_on.set)
        await went_on.wait()
        assert [len(each.reasons) for each in (largest, other, small)] == [1, 1, 0]
        while half._relief is not None:  # nothing is left to be relieved: nothing looks again
            await asyncio.sleep(0.01)
        assert small.reasons == []
        half.close()

    run(test)


def test_a_consumer_with_little_loses_nothing_where_queued_writes_have_taken_the_memory():
    async def test() -> None:
        modest = Hoarder(24)
        half = budget_of(modest)
        half.take(110)  # of writes, which end by themselves
        half.wait_for_relief(Hoarder(), lambda: pytest.fail("there is no relief yet"))
        with pytest.raises(Unavailable, match="used up"):
            await half.reserve(Hoarder(), 10)
        assert (modest.held, modest.reasons) == (24, [])
        half.give(110)
        assert half.try_take(10)
        half.close()
        modest.held = 25  # a quarter
        half = budget_of(modest)
        half.take(76)
        await half.reserve(Hoarder(), 10)
        assert modest.reasons
        half.close()

    run(test)


def test_a_connection_that_is_gone_waits_no_more():
    async def test() -> None:
        half = budget_of(wait=60)
        half.take(100)
        gone, other = Hoarder(), Hoarder()
        granted: list[str] = []
        half.wait(gone, 50, lambda: granted.append("gone"), lambda _: None)
        half.wait(other, 50, lambda: granted.append("other"), lambda _: None)
        assert half._waiting
        half.forget(gone)
        half.give(100)
        assert granted == ["other"]
        assert (half.used, bool(half._waiting)) == (50, False)
        half.close()

    run(test)


@pytest.mark.parametrize(
    ("machine", "budget"), [(1 << 40, 1 << 30), (8 << 30, 1 << 30), (4 << 30, 512 << 20), (1 << 29, 128 << 20)]
)
def test_the_default_is_an_eighth_of_the_memory_between_two_bounds(machine, budget, monkeypatch):
    monkeypatch.setattr("forebay.server.config.machine_memory", lambda: machine)
    assert ServerConfig(Path("unused")).connection_memory == budget


def test_the_default_is_a_part_of_the_machines_memory():
    budget = ServerConfig(Path("unused")).connection_memory
    assert 128 << 20 <= budget <= 1 << 30
    assert budget <= machine_memory()


class Pipeline:
    """A connection with requests waiting; it notes in `served` when it was served."""

    def __init__(self, name: str, waiting: int, served: list[str]) -> None:
        self.name, self.waiting, self.served = name, waiting, served

    def take_turn(self, requests_max: int) -> bool:
        self.waiting -= min(self.waiting, requests_max)
        self.served.append(self.name)
        return self.waiting > 0


def test_connections_take_turns_and_other_work_of_the_loop_runs_between_rounds():
    async def test() -> None:
        loop, served = asyncio.get_running_loop(), list[str]()
        turns = RoundRobin(loop, ManualClock())
        for name in ("greedy", "greedier"):
            turns.join(Pipeline(name, 2 + 99 * REQUESTS_PER_TURN, served))  # a new one has one served at first
        turns.join(Pipeline("modest", 1, served))
        rounds = 0
        while not turns.is_idle:
            await asyncio.sleep(0)
            rounds += 1
        assert served[:5] == ["greedy", "greedier", "modest", "greedy", "greedier"]
        assert served.count("greedy") == served.count("greedier") == 101
        assert rounds > 3  # 203 turns do not fit into one round, although the clock stands still

    run(test)


def test_connections_with_something_new_go_first_but_not_for_ever():
    async def test() -> None:
        loop, served = asyncio.get_running_loop(), list[str]()
        turns = RoundRobin(loop, ManualClock())
        for number in range(3):
            turns.join(Pipeline(f"old{number}", 4 * REQUESTS_PER_TURN, served), is_new=False)
        for number in range(NEW_IN_A_ROW + 1):
            turns.join(Pipeline(f"new{number}", 1 + REQUESTS_PER_TURN if number == 0 else 1, served))
        while not turns.is_idle:
            await asyncio.sleep(0)
        firsts = [f"new{number}" for number in range(NEW_IN_A_ROW)]
        assert served[: NEW_IN_A_ROW + 2] == [*firsts, "old0", f"new{NEW_IN_A_ROW}"]
        # Who has had its turn waits with the old ones.
        assert served[NEW_IN_A_ROW + 2 :][:4] == ["old1", "old2", "new0", "old0"]
        assert served.count("new0") == 2

    run(test)
