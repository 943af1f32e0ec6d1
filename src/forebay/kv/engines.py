"""Which engine holds a bucket's key-value state, and moving it from one engine to another.

A folder is opened with the engine that wrote it. A new folder gets the engine that its table names, or else the
server's choice. That is `hlog` if keys are not looked up by a prefix and the file system can guarantee space
(`allocates_in_place`), and `lmdb` otherwise. A folder whose table names another engine is converted when it is opened.
Files of RocksDB, which earlier versions could write, are refused (`forebay.kv.rocksdb_state`).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from forebay.base.errors import ErrorCode, InvalidRequest, StorageFailure
from forebay.codec.rows.keys import prefix_encoder
from forebay.fs import names
from forebay.fs.interface import storage_failure
from forebay.fs.local_words import allocates_in_place
from forebay.kv import _digest
from forebay.kv.engine import EngineState, KvEngine
from forebay.kv.hlog.hlog_engine import HEAD_FILE, HlogEngine
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.kv.lmdb.lmdb_file import DATA_FILE
from forebay.kv.rocksdb_state import CONVERT, ROCKSDB, is_rocksdb, refusal
from forebay.metadata.table import TableDescriptor

_LOGGER = logging.getLogger(__name__)

ENGINE_PROPERTY = "forebay.kv.engine"
"""The custom property by which a table names its engine."""

SNAPSHOT_FILES_PROPERTY = "forebay.kv.snapshot-files"
"""The custom property by which a table asks for snapshots that clients of Apache Fluss open."""

AUTO = "auto"
ENGINES: dict[str, Callable[..., KvEngine]] = {"hlog": HlogEngine, "lmdb": LmdbEngine}

_FILES = {"hlog": HEAD_FILE, "lmdb": DATA_FILE}
_ROWS_AT_ONCE = 10_000
"""Rows per group when one engine's rows are copied into another."""


def wants_rocksdb_files(descriptor: TableDescriptor) -> bool:
    """Return whether a table asks for snapshots in RocksDB's files. Raises `InvalidRequest` for unknown files."""
    text = descriptor.custom_properties.get(SNAPSHOT_FILES_PROPERTY, "none").strip().lower()
    if text not in ("none", ROCKSDB):
        raise InvalidRequest(
            f"'{SNAPSHOT_FILES_PROPERTY}' is 'none' or 'rocksdb', and not '{text}'", ErrorCode.INVALID_CONFIG_EXCEPTION
        )
    return text == ROCKSDB


def engine_in(directory: Path) -> str | None:
    """Return the name of the engine whose files are in a folder, or None."""
    return next((name for name, file in _FILES.items() if (directory / file).exists()), None)


def parse_engine(text: str) -> str:
    """Return the name of an engine, or `AUTO`. Raises `InvalidRequest` for anything else."""
    name = text.strip().lower()
    if name == ROCKSDB:
        raise InvalidRequest(
            f"{text!r} is no longer a key-value engine: choose 'auto', 'hlog' or 'lmdb', and convert states that "
            f"RocksDB has written with `{CONVERT}` (docs/upgrade.md)"
        )
    if name != AUTO and name not in ENGINES:
        raise InvalidRequest(f"{text!r} is not a key-value engine: choose 'auto', 'hlog' or 'lmdb'")
    return name


def check_engine(descriptor: TableDescriptor) -> None:
    """Raise `InvalidRequest` (INVALID_CONFIG) if a table cannot have the engine that it names."""
    text = descriptor.custom_properties.get(ENGINE_PROPERTY)
    if text is None:
        return
    try:
        name = parse_engine(text)
    except InvalidRequest as e:
        raise InvalidRequest(f"'{ENGINE_PROPERTY}': {e.message}", ErrorCode.INVALID_CONFIG_EXCEPTION) from e
    if name == "hlog" and descriptor.has_primary_key and prefix_encoder(descriptor) is not None:
        raise InvalidRequest(
            f"'{ENGINE_PROPERTY}' = 'hlog' keeps no order of keys, and the bucket key of this table "
            f"({', '.join(descriptor.bucket_keys)}) is the beginning of its primary key, so that rows are looked up by "
            "it: leave the engine out, or make all of the primary key the bucket key",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )


