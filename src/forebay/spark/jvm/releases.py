"""Where releases of PySpark 4 differ in Python; `forebay.spark.jvm.gateway` knows where their JVMs differ.

What can be looked at is looked at. Only what must be known before there is a JVM goes by the number of the release.
docs/spark.md has the table of what each release offers.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource as spark_source
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema

TIME_TYPE: Any = getattr(spark_types, "TimeType", None)
"""Spark's type TIME; None before 4.1, which has none."""

_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
"""Releases that do not ask for the time zone of timestamps always take UTC."""

_STREAMING = "org.apache.spark.sql.execution.streaming."


arrow_schema: Callable[[spark_types.StructType], pa.Schema] = functools.partial(to_arrow_schema, **_ZONE)
"""The Arrow schema that this release exchanges rows of a schema in; instants have the time zone UTC."""


def release(version: str) -> tuple[int, int]:
    """(4, 1) of "4.1.4" or "4.1.0.dev0"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def checkpoints_by_rename(version: str = pyspark.__version__) -> str:
    """The class that keeps streaming checkpoints in files which it renames; Spark 4.1 moved it."""
    package = _STREAMING + ("checkpointing." if release(version) >= (4, 1) else "")
    return package + "FileSystemBasedCheckpointFileManager"


@functools.cache
def streams_have_limits() -> bool:
    """Return whether stream readers written in Python get the start and the limit of a batch: from 4.2 on."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def streams_write_arrow() -> bool:
    """Whether stream writers written in Python may take Arrow batches: from 4.1 on."""
    return hasattr(spark_source, "DataSourceStreamArrowWriter")


@functools.cache
def counts_rows_without_columns() -> bool:
    """Whether workers can tell Spark how many rows a batch without columns has; 4.0 takes it for an empty one.

    Found out by PySpark's own code, on the driver. Where that code is not found the answer is no, which is always safe.
    """
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    try:
        return bool(_as_sent(batch).num_rows == batch.num_rows)
    except (ImportError, AttributeError, TypeError, pa.ArrowInvalid):
        return False


def _as_sent(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` as PySpark's worker sends it to the JVM."""
    transformer = getattr(importlib.import_module("pyspark.sql.conversion"), "ArrowBatchTransformer", None)
    if transformer is not None:
        return transformer.wrap_struct(batch)
    serializer = importlib.import_module("pyspark.sql.pandas.serializers").ArrowStreamUDFSerializer()
    out = io.BytesIO()
    serializer.dump_stream(iter([(batch, None)]), out)
    return pa.ipc.open_stream(out.getvalue()[_STREAM_MARK_BYTES:]).read_next_batch()


_STREAM_MARK_BYTES = 4
"""PySpark writes a number before the Arrow stream."""
