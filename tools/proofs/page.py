"""The table of counts in docs/correctness.md.

Each count has its commit and date, and how many lines have changed since of the code that it vouches for. The table is
text: later commits make its numbers of lines older, which is harmless until a count that is shown as current has become
stale. `make proofs-page` writes the table again, and tests/house/test_correctness_page.py says when it has to be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.proofs.history import Change, Repository
from tools.proofs.trials import TRIALS, Trial

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "correctness.md"

LINES_MAX = 100
"""So many lines may have been added or removed in the code that a count vouches for before the count is stale."""

CURRENT, PARTIAL, STALE, UNKNOWN, FAILED, NEVER = "current", "part", "stale", "unknown", "FAILED", "never run"

_TABLE = re.compile(r"(<!-- results: make proofs-page -->\n).*?(<!-- end of results -->)", re.DOTALL)
_ROW = re.compile(
    r"^\| `(?P<name>[\w.-]+)` \|(?P<counted>.*)\| [^|]* \| \**(?P<state>[^*|:]+?)\**(: [^|]*)? \|$", re.MULTILINE
)
_NOT_SHOWN = ("date", "commit", "cores", "outcome", "again", "not_run", "parts", "code")


@dataclass(frozen=True)
class Row:
    """A line of the table. `counted` are the columns that do not depend on what has changed since."""

    name: str
    counted: str
    lines: str
    state: str
    why: str = ""

    def __str__(self) -> str:
        state = self.state if self.state == CURRENT else f"**{self.state}**"
        return f"| `{self.name}` |{self.counted}| {self.lines} | {state}{self.why and f': {self.why}'} |"


def row_of(trial: Trial, figures: dict[str, Any], repository: Repository) -> Row:
    """The row of a trial from what is kept of it (`figures`; empty if nothing is)."""
    counted = _counted(figures)
    if "commit" not in figures:
        not_run = figures.get("not_run")
        return Row(trial.name, counted, "", NEVER, not_run["reason"] if not_run else "")
    change = repository.since(figures["commit"], trial.vouches, trial.own)
    lines = "?" if change.missing else f"{change.vouched_lines:,}"
    state, why = _state(trial, figures, change)
    if "not_run" in figures:
        not_run = figures["not_run"]
        told = f"not run at {not_run['commit']}, {not_run['reason']}"
        why = f"{why}; {told}" if why else told
    return Row(trial.name, counted, lines, state, why)


def holds(trial: Trial, commit: str, repository: Repository) -> bool:
    """Whether what a trial has counted at a commit still counts: no line of its own, and few others, have changed."""
    return _outdated_by(repository.since(commit, trial.vouches, trial.own)) is None


def _counted(figures: dict[str, Any]) -> str:
    if "commit" not in figures:
        return " | "
    shown = "; ".join(f"{_words(name)}: {_shown(value)}" for name, value in figures.items() if _is_shown(name, value))
    return f" {shown} | {figures.get('date', '?')}, {figures['commit']} "


def _outdated_by(change: Change) -> tuple[str, str] | None:
    """The state of a count that no longer counts after a change, and why; None if it still does."""
    if change.missing:
        return UNKNOWN, change.missing
    if change.own_lines:
        return STALE, f"{change.own_lines:,} lines of the trial itself have changed"
    if change.vouched_lines > LINES_MAX:
        return STALE, "the code has changed"
    return None


def _state(trial: Trial, figures: dict[str, Any], change: Change) -> tuple[str, str]:
    outdated = _outdated_by(change)
    if outdated is not None:
        return outdated
    if figures.get("outcome", "passed") != "passed":
        return FAILED, f"again by `{figures.get('again', trial.name)}`"
    if trial.unit != "runs" and figures.get(trial.unit, trial.amount) < trial.amount:
        return PARTIAL, f"{figures[trial.unit]:,} of {trial.amount:,} {trial.unit}"
    return CURRENT, ""


def _is_shown(name: str, value: Any) -> bool:
    return name not in _NOT_SHOWN and (not isinstance(value, dict | list) or not value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: Any) -> str:
    if not value and isinstance(value, dict | list):
        return "none"
    return f"{value:,}" if isinstance(value, int | float) and value < 1e9 else str(value)


def kept(trial: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What is kept of a trial; nothing before its first run."""
    path = folder / f"{trial}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def rows(repository: Repository, folder: Path = RESULTS, trials: Sequence[Trial] = TRIALS) -> list[Row]:
    return [row_of(trial, kept(trial.name, folder), repository) for trial in trials]


def counted(folder: Path = RESULTS, trials: Sequence[Trial] = TRIALS) -> list[tuple[str, str]]:
    """Of each row the name, and the columns that do not depend on what has changed since."""
    return [(trial.name, _counted(kept(trial.name, folder))) for trial in trials]


def outdated(shown: Sequence[Row], found: Mapping[str, Row], *, is_shallow: bool) -> tuple[list[str], list[str]]:
    """Names of the counts that a page shows as current and that are not, by the rows of today (`found`).

    Apart: those of which a shallow clone cannot tell, because it has not their commits.
    """
    current = [row.name for row in shown if row.state == CURRENT]
    not_known = [name for name in current if is_shallow and found[name].state == UNKNOWN]
    return [name for name in current if found[name].state != CURRENT and name not in not_known], not_known


def table(found: Sequence[Row]) -> str:
    """The table in Markdown, with a line before it that says how many counts are current."""
    current = sum(row.state == CURRENT for row in found)
    lines = [f"Current: {current} of {len(found)}.", "", "| trial | counted | run | lines changed since | state |"]
    return "\n".join([*lines, "|---|---|---|---|---|", *map(str, found)])


def with_table(page: str, found: Sequence[Row]) -> str:
    """The page with this table in its place."""
    return _TABLE.sub(lambda place: f"{place[1]}{table(found)}\n{place[2]}", page)


def rows_of(page: str) -> list[Row]:
    """The rows that a page has."""
    place = _TABLE.search(page)
    text = place[0] if place else ""
    return [Row(row["name"], row["counted"], "", row["state"]) for row in _ROW.finditer(text)]


def write_page(root: Path = ROOT) -> None:
    """Write the table. Raises `RuntimeError` where the history does not tell what has changed."""
    repository = Repository(root)
    if not repository.is_available():
        raise RuntimeError(
            f"{root} is no git repository, or git is not installed: the lines changed since are not known"
        )
    if repository.is_shallow():
        raise RuntimeError("this clone has not the whole history: run `git fetch --unshallow`, then `make proofs-page`")
    PAGE.write_text(with_table(PAGE.read_text(), rows(repository)))
