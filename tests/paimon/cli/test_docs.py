"""The examples of docs/paimon.md and docs/merge-engines.md run as they stand, and print what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "paimon.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, f"{shlex.join(command)[-300:]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_examples_run(tmp_path: Path) -> None:
    printed = _run([sys.executable, "-c", "\n".join(_blocks("python"))], tmp_path)
    for line in (
        "['orders', 'visits']",
        "there is no column 'amuont'; columns are id, customer, item, amount; did you mean 'amount'?",
        "['-U', '+U']",
        "[{'item': 'rum', 'amount': 10.0}]",
        "{'order': 99, 'item': None, 'amount': None}",
        "{'id': 2, 'what': 'tea', 'note': None}",
    ):
        assert line in printed, printed
    for line in ("4", "5 3"):
        assert re.search(f"^{line}$", printed, re.MULTILINE), printed
    commands = [line for block in _blocks("sh") for line in block.splitlines()]
    assert len(commands) == 18
    outputs = [_run([sys.executable, "-m", *shlex.split(line)], tmp_path) for line in commands]
    assert outputs[0].splitlines() == ["sales.orders", "sales.visits"]
    assert "primary-key table" in outputs[1]
    assert outputs[2].startswith("id,customer,what,amount,note\n")
    assert "sales.orders has 2 buckets" in outputs[7]
    assert "before-tests" in outputs[12]
    assert outputs[17].count("sales.") == 2


def test_the_example_of_merge_engines_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "merge-engines.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    promised = [line.removeprefix("# ") for line in program.splitlines() if line.startswith("# [")]
    assert _run([sys.executable, "-c", program], tmp_path).splitlines() == promised
