"""The contract types of `lint-imports` (pyproject.toml), for a package that has compiled kernels.

The linter sees only modules in `.py` files. For it, the import of a kernel (`from forebay.protocol._short import ...`)
is an import of `forebay` itself, which imports everything. These classes turn it into an import of the kernel's
package, so that contracts need no exceptions.
"""

from __future__ import annotations

import re

import grimp
from importlinter import ContractCheck
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

ROOT = "forebay"
_KERNEL = re.compile(rf"^\s*from\s+({ROOT}(?:\.\w+)*)\.(_[a-z]\w*)\s+import\b")


class _WithKernels:
    """A contract that is checked against a graph in which imports of kernels are those of their packages."""

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
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
        return super().check(graph, verbose)  # type: ignore[misc]


class Layers(_WithKernels, LayersContract):
    """Imports point down only."""


class Forbidden(_WithKernels, ForbiddenContract):
    """Some modules do not import some others."""


class AcyclicSiblings(_WithKernels, AcyclicSiblingsContract):
    """The children of a package do not import each other in a circle."""
