"""The messages and errors of all Python workers."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from forebay.base.errors import ForebayError

MESSAGE_COLUMN = "message"
"""The column of the message that a writing task sends to the driver."""

KIND_COLUMNS = ("_change_type", "rowkind")
"""Columns of row kinds in changelogs of Forebay and Paimon, unless the table has a column of that name."""

CHANGELOG_EXTRAS = ("_log_offset", "_commit_timestamp", "_snapshot_id")
"""Further columns of changelogs, which writes ignore unless the table has a column of that name."""


@contextmanager
def short_errors(doing: str = "") -> Iterator[None]:
    """Raise a `ForebayError` without its context, with `doing`, the worker's action, in its message.

    Spark shows a worker's whole traceback unless an environment variable disables it. A worker ends with its first
    error, so tracebacks are shown only for bugs.
    """
    short: ForebayError | None = None
    try:
        yield
    except ForebayError as e:
        short = type(e)(f"{doing}: {e.message}" if doing else e.message, e.code)
    if short is not None:
        hide_traceback()
        raise short from None


_RUNNERS = ("pyspark.sql.worker.", "pyspark.sql.streaming.python_streaming_")
"""The main modules of the processes in which Spark plans and commits for a format. No driver imports them."""


def hide_traceback() -> None:
    """In a process of Spark's, make Spark show the next error without its traceback.

    A driver is not changed, because its workers inherit its environment.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    modules = ("" if main is None else main.name, *sys.modules)
    if TaskContext.get() is not None or any(name.startswith(_RUNNERS) for name in modules):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


class TaskWrite:
    """The writing function of workers, for either side. Picklable."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The entry point of a Python worker: writes `batches`, and yields the pickled message for the driver."""
        message = pickle.dumps(self.write(batches))
        yield pa.RecordBatch.from_arrays([pa.array([message], pa.binary())], [MESSAGE_COLUMN])

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """Write all rows. Raises `ForebayError` if any row was not written."""
        raise NotImplementedError(f"{type(self).__name__} does not write")
