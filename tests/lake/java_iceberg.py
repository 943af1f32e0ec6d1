"""Java Iceberg on our tables, driven by a program of ours (`java/IcebergExam.java`): the last word on the format.

Each request is a JVM of its own: the SQLite file of the catalog has one owner at a time.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import struct
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if (_exams := str(HERE.parent / "foreign")) not in sys.path:
    sys.path.append(_exams)

from exams_cache import ExamUnavailable, cache_root, digest_of, entry, java_tool, run, tool  # noqa: E402

__all__ = ["ExamUnavailable", "JavaIceberg", "digest_of", "entry", "plain", "run"]

_JVM = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=2", "-Duser.timezone=UTC"]
_ANSWER_SECONDS = 120
_EPOCH = dt.datetime(1970, 1, 1)


class JavaIceberg:
    """Java Iceberg on one table. Raises `ExamUnavailable` where there can be none."""

    def __init__(self, warehouse: Path, table: str) -> None:
        jars = _class_path()
        self._command = [java_tool("java"), *_JVM, "-cp", f"{_classes(jars)}{os.pathsep}{jars}", "IcebergExam"]
        self._command += [str(warehouse / "catalog.db"), warehouse.as_uri(), table]

    def ask(self, *words: str) -> list[str]:
        """The lines of an answer. Raises `RuntimeError` with what Java says."""
        done = subprocess.run(
            [*self._command, *words], capture_output=True, text=True, encoding="utf-8", timeout=_ANSWER_SECONDS
        )
        if done.returncode != 0:
            raise RuntimeError(f"Java Iceberg refused {words}:\n{done.stderr[-3000:]}")
        return done.stdout.splitlines()


def iceberg_jars() -> list[Path]:
    """The jars that `java/pom.xml` names: Iceberg's and SQLite's."""
    pom = HERE / "java" / "pom.xml"

    def resolve(scratch: Path) -> None:
        maven = tool("mvn", "download Apache Iceberg from Maven Central")
        run(
            [maven, "--batch-mode", "--quiet", "--file", pom, f"-Dmaven.repo.local={cache_root() / 'maven'}",
             "dependency:copy-dependencies", "-DincludeArtifactIds=iceberg-spark-runtime-4.1_2.13,sqlite-jdbc",
             f"-DoutputDirectory={scratch}"],
            "download Apache Iceberg from Maven Central",
        )  # fmt: skip

    return sorted(entry("iceberg-jars", digest_of(pom), resolve).glob("*.jar"))


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ExamUnavailable("PySpark, whose jars Java Iceberg needs, is not installed")
    jars = [*iceberg_jars(), *sorted((Path(spec.origin).parent / "jars").glob("*.jar"))]
    return os.pathsep.join(map(str, jars))


def _classes(jars: str) -> Path:
    source = HERE / "java" / "IcebergExam.java"

    def build(scratch: Path) -> None:
        run([java_tool("javac"), "-nowarn", "-proc:none", "-cp", jars, "-d", scratch, source], "compile the exam")

    return entry("iceberg-classes", digest_of(source, jars), build)


def plain(value: Any) -> str:
    """A Python value, as pyarrow gives it, in the words of the exam."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "(" + "|".join(plain(v) for v in value.values()) + ")"
        case list() if value and all(isinstance(item, tuple) for item in value):  # a map
            return "{" + "|".join(sorted(f"{plain(k)}={plain(v)}" for k, v in value)) + "}"
        case list():
            return "[" + "|".join(map(plain, value)) + "]"
        case bytes():
            return value.hex()
        case float():
            return f"{struct.unpack('>q', struct.pack('>d', value))[0] & (1 << 64) - 1:x}"
        case Decimal():
            return f"{value:f}"
        case dt.datetime():
            return str((value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1))
        case dt.date():
            return str((value - _EPOCH.date()).days)
        case dt.time():
            return str((dt.datetime.combine(_EPOCH, value) - _EPOCH) // dt.timedelta(microseconds=1))
        case str():
            return value.encode().hex()
    return str(value)
