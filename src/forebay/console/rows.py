"""Rows of a table: a look into its log from any place, its current rows, what is written now, and one key's history."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.changes import BUCKET_COLUMN, CHANGE_TYPE_COLUMN, COMMIT_TIMESTAMP_COLUMN, LOG_OFFSET_COLUMN
from forebay.api.filters import as_predicate
from forebay.api.text_table import interval_text, plain, values_of
from forebay.base.errors import InvalidRequest
from forebay.base.threads import Future
from forebay.client.table import Table
from forebay.codec.arrow.arrow_types import sql_name
from forebay.console.session import TAILS_MAX, Console, check_limit
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket
from forebay.unionread.key_history import KeyEvent, KeyHistory, in_order

_SECONDS_MAX = 8.0
"""How long a page of rows is searched for; then what was found is shown, and the next page goes on from there."""

_FIRST_SECONDS_MAX = 30.0
"""How long the first part may take, without which there would be no progress."""

_WINDOW_ROWS_MAX = 200_000
_FIRST_WINDOW_ROWS = 20_000
_KEY_WINDOW_ROWS_MAX = 1_000_000
_TEXT_MAX = 2000
_SAFE_INTEGER = (1 << 53) - 1
"""JavaScript's numbers are exact up to this."""

_INCLUDED = ("change_type", "offset", "timestamp", "bucket")
_PLACE = "place"

# ---- cells ----------------------------------------------------------------------------------------------------------


def columns_of(schema: pa.Schema) -> list[dict[str, Any]]:
    """The columns of rows for a page."""
    return [{"name": f.name, "type": sql_name(f.type), "numeric": _is_numeric(f.type)} for f in schema]


