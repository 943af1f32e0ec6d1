"""docs/correctness.md agrees with the results of the trials, and names existing tests and commands."""

from __future__ import annotations

import re
from pathlib import Path

from tools import mutants

from tests import results

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "correctness.md").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_figures_are_those_that_the_trials_wrote() -> None:
    assert results.with_table(PAGE) == PAGE, "run `python -m tests.results`"


def test_every_command_exists() -> None:
    commands = re.findall(r"`(?:[A-Z_]+=\S+ )*make ([a-z-]+)", PAGE)
    assert len(commands) > 5
    assert set(commands) <= TARGETS


def test_every_test_and_file_exists() -> None:
    names = re.findall(r"`(tests/[\w/.]+?)(?:::(\w+))?(?:\[.*?\])?`", PAGE)
    assert len(names) > 10
    for file, function in names:
        assert (ROOT / file).exists(), file
        if function:
            assert f"def {function}(" in (ROOT / file).read_text(), f"{file}::{function}"


def test_every_mutant_that_is_known_to_be_equivalent_exists() -> None:
    """A line that no longer fits the code would hide nothing, and mislead who reads it."""
    known = mutants.equivalent()
    assert known
    modules = {ROOT / name.split(" ", 1)[0] for name in known}
    assert all(path.exists() for path in modules), modules
    assert known <= {mutant.name for path in modules for mutant in mutants.mutants_of(path)}
