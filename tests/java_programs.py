"""Our Java programs, which drive third-party software: their jars, their classes, and running them.

Jars come from Maven Central into the cache of the exams (tests/foreign/exams_cache.py), and from PySpark.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

_exams = str(Path(__file__).resolve().parent / "foreign")
if _exams not in sys.path:
    sys.path.append(_exams)

from exams_cache import (  # noqa: E402
    ExamUnavailable,
    cache_root,
    digest_of,
    entry,
    java_tool,
    java_version,
    run,
    tool,
)

__all__ = [
    "ExamUnavailable",
    "JavaProgram",
    "all_maven_jars",
    "class_path",
    "compiled",
    "digest_of",
    "entry",
    "java_command",
    "java_tool",
    "java_version",
    "maven_jars",
    "run",
    "spark_jars",
]

_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=2", "-Duser.timezone=UTC"]


def maven_jars(pom: Path, artifacts: Sequence[str], name: str, what: str) -> list[Path]:
    """The jars of `artifacts`, in the versions that `pom` names; `what` they are, for people."""

    def resolve(scratch: Path) -> None:
        purpose = f"download {what} from Maven Central"
        maven = tool("mvn", purpose)
        run(
            [maven, "--batch-mode", "--quiet", "--file", pom, f"-Dmaven.repo.local={cache_root() / 'maven'}",
             "dependency:copy-dependencies", f"-DincludeArtifactIds={','.join(artifacts)}",
             f"-DoutputDirectory={scratch}"],
            purpose,
        )  # fmt: skip

    return sorted(entry(name, digest_of(pom), resolve).glob("*.jar"))


def all_maven_jars(pom: Path, name: str, what: str) -> list[Path]:
    """The jars that `pom` names with all that they need, downloaded once; `what` they are, for people."""

    def resolve(scratch: Path) -> None:
        purpose = f"download {what} from Maven Central"
        maven = tool("mvn", purpose)
        run(
            [maven, "--batch-mode", "--quiet", "--file", pom, f"-Dmaven.repo.local={cache_root() / 'maven'}",
             "dependency:copy-dependencies", f"-DoutputDirectory={scratch}"],
            purpose,
        )  # fmt: skip

    return sorted(entry(name, digest_of(pom), resolve).glob("*.jar"))


def spark_jars(prefixes: tuple[str, ...] = ("",)) -> list[Path]:
    """The jars that PySpark brings, Hadoop's and Hive's among them. Raises `ExamUnavailable` without PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ExamUnavailable("PySpark, whose jars are needed, is not installed")
    return sorted(j for j in (Path(spec.origin).parent / "jars").glob("*.jar") if j.name.startswith(prefixes))


def class_path(jars: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, jars))


def compiled(sources: Sequence[Path], jars: str, name: str) -> Path:
    """The folder with the classes of `sources`, compiled once with the class path `jars`."""

    def build(scratch: Path) -> None:
        command = [java_tool("javac"), "-nowarn", "-proc:none", "-cp", jars, "-d", scratch, *sources]
        run(command, f"compile {', '.join(source.name for source in sources)}")

    return entry(name, digest_of(*sources, jars), build)


def java_command(classes: Path, jars: str, main: str, megabytes: int, options: Sequence[str] = ()) -> list[str]:
    """How to run class `main` with a heap of at most `megabytes`."""
    return [str(java_tool("java")), f"-Xmx{megabytes}m", *_JVM, *options, "-cp", f"{classes}{os.pathsep}{jars}", main]


class JavaProgram:
    """A running JVM that answers each line with a line. Not thread-safe. It has a scratch folder, where it runs."""

    def __init__(self, name: str, command: Sequence[str], answer_seconds: float) -> None:
        """`{scratch}` in an argument is the scratch folder; a JVM that takes longer than this to answer is ended."""
        self._name, self._answer_seconds = name, answer_seconds
        self._scratch = tempfile.TemporaryDirectory(prefix=f"forebay-{name}-")
        folder = self._scratch.name
        self._log = (Path(folder) / "log").open("w+")
        self._process = subprocess.Popen(
            [word.replace("{scratch}", folder) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, encoding="utf-8", cwd=folder,
        )  # fmt: skip

    def answer(self, request: str | None = None) -> str:
        """The line that answers `request`, or the first one that it prints by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # A JVM that hangs must not hold up the tests: it is ended, and the missing answer is the failure.
        watch = threading.Timer(self._answer_seconds, self._process.kill)
        watch.start()
        try:
            if request is not None:
                self._process.stdin.write(request + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise RuntimeError(f"{self._name} did not answer {request or 'at all'}:\n{self.log()}")
        return line.rstrip("\n")

    def log(self) -> str:
        """The end of what it printed as errors."""
        self._log.seek(0)
        return self._log.read()[-3000:]

    def close(self) -> None:
        """End the JVM that this object started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
        self._scratch.cleanup()
