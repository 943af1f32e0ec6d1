"""Figures of long trials: a JSON file for each in docs/results/, from which tools/proofs makes docs/correctness.md.

Trials call `write` on request: with `--write`, or WRITE_RESULTS=1 if pytest runs them (`write_if_wanted`). `make
proofs` has them write into a folder of its own (RESULTS_FOLDER), and adds up what their chunks have counted.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.proofs import page
from tools.proofs.history import Repository

ROOT = Path(__file__).parents[1]


def folder() -> Path:
    """Where figures are kept: docs/results, unless RESULTS_FOLDER says otherwise."""
    return Path(os.environ.get("RESULTS_FOLDER") or page.RESULTS)


def commit() -> str:
    """The commit of the code, with a "+" behind it where it has changes beside it."""
    return Repository(ROOT).commit()


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
    path = folder() / f"{trial}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**figures, **about}, indent=2) + "\n")
    if path.parent == page.RESULTS:
        try:
            page.write_page()
        except RuntimeError as e:
            print(f"docs/correctness.md is not written: {e}", file=sys.stderr)
    return path


def write_if_wanted(trial: str, figures: Mapping[str, Any]) -> None:
    """`write` if the environment says WRITE_RESULTS=1: for trials that are tests, too."""
    if os.environ.get("WRITE_RESULTS") == "1":
        write(trial, figures)
