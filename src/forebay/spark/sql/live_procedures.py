"""Procedures of clusters: settings, partitions, and tiering (`CALL <catalog>.sys.start_tiering()`)."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.spark.context import CatalogContext
from forebay.spark.sql.procedures import Arguments, Parameter, Procedure, optional, parse_partition, result_of, rows
from forebay.spark.tiering import services, tier_once
from forebay.tiering.now import TierOutcome
from forebay.tiering.status import ServiceStatus

_STRINGS = ArrayType(StringType())
_TIERED = result_of(
    ("state", "rounds", "row_count"),
    table_name=StringType(), state=StringType(), rounds=LongType(), row_count=LongType(), lake_snapshot_id=LongType(),
    records_behind=LongType(), error=StringType(),
)  # fmt: skip
_CONFIGS = result_of(
    ("config_key", "config_source"), config_key=StringType(), config_value=StringType(), config_source=StringType()
)
_DROPPED = result_of(("partition_name",), partition_name=StringType())


# ---- tiering --------------------------------------------------------------------------------------------------------


def _start(context: CatalogContext, arguments: Arguments) -> pa.Table:
    options = dict(_option(text) for text in arguments["lake_options"] or ())
    tables = arguments["tables"]
    if arguments["once"]:
        return _outcomes(tier_once(context.settings, tables, options))
    if tables is not None:
        raise InvalidRequest("the cluster says whose turn it is: give tables together with once => true")
    return _status(services.start(context.settings, options).status())


def _stop(context: CatalogContext, _arguments: Arguments) -> pa.Table:
    service = services.stop(context.settings)
    if service is None:
        raise InvalidRequest(f"no tiering of this cluster was started with {context.catalog}.sys.start_tiering()")
    return _status(service.status())


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidRequest(f"'{key}' is not an option of a lake: write 'key=value'", ErrorCode.CONFIG_EXCEPTION)
    return key.strip(), value.strip()


def _outcomes(outcomes: Iterable[TierOutcome]) -> pa.Table:
    told: list[tuple[object, ...]] = []
    for outcome in outcomes:
        report = outcome.report
        if report is None:
            told.append((str(outcome.path), "failed", 0, 0, None, None, str(outcome.error)))
        else:
            told.append((str(outcome.path), "done", 1, report.rows, report.snapshot_id, report.lag_records, None))
    return rows(_TIERED, *told)


def _status(status: ServiceStatus) -> pa.Table:
    """The service itself, without a table's name, then its tables."""
    state = "running" if status.running else "stopped"
    told: list[tuple[object, ...]] = [(None, state, status.rounds, status.rows, None, None, status.cluster_error)]
    for table in status.tables:
        report = table.last_report
        lake = (None, None) if report is None else (report.snapshot_id, report.lag_records)
        told.append((str(table.path), table.phase, table.rounds, table.rows, *lake, table.last_error))
    return rows(_TIERED, *told)


# ---- cluster and partitions -----------------------------------------------------------------------------------------


def _get_cluster_configs(context: CatalogContext, arguments: Arguments) -> pa.Table:
    wanted = arguments["config_keys"]
    entries = context.admin.describe_configs()
    if wanted:
        by_key = {entry.key: entry for entry in entries}
        entries = [by_key[key] for key in wanted if key in by_key]
    sources = {"DYNAMIC_SERVER_CONFIG": "DYNAMIC", "INITIAL_SERVER_CONFIG": "STATIC"}
    return rows(_CONFIGS, *((e.key, e.value, sources.get(e.source, e.source)) for e in entries))


def _drop_partition(context: CatalogContext, arguments: Arguments) -> pa.Table:
    table = context.connection.table(arguments["table"])
    dropped = []
    for text in arguments["partitions"]:
        spec = parse_partition(text)
        for partition in table.partitions(spec):
            table.drop_partition(dict(partition.spec), ignore_if_not_exists=True)
            dropped.append((partition.name,))
    return rows(_DROPPED, *dropped)


_ALL = (
    Procedure(
        "get_cluster_configs",
        "The settings of the cluster, all or those named.",
        (optional("config_keys", _STRINGS, "names of settings; all if left out"),),
        _CONFIGS,
        _get_cluster_configs,
    ),
    Procedure(
        "drop_partition",
        "Drop partitions; returns the names of those that were there.",
        (
            Parameter("table", StringType(), None, "database.table"),
            Parameter("partitions", _STRINGS, None, "partitions, each as 'key=value, key=value'"),
        ),
        _DROPPED,
        _drop_partition,
    ),
    Procedure(
        "start_tiering",
        "Tier the lake-enabled tables of the cluster on this Spark application, until stop_tiering(); or all once.",
        (
            Parameter("once", BooleanType(), "false", "one round of each table now, then an end"),
            optional("tables", _STRINGS, "with once: these tables, each as 'database.table'"),
            optional("lake_options", _STRINGS, "options of the lake that the cluster does not tell: 'key=value'"),
        ),
        _TIERED,
        _start,
    ),
    Procedure(
        "stop_tiering",
        "End what start_tiering() has started; rounds under way are finished first.",
        (),
        _TIERED,
        _stop,
    ),
)

LIVE_PROCEDURES: dict[str, Procedure] = {procedure.name: procedure for procedure in _ALL}
"""By name."""
