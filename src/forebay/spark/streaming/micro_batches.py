"""The stream behind `spark.readStream.table`: the driver plans its micro-batches, and Python workers read them.

The driver has the planner (forebay.spark.streaming.planner), and Spark calls it as it calls scans. A stream of a format
(forebay.spark.streaming.reader) has a Python process of its own instead, which must start within ten seconds: on a busy
machine it does not, and many of them take much memory. Both write the same offsets into checkpoints.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import StructType

from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.python_tasks import PYTHON_SOURCE, input_partitions
from forebay.spark.options import StreamLimits
from forebay.spark.read_modes import ReadMode
from forebay.spark.reading.live_read import TaskRead
from forebay.spark.reading.plan import SplitsPartition
from forebay.spark.reading.task_readers import task_readers
from forebay.spark.streaming.planner import StreamPlanner

_STREAMING = CONNECTOR + "read.streaming."


@dataclass(frozen=True)
class StreamTasks(TaskRead):
    """Reads the tasks of a stream's micro-batches in workers. Picklable as its planner, before that plans."""

    planner: StreamPlanner[Any]

    def read(self, partition: SplitsPartition) -> Iterator[pa.RecordBatch]:
        return self.planner.read(partition)


class MicroBatchStream(JavaProxy):
    """One stream of a query. Spark calls it from the query's thread."""

    interfaces: ClassVar[tuple[str, ...]] = (
        _STREAMING + "MicroBatchStream",
        _STREAMING + "SupportsTriggerAvailableNow",
    )

    def __init__(self, jvm: Jvm, planner: StreamPlanner[Any], schema: StructType, mode: ReadMode) -> None:
        """`mode`: of the tasks; `ROWS` or `COLUMNS`."""
        super().__init__(jvm)
        # A copy that never plans: a planner that has planned cannot be pickled.
        self._tasks: StreamTasks = pickle.loads(pickle.dumps(StreamTasks(planner)))
        self._planner, self._schema, self._mode = planner, schema, mode

    def _identity(self) -> str:
        """Users see it as the description of the source in a query's progress."""
        return f"forebay {self._planner.name} #{self._number}"

    # ---- offsets ----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> JavaObject:
        return self._java(self._planner.first_offset())

    def deserializeOffset(self, text: str) -> JavaObject:
        return self._offset_class(text)

    def getDefaultReadLimit(self) -> JavaObject:
        """The limit that Spark applies to its batches, which is only one. The planner applies the other limits."""
        limits, java = self._planner.limits, self.jvm.class_(_STREAMING + "ReadLimit")
        if limits.files is not None:
            return java.maxFiles(limits.files)
        if limits.rows is not None:
            return java.maxRows(limits.rows)
        return java.allAvailable() if limits.bytes is None else java.maxBytes(limits.bytes)

    def latestOffset(self, start: JavaObject, limit: JavaObject) -> JavaObject:
        """The end of the next batch; `start` itself if there is none."""
        limits = self._planner.limits
        match str(limit.getClass().getSimpleName()):
            case "ReadAllAvailable":
                limits = StreamLimits()
            case "ReadMaxRows":
                limits = replace(limits, rows=int(limit.maxRows()))
        begin = self._offset(start)
        end = self._planner.next_offset(begin, limits)
        return start if end == begin else self._java(end)

    def reportLatestOffset(self) -> JavaObject | None:
        newest = self._planner.newest
        return None if newest is None else self._java(newest)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.stop_at_now()

    def commit(self, end: JavaObject) -> None:
        self._planner.read_until(self._offset(end))

    def stop(self) -> None:
        """Nothing: offsets have all state, and leases end what a restart may need."""

    # ---- batches ----------------------------------------------------------------------------------------------------

    def planInputPartitions(self, start: JavaObject, end: JavaObject) -> JavaObject:
        return input_partitions(self.jvm, self._planner.tasks(self._offset(start), self._offset(end)))

    def createReaderFactory(self) -> JavaObject:
        """For each batch another one: Spark runs batches with a session's own classes, and plans streams without."""
        return task_readers(self.jvm, self._tasks, self._schema, self._mode)

    # ---- helpers ----------------------------------------------------------------------------------------------------

    @property
    def _offset_class(self) -> Any:
        return self.jvm.class_(PYTHON_SOURCE + "PythonStreamingSourceOffset")

    def _offset(self, java: JavaObject) -> Any:
        values: Mapping[str, Any] = json.loads(java.json())
        return self._planner.offset(values)

    def _java(self, offset: Any) -> JavaObject:
        return self._offset_class(json.dumps(offset.to_json()))
