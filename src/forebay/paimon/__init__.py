"""A Python engine for Apache Paimon's table format: read, write, merge, commit, compact, stream, maintain.

The package is independent of the streaming side. Formats and semantics are Apache Paimon's: its specification
(docs/concepts/spec) and Java sources are authoritative. Terms are Paimon's, too (snapshot, manifest, bucket, level,
sorted run, merge engine, changelog producer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.paimon.catalog.catalog import Catalog
    from forebay.paimon.table import Table

__all__ = ["Catalog", "Table"]


def __getattr__(name: str) -> Any:
    """The public names, imported lazily so that using one part of the engine does not load the others."""
    if name == "Catalog":
        from forebay.paimon.catalog.catalog import Catalog

        return Catalog
    if name == "Table":
        from forebay.paimon.table import Table

        return Table
    raise AttributeError(f"module 'forebay.paimon' has no attribute '{name}'")
