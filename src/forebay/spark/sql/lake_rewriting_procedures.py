"""Procedures that rewrite a table's files as Spark tasks: compact, compact_database, rescale; and its manifests."""

from __future__ import annotations

import re
from typing import Annotated, Any

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import ForebayError, InvalidRequest, UnsupportedOperation
from forebay.paimon.commit.partition_filter import PartitionFilter
from forebay.paimon.compact.clustering import STRATEGIES
from forebay.paimon.compact.rescale import partitions_to_rescale, rescale_partitions
from forebay.paimon.format.file_meta import FileKind
from forebay.paimon.maintain.partition_expiry import idle_partitions
from forebay.paimon.table import Table
from forebay.spark.context import LakeContext
from forebay.spark.jvm.spark_jobs import active_context
from forebay.spark.lake_jobs import SparkTasks
from forebay.spark.sql.lake_procedure_arguments import (
    DryRun,
    Int,
    Names,
    Options,
    Partitions,
    Pattern,
    Span,
    TableName,
    Text,
    Where,
    choice,
    chosen_partitions,
    opened,
    table_name,
)
from forebay.spark.sql.procedures import BOOLEAN, LONG, TEXT, Procedure, Rows, naming, procedure, result_of

REWRITING: dict[str, Procedure] = {}
"""The procedures of this module, by name."""

FULL, MINOR = "full", "minor"
_BUCKETS = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")


# ---- compaction -----------------------------------------------------------------------------------------------------


@procedure(REWRITING, result_of(result=BOOLEAN, snapshot_id=LONG, compacted_files_count=LONG, new_files_count=LONG))
def compact(
    context: LakeContext,
    table: TableName,
    partitions: Partitions = None,
    compact_strategy: Annotated[Text, "'full' (default): everything; 'minor': what is due"] = None,
    order_strategy: Annotated[Text, "sort an append table: none, order, zorder or hilbert"] = None,
    order_by: Annotated[Names, "the columns to sort by: 'a,b'"] = None,
    where: Where = None,
    options: Options = None,
    partition_idle_time: Annotated[Span, "only partitions with no new data for so long: '1 d'"] = None,
    buckets: Annotated[Text, "only these buckets of a table that has a fixed number: '0,2-4'"] = None,
    dry_run: DryRun = False,
) -> Rows:
    """Merge a table's files into larger ones, on Spark; also of write-only tables."""
    full = choice("compact_strategy", compact_strategy, FULL, MINOR) == FULL
    opened_table = opened(context, table, options)
    strategy = _order(opened_table, order_strategy, order_by or [], full)
    selected = chosen_partitions(context, opened_table, partitions, where)
    if partition_idle_time is not None:
        selected = _idle(opened_table, selected, partition_idle_time, bool(order_by))
    numbers = _buckets(opened_table, buckets, bool(order_by))
    what: dict[str, Any] = {"order_by": order_by or [], "strategy": strategy, "buckets": numbers}
    if dry_run:
        tasks = opened_table.plan_compaction(full, selected, **what)
        return [(True, None, sum(len(task.input_files) for task in tasks), None)]
    snapshot = opened_table.compact(
        full, selected, **what, runner=SparkTasks(active_context(), f"compacting {opened_table.name}")
    )
    if snapshot is None:
        return [(True, None, 0, 0)]
    kinds = [
        e.kind for e in opened_table.context.manifests.entries(opened_table.context.manifests.delta_manifests(snapshot))
    ]
    return [(True, snapshot.id, kinds.count(FileKind.DELETE), kinds.count(FileKind.ADD))]


def _order(table: Table, order_strategy: str | None, columns: list[str], full: bool) -> str:
    """The kind of order, in which files are sorted by `columns`, if there are any."""
    strategy = (order_strategy or "none").strip().lower()
    if strategy == "none":
        if columns:
            raise InvalidRequest(
                f"argument 'order_by' needs argument 'order_strategy': {', '.join(STRATEGIES)}; without it nothing is "
                "sorted"
            )
        return STRATEGIES[0]
    if strategy not in STRATEGIES:
        raise InvalidRequest(f"argument 'order_strategy' is {strategy!r}; write none, {', '.join(STRATEGIES)}")
    if not columns:
        raise InvalidRequest("argument 'order_by' is missing: name the columns to sort by")
    useless = [name for name in columns if name in table.schema.partition_keys]
    if useless:
        raise InvalidRequest(f"argument 'order_by': {useless[0]} has one value in each partition; leave it out")
    if not full:
        raise InvalidRequest("argument 'compact_strategy' is 'minor': files can only be sorted all together")
    with naming("order_by"):
        for name in columns:
            table.schema.field_named(name)
    return strategy


def _idle(table: Table, selected: PartitionFilter | None, idle_ms: int, sorts: bool) -> PartitionFilter:
    """`selected`, but only partitions that got nothing new for `idle_ms`."""
    if sorts:
        raise InvalidRequest("argument 'partition_idle_time' does not go with 'order_strategy'")
    if not table.schema.partition_keys:
        raise InvalidRequest(f"argument 'partition_idle_time': {table.name} has no partitions")
    latest = table.context.snapshots.latest()
    entries = [] if latest is None else table.context.manifests.live_files(latest)
    idle = idle_partitions(entries, SYSTEM_CLOCK.now_ms() - idle_ms)
    return lambda partition: partition in idle and (selected is None or selected(partition))


