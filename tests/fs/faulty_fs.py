"""An in-memory file system that loses power, tears writes and fails on request.

`FaultyFileSystem` implements exactly the contract of `forebay.fs.interface`: anything that the contract does not call
durable may be lost in `crash()`. The injected `random.Random` makes the choice, so a seed is reproducible.

Terms: a *file* has the content that programs see and the content on the disk, with the *pending* changes between the
two (writes and truncations since the last sync). A *folder* likewise has the names that programs see and those on the
disk, with pending changes. A *fault* affects some calls of one operation below one path.

What a power loss leaves of the pending changes of one file, by seeded choice:

* none, or all of them;
* the first few, the last of these torn at any byte;
* any subset of their pages, each as it was at some time, with zeros in holes: the kernel writes pages back in any
  order.

Of words that were stored since the last sync (`share_words`): none, all, or any subset.

And of the pending names of one folder: none, all, the first few, or any subset.

Not modelled: bytes that were synced and rot later (use `flip_byte`), and reads of half-written pages. Prior art:
LevelDB's `FaultInjectionTestEnv`, LazyFS, and the crash model of ALICE (Pillai et al., OSDI 2014).
"""

from __future__ import annotations

import errno
import random
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from forebay.base.errors import StorageFailure
from forebay.base.locations import check_steps
from forebay.fs import names
from forebay.fs.interface import WORD_BYTES, FileEntry, FileLock, storage_failure
from tests.fs.disk_model import File, Folder, Truncate, Write
from tests.fs.faults import Fault, FaultEffect, Flip, Operation

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Fault", "FaultEffect", "FaultyFileSystem", "Operation"]


