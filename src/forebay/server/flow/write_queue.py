"""Writes of buckets in groups, on a pool of threads that all buckets share.

Writes that queue up in a lane while a group is being written form the next group. Under load groups grow, and the cost
of a sync is shared (group commit). Without load each write is its own group and never waits. Lanes take turns on the
threads: a thread writes one group of a lane, then one of another waiting lane, so buckets with very much to write
cannot monopolize them. Lanes with little to write go first, but not always.
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
from forebay.base.threads import Executor, Future, Lock
from forebay.server.counters import ServerCounters

T = TypeVar("T")
Result_contra = TypeVar("Result_contra", contravariant=True)


class Receiver(Protocol[Result_contra]):
    """What gets the outcome of writes that were queued together, in the thread that has written them."""

    def set_results(self, results: Sequence[Result_contra]) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


Item = TypeVar("Item")
Result = TypeVar("Result")


class _Awaited(Generic[Result]):
    """Receives the result of one write for whoever holds the future."""

    __slots__ = ("future", "set_exception")

    def __init__(self, future: Future[Result]) -> None:
        self.future = future
        self.set_exception = future.set_exception

    def set_results(self, results: Sequence[Result]) -> None:
        (result,) = results
        self.future.set_result(result)


class _Entry(NamedTuple, Generic[Item, Result]):
    """Items that were queued together, what gets their results, and their size in bytes."""

    items: Sequence[Item]
    receiver: Receiver[Result]
    size: int


GROUP_ITEMS_MAX = 64
GROUP_BYTES_MAX = 2 << 20
"""Maximum number of writes in one group, and their total size, not counting those that were queued together with the
last one: bounds the memory and time of one group."""

NOW_BYTES_MAX = 64 << 10
QUICK_SYNC_SECONDS = 250e-6
QUICK_SYNCS_MIN = 32
"""Groups of up to this many bytes are written in the event loop's thread once so many syncs took no longer than that:
on a RAM disk, or a disk that keeps in a power failure what it was given. A hop to another thread takes as long.

A slower sync takes half of those that count away."""

LONE_SYNC_SECONDS = 500e-6
"""The same for a client that is alone on the server: no other one waits for the loop meanwhile, and a hop to another
thread and back costs as much CPU time as the write itself. Disks behind a network take longer, and hang more easily: a
sync that hangs keeps the loop from all else."""

LONG_SECONDS = 5e-3
"""One that takes longer, or a group in the loop's thread that does, takes all."""

SHORT_BYTES = 64 << 10
"""A lane with at most this much to write goes before those with more."""

SHORT_IN_A_ROW = 8
"""After this many short ones it is the turn of a waiting lane with more to write."""


LINGER_SECONDS = 0.2
"""So long a thread with nothing to write waits for more before it goes back to its pool: to wake it is worth it, for a
pool takes many more steps to begin a job."""


def _counted(syncs: int, seconds: float, seconds_max: float) -> int:
    """How many syncs that were quick enough count after one more, which took `seconds`."""
    if seconds <= seconds_max:
        return min(syncs + 1, 2 * QUICK_SYNCS_MIN)
    return syncs // 2 if seconds <= LONG_SECONDS else 0  # once in a while another process had the core meanwhile


