"""A file system that fails on purpose, for tests: at random from a seed, at the n-th operation, or at a given point.

An operation may fail before it has an effect, or after it (a lost response). Failures are `StorageFailure`; a crash is
`SimulatedCrash`, which no code catches, and after which all further operations crash too, as in a process that has
ended.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from forebay.base.errors import StorageFailure
from forebay.paimon.io.file_io import FileIO, FileStatus

T = TypeVar("T")

READS = frozenset({"read", "open_input", "exists", "list", "walk"})
WRITES = frozenset({"open_output", "write", "create", "delete", "make_directory", "rename"})
WRITES |= {"delete_directory", "delete_empty_directory"}


class SimulatedCrash(BaseException):
    """A simulated crash of the process."""


@dataclass
class FailPoint:
    """Fail the next `times` operations `operation` on paths that contain `part`; `after`: once they have had effect."""

    operation: str
    part: str = ""
    after: bool = False
    times: int = 1
    crash: bool = False


class FailingFileIO:
    """Wraps a file system. `rate` is the fraction of operations that fail, half before and half after their effect.

    `crash_at` is the index of the operation (from 0) that crashes, before its effect, or after it with `crash_after`;
    `fail_number` and `fail_after` likewise for failures. `operations` are those that may fail (default: all); `count`
    is the number of operations so far.
    """

    def __init__(
        self,
        inner: FileIO,
        *,
        seed: int = 0,
        rate: float = 0.0,
        crash_at: int | None = None,
        crash_after: bool = False,
        fail_number: int | None = None,
        fail_after: bool = False,
        operations: frozenset[str] = READS | WRITES,
    ) -> None:
        self.inner = inner
        self.rate = rate
        self.points: list[FailPoint] = []
        self.count = 0
        self.failures = 0
        self._random = random.Random(seed)
        self._crash_at, self._crash_after = crash_at, crash_after
        self._fail_number, self._fail_after = fail_number, fail_after
        self._operations = operations
        self._crashed = False
        self._begun: list[object] = []
        self._lock = threading.Lock()

    @property
    def supports_atomic_create(self) -> bool:
        return self.inner.supports_atomic_create

    @property
    def is_remote(self) -> bool:
        return self.inner.is_remote

    def fail_at(self, operation: str, part: str = "", *, after: bool = False, times: int = 1) -> None:
        """Fail the next `times` matching operations."""
        self.points.append(FailPoint(operation, part, after, times))

    def read(self, path: str) -> bytes:
        return self._run("read", path, lambda: self.inner.read(path))

    def open_input(self, path: str) -> BinaryIO:
        return self._run("open_input", path, lambda: self.inner.open_input(path))

    def open_output(self, path: str) -> BinaryIO:
        return self._run("open_output", path, lambda: self.inner.open_output(path))

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._run("write", path, lambda: self.inner.write(path, data, durable=durable))

    def create(self, path: str, data: bytes) -> bool:
        return self._run("create", path, lambda: self.inner.create(path, data))

    def exists(self, path: str) -> bool:
        return self._run("exists", path, lambda: self.inner.exists(path))

    def list(self, path: str) -> list[FileStatus]:
        return self._run("list", path, lambda: self.inner.list(path))

    def walk(self, path: str) -> Iterator[FileStatus]:
        return self._run("walk", path, lambda: self.inner.walk(path))

    def delete(self, path: str) -> bool:
        return self._run("delete", path, lambda: self.inner.delete(path))

    def delete_directory(self, path: str) -> None:
        self._run("delete_directory", path, lambda: self.inner.delete_directory(path))

    def delete_empty_directory(self, path: str) -> bool:
        return self._run("delete_empty_directory", path, lambda: self.inner.delete_empty_directory(path))

    def make_directory(self, path: str) -> None:
        self._run("make_directory", path, lambda: self.inner.make_directory(path))

    def rename(self, source: str, target: str) -> None:
        self._run("rename", source, lambda: self.inner.rename(source, target))

    def _run(self, operation: str, path: str, action: Callable[[], T]) -> T:
        before, after = self._plan(operation, path)
        if before is not None:
            self._fail(before, operation, path)
        result = action()
        if after is not None:
            if operation == "open_input":  # the caller never gets the file, so cannot close it
                getattr(result, "close", lambda: None)()
            if operation == "open_output":  # what was begun lies there, and not only until the garbage is collected
                self._begun.append(result)
            self._fail(after, operation, path)
        return result

    def _fail(self, error: type[BaseException], operation: str, path: str) -> None:
        with self._lock:
            self.failures += 1
            self._crashed |= error is SimulatedCrash
        raise error(f"injected: {operation} {path}")

    def _plan(self, operation: str, path: str) -> tuple[Any, Any]:
        """The errors to raise before and after the operation, or None."""
        with self._lock:
            number = self.count
            self.count += 1
            if self._crashed:
                return SimulatedCrash, None
            if number == self._crash_at:
                return (None, SimulatedCrash) if self._crash_after else (SimulatedCrash, None)
            if number == self._fail_number:
                return (None, StorageFailure) if self._fail_after else (StorageFailure, None)
            for point in self.points:
                if point.times > 0 and point.operation == operation and point.part in path:
                    point.times -= 1
                    error = SimulatedCrash if point.crash else StorageFailure
                    return (None, error) if point.after else (error, None)
            if operation in self._operations and self._random.random() < self.rate:
                return (None, StorageFailure) if self._random.random() < 0.5 else (StorageFailure, None)
            return None, None
