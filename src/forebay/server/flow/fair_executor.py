"""An executor that is fair to clients: their jobs share the threads of a pool, and clients take turns.

The jobs of one client start in order. A job waits for at most one job of each other client. `submit` may be called in
any thread; the jobs run in the threads of the pool, where they may block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextvars import Context, ContextVar, copy_context
from typing import Any

from forebay.base import threads
from forebay.base.thread_rules import any_thread
from forebay.base.threads import Executor, Future
from forebay.server.flow.request_limits import T

_CLIENT: ContextVar[Hashable] = ContextVar("client", default=None)
"""The client on whose behalf the running task works; None for the server."""

_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


def context_of(client: Hashable) -> Context:
    """Return the context of tasks that work for `client`."""
    context = copy_context()
    context.run(_CLIENT.set, client)
    return context


@any_thread
class FairExecutor:
    """Jobs of many clients for the threads of `executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threads.lock()
        self._jobs: dict[Hashable, deque[_Job]] = {}
        self._clients: deque[Hashable] = deque()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Return the future of a job, which is queued for the client of the running task. It can be cancelled until the
        job starts."""
        future: Future[T] = threads.future()
        client = _CLIENT.get()
        with self._lock:
            jobs = self._jobs.get(client)
            if jobs is None:
                jobs = self._jobs[client] = deque()
                self._clients.append(client)
            jobs.append((future, function, arguments))
        self._executor.submit(self._do_next)
        return future

    def __len__(self) -> int:
        """Return how many jobs have not started."""
        with self._lock:
            return sum(map(len, self._jobs.values()))

    def _do_next(self) -> None:
        with self._lock:
            client = self._clients.popleft()
            jobs = self._jobs[client]
            future, function, arguments = jobs.popleft()
            if jobs:
                self._clients.append(client)
            else:
                del self._jobs[client]
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function(*arguments)
        except BaseException as e:  # noqa: BLE001 - the waiter gets it, as from any executor
            future.set_exception(e)
        else:
            future.set_result(result)
