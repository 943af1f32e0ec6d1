"""`forebay backup`: a verified copy of a server's data directory, or of its store; the server may be running."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import AlreadyExists, Conflict, CorruptData, InvalidRequest
from forebay.base.locations import local_folder
from forebay.base.quantity import format_bytes, moment_ms, parse_duration_ms
from forebay.cli.output import Progress
from forebay.fs.local import LocalFileSystem
from forebay.server.config import parse_definition, server_config
from forebay.server.journal.copy_records import forget_copies
from forebay.server.journal.store_copy import copy_store
from forebay.server.storage.log_epochs import mark_restored, time_text
from forebay.store.objects import ObjectStore
from forebay.store.opening import open_store
from forebay.verify.directory import locked_directory, verify_directory
from forebay.verify.online_copy import OnlineCopy, sync_path

_EPILOG = """With --data-dir, the copy is verified as `forebay verify --data-dir` does, and only then gets its name.

The server may run, on this machine. The copy is as of one moment then, as if the machine had lost power: it has all
that was acknowledged before, and of each transaction all or nothing. Writes go on meanwhile; new writers, transactions
and changes of tables wait for the moment, two seconds at most. When a server starts on the copy, it restores the states
of primary-key tables from their last checkpoints and the changelogs.

The lakes of tables are elsewhere, and are not copied.

A server that starts on the copy begins a new epoch of the logs: it refuses positions of readers, streams and tiering
rounds that were stored after the backup, and accepts those from before.

To restore, start a server on the copy, or on a copy of it:  forebay server --data-dir backups/monday

With --store, the store of a server is copied into another one, from anywhere, as of now or as of a time that is not
longer ago than the server's store.retention. All tables and transactions are as of one instant. A second copy into the
same target adds what is new. To restore, start a server on the target:
forebay server --data-dir new -D store=s3://backups/shop

With --keep, the target also forgets what only states need that are older. Of a target that gets copies more often than
the server's store.retention, each state since then can be had: copy it on, as the --store, with --at.

examples:
  forebay backup --data-dir data/ backups/monday
  forebay backup --store s3://bucket/shop s3://backups/shop
  forebay backup --store s3://bucket/shop --keep '30 d' s3://backups/shop
  forebay backup --store s3://bucket/shop --at '2026-01-31 12:00:00' s3://backups/before-the-accident

Exit codes: 0 copied and verified, 1 refused or failed, 2 wrong usage, 130 interrupted."""

_BLOCK = 4 << 20


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay backup`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("target", help="the folder to create; with --store the store to copy to")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data-dir", metavar="DIR", help="the data directory of a server on this machine, running or stopped"
    )
    source.add_argument("--store", metavar="STORE", help="the setting 'store' of a server")
    parser.add_argument("--at", metavar="TIME", help="with --store: as of this time (UTC)")
    parser.add_argument(
        "--keep",
        metavar="TIME",
        help="with --store: delete in the target what only states need that are older, such as '30 d'",
    )
    parser.add_argument(
        "-D",
        dest="definitions",
        action="append",
        default=[],
        metavar="key=value",
        help="with --store: a setting that both stores need, such as store.s3.region; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Copy a data directory or a store, and print what was copied; return the exit code."""
    if options.store is not None:
        return _copy_store(options)
    if options.at is not None or options.keep is not None or options.definitions:
        raise InvalidRequest(
            "--at, --keep and -D are for copies of a store (--store): a data directory has only its own time"
        )
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


def _copy_store(options: argparse.Namespace) -> int:
    settings = dict(parse_definition(text) for text in options.definitions)
    own = server_config(os.curdir, settings=settings).store_options
    source, target = (open_store(where, _options_of(where, own)) for where in (options.store, options.target))
    keep_ms = None if options.keep is None else parse_duration_ms(options.keep)
    at_ms = None if options.at is None else moment_ms(options.at, "--at")
    with Progress("copying:", unit="objects") as progress:
        copied = copy_store(source, target, at_ms, progress.at)
    print(
        f"copied {copied.objects:,} objects of {format_bytes(copied.bytes)} to {target.location}, which is as of "
        f"{time_text(copied.at_ms)} (object {copied.number} of the journal)"
    )
    if keep_ms is not None:
        _forget(target, SYSTEM_CLOCK.now_ms() - keep_ms)
    return 0


def _forget(target: ObjectStore, until_ms: int) -> None:
    with Progress("forgetting:", unit="objects") as progress:
        forgotten = forget_copies(target, until_ms, progress.at)
    if forgotten is None:
        print("the copy is too young to forget anything")
    else:
        print(
            f"deleted {forgotten.objects:,} objects of earlier states; the copy is as of "
            f"{time_text(forgotten.since_ms)} and later"
        )


def _options_of(where: str, options: dict[str, str]) -> dict[str, str]:
    """Those of a store in the cloud; one of the two may be a directory."""
    return options if "://" in where and not where.startswith("file:") else {}


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
