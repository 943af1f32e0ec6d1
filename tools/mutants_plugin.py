"""What tools/mutants.py asks of pytest: which tests failed, which lines of our modules each test runs, and how long.

Loaded by `-p tools.mutants_plugin`. MUTANTS_FAILED names a file that gets the names of failing tests, a line each;
MUTANTS_COVERAGE one that gets the lines, as data of coverage.py with a context for each test; MUTANTS_DURATIONS one
that gets the seconds of each test, in JSON. MUTANTS_LIMITS names a file with the seconds that each test may take: one
that takes longer is noted as failed, and ends the process. (To raise an error in it would not do: Hypothesis, for one,
would run the test again.)
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_FAILED = os.environ.get("MUTANTS_FAILED")
_COVERAGE = os.environ.get("MUTANTS_COVERAGE")
_DURATIONS = os.environ.get("MUTANTS_DURATIONS")
_LIMITS = os.environ.get("MUTANTS_LIMITS")
_measured = coverage.Coverage(data_file=_COVERAGE, source_pkgs=["forebay"], config_file=False) if _COVERAGE else None
_durations: Counter[str] = Counter()
_limits: dict[str, float] = json.loads(Path(_LIMITS).read_text()) if _LIMITS else {}


def pytest_configure() -> None:
    if _measured is not None:
        # Forebay's own plugin for pytest has imported some modules; only what tests run is asked for.
        _measured.set_option("run:disable_warnings", ["module-not-measured"])
        _measured.set_option("run:relative_files", True)
        _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _measured is not None:
        _measured.switch_context(item.nodeid)
    if item.nodeid not in _limits:
        return (yield)
    watchdog = threading.Timer(_limits[item.nodeid], _end, [item.nodeid])
    watchdog.daemon = True
    watchdog.start()
    try:
        return (yield)
    finally:
        watchdog.cancel()


def _end(test: str) -> None:
    _note_failure(test)
    os._exit(1)


def _note_failure(test: str) -> None:
    if _FAILED:
        with Path(_FAILED).open("a") as file:
            file.write(f"{test}\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _durations[report.nodeid] += report.duration
    if report.failed:
        _note_failure(report.nodeid)


def pytest_unconfigure() -> None:
    if _measured is not None:
        _measured.stop()
        _measured.save()
    if _DURATIONS:
        Path(_DURATIONS).write_text(json.dumps(_durations))
