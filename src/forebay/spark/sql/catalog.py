"""What all SQL catalogs share: the half that faces Spark, and how it says what it wants.

A catalog implements Spark's `StagingTableCatalog`, `SupportsNamespaces`, `ProcedureCatalog` and `FunctionCatalog`. It
is asked on the driver, while Spark analyses a statement; every answer is looked up then, nothing is cached here.
Subclasses know where tables are: forebay.spark.sql.live_catalog in a cluster, forebay.spark.sql.lake_catalog in a
warehouse. They raise `NotFound` and `AlreadyExists` of databases, and `InvalidRequest` with code DATABASE_NOT_EMPTY.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import DataType, StructType

from forebay.base.errors import AlreadyExists, ErrorCode, ForebayError, UnsupportedOperation
from forebay.spark.context import SessionContext
from forebay.spark.jvm.exceptions import analysis_exception, unresolved_routine
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import java_identifier, python_options, python_schema
from forebay.spark.jvm.values import enum_set, java_map, nested_string_array, string_array, string_set
from forebay.spark.options import CHANGES, DELETE_BEHAVIOR, changes_option
from forebay.spark.sql import live_ddl as ddl
from forebay.spark.sql.procedures import SYSTEM_NAMESPACE, Procedure, ProcedureProxy

RELATION_CATALOG = CONNECTOR + "catalog.RelationCatalog"
"""The interface of catalogs with views; Spark has it from 4.2 on. Where views are, forebay.spark.sql.views answers."""

LOCATION = "location"
_SPARKS_OWN = ("owner",)
"""Properties of databases that Spark adds."""


CHANGES_OF_COLUMNS = ("Column", "Type", "Nullability", "Comment", "Position", "Value")
"""How the names of Spark's classes end for changes of ALTER TABLE to a column."""


