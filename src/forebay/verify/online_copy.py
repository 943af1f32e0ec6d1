"""A copy of the data directory of a running server, as of one moment: as if the machine had lost power then.

The copy has the files that a server needs after a loss of power: metadata, logs, stages and checkpoints of states. The
files of the key-value engines are not copied; the states are restored from the checkpoints and the changelogs.

Flow: all files are copied while the server runs (segments that are closed never change again). Then its metadata is
held: a write lock on the SQLite file, for which the server waits for up to five seconds, so that no transaction is
decided and no table changes. Under the lock nothing is copied but the metadata and small files. The lengths of all
others are noted, and those that have changed are opened, so that they can be copied afterwards, also if the server
removes them. At last the copy is brought to these lengths.

Order under the lock: what refers to something else comes before it. Offsets that are durable come before the logs that
have them, the checkpoint of a state before its changelog, indexes before segments. Rows of a transaction may be in some
logs and not yet in others; the metadata then says that it is decided, and its stages are there: the server writes the
rest when it starts.

The copy has everything that was acknowledged before the lock, and of each log a prefix of the later records.
"""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import LimitExceeded, Unavailable
from forebay.fs import names
from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import checkpoints
from forebay.server.metadata_store import METADATA_FILE

OnBytes = Callable[[int, int], None]
"""Takes the number of bytes that are copied, and of those that are known."""

HOLD_SECONDS_MAX = 2.0
"""The server waits for five seconds for its metadata."""

_TRIES = 8
_LOCK_SECONDS = 30.0
_BLOCK = 4 << 20
_SMALL_BYTES, _SMALL_BYTES_ALL = 64 << 10, 64 << 20
_FIRST = (names.RECOVERY_POINTS_FILE, names.HIGH_WATERMARKS_FILE)
_LEFT_OUT = {names.LOCK_FILE, names.CLEAN_SHUTDOWN_FILE, METADATA_FILE, f"{METADATA_FILE}-journal", *_FIRST}
_SUFFIX_ORDER = (names.WRITER_SNAPSHOT_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.LOG_SUFFIX,
                 names.LOG_START_SUFFIX)  # fmt: skip


class _Version(NamedTuple):
    """The version of a file: it differs after a change."""

    inode: int
    size: int
    changed_ns: int


class _FileState(NamedTuple):
    """A file under the lock: its version, and its content or an open descriptor from which it will be copied."""

    state: _Version
    content: bytes | None = None
    descriptor: int | None = None


class _LockHeldTooLong(Exception):
    """The lock is held longer than the server should wait."""


class _FolderChanged(Exception):
    """A folder has changed while it was read."""


