"""The second key-value engine: RocksDB through rocksdict, for state far beyond memory.

The write-ahead log is off (the changelog is the log of record), so after a crash RocksDB comes back with what it had
flushed: older, but consistent, because rows and state lie in one column family and one write batch. The state is kept
under the empty key, which no row has. rocksdict's `write` and iterators hold Python's global lock; a write stall
stalls the server (reference performance.md, section 3), which is why LMDB is the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from forebay.base.errors import ErrorCode, StorageFailure, UnsupportedOperation
from forebay.kv.engine import EngineState

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
    """A RocksDB snapshot: the rows and the state of one instant."""

    def __init__(self, snapshot: Any) -> None:
        self._snapshot = snapshot
        self.state = _state_of(_first_value(snapshot.items()))

    def values(self) -> Iterator[bytes]:
        return iter(self._snapshot.values(from_key=_FIRST_ROW_KEY))

    def close(self) -> None:
        self._snapshot = None


class RocksDbEngine:
    """One bucket's rows in one RocksDB database."""

    name = "rocksdb"

    def __init__(self, directory: Path) -> None:
        self._rocksdict = _rocksdict()
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
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
            self._state = _state_of(self._database.get(_STATE_KEY))
        except Exception as e:
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

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        for key, value in writes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(_STATE_KEY, state.to_bytes())
        try:
            self._database.write(batch, self._write_options)
        except Exception as e:
            raise self._failure("write", e) from e
        self._state = state

    def prefix(self, prefix: bytes) -> list[bytes]:
        values = []
        for key, value in self._database.items(from_key=prefix or _FIRST_ROW_KEY):
            if not key.startswith(prefix):
                break
            values.append(value)
        return values

    def first(self, limit: int) -> list[bytes]:
        return list(islice(self._database.values(from_key=_FIRST_ROW_KEY), limit))

    def snapshot(self) -> RocksDbSnapshot:
        return RocksDbSnapshot(self._database.snapshot())

    def checkpoint(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
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
        return StorageFailure(
            f"cannot {verb} the key-value state in {self._directory}: {error}", ErrorCode.KV_STORAGE_EXCEPTION
        )


def _first_value(items: Iterator[tuple[bytes, bytes]]) -> bytes | None:
    """The state's bytes, which lie under the smallest key."""
    for key, value in items:
        return value if key == _STATE_KEY else None
    return None


def _state_of(data: bytes | None) -> EngineState:
    return EngineState() if data is None else EngineState.from_bytes(data)
