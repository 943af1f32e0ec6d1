"""A table catalog in a folder, and the table that its tests describe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from forebay.base.ambient import ManualClock
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor, TablePath
from forebay.server.metadata.catalog import CatalogLimits, TableCatalog
from forebay.server.metadata_store import LocalDatabaseFile, MetadataStore

PATH = TablePath("fluss", "t")

LIMITS = CatalogLimits(partition_count_max=3, bucket_count_max=8)


def descriptor(buckets: int = 1) -> TableDescriptor:
    schema = Schema.of([Column("a", types.int_()), Column("p", types.string()), Column("q", types.string())])
    return TableDescriptor(schema, partition_keys=("p", "q"), bucket_count=buckets)


@contextmanager
def opened(folder: Path, limits: CatalogLimits = LIMITS) -> Iterator[tuple[TableCatalog, MetadataStore]]:
    with closing(MetadataStore(LocalDatabaseFile(str(folder / "metadata.sqlite")))) as store:
        yield TableCatalog(store, ManualClock(), limits), store


def spec(p: str, q: str = "q") -> dict[str, str]:
    return {"p": p, "q": q}
