"""`forebay tiering`: move rows from streams into their lakes, on Spark or in threads, until it is stopped."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from forebay.base.errors import InvalidRequest, Unavailable
from forebay.cli.connecting import add_connection_arguments, lake_options_of, password_of
from forebay.cli.jobs import (
    add_metrics_arguments,
    definitions,
    ended_by_signals,
    monitored,
    spark_context,
    waiting_for_no_server,
)
from forebay.cli.lag import show
from forebay.cli.logs import add_log_arguments, configure_logs
from forebay.cli.output import output_argument
from forebay.client.connection import Connection, connect
from forebay.client.settings import make_settings
from forebay.tiering.now import TierOutcome, lake_tables, tier_now
from forebay.tiering.round import TieringLake
from forebay.tiering.runner import SplitRunner, ThreadRunner
from forebay.tiering.service import POLL_SECONDS, TABLES_MAX, TieringService
from forebay.tiering.status import HEADER, ServiceStatus

if TYPE_CHECKING:
    from forebay.base.monitoring import Monitoring

_REDRAW_SECONDS = 0.5
_CONNECT_PAUSE_SECONDS = 2.0
_EPILOG = """examples:
  forebay tiering                                   as often as each table's 'table.datalake.freshness' requires
  forebay tiering --once                            every lake table now, then stop
  forebay tiering --once --table sales.orders       one table
  forebay tiering --master 'spark://host:7077'      on a Spark cluster
  forebay tiering --without-spark                   in threads of this process
  forebay tiering --lag                             how far each lake is behind, with any tiering service
  forebay tiering status                            whether each lake has what the server thinks it has
  forebay tiering repair sales.orders               what can be done about a lake table that was rolled back
  forebay tiering repair sales.orders --rebuild     do it

