"""Writing through the format "forebay-paimon" with `df.writeStream`: every micro-batch once. Needs Spark 4.1."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from forebay.base.errors import InternalError
from forebay.spark.workers import short_errors
from forebay.spark.writing.lake_sink import Sink, threads
from forebay.spark.writing.lake_write import messages_of
from forebay.spark.writing.stream_commits import Epoch, StreamCommits

_commits: dict[tuple[str, str, str], StreamCommits] = {}
"""The commits of each query by table and query id. Spark makes a new writer for every micro-batch in this process."""


class PaimonStreamSink(Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("forebay-paimon")`: one commit for each micro-batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the files of a micro-batch, unless it is committed already."""
        with short_errors(f"writing to table {self._name}"):
            written = self.written(messages)
            if not written:
                return
            query = written[0].query
            if query is None:
                raise InternalError(f"Spark did not tell tasks which query writes to {self._name}")
            rows = sum(w.rows for w in written)
            self._commits_of(query).commit(Epoch(batchId, messages_of(written), rows, self._overwrite))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the commit may have succeeded (forebay.spark.writing.lake_sink)."""

    def _commits_of(self, query: str) -> StreamCommits:
        key = (self._table.context.paths.root, self._table.context.paths.branch, query)
        if key not in _commits:
            _commits[key] = StreamCommits(
                self._name, self._table, query, self._options, threads, lambda: True, 1, self._table, beside=False
            )
        return _commits[key]
