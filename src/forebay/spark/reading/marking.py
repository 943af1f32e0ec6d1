"""Which rows of files do not count: found out by Python tasks, each of which tells Spark one value.

Spark evaluates it as a subquery, when the query runs and not when it is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from forebay.base.errors import InternalError
from forebay.spark.reading.live_read import sent_partitions
from forebay.spark.reading.scan_plan import Marking
from forebay.spark.worker_errors import short_errors

MARKS_SCHEMA = StructType([StructField("marks", ArrayType(LongType(), False), False)])
"""One row with one array: for each file of a task, in their order, where its words begin in the array, and then the
words of all: a bit for each row of a file, in 64-bit words, least bit first."""

_WORDS = pa.list_(pa.field("element", pa.int64(), nullable=False))
_ARROW = pa.schema([pa.field("marks", _WORDS, nullable=False)])


class MarkPartition(InputPartition):
    """What one task is to find out, one after the other."""

    def __init__(self, marking: tuple[Marking, ...]) -> None:
        super().__init__(None)
        self.marking = marking


@dataclass(frozen=True)
class MarkFunction:
    """What a worker runs for a `MarkPartition`: it gives one row of `MARKS_SCHEMA`. `name` is for messages."""

    name: str

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for partition in sent_partitions(tasks, MarkPartition):
            with short_errors(f"looking for changed rows of {self.name}"):
                yield marks_batch(partition.marking)


def marks_batch(marking: Sequence[Marking]) -> pa.RecordBatch:
    """The marks of the files of all of `marking` as one row."""
    found = [rows for one in marking for rows in one()]
    paths, wanted = [rows.path for rows in found], [file for one in marking for file in one.files]
    if paths != wanted:
        raise InternalError(f"rows were marked in the files {paths} instead of {wanted}")
    words = [np.frombuffer(rows.words, np.int64) for rows in found]
    starts = np.cumsum([len(words), *map(len, words)], dtype=np.int64)[:-1]
    values = pa.array(np.concatenate([starts, *words]))
    row = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values, type=_WORDS)
    return pa.RecordBatch.from_arrays([row], schema=_ARROW)
