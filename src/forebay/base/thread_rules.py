"""Markers that say in which threads code of a server may be called. A lint and, in tests, each call check them.

`loop_only`: the event loop's thread, where the code never blocks. `blocking`: any thread but the event loop's, because
the code may wait for a disk, a lock or another thread. `any_thread`: any thread, and the code holds a lock only
briefly.

A marker stands on a function or on a class, where it holds for the public methods that have no marker of their own.

In production a marker returns what it marks, so a call costs nothing. If `is_checking` was set before the marked
modules are imported, as `tests/conftest.py` does, marked code raises `WrongThread` in a thread where it may not be
called. `tests/house/test_thread_rules.py` refuses coroutines that call blocking code without an executor.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from forebay.base import threads

Marked = TypeVar("Marked", bound=Callable[..., Any])

is_checking = False
"""Whether marked code checks its thread; read when a marker is applied."""

POOLS = ("forebay-write", "forebay-io", "forebay-coordinator", "forebay-commit")
"""Names of the pools of a server begin with these, and names of their threads as well."""

_MARK = "_forebay_thread_rule"


class WrongThread(AssertionError):
    """Raised in tests when code is called in a thread where it may not be."""


def loop_only(marked: Marked) -> Marked:
    """Return `marked`, which belongs to the event loop's thread and never blocks."""
    return _marked(marked, "loop_only", _refuse_pools)


def blocking(marked: Marked) -> Marked:
    """Return `marked`, which may block and must not be called in the event loop's thread."""
    return _marked(marked, "blocking", _refuse_loop)


def any_thread(marked: Marked) -> Marked:
    """Return `marked`, which may be called in any thread."""
    return _marked(marked, "any_thread", None)


def _in_pool() -> bool:
    return threads.current_thread().name.startswith(POOLS)


def _refuse_pools(name: str) -> None:
    if _in_pool():
        raise WrongThread(f"{name} belongs to the event loop, and was called in {threads.current_thread().name}")


def _refuse_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not _in_pool():  # in a simulation, all threads share the thread of the loop
        raise WrongThread(f"{name} may block, and was called in the thread of an event loop")


def _marked(marked: Marked, rule: str, refuse: Callable[[str], None] | None) -> Marked:
    if not is_checking:
        return marked
    if not inspect.isclass(marked):
        checked: Marked = marked if refuse is None else _checked(marked, refuse)
        setattr(checked, _MARK, rule)
        return checked
    for name, member in list(vars(marked).items()):
        if inspect.isfunction(member) and not name.startswith("_") and not hasattr(member, _MARK):
            setattr(marked, name, _marked(member, rule, refuse))
    return marked


def _checked(function: Any, refuse: Callable[[str], None]) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return function  # the call only makes an object; its caller decides where that runs

    @functools.wraps(function)
    def check_and_call(*arguments: Any, **named: Any) -> Any:
        refuse(function.__qualname__)
        return function(*arguments, **named)

    return check_and_call
