"""Markers of threads: what they refuse in tests, and that they change nothing otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from forebay.base import thread_rules, threads
from forebay.base.thread_rules import WrongThread, any_thread, blocking, loop_only
from tests.patience import PATIENCE


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_rules, "is_checking", True)


def in_pool(call: Callable[[], Any]) -> Any:
    with threads.executor(1, "forebay-io") as pool:
        return pool.submit(call).result(PATIENCE)


def in_loop(call: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return call()

    return asyncio.run(run())


def test_marked_functions_are_refused_in_the_other_kind_of_thread(checking: None) -> None:
    at_loop, at_disk, anywhere = loop_only(lambda: 1), blocking(lambda: 2), any_thread(lambda: 3)
    assert (in_loop(at_loop), in_pool(at_disk), in_loop(anywhere), in_pool(anywhere)) == (1, 2, 3, 3)
    with pytest.raises(WrongThread, match="belongs to the event loop, and was called in forebay-io"):
        in_pool(at_loop)
    with pytest.raises(WrongThread, match="may block, and was called in the thread of an event loop"):
        in_loop(at_disk)
    assert (at_loop(), at_disk()) == (1, 2), "a thread of a test is neither"


def test_a_class_marks_its_public_methods_unless_they_have_markers(checking: None) -> None:
    @loop_only
    class Shared:
        def plain(self) -> int:
            return 1

        @blocking
        def slow(self) -> int:
            return 2

        @any_thread
        def free(self) -> int:
            return self._own()

        def _own(self) -> int:
            return 3

    shared = Shared()
    assert (in_loop(shared.plain), in_pool(shared.slow), in_pool(shared.free)) == (1, 2, 3)
    for run, method in ((in_pool, shared.plain), (in_loop, shared.slow)):
        with pytest.raises(WrongThread):
            run(method)


def test_without_checks_a_marker_returns_what_it_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_rules, "is_checking", False)

    class Shared:
        pass

    def function() -> None:
        pass

    for marker in (loop_only, blocking, any_thread):
        assert marker(Shared) is Shared
        assert marker(function) is function
