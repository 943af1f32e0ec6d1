"""Which files of the key-value state are trusted after a restart: the engine's own, a checkpoint's, or none."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.base import host
from forebay.base.errors import CorruptData, StorageFailure
from forebay.fs import names
from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import KvFolder
from forebay.kv.engine import EngineState, KvEngine
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from tests.fs.faulty_fs import FaultyFileSystem
from tests.kv.memory_engine import MemoryEngine

BOOT = "mount 1"
OTHER = "mount 2"


def witnessed(*witnesses: str) -> Callable[[str], frozenset[str]]:
    """The page cache has these witnesses."""
    return lambda folder: frozenset(witnesses)


@pytest.fixture(params=["hlog", "lmdb"])
def factory(request: pytest.FixtureRequest) -> Callable[[Path], KvEngine]:
    if request.param == "hlog":
        return HlogEngine
    return lambda path: LmdbEngine(path, 1 << 22)


def rows(count: int) -> dict[bytes, bytes | None]:
    return {b"%05d" % i: b"value %d" % i for i in range(count)}


class Bucket:
    """A folder whose engine wrote 100 rows, a checkpoint, 100 more, and was closed cleanly."""

    def __init__(self, path: Path, factory: Callable[[Path], KvEngine]) -> None:
        self.path = path
        self.factory = factory
        self.folder = KvFolder(LocalFileSystem(), str(path))
        engine = self.folder.open_engine(factory, witnessed(BOOT))
        engine.apply(rows(100), EngineState(100, 100))
        self.folder.write_checkpoint(engine)
        engine.apply(rows(200), EngineState(200, 200))
        self.folder.close_engine(engine)

    def offset_found(self, *witnesses: str) -> int:
        """Up to where the engine's rows go when it is opened again; they are checked."""
        engine = KvFolder(LocalFileSystem(), str(self.path)).open_engine(
            self.factory, witnessed(*(witnesses or (BOOT,)))
        )
        try:
            offset = engine.state.applied_offset
            assert len(engine.first(1000)) == engine.state.row_count == offset
            return offset
        finally:
            engine.close()

    def file_with_rows(self, folder: str) -> Path:
        """The log, or LMDB's data."""
        ends = ("data.mdb", ".64k")
        return next(path for path in sorted(self.path.glob(f"{folder}/*")) if path.name.endswith(ends))


@pytest.fixture
def bucket(tmp_path: Path, factory: Callable[[Path], KvEngine]) -> Bucket:
    return Bucket(tmp_path / "kv-0", factory)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # a checkpoint of hlog may share its files with the one before
    path.write_bytes(data)


def test_files_of_a_graceful_close_are_used_also_after_the_machine_restarted(bucket: Bucket) -> None:
    assert bucket.offset_found(OTHER) == 200


def test_files_that_were_in_use_are_replaced_by_the_checkpoint_when_the_page_cache_is_another(bucket: Bucket) -> None:
    assert bucket.offset_found(BOOT) == 200  # opened again, and not closed by the folder
    assert bucket.offset_found(OTHER) == 100


def test_one_witness_that_stayed_proves_that_the_page_cache_is_the_same(bucket: Bucket) -> None:
    assert bucket.offset_found(BOOT, "superblock 1") == 200
    assert bucket.offset_found("mount 3", "superblock 1") == 200
    assert bucket.offset_found("mount 3") == 200
    assert bucket.offset_found("superblock 1") == 100


def test_without_witnesses_files_that_were_in_use_are_never_trusted(bucket: Bucket) -> None:
    nothing = KvFolder(LocalFileSystem(), str(bucket.path))
    nothing.open_engine(bucket.factory, witnessed()).close()
    nothing.open_engine(bucket.factory, witnessed()).close()
    assert bucket.offset_found() == 100


def test_the_trust_file_of_an_earlier_version_with_a_boot_id_alone_proves_nothing(bucket: Bucket) -> None:
    (bucket.path / "trust").write_bytes(BOOT.encode())
    assert bucket.offset_found(BOOT) == 100


