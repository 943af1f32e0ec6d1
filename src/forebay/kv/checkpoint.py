"""Durable copies of the key-value state, and which of its files may be trusted after a restart.

An engine does not sync its files. After a graceful shutdown they are trusted if their checksums are unchanged. After a
crash of the process alone they are trusted if the kernel provably has every page that was written: a witness of the
page cache (`base.host.page_cache_witnesses`) is the same as when the files were opened. LMDB's file is then also walked
(`kv.lmdb.lmdb_file`): its trees must be sound, and its rows must match the digest of the writes; the engine `hlog`
checks the same whenever it is opened. Otherwise, and if the engine finds them damaged, the files are discarded: the
state is restored from the newest checkpoint with correct checksums, or from an empty state, and from the changelog
after it.
The log therefore keeps everything from the newest checkpoint's offset on (`retained_offset`).

A checkpoint is valid only if its rows match their digest (`hlog`: their own checksums). A state that fails this check
is not trusted after the next close.

Layout of a `kv-<bucket>` folder (docs/format/value_batch.md): `db/` the engine's files; `trust` says "clean" with the
listing of their checksums (`kv.file_checksums`), or "in use" with the witnesses; `checkpoint-<20-digit offset>/`
durable copies, of which the newest is kept, each with its listing in `checksums`. A copy is written under a temporary
name and renamed when it is complete. It has the suffix `-clean` if there is one of the same offset already, from before
the engine was cleaned.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from forebay.base.errors import CorruptData, StorageFailure
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.kv.engine import EngineFactory, KvEngine
from forebay.kv.file_checksums import ListedFile, first_difference, list_files, listed_files, listing_of, sync_files
from forebay.kv.lmdb.lmdb_file import check_engine_files

_LOGGER = logging.getLogger(__name__)

_ENGINE_FOLDER = "db"
_TRUST_FILE = "trust"
_CLEAN = "clean\n"
_IN_USE = "in use\n"
_CHECKPOINT_PREFIX = "checkpoint-"
_OFFSET_DIGITS = 20
_CLEAN_SUFFIX = "-clean"
_CHECKSUMS_FILE = "checksums"
_COPY_CHUNK_BYTES = 4 << 20

PageCacheWitnesses = Callable[[str], frozenset[str]]
"""Returns proof that the kernel has not lost a page of a folder's files: see `base.host.page_cache_witnesses`."""


class Trust(Enum):
    """The state of the engine's files according to the file `trust`."""

    MISSING = "missing"
    DAMAGED = "damaged"
    CLEAN = "clean"
    IN_USE = "in use"


class TrustMark(NamedTuple):
    """The content of the file `trust`: the state, with the listing (`CLEAN`) or the witnesses (`IN_USE`)."""

    kind: Trust
    text: str = ""


def trust_mark(fs: FileSystem, path: str) -> TrustMark:
    """Return the content of the file `trust` in the folder `path`."""
    try:
        text = fs.read_bytes(names.join(path, _TRUST_FILE)).decode("utf-8", "replace")
    except FileMissing:
        return TrustMark(Trust.MISSING)
    for kind, head in ((Trust.CLEAN, _CLEAN), (Trust.IN_USE, _IN_USE)):
        if text.startswith(head):
            return TrustMark(kind, text.removeprefix(head))
    return TrustMark(Trust.DAMAGED)


def checkpoints(fs: FileSystem, path: str) -> list[str]:
    """Return the names of the complete checkpoints in the folder `path`, oldest first."""
    try:
        entries = fs.list_directory(path)
    except FileMissing:
        return []
    return [
        entry.name
        for entry in entries
        if entry.name.startswith(_CHECKPOINT_PREFIX) and not entry.name.endswith(names.TEMPORARY_SUFFIX)
    ]


def damage_of_checkpoint(fs: FileSystem, path: str) -> str | None:
    """Return what is wrong with the checkpoint `path`, or None. Raises `StorageFailure` if reading fails."""
    try:
        listing = fs.read_bytes(names.join(path, _CHECKSUMS_FILE)).decode("utf-8", "replace")
        return first_difference(fs, path, listing)
    except FileMissing as e:
        return e.message


class Checkpoint(NamedTuple):
    """A durable copy of the state: the changelog offset that it contains (exclusive), its folder, and its files."""

    offset: int
    path: str
    files: Sequence[ListedFile]


