"""Settings for the whole test suite."""

from __future__ import annotations

import logging
import os
import signal
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from forebay.base import thread_rules
from tests.report import Report, file_of, order_of_files, scope_of

# Marked code checks its thread, also in modules that are imported from here on (all of the server).
thread_rules.is_checking = True

# Runs are repeatable everywhere; `make properties` (profile "explore") looks for new examples, many more of them.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=15, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# For tools/mutants.py, to whom a failure is enough: to look for its smallest example takes minutes.
settings.register_profile(
    "mutants",
    settings.get_profile("repeatable"),
    max_examples=100,
    phases=(Phase.explicit, Phase.generate),
    database=None,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A command that runs in the tests' process settles where its log goes: for that test, and for none after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
    root.setLevel(level)


class _Cases:
    """Numbers of the cases of tests: the sum of the places that a case's values have among those of their parameters.

    So each n-th number has as many cases of each value.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Path, str, str], dict[int, int]] = {}

    def number(self, item: Any) -> int:
        test = item.nodeid.partition("[")[0]
        params = dict(item.callspec.params)
        for mark in item.iter_markers("parametrize"):
            names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
            for name in names[1:]:  # they have their values together
                del params[name.strip()]
        total = 0
        for name, value in params.items():
            places = self._values.setdefault((item.path, test, name), {})
            total += places.setdefault(id(value), len(places))
        return total


LAKES = ("memory", "paimon", "iceberg")


def _leave_lakes_to_others(items: list[pytest.Item]) -> None:
    """Of a test that is there for several lakes one runs each time, another one than of other tests."""
    lakes: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        for name in ("both", "any_lake", "lake") if callspec and not item.get_closest_marker("one_in") else ():
            lake = callspec.params.get(name)
            if lake in LAKES:
                lakes.setdefault(item.nodeid.partition("[")[0], {}).setdefault(lake, []).append(item)
    for test, found in lakes.items():
        chosen = sorted(found)[zlib.crc32(test.encode()) % len(found)]
        for item in (item for lake, others in found.items() if lake != chosen for item in others):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes the slowest files are tested first: at the end none waits for another that has begun a
    long one.

    Of a test that is `one_in(n)`, some cases run each time, and all others are slow; so it is with several lakes.
    """
    _leave_lakes_to_others(items)
    cases = _Cases()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None and cases.number(item) % mark.args[0]:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        order = order_of_files(config, Counter(file_of(item.nodeid) for item in items))
        places = {file: place for place, file in enumerate(order)}
        items.sort(key=lambda item: places[file_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, the tests that share a JVM go to one process, and any other file as a whole."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(super()._split_scope(nodeid))

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by `make test &`, and so would programs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(config, os.environ.get("TEST_REPORT")))
