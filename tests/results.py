"""Figures of long trials: one JSON file each in docs/results/, and the table of them in docs/correctness.md.

Trials call `write` on request: with `--write`, or WRITE_RESULTS=1 if pytest runs them (`write_if_wanted`). `python -m
tests.results` rewrites the table; `tests/house/test_correctness_page.py` checks that it agrees with the files.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "correctness.md"
_TABLE = re.compile(r"(<!-- results: python -m tests\.results -->\n).*?(<!-- end of results -->)", re.DOTALL)


def commit() -> str:
    """The commit of the sources, with a "+" behind it where they have changes beside it."""
    git = ("git", "-C", str(ROOT))
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    changes = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src", "tests"], check=False).returncode
    return name.strip() + ("+" if changes else "")


def read(trial: str) -> dict[str, Any]:
    """The figures that are kept of a trial; none before its first run."""
    path = FOLDER / f"{trial}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write(trial: str, figures: Mapping[str, Any], at_commit: str | None = None) -> Path:
    """Keep the figures of a trial, in the order in which they are to be shown. Returns the file.

    `trial`: the target of make; parts of a trial that run one after the other follow a dot ("kill-trials.lmdb"). Date
    and commit (`at_commit`, or that of now) are added. What nests is kept in the file and not shown in the table,
    unless it is empty.
    """
    about = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": at_commit or commit(),
        "cores": os.cpu_count(),
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{trial}.json"
    path.write_text(json.dumps({**figures, **about}, indent=2) + "\n")
    write_page()
    return path


def write_if_wanted(trial: str, figures: Mapping[str, Any]) -> None:
    """`write` if the environment says WRITE_RESULTS=1: for trials that are tests, too."""
    if os.environ.get("WRITE_RESULTS") == "1":
        write(trial, figures)


def table() -> str:
    """All figures as a table in Markdown, a line for each trial."""
    lines = ["| trial | figures | run |", "|---|---|---|"]
    for path in sorted(FOLDER.glob("*.json")):
        figures = json.loads(path.read_text())
        run = ", ".join(f"{figures.pop(name, '?')}" for name in ("date", "commit"))
        shown = "; ".join(f"{_words(name)}: {_shown(value)}" for name, value in figures.items() if _is_shown(value))
        target, _, part = path.stem.partition(".")
        lines.append(f"| `make {target}`{part and f', {part}'} | {shown} | {run} |")
    return "\n".join(lines)


def _is_shown(value: Any) -> bool:
    return not isinstance(value, dict | list) or not value


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: Any) -> str:
    if not value and isinstance(value, dict | list):
        return "none"
    return f"{value:,}" if isinstance(value, int | float) and value < 1e9 else str(value)


def with_table(page: str) -> str:
    """The page with the table of today's figures in its place."""
    return _TABLE.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", page)


def write_page() -> None:
    """Write the table into docs/correctness.md."""
    PAGE.write_text(with_table(PAGE.read_text()))


if __name__ == "__main__":
    write_page()
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