def write_fetched_checkpoint(
    fs: FileSystem,
    path: str,
    offset: int,
    files: Iterable[tuple[ListedFile, Iterable[bytes]]],
    *,
    guard: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Put a checkpoint that was copied elsewhere into the folder `path` of a state: durable, or not there.

    It is newer than those that are there, or was cleaned since, and they are removed. Each change of the folder is made
    inside of a `guard`; the error that it raises ends the work. Raises the errors of reading the `files`, too.
    """
    final = names.join(path, f"{_CHECKPOINT_PREFIX}{offset:0{_OFFSET_DIGITS}d}")
    if fs.exists(final):
        final += _CLEAN_SUFFIX  # beside the other one, which is valid until this one is
    temporary = final + names.TEMPORARY_SUFFIX
    with guard():
        fs.remove_tree(temporary)
        fs.make_directories(temporary)
    listed = []
    for file, chunks in files:
        listed.append(file)
        with contextlib.closing(fs.open_append(names.join(temporary, file.name))) as copy:
            for chunk in chunks:
                copy.append([chunk])
            copy.sync()
    with guard():
        fs.write_atomic(names.join(temporary, _CHECKSUMS_FILE), listing_of(listed).encode())
        fs.rename(temporary, final)
        fs.sync_directory(path)
        for old in checkpoints(fs, path)[:-1]:
            fs.remove_tree(names.join(path, old))


def _offset_of(checkpoint: str) -> int:
    return int(checkpoint.rpartition("/")[2].removeprefix(_CHECKPOINT_PREFIX)[:_OFFSET_DIGITS])


class KvFolder:
    """The folder of one bucket's key-value state."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._engine_path = names.join(path, _ENGINE_FOLDER)
        self._trust_path = names.join(path, _TRUST_FILE)
        self._found_damaged = False
        self._pinned: str | None = None

    @contextlib.contextmanager
    def pinned_checkpoint(self) -> Iterator[Checkpoint | None]:
        """Yield the newest checkpoint, which stays during the block; None without one. One caller at a time.

        Raises `CorruptData` if its listing is damaged; its files are not read.
        """
        newest = self._newest_checkpoint()
        self._pinned = None if newest is None else newest.rpartition("/")[2]
        try:
            if newest is None:
                yield None
                return
            listing = self._fs.read_bytes(names.join(newest, _CHECKSUMS_FILE)).decode("utf-8", "replace")
            yield Checkpoint(_offset_of(newest), newest, listed_files(listing))
        finally:
            self._pinned = None

    def open_engine(
        self, factory: EngineFactory, witnesses: PageCacheWitnesses, *, is_parked: bool = False
    ) -> KvEngine:
        """Open the engine on trusted files: its own, else those of the newest checkpoint, or none.

        `is_parked`: `park_engine` closed it last. Nothing is written then, so it works on a full disk.
        """
        if not (is_parked and self._fs.exists(self._trust_path)):
            self._prepare(witnesses)
        try:
            return factory(Path(self._engine_path))
        except CorruptData as e:
            _LOGGER.warning("%s; restoring it from a checkpoint and the changelog", e.message)
            self._fs.remove_tree(self._engine_path)
            self._restore()
            return factory(Path(self._engine_path))

    def _prepare(self, witnesses: PageCacheWitnesses) -> None:
        """Put trusted files in place, and mark them as in use."""
        self._fs.make_directories(self._path)
        self._remove_leftovers()
        if not self.is_trusted(witnesses):
            self._fs.remove_tree(self._engine_path)
        if not self._fs.exists(self._engine_path):
            self._restore()
        self._fs.make_directories(self._engine_path)
        in_use = _IN_USE + "".join(f"{witness}\n" for witness in sorted(witnesses(self._engine_path)))
        self._fs.write_atomic(self._trust_path, in_use.encode())

    def close_engine(self, engine: KvEngine) -> None:
        """Close the engine so that its files will be trusted even after a crash of the machine."""
        self.park_engine(engine)
        self.mark_clean()

    def park_engine(self, engine: KvEngine) -> None:
        """Close the engine durably, to be reopened by this process.

        Unlike `mark_clean`, which reads files to compute checksums, this reads none: large state may be parked often.
        """
        try:
            try:
                engine.sync()
            finally:
                engine.close()
            sync_files(self._fs, self._engine_path)
        except StorageFailure:
            # The kernel may have dropped unwritten pages, and reports that only once.
            self._fs.remove(self._trust_path)
            raise
        if self._found_damaged:
            self._fs.remove(self._trust_path)

    def mark_clean(self) -> None:
        """Mark a parked engine's files as trusted, even after a crash of the machine, unless they are damaged."""
        if self._found_damaged:
            return
        self._fs.write_atomic(self._trust_path, (_CLEAN + list_files(self._fs, self._engine_path)).encode())

    def discard_engine(self) -> None:
        """Discard the engine's files (it must be closed); `open_engine` will start from the newest checkpoint."""
        self._fs.remove_tree(self._engine_path)

    def is_trusted(self, witnesses: PageCacheWitnesses) -> bool:
        """Return whether the engine's files may be used; a reason against that is logged."""
        mark = trust_mark(self._fs, self._path)
        if not self._fs.exists(self._engine_path):
            return False
        if mark.kind != Trust.CLEAN:
            return mark.kind == Trust.IN_USE and self._has_its_pages(mark.text, witnesses)
        damage = first_difference(self._fs, self._engine_path, mark.text)
        if damage is not None:
            _LOGGER.warning(
                "the key-value state was changed since the server closed it: %s; restoring it from a checkpoint and "
                "the changelog",
                damage,
            )
        return damage is None

    def _has_its_pages(self, recorded: str, witnesses: PageCacheWitnesses) -> bool:
        """Return whether the kernel provably has every page of files that were not closed."""
        if not witnesses(self._engine_path).isdisjoint(recorded.splitlines()):
            try:
                check_engine_files(self._fs, self._engine_path)
            except (CorruptData, FileMissing) as e:
                _LOGGER.warning("%s; restoring it from a checkpoint and the changelog", e.message)
                return False
            return True
        _LOGGER.info(
            "the key-value state in %s was not closed, and nothing proves that the system still has all that was "
            "written (the machine restarted, or the file system was mounted again); restoring it from a checkpoint and "
            "the changelog",
            self._path,
        )
        return False

    def _restore(self) -> None:
        """Replace the engine's files by those of the newest undamaged checkpoint, if there is one."""
        while (newest := self._newest_checkpoint()) is not None:
            damage = damage_of_checkpoint(self._fs, newest)
            if damage is None:
                self._copy_files(newest, self._engine_path)
                return
            _LOGGER.warning("ignoring a damaged checkpoint of the key-value state: %s", damage)
            self._fs.remove_tree(newest)

    def _copy_files(self, source: str, target: str) -> None:
        """Copy the files of a checkpoint into the new folder `target`, which need not be durable."""
        self._fs.make_directories(target)
        for entry in self._fs.list_directory(source):
            if entry.is_directory or entry.name == _CHECKSUMS_FILE:
                continue
            reader = self._fs.open_reader(names.join(source, entry.name))
            copy = self._fs.open_append(names.join(target, entry.name))
            try:
                while chunk := reader.pread(copy.size, _COPY_CHUNK_BYTES):
                    copy.append([chunk])
            finally:
                copy.close()
                reader.close()

    def write_checkpoint(
        self, engine: KvEngine, sync_log: Callable[[], object] = lambda: None, *, replaces: bool = False
    ) -> int:
        """Write a durable copy of the engine's rows; return the changelog offset that it contains (exclusive).

        `sync_log` makes the changelog durable. It is called before the copy becomes valid: a copy with changes that the
        log loses in a power failure would not be a state of that log. `replaces`: the engine was cleaned, so a copy as
        of the same offset is written again.
        """
        offset = engine.state.applied_offset
        final = names.join(self._path, f"{_CHECKPOINT_PREFIX}{offset:0{_OFFSET_DIGITS}d}")
        if self._fs.exists(final) and replaces:
            final += _CLEAN_SUFFIX  # beside the other one, which is valid until this one is
        if self._fs.exists(final) or self._fs.exists(final + _CLEAN_SUFFIX):
            return offset
        temporary = final + names.TEMPORARY_SUFFIX
        try:
            newest = self._newest_checkpoint()
            engine.checkpoint(Path(temporary), None if newest is None else Path(newest))
            check_engine_files(self._fs, temporary)
            sync_files(self._fs, temporary)
            self._fs.write_atomic(names.join(temporary, _CHECKSUMS_FILE), list_files(self._fs, temporary).encode())
            sync_log()
            self._fs.rename(temporary, final)
        except (StorageFailure, CorruptData) as failure:
            self._found_damaged = self._found_damaged or isinstance(failure, CorruptData)
            # A partial copy would take space on a full disk, and block the next one.
            with contextlib.suppress(StorageFailure):
                self._fs.remove_tree(temporary)
            raise
        self._fs.sync_directory(self._path)
        for old in checkpoints(self._fs, self._path)[:-1]:
            if old != self._pinned:
                self._fs.remove_tree(names.join(self._path, old))
        return offset

    @property
    def is_new(self) -> bool:
        """Whether the folder has no state: neither an engine's files nor a checkpoint."""
        return not self._fs.exists(self._engine_path) and self._newest_checkpoint() is None

    @property
    def retained_offset(self) -> int:
        """Return the offset from which the changelog is needed if the engine's own files are lost."""
        folders = checkpoints(self._fs, self._path)
        return _offset_of(folders[-1]) if folders else 0

    def _newest_checkpoint(self) -> str | None:
        folders = checkpoints(self._fs, self._path)
        return names.join(self._path, folders[-1]) if folders else None

    def _remove_leftovers(self) -> None:
        """Remove partial checkpoints and trust files that a crash left."""
        for entry in self._fs.list_directory(self._path):
            if entry.name.endswith(names.TEMPORARY_SUFFIX):
                path = names.join(self._path, entry.name)
                if entry.is_directory:
                    self._fs.remove_tree(path)
                else:
                    self._fs.remove(path)
