"""Names of tables in SQL, and what they mean: pinned scans, as views of DuckDB.

database.table                  a live table: lake and stream as one (without a connection: a table of the lake)
live.database.table             the same
lake.database.table             a table of the lake; `lake` is the name that it was given
database."table$changelog"      a live table's changes that its servers have
database."table$history"        the last transactions that have written to it
database."table$lake"           what its lake has, as of the newest snapshot that a union read starts from
lake.database."table$files"     a system table of a Paimon table
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from forebay.api.duckdb import ScanDataset, check_version
from forebay.api.scan import Scan
from forebay.base.arguments import did_you_mean
from forebay.base.errors import ForebayError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.connection import Connection
from forebay.lakes.iceberg_lake import IcebergLake
from forebay.metadata.table import TablePath
from forebay.paimon import Catalog
from forebay.query.statement import TableName

if TYPE_CHECKING:
    import forebay.client.table
    import forebay.paimon

LIVE, LAKE = "live", "lake"
LISTED = pa.schema([("catalog", pa.string()), ("database", pa.string()), ("table", pa.string())])
"""The columns of SHOW TABLES."""

ICEBERG, FORMAT = "iceberg", "format"

LakeLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, str] | Catalog | IcebergLake"
"""A lake: a Paimon warehouse's path, a catalog, or options; {"format": "iceberg", ...} are pyiceberg's."""


Lake: TypeAlias = "Catalog | IcebergLake"


def opened_lake(lake: LakeLike) -> Lake:
    """The lake that `given` means. Raises `InvalidRequest`, `UnsupportedOperation` for a missing package."""
    if isinstance(lake, Catalog | IcebergLake):
        return lake
    if isinstance(lake, str | os.PathLike):
        return Catalog.open(lake)
    if not isinstance(lake, Mapping):
        raise InvalidRequest(
            f"{lake!r} is not a lake: pass a Paimon warehouse's path, a forebay.paimon.Catalog, or a catalog's options"
        )
    options = {str(key): str(value) for key, value in lake.items()}
    form = options.pop(FORMAT, "paimon")
    if form == ICEBERG:
        return IcebergLake.open(options)
    if form != "paimon":
        raise InvalidRequest(f"a lake of format {form!r} is not known; there are 'paimon' and 'iceberg'")
    return Catalog.open(options)


@dataclass(frozen=True)
class TableDefinition:
    """What a table was created with. Columns are an Arrow field, a type in the words of SQL, and a comment each."""

    columns: Sequence[tuple[pa.Field, Any, str | None]]
    primary_key: Sequence[str] = ()
    numbered: str | None = None
    """The column that the server numbers."""
    comment: str | None = None


class Tables:
    """The tables of a cluster (None: of none) and of lakes."""

    def __init__(self, connection: Connection | None, lakes: Mapping[str, Lake]) -> None:
        for name in lakes:
            if name == LIVE or name in _OWN or not name.isidentifier():
                raise InvalidRequest(f"a lake cannot be called {name!r}: choose another word")
        self._connection, self._lakes = connection, lakes

    # ---- names ------------------------------------------------------------------------------------------------------

    def is_own(self, name: TableName) -> bool:
        """Whether a name is DuckDB's to resolve: of a common table expression, data given, its own catalogs."""
        return len(name.parts) == 1 or name.parts[0] in _OWN or (len(name.parts) == 2 and name.parts[0] in _SCHEMAS)

    def place(self, name: TableName) -> tuple[str, TablePath]:
        """The catalog (`LIVE`, or a lake's name) and the path. Raises `NotFound`."""
        catalog, rest = (None, name.parts) if len(name.parts) < 3 else (name.parts[0], name.parts[1:])
        if len(rest) != 2:
            raise InvalidRequest(f"{name} names no table: write database.table, or lake.database.table")
        if catalog is None:
            catalog = self.default_catalog
        if catalog not in self._lakes and (catalog != LIVE or self._connection is None):
            raise NotFound(
                f"{name}: there is no catalog {catalog!r} here; there are {', '.join(self.catalogs) or 'none'}. Lakes "
                f"are given by warehouse= or lakes={did_you_mean(catalog, self.catalogs)}"
            )
        return catalog, TablePath(*rest)

    def listed(self) -> pa.Table:
        """The catalog, database and name of all tables."""
        rows = list[tuple[str, str, str]]()
        for catalog in self.catalogs:
            rows += [(catalog, d, t) for d in self.databases(catalog) for t in self.names(catalog, d)]
        return pa.table([pa.array([row[i] for row in rows], pa.string()) for i in range(3)], schema=LISTED)

    def resembling(self, table: str) -> str:
        """A suggestion for a table that is named without its database; empty if there is none."""
        try:
            names = {row["table"]: f"{row['database']}.{row['table']}" for row in self.listed().to_pylist()}
        except ForebayError:
            return ""  # the error that this follows is the one to report
        return f"; did you mean '{names[table]}'?" if table in names else did_you_mean(table, names)

    @property
    def default_catalog(self) -> str:
        """The catalog of names without one: the cluster, or the only lake where there is no cluster."""
        return LIVE if self._connection is not None or len(self._lakes) != 1 else next(iter(self._lakes))

    @property
    def catalogs(self) -> list[str]:
        """The names of all catalogs."""
        return [LIVE] * (self._connection is not None) + list(self._lakes)

    def databases(self, catalog: str) -> list[str]:
        """The names of the databases of a catalog."""
        return self._lake(catalog).list_databases()

    def names(self, catalog: str, database: str) -> list[str]:
        """The names of the tables of a database. Raises `NotFound`."""
        return self._lake(catalog).list_tables(database)

    def definition(self, name: TableName) -> TableDefinition:
        """What a table was created with. Raises `NotFound`."""
        catalog, path = self.place(name)
        lake = self._lakes.get(catalog)
        if isinstance(lake, IcebergLake):
            fields = [(field, field.type, None) for field in self.scan(name, None, pinned=False).schema]
            return TableDefinition(fields)
        if lake is None:
            assert self._connection is not None
            live = self._connection.table(path)
            columns = [
                (field.with_nullable(column.data_type.nullable), column.data_type, column.comment)
                for field, column in zip(live.arrow_schema, live.schema.columns)
            ]
            numbered = live.schema.auto_increment_column
            return TableDefinition(columns, live.schema.primary_key, numbered, live.info.descriptor.comment)
        table = lake.table(str(path))
        columns = [
            (field.with_nullable(column.type.nullable), column.type, column.description)
            for field, column in zip(table.arrow_schema, table.schema.fields)
        ]
        return TableDefinition(columns, table.schema.primary_keys, None, table.schema.comment)

    def create(self, name: TableName, schema: pa.Schema) -> None:
        """Create a table without a primary key. Raises `AlreadyExists`, `NotFound` (the database)."""
        catalog, path = self.place(name)
        lake = self._lake(catalog)
        if isinstance(lake, IcebergLake):
            raise UnsupportedOperation(f"{name} would be an Iceberg table, which tiering and other engines create")
        lake.create_table(str(path), schema)

    def _lake(self, catalog: str) -> Lake | Connection:
        lake = self._lakes.get(catalog)
        if lake is not None:
            return lake
        if catalog != LIVE or self._connection is None:
            raise NotFound(f"there is no catalog {catalog!r} here; there are {', '.join(self.catalogs) or 'none'}")
        return self._connection

    # ---- scans ------------------------------------------------------------------------------------------------------

    def scan(self, name: TableName, as_of: Any, *, pinned: bool = True) -> Scan | pa.Table:
        """The pinned scan of a table, or the rows of a system table. Raises `NotFound`.

        Not `pinned`, it may be any scan with the same columns.
        """
        catalog, path = self.place(name)
        if catalog == LIVE:
            return self._live(path, as_of, pinned)
        lake = self._lakes[catalog]
        if isinstance(lake, IcebergLake):
            return lake.scan(path, as_of)
        plain, mark, system = path.table.partition("$")
        if mark and not system.startswith("branch_"):
            if as_of is not None:
                raise UnsupportedOperation(f"{name}: a system table has no earlier states")
            return lake.table(f"{path.database}.{plain}").system(system).read().read_all()
        scan = lake.table(str(path)).scan(as_of=as_of)
        return scan.pinned() if pinned else scan

    def _live(self, path: TablePath, as_of: Any, pinned: bool) -> Scan | pa.Table:
        assert self._connection is not None
        plain, mark, part = path.table.partition("$")
        table = self._connection.table(TablePath(path.database, plain) if mark else path)
        if not mark:
            from forebay.unionread.scan import union_scan

            return union_scan(table, as_of).pinned() if pinned else table.scan(as_of=as_of)
        if as_of is not None:
            raise UnsupportedOperation(f"{path} has no earlier states")
        if part == "changelog":
            from forebay.query.changelog import ChangelogScan

            return ChangelogScan.now(self._connection, table)
        if part == "history":
            return self._connection.admin.history(table.info)
        if part == "lake":
            from forebay.unionread.scan import PinnedUnionScan

            return PinnedUnionScan.of_lake(table)
        raise NotFound(
            f"{path}: a live table has '$changelog', '$history' and '$lake'; its lake's own tables are in the lake"
        )

    # ---- writing ----------------------------------------------------------------------------------------------------

    def target(self, name: TableName) -> forebay.client.table.Table | forebay.paimon.Table:
        """The table that an INSERT names. Raises `NotFound`, `UnsupportedOperation`."""
        catalog, path = self.place(name)
        if "$" in path.table:
            raise UnsupportedOperation(f"{name} cannot be written to")
        if catalog == LIVE:
            assert self._connection is not None
            return self._connection.table(path)
        lake = self._lakes[catalog]
        if isinstance(lake, IcebergLake):
            raise UnsupportedOperation(f"{name} is an Iceberg table, which tiering and other engines write")
        return lake.table(str(path))


