"""Arguments that the procedures of Paimon tables share: tables, partitions, times and options in a CALL.

The spelling is that of Paimon's own procedures. Every error names the argument that is wrong. A text without a
character counts as left out.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Annotated
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from forebay.base.errors import InvalidRequest
from forebay.base.options import or_unset
from forebay.base.quantity import parse_duration_ms
from forebay.paimon.commit.partition_filter import PartitionFilter, partition_filter
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.table import Table
from forebay.spark.context import LakeContext
from forebay.spark.jvm.spark_jobs import active_context
from forebay.spark.sql.procedures import BOOLEAN, INT, LONG, TEXT, naming, parse_partition

_NUMBER = "__forebay_partition"


# ---- parsers --------------------------------------------------------------------------------------------------------


def _options(text: str) -> dict[str, str]:
    """The mapping for 'key=value,key=value'."""
    entries = {}
    for part in text.replace(";", ",").split(","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"{part.strip()!r} is no option; write 'key=value,key=value'")
        entries[key.strip()] = value.strip()
    return entries


def _moment(text: str) -> datetime.datetime:
    """The time such as '2026-01-31 12:00:00', without a zone unless the text has one."""
    try:
        return datetime.datetime.fromisoformat(text.strip())
    except ValueError as e:
        raise InvalidRequest(f"{text!r} is no time; write '2026-01-31 12:00:00'") from e


def listed(text: str) -> list[str]:
    """The names of a comma-separated list."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidRequest(f"{text!r} has an empty name; write 'a,b'")
    return names


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as e:
        raise InvalidRequest(f"{text!r} is no regular expression: {e}") from e


# ---- types ----------------------------------------------------------------------------------------------------------

Int = Annotated[int | None, INT]
Long = Annotated[int | None, LONG]
Text = Annotated[str | None, TEXT]
Moment = Annotated[datetime.datetime | None, TEXT, or_unset(_moment)]
Span = Annotated[int | None, TEXT, or_unset(parse_duration_ms)]
Names = Annotated[list[str] | None, TEXT, or_unset(listed)]
Pattern = Annotated[re.Pattern[str] | None, TEXT, or_unset(_pattern)]

TableName = Annotated[str, TEXT, "the table: 'database.table', also 'database.table$branch_name'"]
Options = Annotated[dict[str, str] | None, TEXT, _options, "options of the table for this call: 'key=value,key=value'"]
Partitions = Annotated[str | None, TEXT, or_unset(str), "partitions: 'a=1,b=2;a=3' is (a=1 and b=2) or a=3"]
Where = Annotated[
    str | None, TEXT, or_unset(str), "partitions: an SQL condition on the columns that the table is partitioned by"
]
DryRun = Annotated[bool, BOOLEAN, "only tell what would be done"]


# ---- checks ---------------------------------------------------------------------------------------------------------


def require_positive(**numbers: int | None) -> None:
    """Raise `InvalidRequest` for numbers below 1."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InvalidRequest(f"argument '{name}' is {value}; it is at least 1")


def choice(argument: str, value: str | None, *allowed: str) -> str:
    """The text given for `argument`, one of `allowed`; by default the first. Raises `InvalidRequest` for others."""
    selected = (value or allowed[0]).strip().lower()
    if selected not in allowed:
        raise InvalidRequest(f"argument '{argument}' is {value!r}; write {' or '.join(map(repr, allowed))}")
    return selected


# ---- tables and times of the session --------------------------------------------------------------------------------


def table_name(context: LakeContext, text: str) -> str:
    """`database.table` for a name as SQL writes it: with the catalog in front, without the database, in backquotes."""
    with naming("table"):
        if "`" in text:
            parsed = context.session.sessionState().sqlParser().parseMultipartIdentifier(text)
            parts = [str(parsed.apply(i)) for i in range(parsed.size())]
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


def opened(context: LakeContext, table: str, options: Mapping[str, str] | None = None) -> Table:
    """The table given by the arguments `table` and `options`."""
    name = table_name(context, table)
    with naming("options" if options else "table"):
        return context.lake.table(name, options=options or {})


def in_session_zone(context: LakeContext, time: datetime.datetime | None) -> datetime.datetime | None:
    """`time` with the session's time zone if it has none."""
    if time is None or time.tzinfo is not None:
        return time
    return time.replace(tzinfo=ZoneInfo(str(context.session.sessionState().conf().sessionLocalTimeZone())))


# ---- partitions -----------------------------------------------------------------------------------------------------


def chosen_partitions(
    context: LakeContext, table: Table, partitions: str | None, where: str | None
) -> PartitionFilter | None:
    """A test for the partitions selected by argument `partitions` or `where`; None if neither is given."""
    if partitions is not None and where is not None:
        raise InvalidRequest("arguments 'partitions' and 'where' cannot be given together")
    if not (partitions is None and where is None) and not table.schema.partition_keys:
        raise InvalidRequest(
            f"argument '{'where' if partitions is None else 'partitions'}': {table.name} has no partitions"
        )
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


def _partitions_where(context: LakeContext, table: Table, condition: str) -> PartitionFilter:
    """Spark itself evaluates the condition, on a row for each partition of the latest snapshot."""
    latest = table.context.snapshots.latest()
    entries = [] if latest is None else table.context.manifests.live_files(latest)
    partitions = sorted({e.partition for e in entries})
    values = row_layout(table.schema.partition_fields).decode_all(partitions)
    rows = pa.Table.from_batches([values]).append_column(_NUMBER, pa.array(range(len(partitions)), pa.int64()))
    session = SparkSession(active_context(), context.session)
    try:
        matches = session.createDataFrame(rows).where(condition).select(_NUMBER).collect()
    except PySparkException as e:
        keys = ", ".join(table.schema.partition_keys)
        raise InvalidRequest(
            f"argument 'where': {condition!r} is no condition on the partitions of {table.name}, which are by {keys}: "
            f"{str(e).splitlines()[0]}"
        ) from e
    return frozenset(partitions[row[0]] for row in matches).__contains__
