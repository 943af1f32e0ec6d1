"""The interface of a side, which has the tables of a catalog, in Python values.

A catalog (`forebay.spark.sql.catalog.SqlCatalog`) reads Spark's requests and throws Spark's exceptions. It delegates to
a `CatalogSide`, which looks up databases and tables by name. An open table is a `SideTable`; a name may also be that of
a system table (`t$changelog`, `t$files`).

| side | tables of | module |
|---|---|---|
| `ClusterSide` | a cluster | forebay.spark.sql.cluster_side |
| `WarehouseSide` | a warehouse | forebay.spark.sql.warehouse_side |
| `MixedSide` | both, under one name | forebay.spark.sql.mixed_side |

Errors are those of forebay.base.errors; errors about databases have the codes DATABASE_NOT_EXIST and
DATABASE_NOT_EMPTY. Methods run on the driver, in any thread of the JVM, and cache nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.reading.plan import SYSTEM_SEPARATOR
from forebay.spark.sql.changelogs import TableChanges
from forebay.spark.sql.procedures import Procedure
from forebay.spark.sql.requests import LoadRequest, TableChange, TableRequest, TimeTravel
from forebay.spark.sql.tables import TableProxy

if TYPE_CHECKING:
    from forebay.paimon.catalog.catalog import Catalog


@dataclass(frozen=True, slots=True)
class TableIdentifier:
    """A database, and the name of a table in it, with a suffix for system tables: `t`, `t$changelog`."""

    database: str
    table: str

    @property
    def plain(self) -> TableIdentifier:
        """The name of the table without a suffix."""
        return TableIdentifier(self.database, self.table.partition(SYSTEM_SEPARATOR)[0])

    @property
    def is_plain(self) -> bool:
        return SYSTEM_SEPARATOR not in self.table

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


class SideTable(ABC):
    """An open table, as the next statement sees it, or one of its system tables."""

    name: str
    """Its name in SQL, with the catalog."""

    system: str | None
    """The name of the system table; None for the table itself."""

    key: tuple[str, ...]
    """The primary key; () without one."""

    deletes_whole_rows: bool
    """Whether a delete in written changes needs all columns, and not only the key."""

    @abstractmethod
    def proxy(self, options: Mapping[str, str] | None = None) -> TableProxy:
        """The proxy of the table. `options` of a read may change its columns."""

    @abstractmethod
    def system_proxy(self) -> TableProxy:
        """The proxy of the system table. Raises `NotFound`, which names the existing system tables."""

    @abstractmethod
    def as_of(self, travel: TimeTravel) -> TableProxy:
        """The proxy of a past state of the table or system table. Raises `NotFound` and `UnsupportedOperation`."""

    @abstractmethod
    def staged(self) -> TableProxy:
        """The proxy of a table that was just created and will be filled; it is dropped if that fails."""

    @abstractmethod
    def staged_replacement(self, request: TableRequest) -> TableProxy:
        """The proxy of a table that replaces this one when it is filled: CREATE OR REPLACE TABLE.

        Raises `UnsupportedOperation` if that cannot be done atomically.
        """

    @abstractmethod
    def changes(self) -> TableChanges:
        """The changes of the table, for CHANGES."""

    @abstractmethod
    def alter(self, changes: Sequence[TableChange]) -> SideTable:
        """Make all `changes`, and return the altered table.

        Raises `InvalidRequest` and `UnsupportedOperation` for changes that the table does not support.
        """

    def check_options(self, request: LoadRequest) -> None:  # noqa: B027 - a side may have nothing to check
        """Raise `InvalidRequest` for wrong options of a statement, if that is known before it is planned."""


class CatalogSide(ABC):
    """The databases and tables of a catalog, independent of Spark's objects and exceptions."""

    context: Any

    @property
    def views(self) -> Catalog | None:
        """The lake that stores views (forebay.spark.sql.views); None without views."""
        return None

    @abstractmethod
    def of_session(self, session: JavaObject) -> Self:
        """The same side for another session, a Java object."""

    # ---- databases --------------------------------------------------------------------------------------------------

    @abstractmethod
    def database_names(self) -> list[str]: ...

    @abstractmethod
    def has_database(self, database: str) -> bool: ...

    @abstractmethod
    def database_properties(self, database: str) -> dict[str, str]:
        """The properties of a database, including its comment. Raises `NotFound`."""

    @abstractmethod
    def create_database(self, database: str, properties: Mapping[str, str]) -> None:
        """Raises `AlreadyExists`, and `InvalidRequest` or `UnsupportedOperation` for properties."""

    @abstractmethod
    def alter_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        """Raises `NotFound` and `UnsupportedOperation`."""

    @abstractmethod
    def drop_database(self, database: str, cascade: bool) -> None:
        """Raises `NotFound`, and `InvalidRequest` for a database that has tables, unless `cascade`."""

    # ---- tables -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def table_names(self, database: str) -> list[str]:
        """The names without database. Raises `NotFound`."""

    @abstractmethod
    def has_table(self, name: TableIdentifier) -> bool:
        """Whether there is a table of this plain name."""

    @abstractmethod
    def open(self, name: TableIdentifier) -> SideTable | None:
        """The table or system table; whether the system table exists may be unknown yet.

        None if there is no such table."""

    @abstractmethod
    def create_table(self, name: TableIdentifier, request: TableRequest) -> SideTable:
        """Create a table. Raises `AlreadyExists`, `NotFound` without the database, `InvalidRequest`."""

    @abstractmethod
    def drop_table(self, name: TableIdentifier) -> bool:
        """Drop the table of this plain name, and return whether there was one."""

    @abstractmethod
    def rename_table(self, old: TableIdentifier, new: TableIdentifier) -> bool:
        """Return whether there was a table to rename. Raises `AlreadyExists`, `NotFound`, `UnsupportedOperation`."""

    @abstractmethod
    def copied_properties(self, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        """The properties of a table for CREATE TABLE LIKE; None for a table of another side."""

    # ---- what only a catalog of several sides decides ----------------------------------------------------------------

    @property
    def parts(self) -> Sequence[CatalogSide]:
        """The sides of a mixed side, in order of lookup; otherwise the side itself."""
        return (self,)

    def side_of_new(self, name: TableIdentifier, properties: Mapping[str, str]) -> CatalogSide:
        """The side on which a table with these properties is to be created."""
        return self

    def side_of_replaced(self, name: TableIdentifier, properties: Mapping[str, str]) -> CatalogSide:
        """The side on which a table with these properties replaces another, or is created."""
        return self

    def prepare_view(self, name: TableIdentifier) -> None:  # noqa: B027 - nothing to do for a warehouse alone
        """Ensure that the database of a new view exists. Raises `AlreadyExists` if there is a table of this name."""

    # ---- procedures -------------------------------------------------------------------------------------------------

    @abstractmethod
    def procedures(self) -> Mapping[str, Procedure]:
        """The procedures by name; each runs in the side's `context`."""
