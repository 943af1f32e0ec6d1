"""Java Paimon's own catalogs, driven by a program of ours (`java/CatalogExam.java`): Hive's, and JDBC's in SQLite.

`JavaCatalogs` is one JVM for any number of catalogs; a `JavaCatalog` is one of them.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from pathlib import Path

from tests.paimon.catalog.metastore_server import (
    HERE,
    JVM,
    cache_root,
    compile_java,
    digest_of,
    entry,
    java_tool,
    run,
    spark_jars,
    tool,
)

_ANSWER_SECONDS = 100.0


class JavaRefusal(Exception):
    """What Java Paimon refused."""


def _jars() -> str:
    pom = HERE / "java" / "pom.xml"

    def resolve(scratch: Path) -> None:
        maven = tool("mvn", "download Paimon and SQLite's driver from Maven Central")
        run(
            [maven, "--batch-mode", "--quiet", "--file", pom, f"-Dmaven.repo.local={cache_root() / 'maven'}",
             "dependency:copy-dependencies", "-DincludeArtifactIds=paimon-bundle,sqlite-jdbc",
             f"-DoutputDirectory={scratch}"],
            "download Paimon and SQLite's driver from Maven Central",
        )  # fmt: skip

    own = sorted(entry("paimon-catalog-jars", digest_of(pom), resolve).glob("*.jar"))
    return os.pathsep.join(map(str, [*own, *spark_jars()]))


class JavaCatalogs:
    """A running JVM. Not thread-safe. Raises `ExamUnavailable` where there can be none."""

    def __init__(self) -> None:
        jars = _jars()
        classes = compile_java("CatalogExam", jars)
        self._scratch = tempfile.TemporaryDirectory(prefix="forebay-java-catalogs-")
        self._log = (Path(self._scratch.name) / "log").open("w+")
        command = [java_tool("java"), *JVM, "-cp", f"{classes}{os.pathsep}{jars}", "CatalogExam"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
            cwd=self._scratch.name,
        )  # fmt: skip

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

    def open(self, options: dict[str, str]) -> JavaCatalog:
        """A catalog with our options, which are Java's, too."""
        return JavaCatalog(self, self.ask("", "open", *(f"{k}={v}" for k, v in options.items()), "cache-enabled=false"))

    def ask(self, *words: str) -> str:
        """One request; what Java answers. Raises `JavaRefusal` with what it says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watch = threading.Timer(_ANSWER_SECONDS, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write("\t".join(words) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"Java Paimon did not answer {words}:\n{self._log.read()[-3000:]}")
        how, _, said = line.rstrip("\n").partition("\t")
        if how == "error":
            self._log.seek(0)
            raise JavaRefusal(f"{said}\n{self._log.read()[-3000:]}")
        return said


class JavaCatalog:
    """One of Java Paimon's catalogs."""

    def __init__(self, java: JavaCatalogs, number: str) -> None:
        self._java, self._number = java, number

    def ask(self, operation: str, *words: str) -> str:
        return self._java.ask(self._number, operation, *words)
