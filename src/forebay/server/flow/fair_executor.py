"""Jobs of many clients on one pool of I/O threads.

Each client's jobs start in order, and a client waits for one job of each other client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextvars import Context, ContextVar, copy_context
from typing import Any

from forebay.base import threads
from forebay.base.threads import Executor, Future
from forebay.server.flow.request_limits import T

_CLIENT: ContextVar[Hashable] = ContextVar("client", default=None)
"""The client that the running task works for; None for the server itself."""

_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


def context_of(client: Hashable) -> Context:
    """Return the context of tasks that work for `client`."""
    context = copy_context()
    context.run(_CLIENT.set, client)
    return context


class Rotation:
    """Jobs for the threads of `executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threads.lock()
        self._jobs: dict[Hashable, deque[_Job]] = {}
        self._clients: deque[Hashable] = deque()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Queue a job for the client of the running task; return its future. It can be cancelled until it starts."""
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
        """How many jobs have not begun."""
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
        except BaseException as e:  # noqa: BLE001 - handed to whoever waits, as an executor does
            future.set_exception(e)
        else:
            future.set_result(result)
