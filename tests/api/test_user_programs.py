"""Type checkers understand the API: right programs pass, and mistakes are reported on their lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
WRONG = {n for n, line in enumerate((PROGRAMS / "wrong.py").read_text().splitlines(), 1) if line.endswith("# wrong")}


def checked(command: list[str]) -> dict[str, set[int]]:
    """The lines of each program in which a checker finds errors."""
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=PATIENCE, check=False
    )
    found: dict[str, set[int]] = {"right.py": set(), "wrong.py": set()}
    for line in done.stdout.splitlines():
        if match := re.search(r"(right|wrong)\.py:(\d+)(?::\d+)?(?: -|:) error", line):
            found[f"{match[1]}.py"].add(int(match[2]))
    assert done.returncode == 1, done.stdout + done.stderr  # there are errors, and nothing worse
    return found


def test_mypy_passes_what_is_right_and_finds_what_is_wrong() -> None:
    programs = [str(PROGRAMS / name) for name in ("right.py", "wrong.py")]
    found = checked([sys.executable, "-m", "mypy", *programs])
    assert found == {"right.py": set(), "wrong.py": WRONG}


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("basedpyright") is None, reason="needs basedpyright on PATH (pip install basedpyright)"
)
def test_pyright_passes_what_is_right_and_finds_what_is_wrong() -> None:
    programs = [str(PROGRAMS / name) for name in ("right.py", "wrong.py")]
    found = checked(["basedpyright", "--level", "error", "--pythonpath", sys.executable, *programs])
    assert found == {"right.py": set(), "wrong.py": WRONG}
