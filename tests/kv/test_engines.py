"""All key-value engines fulfil the contract; tests of a single engine follow."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from forebay.base.errors import CorruptData, ErrorCode, StorageFailure
from forebay.fs.interface import DiskFull
from forebay.kv.engine import EngineState
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from tests.kv.kv_engine_contract import KvEngineContract
from tests.kv.memory_engine import MemoryEngine


class TestMemoryEngine(KvEngineContract):
    reopens = False

    def open_engine(self, directory: Path) -> MemoryEngine:
        return MemoryEngine(directory)


class TestLmdbEngine(KvEngineContract):
    def open_engine(self, directory: Path) -> LmdbEngine:
        return LmdbEngine(directory, map_bytes=1 << 24)

    def test_a_full_map_grows(self, tmp_path: Path) -> None:
        engine = LmdbEngine(tmp_path / "db", map_bytes=1 << 18)
        for i in range(40):
            engine.apply({i.to_bytes(4, "big") + bytes([j]): bytes(1000) for j in range(50)}, EngineState(i + 1, 0))
        assert len(engine.first(3000)) == 2000
        engine.close()

    def test_growing_asks_the_owner_to_close_snapshots(self, tmp_path: Path) -> None:
        engine = LmdbEngine(tmp_path / "db", map_bytes=1 << 18)
        engine.apply({b"a": b"1"}, EngineState(1, 1))
        snapshot = engine.snapshot()
        big = {i.to_bytes(4, "big"): bytes(1000) for i in range(1000)}
        with pytest.raises(StorageFailure, match="cannot grow while 1 snapshots are open"):
            engine.apply(big, EngineState(2, 1001))
        assert (engine.state.applied_offset, engine.multi_get([b"a"])) == (1, [b"1"])
        engine.close_snapshots = snapshot.close
        engine.apply(big, EngineState(2, 1001))
        assert len(engine.first(2000)) == 1001
        engine.close()

    def test_writing_stops_before_the_disk_is_full(self, tmp_path: Path) -> None:
        kept_free = [0]
        engine = LmdbEngine(tmp_path / "db", kept_free=lambda: kept_free[0])
        kept_free = [1 << 60]
        with pytest.raises(DiskFull, match=r"[\d.]+ [KMGT]?i?B free") as caught:
            engine.apply({b"%d" % i: bytes(1000) for i in range(1000)}, EngineState(1, 1))
        assert caught.value.code == ErrorCode.DISK_WRITE_LOCKED
        assert engine.multi_get([b"1"]) == [None]
        engine.close()


class TestHlogEngine(KvEngineContract):
    is_ordered = False

    def open_engine(self, directory: Path) -> HlogEngine:
        return HlogEngine(directory)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lmdb.CorruptedError("a page"), CorruptData),
        (lmdb.Error("a failure"), StorageFailure),
        (StorageFailure("no room"), StorageFailure),
        (OSError("no such device"), OSError),
    ],
)
def test_an_lmdb_engine_that_cannot_be_opened_is_closed_and_can_be_opened_later(
    error: Exception, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> EngineState:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(LmdbEngine, "read_state", fail)
        with pytest.raises(kind) as caught:
            LmdbEngine(tmp_path / "db", 1 << 22)
    assert isinstance(caught.value, kind)  # which still holds what was opened
    LmdbEngine(tmp_path / "db", 1 << 22).close()


@pytest.mark.parametrize("kind", [TestLmdbEngine, TestHlogEngine])
def test_the_folder_of_an_engine_is_made_for_its_owner_alone(kind: type[KvEngineContract], tmp_path: Path) -> None:
    engine = kind().open_engine(tmp_path / "bucket" / "db")
    assert (tmp_path / "bucket" / "db").stat().st_mode & 0o777 == 0o700
    engine.close()
    kind().open_engine(tmp_path / "bucket" / "db").close()


def test_a_snapshot_of_lmdb_that_is_closed_ends_its_transaction_although_its_rows_are_still_held(tmp_path):
    engine = LmdbEngine(tmp_path / "db")
    engine.apply({b"a": b"1", b"b": b"2"}, EngineState(1, 2))
    snapshot = engine.snapshot()
    values = snapshot.values()
    assert next(values) == b"1"
    snapshot.close()
    with pytest.raises(lmdb.Error):
        next(values)
    engine.close()


def test_no_snapshot_of_lmdb_is_taken_once_the_open_ones_are_being_closed(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db")
    refused: list[str] = []

    def close_snapshots() -> None:  # a scan that begins now would not be closed, and closing would wait for its end
        try:
            engine.snapshot().close()
        except StorageFailure as e:
            refused.append(e.message)

    engine.close_snapshots = close_snapshots
    engine.close()
    assert len(refused) == 1
    assert refused[0].endswith("is closed")
