"""The disk of a simulated machine: `FaultyFileSystem`, with random access, latency, a full disk and kills at any call.

A `PagedFile` is for programs with random writes (SQLite, a key-value engine on a map): a power loss leaves any subset
of the sectors that were written since the last sync, each with its newest content.
"""

from __future__ import annotations

import errno
import random
import sqlite3
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from forebay.base.errors import CorruptData, ErrorCode, StorageFailure
from forebay.kv.engine import EngineState
from tests.fs.disk_model import File, Folder, Truncate, Write
from tests.fs.faulty_fs import FaultyFileSystem, _os_failure, _Run
from tests.kv.memory_engine import MemoryEngine
from tests.simulation.scheduler import Scheduler

SECTOR = 512
_WRITING = ("append", "write_atomic", "publish", "make_directories")


class _Unwritten(list[Any]):
    """Stands for a paged file's list of changes: clearing it throws its dirty pages away."""

    def __init__(self, file: PagedFile) -> None:
        super().__init__()
        self._file = file

    def clear(self) -> None:
        self._file.dirty.clear()


@dataclass(eq=False)
class PagedFile(File):
    dirty: dict[int, None] = field(default_factory=dict)
    is_cut: bool = False

    def __post_init__(self) -> None:
        self.pending = _Unwritten(self)

    def change(self, change: Write | Truncate) -> None:
        change.apply(self.seen)
        if isinstance(change, Write):
            first, last = change.position // SECTOR, (change.position + len(change.data) - 1) // SECTOR
            for page in range(first, last + 1):
                self.dirty[page] = None
        else:
            self.is_cut = True
            self.dirty = {page: None for page in self.dirty if page * SECTOR < change.size}

    def sync(self) -> None:
        if self.dirty or self.is_cut:
            self.disk = bytearray(self.seen)
            self.dirty.clear()
            self.is_cut = False

    def write_back(self, rng: random.Random) -> None:
        """The kernel writes a page back when it likes."""
        if self.dirty:
            page = rng.choice(list(self.dirty))
            self._copy(page, self.disk)
            del self.dirty[page]

    def _copy(self, page: int, target: bytearray) -> None:
        start, data = page * SECTOR, self.seen[page * SECTOR : (page + 1) * SECTOR]
        if len(target) < start + len(data):
            target.extend(bytes(start + len(data) - len(target)))
        target[start : start + len(data)] = data

    def after_power_loss(self, rng: random.Random, page_bytes: int) -> File:
        content = bytearray(self.disk)
        if self.is_cut and rng.random() < 0.5:
            del content[len(self.seen) :]
        fate = rng.choice(("none", "all", "some", "some"))
        for page in self.dirty:
            if fate == "all" or (fate == "some" and rng.random() < 0.5):
                self._copy(page, content)
        return PagedFile(bytearray(content), content)


class RandomFile:
    """A file that is written anywhere."""

    def __init__(self, fs: SimFileSystem, path: str, file: PagedFile) -> None:
        self._fs, self.path, self._file = fs, path, file

    def read(self, offset: int, length: int) -> bytes:
        with self._fs._operation("read", self.path):
            return self._fs._read(self.path, self._file, offset, length)

    def write(self, offset: int, data: bytes) -> None:
        with self._fs._operation("append", self.path) as run:
            if run.partial:
                data = data[: self._fs._rng.randint(0, len(data))]
            if data:
                self._file.change(Write(offset, data))
            if self._fs._rng.random() < 0.05:
                self._file.write_back(self._fs._rng)

    def truncate(self, size: int) -> None:
        with self._fs._operation("truncate", self.path):
            self._file.change(Truncate(size))

    def sync(self) -> None:
        with self._fs._operation("sync", self.path) as run:
            if run.drop:
                self._file.dirty.clear()
                return
            self._file.sync()
            folder, name = self._fs._parent(self.path, "sync")
            folder.make_durable(name)

    def size(self) -> int:
        return len(self._file.seen)