def test_files_whose_sync_failed_at_the_close_are_not_trusted(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports lost pages once, and looks healthy afterwards."""
    engine = bucket.folder.open_engine(bucket.factory, witnessed(BOOT))

    def fail() -> None:
        raise StorageFailure("input/output error")

    monkeypatch.setattr(engine, "sync", fail)
    with pytest.raises(StorageFailure, match="input/output error"):
        bucket.folder.close_engine(engine)
    assert bucket.offset_found(BOOT) == 100


def test_files_that_the_engine_itself_finds_damaged_are_replaced_by_the_checkpoint(bucket: Bucket) -> None:
    found: list[list[str]] = []

    def damaged_at_first(path: Path) -> KvEngine:
        found.append([file.name for file in path.iterdir()])
        if len(found) == 1:
            (path / "left over").touch()
            raise CorruptData("a page is damaged")
        return bucket.factory(path)

    engine = bucket.folder.open_engine(damaged_at_first, witnessed(BOOT))
    assert engine.state.applied_offset == len(engine.first(1000)) == 100
    engine.close()
    assert "left over" not in found[1]


def test_a_file_changed_after_a_graceful_close_is_not_trusted(bucket: Bucket, caplog) -> None:
    changed = bucket.file_with_rows("db")
    flip(changed)
    assert bucket.offset_found() == 100
    assert f"{changed} has" in caplog.text


@pytest.mark.parametrize("spoil", [lambda data: data[:20], lambda data: b"clean\n", lambda data: data + b"x"])
def test_a_damaged_trust_file_trusts_nothing(bucket: Bucket, spoil: Callable[[bytes], bytes]) -> None:
    trust = bucket.path / "trust"
    trust.write_bytes(spoil(trust.read_bytes()))
    assert bucket.offset_found() == 100


def test_a_damaged_checkpoint_is_not_used_and_everything_is_replayed(bucket: Bucket, caplog) -> None:
    flip(bucket.file_with_rows("checkpoint-*"))
    shutil.rmtree(bucket.path / "db")
    assert bucket.offset_found() == 0
    assert "ignoring a damaged checkpoint of the key-value state" in caplog.text
    assert not list(bucket.path.glob("checkpoint-*"))


def test_a_checkpoint_without_its_checksums_is_not_used(bucket: Bucket) -> None:
    next(bucket.path.glob("checkpoint-*/checksums")).unlink()
    shutil.rmtree(bucket.path / "db")
    assert bucket.offset_found() == 0


def test_an_older_checkpoint_is_taken_when_the_newest_is_damaged(bucket: Bucket) -> None:
    (newest,) = bucket.path.glob("checkpoint-*")
    shutil.copytree(newest, newest.with_name("checkpoint-00000000000000000199"))
    flip(bucket.file_with_rows("checkpoint-00000000000000000199"))
    shutil.rmtree(bucket.path / "db")
    assert bucket.offset_found() == 100


def test_a_checkpoint_that_fails_leaves_the_one_before(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = bucket.folder.open_engine(bucket.factory, witnessed(BOOT))

    def fail(directory: Path, previous: Path | None) -> None:
        directory.mkdir()
        raise StorageFailure("disk full")

    monkeypatch.setattr(engine, "checkpoint", fail)
    with pytest.raises(StorageFailure):
        bucket.folder.write_checkpoint(engine)
    engine.close()
    assert bucket.offset_found(OTHER) == 100
    assert bucket.folder.retained_offset == 100


def test_a_checkpoint_counts_only_after_its_changelog_is_durable(bucket: Bucket) -> None:
    """Power that goes in between must not leave a state that is ahead of its log, and so is of no use."""
    engine = bucket.folder.open_engine(bucket.factory, witnessed(BOOT))
    counted: list[int] = []

    def sync_log() -> None:
        counted.append(bucket.folder.retained_offset)
        raise StorageFailure("the power is about to go")

    with pytest.raises(StorageFailure):
        bucket.folder.write_checkpoint(engine, sync_log)
    assert counted == [100]
    engine.close()
    assert bucket.offset_found(OTHER) == 100
    engine = bucket.folder.open_engine(bucket.factory, witnessed(OTHER))
    engine.apply(rows(150), EngineState(150, 150))
    assert bucket.folder.write_checkpoint(engine, lambda: counted.append(bucket.folder.retained_offset)) == 150
    assert counted == [100, 100]
    engine.close()


class EngineOnFs(MemoryEngine):
    """Rows in memory, and in one file of a file system; `sync` writes it."""

    def __init__(self, fs: FaultyFileSystem, directory: Path) -> None:
        super().__init__()
        self._fs = fs
        self._file = str(directory / "rows")
        fs.make_directories(str(directory))
        if fs.exists(self._file):
            offset = int(fs.read_bytes(self._file))
            self.apply(rows(offset), EngineState(offset, offset))

    def _write(self, path: str) -> None:
        self._fs.write_atomic(path, b"%d" % self.state.applied_offset)

    def sync(self) -> None:
        self._write(self._file)

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        self._fs.make_directories(str(directory))
        self._write(str(directory / "rows"))


def test_the_folder_lies_wholly_on_the_file_system_that_it_is_given() -> None:
    """So that a simulation can give it a disk that loses power."""
    fs = FaultyFileSystem(random.Random(1))
    folder = KvFolder(fs, "/data/kv-0")
    engine = folder.open_engine(lambda path: EngineOnFs(fs, path), witnessed(BOOT))
    engine.apply(rows(100), EngineState(100, 100))
    assert folder.write_checkpoint(engine) == folder.retained_offset == 100
    engine.apply(rows(200), EngineState(200, 200))
    folder.close_engine(engine)
    after = fs.crash()
    engine = KvFolder(after, "/data/kv-0").open_engine(lambda path: EngineOnFs(after, path), witnessed("2"))
    assert engine.state.row_count == 200
    later = after.crash()  # opened, and not closed
    engine = KvFolder(later, "/data/kv-0").open_engine(lambda path: EngineOnFs(later, path), witnessed("3"))
    assert engine.state.row_count == 100


def test_what_a_crash_left_of_a_trust_file_is_removed(bucket: Bucket) -> None:
    leftover = bucket.path / names.temporary_name("trust", "0" * 32)
    leftover.write_bytes(b"cle")
    assert bucket.offset_found() == 200
    assert not leftover.exists()


def test_what_a_crash_left_of_a_checkpoint_is_removed(bucket: Bucket) -> None:
    leftover = bucket.path / names.temporary_name("checkpoint-150", "0" * 32)
    leftover.mkdir()
    (leftover / "data.mdb").write_bytes(b"half")
    assert bucket.offset_found() == 200
    assert not leftover.exists()


@pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="witnesses are known on Linux only")
def test_witnesses_name_the_start_of_the_machine_and_stay_while_the_file_system_is_mounted(tmp_path: Path) -> None:
    found = host.page_cache_witnesses(str(tmp_path))
    assert found == host.page_cache_witnesses(str(tmp_path))
    assert all(host.boot_id() in witness.split() for witness in found)
    assert host.page_cache_witnesses(str(tmp_path / "missing")) == frozenset()


def test_a_start_of_the_machine_that_has_no_id_leaves_no_witness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_BOOT_ID", str(tmp_path / "missing"))
    assert host.page_cache_witnesses(str(tmp_path)) == frozenset()


class _Unreadable:
    """Reading an engine's own row fails so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left, self._parse = times, EngineState.from_bytes
        monkeypatch.setattr(EngineState, "from_bytes", self)

    def __call__(self, data: bytes) -> EngineState:
        if not self.left:
            return self._parse(data)
        self.left -= 1
        raise ValueError(f"{data!r} is not the state of a key-value engine")


def test_a_state_that_cannot_be_read_is_restored_although_the_error_is_still_held(
    tmp_path: Path, factory: Callable[[Path], KvEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine has opened before it fails is closed: LMDB opens a folder once."""
    bucket = Bucket(tmp_path, factory)
    reads = _Unreadable(monkeypatch, 1)
    assert (bucket.offset_found(BOOT), reads.left) == (100, 0)


def test_an_engine_that_cannot_be_opened_leaves_no_file_open_or_mapped(
    tmp_path: Path, factory: Callable[[Path], KvEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(tmp_path, factory)
    with monkeypatch.context() as patch:
        _Unreadable(patch, 2)
        with pytest.raises(CorruptData) as held:
            bucket.offset_found(BOOT)
    files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    files += Path("/proc/self/maps").read_text().split()
    assert [file for file in files if file.startswith(f"{tmp_path}/")] == [], held


class WritesWhenClosed(MemoryEngine):
    """An engine whose last write comes with its end."""

    def __init__(self, fs: FaultyFileSystem, folder: str) -> None:
        super().__init__()
        self._fs, self._folder = fs, folder

    def close(self) -> None:
        file = self._fs.open_append(names.join(self._folder, "last"))
        file.append([b"words"])
        file.close()


def test_what_an_engine_writes_when_it_is_closed_survives_a_power_failure() -> None:
    fs = FaultyFileSystem(random.Random(1))
    folder = KvFolder(fs, "/bucket")
    engine = folder.open_engine(lambda path: WritesWhenClosed(fs, str(path)), witnessed(BOOT))
    folder.close_engine(engine)
    after = fs.crash()
    assert after.read_bytes("/bucket/db/last") == b"words"
    assert KvFolder(after, "/bucket").is_trusted(witnessed(OTHER))
