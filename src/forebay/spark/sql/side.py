"""The contract of a side, which has the tables of a catalog, in values of Python.

A catalog (`forebay.spark.sql.catalog.SqlCatalog`) faces Spark: it reads Spark's requests, and throws Spark's
exceptions. What it serves is a `CatalogSide`, which knows databases and tables by name. An open table is a `SideTable`;
a name may also mean a system table beside a table (`t$changelog`, `t$files`).

| side | tables of | module |
|---|---|---|
| `ClusterSide` | a cluster | forebay.spark.sql.cluster_side |
| `WarehouseSide` | a warehouse | forebay.spark.sql.warehouse_side |
| `MixedSide` | both, under one name | forebay.spark.sql.mixed_side |

Errors are those of forebay.base.errors, of databases with the codes DATABASE_NOT_EXIST and DATABASE_NOT_EMPTY. All
of it runs on the driver, in any thread of the JVM, and nothing is cached: every statement asks again.
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
    """A database, and the name of a table in it, with what stands behind it: `t`, `t$changelog`."""

    database: str
    table: str

    @property
    def plain(self) -> TableIdentifier:
        """The name of the table alone."""
        return TableIdentifier(self.database, self.table.partition(SYSTEM_SEPARATOR)[0])

    @property
    def is_plain(self) -> bool:
        return SYSTEM_SEPARATOR not in self.table

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


class SideTable(ABC):
    """A table that is open, as the next statement sees it, or a system table beside one."""

    name: str
    """Its name in SQL, with that of the catalog."""

    system: str | None
    """The name of the system table beside it; None: the table itself."""

    key: tuple[str, ...]
    """The primary key; () where there is none."""

    deletes_whole_rows: bool
    """Whether a delete that is written as a change needs all columns, and not only those of the key."""

    @abstractmethod
    def proxy(self, options: Mapping[str, str] | None = None) -> TableProxy:
        """The table for Spark. `options` of a read may give it other columns."""

    @abstractmethod
    def system_proxy(self) -> TableProxy:
        """The system table for Spark. Raises `NotFound` naming the system tables that there are."""

    @abstractmethod
    def as_of(self, travel: TimeTravel) -> TableProxy:
        """An old state of the table for Spark, or of its system table. Raises `NotFound` and `UnsupportedOperation`."""

    @abstractmethod
    def staged(self) -> TableProxy:
        """The table for Spark, which has just been created and will be filled; it is dropped if that fails."""

    @abstractmethod
    def staged_replacement(self, request: TableRequest) -> TableProxy:
        """A table for Spark, which takes the place of this one when it is filled: CREATE OR REPLACE TABLE.

        Raises `UnsupportedOperation` where that cannot be done in one step.
        """

    @abstractmethod
    def changes(self) -> TableChanges:
        """The changes of the table, for CHANGES."""

    @abstractmethod
    def alter(self, changes: Sequence[TableChange]) -> SideTable:
        """Make all `changes`, and return the table as it is then.

        Raises `InvalidRequest` and `UnsupportedOperation` for changes that the table does not take.
        """

    def check_options(self, request: LoadRequest) -> None:  # noqa: B027 - a side may have nothing to check
        """Raise `InvalidRequest` for options of a statement that can be seen to be wrong before it is planned."""


class CatalogSide(ABC):
    """The databases and tables of a catalog. It sees no object of Spark, and throws no exception of Spark."""

    context: Any

    @property
    def views(self) -> Catalog | None:
        """The lake that keeps views of Spark (forebay.spark.sql.views); None where there are none."""
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
        """Properties, and the comment as one. Raises `NotFound`."""

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
        """The table, or a system table beside it, of which it may not know whether there is one.

        None where there is no such table."""

    @abstractmethod
    def create_table(self, name: TableIdentifier, request: TableRequest) -> SideTable:
        """Raises `AlreadyExists`, `NotFound` for the database, and `InvalidRequest` for what cannot be made."""

    @abstractmethod
    def drop_table(self, name: TableIdentifier) -> bool:
        """Drop the table of this plain name, and return whether there was one."""

    @abstractmethod
    def rename_table(self, old: TableIdentifier, new: TableIdentifier) -> bool:
        """Return whether there was a table to rename. Raises `AlreadyExists`, `NotFound`, `UnsupportedOperation`."""

    @abstractmethod
    def copied_properties(self, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        """The properties of a table that CREATE TABLE LIKE copies; None of a table of another side."""

    # ---- what only a catalog of several sides decides ----------------------------------------------------------------

    @property
    def parts(self) -> Sequence[CatalogSide]:
        """The sides of which it consists, the first one first."""
        return (self,)

    def side_of_new(self, name: TableIdentifier, properties: Mapping[str, str]) -> CatalogSide:
        """The side on which a table with these properties is to be created."""
        return self

    def side_of_replaced(self, name: TableIdentifier, properties: Mapping[str, str]) -> CatalogSide:
        """The side on which a table is to be replaced, or created, by one with these properties."""
        return self

    def prepare_view(self, name: TableIdentifier) -> None:  # noqa: B027 - nothing to do for a warehouse alone
        """Have the database of a view to be created. Raises `AlreadyExists` for the name of a table."""

    # ---- procedures -------------------------------------------------------------------------------------------------

    @abstractmethod
    def procedures(self) -> Mapping[str, Procedure]:
        """By name; each runs in the side's `context`."""
