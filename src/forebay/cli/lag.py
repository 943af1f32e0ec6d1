"""`forebay lag`: how far the lakes are behind their streams, measured now, whichever service tiers them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from forebay.base.errors import ForebayError, InvalidRequest
from forebay.cli.connecting import add_connection_arguments, connected
from forebay.cli.output import Progress, output_argument, print_rows
from forebay.client.connection import Connection
from forebay.metadata.table import TablePath
from forebay.tiering.lag import table_lag
from forebay.tiering.now import lake_tables

_EPILOG = """"records behind" counts the log records that the lake does not have, "seconds behind" is the age of the
oldest of these.

examples:
  forebay lag                          # all tables that have a lake
  forebay lag sales.orders -o json
  forebay lag --fail-after 300         # for a monitor: exit code 1 if a lake is behind by more than 300 seconds"""

HEADER = ["table", "lake snapshot", "records behind", "seconds behind"]


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay lag`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("table", nargs="*", help="only these tables, as database.table")
    parser.add_argument(
        "--fail-after", type=float, metavar="SECONDS", help="exit with 1 if a table lags by more than this duration"
    )
    add_connection_arguments(parser)
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    with connected(options) as connection:
        worst = show(connection, options.table or lake_tables(connection), options.output)
    return 1 if options.fail_after is not None and worst > options.fail_after else 0


def show(connection: Connection, tables: Iterable[str | TablePath], output: str) -> float:
    """Print the lag of each table; return the greatest, in seconds."""
    rows, worst = [], 0.0
    with Progress("measuring:", unit="tables") as progress:
        for path in tables:
            try:
                lag = table_lag(connection, path)
            except ForebayError as e:
                raise type(e)(f"{path}: {e.message}", e.code) from e
            if lag.snapshot_id is None and not connection.cluster.table_info(lag.path).lake_enabled:
                raise InvalidRequest(f"{path} has no lake: 'table.datalake.enabled' is not true")
            rows.append((str(lag.path), lag.snapshot_id, lag.records, round(lag.seconds or 0.0, 3)))
            worst = max(worst, lag.seconds or 0.0)
            progress.advance(1)
    print_rows(HEADER, rows, output, empty="(no table has a lake)", plain_numbers=["lake snapshot"])
    return worst
