"""`forebay restored`: record that a data directory was restored to an earlier state."""

from __future__ import annotations

import argparse

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.fs.local import LocalFileSystem
from forebay.server.storage.log_epochs import mark_restored, time_text
from forebay.verify.directory import locked_directory

_EPILOG = """A server notices on its own that its data directory is a copy (cp, tar, rsync, `forebay backup`). It cannot
notice that a volume or a virtual machine was put back to an earlier snapshot, with all files where they were. Run this
then, while no server uses the directory, before the next one starts.

The next server begins a new epoch of the logs: it refuses positions (of readers, Spark streams, tiering rounds) that
were stored after the snapshot, and accepts those from before. Running it needlessly does no harm.

example:
  forebay restored --data-dir data/

Exit codes: 0 noted, 1 refused or failed, 2 wrong usage, 130 interrupted."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--data-dir", metavar="DIR", required=True, help="the data directory of a stopped server")


def run(options: argparse.Namespace) -> int:
    with locked_directory(options.data_dir):
        now = time_text(SYSTEM_CLOCK.now_ms())
        mark_restored(LocalFileSystem(), options.data_dir, f"`forebay restored` was run at {now}")
    print(f"the next server on {options.data_dir} begins a new epoch of its logs")
    return 0
