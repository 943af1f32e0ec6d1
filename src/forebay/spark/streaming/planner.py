"""Plans the micro-batches of a stream: the part that both sides share.

A `StreamPlanner` lives in the one Python process that Spark keeps for a running query. Between calls it caches what is
expensive to request. A restart does not need the cache, because offsets have all state. Tasks receive the planner
pickled, before it plans, for `read`.

`next_offset` decides whether a micro-batch is due. The side's `_advance` determines where it ends within the limits. A
batch waits until it has enough rows (`minRowsPerTrigger`), unless the stream ends at a fixed point (`stop_at_now`).

The sides are in forebay.spark.streaming.live_planner and forebay.spark.streaming.lake_planner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from forebay.base.ambient import Clock
from forebay.base.errors import Conflict, ErrorCode
from forebay.spark.options import StreamLimits
from forebay.spark.reading.plan import SplitsPartition


class StreamPosition(Protocol):
    """A position of a stream, as Spark stores it."""

    def to_json(self) -> dict[str, Any]: ...


Offset = TypeVar("Offset", bound=StreamPosition)


class StreamPlanner(ABC, Generic[Offset]):
    """Plans the micro-batches of one stream; picklable until it does."""

    def __init__(self, name: str, limits: StreamLimits) -> None:
        """`name` is the table's, for errors."""
        self.name, self.limits = name, limits
        self.newest: Offset | None = None
        """The end of the stream when it was last requested; None before."""
        self._first: Offset | None = None
        self._last_batch_ms = 0

    # ---- implemented by a side ---------------------------------------------------------------------------------------

    @abstractmethod
    def offset(self, values: Mapping[str, Any]) -> Offset:
        """The offset for values stored by Spark. Raises `InvalidRequest` for invalid ones."""

    @abstractmethod
    def stop_at_now(self) -> None:
        """End the stream here: later changes are ignored."""

    @abstractmethod
    def tasks(self, start: Offset, end: Offset) -> list[SplitsPartition]:
        """The tasks of a batch. The same offsets always give the same rows."""

    @abstractmethod
    def read_until(self, offset: Offset) -> None:
        """Note that everything before `offset` has been processed."""

    @abstractmethod
    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; called in its process."""

    @property
    @abstractmethod
    def _planner_clock(self) -> Clock: ...

    @abstractmethod
    def _beginning(self) -> Offset:
        """Where a new stream begins."""

    @abstractmethod
    def _check(self, offset: Offset) -> None:
        """Raise `Conflict` for the offset of another table of this name (`recreated`)."""

    @abstractmethod
    def _advance(self, start: Offset, limits: StreamLimits) -> tuple[Offset, int | None]:
        """The end of the batch that begins at `start`, and its row count; None if it need not wait for more rows."""

    def _confirm(self, start: Offset) -> None:
        """Check once more, before a batch is planned, that the table is still the one of `start`."""

    # ---- shared by both sides ----------------------------------------------------------------------------------------

    def first_offset(self) -> Offset:
        """The offset where the stream begins. Spark asks repeatedly; this object always returns the same offset."""
        if self._first is None:
            self._first = self._beginning()
        return self._first

    def next_offset(self, start: Offset, limits: StreamLimits) -> Offset:
        """The end of the batch that begins at `start`; `start` itself if there are no or too few changes."""
        self._check(start)
        end, rows = self._advance(start, limits)
        if end == start:
            return start
        now_ms = self._planner_clock.now_ms()
        if rows is not None and self.limits.may_wait(rows, now_ms - self._last_batch_ms):
            return start
        self._confirm(start)
        self._last_batch_ms = now_ms
        return end

    def recreated(self) -> Conflict:
        """The error for a stream whose table was dropped and recreated."""
        return Conflict(
            f"table {self.name} was dropped and recreated since the stream's checkpoint was written: start the stream "
            "with another checkpoint",
            ErrorCode.TABLE_NOT_EXIST,
        )
