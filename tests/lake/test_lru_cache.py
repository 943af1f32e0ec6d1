"""Least-recently-used caches: how many, how large, by several threads, and in a forked child."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.lake.lru_cache import LruCache


def test_the_least_recently_used_value_goes_first() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert (len(cache), cache.get("a")) == (2, 1)
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def test_values_are_no_larger_together_than_the_bound() -> None:
    cache: LruCache[str, str] = LruCache(size=10)
    cache.put("a", "four", 4)
    cache.put("b", "five", 5)
    cache.put("c", "six", 6)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (None, None, "six", 1)
    cache.put("d", "too large", 11)
    assert (cache.get("c"), cache.get("d"), len(cache)) == (None, None, 0)
    cache.put("e", "all of it", 10)
    assert cache.get("e") == "all of it", "what went counts no longer"


def test_a_value_that_is_replaced_or_taken_out_counts_no_longer() -> None:
    cache: LruCache[str, str] = LruCache(size=10)
    cache.put("a", "large", 9)
    cache.put("a", "small", 1)
    assert (cache.get("a"), len(cache)) == ("small", 1)
    cache.put("b", "other", 9)
    assert (cache.pop("b"), cache.pop("b"), cache.pop("c")) == ("other", None, None)
    cache.put("c", "again", 9)
    assert (cache.get("a"), cache.get("c"), len(cache)) == ("small", "again", 2)


def test_several_threads_keep_within_the_bound() -> None:
    cache: LruCache[int, int] = LruCache(50, size=200)

    def work(start: int) -> int:
        for i in range(2000):
            key = (start * 7 + i) % 90
            if (found := cache.get(key)) is not None:
                assert found == key
            cache.put(key, key, key % 9 + 1)
            if i % 17 == 0:
                cache.pop(key)
        return len(cache)

    with ThreadPoolExecutor(4) as pool:
        assert all(count <= 50 for count in pool.map(work, range(4)))
    left = [key for key in range(90) if cache.pop(key) is not None]
    assert sum(key % 9 + 1 for key in left) <= 200
    assert (len(cache), cache._size) == (0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_with_none_even_if_a_thread_holds_the_lock() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    with cache._lock:
        child = os.fork()
        if child == 0:
            is_empty = cache.get("a") is None
            cache.put("b", 2)
            os._exit(0 if is_empty and len(cache) == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get("a") == 1
