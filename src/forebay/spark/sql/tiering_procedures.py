"""Procedures of tiering: `CALL <catalog>.sys.start_tiering()` and `stop_tiering()`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.spark.context import CatalogContext
from forebay.spark.sql.procedures import Arguments, Parameter, Procedure
from forebay.spark.tiering import services, tier_once
from forebay.tiering.now import TierOutcome
from forebay.tiering.status import ServiceStatus

_STRINGS = ArrayType(StringType())
_RESULT = StructType(
    [
        StructField("table_name", StringType()),
        StructField("state", StringType(), False),
        StructField("rounds", LongType(), False),
        StructField("row_count", LongType(), False),
        StructField("lake_snapshot_id", LongType()),
        StructField("records_behind", LongType()),
        StructField("error", StringType()),
    ]
)
_SCHEMA = pa.schema(
    [
        ("table_name", pa.string()), ("state", pa.string()), ("rounds", pa.int64()), ("row_count", pa.int64()),
        ("lake_snapshot_id", pa.int64()), ("records_behind", pa.int64()), ("error", pa.string()),
    ]
)  # fmt: skip


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
    rows: list[Sequence[Any]] = []
    for outcome in outcomes:
        report = outcome.report
        if report is None:
            rows.append((str(outcome.path), "failed", 0, 0, None, None, str(outcome.error)))
        else:
            rows.append((str(outcome.path), "done", 1, report.rows, report.snapshot_id, report.lag_records, None))
    return _table(rows)


def _status(status: ServiceStatus) -> pa.Table:
    """The service itself, without a table's name, then its tables."""
    state = "running" if status.running else "stopped"
    rows: list[Sequence[Any]] = [(None, state, status.rounds, status.rows, None, None, status.cluster_error)]
    for table in status.tables:
        report = table.last_report
        rows.append(
            (
                str(table.path),
                table.phase,
                table.rounds,
                table.rows,
                None if report is None else report.snapshot_id,
                None if report is None else report.lag_records,
                table.last_error,
            )
        )
    return _table(rows)


def _table(rows: Sequence[Sequence[Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], schema=_SCHEMA)


_PROCEDURES = (
    Procedure(
        "start_tiering",
        "Tier the lake-enabled tables of the cluster on this Spark application, until stop_tiering(); or all once.",
        (
            Parameter("once", BooleanType(), "false", "one round of each table now, then an end"),
            Parameter("tables", _STRINGS, "NULL", "with once: these tables, each as 'database.table'"),
            Parameter(
                "lake_options", _STRINGS, "NULL", "options of the lake that the cluster does not tell: 'key=value'"
            ),
        ),
        _RESULT,
        _start,
    ),
    Procedure(
        "stop_tiering",
        "End what start_tiering() has started; rounds under way are finished first.",
        (),
        _RESULT,
        _stop,
    ),
)

TIERING_PROCEDURES = {procedure.name: procedure for procedure in _PROCEDURES}
"""By name, as `forebay.spark.sql.procedures.PROCEDURES` has the others."""
