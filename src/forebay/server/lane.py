"""A lane: the writes of one bucket, one group at a time, on a shared pool of threads.

Whatever queues up while a group is being written becomes the next group. Under load groups grow, and the cost of a
sync is shared (group commit); without load each write is a group of its own and waits for nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from forebay.base import threads
from forebay.base.threads import Executor, Future

Item = TypeVar("Item")
Result = TypeVar("Result")

GROUP_ITEMS_MAX = 64
"""Most writes of one group: bounds the memory and the time that one group takes."""


class Lane(Generic[Item, Result]):
    """Runs work on groups of submitted items, in order, never two groups at once.

    A lane does not know its work while it is idle: an owner whose method that is would be in a cycle with it, and
    would keep what it holds (of a bucket hundreds of kilobytes) from its end until the next garbage collection.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threads.lock()
        self._queue: deque[tuple[Item, Future[Result]]] = deque()
        self._running = False

    def submit(self, item: Item, work: Callable[[Sequence[Item]], Sequence[Result]]) -> Future[Result]:
        """Queue `item`; the future gets its result. It cannot be cancelled: what is queued will be written.

        `work`, the same for all items of a lane, returns one result for each item of a group. If it raises, every item
        of the group fails with that error.
        """
        future: Future[Result] = threads.future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._queue.append((item, future))
            if self._running:
                return future
            self._running = True
        self._executor.submit(self._drain, work)
        return future

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or being written."""
        with self._lock:
            return not self._running

    def _drain(self, work: Callable[[Sequence[Item]], Sequence[Result]]) -> None:
        while True:
            with self._lock:
                group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_ITEMS_MAX))]
                if not group:
                    self._running = False
                    return
            _run(work, group)


def _run(work: Callable[[Sequence[Any]], Sequence[Any]], group: list[tuple[Any, Future[Any]]]) -> None:
    try:
        results = work([item for item, _ in group])
    except BaseException as e:  # noqa: BLE001 - handed to whoever waits, as an executor does
        for _, future in group:
            future.set_exception(e)
        return
    for (_, future), result in zip(group, results, strict=True):
        future.set_result(result)
