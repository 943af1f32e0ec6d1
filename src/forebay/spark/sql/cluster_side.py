"""The side of a cluster: its tables, for a catalog of Spark.

A table `t` has system tables, such as `t$changelog` (forebay.spark.sql.live_tables).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.table import TableInfo, TablePath
from forebay.spark.context import LiveContext
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.jvm.releases import TIME_TYPE
from forebay.spark.options import DELETE_BEHAVIOR, INCLUDE, deletes_option, read_options, write_options
from forebay.spark.reading.live_plan import AsOf
from forebay.spark.reading.plan import SYSTEM_SEPARATOR
from forebay.spark.schemas import uses_time
from forebay.spark.sql import live_ddl as ddl
from forebay.spark.sql.live_changelog import LiveTableChanges
from forebay.spark.sql.live_procedures import LIVE_PROCEDURES
from forebay.spark.sql.live_tables import (
    LiveTableAsOf,
    LiveTableWithDeletes,
    ReplacedLiveTable,
    StagedLiveTable,
    system_table,
    table_proxy,
)
from forebay.spark.sql.procedures import Procedure
from forebay.spark.sql.requests import LoadRequest, TableChange, TableRequest, TimeTravel
from forebay.spark.sql.side import CatalogSide, SideTable, TableIdentifier
from forebay.spark.sql.tables import TableProxy

_TIME_CONF = "spark.sql.timeType.enabled"
_LOCATION = "location"


@dataclass(frozen=True)
class ClusterSide(CatalogSide):
    """The databases and tables of a cluster."""

    context: LiveContext

    def of_session(self, session: JavaObject) -> Self:
        return replace(self, context=self.context.of_session(session))

    def procedures(self) -> Mapping[str, Procedure]:
        return LIVE_PROCEDURES

    # ---- databases --------------------------------------------------------------------------------------------------

    def database_names(self) -> list[str]:
        return self.context.connection.list_databases()

    def has_database(self, database: str) -> bool:
        return self.context.connection.database_exists(database)

    def database_properties(self, database: str) -> dict[str, str]:
        info = self.context.admin.database_info(database)
        return {**info.custom_properties, **({} if info.comment is None else {ddl.COMMENT: info.comment})}

    def create_database(self, database: str, properties: Mapping[str, str]) -> None:
        """Raises `InvalidRequest` for a LOCATION."""
        if _LOCATION in properties:
            raise InvalidRequest(
                f"database {database} cannot have a LOCATION: the server decides where tables are kept",
                ErrorCode.INVALID_DATABASE_EXCEPTION,
            )
        custom = dict(properties)
        comment = custom.pop(ddl.COMMENT, None)
        self.context.connection.create_database(database, comment=comment, options=custom)

    def alter_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        custom = {name: value for name, value in to_set.items() if name != ddl.COMMENT}
        comment = "" if ddl.COMMENT in to_reset else to_set.get(ddl.COMMENT)
        removed = [name for name in to_reset if name != ddl.COMMENT]
        self.context.admin.alter_database(database, custom, removed, comment)

    def drop_database(self, database: str, cascade: bool) -> None:
        self.context.connection.drop_database(database, cascade=cascade)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def table_names(self, database: str) -> list[str]:
        return self.context.connection.list_tables(database)

    def has_table(self, name: TableIdentifier) -> bool:
        return self.context.connection.table_exists(_path(name))

    def open(self, name: TableIdentifier) -> LiveSideTable | None:
        """The table of a name. Its system table is checked when the proxy is created."""
        _, separator, system = name.table.partition(SYSTEM_SEPARATOR)
        try:
            info = self.context.admin.table_info(_path(name.plain))
        except InvalidRequest:  # a name that no table can have
            return None
        except NotFound as e:
            if e.code in (ErrorCode.TABLE_NOT_EXIST, ErrorCode.DATABASE_NOT_EXIST):
                return None
            raise
        return LiveSideTable(self.context, info, system if separator else None)

    def create_table(self, name: TableIdentifier, request: TableRequest) -> LiveSideTable:
        path = _path(name)
        self.context.admin.create_table_as(path, ddl.new_descriptor(ddl.NewTable.of(request)))
        return LiveSideTable(self.context, self.context.admin.table_info(path))

    def drop_table(self, name: TableIdentifier) -> bool:
        try:
            self.context.connection.drop_table(_path(name))
        except NotFound:
            return False
        return True

    def rename_table(self, old: TableIdentifier, new: TableIdentifier) -> bool:
        raise UnsupportedOperation(
            f"table {self.context.full_name(old)} cannot be renamed: tables keep their names",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )

    def copied_properties(self, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        return properties if properties.get(ddl.PROVIDER) in ddl.PROVIDERS else None


class LiveSideTable(SideTable):
    """A table of the cluster, or one of its system tables."""

    deletes_whole_rows = False

    def __init__(self, context: LiveContext, info: TableInfo, system: str | None = None) -> None:
        self._context, self._info, self.system = context, info, system
        self.name = context.full_name(info.path) + ("" if system is None else f"{SYSTEM_SEPARATOR}{system}")
        self.key = info.schema.primary_key

    def check_options(self, request: LoadRequest) -> None:
        """Check options before the statement is planned; Spark calls this from 4.3 on."""
        # `proxy` reads the option that adds a column to the table.
        options = {name: value for name, value in request.options.items() if name.lower() != DELETE_BEHAVIOR}
        deletes_option(request.options)
        if options and request.is_write:
            write_options(self._context.settings, options)
        elif options:
            read_options(self._context.settings, self._info.descriptor, options)

    def proxy(self, options: Mapping[str, str] | None = None) -> TableProxy:
        self._check_time()
        if deletes_option(options or {}) == INCLUDE:
            return LiveTableWithDeletes(self._context, self._info)
        return table_proxy(self._context, self._info)

    def system_proxy(self) -> TableProxy:
        return system_table(self._context, self._info, self.system or "")

    def as_of(self, travel: TimeTravel) -> TableProxy:
        """Raises `UnsupportedOperation` for system tables."""
        path = self._info.path
        if self.system is not None:
            raise UnsupportedOperation(
                f"`{path}{SYSTEM_SEPARATOR}{self.system}` cannot be read as of another time, only the table {path} can"
            )
        self._check_time()
        return LiveTableAsOf(self._context, self._info, as_of(travel))

    def staged(self) -> TableProxy:
        self._check_time()
        return StagedLiveTable(self._context, self._info)

    def staged_replacement(self, request: TableRequest) -> TableProxy:
        """The same table, whose rows are replaced in one transaction. Its definition must not change.

        Other replacements raise an error: Spark would drop the table first, and lose its rows if a later step failed.
        """
        info = self._info
        new = ddl.NewTable.of(request)
        reason = ddl.difference(info, new) if info.has_primary_key else "a log cannot lose rows"
        if reason is not None:
            raise UnsupportedOperation(
                f"table {self.name} cannot be replaced in one step: {reason}. DROP TABLE it first, or write into it"
            )
        self._check_time()
        return ReplacedLiveTable(self._context, info)

    def changes(self) -> LiveTableChanges:
        self._check_time()
        return LiveTableChanges(self._context, self.name, self._info)

    def alter(self, changes: Sequence[TableChange]) -> LiveSideTable:
        """Set options, then add columns: two requests to the server."""
        table = self._context.connection.table(self._info.path)
        alteration = ddl.alteration(table.info, changes)
        if alteration.to_set or alteration.to_reset:
            table = table.alter(set=alteration.to_set, reset=alteration.to_reset)
        if alteration.columns:
            table.alter(add_columns=alteration.columns)
        return LiveSideTable(self._context, self._context.admin.table_info(self._info.path))

    def _check_time(self) -> None:
        """Raise `UnsupportedOperation` for a column of type TIME that this session cannot read."""
        name, path = uses_time(self._info.schema.columns), self._info.path
        if name is None:
            return
        if TIME_TYPE is None:
            raise UnsupportedOperation(
                f"column '{name}' of table {path} has type TIME, which Spark {self._context.jvm.spark_version} does "
                "not have: it needs Spark 4.1 or newer"
            )
        conf = self._context.session.sessionState().conf()
        if str(conf.getConfString(_TIME_CONF, "false")).lower() != "true":
            raise UnsupportedOperation(
                f"column '{name}' of table {path} has type TIME, which Spark knows only with {_TIME_CONF}=true: "
                f"SET {_TIME_CONF}=true"
            )


def _path(name: TableIdentifier) -> TablePath:
    return TablePath(name.database, name.table)


def as_of(travel: TimeTravel) -> AsOf:
    """The state that a statement requests: a snapshot's number, a tag's name, or a time."""
    if travel.timestamp_us is not None:
        return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=travel.timestamp_us)
    version = travel.version or ""
    return int(version) if version.isdigit() else version
