"""One catalog of two: tables of a cluster, and beside them tables of a lake.

A name is looked up in the cluster first, then in the lake. A table that is made with `USING paimon` goes to the lake,
others to the cluster. (Spark reserves the table property `provider`, so TBLPROPERTIES cannot say it.) A name belongs to
one of the two: it is refused where the other one has it already. Databases are those of both; where a table is the
first one of its kind in a database, the database is made there, too.

A table of the cluster that is tiered has its lake table under the same name, if this is the lake that it is tiered
into: the name means the cluster's table, which reads both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound
from forebay.metadata.table_options import TABLE_PREFIX
from forebay.spark.jvm.exceptions import analysis_exception
from forebay.spark.jvm.gateway import JavaObject, JavaThrow
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import java_identifier
from forebay.spark.jvm.values import string_array
from forebay.spark.sql.catalog import SqlCatalog, names_in, texts_in
from forebay.spark.sql.lake_ddl import is_paimon
from forebay.spark.sql.live_ddl import PROVIDER
from forebay.spark.sql.procedures import Procedure

_TIERED = TABLE_PREFIX + "datalake.enabled"


class MixedCatalog(SqlCatalog):
    """The tables of a cluster and of a lake, for one Spark session."""

    def __init__(self, cluster: SqlCatalog, lake: SqlCatalog) -> None:
        super().__init__(cluster._context)
        self._cluster, self._lake = cluster, lake
        self._sides = (cluster, lake)

    # ---- databases --------------------------------------------------------------------------------------------------

    def _database_names(self) -> list[str]:
        return sorted({name for side in self._sides for name in side._database_names()})

    def _has_database(self, database: str) -> bool:
        return any(side._has_database(database) for side in self._sides)

    def _sides_with(self, database: str) -> list[SqlCatalog]:
        found = [side for side in self._sides if side._has_database(database)]
        if not found:
            raise NotFound(f"there is no database '{database}'", ErrorCode.DATABASE_NOT_EXIST)
        return found

    def _database_properties(self, database: str) -> dict[str, str]:
        return self._sides_with(database)[0]._database_properties(database)

    def _make_database(self, database: str, properties: Mapping[str, str]) -> None:
        if self._lake._has_database(database) and not properties:
            raise analysis_exception(self.jvm, "NamespaceAlreadyExistsException", string_array(self.jvm, [database]))
        self._cluster._make_database(database, properties)

    def _change_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        self._sides_with(database)[0]._change_database(database, to_set, to_reset)

    def _remove_database(self, database: str, cascade: bool) -> None:
        sides = self._sides_with(database)
        if not cascade and any(side._table_names(database) for side in sides):
            raise InvalidRequest(f"database '{database}' has tables", ErrorCode.DATABASE_NOT_EMPTY)
        for side in sides:
            side._remove_database(database, cascade)

    # ---- finding tables ---------------------------------------------------------------------------------------------

    def _table_names(self, database: str) -> list[str]:
        return sorted({name for side in self._sides_with(database) for name in side._table_names(database)})

    def loadTable(self, identifier: JavaObject, *how: Any) -> JavaProxy:
        try:
            return self._cluster.loadTable(identifier, *how)
        except JavaThrow as e:
            if not e.is_a("NoSuchTableException"):
                raise
        return self._lake.loadTable(identifier, *how)

    def loadChangelog(self, identifier: JavaObject, *asked: Any) -> JavaProxy:
        return self._side_of(identifier).loadChangelog(identifier, *asked)

    def tableExists(self, identifier: JavaObject) -> bool:
        return any(side.tableExists(identifier) for side in self._sides)

    def _side_of(self, identifier: JavaObject) -> SqlCatalog:
        """Where the table is, a branch or a system table standing for its table; the cluster if it is nowhere."""
        plain = java_identifier(self.jvm, names_in(identifier.namespace()), str(identifier.name()).partition("$")[0])
        return self._lake if not self._cluster.tableExists(plain) and self._lake.tableExists(plain) else self._cluster

    # ---- making tables ----------------------------------------------------------------------------------------------

    def _side_for(self, identifier: JavaObject, properties: Mapping[str, str]) -> SqlCatalog:
        """Where a table with these properties is to be made. Its database is there afterwards."""
        database = self._database(identifier.namespace())
        side = self._lake if is_paimon(properties.get(PROVIDER)) else self._cluster
        other = self._cluster if side is self._lake else self._lake
        is_tiered = side is self._cluster and properties.get(_TIERED, "").lower() == "true"
        if not is_tiered and other.tableExists(identifier):
            kind = "cluster" if other is self._cluster else "lake"
            raise InvalidRequest(
                f"there is a table {self._full_name(identifier)} in the {kind} already; one catalog cannot have two "
                "tables of one name: choose another, or drop that one"
            )
        if not side._has_database(database):
            if not other._has_database(database):
                raise self._no_such_namespace([database])
            side._make_database(database, {})
        return side

    def _properties_of(self, what: tuple[Any, ...]) -> dict[str, str]:
        return texts_in(what[0].properties() if len(what) == 1 else what[2])

    def createTable(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        return self._side_for(identifier, self._properties_of(what)).createTable(identifier, *what)

    def createTableLike(self, identifier: JavaObject, asked: JavaObject, source: JavaObject) -> JavaProxy:
        """Where the statement does not say, the new table is made where `source` is."""
        theirs = texts_in(source.properties())
        side = self._side_for(identifier, {PROVIDER: theirs.get(PROVIDER, ""), **self._properties_of((asked,))})
        return side.createTableLike(identifier, asked, source)

    def stageCreate(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        return self._side_for(identifier, self._properties_of(what)).stageCreate(identifier, *what)

    def stageReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        """A table is replaced where it is, if the statement does not say."""
        return self._replacing_side(identifier, self._properties_of(what)).stageReplace(identifier, *what)

    def stageCreateOrReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        side = self._replacing_side(identifier, self._properties_of(what))
        return side.stageCreateOrReplace(identifier, *what)

    def _replacing_side(self, identifier: JavaObject, properties: Mapping[str, str]) -> SqlCatalog:
        if PROVIDER not in properties and self._side_of(identifier) is self._lake:
            return self._lake
        return self._side_for(identifier, properties)

    # ---- changing tables --------------------------------------------------------------------------------------------

    def alterTable(self, identifier: JavaObject, changes: JavaObject) -> JavaProxy:
        return self._side_of(identifier).alterTable(identifier, changes)

    def dropTable(self, identifier: JavaObject) -> bool:
        return self._side_of(identifier).dropTable(identifier)

    def renameTable(self, old: JavaObject, new: JavaObject) -> None:
        if self.tableExists(new):
            raise analysis_exception(self.jvm, "TableAlreadyExistsException", new)
        self._side_of(old).renameTable(old, new)

    # ---- procedures -------------------------------------------------------------------------------------------------

    def _procedures(self) -> Mapping[str, Procedure]:
        return {**self._lake._procedures(), **self._cluster._procedures()}

    def loadProcedure(self, identifier: JavaObject) -> JavaProxy:
        for side in self._sides:
            if str(identifier.name()).lower() in side._procedures():
                return side.loadProcedure(identifier)
        return super().loadProcedure(identifier)