_PLAIN_NAME = re.compile(r"([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
"""How Spark writes an identifier of two parts that need no quotes."""


@dataclass(frozen=True)
class TableRequest:
    """What CREATE TABLE asks for, as Spark says it. Comments and default values are in the metadata of the fields."""

    schema: StructType
    transforms: tuple[ddl.Transform, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    primary_key: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimeTravel:
    """What a statement wants to read: a version as it was written, or the state at an instant."""

    version: str | None = None
    timestamp_us: int | None = None


def names_in(array: JavaObject) -> list[str]:
    """The texts of a String[]."""
    return [str(part) for part in array]


def texts_in(mapping: JavaObject) -> dict[str, str]:
    """The entries of a Map of texts."""
    return {str(key): str(value) for key, value in mapping.items()}


class SqlCatalog(JavaProxy):
    """Tables, for one Spark session. `forebay.spark.attach` makes and installs it."""

    interfaces: ClassVar[tuple[str, ...]] = (
        CONNECTOR + "catalog.SupportsNamespaces",
        CONNECTOR + "catalog.StagingTableCatalog",
        CONNECTOR + "catalog.ProcedureCatalog",
        CONNECTOR + "catalog.FunctionCatalog",
    )
    has_views: ClassVar[bool] = False
    capability_names: ClassVar[tuple[str, ...]] = ("SUPPORT_TABLE_CONSTRAINT", "SUPPORT_COLUMN_DEFAULT_VALUE")

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context.jvm)
        self._context: SessionContext = context

    if TYPE_CHECKING:  # what subclasses answer

        def _database_names(self) -> list[str]: ...
        def _has_database(self, database: str) -> bool: ...
        def _database_properties(self, database: str) -> dict[str, str]: ...
        def _make_database(self, database: str, properties: Mapping[str, str]) -> None: ...
        def _change_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None: ...
        def _remove_database(self, database: str, cascade: bool) -> None: ...
        def _table_names(self, database: str) -> list[str]: ...
        def _procedures(self) -> Mapping[str, Procedure]: ...
        def loadTable(self, identifier: JavaObject, *how: Any) -> JavaProxy: ...
        def loadChangelog(self, identifier: JavaObject, *asked: Any) -> JavaProxy: ...
        def tableExists(self, identifier: JavaObject) -> bool: ...
        def stageReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy: ...
        def alterTable(self, identifier: JavaObject, changes: JavaObject) -> JavaProxy: ...
        def dropTable(self, identifier: JavaObject) -> bool: ...
        def _is_there(self, identifier: JavaObject) -> bool: ...
        def _created(self, identifier: JavaObject, asked: TableRequest, *, is_copy: bool = False) -> Any: ...
        def _proxy(self, identifier: JavaObject, table: Any) -> JavaProxy: ...
        def _staged(self, identifier: JavaObject, table: Any) -> JavaProxy: ...
        def _copied(self, properties: Mapping[str, str]) -> Mapping[str, str] | None: ...
        def renameTable(self, old: JavaObject, new: JavaObject) -> None: ...

    # ---- CatalogPlugin ----------------------------------------------------------------------------------------------

    def initialize(self, name: str, options: Any) -> None:
        """Nothing to do: the catalog was made with all that it needs, and Spark did not make it."""

    def name(self) -> str:
        return self._context.catalog

    def capabilities(self) -> JavaObject:
        return enum_set(self.jvm, CONNECTOR + "catalog.TableCatalogCapability", self.capability_names)

    def tableStateOptionKeys(self) -> JavaObject:
        """The options by which a table has other columns, which Spark gives to `loadTable` (from 4.3 on)."""
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
        """The database that a namespace means. Throws NoSuchNamespaceException for one that cannot be any."""
        parts = names_in(namespace)
        if len(parts) != 1:
            raise self._no_such_namespace(parts)
        return parts[0]

    @contextmanager
    def _database_errors(self, namespace: JavaObject) -> Iterator[None]:
        """Throw Spark's own exception for what goes wrong with a database inside, where it has one."""
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
        return nested_string_array(self.jvm, [[name] for name in self._database_names()])

    def namespaceExists(self, namespace: JavaObject) -> bool:
        parts = names_in(namespace)
        return len(parts) == 1 and self._has_database(parts[0])

    def loadNamespaceMetadata(self, namespace: JavaObject) -> JavaObject:
        with self._database_errors(namespace):
            return java_map(self.jvm, self._database_properties(self._database(namespace)))

    def createNamespace(self, namespace: JavaObject, metadata: JavaObject) -> None:
        properties = {str(key): str(value) for key, value in metadata.items() if key not in _SPARKS_OWN}
        with self._database_errors(namespace):
            self._make_database(".".join(names_in(namespace)), properties)

    def alterNamespace(self, namespace: JavaObject, changes: JavaObject) -> None:
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
            self._change_database(self._database(namespace), to_set, to_reset)

    def dropNamespace(self, namespace: JavaObject, cascade: bool) -> bool:
        with self._database_errors(namespace):
            self._remove_database(self._database(namespace), cascade)
        return True

    # ---- names ------------------------------------------------------------------------------------------------------

    def _named(self, identifier: JavaObject) -> tuple[str, str]:
        """(database, table). Throws NoSuchTableException for an identifier that cannot be a table."""
        plain = _PLAIN_NAME.fullmatch(str(identifier.toString()))  # one call instead of five
        if plain:
            return plain[1], plain[2]
        namespace = names_in(identifier.namespace())
        if len(namespace) != 1:
            raise self._no_such_table(identifier)
        return namespace[0], str(identifier.name())

    def _full_name(self, identifier: JavaObject) -> str:
        return self._context.full_name(".".join(self._named(identifier)))

    def _without_catalog(self, identifier: JavaObject) -> JavaObject:
        """RENAME TO may name the catalog, too, which Spark passes on as a part of the namespace."""
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
            return [([database], name) for name in self._table_names(database)]

    # ---- what Spark asks for ----------------------------------------------------------------------------------------

    def _asked(self, what: tuple[Any, ...]) -> TableRequest:
        """`what` is a TableInfo, or schema, transforms and properties (Spark before 4.1)."""
        if len(what) == 1:
            return self._read(what[0].schema(), what[0].partitions(), what[0].properties(), what[0].constraints())
        return self._read(*what)

    def _read(
        self, schema: JavaObject, transforms: JavaObject, properties: JavaObject, constraints: JavaObject = ()
    ) -> TableRequest:
        if schema.getClass().isArray():  # of Column
            schema = self.jvm.class_(CONNECTOR + "catalog.CatalogV2Util").v2ColumnsToStructType(schema)
        return TableRequest(
            python_schema(schema),
            tuple(self._transform(transform) for transform in transforms),
            texts_in(properties),
            self._primary_key(constraints),
        )

    def _transform(self, transform: JavaObject) -> ddl.Transform:
        columns: list[tuple[str, ...]] = []
        number: int | None = None
        for argument in transform.arguments():
            kind = str(argument.getClass().getSimpleName())
            if kind == "FieldReference":
                columns.append(tuple(names_in(argument.fieldNames())))
            elif kind == "LiteralValue" and isinstance(argument.value(), int):
                number = argument.value()
        return ddl.Transform(str(transform.name()), tuple(columns), number)

    def _spark_type(self, java: JavaObject) -> DataType:
        wrapper = self.jvm.class_("org.apache.spark.sql.types.StructType")().add("c", java)
        made: DataType = python_schema(wrapper).fields[0].dataType
        return made

    def _primary_key(self, constraints: JavaObject) -> tuple[str, ...]:
        key: tuple[str, ...] = ()
        for constraint in constraints:
            kind = str(constraint.getClass().getSimpleName())
            if kind != "PrimaryKey":
                raise UnsupportedOperation(f"tables know no constraint like {constraint.toDDL()}, only PRIMARY KEY")
            key = tuple(".".join(map(str, column.fieldNames())) for column in constraint.columns())
        return key

    def _takes_changes(self, how: tuple[Any, ...]) -> bool:
        """Whether `loadTable` was asked for a table to write changes into, which only Spark 4.3 or newer tells it."""
        if len(how) != 2 or how[1].isEmpty() or how[0].writePrivileges().isEmpty():
            return False
        return changes_option(python_options(how[1]))

    def _time_travel(self, how: tuple[Any, ...]) -> TimeTravel | None:
        """What `loadTable` was asked for beside the table. `how` is one of Spark's ways to say it, or nothing."""
        if len(how) == 2:  # from 4.3 on: a context, and the options of the read or write
            travel = how[0].timeTravel()
            if not travel.isPresent():
                return None
            spec = travel.get()
            is_version = str(spec.getClass().getSimpleName()) == "AsOfVersion"
            how = (str(spec.version()),) if is_version else (int(spec.micros()),)
        if how and isinstance(how[0], str):
            return TimeTravel(version=how[0])
        return TimeTravel(timestamp_us=how[0]) if how and isinstance(how[0], int) else None

    def purgeTable(self, identifier: JavaObject) -> bool:
        return self.dropTable(identifier)

    # ---- making tables: `_created` makes what `_proxy` shows to Spark, or `_staged` where rows follow ----------------

    def createTable(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        self._database(identifier.namespace())
        return self._proxy(identifier, self._created(identifier, self._asked(what)))

    def createTableLike(self, identifier: JavaObject, asked: JavaObject, source: JavaObject) -> JavaProxy:
        """`asked` has the columns and partition keys of `source`, and what the statement says beside them.

        `_copied` says what of the properties of `source` a copy has; None for tables of another kind.
        """
        self._database(identifier.namespace())
        new = self._asked((asked,))
        copied = self._copied(texts_in(source.properties()))
        if copied is not None:
            new = replace(new, properties={**copied, **new.properties}, primary_key=())
        return self._proxy(identifier, self._created(identifier, new, is_copy=True))

    def stageCreate(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        self._database(identifier.namespace())
        return self._staged(identifier, self._created(identifier, self._asked(what)))

    def stageCreateOrReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        self._database(identifier.namespace())
        stage = self.stageReplace if self._is_there(identifier) else self.stageCreate
        return stage(identifier, *what)

    # ---- ProcedureCatalog -------------------------------------------------------------------------------------------

    def loadProcedure(self, identifier: JavaObject) -> JavaProxy:
        namespace, name = names_in(identifier.namespace()), str(identifier.name())
        known = self._procedures()
        procedure = known.get(name.lower()) if namespace == [SYSTEM_NAMESPACE] else None
        if procedure is None:
            home = f"{self._context.catalog}.{SYSTEM_NAMESPACE}"
            raise unresolved_routine(
                self.jvm,
                ".".join([self._context.catalog, *namespace, name]),
                f"{home}, which has {', '.join(sorted(known))}",
            )
        return ProcedureProxy(self._context, procedure)

    def listProcedures(self, namespace: JavaObject) -> JavaObject:
        names = sorted(self._procedures()) if names_in(namespace) == [SYSTEM_NAMESPACE] else []
        return self.jvm.array(
            CONNECTOR + "catalog.Identifier", [java_identifier(self.jvm, [SYSTEM_NAMESPACE], name) for name in names]
        )

    # ---- FunctionCatalog --------------------------------------------------------------------------------------------

    def loadFunction(self, identifier: JavaObject) -> JavaProxy:
        """The function of this name. Plans look for theirs without a namespace."""
        from forebay.spark.sql.functions import function  # few statements need any

        found = None
        if names_in(identifier.namespace()) in ([], [SYSTEM_NAMESPACE]):
            found = function(self._context, str(identifier.name()), self.loadTable)
        if found is None:
            raise analysis_exception(self.jvm, "NoSuchFunctionException", identifier)
        return found

    def listFunctions(self, namespace: JavaObject) -> JavaObject:
        from forebay.spark.sql.functions import NAMES

        names = NAMES if names_in(namespace) in ([], [SYSTEM_NAMESPACE]) else ()
        return self.jvm.array(
            CONNECTOR + "catalog.Identifier", [java_identifier(self.jvm, [SYSTEM_NAMESPACE], name) for name in names]
        )
