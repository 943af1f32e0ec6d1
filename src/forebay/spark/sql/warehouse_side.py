"""The side of a warehouse: its Paimon tables, for a catalog of Spark.

Beside a table `t` there are its branches, `t$branch_<name>`, and the system tables of both: `t$snapshots`,
`t$branch_dev$files` (forebay.spark.sql.lake_tables). A branch is a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from forebay.base.errors import AlreadyExists, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.store.paths import MAIN_BRANCH
from forebay.spark.context import LakeContext
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.reading.plan import SYSTEM_SEPARATOR
from forebay.spark.sql import lake_ddl as ddl
from forebay.spark.sql.lake_tables import ReplacingLakeTable, StagedLakeTable, beside, system_table, table_proxy
from forebay.spark.sql.live_ddl import MANAGED, PROVIDER
from forebay.spark.sql.procedures import Procedure
from forebay.spark.sql.requests import TableChange, TableRequest, TimeTravel
from forebay.spark.sql.side import CatalogSide, SideTable, TableIdentifier
from forebay.spark.sql.tables import TableProxy

if TYPE_CHECKING:
    from forebay.paimon.catalog.catalog import Catalog
    from forebay.paimon.format.schema import TableSchema
    from forebay.paimon.format.snapshot import Snapshot
    from forebay.paimon.table import Table
    from forebay.spark.sql.lake_changelog import LakeTableChanges

_BRANCH = "branch_"


@dataclass(frozen=True)
class WarehouseSide(CatalogSide):
    """The databases and tables of a warehouse. `has_views`: the session shows its views."""

    context: LakeContext
    has_views: bool = False

    def of_session(self, session: JavaObject) -> Self:
        return replace(self, context=self.context.of_session(session))

    @property
    def lake(self) -> Catalog:
        """The warehouse's catalog."""
        return self.context.lake

    @property
    def views(self) -> Catalog | None:
        return self.lake if self.has_views else None

    def procedures(self) -> Mapping[str, Procedure]:
        from forebay.spark.sql.lake_procedures import LAKE_PROCEDURES

        return LAKE_PROCEDURES

    # ---- databases: the lake's catalogs store nothing but their names -----------------------------------------------

    def database_names(self) -> list[str]:
        return self.lake.list_databases() if self.lake.warehouse_exists() else []

    def has_database(self, database: str) -> bool:
        return database in self.database_names()

    def _require(self, database: str) -> None:
        if not self.has_database(database):
            raise NotFound(f"there is no database '{database}'", ErrorCode.DATABASE_NOT_EXIST)

    def database_properties(self, database: str) -> dict[str, str]:
        self._require(database)
        return {}

    def create_database(self, database: str, properties: Mapping[str, str]) -> None:
        """Raises `UnsupportedOperation` for any properties."""
        if properties:
            raise UnsupportedOperation(
                f"database {database} cannot have {', '.join(sorted(properties))}: of a database a lake keeps only the "
                "name; leave COMMENT, LOCATION and DBPROPERTIES out"
            )
        self.lake.create_database(database)

    def alter_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        self._require(database)
        raise UnsupportedOperation(f"of database {database} a lake keeps only the name: nothing can be changed")

    def drop_database(self, database: str, cascade: bool) -> None:
        self._require(database)
        if not cascade and self.lake.list_tables(database):
            raise InvalidRequest(f"database '{database}' has tables", ErrorCode.DATABASE_NOT_EMPTY)
        self.lake.drop_database(database, cascade=cascade)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def table_names(self, database: str) -> list[str]:
        self._require(database)
        return self.lake.list_tables(database)

    def has_table(self, name: TableIdentifier) -> bool:
        try:
            return self.lake.table_exists(str(name))
        except (NotFound, InvalidRequest):  # its database is not there, or no table can have this name
            return False

    def open(self, name: TableIdentifier) -> LakeSideTable | None:
        """Raises `NotFound` for a branch that the table does not have."""
        parts = name.table.split(SYSTEM_SEPARATOR)[1:]
        branch = parts.pop(0)[len(_BRANCH) :] if parts and parts[0].startswith(_BRANCH) else None
        if len(parts) > 1 or (parts and not parts[0]):
            return None
        full = str(name.plain)
        try:
            table = self.lake.cached_table(full)
            if branch is not None and branch != MAIN_BRANCH:
                branches = table.context.branches
                if not branches.exists(branch):
                    raise NotFound(
                        f"table {self.context.full_name(full)} has no branch '{branch}'; its branches are "
                        + (", ".join(branches.names()) or "none")
                    )
                table = self.lake.cached_table(full, branch=branch)
        except (NotFound, InvalidRequest):
            if self.has_table(name.plain):  # something else is missing
                raise
            return None
        return LakeSideTable(
            self.context, self.context.full_name(name), table.new_handle(), parts[0] if parts else None
        )

    def create_table(self, name: TableIdentifier, request: TableRequest) -> LakeSideTable:
        return LakeSideTable(self.context, self.context.full_name(name), self._created(name, request))

    def _created(self, name: TableIdentifier, request: TableRequest) -> Table:
        self._require(name.database)
        if not name.is_plain:
            raise InvalidRequest(
                f"'{name.table}' cannot name a table: a name with '{SYSTEM_SEPARATOR}' is one of a system table"
            )
        return create(self.lake, str(name), request)

    def drop_table(self, name: TableIdentifier) -> bool:
        if not self.has_table(name):
            return False
        self.lake.drop_table(str(name), ignore_if_not_exists=True)
        return True

    def rename_table(self, old: TableIdentifier, new: TableIdentifier) -> bool:
        """Raises `NotFound` where the new database is not there."""
        if not self.has_table(old):
            return False
        self._require(new.database)  # Spark has no exception of its own that could be thrown here
        if self.has_table(new):
            raise AlreadyExists(f"there is a table {new} already")
        self.lake.rename_table(str(old), str(new))
        return True

    def copied_properties(self, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        if properties.get(PROVIDER) != ddl.PAIMON:
            return None
        return {name: value for name, value in properties.items() if name not in (ddl.LOCATION, MANAGED)}


def create(lake: Catalog, name: str, request: TableRequest) -> Table:
    """Create a table of this name and return it. Raises `AlreadyExists`, and `InvalidRequest` for the definition."""
    new = ddl.definition(request)
    definition = new_schema(new.fields, new.primary_keys, new.partition_keys, new.options, new.comment)
    return lake.create_defined(name, definition)


class LakeSideTable(SideTable):
    """A table of the warehouse or a branch of one, or a system table of these."""

    deletes_whole_rows = True

    def __init__(self, context: LakeContext, name: str, table: Table, system: str | None = None) -> None:
        self._context, self.name, self._table, self.system = context, name, table, system
        self.key = tuple(table.schema.primary_keys)

    def proxy(self, options: Mapping[str, str] | None = None) -> TableProxy:
        return table_proxy(self._context, self.name, self._table)

    def system_proxy(self) -> TableProxy:
        return system_table(self._context, self.name, self._table, self.system or "")

    def as_of(self, travel: TimeTravel) -> TableProxy:
        options, schema = travelled(self.name, self._table, travel)
        past: Table = self._table.with_options(options)
        if self.system is None:
            return table_proxy(self._context, self.name, past, schema, options)
        return system_table(self._context, self.name, past, self.system, options)

    def staged(self) -> TableProxy:
        return StagedLakeTable(self._context, self.name, self._table)

    def staged_replacement(self, request: TableRequest) -> TableProxy:
        """A new table under a temporary name, which takes the place of this one when it is complete."""
        if {ddl.LOCATION, ddl.PATH} & request.properties.keys():
            raise UnsupportedOperation(
                f"table {self.name} cannot be replaced by one with a LOCATION: DROP TABLE it first"
            )
        replaced = self._table.name
        table = create(self._context.lake, beside(replaced, "replacing"), request)
        return ReplacingLakeTable(self._context, self.name, table, replaced)

    def changes(self) -> LakeTableChanges:
        from forebay.spark.sql.lake_changelog import LakeTableChanges

        return LakeTableChanges(self._context, self.name, self._table)

    def alter(self, changes: Sequence[TableChange]) -> LakeSideTable:
        context, schema = self._table.context, self._table.schema
        schema_changes = [ddl.schema_change(schema, change) for change in changes]
        context.schemas.change(schema_changes, has_snapshots=context.snapshots.latest_id() is not None)
        return LakeSideTable(self._context, self.name, self._table.refresh())


_WATERMARK = "watermark-"
"""The prefix of versions that are watermarks, as in Paimon's own connector."""


def travelled(name: str, table: Table, travel: TimeTravel) -> tuple[dict[str, str], TableSchema]:
    """The options that choose the snapshot, and the schema that the table had then.

    A version is the name of a tag, the id of a snapshot, or `watermark-<milliseconds>`: the first of these that there
    is. Raises `NotFound`, with what there is.
    """
    options, snapshot = _selected(name, table, travel)
    return options, table.context.schemas.schema(snapshot.schema_id)


def _selected(name: str, table: Table, travel: TimeTravel) -> tuple[dict[str, str], Snapshot]:
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
