"""Short pauses of the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.garbage import GcFreezer


class Node:
    """A cycle of one."""

    def __init__(self):
        self.me = self


def frozen_cycle() -> weakref.ref[Node]:
    """A cycle that survived a full round, and to which nothing refers any more."""
    node = Node()
    gc.collect()
    return weakref.ref(node)


def expect_found_in(clock, seconds, gone):
    """The cycle is found by a round after so many seconds, and by none before."""
    gc.collect()
    assert gone() is not None
    clock.advance(seconds - 1)
    gc.collect()
    assert gone() is not None
    clock.advance(1)
    gc.collect()
    assert gone() is None


@pytest.fixture
def clock():
    clock = ManualClock()
    freezer = GcFreezer(clock)
    gc.disable()  # collections come when a test asks for them
    freezer.install()
    try:
        yield clock
    finally:
        freezer.remove()
        gc.enable()
    assert gc.get_freeze_count() == 0
    assert not any(getattr(each, "__self__", None) is freezer for each in gc.callbacks)


def test_a_full_round_does_not_look_again_at_what_survived_one(clock):
    before = gc.get_freeze_count()
    kept = [Node() for _ in range(1000)]
    gc.collect(1)
    assert gc.get_freeze_count() <= before
    gc.collect()
    assert gc.get_freeze_count() >= before + len(kept)


def test_cycles_that_were_never_frozen_are_found(clock):
    gone = weakref.ref(Node())
    gc.collect()
    assert gone() is None


def test_cycles_that_were_frozen_are_found_by_the_next_whole_round(clock):
    expect_found_in(clock, 600, frozen_cycle())


def test_the_time_counts_from_the_last_whole_round(clock):
    clock.advance(600)
    gc.collect()
    expect_found_in(clock, 600, frozen_cycle())


def test_a_whole_round_comes_earlier_where_much_was_frozen_since(clock):
    gone = frozen_cycle()
    many = [Node() for _ in range(gc.get_freeze_count() + 250_000)]
    gc.collect()  # freezes these
    assert gone() is not None
    gc.collect()
    assert gone() is None
    assert len(many)
