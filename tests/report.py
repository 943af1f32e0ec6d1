"""What a run of the tests reports: what failed, and how long all took, which also orders the next run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOGETHER = ("tests/spark/", "tests/paimon/catalog/")
"""The tests below a folder share a JVM with Spark, or one with a metastore, so one process has them all: to start it,
and to run everything in it for the first time, takes up to 30 CPU seconds. The first is what takes longest."""

_MEASURED = "forebay/seconds"
_GUESSES = (
    (r"ServerProcess|ProcessGroup|subprocess|multiprocessing|start_process", 1.0),
    (r"EmbeddedServer|embedded\(|lake_cluster|running\(|\bWorld\b|hypothesis", 0.3),
)
"""Seconds of a test in a file that was never measured, by what is in the file; 0.03 where none of it is."""


def file_of(node: str) -> str:
    return node.partition("::")[0]


def scope_of(file: str) -> str:
    """What is tested in one process: the file, or the folder that has it together."""
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def _guess(file: str) -> float:
    text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
    return max((seconds for pattern, seconds in _GUESSES if re.search(pattern, text)), default=0.03)


def order_of_files(config: pytest.Config, tests: Mapping[str, int]) -> list[str]:
    """The files that have so many tests: first those that take longest, as measured by the last run, or guessed."""
    cache = getattr(config, "cache", None)
    measured = cache.get(_MEASURED, {}) if cache is not None else {}
    seconds = {file: measured.get(file, number * _guess(file)) for file, number in tests.items()}
    scopes: Counter[str] = Counter()
    for file, taken in seconds.items():
        scopes[scope_of(file)] += taken
    return sorted(
        tests, key=lambda file: (not file.startswith(TOGETHER), -scopes[scope_of(file)], -seconds[file], file)
    )


class Report:
    """Collects outcomes and times in the process that shows them. With `path` they are written there as JSON, and the
    times of files are remembered."""

    def __init__(self, config: pytest.Config, path: str | None) -> None:
        self._config, self._path = config, path
        self._seconds: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._note_failure(report)
        if report.failed or report.skipped or report.when == "call":
            self._counts[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note_failure(report)
            self._counts["failed"] += 1

    def _note_failure(self, report: Any) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(crash.message if crash is not None else report.longrepr).strip()
        lines = text.splitlines() or ["without a message"]
        self._failed.setdefault(report.nodeid, (lines[0] if crash is not None else lines[-1])[:200])

    def pytest_sessionfinish(self) -> None:
        if self._path is None:
            return
        files: Counter[str] = Counter()
        for node, seconds in self._seconds.items():
            files[file_of(node)] += seconds
        cache = getattr(self._config, "cache", None)
        if cache is not None:
            measured = cache.get(_MEASURED, {}) | {file: round(seconds, 2) for file, seconds in files.items()}
            cache.set(_MEASURED, {file: seconds for file, seconds in measured.items() if (ROOT / file).exists()})
        slowest = {node: round(seconds, 3) for node, seconds in self._seconds.most_common(100)}
        found = {"counts": dict(self._counts), "failed": self._failed, "seconds": slowest}
        Path(self._path).write_text(json.dumps(found))
