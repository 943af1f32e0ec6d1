"""The catalog: what Spark SQL finds under `<catalog>.<database>.<table>`.

It implements Spark's `TableCatalog`, `SupportsNamespaces` and `ProcedureCatalog`. Spark asks it on the driver, while it
analyses a statement; every answer comes from the cluster at that moment, nothing is cached here.

Beside a table `t` there are virtual ones: `t$changelog`, `t$partitions`, `t$buckets` (forebay.spark.virtual_tables).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from forebay.base.errors import AlreadyExists, ErrorCode, ForebayError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.table import Column, TableInfo, TablePath
from forebay.spark import ddl
from forebay.spark.context import CatalogContext
from forebay.spark.jvm import CONNECTOR, JavaObject
from forebay.spark.namespaces import Namespaces
from forebay.spark.options import read_options, write_options
from forebay.spark.procedures import PROCEDURES, SYSTEM_NAMESPACE, ProcedureProxy
from forebay.spark.proxy import JavaProxy
from forebay.spark.releases import TIME_TYPE
from forebay.spark.scan_planning import VIRTUAL_SEPARATOR
from forebay.spark.schemas import from_spark_schema, from_spark_type, uses_time
from forebay.spark.tables import NewTable, table_proxy
from forebay.spark.tiering_procedures import TIERING_PROCEDURES
from forebay.spark.virtual_tables import virtual_table

_TIME_CONF = "spark.sql.timeType.enabled"
_ALL_PROCEDURES = {**PROCEDURES, **TIERING_PROCEDURES}


class ForebayCatalog(Namespaces):
    """The tables of a cluster, for one Spark session. `forebay.spark.attach` makes and installs it."""

    interfaces: ClassVar[tuple[str, ...]] = (
        CONNECTOR + "catalog.StagingTableCatalog",
        CONNECTOR + "catalog.ProcedureCatalog",
    )

    def __init__(self, context: CatalogContext) -> None:
        super().__init__(context)
        self._no_options = self.jvm.class_("java.util.HashSet")()

    # ---- CatalogPlugin ----------------------------------------------------------------------------------------------

    def initialize(self, name: str, options: Any) -> None:
        """Nothing to do: the catalog was made with all that it needs, and Spark did not make it."""

    def name(self) -> str:
        return self._context.catalog

    def capabilities(self) -> JavaObject:
        return self.jvm.enum_set(CONNECTOR + "catalog.TableCatalogCapability", ("SUPPORT_TABLE_CONSTRAINT",))

    def tableStateOptionKeys(self) -> JavaObject:
        return self._no_options

    def changelogStateOptionKeys(self) -> JavaObject:
        return self._no_options

    def useNullableQuerySchema(self) -> bool:
        return True

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _path(self, identifier: JavaObject) -> TablePath:
        """Throws NoSuchTableException for an identifier that cannot be a table."""
        namespace = [str(part) for part in identifier.namespace()]
        if len(namespace) != 1:
            raise self.jvm.thrown("NoSuchTableException", identifier)
        return TablePath(namespace[0], str(identifier.name()))

    @contextmanager
    def _missing_is_no_such_table(self, identifier: JavaObject) -> Iterator[None]:
        """Spark's own exception for a missing table, on which its analyzer and IF EXISTS depend."""
        try:
            yield
        except NotFound as e:
            if e.code in (ErrorCode.TABLE_NOT_EXIST, ErrorCode.DATABASE_NOT_EXIST):
                raise self.jvm.thrown("NoSuchTableException", identifier) from e
            raise

    def _check_time(self, info: TableInfo) -> None:
        name = uses_time(info.schema.columns)
        if name is None:
            return
        if TIME_TYPE is None:
            raise UnsupportedOperation(
                f"column '{name}' of table {info.path} has type TIME, which Spark {self.jvm.spark_version} does not "
                "have: it needs Spark 4.1 or newer"
            )
        if str(self._context.session.sessionState().conf().getConfString(_TIME_CONF, "false")).lower() != "true":
            raise UnsupportedOperation(
                f"column '{name}' of table {info.path} has type TIME, which Spark knows only with {_TIME_CONF}=true: "
                f"SET {_TIME_CONF}=true"
            )

    def _table(self, info: TableInfo) -> JavaProxy:
        self._check_time(info)
        return table_proxy(self._context, info)

    # ---- finding tables ---------------------------------------------------------------------------------------------

    def listTables(self, namespace: JavaObject) -> JavaObject:
        names = self._table_names(namespace)
        return self.jvm.array(CONNECTOR + "catalog.Identifier", [self.jvm.identifier(*name) for name in names])

    def listTableSummaries(self, namespace: JavaObject) -> JavaObject:
        make = self.jvm.class_(CONNECTOR + "catalog.TableSummary").of
        names = self._table_names(namespace)
        summaries = [make(self.jvm.identifier(*name), "MANAGED") for name in names]
        return self.jvm.array(CONNECTOR + "catalog.TableSummary", summaries)

    def _table_names(self, namespace: JavaObject) -> list[tuple[list[str], str]]:
        database = self._database(namespace)
        try:
            return [([database], name) for name in self._context.admin.list_tables(database)]
        except ForebayError as e:
            raise self._translated_database_error(e, namespace) from e

    def loadTable(self, identifier: JavaObject, *how: Any) -> JavaProxy:
        """The table, or a virtual one beside it. `how` is one of Spark's ways to ask for time travel or writing."""
        path = self._path(identifier)
        self._refuse_time_travel(path, how)
        name, separator, view = path.table.partition(VIRTUAL_SEPARATOR)
        path = TablePath(path.database, name)
        with self._missing_is_no_such_table(identifier):
            try:
                info = self._context.admin.table_info(path)
            except InvalidRequest as e:  # a name that no table can have
                raise self.jvm.thrown("NoSuchTableException", identifier) from e
        self._check_options(info, how)
        return virtual_table(self._context, info, view) if separator else self._table(info)

    def _check_options(self, info: TableInfo, how: tuple[Any, ...]) -> None:
        """From 4.3 on Spark tells the options of a read or write here, while it analyses: refuse bad ones early."""
        if len(how) != 2:
            return
        options = self.jvm.options(how[1])
        if options and how[0].writePrivileges().isEmpty():
            read_options(self._context.settings, info.descriptor, options)
        elif options:
            write_options(self._context.settings, options)

    def _refuse_time_travel(self, path: TablePath, how: tuple[Any, ...]) -> None:
        travels = any(isinstance(argument, str | int) for argument in how)
        if len(how) == 2:
            travels = bool(how[0].timeTravel().isPresent())
        if travels:
            raise UnsupportedOperation(
                f"table {self._context.full_name(path)} cannot be read as of another time: servers keep the current "
                "state and the changelog, which is `$changelog`"
            )

    def tableExists(self, identifier: JavaObject) -> bool:
        namespace = [str(part) for part in identifier.namespace()]
        name = str(identifier.name())
        if len(namespace) != 1 or VIRTUAL_SEPARATOR in name:
            return False
        return self._context.admin.table_exists(TablePath(namespace[0], name))

    def invalidateTable(self, identifier: JavaObject) -> None:
        """Nothing to do: nothing is cached."""

    # ---- making and changing tables ---------------------------------------------------------------------------------

    def createTable(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        """`what` is a TableInfo, or schema, transforms and properties (Spark before 4.1)."""
        return self._table(self._created(identifier, self._asked(what)))

    def createTableLike(self, identifier: JavaObject, asked: JavaObject, source: JavaObject) -> JavaProxy:
        """`asked` has the columns and partition keys of `source`, and what the statement says beside them."""
        new = self._asked((asked,))
        theirs = {str(key): str(value) for key, value in source.properties().items()}
        if theirs.get(ddl.PROVIDER) in ddl.PROVIDERS:
            new = replace(new, properties={**theirs, **new.properties}, primary_key=())
        return self._table(self._created(identifier, new))

    def _asked(self, what: tuple[Any, ...]) -> ddl.NewTable:
        if len(what) == 1:
            return self._new_table(what[0].schema(), what[0].partitions(), what[0].properties(), what[0].constraints())
        return self._new_table(*what)

    def _created(self, identifier: JavaObject, new: ddl.NewTable) -> TableInfo:
        path = self._path(identifier)
        try:
            self._context.admin.create_table_as(path, ddl.new_descriptor(new))
        except AlreadyExists as e:
            raise self.jvm.thrown("TableAlreadyExistsException", identifier) from e
        except NotFound as e:
            raise self._translated_database_error(e, identifier.namespace()) from e
        return self._context.admin.table_info(path)

    def _new_table(
        self, schema: JavaObject, transforms: JavaObject, properties: JavaObject, constraints: JavaObject = ()
    ) -> ddl.NewTable:
        if schema.getClass().isArray():  # of Column
            schema = self.jvm.class_(CONNECTOR + "catalog.CatalogV2Util").v2ColumnsToStructType(schema)
        return ddl.NewTable(
            from_spark_schema(self.jvm.python_schema(schema)),
            [self._transform(transform) for transform in transforms],
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

    def alterTable(self, identifier: JavaObject, changes: JavaObject) -> JavaProxy:
        path = self._path(identifier)
        with self._missing_is_no_such_table(identifier):
            try:
                self._alter(path, [self._change(change) for change in changes])
            except InvalidRequest as e:
                # Spark would wrap an IllegalArgumentException from here into one that PySpark does not translate.
                raise UnsupportedOperation(e.message, e.code) from e
            return self._table(self._context.admin.table_info(path))

    def _alter(self, path: TablePath, changes: list[ddl.Change]) -> None:
        asked = ddl.alteration(self._context.admin.table_info(path), changes)
        if asked.to_set or asked.to_reset:
            self._context.admin.alter_table(path, set=asked.to_set, reset=asked.to_reset)
        if asked.columns:
            self._context.admin.alter_table(path, add_columns=asked.columns)

    def _change(self, change: JavaObject) -> ddl.Change:
        kind = str(change.getClass().getSimpleName())
        match kind:
            case "SetProperty":
                return ddl.SetProperty(str(change.property()), str(change.value()))
            case "RemoveProperty":
                return ddl.RemoveProperty(str(change.property()))
            case "AddColumn":
                return self._added_column(change)
            case _:
                what = ""
                if kind.endswith(("Column", "Type", "Nullability", "Comment", "Position", "Value")):
                    what = f"column '{'.'.join(map(str, change.fieldNames()))}': "
                return ddl.OtherChange(kind, what)

    def _added_column(self, change: JavaObject) -> ddl.AddColumn:
        path = tuple(str(part) for part in change.fieldNames())
        wrapper = self.jvm.class_("org.apache.spark.sql.types.StructType")().add("c", change.dataType())
        t = from_spark_type(self.jvm.python_schema(wrapper).fields[0].dataType, ".".join(path))
        comment, position = change.comment(), change.position()
        column = Column(path[-1], t if change.isNullable() else t.not_null(), None if comment is None else str(comment))
        return ddl.AddColumn(path, column, None if position is None else str(position.toString()))

    def dropTable(self, identifier: JavaObject) -> bool:
        try:
            self._context.admin.drop_table(self._path(identifier))
        except NotFound:
            return False
        return True

    def purgeTable(self, identifier: JavaObject) -> bool:
        return self.dropTable(identifier)

    def renameTable(self, old: JavaObject, new: JavaObject) -> None:
        raise UnsupportedOperation(
            f"table {self._context.full_name(self._path(old))} cannot be renamed: tables keep their names",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )

    # ---- StagingTableCatalog: CREATE TABLE AS SELECT, and REPLACE TABLE ----------------------------------------------

    def stageCreate(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        info = self._created(identifier, self._asked(what))
        self._check_time(info)
        return NewTable(self._context, info)

    def stageReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        """Refused. A catalog without staging is told to drop the table first, and its rows are lost if more fails."""
        path = self._path(identifier)
        if not self._context.admin.table_exists(path):
            raise self.jvm.thrown("NoSuchTableException", identifier)
        raise UnsupportedOperation(
            f"table {self._context.full_name(path)} cannot be replaced in one step: DROP TABLE it first, or write into "
            "it, which upserts where it has a primary key"
        )

    def stageCreateOrReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        exists = self._context.admin.table_exists(self._path(identifier))
        return self.stageReplace(identifier, *what) if exists else self.stageCreate(identifier, *what)

    # ---- procedures -------------------------------------------------------------------------------------------------

    def loadProcedure(self, identifier: JavaObject) -> JavaProxy:
        namespace, name = [str(part) for part in identifier.namespace()], str(identifier.name())
        procedure = _ALL_PROCEDURES.get(name.lower()) if namespace == [SYSTEM_NAMESPACE] else None
        if procedure is None:
            raise NotFound(
                f"there is no procedure {'.'.join([self._context.catalog, *namespace, name])}; there are "
                + ", ".join(f"{SYSTEM_NAMESPACE}.{known}" for known in sorted(_ALL_PROCEDURES)),
                ErrorCode.CLIENT_ERROR,
            )
        return ProcedureProxy(self._context, procedure)

    def listProcedures(self, namespace: JavaObject) -> JavaObject:
        names = sorted(_ALL_PROCEDURES) if [str(part) for part in namespace] == [SYSTEM_NAMESPACE] else []
        return self.jvm.array(
            CONNECTOR + "catalog.Identifier", [self.jvm.identifier([SYSTEM_NAMESPACE], name) for name in names]
        )
