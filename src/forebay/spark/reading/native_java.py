"""Java classes of our own (driver_java) for scans of Parquet files by forebay.spark.reading.native, compiled by Janino.

They stay on the driver. Two are subclasses of classes of Spark, which no proxy of ours can be (the relation and the
index of files). The others could be proxies; in Java they save calls between JVM and Python, of which planning makes
many.
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay.spark.jvm.gateway import JavaObject, Jvm
from forebay.unionread.overridden import gone


def relation(jvm: Jvm, sql_context: JavaObject, schema: JavaObject, rows: JavaObject) -> JavaObject:
    """A BaseRelation of the internal `rows`, an RDD."""
    return jvm.compiled("ForebayRelation")(sql_context, schema, rows)


def planned_table(jvm: Jvm, schema: JavaObject, scan: JavaObject) -> JavaObject:
    """A table that is one scan, which is there already: nothing can be pushed into it."""
    return jvm.compiled("ForebayPlannedTable")(schema, scan)


def task_scan(jvm: Jvm, schema: JavaObject, text: str, partitions: JavaObject, factory: JavaObject) -> JavaObject:
    """A scan that is nothing but its tasks: an InputPartition[], read by `factory`. `text` describes it to people."""
    return jvm.compiled("ForebayTasks")(schema, text, partitions, factory)


def file_index(jvm: Jvm, session: JavaObject, groups: Sequence[Sequence[str]], columns: JavaObject) -> JavaObject:
    """A PartitioningAwareFileIndex of local files, by their paths; no directory is listed.

    `columns`: none, or two of type INT that tell of each row the number of its group, and of its file in the group.
    Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) for a file that is gone.
    """
    names = "\0\0".join("\0".join(group) for group in groups)  # one string, as every string is a call
    index = jvm.compiled("ForebayFiles")(session, names, columns)
    missing = index.missing()
    if missing is not None:
        raise gone(missing)
    return index


def compile_all(jvm: Jvm) -> None:
    """Compile what is not yet. Raises `UnsupportedOperation` where Spark looks different from what we know."""
    for name in ("ForebayRelation", "ForebayPlannedTable", "ForebayTasks", "ForebayFiles"):
        jvm.compiled(name)
