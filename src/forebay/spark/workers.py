"""What all Python workers share: how they answer the driver, and their errors."""

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
"""The one column of what a task that writes tells the driver."""

KIND_COLUMNS = ("_change_type", "rowkind")
"""Columns that say what a row is, where the table has no column of the name: of changelogs of Forebay and of Paimon."""

CHANGELOG_EXTRAS = ("_log_offset", "_commit_timestamp", "_snapshot_id")
"""Columns that changelogs have besides; left out where the table has no column of the name."""


@contextmanager
def short_errors(doing: str = "") -> Iterator[None]:
    """Let a `ForebayError` go on without its history, and with what the worker was `doing` in its message.

    Spark shows a worker's whole traceback, unless the environment says otherwise. A process of Spark's ends with its
    first error, so that only bugs show theirs.
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
"""Modules that processes run in which Spark plans and commits for a format; drivers import none of them."""


def hide_traceback() -> None:
    """Let Spark show the next error of this process without its traceback, if this is a process of Spark's.

    A driver, whose environment its workers inherit, is left as it is.
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