def _buckets(table: Table, text: str | None, sorts: bool) -> frozenset[int] | None:
    """The buckets of a list such as '0,2-4'; None for all."""
    if text is None or not text.strip():
        return None
    count = table.context.options.bucket
    if sorts or count <= 0:
        raise InvalidRequest(
            f"argument 'buckets' is for tables with a fixed number of buckets: {table.name} has {count}"
        )
    numbers: set[int] = set()
    for part in text.split(","):
        match = _BUCKETS.fullmatch(part)
        if match is None:
            raise InvalidRequest(f"argument 'buckets': {part.strip()!r} is neither a bucket nor a range; write '0,2-4'")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < count:
            raise InvalidRequest(f"argument 'buckets': {part.strip()} is not within 0 to {count - 1}")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


@procedure(REWRITING, result_of(result=TEXT))
def compact_database(
    context: LakeContext,
    including_databases: Annotated[Pattern, "a regular expression for databases"] = None,
    including_tables: Annotated[Pattern, "a regular expression for 'database.table'"] = None,
    excluding_tables: Annotated[Pattern, "a regular expression for 'database.table'"] = None,
    options: Options = None,
    dry_run: DryRun = False,
) -> Rows:
    """Compact all tables of databases; says for each what became of it."""
    for database in context.lake.list_databases():
        if including_databases is not None and not including_databases.fullmatch(database):
            continue
        for short in context.lake.list_tables(database):
            name = f"{database}.{short}"
            if including_tables is not None and not including_tables.fullmatch(name):
                continue
            if excluding_tables is None or not excluding_tables.fullmatch(name):
                try:
                    yield (f"{name}: {_compacted(context.lake.table(name, options=options), name, dry_run)}",)
                except ForebayError as e:  # which does not stop the others
                    yield (f"{name}: failed: {e.message}",)


def _compacted(table: Table, name: str, dry_run: bool) -> str:
    if dry_run:
        files = sum(len(task.input_files) for task in table.plan_compaction(True))
        return f"{files:,} files to compact" if files else "nothing to compact"
    snapshot = table.compact(True, runner=SparkTasks(active_context(), f"compacting {name}"))
    return "nothing to compact" if snapshot is None else f"snapshot {snapshot.id}"


# ---- rescaling ------------------------------------------------------------------------------------------------------


@procedure(REWRITING, result_of(result=BOOLEAN, partitions_count=LONG, snapshot_id=LONG))
def rescale(
    context: LakeContext,
    table: TableName,
    bucket_num: Annotated[Int, "the number of buckets; by default the table's option 'bucket'"] = None,
    partitions: Partitions = None,
    where: Where = None,
    dry_run: DryRun = False,
) -> Rows:
    """Rewrite partitions so that they have another number of buckets, on Spark.

    As in Paimon, rescaling some partitions leaves the table's own number of buckets as it is. Rescaling all of them
    changes it: else nothing could be written any more.
    """
    opened_table = opened(context, table)
    selected = chosen_partitions(context, opened_table, partitions, where)
    own = opened_table.context.options.bucket
    with naming("table"):
        if own <= 0:
            raise UnsupportedOperation(f"{opened_table.name} has 'bucket' = {own}, no fixed number of buckets")
    buckets = own if bucket_num is None else bucket_num
    if buckets <= 0:
        raise InvalidRequest(f"argument 'bucket_num' is {buckets}; tables are rescaled to a positive number of buckets")
    before = partitions_to_rescale(opened_table.context, opened_table.new_commit(), buckets, selected)
    if dry_run:
        return [(True, len(before), None)]
    runner = SparkTasks(active_context(), f"rescaling {opened_table.name}")
    if selected is None and own != buckets:
        # by its name, with the branch, which has a schema of its own
        opened_table = context.lake.table(table_name(context, table)).alter(set={"bucket": buckets})
    rescale_partitions(opened_table.context, opened_table.new_commit(), buckets, selected, runner=runner)
    after = partitions_to_rescale(opened_table.context, opened_table.new_commit(), buckets, selected)
    latest = opened_table.context.snapshots.latest()
    done_now = len(before) - len(after)
    return [(True, done_now, latest.id if latest is not None and done_now else None)]


# ---- manifests ------------------------------------------------------------------------------------------------------


@procedure(
    REWRITING,
    result_of(result=BOOLEAN, manifests_count_before=LONG, manifests_count_after=LONG),
    also="rewrite_manifests",
)
def compact_manifest(context: LakeContext, table: TableName, options: Options = None, dry_run: DryRun = False) -> Rows:
    """Merge a table's small manifests into larger ones; changes no data."""
    opened_table = opened(context, table, options)
    before = _count_manifests(opened_table)
    if dry_run:
        return [(True, before, None)]
    opened_table.new_commit().compact_manifests()
    return [(True, before, _count_manifests(opened_table))]


def _count_manifests(table: Table) -> int:
    latest = table.context.snapshots.latest()
    return 0 if latest is None else len(table.context.manifests.data_manifests(latest))
