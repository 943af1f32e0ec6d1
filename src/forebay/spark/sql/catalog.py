"""What all SQL catalogs share: the half that faces Spark, and how it says what it wants.

A catalog implements Spark's `StagingTableCatalog`, `SupportsNamespaces` and `ProcedureCatalog`. Spark asks it on the
driver, while it analyses a statement; every answer is looked up at that moment, nothing is cached here. Subclasses know
where tables are: forebay.spark.sql.live_catalog in a cluster, forebay.spark.sql.lake_catalog in a warehouse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import StructType

from forebay.base.errors import ForebayError, UnsupportedOperation
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.sql import live_ddl as ddl
from forebay.spark.sql.namespaces import Namespaces
from forebay.spark.sql.procedures import SYSTEM_NAMESPACE, Procedure, ProcedureProxy


@dataclass(frozen=True)
class Asked:
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


class SqlCatalog(Namespaces):
    """Tables, for one Spark session. `forebay.spark.attach` makes and installs it."""

    interfaces: ClassVar[tuple[str, ...]] = (
        CONNECTOR + "catalog.StagingTableCatalog",
        CONNECTOR + "catalog.ProcedureCatalog",
    )
    capability_names: ClassVar[tuple[str, ...]] = ("SUPPORT_TABLE_CONSTRAINT",)

    def _table_names(self, database: str) -> list[str]:
        """Raises `NotFound` for a database that is not there."""
        raise NotImplementedError(f"{type(self).__name__} does not list tables")

    def _procedures(self) -> Mapping[str, Procedure]:
        """What can be called, by name."""
        raise NotImplementedError(f"{type(self).__name__} does not list procedures")

    if TYPE_CHECKING:  # what subclasses answer

        def loadTable(self, identifier: JavaObject, *how: Any) -> JavaProxy: ...
        def tableExists(self, identifier: JavaObject) -> bool: ...
        def createTable(self, identifier: JavaObject, *what: Any) -> JavaProxy: ...
        def createTableLike(self, identifier: JavaObject, asked: JavaObject, source: JavaObject) -> JavaProxy: ...
        def stageCreate(self, identifier: JavaObject, *what: Any) -> JavaProxy: ...
        def stageReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy: ...
        def stageCreateOrReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy: ...
        def alterTable(self, identifier: JavaObject, changes: JavaObject) -> JavaProxy: ...
        def dropTable(self, identifier: JavaObject) -> bool: ...
        def renameTable(self, old: JavaObject, new: JavaObject) -> None: ...

    # ---- CatalogPlugin ----------------------------------------------------------------------------------------------

    def initialize(self, name: str, options: Any) -> None:
        """Nothing to do: the catalog was made with all that it needs, and Spark did not make it."""

    def name(self) -> str:
        return self._context.catalog

    def capabilities(self) -> JavaObject:
        return self.jvm.enum_set(CONNECTOR + "catalog.TableCatalogCapability", self.capability_names)

    def tableStateOptionKeys(self) -> JavaObject:
        return self._no_options()

    def changelogStateOptionKeys(self) -> JavaObject:
        return self._no_options()

    def _no_options(self) -> JavaObject:
        return self.jvm.class_("java.util.HashSet")()

    def useNullableQuerySchema(self) -> bool:
        return True

    def invalidateTable(self, identifier: JavaObject) -> None:
        """Nothing to do: nothing is cached."""

    # ---- names ------------------------------------------------------------------------------------------------------

    def _named(self, identifier: JavaObject) -> tuple[str, str]:
        """(database, table). Throws NoSuchTableException for an identifier that cannot be a table."""
        namespace = [str(part) for part in identifier.namespace()]
        if len(namespace) != 1:
            raise self._no_such_table(identifier)
        return namespace[0], str(identifier.name())

    def _no_such_table(self, identifier: JavaObject) -> Exception:
        """Spark's own exception, on which its analyzer and IF EXISTS depend."""
        return self.jvm.thrown("NoSuchTableException", identifier)

    def listTables(self, namespace: JavaObject) -> JavaObject:
        names = [self.jvm.identifier(*name) for name in self._identifiers(namespace)]
        return self.jvm.array(CONNECTOR + "catalog.Identifier", names)

    def listTableSummaries(self, namespace: JavaObject) -> JavaObject:
        make = self.jvm.class_(CONNECTOR + "catalog.TableSummary").of
        summaries = [make(self.jvm.identifier(*name), "MANAGED") for name in self._identifiers(namespace)]
        return self.jvm.array(CONNECTOR + "catalog.TableSummary", summaries)

    def _identifiers(self, namespace: JavaObject) -> list[tuple[list[str], str]]:
        database = self._database(namespace)
        try:
            return [([database], name) for name in self._table_names(database)]
        except ForebayError as e:
            raise self._translated_database_error(e, namespace) from e

    # ---- what Spark asks for ----------------------------------------------------------------------------------------

    def _asked(self, what: tuple[Any, ...]) -> Asked:
        """`what` is a TableInfo, or schema, transforms and properties (Spark before 4.1)."""
        if len(what) == 1:
            return self._read(what[0].schema(), what[0].partitions(), what[0].properties(), what[0].constraints())
        return self._read(*what)

    def _read(
        self, schema: JavaObject, transforms: JavaObject, properties: JavaObject, constraints: JavaObject = ()
    ) -> Asked:
        if schema.getClass().isArray():  # of Column
            schema = self.jvm.class_(CONNECTOR + "catalog.CatalogV2Util").v2ColumnsToStructType(schema)
        return Asked(
            self.jvm.python_schema(schema),
            tuple(self._transform(transform) for transform in transforms),
            {str(key): str(value) for key, value in properties.items()},
            self._primary_key(constraints),
        )

    def _transform(self, transform: JavaObject) -> ddl.Transform:
        columns: list[tuple[str, ...]] = []
        number: int | None = None
        for argument in transform.arguments():
            kind = str(argument.getClass().getSimpleName())
            if kind == "FieldReference":
                columns.append(tuple(str(part) for part in argument.fieldNames()))
            elif kind == "LiteralValue" and isinstance(argument.value(), int):
                number = argument.value()
        return ddl.Transform(str(transform.name()), tuple(columns), number)

    def _primary_key(self, constraints: JavaObject) -> tuple[str, ...]:
        key: tuple[str, ...] = ()
        for constraint in constraints:
            kind = str(constraint.getClass().getSimpleName())
            if kind != "PrimaryKey":
                raise UnsupportedOperation(f"tables know no constraint like {constraint.toDDL()}, only PRIMARY KEY")
            key = tuple(".".join(map(str, column.fieldNames())) for column in constraint.columns())
        return key

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

    def _options_of(self, how: tuple[Any, ...]) -> dict[str, str]:
        """The options of a read or write, which from 4.3 on Spark tells already while it analyses."""
        return self.jvm.options(how[1]) if len(how) == 2 else {}

    def purgeTable(self, identifier: JavaObject) -> bool:
        return self.dropTable(identifier)

    # ---- ProcedureCatalog -------------------------------------------------------------------------------------------

    def loadProcedure(self, identifier: JavaObject) -> JavaProxy:
        namespace, name = [str(part) for part in identifier.namespace()], str(identifier.name())
        known = self._procedures()
        procedure = known.get(name.lower()) if namespace == [SYSTEM_NAMESPACE] else None
        if procedure is None:
            home = f"{self._context.catalog}.{SYSTEM_NAMESPACE}"
            raise self.jvm.unknown_routine(
                ".".join([self._context.catalog, *namespace, name]), f"{home}, which has {', '.join(sorted(known))}"
            )
        return ProcedureProxy(self._context, procedure)

    def listProcedures(self, namespace: JavaObject) -> JavaObject:
        names = sorted(self._procedures()) if [str(part) for part in namespace] == [SYSTEM_NAMESPACE] else []
        return self.jvm.array(
            CONNECTOR + "catalog.Identifier", [self.jvm.identifier([SYSTEM_NAMESPACE], name) for name in names]
        )
