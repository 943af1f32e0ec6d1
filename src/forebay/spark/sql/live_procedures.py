"""Procedures of clusters: settings, partitions, and tiering (`CALL <catalog>.sys.start_tiering()`)."""

from __future__ import annotations

from typing import Annotated

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.spark.context import LiveContext
from forebay.spark.sql.procedures import (
    BOOLEAN,
    LONG,
    TEXT,
    TEXTS,
    Procedure,
    Rows,
    parse_partition,
    procedure,
    result_of,
)
from forebay.spark.tiering import services, tier_once
from forebay.tiering.now import TierOutcome
from forebay.tiering.status import ServiceStatus

LIVE_PROCEDURES: dict[str, Procedure] = {}
"""By name."""

Texts = Annotated[list[str] | None, TEXTS]

# ---- tiering --------------------------------------------------------------------------------------------------------

_TIERED = result_of(
    ("state", "rounds", "row_count"),
    table_name=TEXT, state=TEXT, rounds=LONG, row_count=LONG, lake_snapshot_id=LONG, records_behind=LONG, error=TEXT,
)  # fmt: skip


@procedure(LIVE_PROCEDURES, _TIERED)
def start_tiering(
    context: LiveContext,
    once: Annotated[bool, BOOLEAN, "one round of each table now, then an end"] = False,
    tables: Annotated[Texts, "with once: these tables, each as 'database.table'"] = None,
    lake_options: Annotated[Texts, "options of the lake that the cluster does not tell: 'key=value'"] = None,
) -> Rows:
    """Tier the lake-enabled tables of the cluster on this Spark application, until stop_tiering(); or all once."""
    options = dict(_option(text) for text in lake_options or ())
    if once:
        return map(_outcome, tier_once(context.settings, tables, options))
    if tables is not None:
        raise InvalidRequest("the cluster says whose turn it is: give tables together with once => true")
    return _status(services.start(context.settings, options).status())


@procedure(LIVE_PROCEDURES, _TIERED)
def stop_tiering(context: LiveContext) -> Rows:
    """End what start_tiering() has started; rounds under way are finished first."""
    service = services.stop(context.settings)
    if service is None:
        raise InvalidRequest(f"no tiering of this cluster was started with {context.catalog}.sys.start_tiering()")
    return _status(service.status())


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidRequest(f"'{key}' is not an option of a lake: write 'key=value'", ErrorCode.CONFIG_EXCEPTION)
    return key.strip(), value.strip()


def _outcome(outcome: TierOutcome) -> tuple[object, ...]:
    report = outcome.report
    if report is None:
        return str(outcome.path), "failed", 0, 0, None, None, str(outcome.error)
    return str(outcome.path), "done", 1, report.rows, report.snapshot_id, report.lag_records, None


def _status(status: ServiceStatus) -> Rows:
    """The service itself, without a table's name, then its tables."""
    yield None, "running" if status.running else "stopped", status.rounds, status.rows, None, None, status.cluster_error
    for table in status.tables:
        report = table.last_report
        lake = (None, None) if report is None else (report.snapshot_id, report.lag_records)
        yield str(table.path), table.phase, table.rounds, table.rows, *lake, table.last_error


# ---- cluster and partitions -----------------------------------------------------------------------------------------


@procedure(
    LIVE_PROCEDURES,
    result_of(("config_key", "config_source"), config_key=TEXT, config_value=TEXT, config_source=TEXT),
)
def get_cluster_configs(
    context: LiveContext, config_keys: Annotated[Texts, "names of settings; all if left out"] = None
) -> Rows:
    """The settings of the cluster, all or those named."""
    entries = context.admin.describe_configs()
    if config_keys:
        by_key = {entry.key: entry for entry in entries}
        entries = [by_key[key] for key in config_keys if key in by_key]
    sources = {"DYNAMIC_SERVER_CONFIG": "DYNAMIC", "INITIAL_SERVER_CONFIG": "STATIC"}
    return ((e.key, e.value, sources.get(e.source, e.source)) for e in entries)


@procedure(LIVE_PROCEDURES, result_of(("partition_name",), partition_name=TEXT))
def drop_partition(
    context: LiveContext,
    table: Annotated[str, TEXT, "database.table"],
    partitions: Annotated[list[str], TEXTS, "partitions, each as 'key=value, key=value'"],
) -> Rows:
    """Drop partitions; returns the names of those that were there."""
    opened = context.connection.table(table)
    for text in partitions:
        for partition in opened.partitions(parse_partition(text)):
            opened.drop_partition(dict(partition.spec), ignore_if_not_exists=True)
            yield (partition.name,)
