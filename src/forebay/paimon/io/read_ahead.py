"""Read-ahead: threads fetch the rows of several sources while earlier rows are being processed.

A file in an object store costs several round trips before its first row. So several files are read at a time, each by
a thread, which pauses when enough of its rows wait. Local files have no such latency and are read without threads.

The memory is bounded: see `ROWS_BYTES_MAX` and `UNDER_WAY_BYTES_MAX`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

ROWS_BYTES_MAX = 16 << 20
"""A thread pauses while this many bytes of its rows have not been taken."""

SOURCES_MAX = 8
"""Sources that are read at a time."""

UNDER_WAY_BYTES_MAX = 96 << 20
"""The total size of the sources that are read at a time; two are read at a time whatever their size."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that can be read. `size` is the approximate number of bytes of memory that reading them takes."""

    size: int
    read: Callable[[], Iterable[pa.RecordBatch]]


class ReadAhead(Iterator[pa.RecordBatch]):
    """The rows of one source, which a thread of its own reads from now on. Close it, if it is not read to its end."""

    def __init__(self, read: Callable[[], Iterable[pa.RecordBatch]], rows_bytes_max: int = ROWS_BYTES_MAX) -> None:
        self._read = read
        self._rows_bytes_max = rows_bytes_max
        self._waiting: deque[pa.RecordBatch] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._is_at_end = self._is_closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="forebay-ahead", daemon=True)
        self._thread.start()

    def __next__(self) -> pa.RecordBatch:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_at_end)
            if self._waiting:
                batch = self._waiting.popleft()
                self._waiting_bytes -= batch.nbytes
                self._changed.notify_all()
                return batch
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Let the thread close the source, and wait for it: a read that is under way comes to its end first."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            rows = self._read()
            with ExitStack() as closing:
                close = getattr(rows, "close", None)
                if close is not None:
                    closing.callback(close)
                for batch in rows:
                    if not self._put(batch):
                        break
        except BaseException as e:  # noqa: BLE001 - the reader raises it
            error = e
        with self._changed:
            self._error, self._is_at_end = error, True
            self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        with self._changed:
            self._waiting.append(batch)
            self._waiting_bytes += batch.nbytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or self._waiting_bytes < self._rows_bytes_max)
            return not self._is_closed


def read_ahead(sources: Iterable[Source]) -> Generator[pa.RecordBatch]:
    """The rows of the sources, one after the other; some of the next ones are read meanwhile."""
    remaining = deque(sources)
    under_way: deque[tuple[int, ReadAhead]] = deque()
    size = 0
    try:
        while remaining or under_way:
            while remaining and len(under_way) < SOURCES_MAX:
                if len(under_way) >= 2 and size + remaining[0].size > UNDER_WAY_BYTES_MAX:
                    break
                source = remaining.popleft()
                size += source.size
                under_way.append((source.size, ReadAhead(source.read)))
            yield from under_way[0][1]
            size -= under_way.popleft()[0]
    finally:
        with ExitStack() as closing:
            for _, each in under_way:
                closing.callback(each.close)


def one_after_the_other(sources: Sequence[Source]) -> Generator[pa.RecordBatch]:
    """The rows of the sources, read by this thread."""
    for source in sources:
        rows = source.read()
        with ExitStack() as closing:
            close = getattr(rows, "close", None)
            if close is not None:
                closing.callback(close)
            yield from rows
