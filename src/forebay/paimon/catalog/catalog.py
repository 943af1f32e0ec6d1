"""Catalogs: finding tables by name, and opening them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from forebay.api.schemas import SchemaLike
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.arguments import did_you_mean_table, one_or_more_names
from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.locations import check_name, located
from forebay.base.markup import facts_html, heading
from forebay.lake.lru_cache import LruCache
from forebay.metadata.table import Schema
from forebay.paimon.catalog.definition import COMMENT, new_fields, new_schema, with_buckets
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.store.manifests import ManifestCache
from forebay.paimon.store.paths import MAIN_BRANCH
from forebay.paimon.table import Table

if TYPE_CHECKING:
    from forebay.paimon.catalog.views import View

BRANCH_MARK = "$branch_"
"""Between the names of a table and of its branch."""

TABLES_CACHED_MAX = 64
"""So many opened tables a catalog keeps. A table is its schema and options, some 10 KB; manifests have a bound of their
own, which the tables share."""

_METASTORES = {"filesystem": "FileSystemCatalog", "jdbc": "JdbcCatalog", "rest": "RestCatalog"}
"""The class in the module of the same name; as text, because these classes derive from the one below."""

ENTRY_POINTS = "forebay.catalogs"
"""The entry points of catalogs that other packages bring: a metastore's name, and its class of `Catalog`."""


def _catalog_class(metastore: str) -> type[Catalog]:
    """The class for option `metastore`. Raises `UnsupportedOperation` if there is none."""
    if metastore in _METASTORES:
        module = import_module(f"forebay.paimon.catalog.{metastore}")
        return cast("type[Catalog]", getattr(module, _METASTORES[metastore]))
    for entry in entry_points(group=ENTRY_POINTS, name=metastore):
        return cast("type[Catalog]", entry.load())
    names = [*_METASTORES, *entry_points(group=ENTRY_POINTS).names]
    raise UnsupportedOperation(f"metastore '{metastore}' is not supported; use {', '.join(map(repr, sorted(names)))}")


