"""`forebay compact`: the dedicated compaction job, for one table or many, once or continuously."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.base.quantity import parse_duration_ms
from forebay.cli.conditions import column_names
from forebay.cli.jobs import add_metrics_arguments, ended_by_signals, monitored, spark_context
from forebay.cli.logs import log_to_stderr
from forebay.cli.output import Progress, text_table
from forebay.cli.paimon_tables import (
    catalog_arguments,
    catalog_options,
    counted,
    pairs,
    partition_argument,
    partitions_typed,
)
from forebay.cli.settings import setting
from forebay.paimon import Catalog
from forebay.paimon.compact.clustering import STRATEGIES
from forebay.paimon.compact.running import TaskRunner, TaskThreads
from forebay.paimon.compaction_service import (
    COMPACTING,
    FAILED,
    GONE,
    INTERVAL_SECONDS,
    TABLES_MAX,
    CompactionRun,
    CompactionService,
    CompactionSettings,
    TableState,
)

_REDRAW_SECONDS = 0.5
_HEADER = ["table", "state", "rows", "compactions", "files before", "files after", "last error"]
_EPILOG = """\
Writers of tables with the option 'write-only' = 'true' leave compaction to this job; it works on other tables, too.
Readers and writers continue meanwhile. Without --watch, it compacts everything once ('full'); with --watch it runs
until it is stopped, and compacts what is due by the tables' options ('minor').

  forebay compact -w /lake --table sales.orders                        one table, once, in threads of this process
  forebay compact -w /lake --table sales.orders -p day=2026-01-31      one partition
  forebay compact -w /lake --table sales.visits --order zorder --order-by customer,day
  forebay compact -w /lake --database sales --watch                    all tables of a database, including new ones
  forebay compact -w /lake --database sales --spark-master 'local[2]'  as tasks of Spark
  forebay compact -w /lake --table sales.orders -o json                a line of JSON for each table

