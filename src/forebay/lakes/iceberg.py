"""Apache Iceberg as a lake, based on pyiceberg (the extra `iceberg`).

Tables have the layout that a Fluss cluster creates for `table.datalake.format=iceberg`. Options are the properties of
pyiceberg's catalogs (`datalake.iceberg.*` of a cluster, without the prefix); the default is a SQL catalog, in a SQLite
file in the warehouse.

    iceberg.py             IcebergLakeStorage, the entry point
    iceberg_tables.py      the Iceberg table of a stream table; the catalog
    iceberg_types.py       types and values between the stream, Iceberg and Arrow
    iceberg_tiering.py     the committer; rounds on rows that a compaction has moved
    iceberg_writer.py      writers of one bucket
    iceberg_upkeep.py      compaction, expiry
    iceberg_source.py      reading: splits, planners, readers
    iceberg_cache.py       opened tables and plans, from one query to the next
    iceberg_layout.py      the files of a snapshot and their deletes
    iceberg_rows.py        the live rows of data files
    iceberg_keys.py        keys in hash tables: locating old rows, applying equality deletes
    iceberg_conditions.py  filters as expressions that skip files
    iceberg_files.py       Parquet by field ids, position deletes
    iceberg_commit.py      manifests and snapshots
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyiceberg.table import Table

from forebay.lake.lru_cache import LruCache
from forebay.lake.source import LakeSource
from forebay.lake.storage import LakeCatalog, LakeStorage
from forebay.lake.tiering import LakeTieringFactory
from forebay.lakes.iceberg_cache import TABLES_CACHED_MAX, TableCache
from forebay.lakes.iceberg_source import IcebergLakeSource
from forebay.lakes.iceberg_tables import IcebergLakeCatalog, catalog_properties, load_table, opened, settled
from forebay.lakes.iceberg_tiering import IcebergTieringFactory
from forebay.lakes.iceberg_upkeep import Upkeep
from forebay.metadata.table import TablePath


class IcebergLakeStorage(LakeStorage):
    """An Iceberg catalog as a lake. Picklable."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `InvalidRequest` or `UnsupportedOperation` if no catalog can be opened with `options`."""
        self.options = settled(options)
        catalog_properties(self.options)
        self._tables = TableCache(self.options)
        self._sources: LruCache[TablePath, tuple[Table, IcebergLakeSource]] = LruCache(TABLES_CACHED_MAX)

    def __reduce__(self) -> tuple[Any, ...]:
        return IcebergLakeStorage, (self.options,)

    def __repr__(self) -> str:
        return f"IcebergLakeStorage({self.options.get('warehouse')!r})"

    @property
    def format(self) -> str:
        return "iceberg"

    def create_catalog(self) -> LakeCatalog:
        return IcebergLakeCatalog(self.options)

    def create_tiering_factory(self) -> LakeTieringFactory:
        return IcebergTieringFactory(self.options)

    @contextmanager
    def upkeep(self, path: TablePath) -> Iterator[Upkeep]:
        """Compaction, expiry and clean-up of one table, at any time and concurrently with its tiering."""
        with opened(self.options) as catalog:
            yield Upkeep(partial(load_table, catalog, path))

    def create_source(self, path: TablePath) -> LakeSource:
        """The source of a table (see `LakeStorage.create_source`): the same object while the table is unchanged."""
        table, entry = self._tables.table(path), self._sources.get(path)
        if entry is None or entry[0] is not table:
            entry = table, IcebergLakeSource.of(self.options, path, table, self._tables)
            self._sources.put(path, entry)
        return entry[1]
