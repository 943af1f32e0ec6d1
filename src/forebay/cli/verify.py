"""`forebay verify`: check all stored data, offline or on a running server."""

from __future__ import annotations

import argparse
import sys
from types import TracebackType

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import ForebayError
from forebay.cli.connecting import add_connection_arguments, lake_options_of, password_of
from forebay.cli.output import output_argument, print_rows
from forebay.client.connection import connect
from forebay.verify import Report, verify_directory, verify_server

_EPILOG = """examples:
  forebay verify --data-dir data/            # a directory that no server uses; nothing is changed
  forebay verify -b 127.0.0.1:9123           # a running server, through the client
  forebay verify -b 127.0.0.1:9123 --table sales.orders

Faults are printed with file and position. Exit code: 0 no fault, 1 faults, 2 nothing could be verified."""

_FAULTS, _NOT_VERIFIED = 1, 2
_SILENT_SECONDS, _REDRAW_SECONDS = 2.0, 1.0


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay verify`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--data-dir", metavar="DIR", help="verify this data directory, which no server may be using")
    parser.add_argument(
        "--scratch", metavar="DIR", help="folder for copies and folds, as large as the largest state (default: $TMPDIR)"
    )
    parser.add_argument(
        "--table", action="append", default=[], metavar="DATABASE.TABLE", help="only this table of a running server"
    )
    add_connection_arguments(parser)
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print the faults of a directory or running server; return the exit code, not 0 if there are faults."""
    if options.data_dir is not None and options.table:
        print("forebay: --table goes with a running server (-b), not with --data-dir", file=sys.stderr)
        return _NOT_VERIFIED
    try:
        report = _verify(options)
    except (OSError, ForebayError) as e:
        print(f"forebay: not verified: {e}", file=sys.stderr)
        return _NOT_VERIFIED
    if options.output == "table":
        for finding in report.findings:
            print(finding)
        print(report.summary())
    else:
        rows = [("fault" if f.is_fault else "note", f.place, f.message) for f in report.findings]
        print_rows(["kind", "place", "message"], rows, options.output)
    return 0 if report.is_clean else _FAULTS


def _verify(options: argparse.Namespace) -> Report:
    with StepLine() as steps:
        if options.data_dir is not None:
            return verify_directory(options.data_dir, scratch=options.scratch, on_step=steps)
        lake = lake_options_of(options)
        with connect(options.bootstrap_servers, options.user, password_of(options), lake_options=lake) as connection:
            return verify_server(connection, options.table, on_step=steps)


class StepLine:
    """A line on standard error with the current check, if it takes more than two seconds."""

    def __init__(self) -> None:
        self._drawn_at = SYSTEM_CLOCK.monotonic() + _SILENT_SECONDS - _REDRAW_SECONDS
        self._visible = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = SYSTEM_CLOCK.monotonic()
        if now - self._drawn_at < _REDRAW_SECONDS:
            return
        self._drawn_at = now
        line = f"{what}: {done:,}" + (f" of {total:,} ({100 * done // total} %)" if total else "")
        terminal = sys.stderr.isatty()
        self._visible = self._visible or terminal
        sys.stderr.write(f"\r{line}\033[K" if terminal else f"{line}\n")
        sys.stderr.flush()

    def __enter__(self) -> StepLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._visible:
            sys.stderr.write("\r\033[K")
