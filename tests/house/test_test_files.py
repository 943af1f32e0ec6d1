"""The files of tests: helpers stand in modules of their own, rooms are those of the code, and named tests exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
IMPORTERS = [path for folder in ("tests", "tools", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
READERS = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted(path for path in (ROOT / "tools").rglob("*") if path.suffix in (".py", ".sh")),
    *sorted((ROOT / ".github").rglob("*.yml")),
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
]
NAMED = re.compile(r"(?<![\w./-])tests/(?P<path>[\w-]+(?:/[\w-]+)*(?:\.\w+)?)(?:::(?P<test>\w+))?")


def imported_modules(source: str) -> Iterator[str]:
    """The modules that a source may import, at any depth; `from a import b` may import a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_test_file(module: str) -> bool:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return path.name.startswith("test_") and path.is_relative_to(TESTS) and path.exists()


def test_no_module_imports_from_a_test_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in IMPORTERS
        for module in imported_modules(path.read_text(encoding="utf-8"))
        if is_test_file(module)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "from tests.house.test_test_files import ROOT",
        "from tests.house import test_test_files",
        "import tests.house.test_test_files",
        "def f():\n    from tests.house.test_test_files import ROOT",
    ],
)
def test_each_way_to_import_from_a_test_file_is_seen(source: str) -> None:
    assert any(is_test_file(module) for module in imported_modules(source))


@pytest.mark.parametrize("package", ["client", "codec", "server"])
def test_rooms_of_tests_are_rooms_of_the_code(package: str) -> None:
    rooms = {path.parent.name for path in (TESTS / package).glob("*/__init__.py")}
    assert rooms
    assert rooms <= {path.parent.name for path in (ROOT / "src" / "forebay" / package).glob("*/__init__.py")}


def is_there(path: Path, test: str | None) -> bool:
    """Whether a path exists, also without its suffix, and defines the test."""
    if not path.exists():
        path = path.with_suffix(".py")
    return path.exists() and (
        test is None or bool(re.search(rf"^ *(?:async )?def {test}\b|^class {test}\b", path.read_text(), re.M))
    )


def test_test_files_and_tests_that_documents_and_tools_name_exist() -> None:
    missing = [
        f"{reader.relative_to(ROOT)}: {named[0]}"
        for reader in READERS
        for named in NAMED.finditer(reader.read_text(encoding="utf-8"))
        if not is_there(TESTS / named["path"], named["test"])
    ]
    assert missing == []
