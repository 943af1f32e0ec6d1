"""`table.changes()`: the changes of a lake table, with the interface of a live one and an optional end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.changes import CHANGE_TYPE_COLUMN, CHANGE_TYPES, INSERT
from forebay.api.scan import ArrowStream
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.markup import abbreviated
from forebay.base.quantity import Span, moment_ms, span_ms
from forebay.codec.arrow.small_arrays import text_array
from forebay.metadata.predicate import Predicate
from forebay.paimon.read.batch_modes import SCAN_OPTIONS, chooses_snapshot
from forebay.paimon.read.change_planner import ChangeSplit
from forebay.paimon.read.change_reader import KINDS, ROW_KIND
from forebay.paimon.read.facade import open_stream
from forebay.paimon.read.table_stream import TableStream
from forebay.paimon.store.context import TableContext

EARLIEST, LATEST, FULL = "earliest", "latest", "full"

ChangesStart: TypeAlias = str | int | dt.datetime | Mapping[str, Any]
"""Where changes start: "earliest", "latest", "full", a snapshot id, a time, or a `position`."""

_MODES = {EARLIEST: {"scan.mode": "from-snapshot-full", "scan.snapshot-id": "0"}, LATEST: {"scan.mode": "latest"}}
_MODES[FULL] = {"scan.mode": "latest-full"}
_TYPE = pa.dictionary(pa.int8(), pa.string())
_WORDS = text_array(*CHANGE_TYPES)


def open_changes(
    table: TableContext,
    name: str,
    start: ChangesStart,
    stop: str | dt.datetime | None,
    *,
    columns: Sequence[str] | None,
    predicate: Predicate | None,
    include: Sequence[str],
    buckets: Sequence[int] | None,
    timeout: Span | None,
) -> LakeChanges:
    """A reader of changes; see `Table.changes`."""
    if set(include) - {"change_type"}:
        raise UnsupportedOperation(
            f"include={list(include)}: of changes in a lake there is 'change_type' only; a lake has no offsets"
        )
    if CHANGE_TYPE_COLUMN in table.schema.names and include:
        raise InvalidRequest(f"table {name} has a column '{CHANGE_TYPE_COLUMN}' of its own; read with include=()")
    state, began = (start, table) if isinstance(start, Mapping) else (None, _beginning(table, start))
    end = None if stop is None else _End(table, stop)
    stream = open_stream(
        began, columns=columns, predicate=predicate, buckets=buckets, state=state,
        accept=None if end is None else end.accepts,
    )  # fmt: skip
    seconds = None if timeout is None else span_ms(timeout, "timeout") / 1000
    return LakeChanges(stream, name, bool(include), end, table, seconds)


def _beginning(table: TableContext, start: Any) -> TableContext:
    """The table with the scan options for `start`. The table's own scan options override "earliest", the default."""
    if start == EARLIEST and chooses_snapshot(table.options):
        return table
    if isinstance(start, str) and start in _MODES:
        scan_options = _MODES[start]
    elif isinstance(start, int) and not isinstance(start, bool):
        scan_options = {"scan.mode": "from-snapshot", "scan.snapshot-id": str(start)}
    elif isinstance(start, str | dt.datetime):
        scan_options = {"scan.mode": "from-timestamp", "scan.timestamp-millis": str(_moment(start, "start"))}
    else:
        raise InvalidRequest(
            f"start={start!r} is no place to begin: give 'earliest', 'latest', 'full', a snapshot's number, a datetime "
            "or ISO text, or the position of other changes"
        )
    others = {key: value for key, value in table.options.mapping.items() if key not in SCAN_OPTIONS}
    return table.with_schema(table.schema.with_options({**others, **scan_options}))


def _moment(value: str | dt.datetime, what: str) -> int:
    try:
        return moment_ms(value, what)
    except InvalidRequest as e:
        words = "'earliest', 'latest', 'full'" if what == "start" else "'latest'"
        raise InvalidRequest(f"{what}={value!r} is none of {words}, nor a time: {e.message}") from e


