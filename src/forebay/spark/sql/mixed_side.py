"""A side that combines the tables of a cluster and of a lake.

A name is looked up in the cluster first, then in the lake. `USING paimon` creates a table in the lake, all other tables
are created in the cluster. (Spark reserves the table property `provider`, so TBLPROPERTIES cannot name it.) A name
belongs to one side: creating it on the other side raises an error. Databases are those of both sides; the first table
on a side creates its database there.

If a table of the cluster is tiered into this lake, its lake table has the same name. The name then means the table of
the cluster, which reads both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from forebay.base.errors import AlreadyExists, ErrorCode, InvalidRequest, NotFound
from forebay.metadata.table_options import TABLE_PREFIX
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.sql.cluster_side import ClusterSide
from forebay.spark.sql.lake_ddl import is_paimon
from forebay.spark.sql.live_ddl import PROVIDER
from forebay.spark.sql.procedures import Procedure
from forebay.spark.sql.requests import TableRequest
from forebay.spark.sql.side import CatalogSide, SideTable, TableIdentifier
from forebay.spark.sql.warehouse_side import WarehouseSide

if TYPE_CHECKING:
    from forebay.paimon.catalog.catalog import Catalog

_TIERED = TABLE_PREFIX + "datalake.enabled"


@dataclass(frozen=True)
class MixedSide(CatalogSide):
    """The databases and tables of a cluster and of a warehouse."""

    live: ClusterSide
    lake: WarehouseSide

    @property
    def context(self) -> Any:
        return self.live.context

    @property
    def views(self) -> Catalog | None:
        return self.lake.views

    @property
    def parts(self) -> Sequence[CatalogSide]:
        return self.live, self.lake

    def of_session(self, session: JavaObject) -> Self:
        return type(self)(self.live.of_session(session), self.lake.of_session(session))

    def procedures(self) -> Mapping[str, Procedure]:
        return {**self.lake.procedures(), **self.live.procedures()}

    # ---- databases --------------------------------------------------------------------------------------------------

    def database_names(self) -> list[str]:
        return sorted({name for side in self.parts for name in side.database_names()})

    def has_database(self, database: str) -> bool:
        return any(side.has_database(database) for side in self.parts)

    def _parts_with(self, database: str) -> list[CatalogSide]:
        parts = [side for side in self.parts if side.has_database(database)]
        if not parts:
            raise _no_database(database)
        return parts

    def database_properties(self, database: str) -> dict[str, str]:
        return self._parts_with(database)[0].database_properties(database)

    def create_database(self, database: str, properties: Mapping[str, str]) -> None:
        if self.lake.has_database(database) and not properties:
            raise AlreadyExists(f"database '{database}' exists already", ErrorCode.DATABASE_ALREADY_EXIST)
        self.live.create_database(database, properties)

    def alter_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        self._parts_with(database)[0].alter_database(database, to_set, to_reset)

    def drop_database(self, database: str, cascade: bool) -> None:
        parts = self._parts_with(database)
        if not cascade and any(side.table_names(database) for side in parts):
            raise InvalidRequest(f"database '{database}' has tables", ErrorCode.DATABASE_NOT_EMPTY)
        for side in parts:
            side.drop_database(database, cascade)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def table_names(self, database: str) -> list[str]:
        return sorted({name for side in self._parts_with(database) for name in side.table_names(database)})

    def has_table(self, name: TableIdentifier) -> bool:
        return any(side.has_table(name) for side in self.parts)

    def open(self, name: TableIdentifier) -> SideTable | None:
        return self.live.open(name) or self.lake.open(name)

    def create_table(self, name: TableIdentifier, request: TableRequest) -> SideTable:
        return self.side_of_new(name, request.properties).create_table(name, request)

    def drop_table(self, name: TableIdentifier) -> bool:
        return self._side_of(name).drop_table(name)

    def rename_table(self, old: TableIdentifier, new: TableIdentifier) -> bool:
        if self.has_table(new):
            raise AlreadyExists(f"there is a table {new} already")
        return self._side_of(old).rename_table(old, new)

    def copied_properties(self, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        return self.live.copied_properties(properties) or self.lake.copied_properties(properties)

    def _side_of(self, name: TableIdentifier) -> CatalogSide:
        """The side that has the table of this plain name; the cluster if neither has."""
        return self.lake if not self.live.has_table(name) and self.lake.has_table(name) else self.live

    def side_of_new(self, name: TableIdentifier, properties: Mapping[str, str]) -> CatalogSide:
        """The side for a new table with these properties; its database is created there if necessary.

        Raises `InvalidRequest` if the other side has a table of this name, `NotFound` without the database.
        """
        side: CatalogSide = self.lake if is_paimon(properties.get(PROVIDER)) else self.live
        other = self.live if side is self.lake else self.lake
        is_tiered = side is self.live and properties.get(_TIERED, "").lower() == "true"
        if not is_tiered and other.has_table(name):
            kind = "cluster" if other is self.live else "lake"
            raise InvalidRequest(
                f"there is a table {self.context.full_name(name)} in the {kind} already; one catalog cannot have two "
                "tables of one name: choose another, or drop that one"
            )
        if not side.has_database(name.database):
            if not other.has_database(name.database):
                raise _no_database(name.database)
            side.create_database(name.database, {})
        return side

    def side_of_replaced(self, name: TableIdentifier, properties: Mapping[str, str]) -> CatalogSide:
        """The side of the statement's provider; without one, the side of the existing table."""
        if PROVIDER not in properties and self._side_of(name) is self.lake:
            return self.lake
        return self.side_of_new(name, properties)

    def prepare_view(self, name: TableIdentifier) -> None:
        if self.live.has_table(name):
            raise AlreadyExists(f"there is a table {name} already")
        if not self.lake.has_database(name.database) and self.live.has_database(name.database):
            self.lake.create_database(name.database, {})


def _no_database(database: str) -> NotFound:
    return NotFound(f"there is no database '{database}'", ErrorCode.DATABASE_NOT_EXIST)
