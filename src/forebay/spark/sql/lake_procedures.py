"""Procedures of Paimon tables: `CALL <catalog>.sys.compact(table => 'db.t')` and the others.

Names, arguments and the first columns of results are those of Paimon's own procedures for Spark, so that its
documentation and existing jobs hold here. Beyond them there are dry runs, columns that tell more, and second names:
`rollback_to`, `rewrite_manifests`, `purge`. What moves data runs as Spark tasks (forebay.spark.lake_jobs); the rest
touches metadata only, and runs on the driver.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

from forebay.base.errors import UnsupportedOperation
from forebay.paimon.table import Table
from forebay.spark.context import LakeContext
from forebay.spark.sql.lake_history_procedures import HISTORY
from forebay.spark.sql.lake_procedure_arguments import (
    DryRun,
    Int,
    Moment,
    TableName,
    Text,
    choice,
    in_session_zone,
    listed,
    opened,
    require_positive,
)
from forebay.spark.sql.lake_rewriting_procedures import REWRITING
from forebay.spark.sql.procedures import LONG, TEXT, TEXTS, Procedure, Rows, naming, procedure, result_of

LAKE_PROCEDURES: dict[str, Procedure] = {**REWRITING, **HISTORY}
"""By name."""

_FILES_TOLD = 1000
"""So many paths of orphans are in a result."""


@procedure(LAKE_PROCEDURES, result_of(deletedFileCount=LONG, deletedFileTotalLenInBytes=LONG, files=TEXTS))
def remove_orphan_files(
    context: LakeContext,
    table: Annotated[str, TEXT, "the table, or 'database.*' for all tables of a database"],
    older_than: Annotated[Moment, "files older than this time; by default older than a day"] = None,
    dry_run: DryRun = False,
    parallelism: Annotated[Int, "known for Paimon's sake; the driver deletes one after the other"] = None,
    mode: Annotated[Text, "known for Paimon's sake: 'local' and 'distributed' do the same"] = None,
) -> Rows:
    """Delete files that nothing refers to: those of killed writers, and of failed commits."""
    choice("mode", mode, "local", "distributed")
    require_positive(parallelism=parallelism)
    time = in_session_zone(context, older_than)
    per_table = [
        each.maintenance().remove_orphan_files(older_than=time, dry_run=dry_run) for each in _tables(context, table)
    ]
    files = [path for orphans in per_table for path in orphans.files]
    return [(len(files), sum(orphans.bytes for orphans in per_table), files[:_FILES_TOLD])]


def _tables(context: LakeContext, table: str) -> list[Table]:
    """The named table, or all tables of `database.*`."""
    name = table.strip()
    if not name.endswith(".*"):
        return [opened(context, table)]
    database = name[: -len(".*")].removeprefix(f"{context.catalog}.")
    with naming("table"):
        return [context.lake.table(f"{database}.{short}") for short in context.lake.list_tables(database)]


@procedure(LAKE_PROCEDURES, result_of(snapshot_id=LONG, row_count=LONG, size_in_bytes=LONG, columns=TEXTS))
def analyze(
    context: LakeContext,
    table: TableName,
    columns: Annotated[Text, "also of these columns: 'a,b', or '*' for all"] = None,
) -> Rows:
    """Collect statistics of a table's rows for planners of queries."""
    of, text = opened(context, table), (columns or "").strip()
    with naming("columns"):
        names = [f.name for f in of.schema.fields] if text == "*" else listed(text) if text else []
        statistics = of.analyze(names)
    if statistics is None:
        return []
    return [
        (
            statistics.snapshot_id,
            statistics.merged_record_count,
            statistics.merged_record_size,
            sorted(statistics.columns),
        )
    ]


@procedure(LAKE_PROCEDURES, result_of(result=TEXT), also="purge")
def purge_files(context: LakeContext, table: TableName, dry_run: DryRun = False) -> Rows:
    """Empty a table: rows, branches, tags, consumers, old snapshots and all files. Stop all writers first."""
    of = opened(context, table)
    if of.context.paths.branch != "main":
        raise UnsupportedOperation("argument 'table': a branch cannot be purged, only its table; or delete the branch")
    if dry_run:
        purgeable = of.maintenance().purgeable()
        counts = ", ".join(f"{getattr(purgeable, f.name):,} {f.name}" for f in fields(purgeable))
        return [(f"Would delete {counts}",)]
    return [(f"Success: {len(of.maintenance().purge().files)} files that were left over are deleted",)]