Each table is compacted independently: a slow, broken or dropped table does not block the others. Ctrl-C or SIGTERM
abandons the work in progress: nothing of it is committed, and its files are deleted. With --watch, the first signal
finishes and commits the work in progress, and only the second one abandons it. Exit codes: 0 done, 1 a table failed, 2
wrong usage, 130 interrupted."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay compact`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    catalog_arguments(parser)
    parser.add_argument(
        "--table", action="append", default=[], metavar="DATABASE.TABLE", help="a table; may be repeated"
    )
    parser.add_argument(
        "--database", action="append", default=[], metavar="NAME", help="all tables of a database; may be repeated"
    )
    parser.add_argument("--watch", action="store_true", help="run until stopped")
    parser.add_argument(
        "--interval", default=f"{INTERVAL_SECONDS:g} s", metavar="DURATION",
        help="with --watch: interval between compactions of a table (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--strategy", choices=("minor", "full"),
        help="minor: what is due; full: everything (default: full once, minor with --watch)",
    )  # fmt: skip
    parser.add_argument("--order", choices=STRATEGIES, help="sort append tables without buckets, by --order-by")
    parser.add_argument("--order-by", metavar="A,B,...", help="the columns to sort by")
    partition_argument(parser, several=True)
    parser.add_argument(
        "--tables-max",
        type=int,
        default=TABLES_MAX,
        metavar="N",
        help="maximum number of tables in parallel (default: %(default)s)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--threads", type=int, metavar="N", help="number of threads per table (default: one per core)")
    where.add_argument("--spark-master", metavar="URL", help="run as tasks of Spark, with a master such as 'local[2]'")
    parser.add_argument(
        "--spark-conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; may be repeated"
    )
    parser.add_argument(
        "--json", action="store_true", default=setting("output") == "json",
        help="the same as -o json: an object for each compaction",
    )  # fmt: skip
    add_metrics_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Compact the selected tables once, or until stopped; return the exit code, not 0 if a compaction failed."""
    _check(options)
    log_to_stderr("WARNING")
    catalog, settings = Catalog.open(catalog_options(options)), pairs(options.settings, "--set")
    strategy = options.strategy or ("minor" if options.watch else "full")
    compaction = CompactionSettings(
        full=strategy == "full",
        order_by=column_names(options.order_by) or (),
        strategy=options.order or STRATEGIES[0],
        partitions=lambda table: partitions_typed(table, options.partition),
    )
    reporter = _Reporter(options.json)
    with _runner(options) as runner:
        service = CompactionService(
            _names(catalog, options),
            lambda name: catalog.table(name, options=settings),
            runner,
            compaction,
            tables_max=options.tables_max,
            interval_seconds=parse_duration_ms(options.interval) / 1000,
            on_turn=reporter.watched if options.watch else reporter.once,
        )
        return _watch(service, options) if options.watch else _once(service)


def _check(options: argparse.Namespace) -> None:
    if not catalog_options(options):
        raise InvalidRequest("in which catalog? Say -w WAREHOUSE, or set FOREBAY_PAIMON_WAREHOUSE")
    if not options.table and not options.database:
        raise InvalidRequest("which tables? Say --table DATABASE.TABLE or --database NAME; both may be repeated")
    if (options.order is None) != (options.order_by is None):
        raise InvalidRequest("--order and --order-by belong together: how to sort, and by which columns")
    if options.order is not None and (options.watch or options.strategy == "minor"):
        raise InvalidRequest("--order rewrites everything, so it goes neither with --watch nor with --strategy minor")
    if options.metrics_port is not None and not options.watch:
        raise InvalidRequest("--metrics-port is for --watch: without it the job ends before metrics are asked for")
    if options.threads is not None and options.threads < 1:
        raise InvalidRequest(f"--threads is {options.threads}; it is at least 1")
    if options.spark_conf and options.spark_master is None:
        raise InvalidRequest("--spark-conf is for --spark-master")


def _names(catalog: Catalog, options: argparse.Namespace) -> Callable[[], Sequence[str]]:
    """The named tables, and the current tables of the named databases."""

    def names() -> Sequence[str]:
        table_names = list(options.table)
        for database in options.database:
            table_names += [f"{database}.{name}" for name in catalog.list_tables(database)]
        return list(dict.fromkeys(table_names))

    return names


@contextmanager
def _runner(options: argparse.Namespace) -> Iterator[Callable[[str], TaskRunner]]:
    if options.spark_master is None:
        yield lambda table: TaskThreads(options.threads)
        return
    conf = pairs(options.spark_conf, "--spark-conf")
    with spark_context("forebay compact", options.spark_master, conf, "leave out --spark-master") as context:
        from forebay.spark.lake_jobs import SparkTasks

        yield lambda table: SparkTasks(context, f"compacting {table}")


class _Reporter:
    """Prints the result of each turn on a line. Called from several threads."""

    def __init__(self, as_json: bool) -> None:
        self._json, self._lock = as_json, threading.Lock()

    def once(self, turn: CompactionRun) -> None:
        with self._lock:
            if self._json:
                print(json.dumps(asdict(turn), ensure_ascii=False), flush=True)
            elif turn.error is not None:
                print(f"forebay: {turn.table}: {turn.error}", file=sys.stderr, flush=True)
            elif turn.snapshot_id is None:
                print(f"nothing to compact in {turn.table}", flush=True)
            else:
                print(
                    f"compacted {counted(turn.files_before, 'file')} of {turn.table} into {turn.files_after:,}: "
                    f"snapshot {turn.snapshot_id}, {turn.seconds:.1f} s",
                    flush=True,
                )

    def watched(self, turn: CompactionRun) -> None:
        """Print only turns that compacted something or failed: most turns find nothing due."""
        if turn.snapshot_id is not None or turn.error is not None:
            self.once(turn)


def _rows(states: Sequence[TableState]) -> tuple[int, int]:
    """The rows done and in total, of all tables that have been or are being compacted."""
    return sum(s.rows_done for s in states), sum(s.rows for s in states)


def _once(service: CompactionService) -> int:
    with ended_by_signals() as ending, Progress("compacting") as progress:

        def tick() -> None:
            if ending.is_set():
                raise KeyboardInterrupt
            progress.at(*_rows(service.states()))

        states = service.run_once(tick)
    if not states:
        print("there are no tables to compact")
    return 1 if any(s.phase in (FAILED, GONE) for s in states) else 0


def _watch(service: CompactionService, options: argparse.Namespace) -> int:
    with ended_by_signals() as ending, _served_metrics(service, options), _screen(options) as show:
        if not options.json:
            print("compacting; stop it with Ctrl-C or SIGTERM", flush=True)

        def tick() -> None:
            show(service.states())
            if ending.is_set():
                service.stop()

        service.watch(tick, _REDRAW_SECONDS)
    if not options.json:
        print("\n".join(text_table(_HEADER, [_cells(s) for s in service.states()], {2, 3, 4, 5})))
    return 0


@contextmanager
def _served_metrics(service: CompactionService, options: argparse.Namespace) -> Iterator[None]:
    """Serve metrics and health meanwhile, if that is wanted."""
    if options.metrics_port is None:
        yield
        return
    from forebay.lake.metrics import LakeMetrics

    def problems() -> list[str]:
        return [f"{s.table}: {s.last_error}" for s in service.states() if s.phase == FAILED]

    metrics = LakeMetrics()
    monitoring = monitored(options, [metrics], list, problems)
    try:
        yield
    finally:
        monitoring.stop()
        metrics.close()


@contextmanager
def _screen(options: argparse.Namespace) -> Iterator[Callable[[Sequence[TableState]], None]]:
    """Show the state of the service, rewritten in place on a terminal; elsewhere only turns are printed."""
    if options.json or not sys.stdout.isatty():
        yield lambda states: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    def drawn(states: Sequence[TableState]) -> Any:
        table = Table(title="compacting", title_justify="left", expand=False)
        for name in _HEADER:
            table.add_column(name, justify="left" if name in ("table", "state", "last error") else "right")
        for state in states:
            table.add_row(*_cells(state))
        return table

    with Live(drawn([]), console=Console(), auto_refresh=False) as live:
        yield lambda states: live.update(drawn(states), refresh=True)


def _cells(state: TableState) -> list[str]:
    rows = f"{state.rows_done:,} of {state.rows:,}" if state.phase == COMPACTING else ""
    counts = [f"{n:,}" for n in (state.compactions, state.files_before, state.files_after)]
    return [state.table, state.phase, rows, *counts, state.last_error or ""]
