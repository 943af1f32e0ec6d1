"""Apache Paimon as a lake, based on our own engine (`forebay.paimon`).

Tables have the layout that a Fluss cluster creates for `table.datalake.format=paimon`, so Flink and Fluss's own tiering
can continue with them. Options are Paimon's catalog options: `warehouse`, `metastore`, and those of the catalog and
file system (`datalake.paimon.*` of a cluster, without the prefix); `forebay.system-columns` selects the layout of new
tables.

    paimon.py           PaimonLakeStorage, the entry point
    paimon_tables.py    the Paimon table of a stream table; the catalog
    paimon_tiering.py   writers and committers
    paimon_source.py    reading: splits, planners, readers
"""

from __future__ import annotations

from collections.abc import Mapping

from forebay.base.locations import located
from forebay.lake.lru_cache import LruCache
from forebay.lake.source import LakeSource
from forebay.lake.storage import LakeCatalog, LakeStorage
from forebay.lake.tiering import LakeTieringFactory
from forebay.lakes.paimon_source import PaimonLakeSource
from forebay.lakes.paimon_tables import PaimonLakeCatalog, layout_default, open_catalog
from forebay.lakes.paimon_tiering import PaimonTieringFactory
from forebay.metadata.table import TablePath
from forebay.paimon.catalog.catalog import TABLES_CACHED_MAX, Catalog


class PaimonLakeStorage(LakeStorage):
    """A Paimon catalog as a lake. Picklable."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `InvalidRequest` or `UnsupportedOperation` if no catalog can be opened with `options`."""
        self.options = located(options)
        layout_default(self.options)
        self._catalog: Catalog | None = open_catalog(self.options)
        self._sources: LruCache[TablePath, PaimonLakeSource] = LruCache(TABLES_CACHED_MAX)

    def __getstate__(self) -> dict[str, str]:
        return self.options

    def __setstate__(self, options: dict[str, str]) -> None:
        """Nothing is opened before it is used."""
        self.options, self._catalog, self._sources = options, None, LruCache(TABLES_CACHED_MAX)

    def __repr__(self) -> str:
        return f"PaimonLakeStorage({self.options.get('warehouse')!r})"

    @property
    def format(self) -> str:
        return "paimon"

    def create_catalog(self) -> LakeCatalog:
        return PaimonLakeCatalog(open_catalog(self.options), system_columns=layout_default(self.options))

    def create_tiering_factory(self) -> LakeTieringFactory:
        return PaimonTieringFactory(self.options)

    def create_source(self, path: TablePath) -> LakeSource:
        """The source of a table (see `LakeStorage.create_source`): the same object while the table is unchanged."""
        catalog = open_catalog(self.options) if self._catalog is None else self._catalog.renewed()
        self._catalog = catalog
        table, source = catalog.cached_table(str(path)).context, self._sources.get(path)
        if source is None or source.table is not table:
            source = PaimonLakeSource(table)
            self._sources.put(path, source)
        return source
