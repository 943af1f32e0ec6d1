"""The local file system: the contract, and behaviour that only a real kernel shows."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import SeededIds
from forebay.base.errors import StorageFailure
from forebay.fs.interface import DiskFull
from forebay.fs.local import LocalFileSystem
from tests.fs.file_system_contract import FileSystemContract
from tests.open_files import open_files


class TestLocalFileSystem(FileSystemContract):
    @pytest.fixture
    def fs(self) -> LocalFileSystem:
        return LocalFileSystem(SeededIds(1))

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths that were fsynced, in order."""
    paths: list[str] = []

    def recording(real: Any) -> Any:
        def sync(number: int) -> None:
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
            real(number)

        return sync

    monkeypatch.setattr(os, "fsync", recording(os.fsync))
    monkeypatch.setattr("forebay.fs.local._sync_data", recording(os.fdatasync))
    return paths


def test_short_writes_are_continued_until_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    sizes: list[int] = []

    def short(number: int, buffers: list[memoryview], position: int) -> int:
        some = b"".join(buffers)[:7]
        sizes.append(len(some))
        return real(number, [some], position)

    monkeypatch.setattr(os, "pwritev", short)
    file = LocalFileSystem().open_append(f"{tmp_path}/a")
    file.append([b"0123456789", b"", b"abc", b"defghijklmnopqrst"])
    assert Path(f"{tmp_path}/a").read_bytes() == b"0123456789abcdefghijklmnopqrst"
    assert file.size == 30
    assert len(sizes) == 5


def test_short_reads_are_continued_until_all_is_read_or_the_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread
    (tmp_path / "a").write_bytes(b"0123456789abcdefghijklmnop")
    monkeypatch.setattr(os, "pread", lambda number, length, offset: real(number, min(length, 7), offset))
    reader = LocalFileSystem().open_reader(f"{tmp_path}/a")
    for offset, length in ((0, 0), (0, 7), (1, 20), (20, 100), (26, 5)):
        assert reader.pread(offset, length) == b"0123456789abcdefghijklmnop"[offset : offset + length]


def test_a_write_that_makes_no_progress_fails_instead_of_looping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    file = LocalFileSystem().open_append(f"{tmp_path}/a")
    with pytest.raises(StorageFailure, match="no more bytes"):
        file.append([b"x"])
    assert file.size == 0


def test_a_full_disk_is_recognisable_and_leaves_the_size_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    file = LocalFileSystem().open_append(f"{tmp_path}/a")
    file.append([b"before"])

    def full(number: int, buffers: list[memoryview], position: int) -> int:
        if position >= 8:
            raise OSError(errno.ENOSPC, "")
        return real(number, [b"".join(buffers)[:2]], position)

    monkeypatch.setattr(os, "pwritev", full)
    disk = rf"the disk of {tmp_path}, which has [\d.]+ [KMGT]?i?B free"
    with pytest.raises(DiskFull, match=rf"/a: No space left on device \(ENOSPC\); free space on {disk}"):
        file.append([b"12345"])
    monkeypatch.undo()
    assert file.size == 6
    file.truncate(file.size)
    file.append([b"after"])
    assert Path(f"{tmp_path}/a").read_bytes() == b"beforeafter"


def test_after_a_failed_sync_the_file_refuses_all_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        raise OSError(errno.EIO, "")

    file = LocalFileSystem().open_append(f"{tmp_path}/a")
    file.append([b"x"])
    monkeypatch.setattr("forebay.fs.local._sync_data", fail)
    with pytest.raises(StorageFailure, match="cannot sync"):
        file.sync()
    monkeypatch.undo()
    for work in (file.sync, lambda: file.append([b"y"]), lambda: file.truncate(0)):
        with pytest.raises(StorageFailure, match="not used any more: cannot sync"):
            work()


def test_the_first_sync_of_a_file_syncs_its_folder_too(tmp_path: Path, synced: list[str]) -> None:
    file = LocalFileSystem().open_append(f"{tmp_path}/a")
    file.append([b"x"])
    assert synced == []
    file.sync()
    assert synced == [f"{tmp_path}/a", str(tmp_path)]
    file.sync()
    assert synced == [f"{tmp_path}/a", str(tmp_path), f"{tmp_path}/a"]


def test_an_atomic_write_syncs_the_new_content_before_the_folder(tmp_path: Path, synced: list[str]) -> None:
    LocalFileSystem(SeededIds(1)).write_atomic(f"{tmp_path}/a", b"x")
    assert len(synced) == 2
    assert synced[0].startswith(f"{tmp_path}/.a.")
    assert synced[1] == str(tmp_path)


