"""The house rules that a program can check: sizes, names in the architecture document, links, error tables."""

from __future__ import annotations

import ast
import importlib
import json
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from forebay.base.errors import WIRE_ERRORS, ErrorCode, ForebayError, error_from_wire, wire_code

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "forebay"
MODULES = [p for p in sorted(SOURCE.rglob("*.py")) if p.name not in ("fluss_pb2.py",)]

MODULE_LINES_MAX = 900
"""A module is one thing. Most have fewer than 300 lines; one that would have more than this is two things."""

FUNCTION_LINES_MAX = 70

RATCHET: dict[str, int] = {}
"""Modules that are longer than the rule for now, with their length: they may shrink, not grow."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _too_long(path: Path) -> Iterator[str]:
    name = str(path.relative_to(SOURCE))
    lines = len(path.read_text().splitlines())
    if lines > RATCHET.get(name, MODULE_LINES_MAX):
        yield f"{name} has {lines} lines"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{name}: {node.name} has {length} lines"


def test_modules_and_functions_stay_small_enough_to_hold_in_the_head() -> None:
    assert [found for path in MODULES for found in _too_long(path)] == []


def _says_nothing(path: Path) -> Iterator[str]:
    name, tree = path.relative_to(SOURCE), tree_of(path)
    if path.name == "__init__.py" and not tree.body:
        return
    if not ast.get_docstring(tree):
        yield f"{name} has no docstring"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
            yield f"{name}: class {node.name} has no docstring"


def test_every_module_and_public_class_says_what_it_is() -> None:
    assert [found for path in MODULES for found in _says_nothing(path)] == []


SAME_ON_BOTH_SIDES = {"Table"}
"""`forebay.Table` and `forebay.paimon.Table` are one thing on two sides (docs/api.md)."""


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in SAME_ON_BOTH_SIDES}
    assert twice == {}


def test_no_two_modules_of_one_package_have_one_name() -> None:
    """In another package, as `log/tablet.py` and `kv/tablet.py`, the folder says the rest."""
    places: dict[tuple[str, str], list[str]] = {}
    for path in MODULES:
        package = path.relative_to(SOURCE).parts[0]
        if path.name != "__init__.py":
            places.setdefault((package, path.name), []).append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


PACKAGES = ["forebay", *(f"forebay.{path.parent.name}" for path in sorted(SOURCE.glob("*/__init__.py")))]


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_offers_is_there(package: str) -> None:
    """Names that are loaded when they are first used are strings, which no other check looks at."""
    module = importlib.import_module(package)
    missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
    assert missing == []


def test_nothing_unfinished_is_left_in_the_sources() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|except Exception:\s*pass")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyx")]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def _names_in(document: Path) -> list[str]:
    """`forebay.module.name` in backticks; with a hyphen it is a property of a table."""
    return sorted(set(re.findall(r"`(forebay\.[A-Za-z_][A-Za-z0-9_.]*+)(?!-)", document.read_text())))


def _exists(dotted: str) -> bool:
    parts = dotted.rstrip(".").split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", {})
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("document", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_every_name_in_the_documents_exists(document: Path) -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    missing = [name for name in _names_in(document) if name not in groups and not _exists(name)]
    assert missing == []


@pytest.mark.parametrize(
    "document", [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda p: p.name
)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text())
    assert [t for t in targets if not (document.parent / t).exists()] == []


@pytest.mark.parametrize(
    "document", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
)
def test_links_to_pages_say_what_is_there_not_what_its_file_is_called(document: Path) -> None:
    assert not re.findall(r"\[[\w/.-]+\.md\]\([^)]*\)", document.read_text())


def test_machine_paths_and_secrets_are_not_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    suspicious = re.compile(r"/root/|/home/[a-z]+/|BEGIN (RSA |EC )?PRIVATE KEY")
    found = []
    for name in listed.split():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".sh", ".pyx", ".java") and path != Path(__file__) and path.exists():
            found += [name] if suspicious.search(path.read_text(errors="replace")) else []
    assert found == []


def test_importing_forebay_costs_next_to_nothing() -> None:
    code = "import sys; import forebay; print(sorted(m for m in sys.modules if m.split('.')[0] in {'pyarrow','numpy'}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_every_wire_code_has_a_kind() -> None:
    assert set(WIRE_ERRORS) == {int(code) for code in ErrorCode} - {ErrorCode.NONE, ErrorCode.CLIENT_ERROR}


@pytest.mark.parametrize("code", sorted(WIRE_ERRORS))
def test_errors_cross_the_wire_and_process_borders_unchanged(code: int) -> None:
    error = error_from_wire(code, "what happened")
    assert (wire_code(error), error.message, error.code) == (code, "what happened", code)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.code, str(copy)) == (type(error), error.message, code, str(error))
    assert error.name in str(error)


def test_unknown_codes_become_internal_errors_and_foreign_exceptions_are_bugs() -> None:
    assert error_from_wire(4711, None).code == 4711
    assert wire_code(RuntimeError("x")) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_kinds_are_direct_children_of_the_root() -> None:
    kinds = {wire.kind for wire in WIRE_ERRORS.values()}
    assert all(ForebayError in kind.__bases__ for kind in kinds)
    assert len({kind.kind for kind in kinds}) == len(kinds)


AMBIENT = """\
import datetime, os, random, secrets, time, uuid
time.time(), time.time_ns()
time.monotonic(), time.monotonic_ns()
time.perf_counter(), time.sleep(1)
time.localtime(), time.gmtime()
uuid.uuid4(), uuid.uuid1()
os.urandom(8), os.getrandom(8)
datetime.datetime.now(), datetime.datetime.utcnow()
datetime.datetime.today(), datetime.date.today()
"""


def test_the_clocks_and_the_randomness_of_the_machine_are_refused_in_the_server() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--select=TID251", "--no-cache", "--output-format=json"]
    command += ["--stdin-filename", str(SOURCE / "server" / "example.py"), "-"]
    done = subprocess.run(command, input=AMBIENT, capture_output=True, text=True, cwd=ROOT, check=False)
    refused = [found["location"]["row"] for found in json.loads(done.stdout)]
    assert refused.count(1) == 2, "random and secrets may not be imported"
    assert [refused.count(row) for row in range(2, 10)] == [2] * 8, done.stdout
