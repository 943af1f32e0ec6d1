"""Kept values: how many, how large, by several threads, and in a forked child."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.lake.kept import Kept


def test_the_least_recently_used_value_goes_first() -> None:
    kept: Kept[str, int] = Kept(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert (len(kept), kept.get("a")) == (2, 1)
    kept.put("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c"), len(kept)) == (1, None, 3, 2)


def test_values_are_no_larger_together_than_the_bound() -> None:
    kept: Kept[str, str] = Kept(size=10)
    kept.put("a", "four", 4)
    kept.put("b", "five", 5)
    kept.put("c", "six", 6)
    assert (kept.get("a"), kept.get("b"), kept.get("c"), len(kept)) == (None, None, "six", 1)
    kept.put("d", "too large", 11)
    assert (kept.get("c"), kept.get("d"), len(kept)) == (None, None, 0)
    kept.put("e", "all of it", 10)
    assert kept.get("e") == "all of it", "what went counts no longer"


def test_a_value_that_is_replaced_or_taken_out_counts_no_longer() -> None:
    kept: Kept[str, str] = Kept(size=10)
    kept.put("a", "large", 9)
    kept.put("a", "small", 1)
    assert (kept.get("a"), len(kept)) == ("small", 1)
    kept.put("b", "other", 9)
    assert (kept.pop("b"), kept.pop("b"), kept.pop("c")) == ("other", None, None)
    kept.put("c", "again", 9)
    assert (kept.get("a"), kept.get("c"), len(kept)) == ("small", "again", 2)


def test_several_threads_keep_within_the_bound() -> None:
    kept: Kept[int, int] = Kept(50, size=200)

    def work(start: int) -> int:
        for i in range(2000):
            key = (start * 7 + i) % 90
            if (found := kept.get(key)) is not None:
                assert found == key
            kept.put(key, key, key % 9 + 1)
            if i % 17 == 0:
                kept.pop(key)
        return len(kept)

    with ThreadPoolExecutor(4) as pool:
        assert all(count <= 50 for count in pool.map(work, range(4)))
    left = [key for key in range(90) if kept.pop(key) is not None]
    assert sum(key % 9 + 1 for key in left) <= 200
    assert (len(kept), kept._size) == (0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_with_none_even_if_a_thread_holds_the_lock() -> None:
    kept: Kept[str, int] = Kept(2)
    kept.put("a", 1)
    with kept._lock:
        child = os.fork()
        if child == 0:
            is_empty = kept.get("a") is None
            kept.put("b", 2)
            os._exit(0 if is_empty and len(kept) == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kept.get("a") == 1
