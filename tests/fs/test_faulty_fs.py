"""The faulty file system: the contract, and that it loses exactly what the contract does not call durable."""

from __future__ import annotations

import errno
import random
import sys
from collections.abc import Callable

import pytest

from forebay.base.errors import StorageFailure
from forebay.fs import names
from forebay.fs.interface import DiskFull
from tests.fs.faulty_fs import FaultyFileSystem
from tests.fs.file_system_contract import FileSystemContract


class TestFaultyFileSystem(FileSystemContract):
    @pytest.fixture
    def fs(self) -> FaultyFileSystem:
        fs = FaultyFileSystem(random.Random(1))
        fs.make_directories("/data")
        return fs

    @pytest.fixture
    def root(self) -> str:
        return "/data"


def make(seed: int) -> FaultyFileSystem:
    fs = FaultyFileSystem(random.Random(seed))
    fs.make_directories("/d")
    return fs


def outcomes(before: Callable[[FaultyFileSystem], None], seeds: int = 300) -> set[bytes | None]:
    """All contents of /d/a that power losses with different seeds leave; None where the file is gone."""
    found: set[bytes | None] = set()
    for seed in range(seeds):
        fs = make(seed)
        before(fs)
        after = fs.crash()
        found.add(after.read_bytes("/d/a") if after.exists("/d/a") else None)
    return found


def test_synced_bytes_survive_a_power_loss_and_unsynced_ones_may_be_torn_anywhere() -> None:
    def run(fs: FaultyFileSystem) -> None:
        file = fs.open_append("/d/a")
        file.append([b"SYNC"])
        file.sync()
        file.append([b"1234"])

    assert outcomes(run) == {b"SYNC" + b"1234"[:kept] for kept in range(5)} | {b"SYNC\0\0\0\0"}


def test_an_unsynced_truncation_may_come_undone() -> None:
    def run(fs: FaultyFileSystem) -> None:
        file = fs.open_append("/d/a")
        file.append([b"123456"])
        file.sync()
        file.truncate(2)

    assert outcomes(run) == {b"123456", b"12"}


def test_pages_reach_the_disk_in_any_order() -> None:
    def run(fs: FaultyFileSystem) -> None:
        file = fs.open_append("/d/a")
        file.append([b"a" * 4096 + b"b" * 4096])
        file.sync()
        file.truncate(0)
        file.sync()
        file.append([b"c" * 4096 + b"d" * 4096])

    found = outcomes(run)
    assert bytes(4096) + b"d" * 4096 in found
    assert b"c" * 4096 + bytes(4096) in found
    assert b"" in found


def test_a_new_name_may_vanish_until_the_file_or_its_folder_is_synced() -> None:
    def created(fs: FaultyFileSystem) -> None:
        fs.open_append("/d/a")

    def folder_synced(fs: FaultyFileSystem) -> None:
        fs.open_append("/d/a")
        fs.sync_directory("/d")

    def file_synced(fs: FaultyFileSystem) -> None:
        fs.open_append("/d/a").sync()

    assert outcomes(created) == {None, b""}
    assert outcomes(folder_synced) == {b""}
    assert outcomes(file_synced) == {b""}


def test_a_removal_may_come_undone_until_the_folder_is_synced() -> None:
    def removed(fs: FaultyFileSystem) -> None:
        fs.write_atomic("/d/a", b"x")
        fs.remove("/d/a")

    def synced(fs: FaultyFileSystem) -> None:
        removed(fs)
        fs.sync_directory("/d")

    assert outcomes(removed) == {None, b"x"}
    assert outcomes(synced) == {None}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    found = set()
    for seed in range(100):
        fs = make(seed)
        fs.write_atomic("/d/a", b"x")
        fs.rename("/d/a", "/d/b")
        found.add(tuple(entry.name for entry in fs.crash().list_directory("/d")))
    assert found == {("a",), ("b",)}


def test_atomic_writes_and_folders_are_durable_at_once() -> None:
    def run(fs: FaultyFileSystem) -> None:
        fs.open_append("/d/a").append([b"earlier"])
        fs.write_atomic("/d/a", b"x")
        fs.make_directories("/d/e/f")
        assert fs.publish_if_absent("/d/e/f/g", b"y")

    assert outcomes(run) == {b"x"}
    for seed in range(50):
        fs = make(seed)
        run(fs)
        assert fs.crash().read_bytes("/d/e/f/g") == b"y"


def test_one_seed_gives_one_outcome() -> None:
    def run(seed: int) -> list[bytes]:
        fs = make(seed)
        contents = []
        for number in range(5):
            file = fs.open_append("/d/a")
            file.append([bytes([number]) * 9000])
            fs = fs.crash()
            contents.append(fs.read_bytes("/d/a") if fs.exists("/d/a") else b"")
        return contents

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_a_kill_loses_nothing_but_the_locks() -> None:
    fs = make(1)
    fs.open_append("/d/a").append([b"unsynced"])
    assert fs.lock("/d/lock") is not None
    after = fs.kill()
    assert after.read_bytes("/d/a") == b"unsynced"
    assert after.lock("/d/lock") is not None


