"""Key-value states as earlier versions wrote them with RocksDB, by the library that they used."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import KvFolder
from forebay.kv.engine import EngineState
from forebay.kv.engines import ENGINES, engine_in
from forebay.kv.file_checksums import list_files

STATE_KEY = b""


def write_database(folder: Path, rows: Mapping[bytes, bytes], state: EngineState) -> None:
    """Write a database with these rows into the new folder, without a write-ahead log, and flush it."""
    rocksdict = pytest.importorskip("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    write_options = rocksdict.WriteOptions()
    write_options.disable_wal = True
    database = rocksdict.Rdict(str(folder), options)
    batch = rocksdict.WriteBatch(raw_mode=True)
    for key, value in rows.items():
        batch.put(key, value)
    batch.put(STATE_KEY, state.to_bytes())
    database.write(batch, write_options)
    database.flush()
    database.close()


def rewrite_in_rocksdb(kv: Path) -> None:
    """Replace the state and the checkpoints of a bucket, which was closed, by databases with the same content."""
    fs = LocalFileSystem()
    for folder in (kv / "db", *kv.glob("checkpoint-*")):
        name = engine_in(folder)
        assert name is not None
        opened = kv / "opened"
        shutil.copytree(folder, opened)
        with closing(ENGINES[name](opened)) as engine:
            rows, state = dict(engine.items()), engine.state
        shutil.rmtree(opened)
        shutil.rmtree(folder)
        write_database(folder, rows, state)
        if folder.name != "db":
            (folder / "checksums").write_text(list_files(fs, str(folder)))
    KvFolder(fs, str(kv)).mark_clean()
