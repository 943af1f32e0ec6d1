"""Checkpoints, the clean-shutdown marker and the lock of a data directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import Conflict, CorruptData, StorageFailure
from forebay.fs import names
from forebay.fs.interface import FileEntry
from forebay.fs.local import LocalFileSystem
from forebay.log.checkpoints import DataDirectory, OffsetCheckpoint, read_clean_shutdown
from forebay.log.log_ends import LogEnds
from forebay.metadata.table import TableBucket
from tests.fs.faulty_fs import FaultyFileSystem
from tests.log.log_batches import faulty_fs

PATH = "/data/recovery-points.checkpoint"
OFFSETS = {TableBucket(7, 0): 12, TableBucket(7, 1): 0, TableBucket(150001, 2, 20241121): 2**62}
numbers = st.integers(0, 2**63 - 1)
buckets = st.builds(TableBucket, numbers, st.integers(0, 2**31 - 1), st.none() | numbers)


def make_fs(seed: int = 1) -> FaultyFileSystem:
    fs = faulty_fs(seed)
    fs.make_directories("/data")
    return fs


@given(st.dictionaries(buckets, numbers, max_size=10))
def test_a_checkpoint_is_read_back(offsets: dict[TableBucket, int]) -> None:
    fs = make_fs()
    checkpoint = OffsetCheckpoint(fs, PATH)
    assert checkpoint.read() == {}
    checkpoint.write(offsets)
    assert OffsetCheckpoint(fs.crash(), PATH).read() == offsets


def test_a_checkpoint_is_text_for_people() -> None:
    fs = make_fs()
    OffsetCheckpoint(fs, PATH).write(OFFSETS)
    assert fs.content(PATH).decode() == (
        "forebay offset checkpoint 1\n7 - 0 12\n7 - 1 0\n150001 20241121 2 4611686018427387904\ncrc32c e4377bf7\n"
    )


def test_no_damage_of_a_checkpoint_is_taken_for_other_offsets_or_none() -> None:
    fs = make_fs()
    checkpoint = OffsetCheckpoint(fs, PATH)
    checkpoint.write(OFFSETS)
    whole = fs.content(PATH)
    for position in range(len(whole)):
        for mask in (0x01, 0x20, 0xFF):
            fs.set_content(PATH, whole)
            fs.flip_byte(PATH, position, mask)
            with pytest.raises(CorruptData, match=PATH):
                checkpoint.read()
    for size in range(len(whole)):
        fs.set_content(PATH, whole[:size])
        with pytest.raises(CorruptData, match="remove it, and every log will be checked from its beginning"):
            checkpoint.read()


@pytest.mark.parametrize("effect", ["before", "partial"])
def test_a_checkpoint_that_cannot_be_replaced_stays_as_it_was(effect: str) -> None:
    fs = make_fs()
    checkpoint = OffsetCheckpoint(fs, PATH)
    checkpoint.write(OFFSETS)
    fs.inject("write_atomic", effect=effect)  # type: ignore[arg-type]
    with pytest.raises(StorageFailure):
        checkpoint.write({})
    assert checkpoint.read() == OFFSETS


def test_one_bucket_is_lowered_and_never_raised() -> None:
    fs = make_fs()
    checkpoint = OffsetCheckpoint(fs, PATH)
    checkpoint.lower(TableBucket(7, 0), 5)
    assert checkpoint.read() == {}
    checkpoint.write(OFFSETS)
    before = fs.calls.count(("write_atomic", PATH))
    for offset in (50, OFFSETS[TableBucket(7, 0)]):
        checkpoint.lower(TableBucket(7, 0), offset)
    assert checkpoint.read() == OFFSETS
    assert fs.calls.count(("write_atomic", PATH)) == before
    checkpoint.lower(TableBucket(7, 0), 5)
    assert OffsetCheckpoint(fs.crash(), PATH).read() == {**OFFSETS, TableBucket(7, 0): 5}


def test_a_second_server_on_a_data_directory_gets_a_clear_error() -> None:
    fs = make_fs()
    first = DataDirectory.open(fs, "/data")
    with pytest.raises(Conflict, match="the data directory /data is in use by another server"):
        DataDirectory.open(fs, "/data")
    first.close()
    DataDirectory.open(fs, "/data").close()


class _WithoutLists(LocalFileSystem):
    def list_directory(self, path: str) -> list[FileEntry]:
        raise StorageFailure(f"cannot list {path}")


def test_a_data_directory_that_cannot_be_opened_is_not_kept_locked(tmp_path: Path) -> None:
    path = f"{tmp_path}/data"
    with pytest.raises(StorageFailure, match="cannot list") as told:
        DataDirectory.open(_WithoutLists(), path)
    DataDirectory.open(LocalFileSystem(), path).close()
    assert told.tb is not None  # it refers to what was open, which was closed all the same


def test_a_server_in_another_process_is_kept_away_and_a_killed_one_is_not_in_the_way(tmp_path: Path) -> None:
    code = (
        "import sys; from forebay.fs.local import LocalFileSystem; from forebay.log.checkpoints import DataDirectory\n"
        "held = DataDirectory.open(LocalFileSystem(), sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    path = f"{tmp_path}/data"
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(Conflict, match="another server"):
            DataDirectory.open(LocalFileSystem(), path)
        process.kill()
        process.wait()
    DataDirectory.open(LocalFileSystem(), path).close()


def test_a_clean_shutdown_is_known_once() -> None:
    fs = make_fs()
    directory = DataDirectory.open(fs, "/data")
    assert not directory.take_clean_shutdown()
    directory.mark_clean_shutdown()
    fs = fs.crash()
    directory = DataDirectory.open(fs, "/data")
    assert directory.take_clean_shutdown()
    assert not directory.take_clean_shutdown()
    assert not DataDirectory.open(fs.crash(), "/data").take_clean_shutdown()


def test_taking_the_marker_is_durable_before_it_is_answered() -> None:
    for seed in range(30):
        fs = make_fs(seed)
        DataDirectory.open(fs, "/data").mark_clean_shutdown()
        fs = fs.crash()
        assert DataDirectory.open(fs, "/data").take_clean_shutdown()
        assert not DataDirectory.open(fs.crash(), "/data").take_clean_shutdown()


def test_a_damaged_marker_counts_as_none() -> None:
    fs = make_fs()
    directory = DataDirectory.open(fs, "/data")
    directory.mark_clean_shutdown()
    fs.flip_byte(names.join("/data", names.CLEAN_SHUTDOWN_FILE), 3)
    assert not directory.take_clean_shutdown()
    assert not fs.exists("/data/clean-shutdown")


def test_the_marker_tells_which_buckets_were_not_closed() -> None:
    buckets = {TableBucket(7, 1), TableBucket(7, 0), TableBucket(150001, 2, 20241121)}
    fs = make_fs()
    DataDirectory.open(fs, "/data").mark_clean_shutdown(buckets)
    fs = fs.crash()
    lines = fs.content("/data/clean-shutdown").decode().splitlines()
    assert lines[:-1] == [
        "forebay clean shutdown 1",
        "not closed 7 - 0",
        "not closed 7 - 1",
        "not closed 150001 20241121 2",
    ]
    assert read_clean_shutdown(fs, "/data") == buckets
    directory = DataDirectory.open(fs, "/data")
    assert directory.not_closed == frozenset()
    assert directory.take_clean_shutdown()
    assert directory.not_closed == buckets
    assert read_clean_shutdown(fs, "/data") is None
    directory.mark_clean_shutdown()
    assert fs.content("/data/clean-shutdown") == b"forebay clean shutdown 1\n"
    assert read_clean_shutdown(fs, "/data") == frozenset()


def test_no_flipped_byte_of_a_marker_is_taken_for_other_buckets() -> None:
    fs = make_fs()
    DataDirectory.open(fs, "/data").mark_clean_shutdown({TableBucket(7, 0), TableBucket(8, 1, 3)})
    whole = fs.content("/data/clean-shutdown")
    for position in range(len(whole)):
        fs.set_content("/data/clean-shutdown", whole)
        fs.flip_byte("/data/clean-shutdown", position, 1)
        with pytest.raises(CorruptData, match="/data/clean-shutdown is damaged"):
            read_clean_shutdown(fs, "/data")
        fs = fs.kill()
        directory = DataDirectory.open(fs, "/data")
        assert not directory.take_clean_shutdown()
        assert directory.not_closed == frozenset()


def test_a_data_directory_with_anything_that_is_made_after_the_metadata_was_used() -> None:
    for write in (
        lambda fs, directory: directory.recovery_points.write({}),
        lambda fs, directory: directory.high_watermarks.write({}),
        lambda fs, directory: directory.mark_clean_shutdown(),
        # The first of them: a server that was killed at once after its first acknowledgement has no other.
        lambda fs, directory: LogEnds.open(fs, "/data", frozenset(), lambda bucket: True),
    ):
        fs = make_fs()
        directory = DataDirectory.open(fs, "/data")
        assert not directory.was_used
        write(fs, directory)
        assert directory.was_used


def test_left_over_temporary_files_are_removed_on_opening() -> None:
    fs = make_fs()
    fs.set_content(f"/data/{names.temporary_name('x', '1')}", b"half")
    directory = DataDirectory.open(fs, "/data")
    directory.recovery_points.write(OFFSETS)
    directory.high_watermarks.write({TableBucket(7, 0): 3})
    assert [entry.name for entry in fs.list_directory("/data")] == [
        "high-watermarks.checkpoint",
        "lock",
        "recovery-points.checkpoint",
    ]
    assert directory.recovery_points.read() == OFFSETS
    assert directory.high_watermarks.read() == {TableBucket(7, 0): 3}
