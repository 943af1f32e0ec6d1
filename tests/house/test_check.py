"""The last lines of `make test`, and the order in which it tests files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tools import check

from tests.report import TOGETHER, order_of_files

pytest_plugins = ["pytester"]


def test_the_last_lines_say_what_failed_and_how_to_run_it_again() -> None:
    tests: dict[str, Any] = {
        "counts": {"passed": 11_000, "failed": 1, "skipped": 0},
        "failed": {"tests/a.py::test_b[it's-1]": "assert 1 == 2"},
        "seconds": {"tests/a.py::quick": 0.25, **{f"tests/a.py::slow{n}": n for n in range(1, 30)}},
    }
    lines = check.summary([check.Step("types", (".venv/bin/mypy",))], tests, 725.0, 1201.0)
    assert lines[:3] == [
        "FAILED types; again: .venv/bin/mypy",
        "FAILED tests/a.py::test_b[it's-1]: assert 1 == 2",
        "  again: .venv/bin/python -m pytest 'tests/a.py::test_b[it'\"'\"'s-1]'",
    ]
    assert lines[3:5] == ["slowest tests, in seconds:", "   29.0  tests/a.py::slow29"]
    assert len(lines) == 3 + 1 + check.SLOWEST_SHOWN + 2
    assert lines[-2:] == [
        "tests: 11,000 passed, 1 failed",
        "FAILED in 12 min 05 s, with 20 min 01 s of CPU (user and system, without Spark's JVM)",
    ]


def test_very_many_failures_are_cut_short() -> None:
    failed = {f"tests/a.py::test_{n}": "no" for n in range(check.FAILURES_SHOWN + 2)}
    lines = check.summary([], {"counts": {"failed": len(failed)}, "failed": failed, "seconds": {}}, 1, 1)
    assert "and 2 more; again: .venv/bin/python -m pytest --last-failed" in lines


def test_a_run_in_which_all_is_well_says_so() -> None:
    assert check.summary([], {"counts": {"passed": 2}, "failed": {}, "seconds": {}}, 61, 5) == [
        "tests: 2 passed",
        "passed in 1 min 01 s, with 0 min 05 s of CPU (user and system, without Spark's JVM)",
    ]


def test_steps_beside_the_tests_show_what_they_say_after_them(capfd: pytest.CaptureFixture[str]) -> None:
    good, bad = check.Step("good", ("echo", "all is well")), check.Step("bad", ("sh", "-c", "echo it is not; exit 3"))
    with check.beside([good, bad]) as failed:
        print("tests", flush=True)
    assert failed == [bad]
    assert capfd.readouterr().out == "tests\n\n== good\nall is well\n\n== bad\nit is not\n"


def test_a_run_reports_failures_of_each_kind_and_the_seconds_of_all(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from tests.report import Report

        def pytest_configure(config):
            config.pluginmanager.register(Report(config, "report.json"))
        """
    )
    pytester.makepyfile(
        test_a="""
        import pytest

        @pytest.fixture
        def broken():
            raise OSError("no disk")

        def test_good(): ...
        def test_bad():
            assert 1 == 2, "numbers"
        def test_not_begun(broken): ...
        def test_skipped():
            pytest.skip("not here")
        """,
        test_b="import no_such_module",
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "--continue-on-collection-errors", "-p", "no:forebay")
    found = check._read(Path("report.json"))
    assert found is not None
    assert found["counts"] == {"failed": 3, "passed": 1, "skipped": 1}
    assert found["failed"]["test_a.py::test_bad"].startswith("AssertionError: numbers")
    assert found["failed"]["test_a.py::test_not_begun"] == "OSError: no disk"
    assert "no_such_module" in found["failed"]["test_b.py"]
    assert {"test_a.py::test_good", "test_a.py::test_not_begun"} <= set(found["seconds"])


def test_files_that_took_longest_are_tested_first_and_those_that_share_a_jvm_before_all(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {"tests/kv/test_a.py": 5.0, "tests/kv/test_b.py": 50.0, f"{TOGETHER[0]}test_c.py": 1.0}
    monkeypatch.setattr(request.config.cache, "get", lambda _key, _default: measured)
    tests = dict.fromkeys([*measured, "tests/kv/test_new.py"], 7)
    assert order_of_files(request.config, tests) == [
        f"{TOGETHER[0]}test_c.py", "tests/kv/test_b.py", "tests/kv/test_a.py", "tests/kv/test_new.py"
    ]  # fmt: skip
