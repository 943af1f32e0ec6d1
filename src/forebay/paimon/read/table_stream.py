"""A streaming read as an iterator of batches, with row-exact state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import InvalidRequest
from forebay.paimon.read.change_planner import ChangeSplit
from forebay.paimon.read.stream import Accept, StreamScan


class SplitChanges(Protocol):
    """A reader of a stream's splits: rows with their kinds, in the same order on each call."""

    schema: pa.Schema

    def read(self, split: ChangeSplit, *, keep_deletes: bool = False) -> Iterator[pa.RecordBatch]: ...


class TableStream:
    """Batches of changes with column `_row_kind`, without end unless bounded; the interface for engines.

        stream = open_stream(table.context, state=saved)
        for batch in stream:
            process(batch)
            saved = stream.state()

    With `follow`, iteration waits for new snapshots and never ends (except by `scan.bounded.watermark`). Without it,
    iteration ends when all available changes have been read, and can be resumed later. With a `consumer-id`, progress
    is recorded when the batch after the last one of a snapshot is requested. Not thread-safe.
    """

    def __init__(
        self,
        scan: StreamScan,
        reader: SplitChanges,
        *,
        follow: bool = True,
        interval_ms: int = 10_000,
        clock: Clock = SYSTEM_CLOCK,
        keep_deletes: bool = False,
        accept: Accept | None = None,
    ) -> None:
        """`keep_deletes`: see `ChangeReader.read`. The stream ends before a split that `accept` refuses."""
        self._scan, self._reader, self._follow, self._keep_deletes = scan, reader, follow, keep_deletes
        self._interval_ms, self._clock, self._accept = interval_ms, clock, accept
        self._is_refused = False
        self._done: dict[str, Any] = {"scan": scan.state(), "rows": 0}
        self._batches: Iterator[pa.RecordBatch] | None = None
        self.snapshot_id: int | None = None
        """The snapshot of the last batch."""
        self.is_full = False
        """Whether the last batch holds rows of the snapshot instead of changes."""

    @property
    def finished(self) -> bool:
        """Whether the stream has ended."""
        return self._batches is None and (self._scan.finished or self._is_refused)

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    def state(self) -> dict[str, Any]:
        """The position after the last returned batch, as JSON values."""
        return {"scan": dict(self._done["scan"]), "rows": self._done["rows"]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises `InvalidRequest` for an invalid state."""
        try:
            scan, rows = dict(state["scan"]), int(state["rows"])
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidRequest(
                f"this is no state of a stream, as `stream.state()` gives it: {str(state)[:200]}"
            ) from e
        self._scan.restore(scan)
        self._done = {"scan": scan, "rows": rows}
        self._batches = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            batch = self.poll()
            if batch is not None:
                return batch
            if not self._follow or self.finished:
                raise StopIteration
            self._clock.sleep(self._interval_ms / 1000)

    def poll(self) -> pa.RecordBatch | None:
        """The next batch, or None if there are no new changes."""
        while True:
            if self._batches is None and not self._open():
                return None
            assert self._batches is not None
            batch = next(self._batches, None)
            if batch is not None:
                self._done["rows"] += batch.num_rows
                return batch
            self._batches = None
            # The scan is past the split, which has now been read completely.
            self._done = {"scan": self._scan.state(), "rows": 0}

    def _open(self) -> bool:
        """Open the next split; False if there is none."""
        plan = self._scan.plan(max_rows=1, accept=self._accept)
        if plan is not None and not plan.splits:
            self._is_refused, plan = True, None
        if plan is None:
            self._done = {"scan": self._scan.state(), "rows": 0}
        else:
            self._done["scan"] = dict(plan.before)
            self.snapshot_id, self.is_full = plan.snapshot_id, plan.is_full
            self._batches = _behind(
                self._reader.read(plan.splits[0], keep_deletes=self._keep_deletes), self._done["rows"]
            )
        # A caller that asks for more has processed the previous batches, so a consumer's progress may be recorded.
        self._scan.acknowledge(self._done["scan"])
        return plan is not None


def _behind(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """`batches` without the first `rows` rows."""
    for batch in batches:
        if rows >= batch.num_rows:
            rows -= batch.num_rows
            continue
        yield batch.slice(rows)
        rows = 0
