"""A stream without Spark: its reader is called like Spark calls it, and every value goes through JSON or pickle."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from forebay.client.connection import Connection
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.client.table import Table
from forebay.spark.datasource import ForebayDataSource
from forebay.spark.streaming.reader import StreamReader
from tests.spark.tables import ids_of, rows

Offset = dict[str, Any]


class Stream:
    """A query: `batch` runs one micro-batch, `restart` forgets all but the checkpoint."""

    def __init__(self, connection: Connection, table: Table | str, **options: str) -> None:
        address = connection.settings.bootstrap_servers[0]
        name = table if isinstance(table, str) else str(table.path)
        self._options = {"bootstrap.servers": f"{address.host}:{address.port}", "table": name} | {
            key.replace("__", "-").replace("_", "."): value for key, value in options.items()
        }
        self.offset: Offset | None = None
        self.restart()

    def restart(self) -> None:
        source = ForebayDataSource(self._options)
        self.reader = source.streamReader(source.schema())
        if not isinstance(self.reader, StreamReader):
            self.reader.initialOffset()  # raises why there is no stream
        # Tasks get a reader of their own, and its state at the start of the query.
        self._of_tasks = pickle.loads(pickle.dumps(source.streamReader(source.schema())))

    @property
    def start(self) -> Offset:
        return through_json(self.reader.initialOffset()) if self.offset is None else self.offset

    def plan(self, limit: Any = None) -> tuple[Offset, Offset]:
        start = self.start
        return start, through_json(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))

    def read(self, start: Offset, end: Offset) -> list[pa.RecordBatch]:
        tasks = [pickle.loads(pickle.dumps(task)) for task in self.reader.partitions(start, end)]
        return [batch for task in tasks for batch in self._of_tasks.read(task)]

    def batch(self, limit: Any = None) -> list[pa.RecordBatch]:
        start, end = self.plan(limit)
        found = self.read(start, end)
        self.offset = end
        self.reader.commit(end)
        return found

    def batches(self) -> Iterator[list[pa.RecordBatch]]:
        """Batch after batch, until there is nothing new."""
        while True:
            start, end = self.plan()
            if end == start:
                return
            yield self.batch()

    def ids(self) -> list[int]:
        return ids_of(self.batch())


def through_json(offset: Offset) -> Offset:
    moved: Offset = json.loads(json.dumps(offset))
    return moved


def changes(batches: list[pa.RecordBatch]) -> list[tuple[str, int, str]]:
    return [(row["_change_type"], row["id"], row["name"]) for batch in batches for row in batch.to_pylist()]


def named(start: int, stop: int, name: str) -> list[dict[str, Any]]:
    return [{**row, "name": name} for row in rows(start, stop).to_pylist()]


def release(connection: Connection, table: Table, snapshot_id: str) -> None:
    TableSnapshot(connection, table.info, snapshot_id, dict.fromkeys(table.buckets(), 0), {}).release()
