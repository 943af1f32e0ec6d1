"""The notebook docs/tutorial.ipynb runs as it stands and prints what it shows.

`python -m tests.docs.test_tutorial` writes what its cells print into the notebook.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tools.site import notebook_output

from forebay.client.connection import Connection
from tests.docs.blocks import ROOT

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def run(code: str, names: dict[str, Any]) -> tuple[str, str]:
    """What a cell prints, and the text of its last expression, as Jupyter shows it."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None
    return printed.getvalue(), "" if value is None else repr(value)


def outputs(printed: str, value: str, count: int) -> list[dict[str, Any]]:
    """The same in the format of notebooks."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value:
        data = {"text/plain": value.splitlines(keepends=True)}
        found.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return found


def executed(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of a notebook's cells of code, which are run in order."""
    names: dict[str, Any] = {}
    codes = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    try:
        return [outputs(*run(code, names), count) for count, code in enumerate(codes, 1)]
    finally:
        for value in names.values():
            if isinstance(value, Connection):
                value.close()


def test_the_notebook_runs_and_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    shown = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, found in zip(shown, executed(notebook), strict=True):
        assert notebook_output({"outputs": found}) == notebook_output(cell), "".join(cell["source"])


if __name__ == "__main__":
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, (cell, found) in enumerate(zip(cells, executed(notebook), strict=True), 1):
        cell["outputs"], cell["execution_count"] = found, count
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
