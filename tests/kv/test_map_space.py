"""Space for LMDB's map: enough before each write, or an error; never a signal."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.base.errors import ErrorCode, StorageFailure
from forebay.base.host import file_system_type
from forebay.fs.interface import DiskFull
from forebay.kv.buffered_writes import size_of
from forebay.kv.engine import EngineState
from forebay.kv.lmdb.lmdb_engine import LmdbEngine, _with_long_keys
from forebay.kv.lmdb.pages import PAGE_BYTES, pages_at_most
from forebay.kv.map_space import MapSpace, allocate_file
from tests.every_run import examples
from tests.patience import PATIENCE
from tests.small_disk import MOUNTS, mounted_tmpfs

_UPDATE_OF_EVERY_PAGE = """
import os, sys
from pathlib import Path
from forebay.base.errors import ForebayError
from forebay.kv.engine import EngineState
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from tests.small_disk import SmallDisk

disk = SmallDisk(Path(sys.argv[1]))
engine = LmdbEngine(disk.path / "db")
keys = [i.to_bytes(4, "big") for i in range(60_000)]
for at in range(0, len(keys), 10_000):
    engine.apply({key: bytes(1000) for key in keys[at:at + 10_000]}, EngineState(at + 1, 0))
disk.fill(leave_bytes=66 << 20)
updates = {key: b"new" for key in keys[::3]}
try:
    engine.apply(updates, EngineState(100_000, 0))
except ForebayError as e:
    print(type(e).__name__, e.name, engine.multi_get(keys[:1]) == [bytes(1000)])
