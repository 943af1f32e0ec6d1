"""Procedures that rewrite a table's files as Spark tasks: compact, compact_database, rescale; and its manifests."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType

from forebay.base.clock import SYSTEM_CLOCK
from forebay.base.errors import ForebayError, InvalidRequest, UnsupportedOperation
from forebay.paimon.commit.partition_filter import PartitionFilter
from forebay.paimon.compact.clustering import STRATEGIES
from forebay.paimon.compact.rescale import partitions_to_rescale, rescale_partitions
from forebay.paimon.format.file_meta import FileKind
from forebay.paimon.maintain.partition_expiry import idle_partitions
from forebay.paimon.table import Table
from forebay.spark.context import PaimonContext
from forebay.spark.jvm.spark_jobs import active_context
from forebay.spark.paimon.jobs import SparkTasks
from forebay.spark.sql.lake_procedure_arguments import (
    DRY_RUN,
    OPTIONS,
    PARTITIONS,
    TABLE,
    WHERE,
    chosen_partitions,
    names_in,
    naming,
    opened,
    parse_options,
    parse_span,
    table_name,
)
from forebay.spark.sql.procedures import RESULT, Arguments, Procedure, optional, result_of, rows

FULL, MINOR = "full", "minor"
_BUCKETS = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_BOOLEAN = RESULT["result"].dataType
_COMPACTED = result_of(
    result=_BOOLEAN, snapshot_id=LongType(), compacted_files_count=LongType(), new_files_count=LongType()
)
_RESCALED = result_of(result=_BOOLEAN, partitions_count=LongType(), snapshot_id=LongType())
_MERGED = result_of(result=_BOOLEAN, manifests_count_before=LongType(), manifests_count_after=LongType())
_ALL_COMPACTED = result_of(result=StringType())


# ---- compaction -----------------------------------------------------------------------------------------------------


def _compact(context: PaimonContext, arguments: Arguments) -> pa.Table:
    full = _is_full(arguments["compact_strategy"])
    table = opened(context, arguments)
    order_by, strategy = _order(table, arguments)
    partitions = _idle(table, chosen_partitions(context, table, arguments), arguments, bool(order_by))
    buckets = _buckets(table, arguments["buckets"], bool(order_by))
    if arguments["dry_run"]:
        tasks = table.plan_compaction(full, partitions, order_by=order_by, strategy=strategy, buckets=buckets)
        files = sum(len(task.input_files) for task in tasks)
        return rows(_COMPACTED, (True, None, files, None))
    made = table.compact(
        full, partitions, order_by=order_by, strategy=strategy, buckets=buckets,
        runner=SparkTasks(active_context(), f"compacting {table.name}"),
    )  # fmt: skip
    if made is None:
        return rows(_COMPACTED, (True, None, 0, 0))
    kinds = [e.kind for e in table.context.manifests.entries(table.context.manifests.delta_manifests(made))]
    return rows(_COMPACTED, (True, made.id, kinds.count(FileKind.DELETE), kinds.count(FileKind.ADD)))


def _is_full(strategy: str | None) -> bool:
    chosen = (strategy or FULL).strip().lower()
    if chosen not in (FULL, MINOR):
        raise InvalidRequest(f"argument 'compact_strategy' is {strategy!r}; write '{FULL}' or '{MINOR}'")
    return chosen == FULL


def _order(table: Table, arguments: Arguments) -> tuple[list[str], str]:
    """The columns to sort by and the kind of order; None for no order."""
    strategy = (arguments["order_strategy"] or "none").strip().lower()
    columns = names_in(arguments["order_by"], "order_by") if (arguments["order_by"] or "").strip() else []
    if strategy == "none":
        if columns:
            raise InvalidRequest(
                f"argument 'order_by' needs argument 'order_strategy': {', '.join(STRATEGIES)}; without it nothing is "
                "sorted"
            )
        return [], STRATEGIES[0]
    if strategy not in STRATEGIES:
        raise InvalidRequest(f"argument 'order_strategy' is {strategy!r}; write none, {', '.join(STRATEGIES)}")
    if not columns:
        raise InvalidRequest("argument 'order_by' is missing: name the columns to sort by")
    useless = [name for name in columns if name in table.schema.partition_keys]
    if useless:
        raise InvalidRequest(f"argument 'order_by': {useless[0]} has one value in each partition; leave it out")
    if not _is_full(arguments["compact_strategy"]):
        raise InvalidRequest("argument 'compact_strategy' is 'minor': files can only be sorted all together")
    with naming("order_by"):
        for name in columns:
            table.schema.field_named(name)
    return columns, strategy


def _idle(table: Table, chosen: PartitionFilter | None, arguments: Arguments, sorts: bool) -> PartitionFilter | None:
    """`chosen`, but only partitions that got nothing new for `partition_idle_time`, if it is said."""
    idle_ms = parse_span(arguments["partition_idle_time"], "partition_idle_time")
    if idle_ms is None:
        return chosen
    if sorts:
        raise InvalidRequest("argument 'partition_idle_time' does not go with 'order_strategy'")
    if not table.schema.partition_keys:
        raise InvalidRequest(f"argument 'partition_idle_time': {table.name} has no partitions")
    latest = table.context.snapshots.latest()
    entries = [] if latest is None else table.context.manifests.live_files(latest)
    idle = idle_partitions(entries, SYSTEM_CLOCK.now_ms() - idle_ms)
    return lambda partition: partition in idle and (chosen is None or chosen(partition))


def _buckets(table: Table, text: str | None, sorts: bool) -> frozenset[int] | None:
    """The buckets of a list such as '0,2-4'; None for all."""
    if text is None or not text.strip():
        return None
    count = table.context.options.bucket
    if sorts or count <= 0:
        raise InvalidRequest(
            f"argument 'buckets' is for tables with a fixed number of buckets: {table.name} has {count}"
        )
    found: set[int] = set()
    for part in text.split(","):
        match = _BUCKETS.fullmatch(part)
        if match is None:
            raise InvalidRequest(f"argument 'buckets': {part.strip()!r} is neither a bucket nor a range; write '0,2-4'")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < count:
            raise InvalidRequest(f"argument 'buckets': {part.strip()} is not within 0 to {count - 1}")
        found.update(range(first, last + 1))
    return frozenset(found)


def _compact_database(context: PaimonContext, arguments: Arguments) -> pa.Table:
    """Compact the tables one by one; a failure does not stop the others."""
    options = parse_options(arguments["options"])
    databases = _pattern(arguments["including_databases"], "including_databases", ".*")
    including = _pattern(arguments["including_tables"], "including_tables", ".*")
    excluding = _pattern(arguments["excluding_tables"], "excluding_tables", "")
    said = []
    for database in filter(databases.fullmatch, context.lake.list_databases()):
        for short in context.lake.list_tables(database):
            name = f"{database}.{short}"
            if not including.fullmatch(name) or excluding.fullmatch(name):
                continue
            try:
                table = context.lake.table(name, options=options)
                if arguments["dry_run"]:
                    files = sum(len(task.input_files) for task in table.plan_compaction(True))
                    said.append(f"{name}: {files:,} files to compact" if files else f"{name}: nothing to compact")
                    continue
                made = table.compact(True, runner=SparkTasks(active_context(), f"compacting {name}"))
                said.append(f"{name}: nothing to compact" if made is None else f"{name}: snapshot {made.id}")
            except ForebayError as e:
                said.append(f"{name}: failed: {e.message}")
    return rows(_ALL_COMPACTED, *((line,) for line in said))


def _pattern(text: str | None, argument: str, default: str) -> re.Pattern[str]:
    try:
        return re.compile(text if text and text.strip() else default)
    except re.error as e:
        raise InvalidRequest(f"argument '{argument}': {text!r} is no regular expression: {e}") from e


# ---- rescaling ------------------------------------------------------------------------------------------------------


def _rescale(context: PaimonContext, arguments: Arguments) -> pa.Table:
    """As in Paimon, rescaling some partitions leaves the table's own number of buckets as it is.

    Rescaling all of them changes it: else nothing could be written any more.
    """
    table = opened(context, arguments)
    chosen = chosen_partitions(context, table, arguments)
    with naming("table"):
        if table.context.options.bucket <= 0:
            raise UnsupportedOperation(
                f"{table.name} has 'bucket' = {table.context.options.bucket}, no fixed number of buckets"
            )
    buckets = table.context.options.bucket if arguments["bucket_num"] is None else arguments["bucket_num"]
    if buckets <= 0:
        raise InvalidRequest(f"argument 'bucket_num' is {buckets}; tables are rescaled to a positive number of buckets")
    before = partitions_to_rescale(table.context, table.new_commit(), buckets, chosen)
    if arguments["dry_run"]:
        return rows(_RESCALED, (True, len(before), None))
    runner = SparkTasks(active_context(), f"rescaling {table.name}")
    if chosen is None and table.context.options.bucket != buckets:
        name = table_name(context, arguments["table"])  # with the branch, which has a schema of its own
        table = context.lake.table(name).alter(set={"bucket": buckets})
    rescale_partitions(table.context, table.new_commit(), buckets, chosen, runner=runner)
    after = partitions_to_rescale(table.context, table.new_commit(), buckets, chosen)
    latest = table.context.snapshots.latest()
    done_now = len(before) - len(after)
    return rows(_RESCALED, (True, done_now, latest.id if latest is not None and done_now else None))


# ---- manifests ------------------------------------------------------------------------------------------------------


def _compact_manifests(context: PaimonContext, arguments: Arguments) -> pa.Table:
    table = opened(context, arguments)
    before = _count_manifests(table)
    if arguments["dry_run"]:
        return rows(_MERGED, (True, before, None))
    table.new_commit().compact_manifests()
    return rows(_MERGED, (True, before, _count_manifests(table)))


def _count_manifests(table: Table) -> int:
    latest = table.context.snapshots.latest()
    return 0 if latest is None else len(table.context.manifests.data_manifests(latest))


_MANIFESTS = Procedure(
    "compact_manifest",
    "Merge a table's small manifests into larger ones; changes no data.",
    (TABLE, OPTIONS, DRY_RUN),
    _MERGED,
    _compact_manifests,
)

REWRITING = (
    Procedure(
        "compact",
        "Merge a table's files into larger ones, on Spark; also of write-only tables.",
        (
            TABLE,
            PARTITIONS,
            optional("compact_strategy", StringType(), "'full' (default): everything; 'minor': what is due"),
            optional("order_strategy", StringType(), "sort an append table: none, order, zorder or hilbert"),
            optional("order_by", StringType(), "the columns to sort by: 'a,b'"),
            WHERE,
            OPTIONS,
            optional("partition_idle_time", StringType(), "only partitions with no new data for so long: '1 d'"),
            optional("buckets", StringType(), "only these buckets of a table that has a fixed number: '0,2-4'"),
            DRY_RUN,
        ),
        _COMPACTED,
        _compact,
    ),
    Procedure(
        "compact_database",
        "Compact all tables of databases; says for each what became of it.",
        (
            optional("including_databases", StringType(), "a regular expression for databases"),
            optional("including_tables", StringType(), "a regular expression for 'database.table'"),
            optional("excluding_tables", StringType(), "a regular expression for 'database.table'"),
            OPTIONS,
            DRY_RUN,
        ),
        _ALL_COMPACTED,
        _compact_database,
    ),
    Procedure(
        "rescale",
        "Rewrite partitions so that they have another number of buckets, on Spark.",
        (
            TABLE,
            optional("bucket_num", IntegerType(), "the number of buckets; by default the table's option 'bucket'"),
            PARTITIONS,
            WHERE,
            DRY_RUN,
        ),
        _RESCALED,
        _rescale,
    ),
    _MANIFESTS,
    replace(_MANIFESTS, name="rewrite_manifests"),
)
"""The procedures of this module."""
