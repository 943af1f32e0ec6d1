"""A key-value engine that is used only where it is named: RocksDB through rocksdict, for state far larger than memory.

The write-ahead log is off (the changelog is the log of record), so after a crash RocksDB returns with its last flush:
older, but consistent, because rows and state are in one column family and one write batch. The state is stored under
the empty key, which no row has. rocksdict's `write` and iterators hold the GIL; a write stall stalls the server
with it, which is why `auto` never chooses it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from forebay.base import threads
from forebay.base.errors import (
    CorruptData,
    ErrorCode,
    InternalError,
    InvalidRequest,
    StorageFailure,
    UnsupportedOperation,
    check,
)
from forebay.fs import names
from forebay.fs.interface import RESERVE_BYTES, DiskFull
from forebay.kv.buffered_writes import BufferedWrites, WriteSize
from forebay.kv.engine import UNBOUNDED, EngineState, KvPage, KvRows
from forebay.kv.map_space import MapSpace
from forebay.kv.value_pages import just_longer_than, page_of, rows_of

_DAMAGE = ("Corruption", "No such file", "is not the state")
"""Words in RocksDB's errors, and in ours, that no transient failure can cause."""

_NO_SPACE = os.strerror(errno.ENOSPC)

_REMEDY = "stop the server, remove the folder and start again: it will be rebuilt from the changelog"
_UNREADABLE = f"a block in the middle cannot be read; {_REMEDY}"

_STATE_KEY = b""
_FIRST_ROW_KEY = b"\x00"  # the smallest key that is not empty
_WRITE_BUFFER_BYTES = 16 << 20


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError as e:
        raise UnsupportedOperation(
            "the 'rocksdb' key-value engine needs the package rocksdict: pip install 'forebay[rocksdb]'"
        ) from e
    return rocksdict