class StoredRows(Protocol):
    """The rows of a bucket, and the state that belongs to them."""

    @property
    def state(self) -> EngineState: ...

    def items(self) -> Iterator[tuple[bytes, bytes]]: ...


def copy_rows(source: StoredRows, target: KvEngine, *, keeps_digest: bool) -> int:
    """Copy all rows and the state into the empty engine `target`; return the digest of the rows.

    `keeps_digest`: whether puts to the table keep the digest with the state.
    """
    digest, rows = 0, source.items()
    while chunk := dict(islice(rows, _ROWS_AT_ONCE)):
        target.apply(chunk, EngineState())
        digest = _digest.added(digest, _digest.of_pairs(list(chunk), list(chunk.values())))
    keeps = keeps_digest and target.name != "hlog"  # which has a digest of its own
    target.apply({}, replace(source.state, digest=digest if keeps else None))
    target.sync()
    return digest


class TableEngine:
    """Opens the engine of a table's buckets (an `EngineFactory`)."""

    def __init__(self, descriptor: TableDescriptor, preferred: str, kept_free: Callable[[], int]) -> None:
        """`preferred`: the server's choice, or `AUTO`. `kept_free`: bytes of the disk that writes leave free."""
        name = descriptor.custom_properties.get(ENGINE_PROPERTY, AUTO).strip().lower()
        self._named = name if name in ENGINES else None
        self._preferred = preferred
        self._needs_order = prefix_encoder(descriptor) is not None
        self._keeps_digest = descriptor.has_full_changelog
        self._kept_free = kept_free

    def is_other_than(self, engine: KvEngine, directory: Path) -> bool:
        """Return whether a bucket whose engine is open would be moved to another one if it were opened again."""
        return self._named is not None and engine.name in ENGINES and self.engine_for(directory) != engine.name

    def __call__(self, directory: Path) -> KvEngine:
        if is_rocksdb(directory):
            raise refusal(directory)
        current = engine_in(directory)
        target = self.engine_for(directory)
        if current is not None and current != target and self._named is not None:
            try:
                self._convert(directory, current, target)
            except StorageFailure as e:
                _LOGGER.warning(
                    "%s stays with the key-value engine '%s' and is not moved to '%s': %s",
                    directory, current, target, e.message,
                )  # fmt: skip
                target = current
        elif current is not None:
            target = current
        return self._open(target, directory)

    def engine_for(self, directory: Path) -> str:
        """Return the engine that a new bucket in `directory` would get."""
        name = self._named or self._preferred
        if name in ("hlog", AUTO):
            # Without a promise of space, a store into a map would end the process on a full disk.
            name = "lmdb" if self._needs_order or not allocates_in_place(directory) else "hlog"
        return name

    def _open(self, name: str, directory: Path) -> KvEngine:
        return ENGINES[name](directory, kept_free=self._kept_free)

    def _convert(self, directory: Path, current: str, target: str) -> None:
        """Replace the engine's files by those of another one with the same rows and state."""
        converted = directory.with_name(f"{directory.name}.{target}{names.TEMPORARY_SUFFIX}")
        old = directory.with_name(f"{directory.name}.{current}{names.TEMPORARY_SUFFIX}")
        try:
            for leftover in (converted, old):
                shutil.rmtree(leftover, ignore_errors=True)
            self._copy(directory, current, converted, target)
            directory.rename(old)
            converted.rename(directory)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as e:
            raise storage_failure(f"move to the engine '{target}'", str(directory), e) from e
        finally:
            shutil.rmtree(converted, ignore_errors=True)
        _LOGGER.info("moved the key-value state in %s from the engine '%s' to '%s'", directory, current, target)

    def _copy(self, directory: Path, current: str, target_directory: Path, target_name: str) -> None:
        source = self._open(current, directory)
        try:
            target = self._open(target_name, target_directory)
            try:
                copy_rows(source, target, keeps_digest=self._keeps_digest)
            finally:
                target.close()
        finally:
            source.close()
