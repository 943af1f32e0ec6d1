"""How rows are dealt to the tasks that write a table.

| table | tasks |
|---|---|
| append table without buckets | those of the query, each with files of its own |
| the same, `partition.sink-strategy` = hash | rows of a partition together |
| fixed buckets, with or without primary key | rows with equal bucket keys together, in few tasks |
| dynamic buckets | one: keys have one assigner |

Spark can only shuffle by functions that run in the JVM, and Paimon's bucket function does not. So rows are shuffled by
the columns of the bucket key, and a bucket's rows are in each of the tasks, those with one key in one of them. All
versions of a key keep their order, and no task needs to know of another's (forebay.spark.writing.lake_write says how
sequence numbers stay apart). A commit has a file of each task and bucket, so tasks are few: `sink.parallelism`, or as
many as run at a time; `precommit-compact` puts the files together.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.base.errors import InvalidRequest
from forebay.paimon.table import Table
from forebay.paimon.write.bucketing import UNAWARE
from forebay.spark.lake_write_options import SINK_STRATEGY, sink_parallelism


@dataclass(frozen=True)
class Dealing:
    """Rows that agree in `columns` go to one task, of `tasks` (0: as Spark likes); without columns rows stay."""

    columns: tuple[str, ...] = ()
    tasks: int = 0


def dealing(table: Table, cores: int) -> Dealing:
    """How the rows of a write are dealt; `cores` is how many tasks run at a time."""
    schema = table.schema
    asked = sink_parallelism(table)
    buckets = table.context.options.bucket
    if buckets != UNAWARE:
        keys = tuple(dict.fromkeys((*schema.partition_keys, *schema.bucket_keys)))
        most = cores if schema.partition_keys else min(cores, buckets)
        return Dealing(keys, asked or most)
    if schema.has_primary_key:
        if (asked or 1) > 1:
            raise InvalidRequest(
                f"{table.name} has dynamic buckets, whose keys one task assigns: 'sink.parallelism' can only be 1"
            )
        return Dealing(tuple(schema.primary_keys), 1)
    strategy = schema.options.get(SINK_STRATEGY, "none").lower()
    if strategy not in ("none", "hash"):
        raise InvalidRequest(f"option '{SINK_STRATEGY}' is '{strategy}': write none or hash")
    if strategy == "hash" and schema.partition_keys:
        return Dealing(tuple(schema.partition_keys), asked or 0)
    return Dealing()
