"""Java classes of our own on Spark's executors, without a build.

Each source `executor_java/<name>.java` is compiled by Janino, which every Spark has, into a jar that `addJar` sends to
the executors; tasks then find its classes as they find those of any application. Jars are kept for later sessions
(forebay.spark.jvm.jar_cache). A session that has files of its own for its jobs (artifacts) shares no jars with
others, and is sent its own.

The driver loads the classes from the same jar, by a class loader of its own that is kept as long as the JVM. So it can
make the objects that are serialized into tasks; executors, also those in the driver's JVM (`local[...]`), load the
classes again from the jar that they were sent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

from forebay.spark.jvm.gateway import JavaObject, Jvm, joined_source
from forebay.spark.jvm.jar_cache import cached_jar

_PARTS = {
    "ForebayColumnarFactory": ("ForebayArrow", "ForebayDirect", "ForebayLogs", "ForebayMixedScan", "ForebayPages")
}
"""Other sources whose classes a class needs; they are compiled together with it."""

_jars: WeakKeyDictionary[Jvm, dict[str, tuple[Path, JavaObject]]] = WeakKeyDictionary()
"""The jar and the constructor of each class that is loaded."""

_sent: WeakKeyDictionary[Jvm, set[tuple[str, str | None]]] = WeakKeyDictionary()
"""The classes that executors know, and for the jobs of which session: its artifacts' id, or None for all others."""


def executor_class(jvm: Jvm, name: str, cache: Path | None = None) -> Callable[..., JavaObject]:
    """A constructor of the Java class `executor_java/<name>.java`, which all executors of the session know.

    `cache` is the directory of jars (by default in the user's cache). Raises `UnsupportedOperation` where this Spark
    has no compiler that we know.
    """
    jars, sent = _jars.setdefault(jvm, {}), _sent.setdefault(jvm, set())
    with jvm.known_layout("compiler"):
        if name not in jars:
            jar = class_jar(jvm, name, cache)
            jars[name] = jar, jvm.class_of_jar(jar, name).getConstructors()[0]
        jar, constructor = jars[name]
        place = name, jvm.artifacts()
        if place not in sent:
            jvm.context._jsc.sc().addJar(jar.as_uri())
            sent.add(place)
    return jvm.maker(constructor)


def class_jar(jvm: Jvm, name: str, cache: Path | None = None) -> Path:
    """The jar with the class `name`, compiled for the Spark of `jvm` unless `cache` has it."""
    return cached_jar(name, java_source(name), jvm.spark_version, jvm.bytecodes, cache)


def java_source(name: str) -> str:
    """The source of the class `name` and of those that it needs, as one."""
    return joined_source("executor_java", name, *_PARTS.get(name, ()))
