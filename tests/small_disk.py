"""Small separate file systems for tests of full disks; they need root, and are skipped without."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILL_NAME = "fill"
_MIB = 1 << 20


class SmallDisk:
    """A mounted file system."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all space but `leave_bytes`, as another program would."""
        with (self.path / FILL_NAME).open("ab") as file:
            while (size := self.free_bytes() - leave_bytes) >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size // 4096 * 4096)
                except OSError:
                    size = max(size // 2, 4096)
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)

    def make_room(self) -> None:
        """Give back what `fill` took."""
        (self.path / FILL_NAME).unlink()


@contextmanager
def mounted_tmpfs(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """A tmpfs of `mib` MiB on `folder`."""
    with _mounted(folder, ["-t", "tmpfs", "-o", f"size={mib}m", "tmpfs"]) as disk:
        yield disk


@contextmanager
def mounted_ext4(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """An ext4 of `mib` MiB in a file, on a loop device."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    image = folder.with_name(folder.name + ".image")
    with image.open("wb") as file:
        file.truncate(mib * _MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    try:
        with _mounted(folder, ["-o", "loop", str(image)]) as disk:
            yield disk
    finally:
        image.unlink()


MOUNTS: dict[str, Callable[..., object]] = {"tmpfs": mounted_tmpfs, "ext4": mounted_ext4}


@contextmanager
def _mounted(folder: Path, arguments: list[str]) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this system does not mount here: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
