"""Objects of a journal that are read ahead, several at once, for whoever is far behind its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from forebay.base import threads
from forebay.store.journal import JournalObject
from forebay.store.journal_format import Entry
from forebay.store.objects import ObjectStore

_AT_ONCE = 8
"""Objects that are read at a time, with their payloads in memory."""


class ObjectsAhead:
    """The objects `first` to `last`, in this order. One thread."""

    def __init__(self, store: ObjectStore, first: int, last: int, wants: Callable[[int, Entry], bool]) -> None:
        """`wants`: whether the payload of an entry of an object with this number is read, too; any thread."""
        self._store, self._wants = store, wants
        self._numbers = iter(range(first, last + 1))
        self._pool = threads.executor(_AT_ONCE, "forebay-journal-ahead")
        self._ahead: deque[tuple[int, threads.Future[JournalObject]]] = deque()
        self._taken, self._last = first - 1, last

    @property
    def has_more(self) -> bool:
        """Whether there are objects that were not taken."""
        return bool(self._ahead) or self._taken < self._last

    def __iter__(self) -> Iterator[JournalObject]:
        while (found := self._next()) is not None:
            yield found[1].result()

    def take(self, number: int) -> JournalObject:
        """The object with this number; those before it that were not taken are dropped.

        Raises what reading it has raised; then it is read again by the next call.
        """
        while number <= self._last and (found := self._next()) is not None:
            if found[0] == number:
                return found[1].result()
            if found[0] > number:
                self._ahead.appendleft(found)
                break
        return JournalObject(self._store, number)

    def _next(self) -> tuple[int, threads.Future[JournalObject]] | None:
        while len(self._ahead) < _AT_ONCE and (number := next(self._numbers, None)) is not None:
            self._ahead.append((number, self._pool.submit(self._read, number)))
        if not self._ahead:
            return None
        found = self._ahead.popleft()
        self._taken = found[0]
        return found

    def _read(self, number: int) -> JournalObject:
        found = JournalObject(self._store, number)
        found.load(lambda entry: self._wants(number, entry))
        return found

    def close(self) -> None:
        """Wait for what is being read, and end the threads."""
        self._ahead.clear()
        self._pool.shutdown(wait=True)
