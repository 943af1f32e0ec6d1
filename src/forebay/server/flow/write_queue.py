"""Write queues: the writes of a bucket, in groups, on a pool of threads that all buckets share.

Nouns: a `WriteQueue` holds the writes of one bucket that wait. A *group* is the writes that are written together. The
`WriteScheduler` lets the queues of all buckets take turns on the threads of the pool.

Group commit: writes that arrive while a group is being written form the next group. Under load, groups grow and share
the cost of a sync. Without load, each write is a group and never waits. A thread writes one group of a queue, then one
of another waiting queue, so buckets with much to write cannot monopolize the threads. Queues with little to write go
first, but after some of these it is the turn of a queue with more.

Threads: `submit` and `run_now` may be called in any thread. A group is written by a thread of the pool, except
for `run_now`, which writes in the caller's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import check
from forebay.base.thread_rules import any_thread
from forebay.base.threads import Executor, Future, Lock
from forebay.server.counters import ServerCounters

T = TypeVar("T")
Result_contra = TypeVar("Result_contra", contravariant=True)


class Receiver(Protocol[Result_contra]):
    """Receives the outcome of writes that were queued together, in the thread that has written them."""

    def queued(self) -> None:
        """Prepare for the outcome; called in the caller's thread before the writes are queued."""
        ...

    def set_results(self, results: Sequence[Result_contra]) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


Item = TypeVar("Item")
Result = TypeVar("Result")


@any_thread
class FutureReceiver(Generic[Result]):
    """Receives the result of one write as a future. It cannot be cancelled, because queued writes are written."""

    __slots__ = ("future", "set_exception")

    def __init__(self) -> None:
        self.future: Future[Result] = threads.future()
        self.set_exception = self.future.set_exception

    def queued(self) -> None:
        self.future.set_running_or_notify_cancel()

    def set_results(self, results: Sequence[Result]) -> None:
        (result,) = results
        self.future.set_result(result)


class _Entry(NamedTuple, Generic[Item, Result]):
    """Items that were queued together, the receiver of their results, and their size in bytes."""

    items: Sequence[Item]
    receiver: Receiver[Result]
    size: int


GROUP_ITEMS_MAX = 64
GROUP_BYTES_MAX = 2 << 20
"""Maximum number of writes in one group, and their total size in bytes. They bound the memory and time of one group.
The last entry of a group may exceed them, because writes that were queued together are written together."""

NOW_BYTES_MAX = 64 << 10
QUICK_SYNC_SECONDS = 250e-6
QUICK_SYNCS_MIN = 32
"""The event loop's thread writes groups of up to `NOW_BYTES_MAX` bytes once `QUICK_SYNCS_MIN` syncs took at most
`QUICK_SYNC_SECONDS`, as on a RAM disk, or on a disk with a protected cache. A hop to another thread takes as long.

A slower sync halves the count."""

LONE_SYNC_SECONDS = 500e-6
"""The same limit for a client that is alone on the server. No other client waits for the loop then, and a hop to
another thread and back costs as much CPU time as the write. The limit excludes disks behind a network. Their syncs take
longer and hang more often, and a sync that hangs blocks the event loop."""

LONG_SECONDS = 5e-3
"""A slower sync resets the count to zero; so does a group that takes longer in the event loop's thread."""

SHORT_BYTES = 64 << 10
"""A queue with at most this many bytes to write goes before queues with more."""

SHORT_IN_A_ROW = 8
"""After this many turns of short queues in a row, a waiting queue with more to write has its turn."""


LINGER_SECONDS = 0.2
"""How long an idle thread waits for more to write before it returns to its pool. Waking the worker thread is cheaper
than a round trip through the executor."""


def _counted(syncs: int, seconds: float, seconds_max: float) -> int:
    """Return the count of quick syncs after one more sync, which took `seconds`."""
    if seconds <= seconds_max:
        return min(syncs + 1, 2 * QUICK_SYNCS_MIN)
    # A sync that is a little too slow does not reset the count: on any machine another process has the core at times.
    return syncs // 2 if seconds <= LONG_SECONDS else 0