class RocksDbSnapshot:
    """The rows and the state at one point in time: when its two iterators were created, between two writes.

    rocksdict's own snapshots are not used: reads through them include later writes (0.3.29).
    """

    def __init__(self, database: Any, directory: Path) -> None:
        """Must not run beside a write. Raises `CorruptData` if RocksDB finds its files damaged, as `values` does."""
        self._values: Iterator[bytes] | None = iter(database.values())
        end = RocksDbEnd(database, directory)
        self._end: RocksDbEnd | None = end
        # Every write writes the state, whose key is the smallest.
        self.state = _state_of(next(self._values, None))
        if self.state.applied_offset == 0:
            end.require_nothing_from(_STATE_KEY)

    def values(self) -> Iterator[bytes]:
        end = self._end
        check(self._values is not None and end is not None, "a closed KV snapshot was read")
        last = None
        for last in self._values or ():
            yield last
        if end is not None:
            end.require(last)

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        end = self._end
        if end is None:
            raise InternalError("a closed KV snapshot was read")
        if after is not None and not after:
            raise InvalidRequest("0 bytes cannot be a position in a bucket's rows")
        return end.page(after, bytes_max, rows_max)

    def rows(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvRows:
        return rows_of(self.page(after, bytes_max, rows_max))

    def close(self) -> None:
        # Both iterators keep files and memory of RocksDB alive.
        self._values = self._end = None


class RocksDbEnd:
    """Checks whether an exhausted iterator has seen all rows.

    An iterator of rocksdict that meets a damaged block ends as if there were no more rows. So at its end, a second
    iterator, created at the same time, is consulted.
    """

    def __init__(self, database: Any, directory: Path) -> None:
        self._cursor = database.iter()
        self._directory = directory

    def require(self, last: bytes | None) -> None:
        """Raise `CorruptData` unless `last` (None: no row) is the stored value of the last key."""
        self._cursor.seek_to_last()
        self._require_sound()
        # Rows hold their keys, so no two values are equal.
        if self._cursor.valid() and self._cursor.key() != _STATE_KEY and self._cursor.value() != last:
            raise _damaged(self._directory, _UNREADABLE)

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        """Return rows from the first one on, or after `after`."""
        cursor = self._cursor
        cursor.seek(_FIRST_ROW_KEY if after is None else after)
        if after is not None and cursor.valid() and cursor.key() == after:
            cursor.next()

        def values() -> Iterator[bytes]:
            while cursor.valid():
                yield cursor.value()
                cursor.next()
            self._require_sound()

        def position() -> bytes:
            if not cursor.valid():  # behind the last row
                cursor.seek_to_last()
            key: bytes = cursor.key()
            return key

        return page_of(values(), position, bytes_max, rows_max)

    def require_nothing_from(self, key: bytes) -> None:
        """Raise `CorruptData` if there are keys from `key` on, or damage where they would be."""
        self._cursor.seek(key)
        self._require_sound()
        if self._cursor.valid():
            raise _damaged(self._directory, _UNREADABLE)

    def _require_sound(self) -> None:
        try:
            self._cursor.status()
        except Exception as e:
            raise _damaged(self._directory, f"{e}; {_REMEDY}") from e


class RocksDbEngine:
    """One bucket's rows in one RocksDB database."""

    name = "rocksdb"

    def __init__(self, directory: Path, *, kept_free: Callable[[], int] = lambda: RESERVE_BYTES) -> None:
        """`kept_free`: bytes of the disk that writes leave free."""
        self._space = MapSpace(directory / "CURRENT", kept_free)
        self._rocksdict = _rocksdict()
        self._directory = directory
        self._writing = threads.lock()
        directory.mkdir(names.FOLDER_MODE, parents=True, exist_ok=True)
        options = self._rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_compression_type(self._rocksdict.DBCompressionType.lz4())
        block_options = self._rocksdict.BlockBasedOptions()
        block_options.set_bloom_filter(10, False)
        options.set_block_based_table_factory(block_options)
        self._write_options = self._rocksdict.WriteOptions()
        self._write_options.disable_wal = True
        try:
            self._database = self._rocksdict.Rdict(str(directory), options)
            try:
                self._state = _state_of(self._database.get(_STATE_KEY))
            except BaseException:
                self._database.close()  # or this process could not open the folder again
                raise
        except Exception as e:
            if any(word in str(e) for word in _DAMAGE):
                raise _damaged(directory, str(e)) from e
            raise self._failure("open", e) from e

    @property
    def state(self) -> EngineState:
        return self._state

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = self._database.get(list(keys))
        except Exception as e:
            raise self._failure("read", e) from e
        return values

    def begin(self, keeps_digest: bool) -> BufferedWrites:
        return BufferedWrites(self, keeps_digest)

    def make_room(self, size: WriteSize) -> None:
        # The memtable, and this write, will be flushed later, in the background.
        self._space.require_free(2 * _WRITE_BUFFER_BYTES + size.total_bytes)

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key, value in writes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(_STATE_KEY, state.to_bytes())
        try:
            with self._writing:
                self._database.write(batch, self._write_options)
        except Exception as e:
            raise self._failure("write", e) from e
        self._state = state

    def prefix(self, prefix: bytes, bytes_max: int = UNBOUNDED) -> list[bytes]:
        left = bytes_max
        values: list[bytes] = []
        with self._writing:
            items = iter(self._database.items(from_key=prefix or _FIRST_ROW_KEY))
            end = RocksDbEnd(self._database, self._directory)
        for key, value in items:
            if not key.startswith(prefix):
                return values
            values.append(value)
            left -= len(value)
            if left < 0:
                return values
        if values:
            end.require(values[-1])
        else:
            end.require_nothing_from(prefix or _FIRST_ROW_KEY)
        return values

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, stored value) of all rows. Raises `CorruptData` if a block cannot be read."""
        with self._writing:
            items = iter(self._database.items(from_key=_FIRST_ROW_KEY))
            end = RocksDbEnd(self._database, self._directory)
        last = None
        for key, last in items:
            yield key, last
        end.require(last)

    def first(self, limit: int, bytes_max: int = UNBOUNDED) -> list[bytes]:
        return just_longer_than(bytes_max, islice(self.snapshot().values(), limit))

    def snapshot(self) -> RocksDbSnapshot:
        with self._writing:
            return RocksDbSnapshot(self._database, self._directory)

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        directory.parent.mkdir(names.FOLDER_MODE, parents=True, exist_ok=True)
        try:
            self._rocksdict.Checkpoint(self._database).create_checkpoint(str(directory))
        except Exception as e:
            raise self._failure("checkpoint", e) from e

    def sync(self) -> None:
        try:
            self._database.flush()
        except Exception as e:
            raise self._failure("flush", e) from e

    def close(self) -> None:
        self._database.close()

    def _failure(self, verb: str, error: Exception) -> StorageFailure:
        message = f"cannot {verb} the key-value state in {self._directory}: {error}"
        if _NO_SPACE in message:
            return DiskFull(f"{message}; free space on this disk, then try again", ErrorCode.KV_STORAGE_EXCEPTION)
        return StorageFailure(message, ErrorCode.KV_STORAGE_EXCEPTION)


def _damaged(directory: Path, reason: str) -> CorruptData:
    return CorruptData(f"the key-value state in {directory} is damaged: {reason}", ErrorCode.KV_STORAGE_EXCEPTION)


def _state_of(data: bytes | None) -> EngineState:
    return EngineState() if data is None else EngineState.from_bytes(data)
