"""Facts about the machine: file system types, limits of open files, proof that the page cache was kept."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from forebay.base import host

_MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw shared:2 - proc proc rw
24 22 0:30 / {folder} rw - btrfs /dev/x rw
25 24 0:31 / {folder}/inner\\040one rw - tmpfs none rw
26 24 0:32 / {folder}/twice rw - tmpfs none rw
27 24 0:33 / {folder}/twice rw - xfs /dev/y rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("", "btrfs"), ("x/y", "btrfs"), ("inner one/x", "tmpfs"), ("inner", "btrfs"), ("twice/x", "xfs"), ("/", "ext4")],
)
def test_the_innermost_and_latest_mount_counts(
    path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(_MOUNTS.format(folder=os.path.realpath(tmp_path)))
    monkeypatch.setattr(host, "_MOUNTS", mounts)
    assert host.file_system_type(tmp_path / path) == kind


def test_a_system_that_tells_nothing_of_its_mounts_has_no_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_MOUNTS", tmp_path / "none")
    assert host.file_system_type(tmp_path) is None


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "then"),
    [
        (100, 1000, 500, 500),
        (100, 1000, 5000, 1000),
        (500, 1000, 100, 500),
        (500, 1000, 500, 500),
        (100, resource.RLIM_INFINITY, 5000, 5000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 5000, resource.RLIM_INFINITY),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be_and_never_lowered(
    soft: int, hard: int, wanted: int, then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [(soft, hard)]
    changes: list[tuple[int, int]] = []

    def setrlimit(_which: int, limits: tuple[int, int]) -> None:
        changes.append(limits)
        now[0] = limits

    monkeypatch.setattr(resource, "getrlimit", lambda _which: now[0])
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert host.raise_open_files_max(wanted) == then
    assert changes == ([] if then == soft else [(then, hard)])


def test_without_an_id_of_the_start_or_after_a_failed_write_back_nothing_proves_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_unique_mount_id", lambda _: 7)
    monkeypatch.setattr(host, "_superblock_id", lambda _: None)
    monkeypatch.setattr(host, "boot_id", lambda: "b")
    assert host.page_cache_witnesses(str(tmp_path)) == {"mount b 7"}
    monkeypatch.setattr(host, "_write_back_failed", lambda _: True)
    assert host.page_cache_witnesses(str(tmp_path)) == frozenset()
    monkeypatch.setattr(host, "_write_back_failed", lambda _: False)
    monkeypatch.setattr(host, "boot_id", lambda: None)
    assert host.page_cache_witnesses(str(tmp_path)) == frozenset()


@pytest.mark.parametrize(
    ("release", "known"), [("5.5.0", True), ("6.1", True), ("5.4.99", False), ("4.19", False), ("odd", False)]
)
def test_inodes_of_superblocks_count_where_the_kernel_never_uses_them_twice(
    release: str, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uname = os.uname_result(("Linux", "n", release, "v", "m"))
    monkeypatch.setattr(os, "uname", lambda: uname)
    monkeypatch.setattr(os, "readlink", lambda _: "../../devices/vda")
    real = os.stat

    def stat(path: str, **options: object) -> object:
        if str(path).startswith("/sys/fs/ext4/"):
            raise FileNotFoundError(path)
        return real(tmp_path if str(path) == "/sys/fs/xfs/vda" else path, **options)  # type: ignore[arg-type]

    inode = real(tmp_path).st_ino
    monkeypatch.setattr(os, "stat", stat)
    assert host._superblock_id(str(tmp_path)) == (f"xfs vda {inode}" if known else None)


def test_a_folder_that_is_gone_may_have_lost_pages(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    assert not host._write_back_failed(str(tmp_path))
    assert host._write_back_failed(str(tmp_path / "none"))


def test_asking_for_what_proves_the_page_cache_leaves_no_file_open(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"file{number}").write_bytes(b"x")
    host.page_cache_witnesses(str(tmp_path))  # may load what it asks
    before = os.listdir("/proc/self/fd")
    host.page_cache_witnesses(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before


def test_large_blocks_come_from_the_system_until_the_end_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *each: asked.append(each)))

    @host.untouched_blocks()
    def work() -> None:
        assert asked == [(host._M_MMAP_THRESHOLD, 1 << 20)]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert asked[1:] == [(host._M_MMAP_THRESHOLD, 4 << 20)]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    with host.untouched_blocks():
        pass
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("result", "mask", "found"), [(0, 0x4000 | 0x7FF, 77), (0, 0x7FF, None), (-1, 0x4000, None), (None, 0x4000, None)]
)
def test_the_unique_id_of_a_mount_counts_where_the_kernel_has_told_it(
    result: int | None, mask: int, found: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statx(_folder: int, path: bytes, _flags: int, wanted: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
        assert (path, wanted) == (os.fsencode(tmp_path), 0x4000)
        struct.pack_into("=I", buffer, 0, mask)
        struct.pack_into("=Q", buffer, 144, 77)
        return result or 0

    library = SimpleNamespace() if result is None else SimpleNamespace(statx=statx)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: library)
    assert host._unique_mount_id(str(tmp_path)) == found


@pytest.mark.parametrize("library", [{"malloc_trim": None}, {}], ids=["glibc", "another"])
def test_free_memory_is_returned_where_the_c_library_can(
    library: dict[str, None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    functions = dict.fromkeys(library, asked.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(**functions))
    host.return_free_memory()
    assert asked == [0] * len(library)
