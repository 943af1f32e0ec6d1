"""Admission of long requests: a few run at a time, in order, also if waiting ones are cancelled."""

from __future__ import annotations

import asyncio

from forebay.server.flow.request_limits import RequestAdmission
from tests.virtual_time import run


async def _inside(admission: RequestAdmission, size: int, entered: list[int], leave: asyncio.Event) -> None:
    async with admission.admitted(size):
        entered.append(size)
        await leave.wait()


def test_requests_that_fit_are_admitted_in_order_and_a_larger_one_alone() -> None:
    async def trial() -> None:
        admission, entered = RequestAdmission(10), list[int]()
        leaves = [asyncio.Event() for _ in range(4)]
        tasks = [
            asyncio.create_task(_inside(admission, size, entered, leave))
            for size, leave in zip((6, 25, 4, 3), leaves, strict=True)
        ]
        await asyncio.sleep(0.01)
        assert (entered, admission.inside) == ([6], 6)  # 4 would fit, and does not overtake
        leaves[0].set()
        await asyncio.sleep(0.01)
        assert (entered, admission.inside) == ([6, 25], 25)
        leaves[1].set()
        await asyncio.sleep(0.01)
        assert (entered, admission.inside) == ([6, 25, 4, 3], 7)
        leaves[2].set()
        leaves[3].set()
        await asyncio.gather(*tasks)
        assert admission.inside == 0

    run(trial)


def test_a_request_that_is_cancelled_while_it_waits_changes_nothing() -> None:
    async def trial() -> None:
        admission, entered = RequestAdmission(10), list[int]()
        leave = asyncio.Event()
        async with admission.admitted(10):
            tasks = [asyncio.create_task(_inside(admission, size, entered, leave)) for size in (9, 8, 2)]
            await asyncio.sleep(0.01)
            tasks[0].cancel()
            await asyncio.sleep(0.01)
            tasks[1].cancel()  # and in the same moment there is room for it
        await asyncio.sleep(0.01)
        assert [task.cancelled() for task in tasks] == [True, True, False]
        assert (entered, admission.inside) == ([2], 2)
        leave.set()
        await tasks[2]
        assert admission.inside == 0

    run(trial)


def test_a_request_that_is_cancelled_when_just_admitted_gives_its_place_back() -> None:
    async def trial() -> None:
        admission, entered = RequestAdmission(10), list[int]()
        leave = asyncio.Event()
        first, second = (asyncio.create_task(_inside(admission, 10, entered, leave)) for _ in range(2))
        await asyncio.sleep(0.01)
        leave.set()
        await asyncio.sleep(0)  # the first one ends in this round, the second is let in and has not run
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert admission.inside == 0

    run(trial)
