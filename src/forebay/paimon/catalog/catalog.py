"""Catalogs: where tables are found by name, and how to open one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Self

from forebay.base.errors import UnsupportedOperation
from forebay.base.markup import facts_html, heading
from forebay.paimon.catalog.definition import Columns
from forebay.paimon.store.schema_changes import SchemaChange
from forebay.paimon.table import Table

_METASTORES = {"filesystem": "FileSystemCatalog", "jdbc": "JdbcCatalog", "hive": "HiveCatalog", "rest": "RestCatalog"}
"""The class in the module of the same name; as text, because these classes are made from the one below."""


class Catalog(ABC):
    """Databases and tables. Names of tables are `database.table`. Thread-safe."""

    warehouse: str = ""
    """The directory of the tables, or the name under which a server knows it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.warehouse!r})"

    def _repr_html_(self) -> str:
        return heading(type(self).__name__, "Paimon catalog") + facts_html({"warehouse": self.warehouse})

    @staticmethod
    def open(where: str | Mapping[str, str]) -> Catalog:
        """The catalog at a warehouse directory (`file:///lake`, `/lake`, `s3://bucket/lake`), or by Paimon's options:

        `metastore` (`filesystem`, `jdbc`, `hive` or `rest`; by default filesystem), `warehouse`, `uri` (of the database
        or server), and the options of that catalog and of its file system.
        """
        options = {"warehouse": where} if isinstance(where, str) else dict(where)
        metastore = options.get("metastore", "filesystem")
        if metastore not in _METASTORES:
            raise UnsupportedOperation(
                f"metastore '{metastore}' is not supported; use 'filesystem', 'jdbc', 'hive' or 'rest'"
            )
        kind: type[Catalog] = getattr(import_module(f"forebay.paimon.catalog.{metastore}"), _METASTORES[metastore])
        return kind.from_options(options)

    @classmethod
    @abstractmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The catalog that Paimon's options describe. Raises `InvalidRequest` where one is missing."""

    @abstractmethod
    def list_databases(self) -> list[str]:
        """Names of all databases, in order."""

    @abstractmethod
    def create_database(self, name: str, *, ignore_if_exists: bool = False) -> None:
        """Make a database. Raises `AlreadyExists`."""

    @abstractmethod
    def drop_database(self, name: str, *, ignore_if_missing: bool = False, cascade: bool = False) -> None:
        """Drop a database; with all of its tables only if `cascade`. Raises `NotFound`."""

    @abstractmethod
    def list_tables(self, database: str) -> list[str]:
        """Names of a database's tables, in order. Raises `NotFound` if there is no such database."""

    @abstractmethod
    def create_table(
        self,
        name: str,
        columns: Columns,
        *,
        primary_keys: Iterable[str] = (),
        partition_keys: Iterable[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str | None = None,
        ignore_if_exists: bool = False,
    ) -> Table:
        """Make a table. Columns of the primary key become NOT NULL.

        Raises `AlreadyExists`, `NotFound` for the database, and `InvalidRequest` for a definition that is not valid.
        """

    @abstractmethod
    def get_table(self, name: str, *, branch: str | None = None, options: Mapping[str, str] | None = None) -> Table:
        """A table, or its branch (also as `database.table$branch_<name>`). Raises `NotFound`."""

    def alter_table(self, name: str, changes: Sequence[SchemaChange]) -> Table:
        """Change a table's schema; the table under the new one. Raises `InvalidRequest` for a change not allowed."""
        return self.get_table(name).alter(changes)

    @abstractmethod
    def table_exists(self, name: str) -> bool: ...

    @abstractmethod
    def drop_table(self, name: str, *, ignore_if_missing: bool = False) -> None:
        """Delete a table with all its files. Raises `NotFound`."""

    @abstractmethod
    def rename_table(self, name: str, new_name: str) -> None:
        """Move a table. Raises `AlreadyExists` if the new name is taken."""
