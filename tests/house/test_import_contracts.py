"""The import contracts count compiled kernels as modules of their packages, and read the public surface from a page."""

from __future__ import annotations

from typing import Any

import grimp
import pytest
from tools import import_contracts
from tools.import_contracts import Surface, count_kernels, surface

PAGE = """# Title

## First

| module | what |
|---|---|
| `forebay.base.*` | ground |
| `forebay.client`, `forebay.client.table` | names `forebay.server` in its second column |

## Second

| module |
|---|
| `forebay.kv` |
"""


def graph_of(*imports: tuple[str, str, str]) -> grimp.ImportGraph:
    """A graph of imports, each with its line."""
    graph = grimp.ImportGraph()
    graph.add_module("forebay.console")
    for importer, imported, line in imports:
        for name in (importer, imported):
            for end in [i for i, char in enumerate(name) if char == "."] + [len(name)]:
                graph.add_module(name[:end])
        graph.add_import(importer=importer, imported=imported, line_number=7, line_contents=line)
    return graph


def test_an_import_of_a_kernel_is_one_of_its_package() -> None:
    graph = graph_of(
        ("forebay.kv.tablet", "forebay", "from forebay.codec._hash import hash_of"),
        ("forebay.cli.sql", "forebay", "import forebay"),
    )
    count_kernels(graph)
    assert graph.find_modules_directly_imported_by("forebay.kv.tablet") == {"forebay.codec"}
    assert graph.find_modules_directly_imported_by("forebay.cli.sql") == {"forebay"}


def test_the_surface_is_the_first_column_of_the_named_sections() -> None:
    assert surface(PAGE, ["First"]) == {"forebay.base.*", "forebay.client", "forebay.client.table"}
    assert surface(PAGE, ["First", "Second"]) >= {"forebay.kv"}
    with pytest.raises(ValueError, match="no section 'Third'"):
        surface(PAGE, ["Third"])


def checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, *imported: str) -> dict[str, Any]:
    (tmp_path / "page.md").write_text(PAGE)
    monkeypatch.setattr(import_contracts, "PROJECT", tmp_path)
    contract = Surface("Surface", {}, {"source_modules": ["forebay.console"], "page": "page.md", "sections": ["First"]})
    listed = [("forebay.other", name, "") for name in ("forebay.base.errors", "forebay.client.table")]
    check = contract.check(graph_of(*listed, *(("forebay.console.app", name, "") for name in imported)), False)
    assert check.kept == (not any(check.metadata.values()))
    return check.metadata


def test_a_satellite_imports_what_is_listed_its_own_modules_and_foreign_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    allowed = ("forebay.base.errors", "forebay.client.table", "forebay.console.rows", "starlette")
    assert checked(monkeypatch, tmp_path, *allowed) == {"breaches": [], "missing": []}


@pytest.mark.parametrize("other", ["forebay", "forebay.client.table.parts", "forebay.server", "forebay.consoles"])
def test_any_other_module_breaks_the_contract(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, other: str) -> None:
    assert checked(monkeypatch, tmp_path, other)["breaches"] == [("forebay.console.app", other, 7)]


def test_a_page_that_lists_a_module_that_is_gone_breaks_the_contract(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(import_contracts, "surface", lambda *_: frozenset({"forebay.gone", "forebay.base.*"}))
    assert checked(monkeypatch, tmp_path)["missing"] == ["forebay.gone"]
