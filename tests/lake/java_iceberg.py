"""Java Iceberg on our tables, driven by a program of ours (`java/IcebergExam.java`): the reference implementation.

Each request is a separate JVM, because the SQLite file of the catalog has one owner at a time.
"""

from __future__ import annotations

import datetime as dt
import struct
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.java_programs import (
    ExamUnavailable,
    class_path,
    compiled,
    digest_of,
    entry,
    java_command,
    maven_jars,
    run,
    spark_jars,
)

__all__ = ["ExamUnavailable", "JavaIceberg", "digest_of", "entry", "iceberg_jars", "plain", "run"]

HERE = Path(__file__).resolve().parent
_HEAP_MB = 400
_ANSWER_SECONDS = 120
_EPOCH = dt.datetime(1970, 1, 1)


class JavaIceberg:
    """Java Iceberg on one table. Raises `ExamUnavailable` where there can be none."""

    def __init__(self, warehouse: Path, table: str) -> None:
        jars = class_path([*iceberg_jars(), *spark_jars()])
        classes = compiled([HERE / "java" / "IcebergExam.java"], jars, "iceberg-classes")
        self._command = java_command(classes, jars, "IcebergExam", _HEAP_MB)
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
    artifacts = ["iceberg-spark-runtime-4.1_2.13", "sqlite-jdbc"]
    return maven_jars(HERE / "java" / "pom.xml", artifacts, "iceberg-jars", "Apache Iceberg")


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
