"""The stream reader behind `spark.readStream` and both formats, over the planner of a side.

Spark runs this reader in one Python process for each running query, and ends the process with the query, without
calling the reader. So offsets have all state that a restart needs, and leases end what is pinned on servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from forebay.base.errors import InvalidRequest
from forebay.spark.options import StreamLimits
from forebay.spark.reading.plan import SplitsPartition
from forebay.spark.streaming.planner import StreamPlanner
from forebay.spark.workers import short_errors


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the query's process. Pickled into tasks, it reads them there."""

    def __init__(self, planner: StreamPlanner[Any]) -> None:
        self._planner = planner

    def initialOffset(self) -> dict[str, Any]:
        with self._doing("beginning"):
            return self._json(self._planner.first_offset())

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark applies to its batches, which is only one. The planner applies the other limits."""
        limits = self._planner.limits
        if limits.files is not None:
            return ReadMaxFiles(limits.files)
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        return ReadAllAvailable() if limits.bytes is None else ReadMaxBytes(limits.bytes)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with self._doing("planning"):
            limits = StreamLimits() if isinstance(limit, ReadAllAvailable) else self._planner.limits
            if isinstance(limit, ReadMaxRows):
                limits = replace(limits, rows=limit.max_rows)
            return self._json(self._planner.next_offset(self._planner.offset(start), limits))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self._planner.newest
        return None if newest is None else self._json(newest)

    def prepareForTriggerAvailableNow(self) -> None:
        with self._doing("planning"):
            self._planner.stop_at_now()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        with self._doing("planning"):
            return [*self._planner.tasks(self._planner.offset(start), self._planner.offset(end))]

    def commit(self, end: Mapping[str, Any]) -> None:
        with self._doing("recording"):
            self._planner.read_until(self._planner.offset(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitsPartition):
            raise InvalidRequest(f"{partition!r} is not a partition of this reader")
        yield from self._planner.read(partition)

    def _doing(self, what: str) -> AbstractContextManager[None]:
        return short_errors(f"{what} a stream of table {self._planner.name}")

    @staticmethod
    def _json(offset: Any) -> dict[str, Any]:
        values: dict[str, Any] = offset.to_json()
        return values