class _End:
    """The end of a read: the current end, or a time (exclusive)."""

    def __init__(self, table: TableContext, stop: Any) -> None:
        self._snapshots, self._clock = table.snapshots, table.clock
        self._last = self._moment = None
        if isinstance(stop, str) and stop == LATEST:
            self._last = self._snapshots.latest_id() or 0
        elif isinstance(stop, str | dt.datetime):
            self._moment = _moment(stop, "stop")
        else:
            raise InvalidRequest(f"stop={stop!r} is no place to end: give None, 'latest', a datetime or ISO text")

    def accepts(self, place: int, split: ChangeSplit) -> bool:
        """Whether a split is before the end."""
        if self._last is not None:
            return split.snapshot_id <= self._last
        snapshot = self._snapshots.find(split.snapshot_id)
        return snapshot is None or snapshot.time_millis < (self._moment or 0)

    @property
    def is_reached(self) -> bool:
        """Whether all changes before the end have been read, given that there is nothing new."""
        return self._moment is None or self._clock.now_ms() >= self._moment


class LakeChanges(ArrowStream):
    """Changes of a lake table: iterate over them, or call `poll`; with an end, also `to_arrow()` and `to_pandas()`.

    The first column, `_change_type`, is insert, update_before, update_after or delete. Not thread-safe.
    """

    def __init__(
        self,
        stream: TableStream,
        name: str,
        has_type: bool,
        end: _End | None,
        table: TableContext,
        timeout: float | None,
    ) -> None:
        self._stream, self._name, self._end, self._timeout = stream, name, end, timeout
        self._clock, self._interval = table.clock, table.options.continuous_discovery_interval_ms / 1000
        self._has_type = has_type
        rows = stream.schema.remove(stream.schema.get_field_index(ROW_KIND))
        kind = pa.field(CHANGE_TYPE_COLUMN, _TYPE, nullable=False)
        self.schema: pa.Schema = pa.schema([kind, *rows]) if has_type else rows
        self._is_closed = self._is_caught_up = False

    @property
    def position(self) -> dict[str, Any]:
        """The position after the returned batches, as JSON values. Pass it as `start` to continue from there."""
        return self._stream.state()

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot of the last batch."""
        return self._stream.snapshot_id

    @property
    def finished(self) -> bool:
        """Whether all changes up to the end have been returned."""
        return self._is_closed or self._stream.finished or self._is_caught_up

    def poll(self, timeout: Span = 0.0) -> pa.RecordBatch | None:
        """The next changes, after waiting at most `timeout`; None if there were none, or at the end."""
        deadline = self._clock.monotonic() + span_ms(timeout, "timeout") / 1000
        while not self.finished:
            batch = self._stream.poll()
            if batch is not None:
                return self._in_words(batch)
            if self._end is not None and self._end.is_reached:
                self._is_caught_up = True
                break
            remaining_s = deadline - self._clock.monotonic()
            if remaining_s <= 0 or self._stream.finished:
                break
            self._clock.sleep(min(remaining_s, self._interval))
        return None

    def _in_words(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.drop_columns([ROW_KIND])
        if not self._has_type:
            return rows
        if self._stream.is_full:
            codes = pa.repeat(pa.scalar(CHANGE_TYPES.index(INSERT), pa.int8()), len(batch))
        else:
            codes = pc.index_in(batch.column(ROW_KIND), value_set=KINDS).cast(pa.int8())
        kinds = pa.DictionaryArray.from_arrays(codes, _WORDS)
        return pa.RecordBatch.from_arrays([kinds, *rows.columns], schema=self.schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        began = self._clock.monotonic()
        while not self.finished:
            remaining_s = None if self._timeout is None else began + self._timeout - self._clock.monotonic()
            batch = self.poll(self._interval if remaining_s is None else max(0.0, min(remaining_s, self._interval)))
            if batch is not None:
                return batch
            if remaining_s is not None and remaining_s <= 0:
                break
        raise StopIteration

    # -- with an end --------------------------------------------------------------------------------------------------

    def reader(self) -> pa.RecordBatchReader:
        """The changes up to the end as a `pa.RecordBatchReader`. Raises `InvalidRequest` if there is no end."""
        if self._end is None and self._timeout is None:
            raise InvalidRequest(
                f"the changes of table {self._name} have no end: give stop='latest' or a time, or iterate over them"
            )
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All changes up to the end as a pyarrow table. Raises `InvalidRequest` if there is no end."""
        return self.reader().read_all()

    def to_pandas(self, **options: Any) -> Any:
        """All changes up to the end as a `pandas.DataFrame`; `options` are those of `pyarrow.Table.to_pandas`."""
        return self.to_arrow().to_pandas(**options)

    def close(self) -> None:
        """Stop reading. Later reads return nothing."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "at the end" if self.finished else f"at snapshot {self.snapshot_id}"
        return f"<forebay.LakeChanges of lake table {self._name}, columns {abbreviated(self.schema.names)}, {state}>"
