"""Tasks of Python workers, for scans and writes that are planned on the driver.

Spark's Python data source has classes that run functions in Python workers. They are not public. Spark creates them in
a planner process, which it starts for each query; here the driver creates them directly:

- `reader_factory` with `input_partitions`;
- `writer_factory` and `stream_writer_factory`, whose tasks each return a commit message (`pickled_message`).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from pyspark.sql.types import StructType

from forebay.base.errors import UnsupportedOperation
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm, once_per_jvm
from forebay.spark.jvm.spark_values import struct_type
from forebay.spark.jvm.values import scala_none

PYTHON_SOURCE = "org.apache.spark.sql.execution.datasources.v2.python."

_EPOCHS_OF_CONTINUOUS_MODE = "__epoch_coordinator_id"
"""The local property in which Spark's ContinuousExecution names the actor that counts its epochs."""


def input_partitions(jvm: Jvm, partitions: Sequence[object]) -> JavaObject:
    """An InputPartition[] of picklable `partitions`, one for each task."""
    make = jvm.class_(PYTHON_SOURCE + "PythonInputPartition")
    pickled = [make(index, pickle.dumps(partition)) for index, partition in enumerate(partitions)]
    return jvm.array(CONNECTOR + "read.InputPartition", pickled)


def reader_factory(jvm: Jvm, pickled_command: bytes, schema: StructType) -> JavaObject:
    """A PartitionReaderFactory that runs `pickled_command` on the bytes of each partition.

    The command is (function from batches to batches, return type).
    """
    return _factory(jvm, "PythonPartitionReaderFactory", pickled_command, struct_type(jvm, schema))


def writer_factory(jvm: Jvm, pickled_command: bytes, schema: JavaObject) -> JavaObject:
    """A DataWriterFactory that runs `pickled_command` on the rows of each task.

    The command yields one batch, with the pickled commit message.
    """
    return _factory(jvm, "PythonBatchWriterFactory", pickled_command, schema)


def stream_writer_factory(jvm: Jvm, pickled_command: bytes, schema: JavaObject) -> JavaObject:
    """A StreamingDataWriterFactory that runs `pickled_command` on the rows of each task of a micro-batch.

    Raises `UnsupportedOperation` in a query of Spark's continuous mode: its tasks never end, so its epochs would be
    committed without their rows.
    """
    if jvm.context._jsc.sc().getLocalProperty(_EPOCHS_OF_CONTINUOUS_MODE) is not None:
        raise UnsupportedOperation(
            "streams in continuous mode cannot be written to tables: use a trigger of micro-batches "
            "(processingTime, availableNow)"
        )
    return _factory(jvm, "PythonStreamingWriterFactory", pickled_command, schema)


def pickled_message(message: JavaObject) -> bytes | None:
    """The pickled commit message of a write task; None if the task returned no message."""
    return None if message is None else bytes(message.pickledMessage())


def _factory(jvm: Jvm, name: str, command: bytes, schema: JavaObject) -> JavaObject:
    with jvm.known_layout(f"class {name}"):
        artifacts = jvm.class_("scala.Option").apply(session_artifacts(jvm))
        arguments = (_python_source(jvm, user_files(jvm)), command, schema, artifacts)
        constructor = jvm.class_("java.lang.Class").forName(PYTHON_SOURCE + name).getConstructors()[0]
        # From 4.1 on a fifth argument names the session whose worker logs are collected.
        extra = constructor.getParameterCount() - len(arguments)
        return jvm.class_(PYTHON_SOURCE + name)(*arguments, *([scala_none(jvm)] * extra))


def session_artifacts(jvm: Jvm) -> str | None:
    """The id of the files that the session of the calling thread adds to its jobs; None if it adds none."""
    state = jvm.scala_object("org.apache.spark.JobArtifactSet").getCurrentJobArtifactState()
    return str(state.get().uuid()) if state.isDefined() else None


def user_files(jvm: Jvm) -> tuple[str, ...]:
    """The names of the files that users have added to Python workers (`SparkContext.addPyFile`)."""
    return tuple(jvm.context._python_includes or ())


@once_per_jvm
def _python_source(jvm: Jvm, _user_files: tuple[str, ...]) -> JavaObject:
    """The UserDefinedPythonDataSource: executable, version, environment and `user_files` of Python workers."""
    from pyspark.sql.udf import _wrap_function

    wrapped = _wrap_function(jvm.context, Jvm.__name__)  # type: ignore[arg-type]
    return jvm.class_(PYTHON_SOURCE + "UserDefinedPythonDataSource")(wrapped)


def python_metrics(jvm: Jvm) -> JavaObject:
    """A CustomMetric[] of the values that Spark's Python runner reports for each task, for the SQL tab."""
    return _python_source(jvm, user_files(jvm)).createPythonMetrics()
