"""Lake tables written by several tasks at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.paimon.compact.running import TaskRunner, TaskThreads
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.table import Table
from forebay.paimon.write.table_write import WriterShard
from forebay.spark.writing.lake_write import new_write
from tests.paimon.lake import new_catalog

Rows = list[dict[str, Any]]

TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string()}


def make(path: Path, columns: str = "id bigint, name string", **options: str) -> Table:
    """Table `db.t` in a catalog of its own. `key` and `parts` name columns; in options "__" is a dot and "_" a dash."""
    key, parts = options.pop("key", ""), options.pop("parts", "")
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    fields = pa.schema([(name, TYPES[kind]) for name, kind in (c.split() for c in columns.split(", "))])
    return new_catalog(path).create_table(
        "db.t", fields, primary_key=key.split(), partition_keys=parts.split(), options=given
    )


def threads(_what: str) -> TaskRunner:
    return TaskThreads(2)


def rows_of(table: Table) -> Rows:
    found: Rows = table.refresh().scan().to_arrow().to_pylist()
    return sorted(found, key=str)


def batch(rows: Rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows)


def write_in_lanes(table: Table, tasks: Sequence[Sequence[Rows]]) -> list[CommitMessage]:
    """What tasks write at the same time, each its own batches."""
    messages = []
    for index, batches in enumerate(tasks):
        with new_write(table.context, WriterShard(index, len(tasks))) as write:
            for rows in batches:
                write.write(batch(rows))
            messages += write.prepare_commit()
    return messages
