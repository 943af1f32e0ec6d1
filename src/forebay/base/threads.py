"""Threads and synchronization primitives from one place, injected for the same reason as time.

A seeded run of the whole server must decide which thread runs next. So client, server, log, state and tiering get
threads, locks, conditions, events, pools and futures from here (enforced by an import contract), and a simulation
replaces them with `use`: threads of which one runs at a time, chosen by the seed, on virtual time.

Rule: create a lock when it is needed, in a constructor for instance, not when a module is imported. Objects created
before `use` belong to the system.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as _wait
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

__all__ = [
    "FOREVER", "Condition", "Event", "Executor", "Future", "Lock", "Provider", "SystemThreads", "Thread", "WriteGate",
    "condition", "current_thread", "event", "executor", "first_completed", "future", "lock", "register_atexit", "rlock",
    "thread", "use",
]  # fmt: skip

FOREVER = threading.TIMEOUT_MAX
"""The longest timeout that a lock accepts."""


Partition = tuple[list[Future[Any]], list[Future[Any]]]
"""Completed futures, and pending ones."""


class Lock(Protocol):
    """A lock that one thread holds at a time."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Condition(Lock, Protocol):
    """A lock with a queue of threads that wait for a change."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Event(Protocol):
    """A flag to wait for."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    """A thread of control."""

    @property
    def name(self) -> str: ...

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Provider(Protocol):
    """A provider of threads and locks."""

    def lock(self) -> Lock: ...

    def rlock(self) -> Lock: ...

    def condition(self, lock: Lock | None = None) -> Condition: ...

    def event(self) -> Event: ...

    def future(self) -> Future[Any]: ...

    def thread(self, target: Callable[..., object], args: Iterable[Any], name: str, daemon: bool) -> Thread: ...

    def current_thread(self) -> Thread: ...

    def executor(self, threads_max: int, name: str) -> Executor: ...

    def first_completed(self, futures: Sequence[Future[Any]]) -> Partition: ...


class SystemThreads:
    """The operating system's threads."""

    def lock(self) -> Lock:
        return threading.Lock()

    def rlock(self) -> Lock:
        return threading.RLock()

    def condition(self, lock: Lock | None = None) -> Condition:
        return threading.Condition(lock)  # type: ignore[arg-type]

    def event(self) -> Event:
        return threading.Event()

    def future(self) -> Future[Any]:
        return Future()

    def thread(self, target: Callable[..., object], args: Iterable[Any], name: str, daemon: bool) -> Thread:
        return threading.Thread(target=target, args=args, name=name, daemon=daemon)

    def current_thread(self) -> Thread:
        return threading.current_thread()

    def executor(self, threads_max: int, name: str) -> Executor:
        return ThreadPoolExecutor(threads_max, thread_name_prefix=name)

    def first_completed(self, futures: Sequence[Future[Any]]) -> Partition:
        done = _wait(futures, return_when=FIRST_COMPLETED).done
        return [future for future in futures if future in done], [future for future in futures if future not in done]


_provider: Provider = SystemThreads()


@contextmanager
def use(provider: Provider) -> Iterator[None]:
    """Use threads and locks of `provider` until the block ends. For simulations in a separate process."""
    global _provider
    before, _provider = _provider, provider
    try:
        yield
    finally:
        _provider = before


def lock() -> Lock:
    """A new non-reentrant lock."""
    return _provider.lock()


def rlock() -> Lock:
    """A new reentrant lock."""
    return _provider.rlock()


def condition(lock: Lock | None = None) -> Condition:
    """A new condition on `lock` (default: a new `rlock`)."""
    return _provider.condition(lock)


def event() -> Event:
    """A new event that is not set."""
    return _provider.event()


def future() -> Future[Any]:
    """A new future, to be completed by its creator."""
    return _provider.future()


def thread(target: Callable[..., object], args: Iterable[Any] = (), *, name: str, daemon: bool = True) -> Thread:
    """A new, unstarted thread that calls `target`."""
    return _provider.thread(target, args, name, daemon)


def current_thread() -> Thread:
    """The current thread; the same object that `thread` returned for it."""
    return _provider.current_thread()


def executor(threads_max: int, name: str) -> Executor:
    """A new pool of at most `threads_max` threads, whose names begin with `name`."""
    return _provider.executor(threads_max, name)


def first_completed(futures: Sequence[Future[Any]]) -> Partition:
    """Wait until one of `futures` is done; returns the completed and the pending ones, both in the original order."""
    return _provider.first_completed(futures)


def register_atexit(function: Callable[..., object], *args: Any) -> None:
    """Call `function` at process exit, before threads are joined: it may start one."""
    register: Callable[..., object] = getattr(threading, "_register_atexit", atexit.register)
    register(function, *args)


class WriteGate:
    """The gate that all writes of one primary-key table pass, so that all its buckets can be seen at one moment.

    Many writers pass at a time, or one holder keeps it closed. A closer goes before later writers. A group of writes of
    one bucket passes as a whole, from its changelog to its acknowledgement (`BucketReplica.put`). While the gate is
    closed, groups inside finish and new ones wait, so the visible state is one between two groups: of any two groups,
    it never holds one that began after another had ended without holding that other one, whichever buckets they belong
    to. Taking snapshots of buckets costs microseconds each; the gate is closed that long, and while the groups inside
    finish.
    """

    def __init__(self) -> None:
        self._changed = condition(lock())
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
            self.leave()

    def enter_if_open(self) -> bool:
        """Be inside without waiting, until `leave`; False if the gate is closed, or is being opened or closed."""
        if not self._changed.acquire(blocking=False):
            return False
        try:
            if self._is_closed:
                return False
            self._inside += 1
            return True
        finally:
            self._changed.release()

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside and self._is_closed:
                self._changed.notify_all()

    @contextmanager
    def closed(self, timeout: float | None = None) -> Iterator[bool]:
        """Wait until no writer is inside, and keep all writers out of the gate during the block.

        Yields True; False if another holder keeps it closed for `timeout` seconds, or if writers are still inside then.
        """
        with self._changed:
            is_empty = self._changed.wait_for(lambda: not self._is_closed, timeout)
            if is_empty:
                self._is_closed = True
                is_empty = self._changed.wait_for(lambda: not self._inside, timeout)
                if not is_empty:
                    self._is_closed = False
                    self._changed.notify_all()
        if not is_empty:
            yield False
            return
        try:
            yield True
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()
