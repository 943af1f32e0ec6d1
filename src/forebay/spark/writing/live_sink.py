"""Writing through the format "forebay" with `df.write`: one transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from forebay.spark.workers import short_errors
from forebay.spark.writing.live_write import Replaced, WriteFunction


class ForebayWriter(DataSourceArrowWriter):
    """Writes the rows of each task: tasks stage them, and the driver commits."""

    def __init__(self, function: WriteFunction, replaced: Replaced | None) -> None:
        self._function, self._replaced = function, replaced

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._function.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._function.staged is not None:
            with short_errors(f"writing to table {self._function.info.path}"):
                self._function.staged.commit(messages, self._function.info, self._replaced)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._function.staged is not None:
            self._function.staged.abort()