class SimFileSystem(FaultyFileSystem):
    """The disk. `machine_fails` is called when the call comes at which the machine is to fail."""

    def __init__(self, sched: Scheduler, rng: random.Random, on_call: Callable[[], None]) -> None:
        super().__init__(rng, SECTOR)
        self._sched = sched
        self.on_call = on_call
        self.count = 0
        self.fails_at = -1
        self.full = False
        self.slow_syncs = 1.0
        self.sync_seconds_max = 0.002
        self.is_atomic = False
        """Whether calls do not let other tasks run: where C code is below them on the stack."""

    def sync_seconds(self) -> float:
        """How long a sync takes this time."""
        return self._rng.random() * self.sync_seconds_max * self.slow_syncs

    def _operation(self, operation: Any, path: str) -> _Run:
        sched = self._sched
        self.count += 1
        if sched.current is not None:
            if not self.is_atomic:
                if operation == "sync":
                    sched.sleep(self.sync_seconds())
                else:
                    sched.maybe_yield()
            if self.count >= self.fails_at > 0:
                self.fails_at = -1
                self.on_call()
        if self.full and operation in _WRITING:
            self._check_alive(path)
            raise _os_failure(operation, path, errno.ENOSPC)
        return _Run(self, operation, path)

    def open_random(self, path: str) -> RandomFile:
        with self._operation("open", path):
            folder, name = self._parent(path, "open")
            node = folder.seen.get(name)
            if node is None:
                node = PagedFile()
                folder.change({name: node})
            if isinstance(node, Folder):
                raise _os_failure("open", path, errno.EISDIR)
            if not isinstance(node, PagedFile):
                paged = PagedFile(node.seen, node.disk)
                paged.dirty = dict.fromkeys(range(len(node.seen) // SECTOR + 1)) if node.pending else {}
                for entries in (folder.seen, folder.disk):
                    if entries.get(name) is node:
                        entries[name] = paged
                for change in folder.pending:
                    change.changes = {n: paged if c is node else c for n, c in change.changes.items()}
                node = paged
            return RandomFile(self, path, node)

    def _next(self) -> SimFileSystem:
        after = SimFileSystem(self._sched, self._rng, self.on_call)
        after.free_space_bytes = self.free_space_bytes
        after._temporary_count = self._temporary_count
        after.slow_syncs = self.slow_syncs
        after.sync_seconds_max = self.sync_seconds_max
        return after

    def crash(self) -> SimFileSystem:
        after = self._next()
        after._root = self._root.after_power_loss(self._rng, self._page_bytes)
        self._gone = "the power is off"
        return after

    def kill(self) -> SimFileSystem:
        after = self._next()
        after._root = self._root
        self._gone = "the process was killed"
        return after

    def files(self, below: str = "") -> list[tuple[str, File]]:
        """All files with their paths, in order."""
        found: list[tuple[str, File]] = []

        def walk(folder: Folder, path: str) -> None:
            for name in sorted(folder.seen):
                node = folder.seen[name]
                if isinstance(node, Folder):
                    walk(node, f"{path}/{name}")
                else:
                    found.append((f"{path}/{name}", node))

        walk(self._root, "")
        return [(path, file) for path, file in found if below in path]


# ---- a key-value engine on a map without syncs --------------------------------------------------------------------

_PAGES = 16
_PAGE_BYTES = 8192
_HEAD = b"SIMKV2"


def _position(page: int, slots: int) -> int:
    """Where the slot of a page begins in the file."""
    return (1 + 2 * page + (slots >> page & 1)) * _PAGE_BYTES


class MapEngine(MemoryEngine):
    """Rows in memory, and in pages of a file that are written and not synced, as LMDB does with WRITEMAP and NOSYNC.

    Each page has two slots. Rows go to the slot that the head does not name, and the head, which has the state, is
    written last: a process that is killed in between leaves the old rows with the old state. No page has a checksum:
    what a power loss has mixed is believed, unless it cannot be read at all.
    """

    name = "map"

    def __init__(self, fs: SimFileSystem, directory: Path) -> None:
        super().__init__()
        self._fs = fs
        fs.make_directories(str(directory))
        self._file = fs.open_random(f"{directory}/data")
        self._write_all = False
        self._slots = 0
        """The slots that the head names, a bit for each page."""
        content = self._file.read(0, self._file.size())
        if content:
            try:
                self._load(content)
            except (ValueError, struct.error, IndexError) as e:
                raise CorruptData(f"the key-value file {directory}/data is damaged: {e}",
                                  ErrorCode.KV_STORAGE_EXCEPTION) from e  # fmt: skip
        else:
            self._store(range(_PAGES), self._rows, self._state)

    def _load(self, content: bytes) -> None:
        if content[: len(_HEAD)] != _HEAD:
            raise ValueError("it has no head")
        size, self._slots = struct.unpack_from("<HH", content, len(_HEAD))
        self._state = EngineState.from_bytes(content[10 : 10 + size])
        for page in range(_PAGES):
            position = _position(page, self._slots)
            data = content[position : position + _PAGE_BYTES]
            if not data:
                raise ValueError("it is too short")
            (count,) = struct.unpack_from("<H", data)
            position = 2
            for _ in range(count):
                key_size, value_size = struct.unpack_from("<HH", data, position)
                position += 4
                if position + key_size + value_size > len(data):
                    raise ValueError("a page is too short")
                key = data[position : position + key_size]
                self._rows[key] = data[position + key_size : position + key_size + value_size]
                position += key_size + value_size

    def _store(self, pages: Sequence[int], rows: Mapping[bytes, bytes], state: EngineState, file: Any = None) -> None:
        """Write rows and state to the engine's file, or to another `file`, which has no earlier ones."""
        slots = 0 if file else self._slots ^ sum(1 << page for page in pages)
        target = file or self._file
        parts: dict[int, list[bytes]] = {page: [] for page in pages}
        for key in sorted(rows):
            page = zlib.crc32(key) % _PAGES
            if page in parts:
                parts[page].append(struct.pack("<HH", len(key), len(rows[key])) + key + rows[key])
        for page, rows_of_page in parts.items():
            data = struct.pack("<H", len(rows_of_page)) + b"".join(rows_of_page)
            if len(data) > _PAGE_BYTES:
                raise AssertionError("too many rows for the simulation's engine")
            target.write(_position(page, slots), data)
        if not target.size() > 2 * _PAGES * _PAGE_BYTES:
            target.write((2 * _PAGES + 1) * _PAGE_BYTES - 1, b"\0")
        head = state.to_bytes()
        target.write(0, _HEAD + struct.pack("<HH", len(head), slots) + head)
        if not file:
            self._slots = slots

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        rows = dict(self._rows)
        for key, value in writes.items():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        pages = sorted({zlib.crc32(key) % _PAGES for key in writes})
        try:
            self._store(range(_PAGES) if self._write_all else pages, rows, state)
        except StorageFailure:
            self._write_all = True
            try:  # without any effect: a map that could not take all of it is put back
                self._store(range(_PAGES), self._rows, self._state)
                self._write_all = False
            except StorageFailure:
                pass
            raise
        self._write_all = False
        self._rows, self._state = rows, state

    def clean(self) -> bool:
        return False

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        self._fs.make_directories(str(directory))
        file = self._fs.open_random(f"{directory}/data")
        self._store(range(_PAGES), self._rows, self._state, file)
        file.sync()

    def sync(self) -> None:
        if self._write_all:  # a failed apply could not be put back yet: what is in the file must not be trusted
            self._store(range(_PAGES), self._rows, self._state)
            self._write_all = False
        self._file.sync()


# ---- SQLite on the simulated disk ----------------------------------------------------------------------------------


class _VfsFile:
    """A file of SQLite. No call lets other tasks run: SQLite is on the stack."""

    def __init__(self, vfs: SimVfs, path: str, flags: int) -> None:
        self._fs = vfs.fs
        self._file = vfs.guarded(lambda: self._fs.open_random(path))
        self._vfs = vfs
        # As in SQLite's own VFS: the first sync of a journal or WAL syncs the folder, too.
        journals = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
        self._syncs_folder = bool(flags & journals) and bool(flags & apsw.SQLITE_OPEN_CREATE)
        self._path = path

    def xRead(self, amount: int, offset: int) -> bytes:
        return self._vfs.guarded(lambda: self._file.read(offset, amount))

    def xWrite(self, data: bytes, offset: int) -> None:
        self._vfs.guarded(lambda: self._file.write(offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        self._vfs.guarded(lambda: self._file.truncate(size))

    def xSync(self, flags: int) -> None:
        self._vfs.syncs += 1
        self._vfs.guarded(self._file.sync)
        if self._syncs_folder:
            self._vfs.guarded(lambda: self._fs.sync_directory(self._path.rpartition("/")[0]))
            self._syncs_folder = False

    def xFileSize(self) -> int:
        return self._file.size()

    def xLock(self, level: int) -> None:
        pass

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xClose(self) -> None:
        pass

    def xSectorSize(self) -> int:
        return SECTOR

    def xDeviceCharacteristics(self) -> int:
        return 0

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False


class SimVfs(apsw.VFS):
    """SQLite's way to the disk of a machine, for one life of the server: what a dead one still does reaches no disk."""

    def __init__(self, name: str, fs: SimFileSystem) -> None:
        super().__init__(name, "")
        self.name = name
        self.fs = fs
        self.databases: list[_Database] = []
        self.syncs = 0

    def close(self) -> None:
        """Close what a dead server has left open, which cannot reach the disk any more; SQLite would complain later."""
        for database in self.databases:
            database.close()
        self.unregister()

    def take_time(self) -> None:
        """Let the time pass that the last syncs have taken: not before SQLite has returned, which is on the stack."""
        syncs, self.syncs = self.syncs, 0
        if syncs and self.fs._sched.current is not None:
            self.fs._sched.sleep(self.fs.sync_seconds() * syncs)

    def guarded(self, work: Callable[[], Any]) -> Any:
        fs = self.fs
        before, fs.is_atomic = fs.is_atomic, True
        try:
            return work()
        except StorageFailure as e:
            raise (apsw.FullError if "ENOSPC" in e.message else apsw.IOError)(e.message) from None
        finally:
            fs.is_atomic = before

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        flags[1] = flags[0]
        return _VfsFile(self, name.filename() if hasattr(name, "filename") else str(name), flags[0])

    def xFullPathname(self, name: str) -> str:
        return name

    def xAccess(self, path: str, flags: int) -> bool:
        return bool(self.guarded(lambda: self.fs.exists(path)))

    def xDelete(self, path: str, sync_directory: bool) -> None:
        self.guarded(lambda: self.fs.remove(path))
        if sync_directory:
            self.guarded(lambda: self.fs.sync_directory(path.rpartition("/")[0]))


class _Cursor:
    def __init__(self, cursor: Any, changes: int) -> None:
        self._cursor, self.rowcount = cursor, changes

    def fetchall(self) -> list[Any]:
        return _translated(self._cursor.fetchall)

    def fetchone(self) -> Any:
        return _translated(self._cursor.fetchone)


def _translated(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except apsw.Error as e:
        kind = (
            sqlite3.DatabaseError if isinstance(e, apsw.CorruptError | apsw.NotADBError) else sqlite3.OperationalError
        )
        translated = kind(f"{type(e).__name__}: {e}")
        translated.sqlite_errorcode = getattr(e, "result", 0)
        raise translated from e


class _Database:
    """What the metadata store uses of `sqlite3.Connection`, on apsw."""

    def __init__(self, path: str, vfs: SimVfs) -> None:
        self._vfs = vfs
        self._connection = _translated(lambda: apsw.Connection(path, vfs=vfs.name))
        vfs.databases.append(self)
        self.execute("PRAGMA locking_mode=EXCLUSIVE")

    def execute(self, sql: str, parameters: Any = ()) -> _Cursor:
        def run() -> _Cursor:
            cursor = self._connection.cursor()
            cursor.execute(sql, tuple(parameters))
            return _Cursor(cursor, self._connection.changes())

        cursor = _translated(run)
        self._vfs.take_time()
        return cursor

    def serialize(self) -> bytes:
        return bytes(_translated(lambda: self._connection.serialize("main")))

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    def executescript(self, script: str) -> None:
        _translated(lambda: self._connection.cursor().execute(script))

    def close(self) -> None:
        try:
            self._connection.close()
        except apsw.Error:
            pass  # what SQLite itself passes over: a WAL that could not be put into the file is read at the next start


class SimDatabaseFile:
    """A `forebay.server.metadata_store.DatabaseFile` on the simulated disk."""

    def __init__(self, path: str, vfs: SimVfs) -> None:
        self.path, self._vfs = path, vfs

    def is_empty(self) -> bool:
        fs = self._vfs.fs
        return not fs.exists(self.path) or not fs.read_bytes(self.path)

    def connect(self) -> Any:
        return _Database(self.path, self._vfs)

    def disk(self) -> str:
        return "the simulated disk"
