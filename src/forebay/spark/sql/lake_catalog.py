"""The catalog of a lake: what Spark SQL finds under `<catalog>.<database>.<table>` in a Paimon warehouse.

Beside a table `t` there are its branches, `t$branch_<name>`, and the system tables of both: `t$snapshots`,
`t$branch_dev$files` (forebay.spark.sql.lake_tables).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay.base.errors import AlreadyExists, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.store.paths import MAIN_BRANCH
from forebay.paimon.store.schema_changes import (
    DropColumn,
    Position,
    RenameColumn,
    SchemaChange,
    UpdateColumnComment,
    UpdateColumnDefault,
    UpdateColumnNullability,
    UpdateColumnType,
)
from forebay.spark.jvm.gateway import JavaObject, JavaThrow
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.schemas import from_spark_column_type
from forebay.spark.sql import lake_ddl as ddl
from forebay.spark.sql.catalog import CHANGES_OF_COLUMNS, SqlCatalog, TableRequest, TimeTravel, names_in
from forebay.spark.sql.lake_tables import (
    SEPARATOR,
    ReplacingLakeTable,
    StagedLakeTable,
    beside,
    system_table,
    system_table_names,
    table_proxy,
)
from forebay.spark.sql.live_ddl import MANAGED, PROVIDER
from forebay.spark.sql.procedures import Procedure
from forebay.spark.sql.tables import can_only_be_read

if TYPE_CHECKING:
    from forebay.paimon.format.schema import TableSchema
    from forebay.paimon.format.snapshot import Snapshot
    from forebay.paimon.table import Table
    from forebay.spark.context import PaimonContext


_BRANCH = "branch_"


class PaimonCatalog(SqlCatalog):
    """The catalog of a lake in one Spark session, installed by `forebay.spark.attach`."""

    _context: PaimonContext

    def _procedures(self) -> Mapping[str, Procedure]:
        from forebay.spark.sql.lake_procedures import PAIMON_PROCEDURES

        return PAIMON_PROCEDURES

    # ---- databases: the lake's catalogs keep names and nothing else of them -----------------------------------------

    def _database_names(self) -> list[str]:
        return self._context.lake.list_databases()

    def _has_database(self, database: str) -> bool:
        return database in self._context.lake.list_databases()

    def _require(self, database: str) -> None:
        if not self._has_database(database):
            raise NotFound(f"there is no database '{database}'", ErrorCode.DATABASE_NOT_EXIST)

    def _database_properties(self, database: str) -> dict[str, str]:
        self._require(database)
        return {}

    def _make_database(self, database: str, properties: Mapping[str, str]) -> None:
        if properties:
            raise UnsupportedOperation(
                f"database {database} cannot have {', '.join(sorted(properties))}: of a database a lake keeps only the "
                "name; leave COMMENT, LOCATION and DBPROPERTIES out"
            )
        self._context.lake.create_database(database)

    def _change_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        self._require(database)
        raise UnsupportedOperation(f"of database {database} a lake keeps only the name: nothing can be changed")

    def _remove_database(self, database: str, cascade: bool) -> None:
        self._require(database)
        if not cascade and self._context.lake.list_tables(database):
            raise InvalidRequest(f"database '{database}' has tables", ErrorCode.DATABASE_NOT_EMPTY)
        self._context.lake.drop_database(database, cascade=cascade)

    # ---- finding tables ---------------------------------------------------------------------------------------------

    def _table_names(self, database: str) -> list[str]:
        self._require(database)
        return self._context.lake.list_tables(database)

    @contextmanager
    def _missing_is_no_such_table(self, identifier: JavaObject, name: str) -> Iterator[None]:
        """Spark's own exception for a missing table; other missing things are reported as they are."""
        try:
            yield
        except (NotFound, InvalidRequest) as e:
            if self._exists(name):
                raise
            raise self._no_such_table(identifier) from e

    def _exists(self, name: str) -> bool:
        """Whether table `database.table` exists."""
        try:
            return self._context.lake.table_exists(name)
        except (NotFound, InvalidRequest):  # its database is not there, or no table can have this name
            return False

    def _open(self, identifier: JavaObject) -> tuple[Table, str | None]:
        """The table or branch named by an identifier, and its system table, if any."""
        database, name = self._named(identifier)
        plain, *parts = name.split(SEPARATOR)
        branch = parts.pop(0)[len(_BRANCH) :] if parts and parts[0].startswith(_BRANCH) else None
        full = f"{database}.{plain}"
        if len(parts) > 1 or (parts and not parts[0]):
            raise self._no_such_table(identifier)
        with self._missing_is_no_such_table(identifier, full):
            lake = self._context.lake
            table = lake.kept_table(full)
            if branch is not None and branch != MAIN_BRANCH:
                branches = table.context.branches
                if not branches.exists(branch):
                    raise NotFound(
                        f"table {self._context.full_name(full)} has no branch '{branch}'; its branches are "
                        + (", ".join(branches.names()) or "none")
                    )
                table = lake.kept_table(full, branch=branch)
        return table.another(), parts[0] if parts else None

    def loadTable(self, identifier: JavaObject, *how: Any) -> JavaProxy:
        """The table, a branch or a system table of it. `how` is one of Spark's ways to ask for time travel."""
        travel = self._time_travel(how)
        table, system = self._open(identifier)
        name = self._full_name(identifier)
        if travel is not None:
            return self._travelled(name, table, system, travel)
        if system is not None:
            return system_table(self._context, name, table, system)
        found = table_proxy(self._context, name, table)
        if self._takes_changes(how):
            return found._taking_changes(table.schema.primary_keys, deletes_whole_rows=True)
        return found

    def _travelled(self, name: str, table: Table, system: str | None, travel: TimeTravel) -> JavaProxy:
        options, schema = travelled(name, table, travel)
        then = table.with_options(options)
        if system is None:
            return table_proxy(self._context, name, then, schema, options)
        return system_table(self._context, name, then, system, options)

    def loadChangelog(self, identifier: JavaObject, asked: JavaObject, *options: Any) -> JavaProxy:
        """What CHANGES reads, of a table or a branch of one."""
        from forebay.spark.sql.changelogs import ChangelogProxy
        from forebay.spark.sql.lake_changelog import LakeTableChanges

        table, system = self._open(identifier)
        name = self._full_name(identifier)
        if system is not None:
            raise InvalidRequest(f"CHANGES is for tables, not for what stands beside them ({name})")
        try:
            return ChangelogProxy(self._context, LakeTableChanges(self._context, name, table), asked)
        except UnsupportedOperation as e:  # for Spark the catalog has no CHANGES then, of any table
            raise InvalidRequest(e.message, e.code) from e

    def tableExists(self, identifier: JavaObject) -> bool:
        namespace, name = names_in(identifier.namespace()), str(identifier.name())
        if len(namespace) != 1:
            return False
        if SEPARATOR not in name:
            return self._exists(f"{namespace[0]}.{name}")
        try:
            _, system = self._open(identifier)
        except (JavaThrow, NotFound, InvalidRequest):
            return False
        return system is None or system in system_table_names()

    # ---- making tables ----------------------------------------------------------------------------------------------

    def _is_there(self, identifier: JavaObject) -> bool:
        return self._exists(".".join(self._named(identifier)))

    def _proxy(self, identifier: JavaObject, table: Table) -> JavaProxy:
        return table_proxy(self._context, self._full_name(identifier), table)

    def _staged(self, identifier: JavaObject, table: Table) -> JavaProxy:
        return StagedLakeTable(self._context, self._full_name(identifier), table)

    def _copied(self, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        if properties.get(PROVIDER) != ddl.PAIMON:
            return None
        return {name: value for name, value in properties.items() if name not in (ddl.LOCATION, MANAGED)}

    def _created(
        self, identifier: JavaObject, asked: TableRequest, *, is_copy: bool = False, name: str | None = None
    ) -> Table:
        """The table, created as `name` or under the name of the identifier."""
        database, table = self._named(identifier)
        if not self._has_database(database):
            raise self._no_such_namespace([database])
        if SEPARATOR in table:
            raise InvalidRequest(f"'{table}' cannot name a table: a name with '{SEPARATOR}' is one of a system table")
        new = ddl.definition(asked, is_copy=is_copy)
        try:
            definition = new_schema(new.fields, new.primary_keys, new.partition_keys, new.options, new.comment)
            return self._context.lake.create_defined(name or f"{database}.{table}", definition)
        except AlreadyExists as e:
            raise self.jvm.thrown("TableAlreadyExistsException", identifier) from e

    def stageReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        replaced = ".".join(self._named(identifier))
        if not self._exists(replaced):
            raise self._no_such_table(identifier)
        asked = self._asked(what)
        if {ddl.LOCATION, ddl.PATH} & asked.properties.keys():
            raise UnsupportedOperation(
                f"table {self._full_name(identifier)} cannot be replaced by one with a LOCATION: DROP TABLE it first"
            )
        table = self._created(identifier, asked, name=beside(replaced, "replacing"))
        return ReplacingLakeTable(self._context, self._full_name(identifier), table, replaced)

    # ---- changing tables --------------------------------------------------------------------------------------------

    def dropTable(self, identifier: JavaObject) -> bool:
        database, name = self._named(identifier)
        if SEPARATOR in name:
            raise UnsupportedOperation(f"{name} is part of a table and cannot be dropped by DROP TABLE")
        if not self._exists(f"{database}.{name}"):
            return False
        self._context.lake.drop_table(f"{database}.{name}", ignore_if_not_exists=True)
        return True

    def renameTable(self, old: JavaObject, new: JavaObject) -> None:
        """Spark gives the new name with the database of the old one, unless the statement names another."""
        database, table = self._named(self._without_catalog(new))
        names = ".".join(self._named(old)), f"{database}.{table}"
        if not self._exists(names[0]):
            raise self._no_such_table(old)
        self._require(database)  # Spark has no exception of its own that could be thrown here
        if self._exists(names[1]):
            raise self.jvm.thrown("TableAlreadyExistsException", new)
        self._context.lake.rename_table(*names)

    def alterTable(self, identifier: JavaObject, changes: JavaObject) -> JavaProxy:
        table, system = self._open(identifier)
        name = self._full_name(identifier)
        if system is not None:
            raise can_only_be_read(name)
        try:
            asked = [self._change(table, change) for change in changes]
            table.context.schemas.change(asked, has_snapshots=table.context.snapshots.latest_id() is not None)
            made = table.refresh()
        except (InvalidRequest, UnsupportedOperation) as e:
            # Spark would wrap an IllegalArgumentException from here into one that PySpark does not translate.
            raise UnsupportedOperation(f"ALTER TABLE {name}: {e.message}") from e
        return table_proxy(self._context, name, made)

    def _change(self, table: Table, change: JavaObject) -> SchemaChange:
        kind = str(change.getClass().getSimpleName())
        if kind in ("SetProperty", "RemoveProperty"):
            value = str(change.value()) if kind == "SetProperty" else None
            return ddl.property_change(str(change.property()), value)
        if not kind.endswith(CHANGES_OF_COLUMNS):
            raise ddl.other_change(kind)
        path = tuple(names_in(change.fieldNames()))
        match kind:
            case "AddColumn":
                t = from_spark_column_type(self._spark_type(change.dataType()), ".".join(path))
                comment = change.comment()
                return ddl.add_column(
                    path,
                    t if change.isNullable() else t.not_null(),
                    None if comment is None else str(comment),
                    _position(change.position()),
                    change.defaultValue() is not None,
                )
            case "RenameColumn":
                return RenameColumn(path, str(change.newName()))
            case "DeleteColumn":
                return DropColumn(path)
            case "UpdateColumnType":
                t = from_spark_column_type(self._spark_type(change.newDataType()), ".".join(path))
                return UpdateColumnType(path, t, keep_nullability=True)
            case "UpdateColumnNullability":
                return UpdateColumnNullability(path, bool(change.nullable()))
            case "UpdateColumnComment":
                return UpdateColumnComment(path, str(change.newComment()))
            case "UpdateColumnPosition":
                position = _position(change.position())
                assert position is not None
                return ddl.move_column(path, position)
            case "UpdateColumnDefaultValue":
                text: str | None = str(change.newDefaultValue()) or None  # none is DROP DEFAULT
                if len(path) == 1 and text:
                    text = ddl.stored_default(path[0], table.schema.field_named(path[0]).type, text)
                return UpdateColumnDefault(path, text)
        raise ddl.other_change(kind)


def _position(position: JavaObject) -> Position | None:
    """Spark's FIRST or AFTER; None for the end."""
    if position is None:
        return None
    if str(position.getClass().getSimpleName()) == "After":
        return Position("after", str(position.column()))
    return Position("first")


_WATERMARK = "watermark-"
"""How a version begins that is a watermark, as in Paimon's own connector."""


def travelled(name: str, table: Table, travel: TimeTravel) -> tuple[dict[str, str], TableSchema]:
    """The options that choose the snapshot, and the schema that the table had then.

    A version is the name of a tag, the id of a snapshot, or `watermark-<milliseconds>`: the first of these that there
    is. Raises `NotFound`, with what there is.
    """
    options, snapshot = _chosen(name, table, travel)
    return options, table.context.schemas.schema(snapshot.schema_id)


def _chosen(name: str, table: Table, travel: TimeTravel) -> tuple[dict[str, str], Snapshot]:
    if travel.timestamp_us is not None:
        return _by_id(SnapshotPlanner(table.context).at_timestamp(travel.timestamp_us // 1000))
    version = travel.version or ""
    tag = table.context.tags.find(version)
    if tag is not None:
        return {"scan.tag-name": version}, tag.snapshot
    if version.isdigit():
        return _by_id(table.context.snapshots.snapshot(int(version)))
    if version.startswith(_WATERMARK):
        text = version[len(_WATERMARK) :]
        if not text.isdigit():
            raise InvalidRequest(f"version '{version}' of table {name}: write {_WATERMARK} and milliseconds since 1970")
        return _by_id(SnapshotPlanner(table.context).at_watermark(int(text)))
    tags = ", ".join(table.context.tags.names()) or "none"
    branches = table.context.branches
    hint = f"; there is a branch of this name, which is table `{name}$branch_{version}`"
    raise NotFound(
        f"table {name} has no version '{version}': it is neither the id of a snapshot nor a tag; tags are {tags}"
        + (hint if branches.exists(version) else "")
    )


def _by_id(snapshot: Snapshot) -> tuple[dict[str, str], Snapshot]:
    return {"scan.snapshot-id": str(snapshot.id)}, snapshot
