"""All key-value engines fulfil the contract; tests of a single engine follow."""

from __future__ import annotations

import hashlib
from pathlib import Path

import lmdb
import pytest

from forebay.base.errors import CorruptData, ErrorCode, StorageFailure
from forebay.fs.interface import DiskFull
from forebay.kv.engine import EngineState, WriteSize, size_of
from forebay.kv.hlog_engine import HlogEngine
from forebay.kv.lmdb_engine import LmdbEngine
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
        with pytest.raises(DiskFull, match="bytes free") as caught:
            engine.apply({b"%d" % i: bytes(1000) for i in range(1000)}, EngineState(1, 1))
        assert caught.value.code == ErrorCode.DISK_WRITE_LOCKED
        assert engine.multi_get([b"1"]) == [None]
        engine.close()


class TestHlogEngine(KvEngineContract):
    is_ordered = False

    def open_engine(self, directory: Path) -> HlogEngine:
        return HlogEngine(directory)


class TestRocksDbEngine(KvEngineContract):
    def open_engine(self, directory: Path):  # type: ignore[no-untyped-def]
        pytest.importorskip("rocksdict")
        from forebay.kv.rocksdb_engine import RocksDbEngine

        return RocksDbEngine(directory)

    def test_compaction_while_scanning_takes_nothing_away(self, tmp_path: Path) -> None:
        engine = self.open_engine(tmp_path / "db")
        engine.apply({b"%03d" % i: b"old %03d" % i for i in range(500)}, EngineState(500, 500))
        snapshot = engine.snapshot()
        values = snapshot.values()
        first = [next(values) for _ in range(10)]
        for round_ in range(5):
            engine.apply(
                {b"%03d" % i: b"new %d %03d" % (round_, i) for i in range(500)}, EngineState(1000 + round_, 500)
            )
            engine.sync()
        engine.apply({b"%03d" % i: None for i in range(250)}, EngineState(2000, 250))
        engine.sync()
        engine._database.compact_range(None, None)
        assert first + list(values) == [b"old %03d" % i for i in range(500)]
        snapshot.close()
        engine.close()

    def test_a_damaged_block_is_an_error_and_not_the_end_of_the_rows(self, tmp_path: Path) -> None:
        directory = tmp_path / "db"
        engine = self.open_engine(directory)
        values = {b"%06d" % i: b"%06d" % i + hashlib.sha256(b"%d" % i).digest() for i in range(3000)}
        engine.apply(values, EngineState(3000, 3000))
        engine.sync()
        engine.close()
        (file,) = directory.glob("*.sst")
        whole = file.read_bytes()
        last_block = whole.index(hashlib.sha256(b"2999").digest())
        for place in (len(whole) // 100, len(whole) // 2, len(whole) * 9 // 10, last_block):
            damaged = bytearray(whole)
            damaged[place] ^= 4
            file.write_bytes(damaged)
            for read in (
                lambda engine: list(engine.snapshot().values()),
                lambda engine: engine.first(5000),
                lambda engine: engine.prefix(b"00"),
                lambda engine: list(engine.items()),
            ):
                with pytest.raises((StorageFailure, CorruptData), match=str(directory)):
                    _read_and_close(self.open_engine, directory, read)

    def test_a_prefix_whose_rows_lie_in_a_damaged_block_is_an_error_and_not_empty(self, tmp_path: Path) -> None:
        directory = tmp_path / "db"
        engine = self.open_engine(directory)
        values = {b"%06d" % i: b"%06d" % i + hashlib.sha256(b"%d" % i).digest() for i in range(3000)}
        engine.apply(values, EngineState(3000, 3000))
        engine.sync()
        engine.close()
        (file,) = directory.glob("*.sst")
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 2] ^= 4
        file.write_bytes(damaged)
        engine = self.open_engine(directory)
        errors = 0
        for key in list(values)[::10]:
            try:
                assert engine.prefix(key) == [values[key]]
            except CorruptData:
                errors += 1
        assert 0 < errors < 150
        engine.close()

    def test_a_write_for_which_the_disk_has_no_room_is_refused_before_it_is_made(self, tmp_path: Path) -> None:
        engine = self.open_engine(tmp_path / "db")
        engine.make_room(size_of({b"a": b"1"}))
        with pytest.raises(DiskFull, match="bytes free"):
            engine.make_room(WriteSize(1, 0, 1 << 62, 1 << 62, 0, 0, 1))
        engine.close()

    @pytest.mark.parametrize(
        ("text", "kind"), [("IO error: No space left on device", DiskFull), ("IO error: Bad", StorageFailure)]
    )
    def test_a_full_disk_is_distinguished_from_other_failures(
        self, text: str, kind: type[StorageFailure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Failing:
            def flush(self) -> None:
                raise OSError(text)

        engine = self.open_engine(tmp_path / "db")
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_database", Failing())
            with pytest.raises(StorageFailure, match=f"cannot flush the key-value state in .*: {text}") as caught:
                engine.sync()
        assert (type(caught.value), caught.value.code) == (kind, ErrorCode.KV_STORAGE_EXCEPTION)
        assert ("free space on this disk" in caught.value.message) is (kind is DiskFull)
        engine.close()


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


@pytest.mark.parametrize("kind", [TestLmdbEngine, TestRocksDbEngine])
def test_the_folder_of_an_engine_is_made_for_its_owner_alone(kind: type[KvEngineContract], tmp_path: Path) -> None:
    engine = kind().open_engine(tmp_path / "bucket" / "db")
    assert (tmp_path / "bucket" / "db").stat().st_mode & 0o777 == 0o700
    engine.close()
    kind().open_engine(tmp_path / "bucket" / "db").close()


def _read_and_close(open_engine, directory, read):  # type: ignore[no-untyped-def]
    engine = open_engine(directory)
    try:
        read(engine)
    finally:
        engine.close()


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
