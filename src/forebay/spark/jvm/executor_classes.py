"""Forebay's Java classes on executors: the sources of `executor_java`, compiled at first use.

The compiled jar is cached for later sessions (forebay.spark.jvm.jar_cache). `addJar` sends it to the executors, whose
tasks find its classes like those of any application. A session that adds its own files to its jobs (artifacts) shares
no jars with other sessions, so the jar is sent once more for each such session.

The driver loads the classes from the same jar, with a class loader that lives as long as the JVM, and creates the
objects that are serialized into tasks. Executors, also those in the driver's JVM (`local[...]`), load the classes from
the jar that was sent to them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from forebay.spark.jvm.compiler import Constructor, bytecodes, class_of_jar, joined_source, reflective_constructor
from forebay.spark.jvm.gateway import CONNECTOR, Jvm, once_per_jvm
from forebay.spark.jvm.jar_cache import cached_jar
from forebay.spark.jvm.python_tasks import session_artifacts

_PARTS = {
    "ForebayColumnarFactory": ("ForebayArrow", "ForebayDirect", "ForebayLogs", "ForebayMixedScan", "ForebayPages")
}
"""The classes that each class needs; they are compiled together with it."""

_LATER_METHOD = "initMetricsValues"


def executor_class(jvm: Jvm, name: str, cache: Path | None = None) -> Constructor:
    """The constructor of the class `executor_java/<name>.java`, which all executors of the session can load.

    `cache` is the directory of jars, by default `jar_cache.default_cache()`. Raises `UnsupportedOperation` if
    the compiler of this Spark is not supported.
    """
    with jvm.known_layout("compiler"):
        jar, constructor = _loaded_class(jvm, name, cache)
        _send_jar(jvm, jar, session_artifacts(jvm))
    return constructor


@once_per_jvm
def _loaded_class(jvm: Jvm, name: str, cache: Path | None) -> tuple[Path, Constructor]:
    """The jar of a class, and its constructor on the driver."""
    jar = class_jar(jvm, name, cache)
    return jar, reflective_constructor(jvm, class_of_jar(jvm, jar, name).getConstructors()[0])


@once_per_jvm
def _send_jar(jvm: Jvm, jar: Path, _artifacts: str | None) -> None:
    """Send a jar to executors, once for each set of artifacts; None stands for sessions without artifacts."""
    jvm.context._jsc.sc().addJar(jar.as_uri())


def class_jar(jvm: Jvm, name: str, cache: Path | None = None) -> Path:
    """The jar with the class `name`, compiled for the Spark of `jvm` unless `cache` has it."""
    return cached_jar(name, executor_source(name), jvm.spark_version, partial(_compiled, jvm), cache)


def _compiled(jvm: Jvm, source: str) -> dict[str, bytes]:
    reader = jvm.class_("java.lang.Class").forName(CONNECTOR + "read.PartitionReader")
    if _LATER_METHOD not in {str(method.getName()) for method in reader.getMethods()}:
        source = without_later_method(source)
    return bytecodes(jvm, source)


def without_later_method(source: str) -> str:
    """A source without the method of `PartitionReader` that early releases of Spark 4.0 and 4.1 lack, a line each."""
    return "\n".join(line for line in source.splitlines() if f"void {_LATER_METHOD}(" not in line)


def executor_source(name: str) -> str:
    """The source of the class `name` of executors and of the classes that it needs."""
    return joined_source("executor_java", name, *_PARTS.get(name, ()))