class FaultyFileSystem:
    """An in-memory `FileSystem` with faults. See the module's docstring.

    `rng` makes every choice. `page_bytes` is the kernel's write-back unit; small values tear small files, too.
    """

    def __init__(self, rng: random.Random, page_bytes: int = 4096) -> None:
        self._rng = rng
        self._page_bytes = page_bytes
        self._root = Folder()
        self._mutex = threading.RLock()
        self._faults: list[Fault] = []
        self._flips: list[Flip] = []
        self._locks: dict[str, object] = {}
        self._gone: str | None = None
        self._temporary_count = 0
        self.disk_bytes = 1 << 41
        self.free_space_bytes = 1 << 40
        self.calls: list[tuple[Operation, str]] = []
        """Every call so far, as (operation, path)."""

    # ---- faults

    def inject(
        self,
        operation: Operation | Literal["any"],
        path_prefix: str = "",
        *,
        path_suffix: str = "",
        on_call: int = 1,
        times: int = 1,
        error: int = errno.EIO,
        effect: FaultEffect = "before",
    ) -> Fault:
        """Make calls of `operation` fail with the errno `error`, from the `on_call`-th match on, `times` times.

        `effect`: "before" fails without effect; "after" has the full effect and then fails (a lost response); "partial"
        has a partial effect (an append writes some bytes, an atomic write leaves its temporary file); "drop" (sync
        only) also discards the unwritten pages, which later syncs then do not write. Returns the fault; its `fired`
        counts the failures.
        """
        fault = Fault(operation, path_prefix, path_suffix, on_call, times, error, effect)
        with self._mutex:
            self._faults.append(fault)
        return fault

    def clear_faults(self) -> None:
        """Remove all faults."""
        with self._mutex:
            self._faults.clear()
            self._flips.clear()

    def flip_on_read(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Make reads of the byte at `position` of `path` return it XORed with `mask`; the file is unchanged."""
        with self._mutex:
            self._flips.append(Flip(path, position, mask))

    def flip_byte(self, path: str, position: int, mask: int = 0xFF, *, everywhere: bool = False) -> None:
        """Change one stored byte permanently, like a failing disk. `everywhere`: also if the file was not synced; the
        kernel may have written it meanwhile."""
        with self._mutex:
            file = self._file(path, "corrupt")
            if everywhere:
                file.sync()
            for content in (file.seen, file.disk):
                if position < len(content):
                    content[position] ^= mask

    def set_content(self, path: str, data: bytes) -> None:
        """Replace the content of `path` durably, bypassing all faults."""
        with self._mutex:
            folder, name = self._parent(path, "write")
            folder.seen[name] = folder.disk[name] = File(bytearray(data), bytearray(data))

    def content(self, path: str) -> bytes:
        """The content of `path` that programs see, bypassing all faults."""
        with self._mutex:
            return bytes(self._file(path, "read").seen)

    # ---- ends of the world

    def crash(self) -> FaultyFileSystem:
        """Cut the power. Returns the file system of the next start; this one and its open files become unusable."""
        with self._mutex:
            after = FaultyFileSystem(self._rng, self._page_bytes)
            after._root = self._root.after_power_loss(self._rng, self._page_bytes)
            after.free_space_bytes = self.free_space_bytes
            self._gone = "the power is off"
            return after

    def kill(self) -> FaultyFileSystem:
        """Kill the process: no writes are lost, locks are released. This object and its open files become unusable."""
        with self._mutex:
            after = FaultyFileSystem(self._rng, self._page_bytes)
            after._root = self._root
            after._temporary_count = self._temporary_count
            after.free_space_bytes = self.free_space_bytes
            self._gone = "the process was killed"
            return after

    # ---- FileSystem

    def open_append(self, path: str) -> _FaultyAppendFile:
        with self._operation("open", path):
            folder, name = self._parent(path, "open")
            node = folder.seen.get(name)
            if node is None:
                node = File()
                folder.change({name: node})
            if isinstance(node, Folder):
                raise _os_failure("open", path, errno.EISDIR)
            return _FaultyAppendFile(self, path, node, folder)

    def open_reader(self, path: str) -> _FaultyReader:
        with self._operation("open", path):
            return _FaultyReader(self, path, self._file(path, "open"))

    def read_bytes(self, path: str) -> bytes:
        with self._operation("read", path):
            file = self._file(path, "read")
            return self._read(path, file, 0, len(file.seen))

    def write_atomic(self, path: str, data: Buffer) -> None:
        with self._operation("write_atomic", path) as run:
            folder, name = self._parent(path, "replace")
            content = bytes(data)
            if run.partial:
                self._leave_temporary(folder, name, content)
                return
            folder.change({name: File(bytearray(content), bytearray(content))})
            folder.make_durable(name)

    def publish_if_absent(self, path: str, data: Buffer) -> bool:
        with self._operation("publish", path) as run:
            folder, name = self._parent(path, "create")
            content = bytes(data)
            if run.partial:
                self._leave_temporary(folder, name, content)
                return False
            if name in folder.seen:
                folder.make_durable(name)
                return False
            folder.change({name: File(bytearray(content), bytearray(content))})
            folder.make_durable(name)
            return True

    def share_words(self, path: str) -> _FaultySharedWords:
        with self._operation("open", path):
            return _FaultySharedWords(self, path, self._file(path, "open"))

    def _leave_temporary(self, folder: Folder, name: str, content: bytes) -> None:
        self._temporary_count += 1
        file = File()
        file.change(Write(0, content[: self._rng.randint(0, len(content))]))
        folder.change({names.temporary_name(name, str(self._temporary_count)): file})

    def make_directories(self, path: str) -> None:
        with self._operation("make_directories", path):
            folder = self._root
            for part in _parts(path):
                node = folder.seen.get(part)
                if node is None:
                    node = Folder()
                    folder.change({part: node})
                if isinstance(node, File):
                    raise _os_failure("create the folder", path, errno.ENOTDIR)
                folder.make_durable(part)
                folder = node

    def list_directory(self, path: str) -> list[FileEntry]:
        with self._operation("list", path):
            found = [
                FileEntry(name, isinstance(node, Folder), len(node.seen) if isinstance(node, File) else 0)
                for name, node in self._folder(path, "list").seen.items()
            ]
            return sorted(found)

    def exists(self, path: str) -> bool:
        with self._mutex:
            self._check_alive(path)
            return self._find(check_steps(path)) is not None

    def remove(self, path: str) -> None:
        with self._operation("remove", path):
            self._file(path, "remove")
            folder, name = self._parent(path, "remove")
            folder.change({name: None})

    def remove_tree(self, path: str) -> None:
        with self._operation("remove", path):
            node = self._find(path)
            if node is None:
                return
            if isinstance(node, File):
                raise _os_failure("remove the folder", path, errno.ENOTDIR)
            _empty(node)
            folder, name = self._parent(path, "remove")
            folder.change({name: None})

    def rename(self, source: str, target: str) -> None:
        with self._operation("rename", source):
            check_steps(target)
            node = self._find(source)
            if node is None:
                raise _os_failure("rename", source, errno.ENOENT)
            old_folder, old_name = self._parent(source, "rename")
            new_folder, new_name = self._parent(target, "rename to")
            replaced = new_folder.seen.get(new_name)
            if isinstance(replaced, Folder) and replaced.seen:
                raise _os_failure(f"rename to {target} the file", source, errno.ENOTEMPTY)
            if old_folder is new_folder:
                old_folder.change({old_name: None, new_name: node})
            else:
                new_folder.change({new_name: node})
                old_folder.change({old_name: None})

    def sync_directory(self, path: str) -> None:
        with self._operation("sync_directory", path):
            self._folder(path, "sync the folder").sync()

    def forget_cached(self, path: str) -> None:
        with self._operation("read", path):
            self._file(path, "drop the cache of").forget_cached()

    def free_bytes(self, path: str) -> int:
        with self._operation("free_bytes", path):
            self._folder(path, "look up the free space of")
            return self.free_space_bytes

    def total_bytes(self, path: str) -> int:
        return self.disk_bytes

    def lock(self, path: str) -> FileLock | None:
        with self._operation("lock", path):
            if path in self._locks:
                return None
            folder, name = self._parent(path, "lock")
            if name not in folder.seen:
                folder.change({name: File()})
            return _FaultyLock(self, path)

    # ---- inside

    def _operation(self, operation: Operation, path: str) -> _Run:
        check_steps(path)
        return _Run(self, operation, path)

    def _check_alive(self, path: str) -> None:
        if self._gone is not None:
            raise StorageFailure(f"cannot use {path}: {self._gone}")

    def _find(self, path: str) -> File | Folder | None:
        node: File | Folder | None = self._root
        for part in _parts(path):
            node = node.seen.get(part) if isinstance(node, Folder) else None
        return node

    def _parent(self, path: str, doing: str) -> tuple[Folder, str]:
        *above, name = _parts(path)
        return self._folder("/".join(above), doing), name

    def _folder(self, path: str, doing: str) -> Folder:
        node = self._find(path)
        if not isinstance(node, Folder):
            raise _os_failure(doing, path, errno.ENOENT if node is None else errno.ENOTDIR)
        return node

    def _file(self, path: str, doing: str) -> File:
        node = self._find(path)
        if not isinstance(node, File):
            raise _os_failure(doing, path, errno.ENOENT if node is None else errno.EISDIR)
        return node

    def _read(self, path: str, file: File, offset: int, length: int) -> bytes:
        data = bytearray(file.seen[offset : offset + length])
        for flip in self._flips:
            if flip.path == path and offset <= flip.position < offset + len(data):
                data[flip.position - offset] ^= flip.mask
        return bytes(data)


class _Run:
    """One call: holds the mutex, checks for a fault before the body, and fails after it if the fault says so."""

    def __init__(self, fs: FaultyFileSystem, operation: Operation, path: str) -> None:
        self._fs = fs
        self._operation = operation
        self._path = path
        self._fault: Fault | None = None

    def __enter__(self) -> _Run:
        self._fs._mutex.acquire()
        try:
            self._fs._check_alive(self._path)
            self._fs.calls.append((self._operation, self._path))
            for fault in self._fs._faults:
                if fault.strikes(self._operation, self._path):
                    self._fault = fault
                    break
            if self._fault is not None and self._fault.effect == "before":
                raise self._failure(self._fault)
        except BaseException:
            self._fs._mutex.release()
            raise
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if self._fault is not None and error is None:
                raise self._failure(self._fault)
        finally:
            self._fs._mutex.release()

    @property
    def fails(self) -> bool:
        return self._fault is not None

    @property
    def partial(self) -> bool:
        return self._fault is not None and self._fault.effect == "partial"

    @property
    def drop(self) -> bool:
        return self._fault is not None and self._fault.effect == "drop"

    def _failure(self, fault: Fault) -> StorageFailure:
        return _os_failure(f"{self._operation} (injected fault)", self._path, fault.errno)


class _FaultyReader:
    def __init__(self, fs: FaultyFileSystem, path: str, file: File) -> None:
        self._fs = fs
        self._path = path
        self._file = file
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def pread(self, offset: int, length: int) -> bytes:
        with self._fs._operation("read", self._path):
            self._check_open()
            return self._fs._read(self._path, self._file, offset, length)

    def size(self) -> int:
        with self._fs._operation("read", self._path):
            self._check_open()
            return len(self._file.seen)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFailure(f"cannot read {self._path}: this reader is closed")

    def close(self) -> None:
        self._closed = True


class _FaultyAppendFile:
    def __init__(self, fs: FaultyFileSystem, path: str, file: File, folder: Folder) -> None:
        self._fs = fs
        self._path = path
        self._file = file
        self._folder = folder
        self._size = len(file.seen)
        self._closed = False
        self._distrusted: str | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def _check_usable(self) -> None:
        if self._distrusted is not None:
            raise StorageFailure(f"{self._path} is not used any more: {self._distrusted}")
        if self._closed:
            raise StorageFailure(f"cannot use {self._path}: this file is closed")

    def append(self, buffers: Sequence[Buffer]) -> int:
        with self._fs._operation("append", self._path) as run:
            self._check_usable()
            data = b"".join(buffers)
            start = self._size
            if run.partial:
                data = data[: self._fs._rng.randint(0, len(data))]
            if data:
                self._file.change(Write(start, data))
            if not run.fails:
                self._size = start + len(data)
            return start

    def sync(self) -> None:
        try:
            with self._fs._operation("sync", self._path) as run:
                self._check_usable()
                if run.drop:
                    self._file.pending.clear()
                    return
                self._file.sync()
                self._sync_name()
        except StorageFailure as failure:
            self._distrusted = self._distrusted or failure.message
            raise

    def _sync_name(self) -> None:
        for name, node in self._folder.seen.items():
            if node is self._file:
                self._folder.make_durable(name)

    def truncate(self, size: int) -> None:
        with self._fs._operation("truncate", self._path):
            self._check_usable()
            self._file.change(Truncate(size))
            self._size = size

    def reader(self) -> _FaultyReader:
        self._check_usable()
        return _FaultyReader(self._fs, self._path, self._file)

    def close(self) -> None:
        self._closed = True


class _FaultySharedWords:
    """Words of a file. A store is a store into memory: it does not fail, and is no call of the file system."""

    def __init__(self, fs: FaultyFileSystem, path: str, file: File) -> None:
        self._fs = fs
        self._path = path
        self._file = file

    @property
    def words(self) -> _FaultySharedWords:
        return self

    def __len__(self) -> int:
        return len(self._file.seen) // WORD_BYTES

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(
            self._file.seen[index * WORD_BYTES : (index + 1) * WORD_BYTES], sys.byteorder, signed=True
        )

    def __setitem__(self, index: int, value: int) -> None:
        with self._fs._mutex:
            self._fs._check_alive(self._path)
            self._file.store(index, value.to_bytes(WORD_BYTES, sys.byteorder, signed=True), self._fs._rng)

    def sync(self) -> None:
        with self._fs._operation("sync", self._path):
            self._file.sync()


class _FaultyLock:
    def __init__(self, fs: FaultyFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        fs._locks[path] = self

    def release(self) -> None:
        with self._fs._mutex:
            if self._fs._locks.get(self._path) is self:
                del self._fs._locks[self._path]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _empty(folder: Folder) -> None:
    """Remove all names below `folder`; a power loss may restore each of them."""
    for name, node in list(folder.seen.items()):
        if isinstance(node, Folder):
            _empty(node)
        folder.change({name: None})


def _os_failure(operation: str, path: str, code: int) -> StorageFailure:
    return storage_failure(operation, path, OSError(code, ""))