class LaneScheduler:
    """Chooses the lane whose group a thread of the pool writes next."""

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
        """Jobs that the pool has not begun."""
        self._lingering: list[Lock] = []
        """What each thread waits for that has nothing to write."""
        self._is_closed = False

    def may_write_now(self, *, is_alone: bool = False) -> bool:
        """Whether a group may be written by `write_now`; `is_alone`: its client is the only one that sends requests."""
        return self._quick_syncs >= QUICK_SYNCS_MIN or (is_alone and self._lone_syncs >= QUICK_SYNCS_MIN)

    def synced(self, seconds: float) -> None:
        """Note how long a sync took that a group of writes has waited for."""
        with self._lock:
            self._counters.syncs.observe(seconds)
        self._quick_syncs = _counted(self._quick_syncs, seconds, QUICK_SYNC_SECONDS)
        self._lone_syncs = _counted(self._lone_syncs, seconds, LONE_SYNC_SECONDS)

    def write_now(self, write: Callable[[], T]) -> T:
        """Write a group in the thread of the event loop, where all others wait for it meanwhile."""
        began = self._clock.monotonic()
        try:
            return write()
        finally:
            if self._clock.monotonic() - began > LONG_SECONDS:
                self._quick_syncs = self._lone_syncs = 0

    def join(self, write: Callable[[], None], size: int) -> None:
        """Call `write`, which raises nothing, in a thread when its turn comes; `size` bytes wait to be written."""
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
        """As `join`, from inside a `write`: its thread continues with the next waiting lane."""
        with self._lock:
            self._append(write, size)

    def wrote(self, writes: int) -> None:
        """Count a group of writes."""
        with self._lock:
            self._counters.groups += 1
            self._counters.group_writes += writes

    def __len__(self) -> int:
        """How many lanes wait for a thread."""
        return len(self._short) + len(self._long)

    def close(self) -> None:
        """Let the threads go that wait for more to write."""
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
                woken.acquire()  # by who has taken it from the list just now

    def _next(self) -> Callable[[], None] | None:
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

    def __init__(self, turns: LaneScheduler) -> None:
        self._turns = turns
        self._lock = threads.lock()
        self._changed = threads.condition(self._lock)
        self._queue: deque[_Entry[Item, Result]] = deque()
        self._queued_bytes = 0
        self._running = False
        self._is_held = False

    def submit(self, item: Item, work: Callable[[Sequence[Item]], Sequence[Result]], size: int) -> Future[Result]:
        """Queue `item` of `size` bytes; the future gets its result. It cannot be cancelled: what is queued will be
        written.

        `work`, the same for all items of a lane, returns one result for each item of a group. If it raises, every item
        of the group fails with that error.
        """
        future: Future[Result] = threads.future()
        future.set_running_or_notify_cancel()
        self.queue((item,), _Awaited(future), work, size)
        return future

    def queue(
        self,
        items: Sequence[Item],
        receiver: Receiver[Result],
        work: Callable[[Sequence[Item]], Sequence[Result]],
        size: int,
    ) -> None:
        """As `submit`, for several items, which are written together; `receiver` gets their results."""
        with self._lock:
            self._queue.append(_Entry(items, receiver, size))
            self._queued_bytes += size
            if self._running or self._is_held:
                return
            self._running = True
            size = self._queued_bytes
        self._turns.join(partial(self._write_group, work), size)

    def run_now(
        self, items: Sequence[Item], work: Callable[[Sequence[Item]], Sequence[Result]]
    ) -> Sequence[Result] | None:
        """Run `work` on a group in this thread; None, and nothing is done, unless the lane is idle.

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
            left = self._go_on_or_rest()
            if left is not None:
                self._turns.join(partial(self._write_group, work), left)

    def _go_on_or_rest(self) -> int | None:
        """After a group: the bytes that wait for the next one; None, and the lane rests, if it is not to be written."""
        with self._lock:
            if self._queue and not self._is_held:
                return self._queued_bytes
            self._running = False
            if self._is_held:
                self._changed.notify_all()
            return None

    @contextmanager
    def held(self, work: Callable[[Sequence[Item]], Sequence[Result]]) -> Iterator[None]:
        """Run no work during the block, and none that has begun before; items that are submitted wait, without a
        thread. One holder at a time."""
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
                self._turns.join(partial(self._write_group, work), left)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or being written."""
        with self._lock:
            return not (self._running or self._queue)

    def _write_group(self, work: Callable[[Sequence[Item]], Sequence[Result]]) -> None:
        with self._lock:
            group = self._take_group()
        _run(work, group)
        del group
        left = self._go_on_or_rest()
        if left is not None:
            self._turns.rejoin(partial(self._write_group, work), left)

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
    except BaseException as e:  # noqa: BLE001 - handed to whoever waits, as an executor does
        for entry in group:
            entry.receiver.set_exception(e)
        return
    check(len(results) == sum(len(entry.items) for entry in group), "a write of a group has no result")
    first = 0
    for entry in group:
        last = first + len(entry.items)
        entry.receiver.set_results(results[first:last])
        first = last
