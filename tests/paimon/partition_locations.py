"""Partition values that need escapes, their directories, and tables with such partitions."""

from __future__ import annotations

import pyarrow as pa

from forebay.metadata import types
from forebay.paimon import Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table

COLUMNS = {"p": types.string(), "v": types.int_()}

VALUES = {
    "12:30": "12%3A30", "50%": "50%25", "a%2Fb": "a%252Fb", "a/b": "a%2Fb", "..": "..", ".": ".",
    "../../../../../outside": "..%2F..%2F..%2F..%2F..%2Foutside", "é/日本": "é%2F日本", "a b": "a b",
    " ": "__DEFAULT_PARTITION__", "%2e%2e": "%252e%252e", "a\\b": "a%5Cb", "~": "~",
}  # fmt: skip
"""Values of a partition, and the directories that Java Paimon gives them."""


def fast(catalog: Catalog) -> Catalog:
    """The same catalog without fsync."""
    assert isinstance(catalog, FileSystemCatalog)
    catalog.io = LocalFileIO(sync=False)
    return catalog


def partitioned(catalog: Catalog, values: list[str]) -> Table:
    catalog.create_database("db", ignore_if_exists=True)
    table = catalog.create_table("db.t", COLUMNS, partition_keys=["p"])
    table.append(numbered(values))
    return table


def numbered(values: list[str], start: int = 0) -> pa.Table:
    return pa.table({"p": values, "v": pa.array(range(start, start + len(values)), pa.int32())})
