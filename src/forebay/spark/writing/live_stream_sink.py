"""Writing through the format "forebay" with `df.writeStream`: every micro-batch once. Needs Spark 4.1."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from forebay.spark.workers import short_errors
from forebay.spark.writing.live_write import Replaced, WriteFunction, abort_batch, commit_batch


class ForebayStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("forebay")`: one transaction for each micro-batch."""

    def __init__(self, function: WriteFunction, replaced: Replaced | None) -> None:
        self._function, self._replaced = function, replaced

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._function.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        function = self._function
        with short_errors(f"writing to table {function.info.path}"):
            commit_batch(function.settings, function.info, batchId, messages, self._replaced)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what finished tasks have staged."""
        abort_batch(self._function.settings, batchId, messages)
