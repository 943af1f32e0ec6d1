"""`forebay backup`: a verified copy of the data directory of a server, which may be running."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import AlreadyExists, Conflict, CorruptData, InvalidRequest
from forebay.base.locations import local_folder
from forebay.base.quantity import format_bytes
from forebay.cli.output import Progress
from forebay.fs.local import LocalFileSystem
from forebay.server.storage.log_epochs import mark_restored, time_text
from forebay.verify.directory import locked_directory, verify_directory
from forebay.verify.online_copy import OnlineCopy, sync_path

_EPILOG = """The copy is verified as `forebay verify --data-dir` does, and only then gets its name.

The server may run, on this machine. The copy is as of one moment then, as if the machine had lost power: it has all
that was acknowledged before, and of each transaction all or nothing. Writes go on meanwhile; new writers, transactions
and changes of tables wait for the moment, two seconds at most. When a server starts on the copy, it restores the states
of primary-key tables from their last checkpoints and the changelogs.

The lakes of tables are elsewhere, and are not copied.

A server that starts on the copy begins a new epoch of the logs: it refuses positions of readers, streams and tiering
rounds that were stored after the backup, and accepts those from before.

To restore, start a server on the copy, or on a copy of it:  forebay server --data-dir backups/monday

example:
  forebay backup --data-dir data/ backups/monday

Exit codes: 0 copied and verified, 1 refused or failed, 2 wrong usage, 130 interrupted."""

_BLOCK = 4 << 20


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay backup`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("target", help="the folder to create")
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        required=True,
        help="the data directory of a server on this machine, running or stopped",
    )


def run(options: argparse.Namespace) -> int:
    """Copy a data directory, verify the copy, and print what was copied; return the exit code."""
    source = Path(local_folder(options.data_dir, "the data directory"))
    target = Path(local_folder(options.target, "the target"))
    if target.exists():
        raise AlreadyExists(f"{target} exists: choose a folder that does not")
    if target.is_relative_to(source):
        raise InvalidRequest(f"{target} is inside of the data directory")
    unfinished = target.with_name(target.name + ".part")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            with locked_directory(source):
                copied = _copy_stopped(source, unfinished)
        except Conflict:
            copied = _copy_running(source, unfinished)
        reason = f"it was restored from a backup of {time_text(SYSTEM_CLOCK.now_ms())}"
        mark_restored(LocalFileSystem(), str(unfinished), reason)
        with Progress("verifying the copy:", unit="steps") as progress:
            report = verify_directory(unfinished, on_step=lambda _what, at, of: progress.at(at, of))
        if not report.is_clean:
            faults = "\n".join(map(str, report.faults))
            raise CorruptData(
                f"the copy has faults, and was deleted; `forebay verify` examines the original:\n{faults}"
            )
        os.rename(unfinished, target)
        sync_path(target.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    print(f"copied {copied} to {target}; {report.summary()}")
    return 0


def _copy_running(source: Path, to: Path) -> str:
    with Progress("copying:", unit="bytes") as progress:
        copy = OnlineCopy(source, to, progress.at)
        copy.copy()
    held = f"the server's metadata were held for {copy.held_seconds * 1000:.0f} ms"
    return f"{copy.files:,} files of {format_bytes(copy.bytes)} while the server runs ({held})"


def _copy_stopped(source: Path, to: Path) -> str:
    files = sorted(_files(source))
    total = sum(file.stat().st_size for file in files)
    to.mkdir(mode=0o700)
    done = 0
    with Progress("copying:", unit="bytes") as progress:
        for file in files:
            for size in _copy(file, to / file.relative_to(source)):
                done += size
                progress.at(done, total)
    _copy_folders(source, to)
    return f"{len(files):,} files of {format_bytes(total)}"


def _files(source: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(source):
        for name in names:
            yield Path(folder) / name


def _copy(file: Path, to: Path) -> Iterator[int]:
    """Copy a file and sync it; yield the number of bytes of each part."""
    to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file.open("rb") as read, to.open("xb") as written:
        while block := read.read(_BLOCK):
            written.write(block)
            yield len(block)
        written.flush()
        os.fsync(written.fileno())
    shutil.copystat(file, to)


def _copy_folders(source: Path, target: Path) -> None:
    """Create empty folders, and sync all of them."""
    for folder, _, _ in os.walk(source):
        copy = target / Path(folder).relative_to(source)
        copy.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copystat(folder, copy)
        sync_path(copy)