disk.make_room()
engine.apply(updates, EngineState(100_001, 0))
print(engine.multi_get(keys[:2]) == [b"new", bytes(1000)])
"""


@pytest.mark.parametrize("kind", list(MOUNTS))
def test_an_update_of_one_key_in_every_page_on_a_nearly_full_disk_is_an_error_that_ends_with_room(
    kind: str, tmp_path: Path
) -> None:
    with MOUNTS[kind](tmp_path / "disk", 400) as disk:
        command = [sys.executable, "-c", _UPDATE_OF_EVERY_PAGE, str(disk.path)]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (child.returncode, child.stdout.split()) == (0, ["DiskFull", "DISK_WRITE_LOCKED", "True", "True"]), child


def test_a_file_system_that_does_not_allocate_in_place_is_written_by_system_calls(tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path / "disk", 24) as disk:
        engine = LmdbEngine(disk.path / "db", kept_free=lambda: 0, write_map=False)
        engine.apply({b"%05d" % i: bytes(1000) for i in range(3000)}, EngineState(1, 3000))
        disk.fill(leave_bytes=1 << 20)
        engine._space.require_free = lambda size: None  # type: ignore[method-assign]  # others took it meanwhile
        with pytest.raises(DiskFull, match="No space left"):
            engine.apply({b"%05d" % i: bytes(1000) for i in range(3000, 6000)}, EngineState(2, 6000))
        assert (engine.state.applied_offset, len(engine.first(9000))) == (1, 3000)
        disk.make_room()
        engine.apply({b"%05d" % i: bytes(1000) for i in range(3000, 6000)}, EngineState(2, 6000))
        assert (engine.state.applied_offset, len(engine.first(9000))) == (2, 6000)
        engine.close()


_LENGTHS = st.sampled_from([1, 20, 90, 300, 900, 1600, 2030, 2100, 5000, 20_000])
_ROUNDS = st.lists(
    st.tuples(
        st.integers(1, 400),
        _LENGTHS,
        _LENGTHS,
        st.sampled_from([4, 100, 470, 600]),
        st.integers(0, 3),
        st.integers(0, 1 << 32),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=examples(25))
@given(_ROUNDS)
def test_no_transaction_takes_more_pages_than_was_reckoned(rounds: list[tuple[int, int, int, int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = LmdbEngine(Path(folder), kept_free=lambda: 0)
        for number, (count, least, most, key_bytes, deletes, seed) in enumerate(rounds):
            writes: dict[bytes, bytes | None] = {}
            for i in range(count):
                key = (seed + i * (2 * deletes + 1) * 7919 % 1009).to_bytes(16, "big", signed=False)[-key_bytes:]
                key = key.rjust(key_bytes, b"k")
                length = least + (most - least) * i // count
                writes[key] = None if deletes and i % (deletes + 1) == 0 else bytes(length)
            before = engine._used_bytes()
            bound = pages_at_most(_with_long_keys(size_of(writes)), engine._tree_size())
            engine.apply(writes, EngineState(number + 1, 0))
            assert (engine._used_bytes() - before) // PAGE_BYTES <= bound
        engine.close()


def test_what_a_large_write_did_not_need_is_given_back(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db", kept_free=lambda: 0)
    for at in range(5):
        engine.apply({b"%d %07d" % (at, i): bytes(100) for i in range(40_000)}, EngineState(at + 1, 0))
    allocated = (tmp_path / "db" / "data.mdb").stat().st_blocks * 512
    assert allocated < 2 * engine._used_bytes()
    engine.close()


def test_the_map_grows_before_it_is_full_so_that_snapshots_stay(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db", map_bytes=1 << 20, kept_free=lambda: 0)
    engine.apply({b"%04d" % i: bytes(100) for i in range(1000)}, EngineState(1, 0))
    assert engine._map_bytes() > 1 << 20
    snapshot = engine.snapshot()
    engine.apply({b"%04d" % i: bytes(100) for i in range(1000, 2000)}, EngineState(2, 0))
    assert len(list(snapshot.values())) == 1000
    snapshot.close()
    engine.close()


def test_more_snapshots_than_the_table_of_readers_was_allocated_for(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db", kept_free=lambda: 0)
    engine.apply({b"a": b"1"}, EngineState(1, 1))
    snapshots = [engine.snapshot() for _ in range(600)]
    blocks = (tmp_path / "db" / "lock.mdb").stat().st_blocks * 512
    assert blocks >= 600 * 64
    assert all(list(snapshot.values()) == [b"1"] for snapshot in snapshots)
    for snapshot in snapshots:
        snapshot.close()
    engine.close()


def test_the_type_of_a_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    before = file_system_type(tmp_path)
    with mounted_tmpfs(tmp_path / "a disk", 1) as disk:
        assert file_system_type(disk.path / "not there yet") == "tmpfs"
        assert file_system_type(tmp_path / "a disk too") == before


def test_others_can_read_after_the_map_has_grown(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db", map_bytes=1 << 20, kept_free=lambda: 0, write_map=True)
    engine.apply({b"%04d" % i: bytes(100) for i in range(1000)}, EngineState(1, 0))
    assert engine._map_bytes() > 1 << 20
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(engine.multi_get([b"0007"])), daemon=True)
    reader.start()
    reader.join(PATIENCE)
    assert found == [bytes(100)]
    engine.close()


def test_an_open_file_has_blocks_for_what_it_holds_and_a_new_one_for_its_first_pages(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db", kept_free=lambda: 0, write_map=True)
    data = tmp_path / "db" / "data.mdb"
    assert data.stat().st_blocks * 512 >= 256 << 10
    engine.apply({b"%04d" % i: bytes(100) for i in range(3000)}, EngineState(1, 0))
    used = engine._used_bytes()
    engine.close()
    content = data.read_bytes()
    assert len(content) == used
    data.unlink()
    with data.open("wb") as sparse:  # as a copy may be that leaves out zeros
        for at in range(0, used, PAGE_BYTES):
            if any(page := content[at : at + PAGE_BYTES]):
                sparse.seek(at)
                sparse.write(page)
    engine = LmdbEngine(tmp_path / "db", kept_free=lambda: 0, write_map=True)
    assert data.stat().st_blocks * 512 >= used
    assert data.stat().st_size == engine._map_bytes()
    assert len(engine.first(9000)) == 3000
    engine.close()


class Disk:
    """A `MapSpace` on a disk that has as much room as a test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, free: int, reserve: int) -> None:
        self.path = folder / "data"
        self.free = free
        self.space = MapSpace(self.path, lambda: reserve)
        monkeypatch.setattr(self.space, "_free_bytes", lambda: self.free)

    @property
    def allocated(self) -> int:
        return self.path.stat().st_blocks * 512 if self.path.exists() else 0


