"""The catalog of `<catalog>.<database>.<table>` in Spark SQL.

A catalog implements Spark's `StagingTableCatalog`, `SupportsNamespaces`, `ProcedureCatalog` and `FunctionCatalog`. It
runs on the driver, while Spark analyses a statement. It reads Spark's requests (forebay.spark.sql.requests), passes
them to its side (forebay.spark.sql.side), and translates errors to Spark's own exceptions. It caches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from forebay.base.errors import (
    AlreadyExists,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    NotFound,
    UnsupportedOperation,
)
from forebay.spark.context import SessionContext
from forebay.spark.jvm.exceptions import analysis_exception, unresolved_routine
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, JavaThrow
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import java_identifier
from forebay.spark.jvm.values import enum_set, java_map, nested_string_array, string_array, string_set
from forebay.spark.options import CHANGES, DELETE_BEHAVIOR
from forebay.spark.sql.changelogs import ChangelogProxy
from forebay.spark.sql.live_ddl import PROVIDER
from forebay.spark.sql.procedures import SYSTEM_NAMESPACE, ProcedureProxy
from forebay.spark.sql.requests import TableRequest, load_request, names_in, table_change, table_request, texts_in
from forebay.spark.sql.side import CatalogSide, SideTable, TableIdentifier
from forebay.spark.sql.tables import WrittenTable, can_only_be_read

RELATION_CATALOG = CONNECTOR + "catalog.RelationCatalog"
"""The interface of catalogs with views; Spark has it from 4.2 on. forebay.spark.sql.views implements it."""

LOCATION = "location"
_SPARKS_OWN = ("owner",)
"""Properties of databases that Spark adds."""

_PLAIN_NAME = re.compile(r"([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
"""The text of a Spark identifier of two parts without quotes."""


class SqlCatalog(JavaProxy):
    """The tables of a side, for one Spark session. `forebay.spark.attach` creates and installs it."""

    interfaces: ClassVar[tuple[str, ...]] = (
        CONNECTOR + "catalog.SupportsNamespaces",
        CONNECTOR + "catalog.StagingTableCatalog",
        CONNECTOR + "catalog.ProcedureCatalog",
        CONNECTOR + "catalog.FunctionCatalog",
    )
    has_views: ClassVar[bool] = False
    capability_names: ClassVar[tuple[str, ...]] = ("SUPPORT_TABLE_CONSTRAINT", "SUPPORT_COLUMN_DEFAULT_VALUE")

    def __init__(self, side: CatalogSide) -> None:
        super().__init__(side.context.jvm)
        self._side = side
        self._context: SessionContext = side.context

    # ---- CatalogPlugin ----------------------------------------------------------------------------------------------

    def initialize(self, name: str, options: Any) -> None:
        """Nothing to do: `attach` has initialized the catalog."""

    def name(self) -> str:
        return self._context.catalog

    def capabilities(self) -> JavaObject:
        return enum_set(self.jvm, CONNECTOR + "catalog.TableCatalogCapability", self.capability_names)

    def tableStateOptionKeys(self) -> JavaObject:
        """The options that change the columns of a table, which Spark passes to `loadTable` (from 4.3 on)."""
        return string_set(self.jvm, DELETE_BEHAVIOR, CHANGES)

    def changelogStateOptionKeys(self) -> JavaObject:
        return string_set(self.jvm)

    def useNullableQuerySchema(self) -> bool:
        return True

    def invalidateTable(self, identifier: JavaObject) -> None:
        """Nothing to do: nothing is cached."""

    # ---- SupportsNamespaces: a namespace has one part, the database --------------------------------------------------

    def _no_such_namespace(self, namespace: Sequence[str]) -> Exception:
        return analysis_exception(self.jvm, "NoSuchNamespaceException", string_array(self.jvm, list(namespace)))

    def _database(self, namespace: JavaObject) -> str:
        """The database of a namespace. Throws NoSuchNamespaceException for a namespace that cannot be a database."""
        parts = names_in(namespace)
        if len(parts) != 1:
            raise self._no_such_namespace(parts)
        return parts[0]

    @contextmanager
    def _database_errors(self, namespace: JavaObject) -> Iterator[None]:
        """Translate errors about databases to Spark's own exceptions."""
        try:
            yield
        except ForebayError as e:
            if e.code == ErrorCode.DATABASE_NOT_EXIST:
                raise self._no_such_namespace(names_in(namespace)) from e
            if isinstance(e, AlreadyExists):
                raise analysis_exception(self.jvm, "NamespaceAlreadyExistsException", namespace) from e
            if e.code == ErrorCode.DATABASE_NOT_EMPTY:
                raise analysis_exception(self.jvm, "NonEmptyNamespaceException", namespace) from e
            raise

    def listNamespaces(self, *parent: Any) -> JavaObject:
        """All databases; nothing below a database."""
        if parent and len(parent[0]) > 0:
            if not self.namespaceExists(parent[0]):
                raise self._no_such_namespace(names_in(parent[0]))
            return nested_string_array(self.jvm, [])
        return nested_string_array(self.jvm, [[name] for name in self._side.database_names()])

    def namespaceExists(self, namespace: JavaObject) -> bool:
        parts = names_in(namespace)
        return len(parts) == 1 and self._side.has_database(parts[0])

    def loadNamespaceMetadata(self, namespace: JavaObject) -> JavaObject:
        with self._database_errors(namespace):
            return java_map(self.jvm, self._side.database_properties(self._database(namespace)))

    def createNamespace(self, namespace: JavaObject, metadata: JavaObject) -> None:
        properties = {str(key): str(value) for key, value in metadata.items() if key not in _SPARKS_OWN}
        with self._database_errors(namespace):
            self._side.create_database(".".join(names_in(namespace)), properties)

    def alterNamespace(self, namespace: JavaObject, changes: JavaObject) -> None:
        """Throws NoSuchNamespaceException. Raises `UnsupportedOperation` for properties that cannot be changed."""
        to_set: dict[str, str] = {}
        to_reset: list[str] = []
        for change in changes:
            name = str(change.property())
            if name in (LOCATION, *_SPARKS_OWN):
                raise UnsupportedOperation(f"a database has no {name} that could be changed")
            if str(change.getClass().getSimpleName()) == "RemoveProperty":
                to_reset.append(name)
            else:
                to_set[name] = str(change.value())
        with self._database_errors(namespace):
            self._side.alter_database(self._database(namespace), to_set, to_reset)

    def dropNamespace(self, namespace: JavaObject, cascade: bool) -> bool:
        with self._database_errors(namespace):
            self._drop_database(self._database(namespace), cascade)
        return True

    def _drop_database(self, database: str, cascade: bool) -> None:
        self._side.drop_database(database, cascade)

    # ---- names ------------------------------------------------------------------------------------------------------

    def _named(self, identifier: JavaObject) -> TableIdentifier:
        """The name in an identifier. Throws NoSuchTableException for an identifier that cannot be a table."""
        plain = _PLAIN_NAME.fullmatch(str(identifier.toString()))  # one call instead of five
        if plain:
            return TableIdentifier(plain[1], plain[2])
        namespace = names_in(identifier.namespace())
        if len(namespace) != 1:
            raise self._no_such_table(identifier)
        return TableIdentifier(namespace[0], str(identifier.name()))

    def _full_name(self, identifier: JavaObject) -> str:
        return self._context.full_name(self._named(identifier))

    def _without_catalog(self, identifier: JavaObject) -> JavaObject:
        """The identifier without the catalog, which RENAME TO may include and Spark puts into the namespace."""
        catalog, *rest = names_in(identifier.namespace())
        is_named = rest and catalog == self._context.catalog
        return java_identifier(self.jvm, rest, str(identifier.name())) if is_named else identifier

    def _no_such_table(self, identifier: JavaObject) -> Exception:
        """Spark's own exception, on which its analyzer and IF EXISTS depend."""
        return analysis_exception(self.jvm, "NoSuchTableException", identifier)

    def listTables(self, namespace: JavaObject) -> JavaObject:
        names = [java_identifier(self.jvm, *name) for name in self._identifiers(namespace)]
        return self.jvm.array(CONNECTOR + "catalog.Identifier", names)

    def listTableSummaries(self, namespace: JavaObject) -> JavaObject:
        make = self.jvm.class_(CONNECTOR + "catalog.TableSummary").of
        summaries = [make(java_identifier(self.jvm, *name), "MANAGED") for name in self._identifiers(namespace)]
        return self.jvm.array(CONNECTOR + "catalog.TableSummary", summaries)

    def _identifiers(self, namespace: JavaObject) -> list[tuple[list[str], str]]:
        database = self._database(namespace)
        with self._database_errors(namespace):
            return [([database], name) for name in self._side.table_names(database)]

    # ---- finding tables ---------------------------------------------------------------------------------------------

    def _opened(self, identifier: JavaObject) -> SideTable:
        """The table of an identifier, or the system table beside one. Throws NoSuchTableException."""
        table = self._side.open(self._named(identifier))
        if table is None:
            raise self._no_such_table(identifier)
        return table

    def loadTable(self, identifier: JavaObject, *how: Any) -> JavaProxy:
        """The table, or a system table. `how` are the arguments with which Spark requests time travel or writing."""
        table, request = self._opened(identifier), load_request(self.jvm, how)
        table.check_options(request)
        if request.travel is not None:
            return table.as_of(request.travel)
        if table.system is not None:
            return table.system_proxy()
        proxy = table.proxy(request.options)
        if request.takes_changes and isinstance(proxy, WrittenTable):
            return proxy._taking_changes(table.key, deletes_whole_rows=table.deletes_whole_rows)
        return proxy

    def loadChangelog(self, identifier: JavaObject, changelog_context: JavaObject, *options: Any) -> JavaProxy:
        """The changes of a table, for CHANGES."""
        table = self._opened(identifier)
        if table.system is not None:
            raise InvalidRequest(f"CHANGES is for tables, not for what stands beside them ({table.name})")
        try:
            return ChangelogProxy(self._context, table.changes(), changelog_context)
        except UnsupportedOperation as e:  # for Spark the catalog has no CHANGES then, of any table
            raise InvalidRequest(e.message, e.code) from e

    def tableExists(self, identifier: JavaObject) -> bool:
        """Whether `loadTable` returns a table. For plain names the side does not open it."""
        namespace, name = names_in(identifier.namespace()), str(identifier.name())
        if len(namespace) != 1:
            return False
        table = TableIdentifier(namespace[0], name)
        if table.is_plain:
            return self._side.has_table(table)
        try:
            self.loadTable(identifier)
        except (JavaThrow, ForebayError):
            return False
        return True

    # ---- creating tables --------------------------------------------------------------------------------------------

    def createTable(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        self._database(identifier.namespace())
        return self._created(identifier, table_request(self.jvm, what)).proxy()

    def createTableLike(self, identifier: JavaObject, what: JavaObject, source: JavaObject) -> JavaProxy:
        """`what` has the columns and partition keys of `source`, and the other clauses of the statement.

        Without a provider, the new table is created on the side of `source`.
        """
        self._database(identifier.namespace())
        request, of_source = table_request(self.jvm, (what,), is_copy=True), texts_in(source.properties())
        with self._database_errors(identifier.namespace()):
            properties = {PROVIDER: of_source.get(PROVIDER, ""), **request.properties}
            side = self._side.side_of_new(self._named(identifier), properties)
        copied = side.copied_properties(of_source)
        if copied is not None:
            request = replace(request, properties={**copied, **request.properties}, primary_key=())
        return self._created_on(side, identifier, request).proxy()

    def stageCreate(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        self._database(identifier.namespace())
        return self._created(identifier, table_request(self.jvm, what)).staged()

    def stageReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        request = table_request(self.jvm, what)
        return self._replaced_on(self._side_of_replaced(identifier, request), identifier, request)

    def stageCreateOrReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        """The table that replaces the one of this name, or a new one."""
        self._database(identifier.namespace())
        request = table_request(self.jvm, what)
        side = self._side_of_replaced(identifier, request)
        if side.has_table(self._named(identifier)):
            return self._replaced_on(side, identifier, request)
        return self._created_on(side, identifier, request).staged()

    def _side_of_replaced(self, identifier: JavaObject, request: TableRequest) -> CatalogSide:
        with self._database_errors(identifier.namespace()):
            return self._side.side_of_replaced(self._named(identifier), request.properties)

    def _created(self, identifier: JavaObject, request: TableRequest) -> SideTable:
        with self._database_errors(identifier.namespace()):
            side = self._side.side_of_new(self._named(identifier), request.properties)
        return self._created_on(side, identifier, request)

    def _created_on(self, side: CatalogSide, identifier: JavaObject, request: TableRequest) -> SideTable:
        try:
            return side.create_table(self._named(identifier), request)
        except AlreadyExists as e:
            if e.code != ErrorCode.TABLE_ALREADY_EXIST:  # a table in the lake, which IF NOT EXISTS must not ignore
                raise
            raise analysis_exception(self.jvm, "TableAlreadyExistsException", identifier) from e
        except NotFound:
            with self._database_errors(identifier.namespace()):
                raise

    def _replaced_on(self, side: CatalogSide, identifier: JavaObject, request: TableRequest) -> JavaProxy:
        name = self._named(identifier)
        table = side.open(name) if side.has_table(name) else None
        if table is None:
            raise self._no_such_table(identifier)
        return table.staged_replacement(request)

    # ---- changing tables --------------------------------------------------------------------------------------------

    def alterTable(self, identifier: JavaObject, changes: JavaObject) -> JavaProxy:
        """The table after all `changes`. Raises `UnsupportedOperation` for changes that it does not support."""
        table = self._opened(identifier)
        if table.system is not None:
            raise can_only_be_read(table.name)
        try:
            return table.alter([table_change(self.jvm, change) for change in changes]).proxy()
        except (InvalidRequest, UnsupportedOperation) as e:
            # Spark would wrap an IllegalArgumentException from here into one that PySpark does not translate.
            raise UnsupportedOperation(f"ALTER TABLE {table.name}: {e.message}", e.code) from e

    def dropTable(self, identifier: JavaObject) -> bool:
        """Whether there was such a table. Raises `UnsupportedOperation` for system tables and branches."""
        name = self._named(identifier)
        if name.is_plain:
            return self._side.drop_table(name)
        table = self._side.open(name)
        if table is None:
            return False
        if table.system is not None:
            raise can_only_be_read(table.name)
        raise UnsupportedOperation(f"{table.name} is part of a table and cannot be dropped by DROP TABLE")

    def purgeTable(self, identifier: JavaObject) -> bool:
        return self.dropTable(identifier)

    def renameTable(self, old: JavaObject, new: JavaObject) -> None:
        """Rename a table. Spark adds the old database to the new name, unless the statement names another."""
        target = self._without_catalog(new)
        try:
            is_renamed = self._side.rename_table(self._named(old), self._named(target))
        except AlreadyExists as e:
            raise analysis_exception(self.jvm, "TableAlreadyExistsException", target) from e
        if not is_renamed:
            raise self._no_such_table(old)

    # ---- ProcedureCatalog -------------------------------------------------------------------------------------------

    def loadProcedure(self, identifier: JavaObject) -> JavaProxy:
        """The procedure of this name. Throws Spark's exception for an unknown routine."""
        namespace, name = names_in(identifier.namespace()), str(identifier.name())
        if namespace == [SYSTEM_NAMESPACE]:
            for side in self._side.parts:
                procedure = side.procedures().get(name.lower())
                if procedure is not None:
                    return ProcedureProxy(side.context, procedure)
        home = f"{self._context.catalog}.{SYSTEM_NAMESPACE}"
        raise unresolved_routine(
            self.jvm,
            ".".join([self._context.catalog, *namespace, name]),
            f"{home}, which has {', '.join(self._procedure_names())}",
        )

    def _procedure_names(self) -> list[str]:
        return sorted({name for side in self._side.parts for name in side.procedures()})

    def listProcedures(self, namespace: JavaObject) -> JavaObject:
        names = self._procedure_names() if names_in(namespace) == [SYSTEM_NAMESPACE] else []
        return self.jvm.array(
            CONNECTOR + "catalog.Identifier", [java_identifier(self.jvm, [SYSTEM_NAMESPACE], name) for name in names]
        )

    # ---- FunctionCatalog --------------------------------------------------------------------------------------------

    def loadFunction(self, identifier: JavaObject) -> JavaProxy:
        """The function of this name. Plans look up their functions without a namespace."""
        from forebay.spark.sql.functions import function  # few statements need any

        loaded = None
        if names_in(identifier.namespace()) in ([], [SYSTEM_NAMESPACE]):
            loaded = function(self._context, str(identifier.name()), self.loadTable)
        if loaded is None:
            raise analysis_exception(self.jvm, "NoSuchFunctionException", identifier)
        return loaded

    def listFunctions(self, namespace: JavaObject) -> JavaObject:
        """The names of all functions, which are in the namespace `sys`."""
        from forebay.spark.sql.functions import NAMES

        names = NAMES if names_in(namespace) in ([], [SYSTEM_NAMESPACE]) else ()
        return self.jvm.array(
            CONNECTOR + "catalog.Identifier", [java_identifier(self.jvm, [SYSTEM_NAMESPACE], name) for name in names]
        )
