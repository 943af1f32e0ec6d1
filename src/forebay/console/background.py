"""Work that takes longer than a request: searches and compactions that a visitor has started in this console.

A task runs in a thread of the console, reports its progress, and can be cancelled where it reports it. What it found is
kept until newer tasks take its place; all of it ends with the console.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import Conflict, ForebayError, LimitExceeded, NotFound
from forebay.base.progress import OnProgress

_RUNNING_MAX = 2
_WAITING_MAX = 20
_TASKS_MAX = 50

WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"

Work = Callable[[OnProgress], dict[str, Any]]
"""The work of a task: it reports progress, and returns its result as JSON has it."""


@dataclass
class Task:
    """One task. `subject` says what it works on; tasks of the same kind and subject do not run at the same time."""

    task_id: str
    kind: str
    subject: Mapping[str, Any]
    asked_ms: int
    began_ms: int | None = None
    ended_ms: int | None = None
    state: str = WAITING
    done: int = 0
    total: int = 0
    result: dict[str, Any] | None = None
    error: str | None = None
    must_end: bool = field(default=False, repr=False)

    @property
    def is_over(self) -> bool:
        return self.state in (DONE, FAILED, CANCELLED)


class _Cancelled(Exception):
    """Raised inside of the work."""


class Tasks:
    """The tasks of a console, the newest last. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._threads = threads.executor(_RUNNING_MAX, "forebay-console-task")
        self._lock = threads.lock()
        self._tasks: dict[str, Task] = {}
        self._task_count = 0

    def start(self, kind: str, subject: Mapping[str, Any], work: Work) -> Task:
        """Start a task, or return the one that does the same already. Raises `LimitExceeded` if too many wait."""
        with self._lock:
            unfinished = [task for task in self._tasks.values() if not task.is_over]
            for task in unfinished:
                if (task.kind, task.subject) == (kind, subject):
                    return task
            if len(unfinished) >= _WAITING_MAX:
                raise LimitExceeded(
                    f"{_WAITING_MAX} tasks already wait in this console: try again when some have ended"
                )
            self._task_count += 1
            task = Task(str(self._task_count), kind, subject, self._clock.now_ms())
            self._tasks[task.task_id] = task
            for old in [each for each in self._tasks.values() if each.is_over][: max(len(self._tasks) - _TASKS_MAX, 0)]:
                del self._tasks[old.task_id]
        self._threads.submit(self._run, task, work)
        return task

    def _run(self, task: Task, work: Work) -> None:
        def progress(done: int, total: int) -> None:
            if task.must_end:
                raise _Cancelled
            task.done, task.total = done, total

        task.began_ms = self._clock.now_ms()
        task.state = RUNNING
        try:
            if task.must_end:
                raise _Cancelled
            task.result = work(progress)
            state = DONE
        except _Cancelled:
            state = CANCELLED
        except ForebayError as e:
            state, task.error = FAILED, e.message
        except Exception as e:  # noqa: BLE001 - shown to the visitor, as a request's would be
            state, task.error = FAILED, f"{type(e).__name__}: {e}"
        task.ended_ms = self._clock.now_ms()
        task.state = state

    def all(self) -> list[Task]:
        """All tasks, the newest first."""
        with self._lock:
            return list(reversed(self._tasks.values()))

    def latest(self, kind: str, subject: Mapping[str, Any]) -> Task | None:
        """The newest task of this kind and subject."""
        return next((task for task in self.all() if (task.kind, task.subject) == (kind, subject)), None)

    def cancel(self, task_id: str) -> Task:
        """Ask a task to end; it does so when it next reports progress. Raises `NotFound`, `Conflict` if it is over."""
        with self._lock:
            task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id} in this console; it was restarted, or the task ended long ago")
        if task.is_over:
            raise Conflict(f"task {task_id} has already ended: it is {task.state}")
        task.must_end = True
        return task

    def close(self) -> None:
        """Ask all tasks to end."""
        for task in self.all():
            task.must_end = True
        self._threads.shutdown(wait=False, cancel_futures=True)
