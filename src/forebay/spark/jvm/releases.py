"""Differences between releases of PySpark 4 in Python. Other modules of this package handle those of the JVM.

Features are detected where possible. The number of the release decides only what is needed before the JVM starts.
docs/spark.md has a table of the features of each release.
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
"""Spark's type TIME; None before 4.1."""

_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
"""Releases whose conversion has no parameter for the time zone of timestamps use UTC."""

_STREAM_MARK_BYTES = 4
"""The size of the number that PySpark writes before an Arrow stream."""

_STREAMING = "org.apache.spark.sql.execution.streaming."


arrow_schema: Callable[[spark_types.StructType], pa.Schema] = functools.partial(to_arrow_schema, **_ZONE)
"""The Arrow schema in which this release exchanges rows of a schema with Python. Instants have the time zone UTC."""


def release(version: str) -> tuple[int, int]:
    """The major and minor number of a version: (4, 1) for "4.1.4" and "4.1.0.dev0"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def checkpoints_by_rename(version: str = pyspark.__version__) -> str:
    """The name of Spark's class that writes streaming checkpoints by renaming files. Spark 4.1 moved it."""
    package = _STREAMING + ("checkpointing." if release(version) >= (4, 1) else "")
    return package + "FileSystemBasedCheckpointFileManager"


@functools.cache
def streams_have_limits() -> bool:
    """Whether Spark passes the start and the limit of a batch to stream readers written in Python: from 4.2 on."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def streams_write_arrow() -> bool:
    """Whether stream writers written in Python may take Arrow batches: from 4.1 on."""
    return hasattr(spark_source, "DataSourceStreamArrowWriter")


@functools.cache
def counts_rows_without_columns() -> bool:
    """Whether a worker's batch without columns keeps its number of rows on its way to Spark; not in 4.0.

    PySpark's serializer is tried on the driver. False, which is always safe, where it cannot be tried.
    """
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    try:
        return bool(_as_sent(batch).num_rows == batch.num_rows)
    except (ImportError, AttributeError, TypeError, pa.ArrowInvalid):
        return False


def _as_sent(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` as the JVM receives it from PySpark's worker."""
    transformer = getattr(importlib.import_module("pyspark.sql.conversion"), "ArrowBatchTransformer", None)
    if transformer is not None:
        return transformer.wrap_struct(batch)
    serializer = importlib.import_module("pyspark.sql.pandas.serializers").ArrowStreamUDFSerializer()
    out = io.BytesIO()
    serializer.dump_stream(iter([(batch, None)]), out)
    return pa.ipc.open_stream(out.getvalue()[_STREAM_MARK_BYTES:]).read_next_batch()