_OWN = ("memory", "system", "temp")
_SCHEMAS = ("main", "information_schema", "pg_catalog")


class Views:
    """Scans as tables of a DuckDB connection."""

    def __init__(self, duckdb: Any, connection: Any) -> None:
        self._duckdb, self._connection = duckdb, connection
        self._datasets: list[ScanDataset] = []
        self._view_count = 0

    def add(self, scan: Scan | pa.Table, name: TableName | None) -> str:
        """Make a view of a scan: `name`, or one that is made up; return what it is called."""
        self._view_count += 1
        source = f"__forebay_{self._view_count}"
        check_version(self._duckdb, scan.schema)
        if isinstance(scan, Scan):
            dataset = ScanDataset(scan)
            self._datasets.append(dataset)
            self._connection.register(source, dataset)
        else:
            self._connection.register(source, scan)
        if name is None:
            return source
        outer = name.parts[:-1]
        if len(outer) == 2:
            self._connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(outer[0])}")
        if outer:
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {'.'.join(map(quoted, outer))}")
        self._connection.execute(f"CREATE VIEW {'.'.join(map(quoted, name.parts))} AS SELECT * FROM {source}")
        return str(name)

    def release(self) -> None:
        """Release what the scans have pinned."""
        for dataset in self._datasets:
            dataset.scan.release()

    def raise_failure(self) -> None:
        """Raise the error with which a scan failed, if one did."""
        for dataset in self._datasets:
            if dataset.error is not None:
                raise dataset.error


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'
