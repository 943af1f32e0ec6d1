"""The catalog of a lake: what Spark SQL finds under `<catalog>.<database>.<table>` in a Paimon warehouse.

Beside a table `t` there are its branches, `t$branch_<name>`, and the system tables of both: `t$snapshots`,
`t$branch_dev$files` (forebay.spark.sql.system_tables).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import types as spark_types

from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.types import DataType
from forebay.paimon.catalog.definition import new_schema
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
from forebay.spark.lake_schemas import from_spark_column_type
from forebay.spark.sql import lake_ddl as ddl
from forebay.spark.sql.catalog import Asked, SqlCatalog, TimeTravel
from forebay.spark.sql.lake_namespaces import LakeNamespaces
from forebay.spark.sql.lake_tables import ReplacingLakeTable, StagedLakeTable, beside, table_proxy
from forebay.spark.sql.live_ddl import PROVIDER
from forebay.spark.sql.procedures import Procedure
from forebay.spark.sql.system_tables import SEPARATOR, system_table, system_table_names
from forebay.spark.sql.time_travel import travelled

if TYPE_CHECKING:
    from forebay.paimon.table import Table
    from forebay.spark.lake_context import PaimonContext

_BRANCH = "branch_"


class PaimonCatalog(SqlCatalog, LakeNamespaces):
    """The tables of a lake, for one Spark session. `forebay.spark.attach` makes and installs it."""

    capability_names: ClassVar[tuple[str, ...]] = ("SUPPORT_TABLE_CONSTRAINT", "SUPPORT_COLUMN_DEFAULT_VALUE")

    _context: PaimonContext

    def _procedures(self) -> Mapping[str, Procedure]:
        from forebay.spark.sql.lake_procedures import PAIMON_PROCEDURES

        return PAIMON_PROCEDURES

    # ---- finding tables ---------------------------------------------------------------------------------------------

    def _table_names(self, database: str) -> list[str]:
        if not self._has_database(database):
            raise self._no_such_database(database)
        return self._context.lake.list_tables(database)

    def _full_name(self, identifier: JavaObject) -> str:
        return self._context.full_name(".".join(self._named(identifier)))

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
        """Whether table `database.table` is there."""
        try:
            return self._context.lake.table_exists(name)
        except (NotFound, InvalidRequest):  # its database is not there, or no table can have this name
            return False

    def _open(self, identifier: JavaObject, options: Mapping[str, str] | None = None) -> tuple[Table, str | None]:
        """The table or branch that an identifier means, and which of its system tables."""
        database, name = self._named(identifier)
        plain, *parts = name.split(SEPARATOR)
        branch = parts.pop(0)[len(_BRANCH) :] if parts and parts[0].startswith(_BRANCH) else None
        full = f"{database}.{plain}"
        if len(parts) > 1 or (parts and not parts[0]):
            raise self._no_such_table(identifier)
        with self._missing_is_no_such_table(identifier, full):
            table = self._context.lake.table(full, options=options)
            if branch is not None and branch != MAIN_BRANCH:
                branches = table.context.branches
                if not branches.exists(branch):
                    raise NotFound(
                        f"table {self._context.full_name(full)} has no branch '{branch}'; its branches are "
                        + (", ".join(branches.names()) or "none")
                    )
                table = table.on_branch(branch)
        return table, parts[0] if parts else None

    def loadTable(self, identifier: JavaObject, *how: Any) -> JavaProxy:
        """The table, a branch or a system table of it. `how` is one of Spark's ways to ask for time travel."""
        travel = self._time_travel(how)
        table, system = self._open(identifier)
        name = self._full_name(identifier)
        if travel is not None:
            return self._travelled(name, table, system, travel)
        return (
            table_proxy(self._context, name, table)
            if system is None
            else system_table(self._context, name, table, system)
        )

    def _travelled(self, name: str, table: Table, system: str | None, travel: TimeTravel) -> JavaProxy:
        options, schema = travelled(name, table, travel)
        then = table.with_options(options)
        if system is None:
            return table_proxy(self._context, name, then, schema, options)
        return system_table(self._context, name, then, system, options)

    def tableExists(self, identifier: JavaObject) -> bool:
        namespace, name = [str(part) for part in identifier.namespace()], str(identifier.name())
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

    def createTable(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        return table_proxy(self._context, self._full_name(identifier), self._created(identifier, self._asked(what)))

    def createTableLike(self, identifier: JavaObject, asked: JavaObject, source: JavaObject) -> JavaProxy:
        """`asked` has the columns and partition keys of `source`, and what the statement says beside them."""
        new = self._asked((asked,))
        theirs = {str(key): str(value) for key, value in source.properties().items()}
        if theirs.get(PROVIDER) == ddl.PAIMON:
            copied = {name: value for name, value in theirs.items() if name not in (ddl.LOCATION, ddl.MANAGED)}
            new = replace(new, properties={**copied, **new.properties}, primary_key=())
        made = self._created(identifier, new, is_copy=True)
        return table_proxy(self._context, self._full_name(identifier), made)

    def _created(
        self, identifier: JavaObject, asked: Asked, name: str | None = None, *, is_copy: bool = False
    ) -> Table:
        """The table, made as `name` or as the identifier says."""
        database, table = self._named(identifier)
        self._require(identifier.namespace())
        if SEPARATOR in table:
            raise InvalidRequest(f"'{table}' cannot name a table: a name with '{SEPARATOR}' is one of a system table")
        new = ddl.definition(asked, is_copy=is_copy)
        try:
            definition = new_schema(new.fields, new.primary_keys, new.partition_keys, new.options, new.comment)
            return self._context.lake.create_defined(name or f"{database}.{table}", definition)
        except AlreadyExists as e:
            raise self.jvm.thrown("TableAlreadyExistsException", identifier) from e

    def stageCreate(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        table = self._created(identifier, self._asked(what))
        return StagedLakeTable(self._context, self._full_name(identifier), table)

    def stageReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        replaced = ".".join(self._named(identifier))
        if not self._exists(replaced):
            raise self._no_such_table(identifier)
        asked = self._asked(what)
        if {ddl.LOCATION, ddl.PATH} & asked.properties.keys():
            raise UnsupportedOperation(
                f"table {self._full_name(identifier)} cannot be replaced by one with a LOCATION: DROP TABLE it first"
            )
        table = self._created(identifier, asked, beside(replaced, "replacing"))
        return ReplacingLakeTable(self._context, self._full_name(identifier), table, replaced)

    def stageCreateOrReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        exists = self._exists(".".join(self._named(identifier)))
        return self.stageReplace(identifier, *what) if exists else self.stageCreate(identifier, *what)

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
        if not self._has_database(database):  # Spark has no exception of its own that could be thrown here
            raise self._no_such_database(database)
        if self._exists(names[1]):
            raise self.jvm.thrown("TableAlreadyExistsException", new)
        self._context.lake.rename_table(*names)

    def _without_catalog(self, identifier: JavaObject) -> JavaObject:
        """RENAME TO may name the catalog, too, which Spark passes on as a part of the namespace."""
        catalog, *rest = [str(part) for part in identifier.namespace()]
        is_named = rest and catalog == self._context.catalog
        return self.jvm.identifier(rest, str(identifier.name())) if is_named else identifier

    def alterTable(self, identifier: JavaObject, changes: JavaObject) -> JavaProxy:
        table, system = self._open(identifier)
        name = self._full_name(identifier)
        if system is not None:
            raise UnsupportedOperation(f"{name} is a system table, which cannot be changed")
        try:
            made = self._altered(table, [self._change(table, change) for change in changes])
        except (InvalidRequest, UnsupportedOperation) as e:
            # Spark would wrap an IllegalArgumentException from here into one that PySpark does not translate.
            raise UnsupportedOperation(f"ALTER TABLE {name}: {e.message}") from e
        return table_proxy(self._context, name, made)

    def _altered(self, table: Table, changes: Sequence[SchemaChange]) -> Table:
        table.context.schemas.change(changes, has_snapshots=table.context.snapshots.latest_id() is not None)
        return table.refresh()

    def _new_default(self, table: Table, path: tuple[str, ...], text: str) -> SchemaChange:
        """SET DEFAULT, and with no text DROP DEFAULT."""
        if len(path) == 1 and text:
            return UpdateColumnDefault(path, ddl.stored_default(path[0], table.schema.field_named(path[0]).type, text))
        return UpdateColumnDefault(path, text or None)

    def _change(self, table: Table, change: JavaObject) -> SchemaChange:
        kind = str(change.getClass().getSimpleName())
        if kind == "SetProperty":
            return ddl.set_property(str(change.property()), str(change.value()))
        if kind == "RemoveProperty":
            return ddl.remove_property(str(change.property()))
        if not kind.endswith(("Column", "Type", "Nullability", "Comment", "Position", "Value")):
            raise ddl.other_change(kind)
        path = tuple(str(part) for part in change.fieldNames())
        match kind:
            case "AddColumn":
                t = self._type(change.dataType(), path)
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
                return UpdateColumnType(path, self._type(change.newDataType(), path), keep_nullability=True)
            case "UpdateColumnNullability":
                return UpdateColumnNullability(path, bool(change.nullable()))
            case "UpdateColumnComment":
                return UpdateColumnComment(path, str(change.newComment()))
            case "UpdateColumnPosition":
                position = _position(change.position())
                assert position is not None
                return ddl.move_column(path, position)
            case "UpdateColumnDefaultValue":
                return self._new_default(table, path, str(change.newDefaultValue()))
        raise ddl.other_change(kind)

    def _type(self, java: JavaObject, path: tuple[str, ...]) -> DataType:
        wrapper = self.jvm.class_("org.apache.spark.sql.types.StructType")().add("c", java)
        t: spark_types.DataType = self.jvm.python_schema(wrapper).fields[0].dataType
        return from_spark_column_type(t, ".".join(path))


def _position(position: JavaObject) -> Position | None:
    """Spark's FIRST or AFTER; None for the end."""
    if position is None:
        return None
    if str(position.getClass().getSimpleName()) == "After":
        return Position("after", str(position.column()))
    return Position("first")
