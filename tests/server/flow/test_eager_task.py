"""Tasks whose first step runs at once."""

from __future__ import annotations

import asyncio

import pytest

from forebay.base.eager_task import begun
from forebay.base.errors import LimitExceeded
from forebay.server.flow.fair_executor import context_of
from tests.virtual_time import run


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
        assert begun(job([])) is None
        assert steps == ["begun", "ended"]
        steps.clear()
        first, second = loop.create_future(), loop.create_future()
        task = begun(job([first, second]), context_of("a client"))
        assert task is not None
        assert steps == ["begun"]
        first.set_exception(ValueError("refused"))
        loop.call_later(0, second.set_result, 2)
        assert await task == 7
        assert steps == ["begun", "refused", 2, "ended"]
        steps.clear()
        cancelled = begun(job([loop.create_future()]))
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
        begun(job())
