"""`forebay move`: move tables from one server or cluster to another, rows and lake history."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest, OutcomeUnknown, Unavailable
from forebay.cli.connecting import password_in
from forebay.cli.jobs import definitions
from forebay.cli.output import Progress
from forebay.client.connection import Connection, connect
from forebay.metadata.table import TablePath
from forebay.moving import move_table, plan_move
from forebay.tiering.round import TieringLake

_EPILOG = """examples:
  forebay move --from 127.0.0.1:9123 --to cluster:9123 --table sales.orders --dry-run
  forebay move --from 127.0.0.1:9123 --to cluster:9123 --table sales.orders
  forebay move --from 127.0.0.1:9123 --to cluster:9123 --database sales --drop-source

Stop the writers first. Both sides need the same lake ('datalake.paimon.warehouse'). To continue an interrupted move,
run it again. Passwords: --from-password-file, --to-password-file, or $FOREBAY_FROM_PASSWORD and
$FOREBAY_TO_PASSWORD."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay move`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    for side, what in (("from", "the server that has the tables"), ("to", "the server to move them to")):
        parser.add_argument(f"--{side}", dest=f"{side}_servers", metavar="HOST:PORT", required=True, help=what)
        parser.add_argument(f"--{side}-user", help="log in there as this user, by SASL/PLAIN")
        parser.add_argument(f"--{side}-password-file", metavar="FILE", help="file that holds the password")
    parser.add_argument(
        "--table", action="append", default=[], metavar="DATABASE.TABLE", help="a table; may be repeated"
    )
    parser.add_argument(
        "--database", action="append", default=[], metavar="NAME", help="all tables of a database; may be repeated"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    parser.add_argument(
        "--without-log", action="store_true",
        help="do not append records to the new table's log if they are in its lake",
    )  # fmt: skip
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="PROPERTY",
        help="a property to leave out, because the target does not support it; may be repeated",
    )  # fmt: skip
    parser.add_argument("--drop-source", action="store_true", help="drop each table on the source after moving it")
    parser.add_argument(
        "--lake-option", action="append", default=[], metavar="key=value",
        help="a lake option that servers do not publish, such as a secret; may be repeated",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Move the selected tables one after the other, or print the plans; return the exit code."""
    if not options.table and not options.database:
        raise InvalidRequest("say what to move: --table DATABASE.TABLE or --database NAME")
    lake = TieringLake(definitions(options.lake_option))
    waits: Any = {"retry_timeout": _WAIT, "writer_delivery_timeout": _WAIT}
    with (
        connect(options.from_servers, options.from_user, _password(options, "from"), **waits) as source,
        connect(options.to_servers, options.to_user, _password(options, "to"), **waits) as target,
    ):
        unmoved = list[TablePath]()
        paths = _paths(source, options.table, options.database)
        for path in paths:
            if options.dry_run:
                plan = plan_move(source, target, path, with_log=not options.without_log, leave_out=options.leave_out)
                print(plan)
                continue
            try:
                report = move_table(
                    source, target, path,
                    with_log=not options.without_log, leave_out=options.leave_out, drop_source=options.drop_source,
                    lake=lake, on_progress=_StepProgress(),
                )  # fmt: skip
            except (Unavailable, OutcomeUnknown) as e:  # of a server or a bucket: other tables may be moved
                print(f"forebay: table {path} was not moved: {e}", file=sys.stderr)
                unmoved.append(path)
                continue
            print(report, flush=True)
    if unmoved:
        raise Unavailable(
            f"{len(unmoved)} of {len(paths)} tables were not moved: {', '.join(map(str, unmoved))}. Nothing was "
            "dropped, and each of them still has all its rows on the source. Run the same command again when the "
            "servers answer: it continues where each move stopped",
            ErrorCode.CLIENT_ERROR,
        )
    return 0


_WAIT = "10 min"
"""How long each step waits for servers that are away, and for buckets without a leader: a cluster may elect one slowly.
"""


def _paths(source: Connection, tables: Sequence[str], databases: Sequence[str]) -> list[TablePath]:
    paths = [TablePath.parse(table) for table in tables]
    for database in databases:
        paths += [TablePath(database, table) for table in source.list_tables(database)]
    return list(dict.fromkeys(paths))


def _password(options: argparse.Namespace, side: str) -> str | None:
    file = getattr(options, f"{side}_password_file")
    if file is None:
        return os.environ.get(f"FOREBAY_{side.upper()}_PASSWORD") if getattr(options, f"{side}_user") else None
    return password_in(file)


class _StepProgress:
    """Progress on standard error: one counter for each step."""

    def __init__(self) -> None:
        self._step = ""
        self._progress: Progress | None = None

    def __call__(self, path: TablePath, step: str, rows: int) -> None:
        if step != self._step or self._progress is None:
            if self._progress is not None:
                self._progress.close()
            self._step, self._progress = step, Progress(f"{path}: {step}")
        self._progress.at(rows, 0)
