"""Jars of compiled Java classes in the user's cache directory, for later sessions.

A jar has the classes of one source for one release of Spark. Its name has a digest of both, so a jar never changes. A
damaged jar, such as one that a full disk has cut off, is replaced. Several processes may read and publish the same jar.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

_LOGGER = logging.getLogger(__name__)

_FORMAT = "1"
"""A part of the digest: the version of the way in which jars are written."""

_DIGEST_CHARS = 20
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
CLASS_FILE = ".class"
"""The suffix of a class's file."""


def default_cache() -> Path:
    """The directory of compiled classes: `$XDG_CACHE_HOME/forebay/spark`, or the same below `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "forebay" / "spark"


def cached_jar(
    name: str,
    source: str,
    spark_version: str,
    compile_source: Callable[[str], dict[str, bytes]],
    cache: Path | None = None,
) -> Path:
    """The jar `name` with the classes of `source`, compiled by `compile_source` unless `cache` has the jar.

    `compile_source` returns the bytes of each class by its name. `cache` is a directory, by default `default_cache()`.
    Where it cannot be written, the jar is in a temporary directory, and a warning is logged.
    """
    cache = cache or default_cache()
    parts = (_FORMAT, spark_version, name, source)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_DIGEST_CHARS]
    jar = cache / f"{name}-{spark_version}-{digest}.jar"
    if not _is_whole(jar):
        data = _jar_of(compile_source(source))
        try:
            _publish(jar, data)
        except OSError as e:
            _LOGGER.warning("compiled classes cannot be cached in %s (%s): they are compiled again next time", cache, e)
            jar = Path(tempfile.mkdtemp(prefix="forebay-spark-")) / jar.name
            _publish(jar, data)
    return jar


def classes_of(jar: Path) -> dict[str, bytes]:
    """The bytes of each class of a jar, by the path of its file in the jar."""
    with zipfile.ZipFile(jar) as archive:
        return {path: archive.read(path) for path in archive.namelist()}


def _jar_of(classes: dict[str, bytes]) -> bytes:
    """The bytes of a jar; the same classes produce the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as jar:
        for name in sorted(classes):
            jar.writestr(zipfile.ZipInfo(name.replace(".", "/") + CLASS_FILE, _ZIP_TIME), classes[name])
    return out.getvalue()


def _is_whole(jar: Path) -> bool:
    """Whether the jar exists and can be read: a full disk may have cut it off."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.testzip() is None
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
