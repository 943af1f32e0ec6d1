"""Checkpoints on a full disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.base.errors import StorageFailure
from forebay.fs.interface import DiskFull
from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import KvFolder
from forebay.kv.engine import EngineState
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from tests.small_disk import mounted_tmpfs

ROWS = {b"%05d" % i: os.urandom(500) for i in range(4000)}


def checkpoints(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("checkpoint"))


@pytest.mark.parametrize("left", [0, 1 << 16, 2 << 20])
def test_a_checkpoint_on_a_full_disk_leaves_nothing_and_can_be_written_with_room(left: int, tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path / "disk", 24) as disk:
        folder = KvFolder(LocalFileSystem(), str(disk.path / "kv-0"))
        engine = folder.open_engine(lambda path: LmdbEngine(path, kept_free=lambda: 0), lambda path: frozenset())
        engine.apply(ROWS, EngineState(1, len(ROWS)))
        disk.fill(leave_bytes=left)
        for _ in range(2):
            with pytest.raises(DiskFull, match=r"kv-0.* [\d.]+ \w+ free, .* that may need [\d.]+ \w+ was"):
                folder.write_checkpoint(engine)
            assert checkpoints(disk.path / "kv-0") == []
        disk.make_room()
        assert folder.write_checkpoint(engine) == 1
        assert checkpoints(disk.path / "kv-0") == ["checkpoint-00000000000000000001"]
        engine.close()


@pytest.mark.parametrize("step", ["sync_files", "list_files"])
def test_a_checkpoint_that_fails_half_way_is_removed(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = KvFolder(LocalFileSystem(), str(tmp_path / "kv-0"))
    engine = folder.open_engine(lambda path: LmdbEngine(path, kept_free=lambda: 0), lambda path: frozenset())
    engine.apply(ROWS, EngineState(1, len(ROWS)))

    def fails(*_: object) -> None:
        raise StorageFailure("the disk has a bad day")

    with monkeypatch.context() as patch:
        patch.setattr(f"forebay.kv.checkpoint.{step}", fails)
        with pytest.raises(StorageFailure, match="bad day"):
            folder.write_checkpoint(engine)
        assert not [name for name in os.listdir(tmp_path / "kv-0") if name.endswith(".tmp")]
    assert folder.write_checkpoint(engine) == 1
    engine.close()