def _is_numeric(data_type: pa.DataType) -> bool:
    return any(test(data_type) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def rows_of(table: pa.Table) -> list[list[Any]]:
    """Rows as lists of cells: null, true, false, numbers that JavaScript has exactly, and text."""
    columns = [_cells(column.combine_chunks()) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(table.num_rows)]


def _cells(column: pa.Array) -> list[Any]:
    data_type = column.type
    has_text = pa.types.is_temporal(data_type) and not pa.types.is_interval(data_type)
    if has_text or (pa.types.is_dictionary(data_type) and not pa.types.is_nested(data_type.value_type)):
        column = column.cast(pa.string())
    return [cell(value) for value in values_of(column)]


def cell(value: Any) -> Any:
    """One value for a page."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _short(value)
    if isinstance(value, bytes):
        return (
            value.hex() if len(value) <= _TEXT_MAX // 2 else f"{value[: _TEXT_MAX // 2].hex()}… ({len(value):,} bytes)"
        )
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, pa.MonthDayNano):
        return interval_text(value)
    return _short(json.dumps(value, default=plain, ensure_ascii=False))


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}… ({len(text):,} characters)"


# ---- a look into a log ----------------------------------------------------------------------------------------------

PLACES = ("end", "start", "offset", "time", "current")


def peek(
    console: Console,
    database: str,
    name: str,
    *,
    place: str = "end",
    bucket: int | None = None,
    partition: str | None = None,
    offset: int | None = None,
    time: str | None = None,
    filter: str | None = None,  # noqa: A002 - the word of Table.scan
    columns: str | None = None,
    page_token: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """Rows of a table. `place` is the log's "end" (the newest first), its "start", an "offset" of a bucket, a "time"
    (ISO 8601), or "current": the rows of lake and stream that there are now, in no order.

    A filter reads until `limit` rows are found, or for some seconds; `next` goes on from there. Each page is in order
    of time. Pages of a filter may overlap in time, because it looks as far back in busy buckets as in others; no row is
    left out.
    """
    check_limit(limit)
    if place not in PLACES:
        raise InvalidRequest(f"place={place!r} is not one of {', '.join(PLACES)}")
    table = console.conn.table(f"{database}.{name}")
    predicate = as_predicate(filter or None, table.arrow_schema)
    names = [column.strip() for column in columns.split(",")] if columns else None
    if place == "current":
        return _current(console, table, predicate, names, limit, partition)
    if page_token:
        log = console.cursor(page_token)
        if not isinstance(log, _Log) or log.table.info.table_id != table.info.table_id:
            raise InvalidRequest("this page belongs to another table: start again from the first page")
        log = replace(log, table=table, columns=names, predicate=predicate)
    else:
        log = _Log.at(console, table, place, bucket, partition, offset, time, predicate, names)
    return log.page(console, limit)


def _current(
    console: Console,
    table: Table,
    predicate: Predicate | None,
    names: list[str] | None,
    limit: int,
    partition: str | None,
) -> dict[str, Any]:
    """Current rows, part after part until there are enough, or the time is over."""
    began = console.clock.monotonic()
    scan = table.scan(
        names, predicate, limit, source="union" if table.info.lake_enabled else "live", partitions=partition or None
    )
    splits, batches, parts = scan.plan(), list[pa.RecordBatch](), 0
    for split in splits:
        with scan.read_split(split) as reader:
            batches += list(reader)
        parts += 1
        if sum(batch.num_rows for batch in batches) >= limit or console.clock.monotonic() - began > _SECONDS_MAX:
            break
    rows = pa.Table.from_batches(batches, scan.schema).slice(0, limit)
    return {
        "columns": columns_of(scan.schema),
        "rows": rows_of(rows),
        "next": None,
        "complete": parts == len(splits) and rows.num_rows < limit,
        "searched": None,
        "parts": [parts, len(splits)],
    }


@dataclass
class _Log:
    """A place in the logs of a table's buckets, and the direction in which it is read.

    `edges` is where the next page begins: the first offset to read, or backwards the one behind the last; `origins` is
    where the first page began.
    """

    table: Table
    buckets: list[TableBucket]
    starts: Mapping[TableBucket, int]
    ends: Mapping[TableBucket, int]
    origins: Mapping[TableBucket, int]
    edges: dict[TableBucket, int]
    backwards: bool
    predicate: Predicate | None = None
    columns: list[str] | None = None
    names: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def at(
        cls,
        console: Console,
        table: Table,
        place: str,
        bucket: int | None,
        partition: str | None,
        offset: int | None,
        time: str | None,
        predicate: Predicate | None,
        columns: list[str] | None,
    ) -> _Log:
        info = table.info
        buckets = table.buckets(partition or None)
        if bucket is not None:
            buckets = [each for each in buckets if each.bucket == bucket]
            if not buckets:
                raise InvalidRequest(
                    f"table {table.path} has no bucket {bucket}; its buckets are 0 to {info.bucket_count - 1}"
                )
        list_offsets = partial(console.conn.admin.list_offsets, info, buckets=buckets)
        starts, ends = list_offsets("earliest"), list_offsets("latest")
        if place == "offset":
            if offset is None or len(buckets) != 1:
                raise InvalidRequest("an offset is one of a bucket: give the bucket, the offset, and the partition")
            edges = {buckets[0]: min(max(offset, starts[buckets[0]]), ends[buckets[0]])}
        elif place == "time":
            if not time:
                raise InvalidRequest("give the time to begin at, such as 2026-01-31T12:00Z")
            edges = list_offsets(time)
        else:
            edges = dict(ends if place == "end" else starts)
        names = {each.partition_id: each.name for each in table.partitions()} if info.is_partitioned else {}
        return cls(table, buckets, starts, ends, edges, dict(edges), place == "end", predicate, columns, names=names)

    def page(self, console: Console, limit: int) -> dict[str, Any]:
        began = console.clock.monotonic()
        deadline = began + _SECONDS_MAX
        span = max(1, min(limit, _FIRST_WINDOW_ROWS // max(len(self.buckets), 1)))
        parts, edges = list[pa.Table](), dict(self.edges)
        remaining = limit
        while remaining > 0 and not self._is_over(edges) and console.clock.monotonic() < deadline:
            windows = {bucket: self._window(bucket, edges[bucket], span) for bucket in self.buckets}
            windows = {bucket: (first, stop) for bucket, (first, stop) in windows.items() if first < stop}
            rows = self._read(console, windows, deadline if parts else began + _FIRST_SECONDS_MAX)
            if rows is None:
                break
            parts.append(rows)
            remaining -= rows.num_rows
            for bucket, (first, stop) in windows.items():
                edges[bucket] = first if self.backwards else stop
            span = min(span * 4, max(_WINDOW_ROWS_MAX // max(len(self.buckets), 1), 1))
        schema = self._schema()
        rows = pa.concat_tables(parts) if parts else schema.empty_table()
        rows, edges = self._cut(rows, edges, limit)
        is_over = self._is_over(edges)
        searched = sum(abs(edge - self.origins[bucket]) for bucket, edge in edges.items())
        return {
            "columns": columns_of(self._with_short_names(rows.slice(0, 0)).schema),
            "rows": rows_of(self._with_short_names(rows)),
            "next": None if is_over else console.new_cursor(replace(self, edges=edges)),
            "complete": is_over,
            "searched": searched,
            "parts": None,
        }

    def _is_over(self, edges: Mapping[TableBucket, int]) -> bool:
        bounds = self.starts if self.backwards else self.ends
        return all(edges[b] <= bounds[b] if self.backwards else edges[b] >= bounds[b] for b in self.buckets)

    def _window(self, bucket: TableBucket, edge: int, span: int) -> tuple[int, int]:
        if self.backwards:
            return max(edge - span, self.starts[bucket]), edge
        return edge, min(edge + span, self.ends[bucket])

    def _read(
        self, console: Console, windows: Mapping[TableBucket, tuple[int, int]], deadline: float
    ) -> pa.Table | None:
        """All rows of ranges of offsets that match; None if the time is over before."""
        batches = []
        with self.table.changes(
            {bucket: first for bucket, (first, _) in windows.items()},
            {bucket: stop for bucket, (_, stop) in windows.items()},
            columns=self.columns, filter=self.predicate, include=_INCLUDED,
        ) as reader:  # fmt: skip
            while not reader.finished:
                batch = reader.poll(0.2)
                if batch is not None:
                    place = self.buckets.index(reader.last_bucket) if reader.last_bucket is not None else 0
                    batches.append(batch.append_column(_PLACE, pa.array([place] * batch.num_rows, pa.int32())))
                if console.clock.monotonic() > deadline:
                    return None
        return pa.Table.from_batches(batches, self._schema())

    def _schema(self) -> pa.Schema:
        with self.table.changes({}, {}, columns=self.columns, include=_INCLUDED) as reader:
            return reader.schema.append(pa.field(_PLACE, pa.int32()))

    def _cut(
        self, rows: pa.Table, edges: dict[TableBucket, int], limit: int
    ) -> tuple[pa.Table, dict[TableBucket, int]]:
        """The `limit` rows of a page in order of time, and where the next one begins so that no other row is lost."""
        keys = [(COMMIT_TIMESTAMP_COLUMN, "ascending"), (_PLACE, "ascending"), (LOG_OFFSET_COLUMN, "ascending")]
        order = rows.take(pc.sort_indices(rows, keys))
        if self.backwards:
            order = order.take(pa.array(range(order.num_rows - 1, -1, -1), pa.int64()))
        rest = order.slice(limit)
        for place, offset in zip(rest[_PLACE].to_pylist(), rest[LOG_OFFSET_COLUMN].to_pylist(), strict=True):
            bucket = self.buckets[place]
            edges[bucket] = max(edges[bucket], offset + 1) if self.backwards else min(edges[bucket], offset)
        return order.slice(0, limit), edges

    def _with_short_names(self, rows: pa.Table) -> pa.Table:
        """Rows with short names for what precedes them: change, offset, time, bucket, partition."""
        places = rows[_PLACE].to_pylist()
        columns = {"offset": rows[LOG_OFFSET_COLUMN], "time": rows[COMMIT_TIMESTAMP_COLUMN]}
        if self.table.info.bucket_count > 1:
            columns["bucket"] = rows[BUCKET_COLUMN]
        if self.table.info.is_partitioned:
            texts = [self.names.get(self.buckets[place].partition_id or 0) for place in places]
            columns["partition"] = pa.array(texts, pa.string())
        if self.table.has_primary_key:
            columns = {"change": rows[CHANGE_TYPE_COLUMN], **columns}
        own = [name for name in rows.schema.names if name not in (*_METADATA_COLUMNS, _PLACE)]
        values = [*columns.values(), *(rows[name] for name in own)]
        return pa.Table.from_arrays(values, [*(f"_{name}" for name in columns), *own])


_METADATA_COLUMNS = (CHANGE_TYPE_COLUMN, LOG_OFFSET_COLUMN, COMMIT_TIMESTAMP_COLUMN, BUCKET_COLUMN)

# ---- a live tail ----------------------------------------------------------------------------------------------------

_TAIL_ROWS_MAX = 200
_TAIL_SECONDS = 0.5
_BEHIND_ROWS = 100_000


class LiveTail:
    """The rows that are written to a table from now on. It holds no more rows than one answer has; what comes faster is
    counted, and a tail that falls behind continues at the end.
    """

    def __init__(
        self,
        console: Console,
        database: str,
        name: str,
        *,
        filter: str | None = None,  # noqa: A002 - the word of Table.scan
    ) -> None:
        """Raises `LimitExceeded` if there are too many tails already."""
        self._console = console
        self._room = ExitStack()
        with ExitStack() as room:
            room.enter_context(console.room("live tails", TAILS_MAX))
            self._table = console.conn.table(f"{database}.{name}")
            self._predicate = as_predicate(filter or None, self._table.arrow_schema)
            self._reader = self._open_reader()
            self._room = room.pop_all()

    def _open_reader(self) -> Any:
        return self._table.changes("latest", filter=self._predicate, include=_INCLUDED)

    @property
    def columns(self) -> list[dict[str, Any]]:
        return columns_of(self._with_names(self._reader.schema.empty_table()).schema)

    def submit(self) -> Future[dict[str, Any]]:
        """Have a thread for tails call `next`."""
        return self._console.submit_tail(self.next)

    def next(self) -> dict[str, Any]:
        """The rows of the next moment, the newest last, and how many older ones are left out."""
        clock = self._console.clock
        until = clock.monotonic() + _TAIL_SECONDS
        batches: list[pa.RecordBatch] = []
        count = 0
        while (remaining := until - clock.monotonic()) > 0:
            batch = self._reader.poll(remaining)
            if batch is None:
                continue
            count += batch.num_rows
            batches.append(batch.slice(max(batch.num_rows - _TAIL_ROWS_MAX, 0)))
            while len(batches) > 1 and sum(each.num_rows for each in batches[1:]) >= _TAIL_ROWS_MAX:
                batches.pop(0)
        if count > _BEHIND_ROWS:
            before = sum(self._reader.position.values())
            self._reader.close()
            self._reader = self._open_reader()
            count += max(sum(self._reader.position.values()) - before, 0)
        rows = pa.Table.from_batches(batches, self._reader.schema)
        rows = rows.slice(max(rows.num_rows - _TAIL_ROWS_MAX, 0))
        return {"rows": rows_of(self._with_names(rows)), "skipped": count - rows.num_rows}

    def _with_names(self, rows: pa.Table) -> pa.Table:
        short = dict(zip(_METADATA_COLUMNS, ("_change", "_offset", "_time", "_bucket"), strict=True))
        rows = rows.rename_columns([short.get(name, name) for name in rows.schema.names])
        return rows if self._table.has_primary_key else rows.drop_columns(["_change"])

    def end(self) -> None:
        """Close its reader. Idempotent."""
        self._reader.close()
        self._room.close()


# ---- one key --------------------------------------------------------------------------------------------------------

_EVENTS_MAX = 500


def key(
    console: Console, database: str, name: str, *, key: str, snapshots: int = 20, page_token: str | None = None
) -> dict[str, Any]:
    """The history of a key (a JSON object: its columns' values as text): its newest changes, what lake snapshots have,
    who has its row now, and why.

    The log is searched backwards, for some seconds; `next` goes on from there.
    """
    table = console.conn.table(f"{database}.{name}")
    if not table.has_primary_key:
        raise InvalidRequest(f"{table.path} is a log table and has no keys: read it with a filter")
    history = KeyHistory(table, _key_texts(key))
    end = int(console.cursor(page_token)) if page_token else history.end()
    events, first = _log_events(console, history, end)
    log_events = len(events)
    if not page_token:
        events += list(history.lake(min(snapshots, 100)))
    row = history.row()
    is_complete = first <= history.first
    names = {each.partition_id: each.name for each in table.partitions()} if table.info.is_partitioned else {}
    return {
        "columns": columns_of(history.schema),
        "events": [_event(history, event) for event in in_order(events)],
        "row": None if row is None else _row(history, row),
        "why": history.why(events) if not page_token and (log_events or is_complete) else None,
        "bucket": history.bucket.bucket,
        "partition": names.get(history.bucket.partition_id or 0),
        "log_start": history.first,
        "searched_from": first,
        "searched_to": end,
        "complete": is_complete,
        "next": None if is_complete else console.new_cursor(first),
    }


def _key_texts(key: str) -> dict[str, str]:
    try:
        texts = json.loads(key)
    except ValueError as e:
        raise InvalidRequest(f"key={key!r} is not a JSON object of column names and values") from e
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise InvalidRequest(f"key={key!r} is not a JSON object of column names and text values")
    return texts


def _log_events(console: Console, history: KeyHistory, end: int) -> tuple[list[KeyEvent], int]:
    """The newest changes before offset `end`, and the offset from which all are among them."""
    deadline = console.clock.monotonic() + _SECONDS_MAX
    events: list[KeyEvent] = []
    first, span = end, _FIRST_WINDOW_ROWS
    while first > history.first and len(events) < _EVENTS_MAX and console.clock.monotonic() < deadline:
        stop, first = first, max(first - span, history.first)
        events += list(history.log(first, stop))
        span = min(span * 4, _KEY_WINDOW_ROWS_MAX)
    return events, first


def _event(history: KeyHistory, event: KeyEvent) -> dict[str, Any]:
    return {
        "where": "lake" if event.is_lake else "log",
        "snapshot_id": event.snapshot_id,
        "offset": event.offset,
        "position": event.position,
        "time": None if event.time is None else event.time.isoformat(timespec="milliseconds"),
        "change": event.change,
        "row": None if event.row is None else _row(history, event.row),
    }


def _row(history: KeyHistory, row: Mapping[str, Any]) -> list[Any]:
    values = {name: row.get(name) for name in history.schema.names}
    return rows_of(pa.Table.from_pylist([values], history.schema))[0]