@any_thread
class WriteScheduler:
    """Chooses the queue whose group a thread of the pool writes next. All methods may be called in any thread."""

    def __init__(self, executor: Executor, clock: Clock = SYSTEM_CLOCK, counters: ServerCounters | None = None) -> None:
        self._executor = executor
        self._clock = clock
        self._counters = counters or ServerCounters()
        self._quick_syncs = self._lone_syncs = 0
        self._lock = threads.lock()
        self._short: deque[Callable[[], None]] = deque()
        self._long: deque[Callable[[], None]] = deque()
        self._short_in_a_row = 0
        self._jobs = 0
        """Jobs that the pool has not started."""
        self._lingering: list[Lock] = []
        """The locks on which idle threads wait."""
        self._is_closed = False

    def may_write_now(self, *, is_alone: bool = False) -> bool:
        """Return whether `write_now` may write a group; `is_alone`: its client is the only one that sends requests."""
        return self._quick_syncs >= QUICK_SYNCS_MIN or (is_alone and self._lone_syncs >= QUICK_SYNCS_MIN)

    def synced(self, seconds: float) -> None:
        """Record the duration of a sync that a group of writes has waited for."""
        with self._lock:
            self._counters.syncs.observe(seconds)
        self._quick_syncs = _counted(self._quick_syncs, seconds, QUICK_SYNC_SECONDS)
        self._lone_syncs = _counted(self._lone_syncs, seconds, LONE_SYNC_SECONDS)

    def write_now(self, write: Callable[[], T]) -> T:
        """Return what `write` returns, which writes a group in the event loop's thread. All connections wait for it."""
        began = self._clock.monotonic()
        try:
            return write()
        finally:
            if self._clock.monotonic() - began > LONG_SECONDS:
                self._quick_syncs = self._lone_syncs = 0

    def join(self, write: Callable[[], None], size: int) -> None:
        """Call `write`, which raises nothing, in a thread of the pool in turn; `size` bytes wait to be written."""
        wakes = None
        with self._lock:
            self._append(write, size)
            if self._lingering:
                wakes = self._lingering.pop()
            else:
                self._jobs += 1
        if wakes is None:
            self._executor.submit(self._work)
        else:
            wakes.release()

    def rejoin(self, write: Callable[[], None], size: int) -> None:
        """Queue a `write` again from within it: its thread continues with the next waiting queue."""
        with self._lock:
            self._append(write, size)

    def wrote(self, writes: int) -> None:
        """Count a group of writes."""
        with self._lock:
            self._counters.groups += 1
            self._counters.group_writes += writes

    def __len__(self) -> int:
        """Return how many queues wait for a thread."""
        return len(self._short) + len(self._long)

    def close(self) -> None:
        """Release the idle threads that wait for more to write."""
        with self._lock:
            self._is_closed = True
            lingering, self._lingering = self._lingering, []
        for wakes in lingering:
            wakes.release()

    def _append(self, write: Callable[[], None], size: int) -> None:
        (self._short if size <= SHORT_BYTES else self._long).append(write)

    def _work(self) -> None:
        woken = threads.lock()
        woken.acquire()
        with self._lock:
            self._jobs -= 1
        while True:
            with self._lock:
                write = self._next()
                if write is None:
                    if self._jobs or self._is_closed:
                        return
                    self._lingering.append(woken)
            if write is not None:
                write()
            elif not woken.acquire(timeout=LINGER_SECONDS):
                with self._lock:
                    if woken in self._lingering:
                        self._lingering.remove(woken)
                        return
                woken.acquire()  # `join` has just taken it from the list, and releases it

    def _next(self) -> Callable[[], None] | None:
        if self._short and not (self._long and self._short_in_a_row >= SHORT_IN_A_ROW):
            self._short_in_a_row += 1
            return self._short.popleft()
        self._short_in_a_row = 0
        return self._long.popleft() if self._long else None


