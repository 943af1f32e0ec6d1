"""A table of the catalog as something to scan: in a batch here, as a stream by the format "forebay".

Spark gives a scan its options before it says whether it is a batch or a stream.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from forebay.metadata.table import TableInfo
from forebay.spark.context import CatalogContext
from forebay.spark.options import (
    LAKE_PREFIX,
    LEASE_DURATION,
    LEASE_ID,
    SERVER_SIDE,
    SESSION_PREFIX,
    SESSION_ZONE,
    STARTUP_TIMESTAMP,
    STRATEGY,
    read_options,
)
from forebay.spark.reading.live_plan import CHANGELOG, VIRTUAL_SEPARATOR, LiveScan
from forebay.spark.reading.scan_builder import Readable
from forebay.spark.reading.scan_plan import Pushdown, ScanPlan
from forebay.spark.streaming_options import is_for_streams, stream_options


def readable(
    context: CatalogContext,
    name: str,
    info: TableInfo,
    options: Mapping[str, str],
    *,
    is_changelog: bool = False,
    is_lake: bool = False,
) -> Readable:
    """What a scan builder needs of a table, its changelog or its lake.

    Spark says only later whether a scan is a stream. So options that only streams have are looked at again when a
    batch is planned, which then refuses them, and otherwise when the stream begins.
    """
    session = context.session_options() if not (is_changelog or is_lake) else {}

    def scan(given: Mapping[str, str]) -> LiveScan:
        chosen = read_options(context.settings, info.descriptor, given, session)
        return LiveScan(info, chosen, is_changelog, is_lake)

    def plan(wanted: Pushdown, schema: StructType) -> ScanPlan:
        return scan(options).plan(context.connection, context.cores, wanted, schema)

    def stream() -> dict[str, str]:
        return stream_source(context, info, options, is_changelog=is_changelog)

    is_stream = is_for_streams(options)
    shown = scan({} if is_stream else options)
    return Readable(
        name,
        shown.schema,
        info.schema.columns,
        plan if is_stream else lambda wanted, schema: shown.plan(context.connection, context.cores, wanted, schema),
        info.descriptor.partition_keys,
        None if is_stream else shown.way,
        None if is_lake else stream,
    )


def stream_source(
    context: CatalogContext, info: TableInfo, options: Mapping[str, str], *, is_changelog: bool
) -> dict[str, str]:
    """The options of the format "forebay" for a stream of the catalog. Raises `InvalidRequest` for wrong ones."""
    session = context.session_options()
    settings = context.settings
    chosen = stream_options(
        settings, info.descriptor, options, is_changelog=is_changelog, zone=session.get(SESSION_ZONE)
    )
    given = {name.lower(): value for name, value in options.items()}
    if chosen.timestamp_ms is not None:
        given[STARTUP_TIMESTAMP] = str(chosen.timestamp_ms)
    for name in (LEASE_ID, LEASE_DURATION, STRATEGY, SERVER_SIDE):
        if SESSION_PREFIX + name in session:
            given.setdefault(name, session[SESSION_PREFIX + name])
    return {
        **{name: _option_text(value) for name, value in settings.given},
        **{LAKE_PREFIX + name: value for name, value in settings.lake_options},
        **given,
        "bootstrap.servers": ",".join(map(str, settings.bootstrap_servers)),
        "table": f"{info.path}{VIRTUAL_SEPARATOR + CHANGELOG if is_changelog else ''}",
        "cores": str(context.cores),
    }


def _option_text(value: object) -> str:
    """A parsed client option as it is written. Numbers with a point are seconds, which are written in milliseconds."""
    return str(round(value * 1000)) if isinstance(value, float) else str(value)
