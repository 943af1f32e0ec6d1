"""The stream reader behind `spark.readStream.format("forebay")` and `spark.readStream.table(...)`.

What a stream delivers. Of a log table: the rows that are appended. Of a primary-key table: for each micro-batch the
newest row of every key that was written in it and not deleted; each key once. Of a `t$changelog`: every change, with
`_change_type`, `_log_offset` and `_commit_timestamp`, deletes and old images too. With `scan.startup.mode` full (the
default for tables) all rows of the table come first; in a changelog they are inserts with the offset -1 and no time.

Spark keeps one Python process for a running query, where this reader plans (forebay.spark.streaming.live_planner). It
ends that process with the query, without a word to the reader. So what is pinned on servers ends by its lease.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from forebay.base.errors import ForebayError, InvalidRequest
from forebay.client.connection import shared_connection
from forebay.spark.reading.live_plan import LiveScan
from forebay.spark.reading.live_read import SplitsPartition
from forebay.spark.reading.scan_plan import Pushdown
from forebay.spark.reading.splits import LakePart, Split
from forebay.spark.streaming.live_planner import GONE, StreamPlanner
from forebay.spark.streaming_options import StreamOptions
from forebay.spark.worker_errors import short_errors
from forebay.unionread.reading import LakeSnapshotSplit
from forebay.unionread.streaming import StreamOffset


class ForebayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the query's process, and reads them in tasks, where it arrives pickled."""

    def __init__(
        self, scan: LiveScan, options: StreamOptions, wanted: Pushdown, schema: StructType, cores: int
    ) -> None:
        self._info = scan.info
        self._options = options
        self._function = scan.read_function(wanted, schema)
        self._planner = StreamPlanner(scan, options, wanted, cores)

    # ---- in the query's process -------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        with short_errors(self._doing("beginning")):
            return self._planner.first_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with short_errors(self._doing("planning")):
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return self._planner.next_offset(StreamOffset.from_json(start), rows).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._planner.newest is None else self._planner.newest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with short_errors(self._doing("planning")):
            self._planner.stop_at_now()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        with short_errors(self._doing("planning")):
            return [*self._planner.tasks(StreamOffset.from_json(start), StreamOffset.from_json(end))]

    def commit(self, end: Mapping[str, Any]) -> None:
        self._planner.read_until(StreamOffset.from_json(end))

    def _doing(self, what: str) -> str:
        return f"{what} a stream of table {self._info.path}"

    # ---- in tasks ---------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitsPartition):
            raise InvalidRequest(f"{partition!r} is not a partition of this reader")
        with short_errors(f"reading table {self._info.path}"):
            if not self._info.is_partitioned:
                yield from self._function.read(partition)
                return
            for split in partition.splits:
                yield from self._read_while_it_exists(split, partition)

    def _read_while_it_exists(self, split: Split, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split, as far as they can be had before its partition is dropped."""
        try:
            yield from self._function.read(SplitsPartition((split,), partition.snapshot))
        except ForebayError as e:
            partition_id = _partition_id(split)
            if e.code not in GONE or partition_id is None:
                raise
            existing = shared_connection(self._options.read.settings).table(self._info).partitions()
            if any(p.partition_id == partition_id for p in existing):
                raise


def _partition_id(split: Split) -> int | None:
    """The partition on which a split's log or rows are; None for one that is all in the lake."""
    inner = split.split if isinstance(split, LakePart) else split
    return None if isinstance(inner, LakeSnapshotSplit) else inner.bucket.partition_id
