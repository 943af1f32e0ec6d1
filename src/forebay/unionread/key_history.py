"""One key's changes in log and lake, who has its row now, and why.

A log record stands at its offset. A lake snapshot stands behind the records that it holds, where its row differs from
that of the snapshot before.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from forebay.api.texts import keys_of
from forebay.base.errors import ErrorCode, NotFound
from forebay.client.admin.admin import Admin
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from forebay.client.reading.key_filter import possible_buckets
from forebay.client.row_view import RowView
from forebay.client.table import Table
from forebay.metadata.predicate import Predicate, all_of, col
from forebay.metadata.table import TableBucket
from forebay.unionread.open_lakes import lake_of
from forebay.unionread.planning import readable_snapshot


@dataclass(frozen=True)
class KeyEvent:
    """A change: of the log at offset `position`, or of a lake snapshot that holds the log up to before it."""

    position: int
    where: str
    change: str
    offset: int | None = None
    time: dt.datetime | None = None
    snapshot_id: int | None = None
    row: Mapping[str, Any] | None = None

    @property
    def is_lake(self) -> bool:
        return self.snapshot_id is not None


def in_order(events: Iterable[KeyEvent]) -> list[KeyEvent]:
    """Events as they happened."""
    return sorted(events, key=lambda event: (event.position, not event.is_lake))


class KeyHistory:
    """The history of a key of a primary-key table, with the columns `columns` (None: all) of its rows."""

    def __init__(self, table: Table, key: str | Mapping[str, str], columns: list[str] | None = None) -> None:
        """Raises `InvalidRequest` for a key that is none of the table, `NotFound` if its partition is missing."""
        self._table = table = table.at_server
        self._keys = keys_of(str(table.path), table.arrow_schema, table.schema.primary_key, [key])
        self._key = key if isinstance(key, str) else ",".join(f"{name}={value}" for name, value in key.items())
        names = columns or list(table.schema.names)
        self._columns = [*names, *(name for name in self._keys.schema.names if name not in names)]
        self._predicate = self._condition()
        self.schema: pa.Schema = pa.schema([table.arrow_schema.field(name) for name in names])
        self.bucket = self._place()
        self.first = list_offsets(table.connection.cluster, table.info, [self.bucket], EARLIEST)[self.bucket]
        """The first offset that the log still has."""

    def _condition(self) -> Predicate:
        values = self._keys.to_pylist()[0]
        condition = all_of(col(name) == value for name, value in values.items())
        assert condition is not None
        return condition

    def _place(self) -> TableBucket:
        """The bucket of the key."""
        table, partitions = self._table, None
        if table.info.is_partitioned:
            values = self._keys.to_pylist()[0]
            partitions = [{name: values[name] for name in table.info.descriptor.partition_keys}]
        possible = possible_buckets(RowView(table.info, (), self._predicate), table.buckets(partitions))
        if not possible:
            raise NotFound(f"table {table.path} has no partition for key {self._key}")
        return possible[0]

    def end(self) -> int:
        """The offset behind the last record of the key's log."""
        return list_offsets(self._table.connection.cluster, self._table.info, [self.bucket], LATEST)[self.bucket]

    def log(
        self, start: int | None = None, stop: int | None = None, on_changes: Callable[[int], object] | None = None
    ) -> Iterator[KeyEvent]:
        """The changes in the log, from `start` (default: the first that is kept) to before `stop` (default: its end).

        `on_changes` is called with the number of changes found, as they arrive.
        """
        place: Any = "latest" if stop is None else stop
        with self._table.changes(
            {self.bucket: self.first if start is None else start}, {self.bucket: place},
            columns=self._columns, filter=self._predicate, include=("change_type", "offset", "timestamp"),
        ) as changes:  # fmt: skip
            for batch in changes:
                if on_changes is not None:
                    on_changes(batch.num_rows)
                for change in batch.to_pylist():
                    offset = change["_log_offset"]
                    yield KeyEvent(
                        offset, "log", change["_change_type"], offset, change["_commit_timestamp"], row=change
                    )

    def lake(self, count: int) -> Iterator[KeyEvent]:
        """Yield the versions of the key in the newest `count` lake snapshots, where they differ from the one before."""
        table = self._table
        if not table.info.lake_enabled:
            return
        source, admin = lake_of(table).create_source(table.info.path), Admin(table.connection)
        newest = list(islice(source.snapshots_until(table.connection.clock.now_ms()), count))
        before: Any = None
        position = 0
        for snapshot_id in reversed(newest):
            try:
                offsets = admin.lake_snapshot(table.info.path, snapshot_id).log_offsets
                position = offsets.get(self.bucket, position)
            except NotFound as e:  # of a compaction, which holds what the one before does
                if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                    raise
            rows = table.scan(self._columns, self._predicate, source="union", as_of=snapshot_id).to_arrow().to_pylist()
            row = rows[0] if rows else None
            if row != before:
                change = "has no row" if row is None else "has"
                yield KeyEvent(position, f"lake snapshot {snapshot_id}", change, snapshot_id=snapshot_id, row=row)
            before = row

    def row(self) -> Mapping[str, Any] | None:
        """The key's row now, as a lookup finds it."""
        rows = self._table.lookup(self._keys, missing="drop").to_pylist()
        return rows[0] if rows else None

    def why(self, events: Iterable[KeyEvent]) -> str:
        """Who has the key's row now, and why."""
        table, key = self._table, f"key {self._key}"
        row = self.row() is not None
        last = max((event.position for event in events if not event.is_lake), default=None)
        gone = "" if self.first == 0 else f" (the log begins at offset {self.first}; older changes have expired)"
        newest = "no record in the log" if last is None else f"its newest record is at offset {last} of the log"
        known = readable_snapshot(table)
        if known is None:
            lake = "the table has no lake" if not table.info.lake_enabled else "the lake has no readable snapshot yet"
            state = "the stream has the row" if row else "there is no row"
            return f"{key}: {state}: {newest}{gone}; {lake}"
        held = known.log_offsets.get(self.bucket, 0)
        lake = f"lake snapshot {known.snapshot_id} holds bucket {self.bucket.bucket} up to offset {held}"
        if last is not None and last >= held:
            state = "the stream overrides the lake" if row else "deleted in the stream, which overrides the lake"
        else:
            state = "the lake has the row" if row else "there is no row in lake or stream"
        return f"{key}: {state}: {newest}{gone}, and {lake}"
