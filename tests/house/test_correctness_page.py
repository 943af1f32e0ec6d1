"""docs/correctness.md agrees with the results of the trials and with git, and names existing tests and commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import mutants
from tools.proofs import page
from tools.proofs.history import Repository
from tools.proofs.trials import TRIALS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "correctness.md").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_figures_are_those_that_the_trials_wrote() -> None:
    assert {path.stem for path in page.RESULTS.glob("*.json")} <= {trial.name for trial in TRIALS}
    shown = [(row.name, row.counted) for row in page.rows_of(PAGE)]
    assert shown == page.counted(), "run `make proofs-page`"


def test_no_count_is_shown_as_current_though_its_code_has_changed() -> None:
    """A count that is shown as stale, and is not, does no harm; the next `make proofs-page` puts it right."""
    repository = Repository(ROOT)
    if not repository.is_available():
        pytest.skip("this is no git repository: what has changed since the counts is not known")
    found = {row.name: row for row in page.rows(repository)}
    wrong, not_known = page.outdated(page.rows_of(PAGE), found, is_shallow=repository.is_shallow())
    assert not wrong, f"run `make proofs-page`: it shows as current what is not any more: {', '.join(wrong)}"
    if not_known:
        pytest.skip(f"this clone is shallow, and has not the commits of {', '.join(not_known)}")


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
