"""Writing rows through a buffer (`TableWriter`); `Table.append`, `upsert` and `delete` use `Sender.write`.

Nouns: an *operation* is append, upsert (possibly of some columns) or delete; a *segment* is a run of buffered rows of
one operation; *linger* (`client.writer.batch-timeout`) is how long buffered rows wait for more.

Rules: rows are written to each bucket in the order of the writer's calls. Arrow data is validated immediately; dicts
are collected first and validated together, at the latest when they leave the buffer. After a batch has failed, the next
call, `flush`, `close` and every later call raise its error: nothing is lost silently, and a writer that has lost rows
accepts no more.

Flow: rows -> codec.casting.batches -> segments -> (full, or lingered enough, or flush) -> forebay.client.writing.encode
-> accumulator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import pyarrow as pa

from forebay.api.data import Rows
from forebay.api.results import WriteResult
from forebay.base import threads
from forebay.base.completion import hidden_from_completion
from forebay.base.errors import ErrorCode, ForebayError, InternalError, InvalidRequest, Unavailable
from forebay.base.quantity import Span, span_seconds
from forebay.client.writing.accumulator import WriteTarget, WriteTracker
from forebay.client.writing.encode import (
    APPEND,
    CHANGES,
    DELETE,
    UPSERT,
    KeyedRows,
    MergeMode,
    WriteEncoder,
    upsert_operation,
)
from forebay.client.writing.sender import Sender
from forebay.codec.casting.batches import not_written

_DICT_ROWS_MAX = 1024
"""Rows written one at a time are collected up to this many before they are validated and encoded together."""

_DICT_ROW_BYTES_GUESS = 256
"""The assumed memory of a row that is not encoded yet."""


class _Segment:
    """A run of buffered rows of one operation: Arrow batches, then dicts that have not been validated."""

    __slots__ = ("batches", "names", "operation", "rows", "target")

    def __init__(self, operation: str, names: tuple[str, ...] | None, target: WriteTarget) -> None:
        self.operation = operation
        self.names = names
        self.target = target
        self.batches: list[pa.RecordBatch] = []
        self.rows: list[Mapping[str, Any]] = []


@hidden_from_completion("abort", "due_at", "finish", "hand_over")
class TableWriter:
    """A buffered writer. Use it in a `with` block, or call `close`. Thread-safe.

    After an exception inside the `with` block, rows that are still buffered are dropped (rows already sent are not
    undone).
    """

    def __init__(
        self,
        sender: Sender,
        encoder: WriteEncoder,
        columns: Sequence[str] | None = None,
        merge_mode: MergeMode = "default",
    ) -> None:
        """`columns` restricts upserts and deletes to these columns (partial update); `merge_mode` as in
        `Table.upsert`.
        """
        self._encoder = encoder
        self._merge_mode: MergeMode = merge_mode
        self._columns = columns
        self._plans: dict[str, tuple[tuple[str, ...] | None, WriteTarget]] = {}
        self._sender = sender
        self._clock = self._sender.cluster.clock
        settings = self._sender.cluster.settings
        self._linger: float = settings["client.writer.batch-timeout"]
        buckets = min(self._encoder.info.bucket_count, 8)
        self._full_bytes = min(
            self._encoder.batch_bytes * buckets, max(settings["client.writer.buffer.memory-size"] // 4, 1)
        )
        self._tracker = WriteTracker()
        self._lock = threads.lock()
        self._segments: list[_Segment] = []
        self._buffered_bytes = 0
        self._buffered_rows = 0
        self._is_reported = False
        self._closed = False
        self._process = os.getpid()
        self.due_at: float | None = None
        self._plan(APPEND if not self._encoder.info.has_primary_key else UPSERT)
        self._sender.watch(self)

    # ---- rows in ----------------------------------------------------------------------------------------------------

    def append(self, rows: Rows | Mapping[str, Any]) -> None:
        """Append rows to a log table: a dict, a list of dicts, or Arrow data as `Table.append` takes it.

        Raises the error of an earlier batch that failed.
        """
        self._write(APPEND, rows)

    def upsert(self, rows: Rows | Mapping[str, Any], *, missing: str = "error") -> None:
        """Insert or replace rows of a primary-key table. `rows` and errors are as in `append`, `missing` as in
        `Table.upsert`.
        """
        self._write(upsert_operation(missing), rows)

    def delete(self, keys: Any) -> None:
        """Delete rows by primary key. `keys` and errors are as in `append`."""
        self._write(DELETE, keys)

    def write_changes(self, rows: Rows) -> None:
        """Upsert and delete rows as `Table.write_changes` does. Errors are as in `append`."""
        self._write(CHANGES, rows)

    def _plan(self, operation: str) -> tuple[tuple[str, ...] | None, WriteTarget]:
        plan = self._plans.get(operation)
        if plan is None:
            plan = self._plans[operation] = self._encoder.columns_of(operation, self._columns, self._merge_mode)
        return plan

    def _write(self, operation: str, rows: Any) -> None:
        self._check_process()
        names, target = self._plan(operation)
        batches: list[pa.RecordBatch] = []
        if operation == CHANGES or not isinstance(rows, Mapping):
            batches = [batch for batch in self._encoder.batches(operation, rows, names) if batch.num_rows]
        with self._lock:
            self._check_usable()
            segment = self._segment(operation, names, target)
            if operation != CHANGES and isinstance(rows, Mapping):
                self._add_dict(segment, rows)
            for batch in batches:
                self._settle_dicts(segment)
                segment.batches.append(batch)
                self._buffered_bytes += batch.nbytes
                self._buffered_rows += batch.num_rows
                if self._buffered_bytes >= self._full_bytes:
                    self._hand_over(wait=True)
                    segment = self._segment(operation, names, target)
            self._after_write()

    def _segment(self, operation: str, names: tuple[str, ...] | None, target: WriteTarget) -> _Segment:
        if not self._segments or self._segments[-1].operation != operation:
            self._segments.append(_Segment(operation, names, target))
        return self._segments[-1]

    def _add_dict(self, segment: _Segment, row: Mapping[str, Any]) -> None:
        names = segment.names if segment.names is not None else self._encoder.info.schema.names
        unknown = [name for name in row if name not in names]
        schema = self._encoder.info.schema
        left_out = next((name for name in unknown if name in schema.names), None)
        if left_out is not None:
            raise InvalidRequest(f"table {self._encoder.info.path}: {not_written(left_out, schema, names)}")
        if unknown:
            raise InvalidRequest(
                f"table {self._encoder.info.path} has no column {', '.join(map(repr, unknown))} to "
                f"{segment.operation}; the columns are {', '.join(names)}"
            )
        segment.rows.append(dict(row))
        self._buffered_rows += 1
        self._buffered_bytes += _DICT_ROW_BYTES_GUESS
        if len(segment.rows) >= _DICT_ROWS_MAX:
            self._settle_dicts(segment)

    def _settle_dicts(self, segment: _Segment) -> None:
        """Convert the dicts of a segment to Arrow data. Raises `InvalidRequest` for the first invalid row; all are
        dropped.
        """
        rows, segment.rows = segment.rows, []
        if not rows:
            return
        self._buffered_bytes -= _DICT_ROW_BYTES_GUESS * len(rows)
        self._buffered_rows -= len(rows)
        try:
            batches = list(self._encoder.batches(segment.operation, rows, segment.names))
        except ForebayError as e:
            self._refuse(e, len(rows))
        segment.batches += batches
        self._buffered_bytes += sum(batch.nbytes for batch in batches)
        self._buffered_rows += len(rows)

    def _after_write(self) -> None:
        if self._buffered_bytes >= self._full_bytes:
            self._hand_over(wait=True)
        elif self._buffered_rows and self.due_at is None:
            self.due_at = self._clock.monotonic() + self._linger
            self._sender.wake()

    # ---- rows out ---------------------------------------------------------------------------------------------------

    def _hand_over(self, wait: bool) -> None:
        """Encode and queue all buffered rows. Requires the lock."""
        segments, self._segments = self._segments, []
        self._buffered_bytes = self._buffered_rows = 0
        self.due_at = None
        info, encoder = self._encoder.info, self._encoder
        rows_left = sum(len(s.rows) + sum(batch.num_rows for batch in s.batches) for s in segments)
        try:
            run: list[KeyedRows] = []
            for place, segment in enumerate(segments):
                self._settle_segment(segment)
                for batch in _gathered(segment.batches):
                    if segment.operation == APPEND:
                        pieces = encoder.log_pieces(batch)
                        self._sender.submit(info, segment.target, pieces, self._tracker, wait)
                    else:
                        run.append(encoder.keyed(segment.operation, batch, segment.target))
                    rows_left -= batch.num_rows
                is_last = place == len(segments) - 1 or segments[place + 1].target != segment.target
                if run and is_last:
                    self._sender.submit(info, segment.target, encoder.kv_pieces(run), self._tracker, wait)
                    run = []
        except ForebayError as e:
            self._refuse(e, rows_left)
        except Exception as e:  # noqa: BLE001 - the rows have left the buffer: their loss must be reported
            self._refuse(InternalError(f"rows could not be encoded: {type(e).__name__}: {e}"), rows_left)
        except BaseException:
            stopped = InternalError("writing was interrupted, so that not all buffered rows were sent")
            self._tracker.refused(stopped, rows_left)
            raise

    def _refuse(self, error: ForebayError, rows: int) -> NoReturn:
        """Keep and raise the error of buffered rows that cannot be written."""
        self._tracker.refused(
            type(error)(f"{error.message} (rows counted from the first of {rows} buffered ones)", error.code), rows
        )
        self._is_reported = self._is_reported or threads.current_thread() is not self._sender.thread
        raise self._tracker.error or error from error

    def _settle_segment(self, segment: _Segment) -> None:
        if segment.rows:
            rows, segment.rows = segment.rows, []
            segment.batches += self._encoder.batches(segment.operation, rows, segment.names)

    def hand_over(self) -> None:
        """Called by the sender: queue lingering rows without blocking. Errors are kept for the next call."""
        if not self._lock.acquire(blocking=False):
            # A writing thread holds it, and may wait for the sender: try again later.
            self.due_at = self._clock.monotonic() + max(self._linger, 0.01)
            return
        try:
            if self._segments:
                self._hand_over(wait=False)
            else:
                self.due_at = None
        except ForebayError:
            return  # the tracker keeps it, and the next call raises it
        finally:
            self._lock.release()

    # ---- ends -------------------------------------------------------------------------------------------------------

    @property
    def buffered_rows(self) -> int:
        """The number of rows that are not encoded yet."""
        return self._buffered_rows

    @property
    def closed(self) -> bool:
        return self._closed

    def flush(self, timeout: Span | None = None) -> WriteResult:
        """Send everything and wait until it is acknowledged; returns what this writer has written so far.

        Raises the error of a failed batch, and `Unavailable` (REQUEST_TIME_OUT) if that takes longer than `timeout`,
        after which the rows may still be written.
        """
        return self._flush(span_seconds(timeout, "timeout"))

    def _flush(self, timeout: float | None, *, closes: bool = False) -> WriteResult:
        self._check_process()
        with self._lock:
            if not (closes and self._closed):  # two threads may close it: both wait for the same rows
                self._check_usable()
                # Before the wait: a row that another thread writes meanwhile is refused. No later step would send it.
                self._closed = closes
                if self._segments:
                    self._hand_over(wait=True)
        if not self._tracker.wait(timeout):
            raise Unavailable(
                f"not all rows for table {self._encoder.info.path} were acknowledged within {timeout:g} s; they are "
                "still being sent",
                ErrorCode.REQUEST_TIME_OUT,
            )
        self._raise_error()
        return self._tracker.result()

    def close(self) -> WriteResult:
        """`flush`, and accept no more rows. A second call returns the same result."""
        try:
            return self._flush(None, closes=True)
        finally:
            self._end()

    def abort(self) -> None:
        """Drop buffered rows, wait for what was sent, and accept no more rows. Raises nothing."""
        if self._process != os.getpid():
            self._closed = True  # locks and batches are those of the process that forked
            return
        with self._lock:
            self._segments, self._buffered_bytes, self._buffered_rows, self.due_at = [], 0, 0, None
        self._tracker.wait()
        self._is_reported = True
        self._end()

    def finish(self, timeout: float | None) -> ForebayError | None:
        """Called when the connection closes: `close`, returning the error if it was not reported yet."""
        was_reported = self._is_reported
        try:
            if self._process == os.getpid():
                self._flush(timeout, closes=True)
        except ForebayError as e:
            return None if was_reported else e
        finally:
            self._end()
        return None

    def _end(self) -> None:
        self._closed = True
        if self._process == os.getpid():
            self._sender.unwatch(self)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise InvalidRequest("this writer belongs to the process that made it; make another one after a fork")

    def _check_usable(self) -> None:
        if self._closed:
            raise InvalidRequest(f"this writer of table {self._encoder.info.path} is closed; make another one")
        self._raise_error()

    def _raise_error(self) -> None:
        error = self._tracker.error
        if error is not None:
            self._is_reported = True
            raise error

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._buffered_rows} rows buffered"
        return f"<TableWriter of {self._encoder.info.path}, {state}>"


def _gathered(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the batches with small ones merged, because encoding a batch costs more than copying a few rows."""
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
