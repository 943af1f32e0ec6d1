"""No module is several modules pasted together, and no text names a module or a name that is gone."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "forebay"
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if not path.name.endswith("_pb2.py")]
KERNELS = sorted(SOURCE.rglob("*.pyx"))

KERNEL_LINES_MAX = 900

ESSAY_LINES = 4
"""A comment of so many lines between two definitions was the docstring of a module once."""

DOTTED = re.compile(r"(?<![\w.])forebay((?:\.\w+)+)")
PACKAGES = {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def bound_names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        is_overload = any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)
        yield from () if is_overload else (node.name,)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id


def test_no_module_defines_a_name_twice() -> None:
    twice = []
    for path in MODULES:
        seen: set[str] = set()
        for node in ast.parse(path.read_text()).body:
            for name in bound_names(node):
                if name in seen:
                    twice.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {name}")
                seen.add(name)
    assert twice == []


def test_no_module_imports_itself() -> None:
    own = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == name_of(path) and path.name != "__init__.py":
                own.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert own == []


def test_no_essay_stands_between_two_definitions() -> None:
    """What a module is stands at its head. A comment on one definition stands inside of it, or is short."""
    essays = []
    for path in MODULES:
        text = path.read_text()
        body = ast.parse(text).body
        first = next((n.lineno for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)), 0)
        run = 0
        for number, line in enumerate(text.splitlines(), 1):
            run = run + 1 if line.startswith("# ") or line == "#" else 0
            if run == ESSAY_LINES and number > first > 0:
                essays.append(f"{path.relative_to(SOURCE)}:{number}")
    assert essays == []


def test_kernels_stay_small_enough_to_hold_in_the_head() -> None:
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in KERNELS}
    assert {n: lines for n, lines in lengths.items() if lines > KERNEL_LINES_MAX} == {}


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The comments and docstrings of a module, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string[:5]):
            yield token.start[0], token.string


def exists(dotted: str) -> bool:
    """Whether a module has this name, or a module defines it: `forebay.a.b`, `forebay.a.b.Name.attribute`."""
    parts = dotted.split(".")[1:]
    place = SOURCE
    while parts and (place / parts[0]).is_dir():
        place = place / parts.pop(0)
    if not parts:
        return True
    file = next((f for s in (".py", ".pyx") if (f := place / f"{parts[0]}{s}").exists()), None)
    name = parts[1] if file is not None and len(parts) > 1 else None if file is not None else parts[0]
    file = file or place / "__init__.py"
    return name is None or re.search(rf"\b{re.escape(name)}\b", file.read_text()) is not None


def test_every_module_that_prose_names_exists() -> None:
    missing = []
    for path in MODULES:
        for line, text in prose_of(path):
            for match in DOTTED.finditer(text):
                is_package = match[1].split(".")[1] in PACKAGES  # `forebay.toml` and options are no modules
                if is_package and not exists(match[0]):
                    missing.append(f"{path.relative_to(SOURCE)}:{line}: {match[0]}")
    assert missing == []
