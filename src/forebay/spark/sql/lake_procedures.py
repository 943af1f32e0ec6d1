"""Procedures of Paimon tables: `CALL <catalog>.sys.compact(table => 'db.t')` and the others.

Names, arguments and the first columns of results are those of Paimon's own procedures for Spark, so that its
documentation and existing jobs hold here. Beyond them there are dry runs, columns that tell more, and second names:
`rollback_to`, `rewrite_manifests`, `purge`. What moves data runs as Spark tasks (forebay.spark.paimon.jobs); the rest
touches metadata only, and runs on the driver.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pyarrow as pa
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.maintain.orphans import Orphans
from forebay.paimon.maintain.purge import Purgeable
from forebay.paimon.table import Table
from forebay.spark.context import PaimonContext
from forebay.spark.sql.lake_history_procedures import HISTORY
from forebay.spark.sql.lake_procedure_arguments import DRY_RUN, TABLE, names_in, naming, opened, parse_moment
from forebay.spark.sql.lake_rewriting_procedures import REWRITING
from forebay.spark.sql.procedures import Arguments, Parameter, Procedure, optional, result_of, rows

_FILES_TOLD = 1000
"""So many paths of orphans are in a result."""

_ORPHANS = result_of(deletedFileCount=LongType(), deletedFileTotalLenInBytes=LongType(), files=ArrayType(StringType()))
_PURGED = result_of(result=StringType())
_ANALYZED = result_of(
    snapshot_id=LongType(), row_count=LongType(), size_in_bytes=LongType(), columns=ArrayType(StringType())
)


def _remove_orphan_files(context: PaimonContext, arguments: Arguments) -> pa.Table:
    """The sum of all tables."""
    older_than = parse_moment(context, arguments["older_than"], "older_than")
    mode = (arguments["mode"] or "local").lower()
    if mode not in ("local", "distributed"):
        raise InvalidRequest(f"argument 'mode' is {arguments['mode']!r}; write 'local' or 'distributed'")
    if arguments["parallelism"] is not None and arguments["parallelism"] < 1:
        raise InvalidRequest(f"argument 'parallelism' is {arguments['parallelism']}; it is at least 1")
    found = [
        table.maintenance().remove_orphan_files(older_than=older_than, dry_run=arguments["dry_run"])
        for table in _tables(context, arguments)
    ]
    files = [path for orphans in found for path in orphans.files]
    size = sum(orphans.bytes for orphans in found)
    return rows(_ORPHANS, (len(files), size, files[:_FILES_TOLD]))


def _tables(context: PaimonContext, arguments: Arguments) -> list[Table]:
    """The named table, or all tables of `database.*`."""
    name = arguments["table"].strip()
    if not name.endswith(".*"):
        return [opened(context, arguments)]
    database = name[: -len(".*")].removeprefix(f"{context.catalog}.")
    with naming("table"):
        return [context.lake.table(f"{database}.{short}") for short in context.lake.list_tables(database)]


def _purge(context: PaimonContext, arguments: Arguments) -> pa.Table:
    table = opened(context, arguments)
    if table.context.paths.branch != "main":
        raise UnsupportedOperation("argument 'table': a branch cannot be purged, only its table; or delete the branch")
    if arguments["dry_run"]:
        return rows(_PURGED, (f"Would delete {_counts(table.maintenance().purgeable())}",))
    orphans: Orphans = table.maintenance().purge()
    return rows(_PURGED, (f"Success: {len(orphans.files)} files that were left over are deleted",))


def _counts(found: Purgeable) -> str:
    return ", ".join(f"{getattr(found, f.name):,} {f.name}" for f in fields(found))


def _analyze(context: PaimonContext, arguments: Arguments) -> pa.Table:
    table = opened(context, arguments)
    text = (arguments["columns"] or "").strip()
    columns = [f.name for f in table.schema.fields] if text == "*" else names_in(text, "columns") if text else []
    with naming("columns"):
        found = table.analyze(columns)
    if found is None:
        return rows(_ANALYZED)
    told = (found.snapshot_id, found.merged_record_count, found.merged_record_size, sorted(found.columns))
    return rows(_ANALYZED, told)


_PURGE = Procedure(
    "purge_files",
    "Empty a table: rows, branches, tags, consumers, old snapshots and all files. Stop all writers first.",
    (TABLE, DRY_RUN),
    _PURGED,
    _purge,
)

_UPKEEP = (
    Procedure(
        "remove_orphan_files",
        "Delete files that nothing refers to: those of killed writers, and of failed commits.",
        (
            Parameter("table", StringType(), None, "the table, or 'database.*' for all tables of a database"),
            optional("older_than", StringType(), "files older than this time; by default older than a day"),
            DRY_RUN,
            optional("parallelism", IntegerType(), "known for Paimon's sake; the driver deletes one after the other"),
            optional("mode", StringType(), "known for Paimon's sake: 'local' and 'distributed' do the same"),
        ),
        _ORPHANS,
        _remove_orphan_files,
    ),
    Procedure(
        "analyze",
        "Collect statistics of a table's rows for planners of queries.",
        (TABLE, optional("columns", StringType(), "also of these columns: 'a,b', or '*' for all")),
        _ANALYZED,
        _analyze,
    ),
    _PURGE,
    replace(_PURGE, name="purge"),
)

PAIMON_PROCEDURES: dict[str, Procedure] = {p.name: p for p in (*REWRITING, *HISTORY, *_UPKEEP)}
"""By name."""
