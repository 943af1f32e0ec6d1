"""What long requests wait for: the gate lets in a few at a time, whoever of those that wait goes away."""

from __future__ import annotations

import asyncio

from forebay.server.costs import Gate


async def _inside(gate: Gate, size: int, entered: list[int], leave: asyncio.Event) -> None:
    async with gate.passing(size):
        entered.append(size)
        await leave.wait()


def test_a_gate_lets_in_what_fits_in_order_and_something_larger_alone() -> None:
    async def trial() -> None:
        gate, entered = Gate(10), list[int]()
        leaves = [asyncio.Event() for _ in range(4)]
        tasks = [
            asyncio.create_task(_inside(gate, size, entered, leave))
            for size, leave in zip((6, 25, 4, 3), leaves, strict=True)
        ]
        await asyncio.sleep(0.01)
        assert (entered, gate.inside) == ([6], 6)  # 4 would fit, and does not overtake
        leaves[0].set()
        await asyncio.sleep(0.01)
        assert (entered, gate.inside) == ([6, 25], 25)
        leaves[1].set()
        await asyncio.sleep(0.01)
        assert (entered, gate.inside) == ([6, 25, 4, 3], 7)
        leaves[2].set()
        leaves[3].set()
        await asyncio.gather(*tasks)
        assert gate.inside == 0

    asyncio.run(trial())


def test_who_gives_up_while_it_waits_leaves_the_gate_as_it_was() -> None:
    async def trial() -> None:
        gate, entered = Gate(10), list[int]()
        leave = asyncio.Event()
        async with gate.passing(10):
            tasks = [asyncio.create_task(_inside(gate, size, entered, leave)) for size in (9, 8, 2)]
            await asyncio.sleep(0.01)
            tasks[0].cancel()
            await asyncio.sleep(0.01)
            tasks[1].cancel()  # and in the same moment there is room for it
        await asyncio.sleep(0.01)
        assert [task.cancelled() for task in tasks] == [True, True, False]
        assert (entered, gate.inside) == ([2], 2)
        leave.set()
        await tasks[2]
        assert gate.inside == 0

    asyncio.run(trial())


def test_who_gives_up_when_it_has_just_been_let_in_gives_its_room_back() -> None:
    async def trial() -> None:
        gate, entered = Gate(10), list[int]()
        leave = asyncio.Event()
        first, second = (asyncio.create_task(_inside(gate, 10, entered, leave)) for _ in range(2))
        await asyncio.sleep(0.01)
        leave.set()
        await asyncio.sleep(0)  # the first one ends in this round, the second is let in and has not run
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert gate.inside == 0

    asyncio.run(trial())