def test_the_name_of_a_published_file_is_durable_whichever_thread_published_it(
    tmp_path: Path, synced: list[str]
) -> None:
    fs = LocalFileSystem(SeededIds(1))
    for is_first in (True, False):
        assert fs.publish_if_absent(f"{tmp_path}/a", b"x") is is_first
        assert len(synced) == 2
        assert synced[0].startswith(f"{tmp_path}/.a.")
        assert synced[1] == str(tmp_path)
        synced.clear()


def test_a_folder_that_another_thread_makes_first_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.mkdir

    def late(path: str, mode: int) -> None:
        real(path, mode)
        raise FileExistsError(errno.EEXIST, "")

    monkeypatch.setattr(os, "mkdir", late)
    LocalFileSystem().make_directories(f"{tmp_path}/x/y")
    assert (tmp_path / "x" / "y").stat().st_mode & 0o777 == 0o700


def test_the_cache_of_a_file_is_dropped_where_the_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")
    asked: list[tuple[str, int, int, int]] = []

    def advise(number: int, *rest: int) -> None:
        asked.append((os.readlink(f"/proc/self/fd/{number}"), *rest))  # type: ignore[arg-type]

    monkeypatch.setattr(os, "posix_fadvise", advise)
    LocalFileSystem().forget_cached(f"{tmp_path}/a")
    assert asked == [(f"{tmp_path}/a", 0, 0, os.POSIX_FADV_DONTNEED)]
    monkeypatch.delattr(os, "posix_fadvise")
    LocalFileSystem().forget_cached(f"{tmp_path}/a")
    assert len(asked) == 1


def test_each_new_folder_is_synced_into_the_one_above(tmp_path: Path, synced: list[str]) -> None:
    LocalFileSystem().make_directories(f"{tmp_path}/x/y")
    assert synced == [str(tmp_path.parent), str(tmp_path), f"{tmp_path}/x"]


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_failed_atomic_write_keeps_the_old_content_and_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    fs = LocalFileSystem()
    fs.write_atomic(f"{tmp_path}/a", b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(DiskFull):
        fs.write_atomic(f"{tmp_path}/a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert Path(f"{tmp_path}/a").read_bytes() == b"old"


def test_a_reader_never_reads_from_a_reused_descriptor(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    fs.write_atomic(f"{tmp_path}/a", b"a" * 10)
    fs.write_atomic(f"{tmp_path}/b", b"b" * 10)
    append = fs.open_append(f"{tmp_path}/a")
    reader = append.reader()
    append.close()
    others = [fs.open_reader(f"{tmp_path}/b") for _ in range(5)]
    assert reader.pread(0, 10) == b"a" * 10
    del others


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    for number in range(50):
        file = fs.open_append(f"{tmp_path}/{number}")
        file.append([b"x"])
        file.sync()
        reader = file.reader()
        reader.pread(0, 1)
        file.close()
        reader.close()
        fs.write_atomic(f"{tmp_path}/{number}", b"y")
    held = fs.lock(f"{tmp_path}/lock")
    assert held is not None
    held.release()
    assert not open_files(tmp_path)


def test_links_inside_a_removed_tree_are_not_followed(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    fs.make_directories(f"{tmp_path}/outside")
    fs.write_atomic(f"{tmp_path}/outside/kept", b"x")
    fs.make_directories(f"{tmp_path}/tree")
    os.symlink(f"{tmp_path}/outside", f"{tmp_path}/tree/link")
    fs.remove_tree(f"{tmp_path}/tree")
    assert Path(f"{tmp_path}/outside/kept").read_bytes() == b"x"
    assert not fs.exists(f"{tmp_path}/tree")


@pytest.mark.parametrize("in_place", [True, False])
def test_words_are_stored_by_memory_or_by_writes_and_seen_by_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    monkeypatch.setattr("forebay.fs.local_words.allocates_in_place", lambda directory: in_place)
    fs, path = LocalFileSystem(), f"{tmp_path}/words"
    fs.write_atomic(path, bytes(4096))
    shared = fs.share_words(path)
    words = shared.words
    assert len(words) == 512
    words[511] = -7
    assert words[511] == -7
    assert Path(path).read_bytes()[-8:] == (-7).to_bytes(8, sys.byteorder, signed=True)
    shared.sync()
    del shared
    words[0] = 1  # a thread that still holds them
    assert Path(path).read_bytes()[:1] == b"\1"
