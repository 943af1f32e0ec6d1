"""Fluss's own readers and its tiering service, of the released version, in Flink's mini cluster (`java/flink`).

with FlussFlink(cluster.bootstrap_servers, warehouse) as flink:
    flink.tier()  # the tiering service runs until the end of the block
    flink.sql("SELECT * FROM fluss.orders")  # a union read: ["+I[1, tea]", ...] in order
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

_root = str(Path(__file__).resolve().parents[2])
if _root not in sys.path:
    sys.path.append(_root)

from exams_cache import HERE, fluss_flink_class_path  # noqa: E402

from tests.java_programs import JavaProgram, compiled, java_command  # noqa: E402

_OPENED = ("java.base/java.nio", "java.base/java.util", "java.base/java.lang")
_HEAP_MB = 640
_ANSWER_SECONDS = 400.0


class FlussFlinkError(Exception):
    """What Fluss or Flink failed with: the chain of causes, each with the place that threw it."""


class FlussFlink:
    """A running mini cluster. Making one raises `ExamUnavailable` where the jars cannot be had."""

    def __init__(self, bootstrap_servers: str, warehouse: Path) -> None:
        jars = fluss_flink_class_path()
        classes = compiled([HERE / "java" / "flink" / "FlussFlinkExam.java"], jars, "fluss-flink-exam")
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
        quiet = "-Dorg.apache.logging.log4j.level=OFF"
        command = java_command(classes, jars, "FlussFlinkExam", _HEAP_MB, [*opened, quiet])
        self._program = JavaProgram("fluss-flink", [*command, bootstrap_servers, str(warehouse)], _ANSWER_SECONDS)

    def tier(self) -> None:
        """Start the tiering service."""
        self._answer("tier")

    def sql(self, query: str) -> list[str]:
        """The rows of a batch query as Flink writes them, in order. Raises `FlussFlinkError`."""
        answer = self._answer(f"sql {query}")
        return answer.split(";") if answer else []

    def _answer(self, request: str) -> str:
        answer = self._program.answer(request)
        if answer.startswith("ERROR"):
            raise FlussFlinkError(answer)
        return answer

    def __enter__(self) -> FlussFlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.close()
