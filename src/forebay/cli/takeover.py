"""`forebay takeover`: have the server that writes to a store end, so that a standby takes over at once."""

from __future__ import annotations

import argparse
import os

from forebay.cli.output import Progress
from forebay.server.config import parse_definition, read_settings_file, server_config
from forebay.server.takeover import ask_for_takeover

_EPILOG = """Start the standby first (`forebay server --standby`), and run this when it has read what the store has. The
server acknowledges what it has, says in the store that its time has ended, and stops; a standby that sees this takes
over. Clients that name both servers go on. Without a standby the tables are not served until a server is started.

examples:
  forebay takeover s3://bucket/shop -D store.s3.region=eu-central-1
  forebay takeover --config server.yaml

Exit codes: 0 another server has taken over, 1 none has, 2 wrong usage, 130 interrupted."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay takeover`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("store", nargs="?", metavar="STORE", help="the setting 'store' of the servers")
    parser.add_argument(
        "-D",
        dest="definitions",
        action="append",
        default=[],
        metavar="key=value",
        help="a setting of the servers, such as store.s3.region; may be repeated",
    )
    parser.add_argument("--config", metavar="FILE", help="settings of the servers (Fluss's server.yaml)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="how long to wait (default: %(default)g)"
    )


def run(options: argparse.Namespace) -> int:
    """Ask for the takeover and wait for it; return the exit code."""
    settings = read_settings_file(options.config) if options.config else {}
    settings |= dict(parse_definition(text) for text in options.definitions)
    if options.store is not None:
        settings["store"] = options.store
    with Progress("waiting for the next server:", unit="objects of the journal") as progress:
        new = ask_for_takeover(server_config(os.curdir, settings=settings), options.timeout, progress.at)
    print(f"{new.holder} has taken over after {new.seconds:.1f} s (epoch {new.epoch})")
    return 0
