"""The pytest plugin of tools/mutants.py: failing tests, the lines of our modules that each test runs, and durations.

Loaded by `-p tools.mutants_plugin`. MUTANTS_FAILED names a file for the names of failing tests, one per line;
MUTANTS_COVERAGE one for the lines, as data of coverage.py with a context for each test; MUTANTS_DURATIONS one for the
seconds of each test, in JSON. MUTANTS_LIMITS names a file with the time limit of each test: a test that exceeds it is
recorded as failed, and ends the process. (Raising an error in the test does not work: Hypothesis, for example, would
run the test again.)
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import coverage
import pytest

SETUP_SECONDS = 60.0
"""How much longer the preparation of a test may take: it may be the first one that needs a server that many share, such
as a Hive metastore, whose start was measured as a part of another test."""

_FAILED = os.environ.get("MUTANTS_FAILED")
_COVERAGE = os.environ.get("MUTANTS_COVERAGE")
_DURATIONS = os.environ.get("MUTANTS_DURATIONS")
_LIMITS = os.environ.get("MUTANTS_LIMITS")
_measured = coverage.Coverage(data_file=_COVERAGE, source_pkgs=["forebay"], config_file=False) if _COVERAGE else None
_durations: Counter[str] = Counter()
_limits: dict[str, float] = json.loads(Path(_LIMITS).read_text()) if _LIMITS else {}


def pytest_configure() -> None:
    if _measured is not None:
        # Forebay's own pytest plugin has imported some modules; only lines that tests run are measured.
        _measured.set_option("run:disable_warnings", ["module-not-measured"])
        _measured.set_option("run:relative_files", True)
        _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if _measured is not None:
        _measured.switch_context(item.nodeid)
    with _watched(item, SETUP_SECONDS):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _watched(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _watched(item):
        return (yield)


@contextmanager
def _watched(item: pytest.Item, more_seconds: float = 0.0) -> Iterator[None]:
    """End the process if a phase of the test takes longer than its limit."""
    if item.nodeid not in _limits:
        yield
        return
    watchdog = threading.Timer(_limits[item.nodeid] + more_seconds, _end, [item.nodeid])
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
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
