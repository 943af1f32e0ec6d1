"""`forebay restore`: a live table gets the rows back that it had."""

from __future__ import annotations

import argparse

from forebay.base.quantity import moment_at, moment_ms
from forebay.cli.connecting import add_connection_arguments, connected

_EPILOG = """Only rows that differ are written or deleted, in one transaction, which the table's history shows as a
RESTORE. A version is the number of a commit (table.history()) or, of a table with a lake, a snapshot or a tag.

examples:
  forebay restore sales.orders --version 17 --dry-run
  forebay restore sales.orders --at '2026-01-31 12:00:00'"""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay restore`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("table", help="a table with a primary key, as database.table")
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--version", metavar="VERSION", help="to this commit; with a lake to this snapshot or tag")
    to.add_argument("--at", metavar="TIME", help="to this time (UTC)")
    parser.add_argument("--dry-run", action="store_true", help="only count the rows that differ")
    add_connection_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Restore the table, and print how many rows differed."""
    version = options.version
    if version is None:
        version = moment_at(moment_ms(options.at, "--at"))
    elif version.isdecimal():
        version = int(version)
    with connected(options) as connection:
        restored = connection.restore(options.table, version, dry_run=options.dry_run)
    would = "would be " if options.dry_run else ""
    print(f"{options.table}: {restored.written:,} rows {would}written back, {restored.deleted:,} {would}deleted")
    return 0
