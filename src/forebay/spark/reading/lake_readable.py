"""A Paimon table of a catalog as something to scan: in a batch here, as a stream by the format "forebay-paimon".

Spark gives a scan its options before it says whether it is a batch or a stream. So options that only streams have are
refused when a batch is planned, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.paimon.read.stream import check_streamable
from forebay.paimon.table import Table
from forebay.spark.lake_context import PaimonContext
from forebay.spark.lake_options import (
    CATALOG_PREFIX,
    CORES,
    FORMAT_NAME,
    READ_CHANGELOG,
    SCHEMA_ID,
    SESSION_PREFIXES,
    paimon_read_options,
)
from forebay.spark.options import OWN_SESSION_PREFIX, READ_NATIVE
from forebay.spark.reading.lake_plan import READ_OPTIMIZED, PaimonScan
from forebay.spark.reading.scan_builder import Readable
from forebay.spark.reading.scan_plan import Pushdown, ScanPlan


def readable(
    context: PaimonContext, name: str, table: Table, options: Mapping[str, str], system: str | None = None
) -> Readable:
    """What a scan builder needs of `table`, or of one of its side tables (`planning.SIDE_TABLES`): `name` in SQL.

    The columns are those of `table`, or, where its own options name a snapshot, those that it had then. `options` of
    the read choose what is read of these columns.
    """
    session = session_options(context)
    given = paimon_read_options(options, session)
    if given.changelog:
        raise InvalidRequest(
            f"'{READ_CHANGELOG}' adds a column, and Spark has asked for the columns already: read "
            f"{name}$changelog or $audit_log, or the format '{FORMAT_NAME}' with this option",
            ErrorCode.CONFIG_EXCEPTION,
        )
    shown = PaimonScan.of(table, name, system)
    scan = shown.with_options(given.table)

    def plan(wanted: Pushdown, schema: StructType) -> ScanPlan:
        given.refuse_for_batches()
        return scan.plan(context.cores, wanted, schema, use_native=given.use_native)

    def stream() -> Mapping[str, str]:
        if system == READ_OPTIMIZED:
            raise UnsupportedOperation(f"{name} cannot be read as a stream; the table itself can")
        # The format checks this, too, but there Spark hides the reason.
        check_streamable(scan.table)
        return stream_source(context, table, system, {**session, **options})

    return Readable(name, shown.schema, shown.columns, plan, shown.partition_keys, None, stream, FORMAT_NAME)


def session_options(context: PaimonContext) -> dict[str, str]:
    """The options of reads in the session's configuration, by their names without a prefix."""
    pairs = context.jvm.class_("scala.jdk.javaapi.CollectionConverters").asJava(
        context.session.sessionState().conf().getAllConfs()
    )
    settings = {str(key): str(value) for key, value in pairs.items()}
    native = settings.get(OWN_SESSION_PREFIX + READ_NATIVE)
    of_all = {} if native is None else {READ_NATIVE: native}
    return of_all | {
        key.removeprefix(prefix): value
        for prefix in SESSION_PREFIXES
        for key, value in settings.items()
        if key.startswith(prefix)
    }


def stream_source(context: PaimonContext, table: Table, system: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """The options by which the format reads `table`, under its very schema, as a stream."""
    stored = table.context.schemas.schema(table.schema.id).options
    own = {key: value for key, value in table.schema.options.items() if stored.get(key) != value}
    return {
        **own,
        **given,
        **{CATALOG_PREFIX + key: value for key, value in context.options},
        "table": table.name if system is None else f"{table.name}${system}",
        "branch": table.context.paths.branch,
        SCHEMA_ID: str(table.schema.id),
        CORES: str(context.cores),
    }