class Catalog(ABC):
    """Databases and tables. Table names are `database.table`. Thread-safe."""

    warehouse: str = ""
    """The directory of the tables, or the server's name for it."""

    _clock: Clock = SYSTEM_CLOCK

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.warehouse!r})"

    def _repr_html_(self) -> str:
        return heading(type(self).__name__, "Paimon catalog") + facts_html({"warehouse": self.warehouse})

    @staticmethod
    def open(where: str | os.PathLike[str] | Mapping[str, str]) -> Catalog:
        """The catalog at a warehouse directory (`/lake`, `file:///lake`, `s3://bucket/lake`), or with Paimon's options.

        A relative warehouse is below the current working directory, and stays there when that changes.

        The options are `metastore` (`filesystem`, `jdbc`, `hive` or `rest`; by default filesystem), `warehouse`, `uri`
        (of the database or server), and those of that catalog and of its file system.

        A warehouse that does not exist yet is created by `create_database`; until then listing it raises `NotFound`.
        Raises `InvalidRequest` if it is a file, and `UnsupportedOperation` without the extra `paimon`.
        """
        if find_spec("fastavro") is None:  # without importing it, which takes as long as a small commit
            raise UnsupportedOperation("Paimon tables need fastavro: pip install 'forebay[paimon]'")
        options: dict[str, str] = located(where if isinstance(where, Mapping) else {"warehouse": where})
        metastore = options.get("metastore", "filesystem")
        return _catalog_class(metastore).from_options(options)

    @classmethod
    @abstractmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The catalog for Paimon's options. Raises `InvalidRequest` if one is missing."""

    @abstractmethod
    def list_databases(self) -> list[str]:
        """The names of all databases, in order. Raises `NotFound` if there is no warehouse."""

    def warehouse_exists(self) -> bool:
        """Whether the warehouse can be listed: that of a filesystem catalog is created with its first database."""
        return True

    def database_exists(self, name: str) -> bool:
        """Whether the database exists."""
        return name in self.list_databases()

    def create_database(
        self,
        name: str,
        *,
        comment: str | None = None,
        options: Mapping[str, Any] | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database; `options` are stored with it, for other software.

        Raises `AlreadyExists`; `UnsupportedOperation` for a comment or options in a catalog that is only a directory.
        """
        properties = _property_texts(options)
        if comment is not None:
            properties[COMMENT] = comment
        self._create_database(name, properties, ignore_if_exists)

    @abstractmethod
    def _create_database(self, name: str, properties: Mapping[str, str], ignore_if_exists: bool) -> None:
        """Create a database with `properties`, including `COMMENT`."""

    @abstractmethod
    def drop_database(self, name: str, *, cascade: bool = False, ignore_if_not_exists: bool = False) -> None:
        """Drop a database.

        Raises `NotFound`, and `InvalidRequest` if it has tables or views, unless `cascade` drops them.
        """

    @abstractmethod
    def list_tables(self, database: str) -> list[str]:
        """The names of a database's tables, in order. Raises `NotFound` if the database does not exist."""

    def create_table(
        self,
        name: str,
        schema: SchemaLike,
        *,
        primary_key: Sequence[str] | str = (),
        partition_keys: Sequence[str] | str = (),
        bucket_keys: Sequence[str] | str = (),
        buckets: int | None = None,
        options: Mapping[str, Any] | None = None,
        comment: str | None = None,
        auto_increment: str | None = None,
        ignore_if_exists: bool = False,
    ) -> Table:
        """Create and return a table; with `ignore_if_exists`, return the existing one.

        `schema` is a pyarrow schema (a timestamp with a zone becomes TIMESTAMP_LTZ), a dict or a list of names and
        types such as [("id", "BIGINT")], or a data frame with these columns. Keys are column names, or one name;
        columns of the primary key become NOT NULL. `buckets` and `bucket_keys` are Paimon's options `bucket` and
        `bucket-key`. Raises `AlreadyExists`, `NotFound` for the database, `InvalidRequest` for an invalid definition,
        and `UnsupportedOperation` for `auto_increment`, which a lake does not support.
        """
        key = one_or_more_names(primary_key, "primary_key")
        if isinstance(schema, Schema):
            key, auto_increment = key or schema.primary_key, auto_increment or schema.auto_increment_column
        if auto_increment is not None:
            raise UnsupportedOperation(
                f"table {name}: auto_increment={auto_increment!r} is not possible in a lake, where no server gives out "
                "numbers; write them into the column yourself"
            )
        definition = new_schema(
            schema,
            key,
            one_or_more_names(partition_keys, "partition_keys"),
            with_buckets(options, buckets, one_or_more_names(bucket_keys, "bucket_keys")),
            comment,
            self._clock,
        )
        return self.create_defined(name, definition, ignore_if_exists=ignore_if_exists)

    @abstractmethod
    def create_defined(self, name: str, definition: TableSchema, *, ignore_if_exists: bool = False) -> Table:
        """Create and return the table with `definition` (of `new_schema`), for engines, which have Paimon's fields."""

    def table(self, name: str, *, branch: str | None = None, options: Mapping[str, Any] | None = None) -> Table:
        """A table, or its branch (also as `database.table$branch_<name>`). Raises `NotFound`."""
        plain, mark, suffix = name.partition(BRANCH_MARK)
        try:
            return self._opened(plain, self._place(plain), branch or (suffix if mark else MAIN_BRANCH), options)
        except NotFound as e:
            database, _, table = plain.partition(".")
            hint = did_you_mean_table(database, table, self.list_databases, self.list_tables)
            if not hint:
                raise
            raise NotFound(f"{e.message}{hint}") from e

    def cached_table(self, name: str, *, branch: str | None = None) -> Table:
        """The same without options, opened again only if it has changed: for engines, which ask for each query.

        The schema is read each time, and the catalog asked where the table is. Callers share the table; one that writes
        takes a `new_handle` of it. Raises `NotFound`.
        """
        plain, mark, suffix = name.partition(BRANCH_MARK)
        branch = branch or (suffix if mark else MAIN_BRANCH)
        place, tables = self._place(plain), self._table_cache
        entry = tables.get((plain, branch))
        if entry is not None and entry[0] == place and entry[1].context.schemas.is_in_force(entry[1].schema.id):
            return entry[1]
        opened = self._opened(plain, place, branch, None, self._manifest_cache)
        tables.put((plain, branch), (place, opened))
        return opened

    @cached_property
    def _table_cache(self) -> LruCache[tuple[str, str], tuple[object, Table]]:
        return LruCache(TABLES_CACHED_MAX)

    @cached_property
    def _manifest_cache(self) -> ManifestCache:
        return ManifestCache()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_table_cache", "_manifest_cache")}

    def renewed(self) -> Catalog:
        """This catalog, or another one if what it took from elsewhere when it was opened has changed."""
        return self

    @abstractmethod
    def _place(self, name: str) -> Any:
        """Where table "database.table" is now, and what else the catalog knows it by. Raises `NotFound`."""

    @abstractmethod
    def _opened(
        self,
        name: str,
        place: Any,
        branch: str,
        options: Mapping[str, Any] | None,
        manifest_cache: ManifestCache | None = None,
    ) -> Table:
        """The table at a place that `_place` has found. Raises `NotFound`."""

    @abstractmethod
    def table_exists(self, name: str) -> bool:
        """Whether the table "database.table" exists."""

    @abstractmethod
    def drop_table(self, name: str, *, ignore_if_not_exists: bool = False) -> None:
        """Drop a table with all its files. Raises `NotFound`."""

    @abstractmethod
    def rename_table(self, name: str, new_name: str) -> None:
        """Rename a table. Raises `AlreadyExists` if the new name is taken."""

    # -- views: queries under names beside those of tables ------------------------------------------------------------

    has_views: ClassVar[bool] = False
    """Whether the catalog has a place for views; if not, the methods below raise `UnsupportedOperation`."""

    def list_views(self, database: str) -> list[str]:
        """The names of a database's views, in order. Raises `NotFound` if the database does not exist."""
        raise self._no_views()

    def view(self, name: str) -> View:
        """The view "database.view". Raises `NotFound`."""
        raise self._no_views()

    def create_view(
        self,
        name: str,
        schema: SchemaLike | Sequence[DataField],
        query: str,
        *,
        dialects: Mapping[str, str] | None = None,
        comment: str | None = None,
        options: Mapping[str, Any] | None = None,
        replace: bool = False,
        ignore_if_exists: bool = False,
    ) -> View:
        """Create and return a view; with `replace` in place of an existing one, with `ignore_if_exists` return that.

        `query` is SQL, which is kept and not checked, and `schema` has the columns that it returns, as for
        `create_table`; engines give Paimon's fields. `dialects` are texts of the same query for other engines, by their
        names. Raises `AlreadyExists` if there is a table or view of this name, and `NotFound` for the database.
        """
        from forebay.paimon.catalog.views import View

        if not self.has_views:
            raise self._no_views()
        if replace and ignore_if_exists:
            raise InvalidRequest(f"view {name} can be created with replace or with ignore_if_exists, not with both")
        if "$" in name:
            raise InvalidRequest(f"'{name}' cannot name a view: names with '$' are those of system tables and branches")
        if not query.strip():
            raise InvalidRequest(f"view {name} needs a query; it is empty")
        view = View(name, new_fields(schema), query, dict(dialects or {}), comment, _property_texts(options))
        if self.table_exists(name):
            raise AlreadyExists(f"view '{name}' cannot be created: there is a table of this name")
        try:
            self._put_view(view, replace)
        except AlreadyExists:
            if not ignore_if_exists:
                raise
            return self.view(name)
        return view

    def _put_view(self, view: View, replace: bool) -> None:
        """Create the view, or replace an existing one. Raises `AlreadyExists`, `NotFound`."""
        raise self._no_views()

    def drop_view(self, name: str, *, ignore_if_not_exists: bool = False) -> None:
        """Drop a view. Raises `NotFound`, also if `name` is a table's."""
        raise self._no_views()

    def rename_view(self, name: str, new_name: str) -> None:
        """Rename a view. Raises `NotFound`, and `AlreadyExists` if a table or view has the new name."""
        raise self._no_views()

    def _no_views(self) -> UnsupportedOperation:
        return UnsupportedOperation(
            f"{self!r} has no place for views; REST and Hive catalogs have (metastore 'rest', 'hive')"
        )


def split_name(name: str, what: str = "a table") -> tuple[str, str]:
    """(database, table) of "database.table". Raises `InvalidRequest` unless both can name a folder in a warehouse."""
    database, dot, table = name.partition(".")
    if not dot or not database or not table or "/" in name:
        raise InvalidRequest(f"'{name}' does not name {what}; write 'database.table'")
    return check_name(database, "database"), check_name(table, "table")


def _property_texts(properties: Mapping[str, Any] | None) -> dict[str, str]:
    """Properties that are kept for other software, as text: True is `true`, 4 is `4`."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (properties or {}).items()
    }
