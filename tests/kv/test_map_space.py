"""Space for LMDB's map: enough before each write, or an error; never a signal."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.base.host import file_system_type
from forebay.fs.interface import DiskFull
from forebay.kv.engine import EngineState, size_of
from forebay.kv.lmdb_engine import LmdbEngine, _with_long_keys
from forebay.kv.map_space import PAGE_BYTES, pages_at_most
from tests.small_disk import MOUNTS, mounted_tmpfs

_UPDATE_OF_EVERY_PAGE = """
import os, sys
from pathlib import Path
from forebay.base.errors import ForebayError
from forebay.kv.engine import EngineState
from forebay.kv.lmdb_engine import LmdbEngine
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


@settings(deadline=None, max_examples=25)
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