class OnlineCopy:
    """One copy, from `source` to the new folder `target`; `copy` makes it."""

    def __init__(self, source: Path, target: Path, on_bytes: OnBytes, clock: Clock = SYSTEM_CLOCK) -> None:
        self.held_seconds = 0.0
        self.files = self.bytes = 0
        self._source, self._target = source, target
        self._on_bytes, self._clock = on_bytes, clock
        self._copied: dict[str, _Version] = {}
        self._moment: dict[str, _FileState] = {}
        self._small = 0
        self._deadline = 0.0

    def copy(self) -> None:
        """Make the copy. Raises `Unavailable` if the files could not be listed while the server waits."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._target.mkdir(mode=names.FOLDER_MODE)
        for _ in range(_TRIES):
            self._copy_beside()
            try:
                with self._held_metadata():
                    self._note_all()
            except _LockHeldTooLong:
                self._close()
                continue
            try:
                self._complete()
            finally:
                self._close()
            return
        raise Unavailable(
            f"the files of {self._source} could not be listed within {HOLD_SECONDS_MAX:g} s, for which the server can "
            f"wait, in {_TRIES} tries: try again while it has less to do, or stop it"
        )

    # ---- while the server goes on ---------------------------------------------------------------------------------

    def _copy_beside(self) -> None:
        """Copy what has changed since the last time. What is gone, or changes meanwhile, is seen under the lock."""
        todo = []
        for relative in self._all():
            with suppress(FileNotFoundError):
                state = _version_of(os.stat(self._source / relative))
                if self._copied.get(relative) != state:
                    todo.append((relative, state))
        total, done = sum(state.size for _, state in todo), 0
        for relative, _ in todo:
            with suppress(FileNotFoundError):
                descriptor = os.open(self._source / relative, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    state = _version_of(os.fstat(descriptor))
                    self._write(relative, descriptor, state)
                finally:
                    os.close(descriptor)
                done += state.size
                self._on_bytes(done, total)

    def _all(self) -> Iterator[str]:
        for folder in self._folders(""):
            yield from folder.files

    def _folders(self, relative: str) -> Iterator[_Folder]:
        """The folders below one, with those of their files that belong into a copy."""
        files, folders = [], []
        try:
            with os.scandir(self._source / relative) as entries:
                for entry in entries:
                    path = f"{relative}/{entry.name}" if relative else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if not _is_left_out(entry.name, relative):
                            folders.append(path)
                    elif path not in _LEFT_OUT and not _is_left_out(entry.name, relative):
                        files.append(path)
        except FileNotFoundError:
            return
        yield _Folder(relative, files)
        for path in sorted(folders):
            yield from self._folders(path)

    def _write(self, relative: str, descriptor: int, state: _Version) -> None:
        """Copy the first `state.size` bytes; of a log that has only grown, those that are missing."""
        to = self._target / relative
        before = self._copied.get(relative)
        grown = before is not None and relative.endswith(names.LOG_SUFFIX) and before.inode == state.inode
        at = before.size if before is not None and grown and before.size <= state.size else 0
        to.parent.mkdir(mode=names.FOLDER_MODE, parents=True, exist_ok=True)
        with _opened_for_writing(to) as out:
            os.ftruncate(out, at)
            while at < state.size and (block := os.pread(descriptor, min(_BLOCK, state.size - at), at)):
                os.pwrite(out, block, at)
                at += len(block)
        self._copied[relative] = state._replace(size=at)

    # ---- under the lock ---------------------------------------------------------------------------------------------

    @contextmanager
    def _held_metadata(self) -> Iterator[None]:
        file = f"{self._metadata_uri()}?mode=rw"
        with closing(sqlite3.connect(file, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)) as lock:
            try:
                lock.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as e:
                raise Unavailable(f"the metadata {self._source / METADATA_FILE} cannot be held: {e}") from e
            began = self._clock.monotonic()
            self._deadline = began + HOLD_SECONDS_MAX
            try:
                yield
            finally:
                lock.execute("ROLLBACK")
                self.held_seconds = self._clock.monotonic() - began

    def _metadata_uri(self) -> str:
        return (self._source / METADATA_FILE).absolute().as_uri()  # encoded: SQLite decodes its URIs

    def _note_all(self) -> None:
        self._moment, self._small = {}, 0
        copy = self._target / METADATA_FILE
        copy.unlink(missing_ok=True)
        source = f"{self._metadata_uri()}?mode=ro"
        with closing(sqlite3.connect(source, uri=True)) as metadata, closing(sqlite3.connect(copy)) as written:
            metadata.backup(written)
        copy.chmod(names.FILE_MODE)
        for name in _FIRST:
            with suppress(FileNotFoundError):
                self._note(name, must_read=True)
        # Before the logs are looked for: a log of which nothing was there yet must not have an end that says otherwise.
        for name in filter(names.is_log_ends_file, os.listdir(self._source)):
            with suppress(FileNotFoundError):
                self._note(name, must_read=True)  # it is mapped memory
        folders = [(folder, names.parse_tablet_folder(folder.path)) for folder in self._folders("")]
        for folder, bucket in folders:
            if bucket is None and names.parse_tablet_folder(os.path.dirname(folder.path)) is None:
                for file in folder.files:
                    if not names.is_log_ends_file(file):
                        with suppress(FileNotFoundError):  # of a table that was dropped before
                            self._note(file)
        for folder, bucket in folders:  # behind the offsets of lake snapshots, which must not be ahead of the logs
            if bucket is not None and bucket.kind == "log":
                self._note_bucket(folder.path)

    def _note_bucket(self, log: str) -> None:
        """A log, with the checkpoint of its state: again until the log has all from the checkpoint on."""
        while True:
            self._check_time()
            noted: dict[str, _FileState] = {}
            try:
                self._note_log_and_state(log, noted)
            except (_FolderChanged, FileNotFoundError):
                _close(noted)
                if not (self._source / log).exists():  # of a table that was dropped before
                    return
                continue
            except BaseException:
                _close(noted)
                raise
            self._moment |= noted
            return

    def _note_log_and_state(self, log: str, noted: dict[str, _FileState]) -> None:
        state = f"{os.path.dirname(log)}/{os.path.basename(log).replace('log-', 'kv-', 1)}"
        replay_offset = None
        if (self._source / state).exists():
            checkpoint_names = checkpoints(LocalFileSystem(), str(self._source / state))
            replay_offset = 0
            if checkpoint_names:
                replay_offset = int(checkpoint_names[-1].rpartition("-")[2])
                for folder in self._folders(f"{state}/{checkpoint_names[-1]}"):
                    for file in folder.files:
                        self._note(file, noted)
        files = [(names.parse_offset_file(name), name) for name in os.listdir(self._source / log)]
        parsed = sorted((offset, suffix, name) for kind, name in files if kind for offset, suffix in [kind])
        segments = [offset for offset, suffix, _ in parsed if suffix == names.LOG_SUFFIX]
        starts = [offset for offset, suffix, _ in parsed if suffix == names.LOG_START_SUFFIX]
        limit = min([*([] if replay_offset is None else [replay_offset]), *starts[-1:]], default=None)
        if limit is not None and segments and segments[0] > limit:
            raise _FolderChanged
        for suffix in _SUFFIX_ORDER:
            for offset, kind, name in parsed:
                if kind == suffix:
                    self._note(f"{log}/{name}", noted, must_read=offset >= segments[-1] if segments else False)

    def _note(self, relative: str, into: dict[str, _FileState] | None = None, *, must_read: bool = False) -> None:
        """Note a file's length; keep its content, or keep it open, unless the copy has it. `must_read`: it may have
        changed without a trace. Raises `FileNotFoundError`.
        """
        self._check_time()
        noted = self._moment if into is None else into
        path = self._source / relative
        if not must_read:
            state = _version_of(os.stat(path))
            if self._copied.get(relative) == state:
                noted[relative] = _FileState(state)
                return
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            if isinstance(e, FileNotFoundError):
                raise
            raise LimitExceeded(
                f"{path} cannot be opened while {len(self._moment)} files are open: {e}. Raise the limit of open files "
                "(ulimit -n), or stop the server"
            ) from e
        try:
            state = _version_of(os.fstat(descriptor))
            is_small = state.size <= _SMALL_BYTES and self._small + state.size <= _SMALL_BYTES_ALL
            if is_small:
                noted[relative] = _FileState(state, os.pread(descriptor, state.size, 0))
                self._small += state.size
            else:
                noted[relative] = _FileState(state, None, descriptor)
        finally:
            if relative not in noted or noted[relative].descriptor is None:
                os.close(descriptor)

    def _check_time(self) -> None:
        if self._clock.monotonic() > self._deadline:
            raise _LockHeldTooLong

    # ---- afterwards -------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        total = sum(held.state.size for held in self._moment.values())
        for relative, held in self._moment.items():
            if held.content is not None:
                to = self._target / relative
                to.parent.mkdir(mode=names.FOLDER_MODE, parents=True, exist_ok=True)
                with _opened_for_writing(to) as out:
                    os.ftruncate(out, 0)
                    os.pwrite(out, held.content, 0)
            elif held.descriptor is not None:
                self._write(relative, held.descriptor, held.state)
            self.files, self.bytes = self.files + 1, self.bytes + held.state.size
            self._on_bytes(self.bytes, total)
        self._remove_others()
        for folder, _, files in os.walk(self._target, topdown=False):
            for name in files:
                sync_path(os.path.join(folder, name))
            sync_path(folder)

    def _remove_others(self) -> None:
        """Remove what the copy has from before the moment."""
        current = {METADATA_FILE, *self._moment}
        for folder, folders, files in os.walk(self._target, topdown=False):
            for name in files:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self._target) not in current:
                    os.unlink(path)
            for name in folders:
                with suppress(OSError):  # not empty
                    os.rmdir(os.path.join(folder, name))

    def _close(self) -> None:
        _close(self._moment)
        self._moment = {}


class _Folder(NamedTuple):
    path: str
    files: list[str]


def _version_of(status: os.stat_result) -> _Version:
    return _Version(status.st_ino, status.st_size, status.st_mtime_ns)


def _is_left_out(name: str, folder: str) -> bool:
    """Unfinished and removed files, and the files of an engine that runs."""
    if name.endswith(names.TEMPORARY_SUFFIX) or names.is_deleted(name):
        return True
    bucket = names.parse_tablet_folder(folder)
    return bucket is not None and bucket.kind == "kv" and not name.startswith("checkpoint-")


@contextmanager
def _opened_for_writing(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, names.FILE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _close(noted: dict[str, _FileState]) -> None:
    for held in noted.values():
        if held.descriptor is not None:
            os.close(held.descriptor)
    noted.clear()


def sync_path(path: str | os.PathLike[str]) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
