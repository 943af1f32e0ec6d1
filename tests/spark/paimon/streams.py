"""A stream of a Paimon table without Spark: its reader is called like Spark calls it."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from forebay.paimon.table import Table
from forebay.spark.lake_datasource import PaimonDataSource
from forebay.spark.streaming.reader import StreamReader
from tests.spark.streams import Stream


class PaimonStream(Stream):
    """A query over a table at a path: `batch` runs one micro-batch, `restart` forgets all but the checkpoint."""

    def __init__(self, table: Table, side: str = "", **options: str) -> None:
        self._options = {"path": table.context.paths.root + side} | {
            key.replace("__", "-").replace("_", "."): value for key, value in options.items()
        }
        self.offset: dict[str, Any] | None = None
        self.restart()

    def restart(self, **options: str) -> None:
        self._options |= options
        self.reader = self._new_reader()
        if not isinstance(self.reader, StreamReader):
            self.reader.initialOffset()  # raises why there is no stream
        # Tasks get a reader of their own, and its state at the start of the query.
        self._of_tasks = pickle.loads(pickle.dumps(self._new_reader()))

    def _new_reader(self) -> DataSourceStreamReader:
        source = PaimonDataSource(self._options)
        return source.streamReader(source.schema())

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the next micro-batch."""
        return [row for batch in self.batch() for row in batch.to_pylist()]

    def rest(self) -> list[dict[str, Any]]:
        """The rows of all micro-batches until there is nothing new."""
        return [row for batches in self.batches() for batch in batches for row in batch.to_pylist()]
