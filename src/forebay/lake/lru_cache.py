"""A cache that drops the least recently used values: opened lakes, tables, manifests and plans."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from typing import Any, Generic, TypeVar

from forebay.base import threads

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key, bounded in number and in total size; the least recently used values are dropped first.

    Thread-safe. A forked child starts with an empty cache: the names that an opened table gives to new files, and the
    connections of a catalog, belong to one process.
    """

    def __init__(self, count: int | None = None, size: int | None = None) -> None:
        """`count` bounds the number of values, `size` the sum of the sizes given to `put`."""
        self._count, self._size_max = count, size
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        self._values: OrderedDict[K, tuple[int, V]] = OrderedDict()
        self._size = 0
        self._lock = threads.lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The cached value of `key`; None if there is none."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[1]

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Cache `value`, unless it alone is too large, and drop old values beyond the bounds."""
        with self._lock:
            replaced = self._values.pop(key, None)
            if replaced is not None:
                self._size -= replaced[0]
            self._values[key] = (size, value)
            self._size += size
            while self._values and self._has_too_much():
                self._size -= self._values.popitem(last=False)[1][0]

    def _has_too_much(self) -> bool:
        return (self._count is not None and len(self._values) > self._count) or (
            self._size_max is not None and self._size > self._size_max
        )

    def pop(self, key: K) -> V | None:
        """Remove and return the value of `key`; None if there is none."""
        with self._lock:
            entry = self._values.pop(key, None)
            if entry is None:
                return None
            self._size -= entry[0]
            return entry[1]


_all: weakref.WeakSet[LruCache[Any, Any]] = weakref.WeakSet()


def _forget_in_child() -> None:
    for cache in list(_all):
        cache._forget()


os.register_at_fork(after_in_child=_forget_in_child)
