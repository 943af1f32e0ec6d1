"""The example of docs/lake.md runs as it stands, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "lake.md").read_text(encoding="utf-8")


def test_the_round_by_hand_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
    said = re.search(r"^It prints `(.*)`\.$", PAGE, re.MULTILINE)
    assert said is not None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(program, "docs/lake.md", "exec"), {})
    assert out.getvalue().strip() == said[1]


def test_the_same_round_runs_in_iceberg_and_pyiceberg_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    said = re.findall(r"^prints `(.*)`\.$", PAGE, re.MULTILINE)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for program in (programs[0].replace('"paimon"', '"iceberg"'), *programs[1:3]):
            exec(compile(program, "docs/lake.md", "exec"), {})
    assert out.getvalue().splitlines()[1:] == said
