"""Key-value state in RocksDB, which earlier versions could write: recognized, refused by the server, and converted.

The engines are `hlog` and `lmdb`. The server refuses RocksDB's files, and `forebay convert-state` replaces them
(`forebay.verify.conversion`). Rows and state are in one column family, the state under the empty key, which no row has.
The write-ahead log was off, so a database that was not closed has the rows and the state of its last flush.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from forebay.base.errors import CorruptData, ErrorCode, ForebayError, StorageFailure, UnsupportedOperation
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.kv.engine import EngineState

ROCKSDB = "rocksdb"
"""The name that the engine had in settings and options."""

CONVERT = "forebay convert-state --data-dir DIR"
"""The command that replaces RocksDB's files."""

REPLACED_SUFFIX = ".rocksdb"
"""Ends the name of a bucket's folder that is being replaced; it is removed once its replacement is in place."""

_CURRENT_FILE = "CURRENT"
_STATE_KEY = b""
_FORMAT_VERSION = 5
"""Of tables; RocksDB 6 knows no later one."""


def is_rocksdb(folder: str | Path) -> bool:
    """Return whether `folder`, with an engine's files or a checkpoint, is a RocksDB database."""
    return Path(folder, _CURRENT_FILE).exists()


def has_rocksdb_state(fs: FileSystem, folder: str) -> bool:
    """Return whether the state of a bucket is in RocksDB, or its conversion has not ended.

    `folder`: `kv-<bucket>`. Checkpoints in it are not examined.
    """
    return fs.exists(names.join(folder, "db", _CURRENT_FILE)) or fs.exists(folder + REPLACED_SUFFIX)


def refusal(folder: str | Path) -> UnsupportedOperation:
    """Return the error for RocksDB's files in `folder`."""
    return UnsupportedOperation(
        f"the key-value state in {folder} was written by RocksDB, which this version does not open: stop the server, "
        f"and convert the states of its data directory to 'hlog' or 'lmdb' with `{CONVERT}` (docs/upgrade.md)",
        ErrorCode.KV_STORAGE_EXCEPTION,
    )


def write_database(folder: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Write rows into the new folder `folder`: the files that RocksDB needs to open it for reading, and no others.

    Their format is that of RocksDB 6, which Apache Fluss has. Raises `UnsupportedOperation` without the package
    rocksdict, and `StorageFailure`.
    """
    try:
        import rocksdict
    except ImportError as e:
        raise UnsupportedOperation(
            "snapshots in RocksDB's files can only be written with the package rocksdict: pip install rocksdict"
        ) from e
    options, blocks = rocksdict.Options(raw_mode=True), rocksdict.BlockBasedOptions()
    writes: Any = rocksdict.WriteOptions()  # whose stub takes a property for a method
    blocks.set_format_version(_FORMAT_VERSION)
    blocks.set_checksum_type(rocksdict.ChecksumType.crc32c())
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    writes.disable_wal = True
    try:
        database = rocksdict.Rdict(folder, options)
        try:
            database.set_write_options(writes)
            for key, value in rows:
                database[key] = value
            database.flush()
        finally:
            database.close()
    except ForebayError:
        raise
    except Exception as e:
        raise StorageFailure(f"cannot write RocksDB's files in {folder}: {e}") from e
    for path in Path(folder).iterdir():
        if path.name != _CURRENT_FILE and not path.name.startswith("MANIFEST-") and path.suffix != ".sst":
            path.unlink()


class RocksDbState:
    """The rows and the state in one database, opened for reading. Close it in the end."""

    def __init__(self, folder: str) -> None:
        """Raises `UnsupportedOperation` without the package rocksdict, and `CorruptData`."""
        try:
            import rocksdict
        except ImportError as e:
            raise UnsupportedOperation(
                "the key-value state of RocksDB can only be read with the package rocksdict: pip install rocksdict "
                "(it can be removed after the conversion)"
            ) from e
        self._folder = folder
        try:
            self._database: Any = rocksdict.Rdict(
                folder, rocksdict.Options(raw_mode=True), access_type=rocksdict.AccessType.read_only()
            )
        except Exception as e:
            raise self._damaged(e) from e
        try:
            state = self._database.get(_STATE_KEY)
            self.state = EngineState() if state is None else EngineState.from_bytes(state)
        except Exception as e:
            self.close()
            raise self._damaged(e) from e

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, stored value) of all rows. Raises `CorruptData` if a block cannot be read."""
        cursor = self._database.iter()
        cursor.seek_to_first()
        while cursor.valid():
            key: bytes = cursor.key()
            if key != _STATE_KEY:
                yield key, cursor.value()
            cursor.next()
        try:
            cursor.status()  # a cursor that meets a damaged block ends as if there were no more rows
        except Exception as e:
            raise self._damaged(e) from e

    def close(self) -> None:
        """Release the files of the database."""
        self._database.close()

    def _damaged(self, error: Exception) -> CorruptData:
        return CorruptData(
            f"the key-value state in {self._folder} is damaged: RocksDB reports: {error}",
            ErrorCode.KV_STORAGE_EXCEPTION,
        )
