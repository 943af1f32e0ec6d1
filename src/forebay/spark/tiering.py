"""Tiering on Spark: the splits of a round are the tasks of a Spark job. No jar; workers need Forebay and the lake.

    from forebay.spark.tiering import start_tiering
    service = start_tiering(spark, "127.0.0.1:9123")     # runs rounds, as often as the tables require
    service                                              # its state, as a table in a notebook
    service.stop()

The driver plans and commits. Workers read logs, write lake files and return small results. Each round is a Spark job,
and each table has a scheduler pool: with `spark.scheduler.mode=FAIR` several tables share the cores evenly. If Spark
runs a task twice (a lost executor, speculation), each attempt writes files with other names. The files of one attempt
are committed; the lake's clean-up removes the others.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forebay.client.connection import Connection, shared_connection
from forebay.client.settings import Settings, make_settings
from forebay.spark.jvm.spark_jobs import active_context, run_job
from forebay.tiering.control import RoundControl
from forebay.tiering.now import TierOutcome, tier_now
from forebay.tiering.round import TieringLake
from forebay.tiering.runner import OnResult
from forebay.tiering.service import POLL_SECONDS, TABLES_MAX, TieringService
from forebay.tiering.splits import SplitResult, SplitTask, write_split

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class SparkRunner:
    """Runs the splits of a round as tasks of Spark; a `forebay.tiering.runner.SplitRunner`."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def run(
        self, tasks: Sequence[SplitTask], connection: Connection, control: RoundControl, on_result: OnResult
    ) -> None:
        """Run `tasks` as one job. Raises the error of a task, and that of a cancelled round."""
        given_up = threading.Event()
        control.when_cancelled(given_up.set)
        try:
            outcomes = run_job(
                self._context, _WriteSplit(connection.settings), tasks, f"tiering {tasks[0].info.path}",
                cancelled=given_up, on_progress=lambda done: control.on_progress(int(done * len(tasks)), len(tasks)),
            )  # fmt: skip
        except Exception:
            if given_up.is_set():
                control.check()  # in place of Spark's error for a cancelled job
            raise
        for outcome in outcomes:
            if isinstance(outcome, SplitResult):
                on_result(outcome)
        control.check()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def __repr__(self) -> str:
        return f"SparkRunner({self._context.master})"


@dataclass(frozen=True)
class _WriteSplit:
    """Writes one split in a Spark worker."""

    settings: Settings

    def __call__(self, task: SplitTask, attempt: int) -> SplitResult:
        task = replace(task, attempt=f"{task.attempt}-{attempt}")
        return write_split(task, shared_connection(self.settings))


# ---- services -------------------------------------------------------------------------------------------------------


def start_tiering(
    spark: SparkSession,
    bootstrap_servers: str | None = None,
    user: str | None = None,
    password: str | None = None,
    *,
    tables_max: int = TABLES_MAX,
    poll_seconds: float = POLL_SECONDS,
    lake_options: Mapping[str, str] | None = None,
    **options: Any,
) -> TieringService:
    """Tier the lake-enabled tables of a cluster from now on, on this Spark session; `stop()` ends it.

    At most `tables_max` tables have rounds at a time. `lake_options` are added to the cluster's options of the lake,
    which do not include secrets. `options` are `client.*` options as in `forebay.connect`. Raises
    `Unavailable` if no server answers.
    """
    connection = shared_connection(make_settings(bootstrap_servers, user, password, options))
    connection.cluster.bootstrap()
    lake = TieringLake(dict(lake_options or {}))
    runner = SparkRunner(spark.sparkContext)
    return TieringService(connection, runner, tables_max=tables_max, poll_seconds=poll_seconds, lake=lake).start()


class _Services:
    """The tiering services of this process that SQL has started, one per cluster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Settings, TieringService] = {}

    def start(self, settings: Settings, lake_options: Mapping[str, str]) -> TieringService:
        """The cluster's service, started now unless it is running."""
        with self._lock:
            service = self._running.get(settings)
            if service is None or not service.running:
                connection = shared_connection(settings)
                lake = TieringLake(dict(lake_options))
                service = TieringService(connection, SparkRunner(active_context()), lake=lake).start()
                self._running[settings] = service
            return service

    def stop(self, settings: Settings) -> TieringService | None:
        """Stop the cluster's service, and return it; None if there is none."""
        with self._lock:
            service = self._running.pop(settings, None)
        if service is not None:
            service.stop()
        return service


services = _Services()
"""The services that `CALL ... sys.start_tiering()` starts and `stop_tiering()` stops."""


def tier_once(settings: Settings, tables: Sequence[str] | None, lake_options: Mapping[str, str]) -> list[TierOutcome]:
    """One round of each table (None: of all that are tiered) on the active Spark context."""
    lake = TieringLake(dict(lake_options))
    return tier_now(shared_connection(settings), tables, SparkRunner(active_context()), lake)
