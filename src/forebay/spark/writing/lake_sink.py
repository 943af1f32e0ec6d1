"""Writing through the format "forebay-paimon": `df.write`, and the part that `df.writeStream` shares with it.

Tasks run as they do for tables of a catalog. But Spark commits in a Python process without a session. So compaction and
`precommit-compact` run in threads of that process, and the commit waits for them. Rows cannot be shuffled before they
are written, so every task may write every bucket. In tables with dynamic buckets one task must assign all keys, so they
are written only through a catalog, or from data with one partition.

When Spark aborts a write, the writer cannot know whether a commit was attempted, so it deletes nothing.
`remove_orphan_files` finds the files that no snapshot names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from forebay.base.errors import UnsupportedOperation
from forebay.paimon.compact.running import TaskRunner, TaskThreads
from forebay.paimon.table import Table
from forebay.paimon.write.bucketing import UNAWARE
from forebay.spark.lake_options import LakeWriteOptions, dynamic_overwrite, with_write_options, write_options
from forebay.spark.workers import short_errors
from forebay.spark.writing.committing import Overwrite, commit_batch
from forebay.spark.writing.lake_write import Incoming, LakeWriteFunction, WrittenFiles, messages_of


class Sink:
    """A write to `table` that Spark passes between processes. With `overwrite` it replaces the existing rows."""

    def __init__(
        self, name: str, table: Table, options: Mapping[str, str], schema: StructType, overwrite: bool
    ) -> None:
        self._name, self._proxied = name, table
        self._options: LakeWriteOptions = write_options(name, table, options)
        self._table = with_write_options(table, self._options)
        with short_errors(f"writing to table {name}"):
            Incoming(self._table.schema, schema.names)
        self._overwrite = None
        if overwrite:
            self._overwrite = Overwrite(dynamic=dynamic_overwrite(self._options, self._table))
        # Spark hands over the pickled writer, and a table would be reopened under the schema of that time.
        self._function = LakeWriteFunction(self._table.context, name, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task; called in its process."""
        return self._function.write(iterator)

    def written(self, messages: Iterable[Any]) -> list[WrittenFiles]:
        """The files written by the tasks. Raises `UnsupportedOperation` if several assigned dynamic buckets."""
        written = [m for m in messages if isinstance(m, WrittenFiles)]
        table = self._table
        if (
            table.schema.has_primary_key
            and table.context.options.bucket == UNAWARE
            and sum(bool(w.rows) for w in written) > 1
        ):
            table.new_commit().abort(messages_of(written))
            raise UnsupportedOperation(
                f"writing to table {self._name}: it has dynamic buckets, whose keys one task must assign; write it "
                "through a catalog (forebay.spark.attach), or coalesce the data to one partition"
            )
        return written


class PaimonSink(Sink, DataSourceArrowWriter):
    """`df.write.format("forebay-paimon")`: one commit."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with short_errors(f"writing to table {self._name}"):
            files = messages_of(self.written(messages))
            commit_batch(self._table, files, self._overwrite, threads, self._options.transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the commit may have succeeded."""


def threads(_what: str) -> TaskRunner:
    return TaskThreads()
