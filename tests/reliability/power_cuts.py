"""`make power-cuts`: real power cuts of an ext4 on a loop device, under load; acknowledged rows are found again, once.

    python -m tests.reliability.power_cuts --cuts 20 [--seed N] [--write]

Each cut: the server is suspended in the middle of its work, after random pages of the key-value maps were written back,
as the kernel may do at any time; the file system is shut down without a flush of its journal (EXT4_IOC_SHUTDOWN), so
that everything unsynced is lost; the server is killed; the file system is mounted again, which replays its journal; the
server starts, and the writers continue. After each cut `forebay verify` checks the directory before the start, and
every few cuts all rows are compared. Needs root, loop devices and mkfs.ext4 (apt install e2fsprogs); exit code 77 means
that this machine does not allow it, and nothing was tried.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import forebay
from forebay.testing.server import ServerProcess
from forebay.verify import verify_directory, verify_server
from tests import results
from tests.reliability.load import KeyWriter, LogWriter, check_keys, check_log, create_tables, load

SKIPPED = 77
IMAGE_BYTES = 2 << 30
EXT4_IOC_SHUTDOWN = (2 << 30) | (struct.calcsize("I") << 16) | (ord("X") << 8) | 125  # _IOR('X', 125, __u32)
NO_LOG_FLUSH = 2
SYNC_FILE_RANGE_WRITE = 2
CUTS_BETWEEN_CHECKS = 5
SETTINGS = {
    "log.segment.file-size": "256kb",
    "kv.checkpoint.records": "4000",
    "kv.snapshot.interval": "1 s",
    "log.replica.high-watermark.checkpoint-interval": "500 ms",
}


class Disk:
    """An ext4 in a file, mounted through a loop device."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "image"
        self.path = folder / "disk"
        self._loop = ""

    def make(self) -> None:
        """Raises `OSError` or `CalledProcessError` where the machine does not allow it."""
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("losetup") is None:
            raise OSError("root, mkfs.ext4 and losetup are needed")
        with self._image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._loop = run("losetup", "--find", "--show", str(self._image)).strip()
        self.path.mkdir()
        try:
            self.mount()
        except subprocess.CalledProcessError:
            self.close()
            raise

    def mount(self) -> None:
        run("mount", "-t", "ext4", self._loop, str(self.path))

    def cut(self) -> None:
        """What is not on the disk now is lost. The file system refuses everything until it is mounted again."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        for _ in range(50):  # the descriptors of a process that was killed go a moment after it
            if subprocess.run(["umount", str(self.path)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        run("umount", str(self.path))

    def close(self) -> None:
        subprocess.run(["umount", str(self.path)], capture_output=True, check=False)
        if self._loop:
            run("losetup", "--detach", self._loop)


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def write_back(data: Path, rng: random.Random, stop: threading.Event) -> None:
    """Write random pages of the key-value maps to the disk, again and again, as the kernel may."""
    sync_file_range = ctypes.CDLL(None, use_errno=True).sync_file_range
    sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    while not stop.wait(0.01):
        for path in data.glob("fluss/*/kv-*/db/data.mdb"):
            try:
                descriptor = os.open(path, os.O_RDWR)
            except OSError:
                continue
            try:
                pages = max(1, os.fstat(descriptor).st_blocks * 512 // 4096)
                for _ in range(20):
                    sync_file_range(descriptor, rng.randrange(pages) * 4096, 4096, SYNC_FILE_RANGE_WRITE)
            finally:
                os.close(descriptor)


def cut_under_load(server: ServerProcess, disk: Disk, rng: random.Random) -> None:
    """Let the writers work for a moment, then take the power away; the disk is mounted again when this returns."""
    stop = threading.Event()
    writing_back = threading.Thread(target=write_back, args=(server.data_dir, random.Random(rng.random()), stop))
    writing_back.start()
    time.sleep(rng.uniform(0.1, 1.5))
    stop.set()
    writing_back.join()
    os.kill(server.pid, signal.SIGSTOP)
    disk.cut()
    server.kill()
    disk.unmount()
    disk.mount()


def trial(cuts: int, seed: int, disk: Disk, scratch: Path) -> dict[str, Any]:
    """Make so many cuts; return the figures. Raises `AssertionError` where a promise is broken."""
    rng = random.Random(seed)
    faults = 0
    data = disk.path / "data"
    server = ServerProcess(data, settings=SETTINGS).start()
    try:
        with forebay.connect(server.bootstrap_servers) as connection:
            create_tables(connection)
            log_writers = [LogWriter(connection, number) for number in (0, 1)]
            key_writers = [KeyWriter(connection, number) for number in (2, 3)]
            for number in range(1, cuts + 1):
                with load([*log_writers, *key_writers]):
                    cut_under_load(server, disk, rng)
                    found = verify_directory(data, scratch=scratch)
                    faults += len(found.faults)
                    for fault in found.faults:
                        print(f"cut {number}, before the start: {fault}", flush=True)
                    server.start(keep_ports=True)
                if number % CUTS_BETWEEN_CHECKS == 0 or number == cuts:
                    check_log(connection.table("fluss.log"), log_writers)
                    check_keys(connection.table("fluss.keys"), key_writers)
                    report = verify_server(connection)
                    assert report.findings == [], report.findings
                print(f"cut {number} of {cuts}: {sum(w.acknowledged for w in log_writers):,} rows in logs", flush=True)
        assert server.stop() == 0
    except BaseException:
        with contextlib.suppress(RuntimeError):  # it may not be running
            server.kill()
        raise
    after = verify_directory(data, scratch=scratch)
    assert after.faults == [], after.faults
    written = sum(writer.acknowledged for writer in (*log_writers, *key_writers))
    return {
        "cuts": cuts, "acknowledged_rows": written, "lost_or_doubled": 0, "faults_before_starts": faults, "seed": seed
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=int(os.environ.get("POWER_CUTS", "20")))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/results/power-cuts.json")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.cuts} power cuts", flush=True)
    with tempfile.TemporaryDirectory(prefix="forebay-power-cuts-") as name:
        folder = Path(name)
        disk = Disk(folder)
        try:
            disk.make()
        except (OSError, subprocess.CalledProcessError) as e:
            told = getattr(e, "stderr", None) or e
            print(f"skipped, no power was cut: this machine does not allow it: {told}", file=sys.stderr)
            return SKIPPED
        try:
            figures = trial(options.cuts, options.seed, disk, folder)
        finally:
            disk.close()
    print(f"{figures['acknowledged_rows']:,} rows were acknowledged, all were found once after {options.cuts} cuts")
    print(json.dumps(figures))
    if options.write:
        results.write("power-cuts", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
