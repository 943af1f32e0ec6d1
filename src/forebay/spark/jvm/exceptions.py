"""Creates exceptions of the JVM: those for Forebay's errors, and those of Spark's analyzer."""

from __future__ import annotations

from typing import Any

from forebay.base.errors import ErrorCode, ForebayError, UnsupportedOperation
from forebay.spark.jvm.gateway import CATALYST, JavaObject, JavaThrow, Jvm
from forebay.spark.jvm.values import java_map


def java_exception(jvm: Jvm, error: ForebayError) -> JavaObject:
    """The exception of the JVM for a Forebay error, with the same message.

    Spark's AnalysisException is checked, and few methods of proxies declare it. The two exceptions used here are
    unchecked, and PySpark shows their messages without the JVM's stack.
    """
    unsupported = isinstance(error, UnsupportedOperation)
    name = "UnsupportedOperationException" if unsupported else "IllegalArgumentException"
    # The text of this code, "unsupported version", means the protocol's version and would mislead users of SQL.
    plain = error.code == ErrorCode.UNSUPPORTED_VERSION
    return jvm.class_(f"java.lang.{name}")(error.message if plain else str(error))


def analysis_exception(jvm: Jvm, name: str, *args: Any) -> JavaThrow:
    """The exception `name` of Catalyst's analysis package, to raise from a method that declares it."""
    return JavaThrow(jvm.class_(f"{CATALYST}analysis.{name}")(*args))


def unresolved_routine(jvm: Jvm, name: str, search_path: str) -> JavaThrow:
    """Spark's error for a missing procedure, to raise from `loadProcedure`.

    Spark hides exceptions of other kinds behind FAILED_TO_LOAD_ROUTINE, which gives no reason.
    """
    parameters = java_map(jvm, {"routineName": name, "searchPath": search_path})
    return JavaThrow(jvm.class_("org.apache.spark.SparkIllegalArgumentException")("UNRESOLVED_ROUTINE", parameters))
