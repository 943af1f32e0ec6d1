"""The key-value engine `lmdb`: LMDB through py-lmdb.

LMDB is a copy-on-write B-tree in a memory map: readers get snapshots for free and never block the writer. Commits are
not synced (the changelog is the log of record), so files that a power failure may have torn must be discarded and
rebuilt; after a crash of the process alone they are whole. `WRITEMAP` halves the cost of a write (docs/benchmarks.md);
its risk is that a full disk becomes a fatal signal, so space is allocated before each write (`forebay.kv.map_space`),
and file systems on which that is no guarantee are written without it.

The map grows with the data, and LMDB allows that only without readers. So it grows in advance, at a moment without
readers. When the map is full, the engine waits for short reads, and asks the owner of open snapshots to close them.

LMDB keys hold 511 bytes. Longer keys are stored under their first 478 bytes plus a SHA-256 digest, with the whole key
in a separate table. Only the order of keys that share 478 leading bytes differs from the order of whole keys.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import lmdb

from forebay.base import threads
from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, StorageFailure, check
from forebay.base.host import untouched_blocks
from forebay.fs import names
from forebay.fs.interface import RESERVE_BYTES, DiskFull
from forebay.fs.local_words import allocates_in_place
from forebay.kv.buffered_writes import BufferedWrites, WriteSize, size_of
from forebay.kv.engine import UNBOUNDED, EngineState, KvPage, KvRows
from forebay.kv.lmdb.lmdb_file import DATA_FILE, LONG_KEY_BYTES, LONG_KEYS, META, ROWS, STATE_KEY
from forebay.kv.lmdb.pages import PAGE_BYTES, TreeSize, pages_at_most
from forebay.kv.map_space import MapSpace, allocate_file
from forebay.kv.value_pages import NO_ROWS, just_longer_than, page_of, rows_of

MAP_BYTES_START = 256 << 20
"""Address space that a new bucket reserves; the file is sparse after the allocated part (`MapSpace`)."""

MAP_GROWTH = 4
"""The factor by which a full map grows."""

READERS_MAX = 1024
"""LMDB's table of reading transactions; scans are limited long before (kv.scanner.max-per-bucket)."""

_LOCK_FILE = "lock.mdb"
# The sizes of the lock file's head and of one reader's entry, at most, in LMDB.
_LOCK_HEAD_BYTES = 4096
_LOCK_READER_BYTES = 64
_LOCK_STEP_READERS = 192
"""The table of readers is written through a map as well. It is allocated in steps of this many readers, part of which
is reserved for short reads."""
_FIRST_PAGES_BYTES = 256 << 10
"""Space that is allocated in advance when an engine is opened, so that the first writes need not allocate any."""
_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
_KEY_BYTES_MAX = 511
"""LMDB's limit for keys."""


