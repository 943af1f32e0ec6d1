"""The gate of long requests: a few are admitted at a time, whichever waiting ones go away."""

from __future__ import annotations

import asyncio

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import LimitExceeded
from forebay.server import context
from forebay.server.flow.request_limits import Gate
from tests.virtual_time import run


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

    run(trial)


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

    run(trial)


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

    run(trial)


# ---- long work in pieces --------------------------------------------------------------------------------------------


def test_short_work_is_done_at_once_and_others_have_their_turn_after_each_piece_of_long_work() -> None:
    async def test() -> None:
        request_costs, order = context.RequestCosts(ManualClock()), list[object]()

        async def other() -> None:
            order.append("other")

        task = asyncio.ensure_future(other())
        await request_costs.each(range(context.SHORT_LIST), context.SHORT_LIST, order.append)
        assert order == list(range(context.SHORT_LIST))
        order.clear()
        long = context._PIECE_ITEMS + 1
        assert await request_costs.distinct(iter(range(long)), long) == list(range(long))
        assert task.done()
        order.clear()
        task = asyncio.ensure_future(other())
        await request_costs.each(range(long), long, order.append)
        assert order.index("other") == context._PIECE_ITEMS
        assert order[-1] == long - 1
        await task

    run(test)


def test_a_piece_ends_after_its_number_of_items_or_its_time_and_the_next_one_starts_over() -> None:
    async def test() -> None:
        clock = ManualClock()
        async with context.RequestCosts(clock).pieces() as pieces:
            assert not pieces.is_over(context._PIECE_ITEMS - 1)
            assert pieces.is_over()
            await pieces.next()
            assert not pieces.is_over(context._PIECE_ITEMS - 1)
            await pieces.next()
            clock.advance(context._PIECE_SECONDS / 2)
            assert not pieces.is_over()
            clock.advance(context._PIECE_SECONDS / 2)
            assert pieces.is_over()
            await pieces.next()
            assert not pieces.is_over()

    run(test)


def test_the_long_work_of_two_requests_takes_turns_piece_by_piece() -> None:
    async def test() -> None:
        request_costs, order = context.RequestCosts(ManualClock()), list[str]()

        async def work(name: str) -> None:
            async with request_costs.pieces() as pieces:
                for _ in range(3):
                    order.append(name)
                    await pieces.next()

        await asyncio.gather(work("a"), work("b"))
        assert order == ["a", "b"] * 3
        with pytest.raises(ZeroDivisionError):
            async with request_costs.pieces():
                raise ZeroDivisionError
        await work("a")  # a failure gives the turn back

    run(test)


def test_lists_and_answers_may_be_as_long_as_their_limits() -> None:
    limited = context.RequestCosts(items_max=3, answer_bytes_max=10)
    limited.check_items(3, "things")
    limited.check_answer_bytes(10, "words")
    with pytest.raises(LimitExceeded, match=r"names 4 things; one request may name 3 \(server\.request\.max-items"):
        limited.check_items(4, "things")
    with pytest.raises(LimitExceeded, match=r"larger than 10 bytes \(words; server\.request\.max-answer-size"):
        limited.check_answer_bytes(11, "words")


def test_a_coroutine_runs_to_its_first_wait_at_once_and_then_as_a_task() -> None:
    steps: list[object] = []

    async def job(waits: list[asyncio.Future[int]]) -> int:
        steps.append("begun")
        try:
            for waited in waits:
                try:
                    steps.append(await waited)
                except ValueError as e:
                    steps.append(str(e))
        finally:
            steps.append("ended")
        return 7

    async def test() -> None:
        loop = asyncio.get_running_loop()
        assert context.begun(job([])) is None
        assert steps == ["begun", "ended"]
        steps.clear()
        first, second = loop.create_future(), loop.create_future()
        task = context.begun(job([first, second]), context.context_of("a client"))
        assert task is not None
        assert steps == ["begun"]
        first.set_exception(ValueError("refused"))
        loop.call_later(0, second.set_result, 2)
        assert await task == 7
        assert steps == ["begun", "refused", 2, "ended"]
        steps.clear()
        cancelled = context.begun(job([loop.create_future()]))
        assert cancelled is not None
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert steps == ["begun", "ended"]

    run(test)


def test_what_a_coroutine_raises_before_it_waits_is_raised_at_once() -> None:
    async def job() -> None:
        raise LimitExceeded("too much")

    with pytest.raises(LimitExceeded, match="too much"):
        context.begun(job())
