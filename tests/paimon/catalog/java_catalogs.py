"""Java Paimon's own catalogs, driven by a program of ours (`java/CatalogExam.java`): Hive, and JDBC in SQLite.

`JavaCatalogs` is one JVM for any number of catalogs; a `JavaCatalog` is one of them.
"""

from __future__ import annotations

from tests.java_programs import JavaProgram, class_path, compiled, java_command, maven_jars, spark_jars
from tests.paimon.catalog.metastore_server import HERE

_HEAP_MB = 400
_ANSWER_SECONDS = 100.0


class JavaRefusal(Exception):
    """What Java Paimon refused."""


class JavaCatalogs:
    """A running JVM. Not thread-safe. Raises `ExamUnavailable` where there can be none."""

    def __init__(self) -> None:
        own = maven_jars(
            HERE / "java" / "pom.xml", ["paimon-bundle", "sqlite-jdbc"], "paimon-catalog-jars",
            "Paimon and SQLite's driver",
        )  # fmt: skip
        jars = class_path([*own, *spark_jars()])
        classes = compiled([HERE / "java" / "CatalogExam.java"], jars, "catalog-classes")
        command = java_command(classes, jars, "CatalogExam", _HEAP_MB)
        self._program = JavaProgram("java-catalogs", command, _ANSWER_SECONDS)

    def close(self) -> None:
        self._program.close()

    def open(self, options: dict[str, str]) -> JavaCatalog:
        """A catalog with our options, which are Java's, too."""
        return JavaCatalog(self, self.ask("", "open", *(f"{k}={v}" for k, v in options.items()), "cache-enabled=false"))

    def ask(self, *words: str) -> str:
        """One request; what Java answers. Raises `JavaRefusal` with what it says."""
        how, _, said = self._program.answer("\t".join(words)).partition("\t")
        if how == "error":
            raise JavaRefusal(f"{said}\n{self._program.log()}")
        return said


class JavaCatalog:
    """One of Java Paimon's catalogs."""

    def __init__(self, java: JavaCatalogs, number: str) -> None:
        self._java, self._number = java, number

    def ask(self, operation: str, *words: str) -> str:
        return self._java.ask(self._number, operation, *words)
