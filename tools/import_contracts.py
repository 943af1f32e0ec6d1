"""The contract types of `lint-imports` (pyproject.toml), for a package that has compiled kernels.

The linter sees only modules in `.py` files. For it, the import of a kernel (`from forebay.protocol._short import ...`)
is an import of `forebay` itself, which imports everything. These classes turn it into an import of the kernel's
package, so that contracts need no exceptions.
"""

from __future__ import annotations

import re
from pathlib import Path

import grimp
from importlinter import Contract, ContractCheck, fields, output
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

ROOT = "forebay"
PROJECT = Path(__file__).resolve().parents[1]
_MODULE = re.compile(rf"`({ROOT}(?:\.\w+)*(?:\.\*)?)`")
_KERNEL = re.compile(rf"^\s*from\s+({ROOT}(?:\.\w+)*)\.(_[a-z]\w*)\s+import\b")


def count_kernels(graph: grimp.ImportGraph) -> None:
    """Turn imports of kernels into imports of their packages."""
    for importer in graph.find_modules_that_directly_import(ROOT):
        details = graph.get_import_details(importer=importer, imported=ROOT)
        matches = [_KERNEL.match(detail["line_contents"]) for detail in details]
        if all(matches):
            graph.remove_import(importer=importer, imported=ROOT)
        for match, detail in zip(matches, details, strict=True):
            if match is not None and match[1] != importer:
                graph.add_import(
                    importer=importer,
                    imported=match[1],
                    line_number=detail["line_number"],
                    line_contents=detail["line_contents"],
                )


class _WithKernels:
    """A contract that is checked against a graph with kernels."""

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        count_kernels(graph)
        return super().check(graph, verbose)  # type: ignore[misc]


class Layers(_WithKernels, LayersContract):
    """Imports point down only."""


class Forbidden(_WithKernels, ForbiddenContract):
    """Some modules do not import some others."""


class AcyclicSiblings(_WithKernels, AcyclicSiblingsContract):
    """The children of a package do not import each other in a circle."""


class Surface(Contract):
    """Packages import only the modules that a page of the documentation lists, their own, and foreign ones.

    The first column of each table in `sections` of `page` has modules, such as `forebay.client.table`, or packages with
    all their modules, such as `forebay.metadata.*`.
    """

    type_name = "surface"

    source_modules = fields.ListField(subfield=fields.StringField())
    page = fields.StringField()
    sections = fields.ListField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        count_kernels(graph)
        listed = surface((PROJECT / str(self.page)).read_text(), list(self.sections))
        missing = sorted(name for name in listed if name.removesuffix(".*") not in graph.modules)
        breaches = [
            (importer, imported, min(d["line_number"] for d in details))
            for source in self.source_modules
            for importer in sorted({source, *graph.find_descendants(source)})
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported.partition(".")[0] == ROOT
            and not _is_in(imported, source)
            and imported not in listed
            and not any(_is_in(imported, name.removesuffix(".*")) for name in listed if name.endswith(".*"))
            for details in [graph.get_import_details(importer=importer, imported=imported)]
        ]
        return ContractCheck(kept=not breaches and not missing, metadata={"breaches": breaches, "missing": missing})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import of a module that is not on the page, and each line of the page without a module."""
        for importer, imported, line in check.metadata["breaches"]:
            output.print_error(f"- {importer} -> {imported} (l.{line}) is not on {self.page}", bold=False)
        for name in check.metadata["missing"]:
            output.print_error(f"- {self.page} lists {name}, which does not exist", bold=False)


def surface(text: str, sections: list[str]) -> frozenset[str]:
    """The modules in the first column of the tables in these sections of a page. Raises `ValueError` without them."""
    parts = dict(part.partition("\n")[::2] for part in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:])
    absent = [section for section in sections if section not in parts]
    if absent:
        raise ValueError(f"there is no section {absent[0]!r}; there are {', '.join(map(repr, parts))}")
    rows = [line for section in sections for line in parts[section].splitlines() if line.startswith("|")]
    return frozenset(name for row in rows for name in _MODULE.findall(row.split("|")[1]))


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
