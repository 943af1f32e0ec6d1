"""A lane: the writes of one bucket, one group at a time, on a shared pool of threads.

Writes that queue up while a group is being written form the next group. Under load groups grow, and the cost of a sync
is shared (group commit); without load each write is its own group and never waits.

Lanes take turns: a thread writes one group of a lane, then one of another waiting lane, so buckets with very much to
write cannot monopolise the threads. Lanes with little to write go first, but not always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from forebay.base import threads
from forebay.base.threads import Executor, Future

Item = TypeVar("Item")
Result = TypeVar("Result")

GROUP_ITEMS_MAX = 64
GROUP_BYTES_MAX = 2 << 20
"""Maximum number of writes in one group, and their total size, not counting the last one: bounds the memory and time of
one group."""

SHORT_BYTES = 64 << 10
"""A lane with at most this much to write goes before those with more."""

SHORT_IN_A_ROW = 8
"""After this many short ones it is the turn of a waiting lane with more to write."""


class LaneTurns:
    """Chooses the lane whose group a thread of the pool writes next."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threads.lock()
        self._short: deque[Callable[[], None]] = deque()
        self._long: deque[Callable[[], None]] = deque()
        self._short_in_a_row = 0

    def join(self, write: Callable[[], None], size: int) -> None:
        """Call `write`, which raises nothing, in a thread when its turn comes; `size` bytes wait to be written."""
        self.rejoin(write, size)
        self._executor.submit(self._work)

    def rejoin(self, write: Callable[[], None], size: int) -> None:
        """As `join`, from inside a `write`: its thread continues with the next waiting lane."""
        with self._lock:
            (self._short if size <= SHORT_BYTES else self._long).append(write)

    def _work(self) -> None:
        while (write := self._next()) is not None:
            write()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._short and not (self._long and self._short_in_a_row >= SHORT_IN_A_ROW):
                self._short_in_a_row += 1
                return self._short.popleft()
            self._short_in_a_row = 0
            return self._long.popleft() if self._long else None


class Lane(Generic[Item, Result]):
    """Runs work on groups of submitted items, in order, never two groups at once.

    A lane does not hold a reference to its work while it is idle: it would form a cycle with an owner whose method that
    is, and keep the owner's memory (hundreds of kilobytes for a bucket) until the next garbage collection.
    """

    def __init__(self, turns: LaneTurns) -> None:
        self._turns = turns
        self._lock = threads.lock()
        self._queue: deque[tuple[Item, Future[Result], int]] = deque()
        self._queued_bytes = 0
        self._running = False

    def submit(self, item: Item, work: Callable[[Sequence[Item]], Sequence[Result]], size: int) -> Future[Result]:
        """Queue `item` of `size` bytes; the future gets its result. It cannot be cancelled: what is queued will be
        written.

        `work`, the same for all items of a lane, returns one result for each item of a group. If it raises, every item
        of the group fails with that error.
        """
        future: Future[Result] = threads.future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._queue.append((item, future, size))
            self._queued_bytes += size
            if self._running:
                return future
            self._running = True
        self._turns.join(partial(self._write_group, work), size)
        return future

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or being written."""
        with self._lock:
            return not self._running

    def _write_group(self, work: Callable[[Sequence[Item]], Sequence[Result]]) -> None:
        with self._lock:
            group = self._take_group()
        _run(work, group)
        del group
        with self._lock:
            if not self._queue:
                self._running = False
                return
            left = self._queued_bytes
        self._turns.rejoin(partial(self._write_group, work), left)

    def _take_group(self) -> list[tuple[Item, Future[Result]]]:
        group: list[tuple[Item, Future[Result]]] = []
        group_bytes = 0
        while self._queue and len(group) < GROUP_ITEMS_MAX and group_bytes < GROUP_BYTES_MAX:
            item, future, size = self._queue.popleft()
            group.append((item, future))
            group_bytes += size
        self._queued_bytes -= group_bytes
        return group


def _run(work: Callable[[Sequence[Any]], Sequence[Any]], group: list[tuple[Any, Future[Any]]]) -> None:
    try:
        results = work([item for item, _ in group])
    except BaseException as e:  # noqa: BLE001 - handed to whoever waits, as an executor does
        for _, future in group:
            future.set_exception(e)
        return
    for (_, future), result in zip(group, results, strict=True):
        future.set_result(result)


# The gate through which all writes of one primary-key table go, so that all its buckets can be seen at one moment.
#
# A group of writes of one bucket passes the gate as a whole, from its changelog to its acknowledgement
# (`BucketReplica.put`). To see the buckets at one moment, a caller closes the gate: groups inside finish, new ones
# wait, and the visible state is one between two groups. So, of any two groups, the state never holds one that began
# after another had ended without holding that other one, whichever buckets they belong to.
#
# Taking snapshots of buckets costs microseconds each; the gate is closed that long, and while the groups inside
# finish.


class WriteGate:
    """Many writers pass at a time, or one holder keeps it closed. A closer goes before later writers."""

    def __init__(self) -> None:
        self._changed = threads.condition(threads.lock())
        self._inside = 0
        self._is_closed = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Be inside; waits while the gate is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Wait until no writer is inside, and keep all writers out of the gate during the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._is_closed = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()
