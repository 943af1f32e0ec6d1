"""Values that are kept for later, bounded in number and size: opened lakes, tables, manifests and plans."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from typing import Any, Generic, TypeVar

from forebay.base import threads

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values by key; the least recently used are dropped when there are too many, or they are too large together.

    Thread-safe. A forked child starts with none: the names that an opened table gives to new files, and the connections
    of a catalog, belong to one process.
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
        """The value kept under `key`, if any."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[1]

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Keep `value`, unless it alone is too large, and drop what there is no more room for."""
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
        """The value under `key`, which is no longer kept."""
        with self._lock:
            found = self._values.pop(key, None)
            if found is None:
                return None
            self._size -= found[0]
            return found[1]


_all: weakref.WeakSet[Kept[Any, Any]] = weakref.WeakSet()


def _forget_in_child() -> None:
    for kept in list(_all):
        kept._forget()


os.register_at_fork(after_in_child=_forget_in_child)