def test_a_write_may_take_the_room_above_the_reserve_and_not_a_byte_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, monkeypatch, free=99_999, reserve=60_000)
    with pytest.raises(DiskFull, match=r"has 97\.7 KiB free, of which 58\.6 KiB are .* need 39\.1 KiB") as full:
        disk.space.allocate(40_000, 1 << 30)
    assert full.value.code == ErrorCode.DISK_WRITE_LOCKED
    assert disk.allocated == 0
    disk.free = 100_000
    disk.space.allocate(40_000, 1 << 30)
    assert 40_000 <= disk.allocated < 50_000
    disk.free = 0
    disk.space.allocate(40_000, 1 << 30)  # is there already
    with pytest.raises(DiskFull):
        disk.space.allocate(40_001, 1 << 30)


def test_with_room_to_spare_some_more_is_allocated_up_to_the_end_of_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, monkeypatch, free=(128 << 10) + 60_000, reserve=60_000)
    disk.space.allocate(40_000, 1 << 30)
    assert 128 << 10 <= disk.allocated < 140 << 10
    (tmp_path / "other").mkdir()
    disk = Disk(tmp_path / "other", monkeypatch, free=1 << 30, reserve=0)
    disk.space.allocate(40_000, 64 << 10)
    assert 64 << 10 <= disk.allocated < 72 << 10


@pytest.mark.parametrize(("size", "may_use_reserve", "fits"), [(40, False, True), (41, False, False), (41, True, True)])
def test_only_what_frees_space_may_use_the_reserve(
    size: int, may_use_reserve: bool, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, monkeypatch, free=100, reserve=60)
    if fits:
        disk.space.require_free(size, may_use_reserve=may_use_reserve)
        disk.space.require_free(100, may_use_reserve=True)
    else:
        with pytest.raises(DiskFull, match="may need 41 B"):
            disk.space.require_free(size, may_use_reserve=may_use_reserve)
    with pytest.raises(DiskFull, match="may need 101 B"):
        disk.space.require_free(101, may_use_reserve=True)


def test_room_far_behind_the_used_part_is_given_back_and_the_file_keeps_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, monkeypatch, free=1 << 40, reserve=0)
    disk.path.touch()
    disk.space.begin(8 << 20, 10 << 20)
    disk.space.release(0, 10 << 20)
    assert disk.allocated >= 8 << 20
    disk.space.begin((8 << 20) + PAGE_BYTES, 10 << 20)
    disk.space.release(0, 10 << 20)
    assert 4 << 20 <= disk.allocated < 5 << 20
    assert disk.path.stat().st_size == 10 << 20
    disk.space.allocate(5 << 20, 10 << 20)  # what was given back is allocated once more
    assert disk.allocated >= 5 << 20


def test_a_disk_that_is_full_when_a_file_is_allocated_locks_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, kind, code in (
        (errno.ENOSPC, DiskFull, ErrorCode.DISK_WRITE_LOCKED),
        (errno.EIO, StorageFailure, ErrorCode.STORAGE_EXCEPTION),
    ):

        def fail(*_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(StorageFailure, match=r"allocate 10 bytes of .*file") as caught:
            allocate_file(tmp_path / "file", 0, 10)
        assert (type(caught.value), caught.value.code) == (kind, code)


def test_no_bytes_need_no_file(tmp_path: Path) -> None:
    allocate_file(tmp_path / "none", 0, 0)
    allocate_file(tmp_path / "none", 10, -5)
    assert not (tmp_path / "none").exists()
    allocate_file(tmp_path / "one", 0, 1)
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
