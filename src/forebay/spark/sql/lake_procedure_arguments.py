"""What procedures of Paimon tables share: how tables, partitions, times and options are named in a CALL.

The spelling is that of Paimon's own procedures. Every error names the argument that is wrong.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType, StringType

from forebay.base.errors import ForebayError, InvalidRequest
from forebay.base.quantity import parse_duration_ms
from forebay.paimon.commit.partition_filter import PartitionFilter, partition_filter
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.table import Table
from forebay.spark.context import PaimonContext
from forebay.spark.jvm.spark_jobs import active_context
from forebay.spark.sql.procedures import Arguments, Parameter, optional, parse_partition

_NUMBER = "__forebay_partition"


TABLE = Parameter("table", StringType(), None, "the table: 'database.table', also 'database.table$branch_name'")
OPTIONS = optional("options", StringType(), "options of the table for this call: 'key=value,key=value'")
PARTITIONS = optional("partitions", StringType(), "partitions: 'a=1,b=2;a=3' is (a=1 and b=2) or a=3")
WHERE = optional("where", StringType(), "partitions: an SQL condition on the columns that the table is partitioned by")
DRY_RUN = Parameter("dry_run", BooleanType(), "false", "only tell what would be done")


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Name the argument in errors raised inside."""
    try:
        yield
    except ForebayError as e:
        raise type(e)(f"argument '{argument}': {e.message}", e.code) from e


def table_name(context: PaimonContext, text: str) -> str:
    """`database.table` for a name as SQL writes it: with the catalog in front, without the database, in backquotes."""
    with naming("table"):
        if "`" in text:
            found = context.session.sessionState().sqlParser().parseMultipartIdentifier(text)
            parts = [str(found.apply(i)) for i in range(found.size())]
        else:
            parts = text.split(".")
        if len(parts) == 3 and parts[0] == context.catalog:
            parts = parts[1:]
        if len(parts) == 1:
            manager = context.session.sessionState().catalogManager()
            namespace = [str(part) for part in manager.currentNamespace()]
            if str(manager.currentCatalog().name()) == context.catalog and len(namespace) == 1:
                parts = [*namespace, *parts]
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise InvalidRequest(f"{text!r} names no table; write 'database.table'")
        return ".".join(parts)


def opened(context: PaimonContext, arguments: Arguments) -> Table:
    """The table given by the arguments `table` and `options`."""
    name = table_name(context, arguments["table"])
    options = parse_options(arguments.get("options"))
    with naming("table" if not options else "options"):
        return context.lake.table(name, options=options)


def parse_options(text: str | None) -> dict[str, str]:
    """The mapping for 'key=value,key=value'."""
    found = {}
    for part in (text or "").replace(";", ",").split(","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"argument 'options': {part.strip()!r} is no option; write 'key=value,key=value'")
        found[key.strip()] = value.strip()
    return found


def parse_moment(context: PaimonContext, text: str | None, argument: str) -> datetime.datetime | None:
    """The moment of a time such as '2026-01-31 12:00:00' in the session's time zone."""
    if text is None or not text.strip():
        return None
    try:
        time = datetime.datetime.fromisoformat(text.strip())
    except ValueError as e:
        raise InvalidRequest(f"argument '{argument}': {text!r} is no time; write '2026-01-31 12:00:00'") from e
    if time.tzinfo is None:
        time = time.replace(tzinfo=ZoneInfo(str(context.session.sessionState().conf().sessionLocalTimeZone())))
    return time


def parse_span(text: str | None, argument: str) -> int | None:
    """Milliseconds of a duration such as '1 d'."""
    if text is None or not text.strip():
        return None
    with naming(argument):
        return parse_duration_ms(text)


def names_in(text: str, argument: str) -> list[str]:
    """The names of a comma-separated list."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidRequest(f"argument '{argument}': {text!r} has an empty name; write 'a,b'")
    return names


# ---- partitions -----------------------------------------------------------------------------------------------------


def chosen_partitions(context: PaimonContext, table: Table, arguments: Arguments) -> PartitionFilter | None:
    """A test for the partitions selected by argument `partitions` or `where`; None if neither is given."""
    partitions, where = (
        arguments[name] if (arguments[name] or "").strip() else None for name in ("partitions", "where")
    )
    if partitions is not None and where is not None:
        raise InvalidRequest("arguments 'partitions' and 'where' cannot be given together")
    for name, given in (("partitions", partitions), ("where", where)):
        if given is not None and not table.schema.partition_keys:
            raise InvalidRequest(f"argument '{name}': {table.name} has no partitions")
    if partitions is not None:
        return _named_partitions(table, partitions)
    return None if where is None else _partitions_where(context, table, where)


def _named_partitions(table: Table, text: str) -> PartitionFilter:
    with naming("partitions"):
        tests = [
            partition_filter(table.schema, {key: value.strip('"') for key, value in parse_partition(part).items()})
            for part in text.split(";")
            if part.strip()
        ]
    return lambda partition: any(test is None or test(partition) for test in tests)


def _partitions_where(context: PaimonContext, table: Table, condition: str) -> PartitionFilter:
    """Spark itself evaluates the condition, on a row for each partition of the latest snapshot."""
    latest = table.context.snapshots.latest()
    entries = [] if latest is None else table.context.manifests.live_files(latest)
    partitions = sorted({e.partition for e in entries})
    values = row_layout(table.schema.partition_fields).decode_all(partitions)
    rows = pa.Table.from_batches([values]).append_column(_NUMBER, pa.array(range(len(partitions)), pa.int64()))
    session = SparkSession(active_context(), context.session)
    try:
        found = session.createDataFrame(rows).where(condition).select(_NUMBER).collect()
    except PySparkException as e:
        keys = ", ".join(table.schema.partition_keys)
        raise InvalidRequest(
            f"argument 'where': {condition!r} is no condition on the partitions of {table.name}, which are by {keys}: "
            f"{str(e).splitlines()[0]}"
        ) from e
    return frozenset(partitions[row[0]] for row in found).__contains__
