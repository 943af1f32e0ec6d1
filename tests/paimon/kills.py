"""Processes that are really killed, at a named step of their work on a table's files.

A step is an operation that changes something: `before create snapshot 1`, `after delete data 3` (the third data file
that is deleted). `steps_of` runs an act to its end and lists its steps; `killed_at` runs it in a separate process and
kills that with SIGKILL at one of them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from forebay.paimon.io.file_io import FileIO, FileStatus
from forebay.paimon.io.local import LocalFileIO
from tests.patience import PATIENCE

T = TypeVar("T")

_KINDS = (
    "manifest-list",
    "index-manifest",
    "manifest",
    "index",
    "snapshot",
    "schema",
    "tag",
    "stat",
    "data",
    "changelog",
)


def kind_of(path: str) -> str:
    """What a file of a table is, by its name."""
    name = path.rstrip("/").rpartition("/")[2]
    kind = next((kind for kind in _KINDS if name.startswith(kind + "-")), name)
    return "long-lived changelog" if kind == "changelog" and "/changelog/" in path else kind


class KillingFileIO:
    """The local disk. The process dies at the step `kill_at`; all steps are counted and noted."""

    supports_atomic_create = True
    is_remote = False

    def __init__(self, kill_at: str | None = None) -> None:
        self.inner: FileIO = LocalFileIO(sync=False)
        self.kill_at = kill_at
        self.steps: list[str] = []
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def step(self, operation: str, path: str, act: Callable[[], T]) -> T:
        with self._lock:
            what = f"{operation} {kind_of(path)}"
            self._counts[what] += 1
            name = f"{what} {self._counts[what]}"
            self.steps += [f"before {name}", f"after {name}"]
        self._perhaps_die(f"before {name}")
        result = act()
        self._perhaps_die(f"after {name}")
        return result

    def _perhaps_die(self, step: str) -> None:
        if step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def open_output(self, path: str) -> BinaryIO:
        opened: Any = self.step("begin", path, lambda: self.inner.open_output(path))
        return _Output(self, path, opened)  # type: ignore[return-value]

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.step("write", path, lambda: self.inner.write(path, data, durable=durable))

    def create(self, path: str, data: bytes) -> bool:
        return self.step("create", path, lambda: self.inner.create(path, data))

    def delete(self, path: str) -> bool:
        return self.step("delete", path, lambda: self.inner.delete(path))

    def delete_directory(self, path: str) -> None:
        self.step("delete directory", path, lambda: self.inner.delete_directory(path))

    def delete_empty_directory(self, path: str) -> bool:
        return self.step("delete directory", path, lambda: self.inner.delete_empty_directory(path))

    def make_directory(self, path: str) -> None:
        self.inner.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.step("rename", source, lambda: self.inner.rename(source, target))

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def open_input(self, path: str) -> BinaryIO:
        return self.inner.open_input(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def list(self, path: str) -> list[FileStatus]:
        return self.inner.list(path)

    def walk(self, path: str) -> Any:
        return self.inner.walk(path)


class _Output:
    """A file that is being written: closing it, which puts it into its place, is a step."""

    def __init__(self, io: KillingFileIO, path: str, opened: BinaryIO) -> None:
        self._io, self._path, self._opened = io, path, opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def close(self) -> None:
        if not self._opened.closed:
            self._io.step("finish", self._path, self._opened.close)


_context: Any = None


def _processes() -> Any:
    """Where processes come from that have all modules loaded, and no threads."""
    global _context
    if _context is None:
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(["__main__", "tests.paimon.kill_acts"])
    return _context


def run_in_process(work: Callable[..., None], *args: Any) -> int | None:
    """The exit code of a process that does `work`; minus the signal's number if it was killed."""
    process = _processes().Process(target=work, args=args)
    process.start()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"{work.__name__}{args} hangs")
    code: int | None = process.exitcode
    process.close()
    return code


def start_process(work: Callable[..., None], *args: Any) -> Any:
    """A process that does `work`, to be killed by the caller."""
    process = _processes().Process(target=work, args=args)
    process.start()
    return process
