"""A cache of an Iceberg lake's tables, and of the plans of their snapshots.

A table is its metadata file, which never changes: a commit writes another file, which the catalog then names. A table
therefore stays cached while the catalog names the same file. An SQL catalog stays opened and is asked for that name
alone; it keeps no connection between questions, so that none is shared with a forked child. Other catalogs return the
whole table, which may contain credentials that expire, so they are opened and asked each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from forebay.lake.lru_cache import LruCache
from forebay.lake.source import LakeSplit
from forebay.lakes.iceberg_errors import SQLAlchemyError, lake_errors
from forebay.lakes.iceberg_tables import catalog_properties, load_table, new_catalog, opened
from forebay.metadata.table import TablePath

TABLES_CACHED_MAX = 64
"""Maximum number of cached tables. Each is its metadata: about 100 KB for a table with a hundred snapshots."""

_PLANNED_FILES = 50_000
"""Maximum number of files in all cached plans: 300 to 600 bytes each, so up to 30 MB."""


class TableCache:
    """The cached tables and plans of one catalog. Thread-safe."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._catalogs: LruCache[str, Catalog] = LruCache(1)
        self._tables: LruCache[TablePath, Table] = LruCache(TABLES_CACHED_MAX)
        self._plans: LruCache[Hashable, tuple[LakeSplit, ...]] = LruCache(size=_PLANNED_FILES)

    def table(self, path: TablePath) -> Table:
        """The current table: the same object while its metadata and the access to its files are unchanged.

        Raises `NotFound`.
        """
        if catalog_properties(self._options)["type"] != "sql":
            with opened(self._options) as catalog:
                return self._newest_of(path, load_table(catalog, path))
        cached = self._catalogs.get("sql")
        if cached is not None:
            # The database may have been replaced since; then the catalog is opened again, which raises the exact error.
            with contextlib.suppress(SQLAlchemyError):
                return self._of_sql(cached, path)
        with lake_errors(f"Iceberg catalog of {self._options.get('warehouse')}"):
            new: Any = new_catalog(self._options)
            new.keep_no_connection()
            self._catalogs.put("sql", new)
            return self._of_sql(new, path)

    def _of_sql(self, catalog: Any, path: TablePath) -> Table:
        cached = self._tables.get(path)
        if cached is not None and cached.metadata_location == _metadata_location(catalog, path):
            return cached
        return self._newest_of(path, load_table(catalog, path))

    def _newest_of(self, path: TablePath, loaded: Table) -> Table:
        cached = self._tables.get(path)
        if (
            cached is not None
            and cached.metadata_location == loaded.metadata_location
            and cached.io.properties == loaded.io.properties
        ):
            return cached
        self._tables.put(path, loaded)
        return loaded

    def planned(
        self, table: Table, request: Hashable, make: Callable[[], tuple[tuple[LakeSplit, ...], int]]
    ) -> tuple[LakeSplit, ...]:
        """The splits that `make` gives, with the number of their files, for a request of a table with this metadata."""
        key = table.metadata_location, request
        splits = self._plans.get(key)
        if splits is None:
            splits, files = make()
            self._plans.put(key, splits, files + 1)
        return splits


def _metadata_location(catalog: Any, path: TablePath) -> str | None:
    """The metadata file of a table in an SQL catalog; None without such a table."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    with Session(catalog.engine) as session:
        location: str | None = session.scalar(
            select(IcebergTables.metadata_location).where(
                IcebergTables.catalog_name == catalog.name,
                IcebergTables.table_namespace == path.database,
                IcebergTables.table_name == path.table,
            )
        )
        return location
