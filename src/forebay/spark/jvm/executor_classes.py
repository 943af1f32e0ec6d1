"""Java classes of our own on Spark's executors, without a build.

Each source `executor_java/<name>.java` is compiled by Janino, which every Spark has, into a jar that `addJar` sends to
the executors; tasks then find its classes as they find those of any application. A jar is compiled once for a release
of Spark and a source, and kept in the user's cache directory for later sessions: its name is a digest of both. A
session that has files of its own for its jobs (artifacts) shares no jars with others, and is sent its own.

The driver loads the classes from the same jar, by a class loader of its own that is kept as long as the JVM. So it can
make the objects that are serialized into tasks; executors, also those in the driver's JVM (`local[...]`), load the
classes again from the jar that they were sent.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import tempfile
import zipfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from weakref import WeakKeyDictionary

from forebay.spark.jvm.gateway import JavaObject, Jvm

logger = logging.getLogger(__name__)

_FORMAT = "1"
"""A part of the digest: raise it when jars are made in another way."""

_PARTS = {"ForebayColumnarFactory": ("ForebayArrow", "ForebayLogs")}
"""Other sources whose classes a class needs; they are compiled together with it."""

_DIGEST_CHARS = 20
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)

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
            jar = class_jar(jvm, name, cache or default_cache())
            urls = jvm.array("java.net.URL", [jvm.class_("java.net.URI").create(jar.as_uri()).toURL()])
            loader = jvm.class_("java.net.URLClassLoader")(urls, jvm.spark_class_loader())
            jars[name] = jar, loader.loadClass(name).getConstructors()[0]
        jar, constructor = jars[name]
        place = name, jvm.artifacts()
        if place not in sent:
            jvm.context._jsc.sc().addJar(jar.as_uri())
            sent.add(place)
    return jvm.maker(constructor)


def default_cache() -> Path:
    """The directory of compiled classes: `$XDG_CACHE_HOME/forebay/spark`, or the same below `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "forebay" / "spark"


def class_jar(jvm: Jvm, name: str, cache: Path) -> Path:
    """The jar with the class `name`, compiled for the Spark of `jvm` unless `cache` has it."""
    source = java_source(name)
    parts = (_FORMAT, jvm.spark_version, name, source)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_DIGEST_CHARS]
    jar = cache / f"{name}-{jvm.spark_version}-{digest}.jar"
    if not _is_whole(jar):
        data = _jar_of(jvm.bytecodes(source))
        try:
            _publish(jar, data)
        except OSError as e:
            logger.warning("compiled classes cannot be kept in %s (%s): they are compiled again next time", cache, e)
            jar = Path(tempfile.mkdtemp(prefix="forebay-spark-")) / jar.name
            _publish(jar, data)
    return jar


def java_source(name: str) -> str:
    """The source of the class `name` and of those that it needs, as one: all imports come first."""
    folder = resources.files("forebay.spark.jvm") / "executor_java"
    texts = [(folder / f"{part}.java").read_text() for part in (name, *_PARTS.get(name, ()))]
    lines = [line for text in texts for line in text.splitlines()]
    imports = dict.fromkeys(line for line in lines if line.startswith("import "))
    return "\n".join([*imports, *(line for line in lines if line not in imports)])


def _jar_of(classes: dict[str, bytes]) -> bytes:
    """A jar, the same for the same classes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as jar:
        for name in sorted(classes):
            jar.writestr(zipfile.ZipInfo(name.replace(".", "/") + ".class", _ZIP_TIME), classes[name])
    return out.getvalue()


def _is_whole(jar: Path) -> bool:
    """Whether the jar is there and can be read: a disk that was full may have cut it off."""
    try:
        with zipfile.ZipFile(jar) as found:
            return found.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _publish(jar: Path, data: bytes) -> None:
    """Create or replace the file in one step: other processes may be loading from it."""
    jar.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=jar.parent, prefix=jar.stem, suffix=".tmp", delete=False) as fresh:
        try:
            fresh.write(data)
            fresh.close()
            os.replace(fresh.name, jar)
        except BaseException:
            os.unlink(fresh.name)
            raise