@any_thread
class WriteQueue(Generic[Item, Result]):
    """Runs work on groups of submitted items, in order, one group at a time.

    An idle queue holds no reference to its work, which is a method of the queue's owner. The cycle would keep the
    owner's memory (hundreds of kilobytes for a bucket) until the next garbage collection.
    """

    def __init__(self, scheduler: WriteScheduler) -> None:
        self._scheduler = scheduler
        self._lock = threads.lock()
        self._changed = threads.condition(self._lock)
        self._queue: deque[_Entry[Item, Result]] = deque()
        self._queued_bytes = 0
        self._running = False
        self._is_held = False

    def submit(
        self,
        items: Sequence[Item],
        receiver: Receiver[Result],
        work: Callable[[Sequence[Item]], Sequence[Result]],
        size: int,
    ) -> None:
        """Queue items of `size` bytes, which are written together; `receiver` gets their results.

        `work`, the same for all items of a queue, returns one result for each item of a group. If it raises, every
        item of the group fails with that error.
        """
        with self._lock:
            self._queue.append(_Entry(items, receiver, size))
            self._queued_bytes += size
            if self._running or self._is_held:
                return
            self._running = True
            size = self._queued_bytes
        self._scheduler.join(partial(self._write_group, work), size)

    def run_now(
        self, items: Sequence[Item], work: Callable[[Sequence[Item]], Sequence[Result]]
    ) -> Sequence[Result] | None:
        """Run `work` on a group in this thread; return its results, or None without effect if the queue is busy.

        Raises what `work` raises.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._running or self._is_held or self._queue:
                return None
            self._running = True
        finally:
            self._lock.release()
        try:
            return work(items)
        finally:
            left = self._continue_or_rest()
            if left is not None:
                self._scheduler.join(partial(self._write_group, work), left)

    def _continue_or_rest(self) -> int | None:
        """Return the bytes that wait for the next group, or None if none is to be written; then the queue is idle."""
        with self._lock:
            if self._queue and not self._is_held:
                return self._queued_bytes
            self._running = False
            if self._is_held:
                self._changed.notify_all()
            return None

    @contextmanager
    def held(self, work: Callable[[Sequence[Item]], Sequence[Result]]) -> Iterator[None]:
        """Hold all work during the block, and wait first until running work has ended. Submitted items wait
        without occupying a thread. Holders take turns."""
        with self._lock:
            self._is_held = True
            self._changed.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False
                left = self._queued_bytes
                self._running = starts = bool(self._queue)
            if starts:
                self._scheduler.join(partial(self._write_group, work), left)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is queued or being written."""
        with self._lock:
            return not (self._running or self._queue)

    def _write_group(self, work: Callable[[Sequence[Item]], Sequence[Result]]) -> None:
        with self._lock:
            group = self._take_group()
        _run(work, group)
        del group
        left = self._continue_or_rest()
        if left is not None:
            self._scheduler.rejoin(partial(self._write_group, work), left)

    def _take_group(self) -> list[_Entry[Item, Result]]:
        group: list[_Entry[Item, Result]] = []
        count = size = 0
        while self._queue and count < GROUP_ITEMS_MAX and size < GROUP_BYTES_MAX:
            entry = self._queue.popleft()
            group.append(entry)
            count += len(entry.items)
            size += entry.size
        self._queued_bytes -= size
        return group


def _run(work: Callable[[Sequence[Any]], Sequence[Any]], group: Sequence[_Entry[Any, Any]]) -> None:
    try:
        results = work(group[0].items if len(group) == 1 else [item for entry in group for item in entry.items])
    except BaseException as e:  # noqa: BLE001 - the waiters get it, as from any executor
        for entry in group:
            entry.receiver.set_exception(e)
        return
    check(len(results) == sum(len(entry.items) for entry in group), "a write of a group has no result")
    first = 0
    for entry in group:
        last = first + len(entry.items)
        entry.receiver.set_results(results[first:last])
        first = last