Ctrl-C or SIGTERM stops it: no more log records are read, and those already read are committed. A second signal stops
it immediately, without committing anything more."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay tiering`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "action", nargs="?", choices=("status", "repair"), help="show the state of lake tables, or repair one, and exit"
    )
    parser.add_argument("tables", nargs="*", metavar="DATABASE.TABLE", help="the tables of status or repair")
    add_connection_arguments(parser)
    output_argument(parser)
    repairs = parser.add_argument_group("repair", "of a lake table that others have rolled back")
    repairs.add_argument("--restore", action="store_true", help="undo the rollback, where the lake still has the rows")
    repairs.add_argument(
        "--rebuild", action="store_true", help="replace the rows in the lake by the current ones (tables with keys)"
    )
    repairs.add_argument("--accept-loss", action="store_true", help="continue without the rows that are lost")
    parser.add_argument("--once", action="store_true", help="bring tables up to date now, then exit")
    parser.add_argument("--lag", action="store_true", help="only show how far the lakes lag behind their logs")
    parser.add_argument(
        "--table",
        action="append",
        metavar="DATABASE.TABLE",
        help="with --once or --lag: only this table; may be repeated",
    )
    parser.add_argument(
        "--tables-max",
        type=int,
        default=TABLES_MAX,
        metavar="N",
        help="maximum number of tables in parallel (default: %(default)s)",
    )
    parser.add_argument(
        "--poll-seconds", type=float, default=POLL_SECONDS, metavar="S",
        help="interval between heartbeats that ask the server for due tables (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--without-spark", action="store_true", help="write in threads of this process instead of Spark tasks"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        metavar="N",
        help="without Spark: number of threads per round (default: %(default)s)",
    )
    parser.add_argument("--master", metavar="URL", help="Spark's master (default: Spark's own)")
    parser.add_argument(
        "--spark-conf", action="append", default=[], metavar="key=value", help="a setting of Spark; may be repeated"
    )
    add_log_arguments(parser, "WARNING")
    parser.add_argument(
        "--tracing", action="store_true",
        help="export OpenTelemetry spans of rounds with the tracer provider of 'opentelemetry-instrument' (extra otel)",
    )  # fmt: skip
    add_metrics_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run a tiering worker until stopped, or one of the actions that end; return the exit code."""
    if options.table and not (options.once or options.lag):
        raise InvalidRequest("the server schedules the tables: --table requires --once or --lag")
    configure_logs(options)
    lake = TieringLake(lake_options_of(options))
    if options.action is not None:
        from forebay.cli.tiering_repair import run_action

        return run_action(options, lake)
    if options.restore or options.rebuild or options.accept_loss:
        raise InvalidRequest("--restore, --rebuild and --accept-loss belong to: forebay tiering repair DATABASE.TABLE")
    if options.lag:
        with connect(options.bootstrap_servers, options.user, password_of(options)) as connection:
            show(connection, options.table or lake_tables(connection), options.output)
            return 0
    if options.once:
        with (
            _connection(options) as connection,
            _runner(options) as runner,
        ):
            connection.cluster.bootstrap()
            return _once(connection, runner, lake, options)
    with ended_by_signals() as ending, _connection(options) as connection:
        if not _is_reached(connection, ending):
            return 0
        with _runner(options) as runner:
            return _serve(connection, runner, lake, options, ending)


@contextmanager
def _runner(options: argparse.Namespace) -> Iterator[SplitRunner]:
    if options.without_spark:
        yield ThreadRunner(options.threads)
        return
    settings = definitions(options.spark_conf)
    with spark_context("forebay tiering", options.master, settings, "give --without-spark") as context:
        from forebay.spark.tiering import SparkRunner

        yield SparkRunner(context)


# ---- once -----------------------------------------------------------------------------------------------------------


def _once(connection: Connection, runner: SplitRunner, lake: TieringLake, options: argparse.Namespace) -> int:
    """Tier all tables once; return 1 if a table failed."""
    failed = False

    def tell(outcome: TierOutcome) -> None:
        nonlocal failed
        if outcome.error is not None:
            failed = True
            print(f"forebay: {outcome.path}: {outcome.error}", file=sys.stderr, flush=True)
        else:
            print(outcome.report, flush=True)

    outcomes = tier_now(connection, options.table, runner, lake, tables_at_once=options.tables_max, on_outcome=tell)
    if not outcomes:
        print("no table is tiered: 'table.datalake.enabled' is not true for any")
    return 1 if failed else 0


# ---- a service ------------------------------------------------------------------------------------------------------


def _connection(options: argparse.Namespace) -> Connection:
    settings = {"tracing_enabled": options.tracing}
    return Connection(make_settings(options.bootstrap_servers, options.user, password_of(options), settings))


def _is_reached(connection: Connection, ending: threading.Event) -> bool:
    """Wait until a server answers; False if the service is stopped before that.

    A service that runs for months must not depend on which of two machines was started first.
    """
    last_message = ""
    with waiting_for_no_server(connection, ending):
        while not ending.is_set():
            try:
                connection.cluster.bootstrap()
            except Unavailable as e:
                if e.message != last_message and not ending.is_set():
                    print(f"waiting for the server, and asking again: {e.message}", file=sys.stderr, flush=True)
                last_message = e.message
            else:
                return True
            ending.wait(_CONNECT_PAUSE_SECONDS)
    return False


def _serve(
    connection: Connection,
    runner: SplitRunner,
    lake: TieringLake,
    options: argparse.Namespace,
    ending: threading.Event,
) -> int:
    watched = sys.stdout.isatty()
    service = TieringService(
        connection,
        runner,
        tables_max=options.tables_max,
        poll_seconds=options.poll_seconds,
        lake=lake,
        on_round=None if watched else lambda report: print(report, flush=True) if report.snapshot_id else None,
    )
    print(f"tiering the lake tables of {options.bootstrap_servers}; stop it with Ctrl-C or SIGTERM", flush=True)
    monitoring = _monitoring(connection, service, options)
    service.start()
    try:
        with waiting_for_no_server(connection, ending, lambda: service.stop(now=True)):
            if watched:
                _watch(service, ending)
            else:
                ending.wait()
            print("stopping: what was read is committed first; once more, and it is given up", flush=True)
            service.stop()
    finally:
        service.stop(now=True)  # does nothing if it has stopped
        if monitoring is not None:
            monitoring.stop()
    print(service.status().title)
    return 0


def _monitoring(connection: Connection, service: TieringService, options: argparse.Namespace) -> Monitoring | None:
    """Return the server of metrics and health, or None if no port was given."""
    if options.metrics_port is None:
        return None
    from forebay.client.metrics import collector
    from forebay.lake.metrics import LakeMetrics
    from forebay.tiering.metrics import TieringMetrics, faults, problems

    metrics = [TieringMetrics(service), LakeMetrics(), collector(connection)]
    return monitored(options, metrics, partial(faults, service), partial(problems, service))


def _watch(service: TieringService, ending: threading.Event) -> None:
    """Show the state of the service, rewritten in place, until `ending`."""
    from rich.console import Console
    from rich.live import Live

    with Live(_screen(service.status()), console=Console(), auto_refresh=False) as live:
        while not ending.wait(_REDRAW_SECONDS):
            live.update(_screen(service.status()), refresh=True)


def _screen(status: ServiceStatus) -> Any:
    from rich.table import Table

    table = Table(title=f"tiering: {status.title}", title_justify="left", expand=False)
    for name in HEADER:
        table.add_column(name, justify="left" if name in ("table", "state", "last error") else "right")
    for row in status.tables:
        table.add_row(*row.cells())
    return table