class LmdbSnapshot:
    """A read transaction: the rows and the state at one point in time."""

    def __init__(self, engine: LmdbEngine, transaction: Any, rows: Any) -> None:
        self._engine = engine
        self._transaction: Any = transaction
        self._rows = rows
        self.state = engine.read_state(transaction)

    def values(self) -> Iterator[bytes]:
        transaction = self._transaction
        check(transaction is not None, "a closed KV snapshot was read")
        return iter(transaction.cursor(db=self._rows).iternext(keys=False, values=True))

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        """See `KvSnapshot.page`. A position is the stored key of a row; the cursor searches for it once."""
        transaction = self._transaction
        check(transaction is not None, "a closed KV snapshot was read")
        cursor = transaction.cursor(db=self._rows)
        if after is None:
            has_row = cursor.first()
        elif 0 < len(after) <= _KEY_BYTES_MAX:
            has_row = cursor.set_range(after) and (cursor.key() != after or cursor.next())
        else:
            raise InvalidRequest(f"{len(after)} bytes cannot be a position in a bucket's rows")

        def position() -> bytes:
            key: bytes = cursor.key()
            if not key and cursor.last():  # behind the last row
                key = cursor.key()
            return key

        return page_of(cursor.iternext(keys=False, values=True), position, bytes_max, rows_max) if has_row else NO_ROWS

    def rows(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvRows:
        return rows_of(self.page(after, bytes_max, rows_max))

    def close(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort()
            self._engine.snapshot_closed()


class LmdbEngine:
    """One bucket's rows in one LMDB environment."""

    name = "lmdb"

    def __init__(
        self,
        directory: Path,
        map_bytes: int = MAP_BYTES_START,
        *,
        kept_free: Callable[[], int] = lambda: RESERVE_BYTES,
        write_map: bool | None = None,
    ) -> None:
        """`kept_free`: bytes of the disk that writes leave free. `write_map`: whether to write through the map; None
        asks the file system.
        """
        directory.mkdir(names.FOLDER_MODE, parents=True, exist_ok=True)
        self._directory = directory
        self._writes_map = allocates_in_place(directory) if write_map is None else write_map
        self._space = MapSpace(directory / DATA_FILE, kept_free)
        self._short_reads = 0
        self._snapshots = 0
        self._reads = threads.condition()
        self._writing = threads.lock()
        self._closed = False
        self.close_snapshots: Callable[[], None] = _keep_snapshots
        held = _file_bytes(directory)
        self._environment: Any = None
        self._reader_room = 0
        self._make_reader_room()
        try:
            # It allocates 3 MB for the greatest transaction that may be, and uses what the greatest one needed.
            with untouched_blocks():
                # py-lmdb's stubs say `bytes | memoryview` throughout; without `buffers=True` it is bytes.
                self._environment = lmdb.open(
                    str(directory),
                    map_size=map_bytes,
                    sync=False,
                    metasync=False,
                    writemap=self._writes_map,
                    map_async=True,
                    meminit=False,
                    max_dbs=3,
                    max_readers=READERS_MAX,
                    mode=names.FILE_MODE,
                )
            used = self._used_bytes()
            if 0 < held < used:
                raise _damage(directory, f"it has {held} bytes and had {used} or more")
            if self._writes_map:
                self._space.begin(used if held else used + _FIRST_PAGES_BYTES, self._map_bytes())
            self._rows = self._environment.open_db(ROWS)
            self._long_keys = self._environment.open_db(LONG_KEYS)
            self._meta = self._environment.open_db(META)
            with self._environment.begin() as transaction:
                self._state = self.read_state(transaction)
        except BaseException as e:
            self._close_environment()
            if isinstance(e, (*_DAMAGE, ValueError)):
                raise _damage(directory, str(e)) from e
            if isinstance(e, lmdb.Error):
                raise _failure(f"cannot open the key-value state in {directory}", e) from e
            raise

    def _used_bytes(self) -> int:
        """Return the bytes of the data file that hold pages; the rest is room to grow."""
        return int((self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"])

    @property
    def state(self) -> EngineState:
        return self._state

    def read_state(self, transaction: Any) -> EngineState:
        """Return the state that `transaction` sees."""
        data = transaction.get(STATE_KEY, db=self._meta)
        return EngineState() if data is None else EngineState.from_bytes(data)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        stored = keys if max(map(len, keys)) <= LONG_KEY_BYTES else [_stored_key(key) for key in keys]
        with self._reading(self._rows) as transaction:
            return list(map(transaction.get, stored))  # faster than `getmulti` and sorted keys (measured)

    def prefix(self, prefix: bytes, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """See `KvEngine.prefix`. Keys too long for LMDB are found by their stored part, then compared whole."""
        left = bytes_max
        stored_prefix = prefix[:LONG_KEY_BYTES]
        values: list[bytes] = []
        with self._reading() as transaction:
            cursor = transaction.cursor(db=self._rows)
            if not cursor.set_range(stored_prefix):
                return values
            for key, value in cursor:
                if not key.startswith(stored_prefix):
                    break
                if len(prefix) > LONG_KEY_BYTES and not self._whole_key(transaction, key).startswith(prefix):
                    continue
                values.append(value)
                left -= len(value)
                if left < 0:
                    break
        return values

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        with self._reading() as transaction:
            for key, value in transaction.cursor(db=self._rows):
                yield self._whole_key(transaction, key), value

    def _whole_key(self, transaction: Any, stored: bytes) -> bytes:
        if len(stored) <= LONG_KEY_BYTES:
            return stored
        whole: bytes = transaction.get(stored, db=self._long_keys)
        return whole

    def first(self, limit: int, bytes_max: int = UNBOUNDED) -> list[bytes]:
        with self._reading() as transaction:
            cursor = transaction.cursor(db=self._rows)
            return just_longer_than(bytes_max, islice(cursor.iternext(keys=False, values=True), limit))

    def snapshot(self) -> LmdbSnapshot:
        """Open a read transaction. The reader table grows first if it is nearly full. Raises `StorageFailure`."""
        with self._reads:
            self._require_open()
            if self._snapshots >= self._reader_room - _LOCK_STEP_READERS // 3:
                self._make_reader_room()
            try:
                snapshot = LmdbSnapshot(self, self._environment.begin(), self._rows)
            except lmdb.Error as e:
                raise _failure(f"cannot take a snapshot of {self._directory}", e) from e
            self._snapshots += 1
            return snapshot

    def _make_reader_room(self) -> None:
        """Allocate the table of readers for another step of readers."""
        self._reader_room = min(self._reader_room + _LOCK_STEP_READERS, READERS_MAX)
        size = _LOCK_HEAD_BYTES + self._reader_room * _LOCK_READER_BYTES
        allocate_file(self._directory / _LOCK_FILE, 0, size)

    def snapshot_closed(self) -> None:
        """Note that a snapshot has released its transaction."""
        with self._reads:
            self._snapshots -= 1
            self._reads.notify_all()

    @contextmanager
    def _reading(self, table: Any = None) -> Iterator[Any]:
        """A short read transaction; `table` is the default of its calls."""
        with self._reads:
            self._require_open()
            self._short_reads += 1
        try:
            with self._environment.begin(db=table) as transaction:
                yield transaction
        except lmdb.Error as e:
            raise _failure(f"cannot read the key-value state in {self._directory}", e) from e
        finally:
            with self._reads:
                self._short_reads -= 1
                self._reads.notify_all()

    # ---- writing ----------------------------------------------------------------------------------------------------

    def begin(self, keeps_digest: bool) -> BufferedWrites:
        return BufferedWrites(self, keeps_digest)

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        """See `KvEngine.apply`. Keys are written in order, and the map grows first if the writes might not fit."""
        # Pairs are sorted, not keys: looking every key's value up in key order would miss the cache at each row.
        pairs: list[tuple[bytes, Any]] = sorted(writes.items(), key=itemgetter(0))
        longest = max(map(len, writes), default=0)
        long_keys = (
            [] if longest <= LONG_KEY_BYTES else [(_stored_key(k), k) for k, _ in pairs if len(k) > LONG_KEY_BYTES]
        )
        puts = pairs
        deletes: list[bytes] = []
        if None in writes.values():
            puts = [(key, value) for key, value in pairs if value is not None]
            deletes = [key for key, value in pairs if value is None]
        if long_keys:
            puts = [(_stored_key(key), value) for key, value in puts]
            deletes = [_stored_key(key) for key in deletes]
        with self._writing:
            self._require_open()
            self._growing(size_of(writes), lambda: self._apply(puts, deletes, long_keys, state))
            self._state = state
            if self._writes_map:
                self._space.release(self._used_bytes(), self._map_bytes())

    def _apply(
        self,
        puts: list[tuple[bytes, bytes]],
        deletes: list[bytes],
        long_keys: list[tuple[bytes, bytes]],
        state: EngineState,
    ) -> None:
        with self._environment.begin(write=True) as transaction:
            if puts:
                transaction.cursor(db=self._rows).putmulti(puts)
            for stored, key in long_keys:
                transaction.put(stored, key, db=self._long_keys)
            for stored in deletes:
                transaction.delete(stored, db=self._rows)
                if len(stored) > LONG_KEY_BYTES:
                    transaction.delete(stored, db=self._long_keys)
            transaction.put(STATE_KEY, state.to_bytes(), db=self._meta)

    def make_room(self, size: WriteSize) -> None:
        with self._writing:
            self._require_open()
            self._make_room(size)

    def _make_room(self, size: WriteSize) -> None:
        """Allocate space for a transaction of this size, which may begin now. With `_writing` held."""
        needed = pages_at_most(_with_long_keys(size), self._tree_size()) * PAGE_BYTES
        if not self._writes_map:
            self._space.require_free(needed)
            return
        used = self._used_bytes()
        if 2 * (used + needed) > self._map_bytes():
            self._grow_unless_read(2 * (used + needed))
        end = min(used + needed, self._map_bytes())
        self._space.allocate(end, self._map_bytes())

    def _tree_size(self) -> TreeSize:
        with self._environment.begin() as transaction:
            rows, long_keys = transaction.stat(self._rows), transaction.stat(self._long_keys)
        return TreeSize(
            max(rows["depth"], long_keys["depth"]),
            rows["branch_pages"] + long_keys["branch_pages"],
            rows["leaf_pages"] + long_keys["leaf_pages"],
            rows["overflow_pages"] + long_keys["overflow_pages"],
            self._environment.info()["last_pgno"] + 1,
        )

    def _growing(self, size: WriteSize, write: Callable[[], None]) -> None:
        """Run `write`; while the map is full, grow it and run `write` again (a failed transaction leaves no trace)."""
        while True:
            self._make_room(size)
            try:
                write()
                return
            except lmdb.MapFullError:
                self._grow()
            except lmdb.Error as e:
                raise _failure(f"cannot write the key-value state in {self._directory}", e) from e

    def _map_bytes(self) -> int:
        return int(self._environment.info()["map_size"])

    def _grow_unless_read(self, map_bytes: int) -> None:
        """Enlarge the map if there is no reader at the moment; otherwise the next write tries again."""
        if not self._reads.acquire(blocking=False):
            return
        try:
            if self._snapshots == 0 and self._short_reads == 0:
                self._resize(map_bytes)
        finally:
            self._reads.release()

    def _grow(self) -> None:
        """Enlarge the full map, asking the owner of open snapshots to close them."""
        self.close_snapshots()
        with self._reads:
            if self._snapshots:
                raise StorageFailure(
                    f"the key-value state in {self._directory} is full and cannot grow while {self._snapshots} "
                    "snapshots are open; close them, then repeat the write",
                    ErrorCode.KV_STORAGE_EXCEPTION,
                )
            self._reads.wait_for(lambda: self._short_reads == 0)
            # The condition's lock is held: no read can begin before the map has its new size.
            self._resize(self._map_bytes() + 1)

    def _resize(self, map_bytes: int) -> None:
        size = self._map_bytes()
        while size < map_bytes:
            size *= MAP_GROWTH
        try:
            self._environment.set_mapsize(size)
        except lmdb.Error as e:
            raise _failure(f"cannot enlarge the map of {self._directory} to {size} bytes", e) from e

    def clean(self) -> bool:
        return False

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        """Write a compacted copy; `previous` is not used. Raises `StorageFailure`, and `DiskFull` in advance."""
        try:
            directory.mkdir(names.FOLDER_MODE, parents=True)
            with self._reading():  # keeps the environment open; the copy has its own transaction
                self._space.require_free(self._used_bytes(), may_use_reserve=True)
                self._environment.copy(str(directory), compact=True)
            for target in (directory / DATA_FILE, directory):
                descriptor = os.open(target, os.O_RDONLY)
                try:
                    if target.is_file():  # LMDB creates it readable for everyone
                        os.fchmod(descriptor, names.FILE_MODE)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except (lmdb.Error, OSError) as e:
            raise _failure(f"cannot write a checkpoint to {directory}", e) from e

    def sync(self) -> None:
        try:
            with self._reading():
                self._environment.sync(True)
        except lmdb.Error as e:
            raise _failure(f"cannot sync the key-value state in {self._directory}", e) from e

    def close(self) -> None:
        """Close the environment once it is no longer in use: LMDB would crash a thread that still uses it.

        Releases the space that the data file has reserved beyond its pages, so that copying or checking it takes no
        longer than necessary.
        """
        with self._reads:
            if self._closed:
                return
            self._closed = True  # first: of a snapshot that is taken from now on its owner would not be asked to let go
        self.close_snapshots()
        with self._writing, self._reads:
            self._reads.wait_for(lambda: self._short_reads == 0 and self._snapshots == 0)
            used = self._used_bytes()
            self._close_environment()
            with contextlib.suppress(FileNotFoundError):  # the folder of a dropped table may be gone already
                os.truncate(self._directory / DATA_FILE, used)

    def _close_environment(self) -> None:
        if self._environment is not None:
            self._environment.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StorageFailure(
                f"the key-value state in {self._directory} is closed", ErrorCode.NOT_LEADER_OR_FOLLOWER
            )


def _keep_snapshots() -> None:
    """Close no snapshot: an engine without an owner cannot grow while snapshots are open."""


def _stored_key(key: bytes) -> bytes:
    """Return `key` itself (the same object) if LMDB can hold it, otherwise its prefix and digest."""
    if len(key) <= LONG_KEY_BYTES:
        # LMDB has no empty keys, but a primary key has at least one column and so at least one byte.
        return key
    return key[:LONG_KEY_BYTES] + hashlib.sha256(key).digest()


def _file_bytes(directory: Path) -> int:
    try:
        return (directory / DATA_FILE).stat().st_size
    except FileNotFoundError:
        return 0


def _damage(directory: Path, reason: str) -> CorruptData:
    return CorruptData(
        f"the key-value state in {directory / DATA_FILE} is damaged: {reason}", ErrorCode.KV_STORAGE_EXCEPTION
    )


def _with_long_keys(size: WriteSize) -> WriteSize:
    """Return `size` plus the writes to the table of whole keys, which has a row for each long key."""
    if size.longest_key <= LONG_KEY_BYTES:
        return size
    key_bytes = size.keys * _KEY_BYTES_MAX
    return size + WriteSize(
        size.keys, size.deletes, size.total_bytes + key_bytes, _KEY_BYTES_MAX, size.keys, size.total_bytes
    )


def _failure(what: str, error: Exception) -> StorageFailure:
    if getattr(error, "code", None) == errno.ENOSPC or isinstance(error, lmdb.DiskError):
        return DiskFull(f"{what}: {error}; free space on this disk, then try again", ErrorCode.KV_STORAGE_EXCEPTION)
    return StorageFailure(f"{what}: {error}", ErrorCode.KV_STORAGE_EXCEPTION)
