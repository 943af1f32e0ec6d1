"""The catalog: what Spark SQL finds under `<catalog>.<database>.<table>`.

These are the tables of a cluster; what a catalog is to Spark, forebay.spark.sql.catalog says.

Beside a table `t` there are virtual ones, such as `t$changelog` (forebay.spark.sql.live_tables).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from forebay.base.errors import AlreadyExists, ErrorCode, ForebayError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.table import Column, TableInfo, TablePath
from forebay.spark.context import CatalogContext
from forebay.spark.jvm.gateway import JavaObject, JavaThrow
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.releases import TIME_TYPE
from forebay.spark.options import DELETE_BEHAVIOR, INCLUDE, deletes_option, read_options, write_options
from forebay.spark.reading.live_plan import VIRTUAL_SEPARATOR
from forebay.spark.schemas import default_of, from_spark_schema, from_spark_type, uses_time
from forebay.spark.sql import live_ddl as ddl
from forebay.spark.sql.catalog import CHANGES_OF_COLUMNS, LOCATION, SqlCatalog, TableRequest, names_in
from forebay.spark.sql.changelogs import ChangelogProxy
from forebay.spark.sql.live_procedures import LIVE_PROCEDURES
from forebay.spark.sql.live_tables import (
    DeleteTellingTable,
    ReplacedLiveTable,
    StagedLiveTable,
    TravelledTable,
    as_of,
    table_proxy,
    virtual_table,
)
from forebay.spark.sql.procedures import Procedure
from forebay.spark.sql.tables import WrittenTable, can_only_be_read, without_travel

_TIME_CONF = "spark.sql.timeType.enabled"


def _new_table(asked: TableRequest, is_copy: bool = False) -> ddl.NewTable:
    defaults = {f.name: text for f in asked.schema.fields if (text := default_of(f, is_copy)) is not None}
    columns = from_spark_schema(asked.schema)
    return ddl.NewTable(columns, asked.transforms, asked.properties, asked.primary_key, defaults)


class ForebayCatalog(SqlCatalog):
    """The tables of a cluster, for one Spark session. `forebay.spark.attach` makes and installs it."""

    _context: CatalogContext

    def _procedures(self) -> Mapping[str, Procedure]:
        return LIVE_PROCEDURES

    # ---- databases --------------------------------------------------------------------------------------------------

    def _database_names(self) -> list[str]:
        return self._context.connection.list_databases()

    def _has_database(self, database: str) -> bool:
        return self._context.connection.database_exists(database)

    def _database_properties(self, database: str) -> dict[str, str]:
        info = self._context.admin.database_info(database)
        return {**info.custom_properties, **({} if info.comment is None else {ddl.COMMENT: info.comment})}

    def _make_database(self, database: str, properties: Mapping[str, str]) -> None:
        if LOCATION in properties:
            raise InvalidRequest(
                f"database {database} cannot have a LOCATION: the server decides where tables are kept",
                ErrorCode.INVALID_DATABASE_EXCEPTION,
            )
        custom = dict(properties)
        comment = custom.pop(ddl.COMMENT, None)
        self._context.connection.create_database(database, comment=comment, options=custom)

    def _change_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        custom = {name: value for name, value in to_set.items() if name != ddl.COMMENT}
        comment = "" if ddl.COMMENT in to_reset else to_set.get(ddl.COMMENT)
        removed = [name for name in to_reset if name != ddl.COMMENT]
        self._context.admin.alter_database(database, custom, removed, comment)

    def _remove_database(self, database: str, cascade: bool) -> None:
        self._context.connection.drop_database(database, cascade=cascade)

    # ---- helpers ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _missing_is_no_such_table(self, identifier: JavaObject) -> Iterator[None]:
        """Spark's own exception for a missing table, on which its analyzer and IF EXISTS depend."""
        try:
            yield
        except NotFound as e:
            if e.code in (ErrorCode.TABLE_NOT_EXIST, ErrorCode.DATABASE_NOT_EXIST):
                raise self._no_such_table(identifier) from e
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

    def _table(self, info: TableInfo) -> WrittenTable:
        self._check_time(info)
        return table_proxy(self._context, info)

    # ---- finding tables ---------------------------------------------------------------------------------------------

    def _table_names(self, database: str) -> list[str]:
        return self._context.connection.list_tables(database)

    def loadTable(self, identifier: JavaObject, *how: Any) -> JavaProxy:
        """The table, or a virtual one beside it. `how` is one of Spark's ways to ask for time travel or writing."""
        database, name = self._named(identifier)
        name, separator, view = name.partition(VIRTUAL_SEPARATOR)
        path = TablePath(database, name)
        with self._missing_is_no_such_table(identifier):
            try:
                info = self._context.admin.table_info(path)
            except InvalidRequest as e:  # a name that no table can have
                raise self._no_such_table(identifier) from e
        travel = self._time_travel(how)
        if travel is not None and separator:
            raise UnsupportedOperation(
                f"`{path}{VIRTUAL_SEPARATOR}{view}` cannot be read as of another time, only the table {path} can"
            )
        # From 4.3 on Spark tells options already while it analyses: bad ones are refused early.
        options = without_travel(self.jvm.options(how[1])) if len(how) == 2 else {}
        deletes = deletes_option(options)
        options = {name: value for name, value in options.items() if name.lower() != DELETE_BEHAVIOR}
        if options and how[0].writePrivileges().isEmpty():
            read_options(self._context.settings, info.descriptor, options)
        elif options:
            write_options(self._context.settings, options)
        if travel is not None:
            self._check_time(info)
            return TravelledTable(self._context, info, as_of(travel))
        if separator:
            return virtual_table(self._context, info, view)
        if deletes == INCLUDE:
            self._check_time(info)
            return DeleteTellingTable(self._context, info)
        found = self._table(info)
        return found._taking_changes(info.schema.primary_key) if self._takes_changes(how) else found

    def loadChangelog(self, identifier: JavaObject, asked: JavaObject, *options: Any) -> JavaProxy:
        """What CHANGES reads, of a table of the cluster."""
        from forebay.spark.sql.live_changelog import LiveTableChanges

        database, name = self._named(identifier)
        if VIRTUAL_SEPARATOR in name:
            raise InvalidRequest(f"CHANGES is for tables, not for what stands beside them (`{name}`)")
        with self._missing_is_no_such_table(identifier):
            info = self._context.admin.table_info(TablePath(database, name))
        self._check_time(info)
        try:
            return ChangelogProxy(
                self._context, LiveTableChanges(self._context, self._full_name(identifier), info), asked
            )
        except UnsupportedOperation as e:  # for Spark the catalog has no CHANGES then, of any table
            raise InvalidRequest(e.message, e.code) from e

    def tableExists(self, identifier: JavaObject) -> bool:
        namespace, name = names_in(identifier.namespace()), str(identifier.name())
        if len(namespace) != 1:
            return False
        if VIRTUAL_SEPARATOR not in name:
            return self._context.connection.table_exists(TablePath(namespace[0], name))
        try:
            self.loadTable(identifier)
        except (JavaThrow, ForebayError):
            return False
        return True

    # ---- making and changing tables ---------------------------------------------------------------------------------

    def _is_there(self, identifier: JavaObject) -> bool:
        return self._context.connection.table_exists(TablePath(*self._named(identifier)))

    def _created(self, identifier: JavaObject, asked: TableRequest, *, is_copy: bool = False) -> TableInfo:
        path = TablePath(*self._named(identifier))
        try:
            self._context.admin.create_table_as(path, ddl.new_descriptor(_new_table(asked, is_copy)))
        except AlreadyExists as e:
            if e.code != ErrorCode.TABLE_ALREADY_EXIST:  # a table in the lake: IF NOT EXISTS must not pass over it
                raise
            raise self.jvm.thrown("TableAlreadyExistsException", identifier) from e
        except NotFound:
            with self._database_errors(identifier.namespace()):
                raise
        return self._context.admin.table_info(path)

    def _proxy(self, identifier: JavaObject, table: TableInfo) -> JavaProxy:
        return self._table(table)

    def _staged(self, identifier: JavaObject, table: TableInfo) -> JavaProxy:
        self._check_time(table)
        return StagedLiveTable(self._context, table)

    def _copied(self, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        return properties if properties.get(ddl.PROVIDER) in ddl.PROVIDERS else None

    def alterTable(self, identifier: JavaObject, changes: JavaObject) -> JavaProxy:
        path = self._path_to_change(identifier)
        with self._missing_is_no_such_table(identifier):
            try:
                asked_for = [self._change(change) for change in changes]
                table = self._context.connection.table(path)
                asked = ddl.alteration(table.info, asked_for)
                if asked.to_set or asked.to_reset:
                    table = table.alter(set=asked.to_set, reset=asked.to_reset)
                if asked.columns:
                    table.alter(add_columns=asked.columns)
            except InvalidRequest as e:
                # Spark would wrap an IllegalArgumentException from here into one that PySpark does not translate.
                raise UnsupportedOperation(e.message, e.code) from e
            return self._table(self._context.admin.table_info(path))

    def _change(self, change: JavaObject) -> ddl.Change:
        kind = str(change.getClass().getSimpleName())
        match kind:
            case "SetProperty" | "RemoveProperty":
                value = str(change.value()) if kind == "SetProperty" else None
                return ddl.SetProperty(str(change.property()), value)
            case "AddColumn":
                return self._added_column(change)
            case "UpdateColumnDefaultValue":
                return ddl.NewDefault(tuple(names_in(change.fieldNames())), str(change.newDefaultValue()) or None)
            case _:
                what = ""
                if kind.endswith(CHANGES_OF_COLUMNS):
                    what = f"column '{'.'.join(names_in(change.fieldNames()))}': "
                return ddl.OtherChange(kind, what)

    def _added_column(self, change: JavaObject) -> ddl.NewColumn:
        path = tuple(names_in(change.fieldNames()))
        t = from_spark_type(self._spark_type(change.dataType()), ".".join(path))
        comment, position = change.comment(), change.position()
        column = Column(path[-1], t if change.isNullable() else t.not_null(), None if comment is None else str(comment))
        text = None if position is None else str(position.toString())
        return ddl.NewColumn(path, column, text, change.defaultValue() is not None)

    def dropTable(self, identifier: JavaObject) -> bool:
        try:
            self._context.connection.drop_table(self._path_to_change(identifier))
        except NotFound:
            return False
        return True

    def _path_to_change(self, identifier: JavaObject) -> TablePath:
        """Raises `UnsupportedOperation` for what stands beside a table."""
        if VIRTUAL_SEPARATOR in str(identifier.name()) and self.tableExists(identifier):
            raise can_only_be_read(self._full_name(identifier))
        return TablePath(*self._named(identifier))

    def renameTable(self, old: JavaObject, new: JavaObject) -> None:
        raise UnsupportedOperation(
            f"table {self._full_name(old)} cannot be renamed: tables keep their names",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )

    def stageReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        """A table whose rows are replaced in one transaction. What else it is must stay as it is.

        Else it is refused: Spark would drop the table first, and its rows were lost if a later step failed.
        """
        if not self._is_there(identifier):
            raise self._no_such_table(identifier)
        info = self._context.admin.table_info(TablePath(*self._named(identifier)))
        new = _new_table(self._asked(what))
        reason = ddl.difference(info, new) if info.has_primary_key else "a log cannot lose rows"
        if reason is not None:
            raise UnsupportedOperation(
                f"table {self._full_name(identifier)} cannot be replaced in one step: {reason}. DROP TABLE it first, "
                "or write into it"
            )
        self._check_time(info)
        return ReplacedLiveTable(self._context, info)
