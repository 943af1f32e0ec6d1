"""Coroutines that run until they must wait, and become tasks only then."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def begun(coroutine: Coroutine[Any, Any, T], context: Context | None = None) -> asyncio.Task[T] | None:
    """Run a coroutine to its first wait at once. Return a task with the rest, or None if it has ended already.

    Raises what the coroutine raises until then. Before its first wait it is no task: `asyncio.timeout` and
    `asyncio.current_task` do not work there. (Python 3.12 has eager tasks; simulated loops make tasks of their own.)
    """
    try:
        awaited = coroutine.send(None) if context is None else context.run(coroutine.send, None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest_of(coroutine, awaited), context=context)


async def _rest_of(coroutine: Coroutine[Any, Any, T], awaited: Any) -> T:
    """The rest of a coroutine that waits for `awaited` already."""
    return await _resumed(coroutine, awaited)  # a task takes no generator since Python 3.12


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:  # the collector of garbage may have closed the coroutine first
            coroutine.close()
            raise
        except BaseException as e:  # noqa: BLE001 - thrown by the task, to the coroutine
            go_on = partial(coroutine.throw, e)
        else:
            go_on = partial(coroutine.send, sent)
        try:
            awaited = go_on()
        except StopIteration as e:
            return e.value  # type: ignore[no-any-return]
