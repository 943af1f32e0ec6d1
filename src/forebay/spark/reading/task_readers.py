"""Readers of tasks in each mode: workers return rows or columns, or executors read the servers themselves.

`task_mode` selects the mode (forebay.spark.read_modes) of all tasks of a scan. `task_readers` and `java_partitions`
create Spark's objects for tasks in that mode. A worker that returns columns runs `Messages`; Java
(`ForebayColumnarFactory`) converts its messages to columns.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from forebay.base.errors import UnsupportedOperation
from forebay.spark.jvm.gateway import Jvm, once_per_jvm
from forebay.spark.jvm.python_tasks import input_partitions, reader_factory, session_artifacts
from forebay.spark.jvm.spark_values import struct_type
from forebay.spark.read_modes import ReadMode, switch_of
from forebay.spark.reading.plan import DirectReading, ReadTasks, SplitsPartition

if TYPE_CHECKING:
    from forebay.spark.jvm.gateway import JavaObject

_LOGGER = logging.getLogger(__name__)

MESSAGES_SCHEMA = StructType([StructField("message", StringType(), False)])
"""The rows that a worker sends in mode `COLUMNS`. Spark copies a STRING once on its way, and a BINARY twice."""

MESSAGE_BYTES_MAX = 16 << 20
"""Maximum bytes of a message; larger batches are split. The JVM holds one message of a task at a time."""

_TEXT_BYTES_MAX = (1 << 31) - 1
"""Maximum bytes of a STRING in Spark."""


@dataclass(frozen=True)
class Messages:
    """Runs `read`, and sends each batch as a message of Arrow's IPC format. Picklable."""

    read: ReadTasks

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self.read(tasks):
            yield from messages_of(batch)


def messages_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` as rows of `MESSAGES_SCHEMA`. Raises `UnsupportedOperation` for a row that is too large for Spark."""
    if batch.num_rows > 1 and batch.nbytes > MESSAGE_BYTES_MAX:
        half = batch.num_rows // 2
        yield from messages_of(batch.slice(0, half))
        yield from messages_of(batch.slice(half))
        return
    data = batch.serialize()
    if data.size > _TEXT_BYTES_MAX:
        raise UnsupportedOperation(f"a row of {data.size} bytes is too large for Spark, which takes 2 GB")
    text = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, data.size], np.int32)), data)
    yield pa.RecordBatch.from_arrays([text], MESSAGES_SCHEMA.names)


Maker = Callable[..., "JavaObject"]
"""Creates readers of columns."""


def task_mode(jvm: Jvm, allowed: ReadMode, direct: DirectReading | str | None = None) -> tuple[ReadMode, str | None]:
    """The fastest mode of a scan's tasks (`ROWS`, `COLUMNS`, `DIRECT`), and the reason why it is not a faster one.

    `allowed` are the modes of the scan's options. `direct` is that of its plan; None before there is a plan.
    """
    if ReadMode.COLUMNS not in allowed:
        return ReadMode.ROWS, f"{switch_of(ReadMode.COLUMNS)} is false"
    maker = _maker(jvm)
    if isinstance(maker, UnsupportedOperation):
        return ReadMode.ROWS, maker.message
    if direct is None or isinstance(direct, str):
        return ReadMode.COLUMNS, direct
    return ReadMode.DIRECT, None


def task_readers(jvm: Jvm, read: ReadTasks, schema: StructType, mode: ReadMode) -> JavaObject:
    """The factory of the tasks' readers in this mode. Raises `UnsupportedOperation` if columns are not possible."""
    if mode is ReadMode.ROWS:
        return reader_factory(jvm, pickle.dumps((read, schema)), schema)
    messages = reader_factory(jvm, pickle.dumps((Messages(read), MESSAGES_SCHEMA)), MESSAGES_SCHEMA)
    return _able_maker(jvm)(messages, struct_type(jvm, schema))


def java_partitions(
    jvm: Jvm, partitions: Sequence[SplitsPartition], direct: DirectReading | str | None, mode: ReadMode
) -> JavaObject:
    """The input partitions of tasks in this mode; in `DIRECT`, with what the JVM needs to read them itself."""
    inputs = input_partitions(jvm, partitions)
    if mode is not ReadMode.DIRECT or direct is None or isinstance(direct, str):
        return inputs
    return _able_maker(jvm)(None, None).tasks(inputs, direct.source, direct.ranges(partitions))


def _able_maker(jvm: Jvm) -> Maker:
    maker = _maker(jvm)
    if isinstance(maker, UnsupportedOperation):
        raise maker
    return maker


def _maker(jvm: Jvm) -> Maker | UnsupportedOperation:
    """The maker for jobs of the planning session, or the reason why there is none."""
    return _maker_for(jvm, session_artifacts(jvm))


@once_per_jvm
def _maker_for(jvm: Jvm, _artifacts: str | None) -> Maker | UnsupportedOperation:
    from forebay.spark.jvm import executor_classes

    try:
        maker = executor_classes.executor_class(jvm, "ForebayColumnarFactory")
        if str(jvm.class_("java.nio.ByteOrder").nativeOrder().toString()) != "LITTLE_ENDIAN":
            raise UnsupportedOperation("this machine has the high bytes of numbers first")
    except UnsupportedOperation as e:
        _LOGGER.warning("scans by Python tasks give rows, which takes longer than columns: %s", e)
        return e
    return maker
