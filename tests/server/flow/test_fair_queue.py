"""The queue of connections with pending requests: the order of their turns, without sockets."""

from __future__ import annotations

import asyncio

from forebay.base.ambient import ManualClock
from forebay.server.flow.fair_queue import NEW_IN_A_ROW, REQUESTS_PER_TURN, FairQueue
from tests.virtual_time import run


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
        queue = FairQueue(loop, ManualClock())
        for name in ("greedy", "greedier"):
            queue.join(Pipeline(name, 2 + 99 * REQUESTS_PER_TURN, served))  # a new one has one served at first
        queue.join(Pipeline("modest", 1, served))
        rounds = 0
        while not queue.is_idle:
            await asyncio.sleep(0)
            rounds += 1
        assert served[:5] == ["greedy", "greedier", "modest", "greedy", "greedier"]
        assert served.count("greedy") == served.count("greedier") == 101
        assert rounds > 3  # 203 turns do not fit into one round, although the clock stands still

    run(test)


def test_a_round_ends_when_its_time_or_its_turns_are_used_up():
    async def turns_of_a_round(seconds: float) -> int:
        loop, clock, served = asyncio.get_running_loop(), ManualClock(), list[str]()

        class Slow(Pipeline):
            def take_turn(self, requests_max: int) -> bool:
                clock.advance(seconds)
                return super().take_turn(requests_max)

        queue = FairQueue(loop, clock)
        queue.join(Slow("one", 1 + 99 * REQUESTS_PER_TURN, served))
        await asyncio.sleep(0)
        return len(served)

    async def test() -> None:
        assert await turns_of_a_round(0) == 64
        assert await turns_of_a_round(0.002) == 3  # 5 ms
        assert await turns_of_a_round(1) == 1

    run(test)


def test_connections_with_something_new_go_first_but_not_for_ever():
    async def test() -> None:
        loop, served = asyncio.get_running_loop(), list[str]()
        queue = FairQueue(loop, ManualClock())
        for number in range(3):
            queue.join(Pipeline(f"old{number}", 4 * REQUESTS_PER_TURN, served), is_new=False)
        for number in range(NEW_IN_A_ROW + 1):
            queue.join(Pipeline(f"new{number}", 1 + REQUESTS_PER_TURN if number == 0 else 1, served))
        while not queue.is_idle:
            await asyncio.sleep(0)
        firsts = [f"new{number}" for number in range(NEW_IN_A_ROW)]
        assert served[: NEW_IN_A_ROW + 2] == [*firsts, "old0", f"new{NEW_IN_A_ROW}"]
        # Who has had its turn waits with the old ones.
        assert served[NEW_IN_A_ROW + 2 :][:4] == ["old1", "old2", "new0", "old0"]
        assert served.count("new0") == 2

    run(test)
