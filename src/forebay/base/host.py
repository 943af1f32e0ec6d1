"""Properties of this machine, injected where they matter."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT_ESCAPE = re.compile(r"\\([0-7]{3})")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# From the headers of Linux and glibc: the mask, size and field offset of `struct statx`, and flags of system calls.
_STATX_MNT_ID_UNIQUE = 0x4000
_STATX_BYTES = 256
_STATX_MNT_ID_PLACE = 144
_AT_FDCWD = -100
_SYNC_FILE_RANGE_WAIT_BEFORE = 1
_SYSFS_FILE_SYSTEMS = ("ext4", "xfs", "f2fs")
_M_MMAP_THRESHOLD = -3
_BLOCKS_LOCK = threading.Lock()
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_MEMINFO = "/proc/meminfo"
_UNKNOWN_MACHINE_BYTES = 2 << 30
"""The memory that a machine is assumed to have if it does not report it."""

_UNIQUE_SYSFS_INODES = (5, 5)
"""The first kernel version whose sysfs inode numbers are unique between two boots of the machine."""


def open_files_max() -> int:
    """Return the open-file limit of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_open_files_max(limit: int) -> int:
    """Raise the open-file limit of this process to `limit` if the system allows it; return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return open_files_max()


@contextlib.contextmanager
def untouched_blocks() -> Iterator[None]:
    """Let glibc allocate blocks of 1 MB and more from the system instead of its heaps inside the block: pages that are
    never touched take no memory then, unlike reused heap memory.

    For libraries that allocate much and use little of it. Concurrent allocations get such blocks, too, so keep it
    short. Afterwards blocks of 4 MB and more still come from the system: memory freed after large responses would stay
    in the heaps.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library with its own allocator
        yield
        return
    with _BLOCKS_LOCK:
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)
        try:
            yield
        finally:
            mallopt(_M_MMAP_THRESHOLD, 4 << 20)


def resident_bytes() -> int | None:
    """Return the memory that this process takes now; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * resource.getpagesize()


def anonymous_bytes(pid: int | None = None) -> int | None:
    """Return the memory of a process (default: this one) that is no file's; None where the system does not say."""
    return _status_bytes("RssAnon", pid)


def reserved_bytes(pid: int | None = None) -> int | None:
    """Return the address space that a process (default: this one) has for data, touched or not; None if unknown."""
    return _status_bytes("VmData", pid)


def limit_memory(more: int) -> None:
    """Have the system refuse this process more than `more` bytes beyond what it has reserved now.

    Only Linux does that; elsewhere it has no effect.
    """
    reserved = reserved_bytes()
    if reserved is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (reserved + more, reserved + more))


def _status_bytes(name: str, pid: int | None) -> int | None:
    try:
        lines = Path(f"/proc/{pid or 'self'}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), None)


def return_free_memory() -> None:
    """Let glibc return the free pages inside its heaps to the system, which it does not do automatically."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def boot_id() -> str | None:
    """Return an identifier that changes with every boot of the operating system; None if there is none."""
    try:
        return Path(_BOOT_ID).read_text().strip()
    except OSError:
        return None


def place_of_files(unchanging: str, database: str) -> str | None:
    """Return text that differs between two files, and between a file and its copy; None where there is no such file.

    `unchanging` is never written after it was created, `database` is only written in place. A copy of the one has
    another time of its last change, which no tool can set, and one of the other, as a rule, another inode number.
    A file that is moved within its file system, with its folder, keeps its text; it may lose it when the file system is
    mounted under another device number.
    """
    try:
        first, second = os.stat(unchanging), os.stat(database)
    except OSError:
        return None
    return f"{first.st_dev} {first.st_ino} {first.st_ctime_ns} {second.st_ino}"


def page_cache_witnesses(folder: str) -> frozenset[str]:
    """Identifiers of the page cache behind `folder`: while one of them persists, the kernel has lost no written page.

    Pages that were written without a sync live as long as the superblock of their file system. They are lost when the
    machine reboots, and also when the file system was shut down, or its device was lost, and mounted again. A witness
    identifies the superblock's lifetime, within one boot of the machine, by something that the kernel never reuses:

    - the unique id of the mount (`statx`, Linux 6.8), which keeps its superblock alive;
    - the inode number of the superblock's folder in sysfs (ext4, XFS, F2FS; Linux 5.5). It also outlives a mount, as
      when a container is restarted and its volumes are mounted again.

    Device numbers and the small mount ids of `/proc/self/mountinfo` come again after a remount and prove nothing.
    Empty where there is no proof, also after the kernel failed to write back a page of a file in `folder`.
    """
    boot = boot_id()
    if boot is None or _write_back_failed(folder):
        return frozenset()
    identifiers = {"mount": _unique_mount_id(folder), "superblock": _superblock_id(folder)}
    return frozenset(f"{kind} {boot} {value}" for kind, value in identifiers.items() if value is not None)


def _unique_mount_id(path: str) -> int | None:
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (AttributeError, OSError):
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_MNT_ID_UNIQUE, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", buffer)
    (mount_id,) = struct.unpack_from("=Q", buffer, _STATX_MNT_ID_PLACE)
    return mount_id if mask & _STATX_MNT_ID_UNIQUE else None


def _superblock_id(path: str) -> str | None:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if os.uname().sysname != "Linux" or release is None or (int(release[1]), int(release[2])) < _UNIQUE_SYSFS_INODES:
        return None
    try:
        device = os.stat(path).st_dev
        name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
    except OSError:
        return None  # not on its own block device
    for kind in _SYSFS_FILE_SYSTEMS:
        try:
            return f"{kind} {name} {os.stat(f'/sys/fs/{kind}/{name}').st_ino}"
        except OSError:
            continue
    return None


def _write_back_failed(folder: str) -> bool:
    """Whether the kernel failed to write back a page of a file in `folder`; reported to the first caller only."""
    try:
        sync_file_range = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (AttributeError, OSError):
        return False
    sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Waits for one page at most, and reports errors anywhere in the file.
                if sync_file_range(descriptor, 0, 1, _SYNC_FILE_RANGE_WAIT_BEFORE) != 0:
                    return True
            finally:
                os.close(descriptor)
    except OSError:
        return True
    return False


def file_system_type(path: Path) -> str | None:
    """The type of the file system that holds `path`, such as "ext4"; None if unknown."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    folder = f"{os.path.realpath(path)}/"
    deepest_mount: tuple[int, str | None] = (-1, None)
    for line in lines:
        before, _, after = line.partition(" - ")
        escaped = before.split(" ")[4]
        mount_point = _MOUNT_POINT_ESCAPE.sub(lambda match: chr(int(match[1], 8)), escaped).rstrip("/") + "/"
        # A later mount at the same path covers an earlier one.
        if folder.startswith(mount_point) and len(mount_point) >= deepest_mount[0]:
            deepest_mount = (len(mount_point), after.split(" ")[0])
    return deepest_mount[1]


def machine_memory() -> int:
    """Return the machine's memory in bytes, or less if a control group (a container) allows less."""
    sizes = [size for path in _CGROUP_LIMITS if (size := _number(path)) is not None]
    try:
        for line in Path(_MEMINFO).read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                sizes.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    return min(sizes, default=_UNKNOWN_MACHINE_BYTES)


def _number(path: str) -> int | None:
    """Return the number in a kernel file; None if there is no file, or no limit ("max") in it."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
