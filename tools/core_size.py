"""The size of the core and of its satellites, by package, here or at two commits.

`python -m tools.core_size` counts the working tree; with a commit it compares the tree with that commit. Lines of code
are lines without blank ones, comments and docstrings. Generated code does not count. The satellites are those of the
import contract "The core imports no satellite", also for older commits.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = "src/forebay"
SUFFIXES = (".py", ".pyx", ".pxd")
GENERATED = ("_pb2.py",)
CONTRACT = "The core imports no satellite"


def satellites() -> frozenset[str]:
    """The names of the satellites below the package `forebay`. Raises `StopIteration` without their contract."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    names = next(each["forbidden_modules"] for each in contracts if each["name"] == CONTRACT)
    return frozenset(name.removeprefix("forebay.") for name in names)


def sources_here() -> Iterator[tuple[str, str]]:
    """Each source file of the working tree: its path below the package, and its text."""
    root = PROJECT / SOURCE
    for path in sorted(root.rglob("*")):
        if is_counted(path.name):
            yield str(path.relative_to(root)), path.read_text()


def sources_at(commit: str) -> Iterator[tuple[str, str]]:
    """The same for a commit. Raises `CalledProcessError` if git does not know it."""
    archive = subprocess.run(["git", "archive", commit, SOURCE], cwd=PROJECT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            content = files.extractfile(member) if is_counted(member.name) else None
            if content is not None:
                yield member.name.removeprefix(f"{SOURCE}/"), content.read().decode()


def is_counted(name: str) -> bool:
    """Whether a file of this name is source code that people read."""
    return name.endswith(SUFFIXES) and not name.endswith(GENERATED)


def lines_of_code(name: str, text: str) -> int:
    """The lines that have code."""
    if not name.endswith(".py"):  # Cython: docstrings are rare there, and its grammar is not Python's
        return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count(sources: Iterator[tuple[str, str]]) -> tuple[Counter[str], Counter[str]]:
    """Lines, and lines of code, by package."""
    lines: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for path, text in sources:
        package = path.partition("/")[0].removesuffix(".py")
        lines[package] += text.count("\n")
        code[package] += lines_of_code(path, text)
    return lines, code


def main(commit: str = "") -> int:
    """Print the table; the exit code."""
    around = satellites()
    lines, code = count(sources_here())
    before_lines, before_code = count(sources_at(commit)) if commit else (lines, code)
    parts = {"core": lambda name: name not in around, "satellites": lambda name: name in around}
    print(f"{'':14}{'lines':>9}{'of code':>9}" + (f"   at {commit[:10]}: lines, code, change" if commit else ""))
    for part, belongs in parts.items():
        names = sorted(name for name in {*lines, *before_lines} if belongs(name))
        for name in [*names, part]:
            chosen = names if name == part else [name]
            now, then = (sum(each[one] for one in chosen) for each in (code, before_code))
            row = f"{name:14}{sum(lines[one] for one in chosen):>9,}{now:>9,}"
            if commit:
                row += f"{sum(before_lines[one] for one in chosen):>13,}{then:>9,}{now - then:>+9,}"
                row += f" {(now - then) / then:+.1%}" if then else ""
            print(row.upper() if name == part else row)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
