"""What tools/mutants.py asks of pytest: which tests failed, and which lines of our modules each test runs.

Loaded by `-p tools.mutants_plugin`. MUTANTS_FAILED names a file that gets the names of failing tests, a line each;
MUTANTS_COVERAGE one that gets the lines, as data of coverage.py with a context for each test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_FAILED = os.environ.get("MUTANTS_FAILED")
_COVERAGE = os.environ.get("MUTANTS_COVERAGE")
_measured = coverage.Coverage(data_file=_COVERAGE, source_pkgs=["forebay"], config_file=False) if _COVERAGE else None


def pytest_configure() -> None:
    if _measured is not None:
        # Forebay's own plugin for pytest has imported some modules; only what tests run is asked for.
        _measured.set_option("run:disable_warnings", ["module-not-measured"])
        _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _measured is not None:
        _measured.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _FAILED and report.failed:
        with Path(_FAILED).open("a") as file:
            file.write(f"{report.nodeid}\n")


def pytest_unconfigure() -> None:
    if _measured is not None:
        _measured.stop()
        _measured.save()
