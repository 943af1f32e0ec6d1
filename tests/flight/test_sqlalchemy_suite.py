"""SQLAlchemy's own tests for dialects, which its pytest plugin runs in a process of its own.

`sqlalchemy_suite/support.toml` says what the dialect supports, and which tests fail for what reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(__file__).with_name("sqlalchemy_suite")
SUPPORT = tomllib.loads((SUITE / "support.toml").read_text(encoding="utf-8"))
"""What is not as the suite has it by default, and how its tests end."""

SAMPLE = "CTETest or BitwiseTest or ArrayTest"

pytestmark = pytest.mark.skipif(
    not sa.__version__.startswith(f"{SUPPORT['sqlalchemy']}."),
    reason=f"the outcomes are those of SQLAlchemy {SUPPORT['sqlalchemy']}",
)


def outcomes_of_suite(folder: Path, *arguments: str) -> dict[str, tuple[str, str]]:
    """The outcome and the reason of each test that the arguments choose."""
    found = folder / "outcomes.jsonl"
    command = [
        sys.executable, "-m", "pytest", "-c", SUITE / "setup.cfg", "--rootdir", SUITE, SUITE / "suite.py", *arguments
    ]  # fmt: skip
    environment = {**os.environ, "FOREBAY_SUITE_OUTCOMES": str(found)}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert run.returncode in (0, 1), run.stdout[-3000:]  # all passed, or some failed
    lines = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    return {line["test"]: (line["outcome"], line["reason"]) for line in lines}


def is_named(test: str, names: set[str]) -> bool:
    """Whether a test is among the names: with its parameters, or without them for all of its cases."""
    return test in names or test.partition("[")[0] in names


def names_in(section: str) -> set[str]:
    return {name for names in SUPPORT[section].values() for name in names}


def unexpected(outcomes: dict[str, tuple[str, str]]) -> Iterator[str]:
    """What is not as `support.toml` says, a line each."""
    known, unsteady = names_in("fails"), names_in("either")
    for test, (outcome, reason) in outcomes.items():
        if is_named(test, unsteady):
            continue
        if outcome == "failed" and not is_named(test, known):
            yield f"{test} fails: {reason[-1500:]}"
        if outcome != "failed" and is_named(test, known):
            yield f"{test} is {outcome}, and not failed as support.toml says: take it out there"


def test_a_sample_of_the_suite_ends_as_it_is_said_to(tmp_path: Path) -> None:
    outcomes = outcomes_of_suite(tmp_path, "-k", SAMPLE)
    assert list(unexpected(outcomes)) == []
    assert Counter(outcome for outcome, _ in outcomes.values())["passed"] >= SUPPORT["passed_in_sample"]


@pytest.mark.slow  # minutes of CPU: about a thousand statements, each of which has a DuckDB of its own
@pytest.mark.timeout(3600)
def test_the_whole_suite_ends_as_it_is_said_to(tmp_path: Path) -> None:
    outcomes = outcomes_of_suite(tmp_path)
    assert list(unexpected(outcomes)) == []
    assert Counter(outcome for outcome, _ in outcomes.values())["passed"] >= SUPPORT["passed"]
    assert {name for name in names_in("fails") if not any(is_named(test, {name}) for test in outcomes)} == set()