@pytest.mark.parametrize("end", ["crash", "kill"])
def test_handles_from_before_the_end_are_dead(end: str) -> None:
    fs = make(1)
    file = fs.open_append("/d/a")
    getattr(fs, end)()
    with pytest.raises(StorageFailure, match=r"power is off|killed"):
        file.append([b"x"])
    with pytest.raises(StorageFailure, match=r"power is off|killed"):
        fs.exists("/d/a")


def test_a_fault_strikes_the_chosen_call_of_the_chosen_path() -> None:
    fs = make(1)
    fault = fs.inject("append", "/d/a", on_call=2, error=errno.ENOSPC)
    a, b = fs.open_append("/d/a"), fs.open_append("/d/b")
    a.append([b"1"])
    b.append([b"1"])
    b.append([b"2"])
    with pytest.raises(DiskFull, match="ENOSPC"):
        a.append([b"2"])
    a.append([b"3"])
    assert (fault.calls, fault.fired) == (3, 1)
    assert fs.content("/d/a") == b"13"


def test_a_lost_answer_does_the_work_and_then_fails() -> None:
    fs = make(1)
    fs.inject("append", "/d/a", effect="after")
    file = fs.open_append("/d/a")
    with pytest.raises(StorageFailure):
        file.append([b"written"])
    assert file.size == 0
    assert fs.content("/d/a") == b"written"


def test_a_partial_append_leaves_a_beginning() -> None:
    left = set()
    for seed in range(60):
        fs = make(seed)
        fs.inject("append", effect="partial", error=errno.ENOSPC)
        file = fs.open_append("/d/a")
        with pytest.raises(DiskFull):
            file.append([b"1234"])
        assert file.size == 0
        left.add(fs.content("/d/a"))
    assert left == {b"1234"[:kept] for kept in range(5)}


def test_a_partial_atomic_write_leaves_a_temporary_file_and_the_old_content() -> None:
    fs = make(1)
    fs.write_atomic("/d/a", b"old")
    fs.inject("write_atomic", effect="partial")
    with pytest.raises(StorageFailure):
        fs.write_atomic("/d/a", b"new")
    assert fs.read_bytes("/d/a") == b"old"
    assert sum(names.is_temporary(entry.name) for entry in fs.list_directory("/d")) == 1


def test_a_failed_sync_closes_the_file_for_good() -> None:
    fs = make(1)
    fs.inject("sync")
    file = fs.open_append("/d/a")
    with pytest.raises(StorageFailure, match="EIO"):
        file.sync()
    with pytest.raises(StorageFailure, match="not used any more"):
        file.append([b"x"])


def test_pages_dropped_by_a_failed_sync_look_written_until_the_cache_is_dropped() -> None:
    fs = make(1)
    fs.inject("sync", effect="drop")
    file = fs.open_append("/d/a")
    file.append([b"lost"])
    with pytest.raises(StorageFailure):
        file.sync()
    again = fs.open_append("/d/a")
    again.sync()
    assert fs.read_bytes("/d/a") == b"lost"
    fs.forget_cached("/d/a")
    assert fs.read_bytes("/d/a") == b""
    assert fs.crash().read_bytes("/d/a") == b""


def test_flipped_bytes_are_seen_on_read_only_or_stored_for_good() -> None:
    fs = make(1)
    fs.write_atomic("/d/a", b"abc")
    fs.flip_on_read("/d/a", 1, 0x01)
    assert fs.open_reader("/d/a").pread(1, 2) == b"cc"
    assert fs.content("/d/a") == b"abc"
    fs.clear_faults()
    fs.flip_byte("/d/a", 0, 0x02)
    assert fs.read_bytes("/d/a") == b"cbc"
    assert fs.crash().read_bytes("/d/a") == b"cbc"


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, sys.byteorder, signed=True) for number in numbers)


def test_words_that_were_stored_survive_a_kill_and_any_of_them_may_be_lost_with_the_power() -> None:
    def run(fs: FaultyFileSystem) -> None:
        fs.write_atomic("/d/a", words(0, 0))
        shared = fs.share_words("/d/a")
        shared.words[0] = 1
        shared.sync()
        shared.words[0] = 2
        shared.words[1] = 3

    assert outcomes(run) == {words(1, 0), words(2, 0), words(1, 3), words(2, 3)}
    fs = make(1)
    run(fs)
    assert fs.kill().read_bytes("/d/a") == words(2, 3)


def test_a_page_is_lost_from_some_write_on_and_never_before_one_that_is_there() -> None:
    def run(fs: FaultyFileSystem) -> None:
        file = fs.open_append("/d/a")
        file.sync()
        file.append([b"1"])
        file.append([b"2"])

    assert outcomes(run) == {b"", b"1", b"12", b"\0\0", b"1\0", b"\0"} - {b"\0"}
