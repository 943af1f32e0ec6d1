"""Databases as Spark's namespaces: the part of a catalog that implements `SupportsNamespaces`.

`Namespaces` is the half that faces Spark; what a database is, its subclasses say: `ClusterNamespaces` here, and
forebay.spark.sql.lake_namespaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from forebay.base.errors import AlreadyExists, ErrorCode, ForebayError, InvalidRequest, UnsupportedOperation
from forebay.metadata.table import DatabaseInfo
from forebay.spark.context import CatalogContext, SessionContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy

COMMENT = "comment"
LOCATION = "location"
_SPARKS_OWN = ("owner",)


class Namespaces(JavaProxy):
    """Databases. A namespace has one part; deeper ones do not exist."""

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "catalog.SupportsNamespaces",)

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context.jvm)
        self._context: SessionContext = context

    # ---- what subclasses say ----------------------------------------------------------------------------------------

    def _database_names(self) -> list[str]:
        raise NotImplementedError(f"{type(self).__name__} does not list databases")

    def _has_database(self, database: str) -> bool:
        raise NotImplementedError(f"{type(self).__name__} does not find databases")

    def _database_properties(self, database: str) -> dict[str, str]:
        """What DESCRIBE NAMESPACE EXTENDED shows. Raises `NotFound`."""
        raise NotImplementedError(f"{type(self).__name__} does not describe databases")

    def _make_database(self, database: str, properties: Mapping[str, str]) -> None:
        """`properties` may have a comment and a location. Raises `AlreadyExists`."""
        raise NotImplementedError(f"{type(self).__name__} does not make databases")

    def _change_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        """Change properties, the comment among them. Raises `NotFound`."""
        raise NotImplementedError(f"{type(self).__name__} does not change databases")

    def _remove_database(self, database: str, cascade: bool) -> None:
        """Raises `NotFound`, and `InvalidRequest` with code DATABASE_NOT_EMPTY."""
        raise NotImplementedError(f"{type(self).__name__} does not drop databases")

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _no_such_namespace(self, namespace: Sequence[str]) -> Exception:
        return self.jvm.thrown("NoSuchNamespaceException", self.jvm.strings(list(namespace)))

    def _database(self, namespace: JavaObject) -> str:
        """The database that a namespace means. Throws NoSuchNamespaceException for one that cannot be any."""
        parts = [str(part) for part in namespace]
        if len(parts) != 1:
            raise self._no_such_namespace(parts)
        return parts[0]

    def _translated_database_error(self, error: ForebayError, namespace: JavaObject) -> Exception:
        """Spark's own exception for what went wrong with a database, where it has one."""
        if error.code == ErrorCode.DATABASE_NOT_EXIST:
            return self._no_such_namespace([str(part) for part in namespace])
        if isinstance(error, AlreadyExists):
            return self.jvm.thrown("NamespaceAlreadyExistsException", namespace)
        if error.code == ErrorCode.DATABASE_NOT_EMPTY:
            return self.jvm.thrown("NonEmptyNamespaceException", namespace)
        return error

    # ---- SupportsNamespaces -----------------------------------------------------------------------------------------

    def listNamespaces(self, *parent: Any) -> JavaObject:
        """All databases; nothing below a database."""
        if parent and len(parent[0]) > 0:
            self._require(parent[0])
            return self.jvm.string_arrays([])
        return self.jvm.string_arrays([[name] for name in self._database_names()])

    def _require(self, namespace: JavaObject) -> str:
        database = self._database(namespace)
        if not self._has_database(database):
            raise self._no_such_namespace([database])
        return database

    def namespaceExists(self, namespace: JavaObject) -> bool:
        parts = [str(part) for part in namespace]
        return len(parts) == 1 and self._has_database(parts[0])

    def loadNamespaceMetadata(self, namespace: JavaObject) -> JavaObject:
        try:
            return self.jvm.map(self._database_properties(self._database(namespace)))
        except ForebayError as e:
            raise self._translated_database_error(e, namespace) from e

    def createNamespace(self, namespace: JavaObject, metadata: JavaObject) -> None:
        properties = {str(key): str(value) for key, value in metadata.items() if key not in _SPARKS_OWN}
        try:
            self._make_database(".".join(str(part) for part in namespace), properties)
        except ForebayError as e:
            raise self._translated_database_error(e, namespace) from e

    def alterNamespace(self, namespace: JavaObject, changes: JavaObject) -> None:
        to_set: dict[str, str] = {}
        to_reset: list[str] = []
        for change in changes:
            name = str(change.property())
            if name in (LOCATION, *_SPARKS_OWN):
                raise UnsupportedOperation(f"a database has no {name} that could be changed")
            if str(change.getClass().getSimpleName()) == "RemoveProperty":
                to_reset.append(name)
            else:
                to_set[name] = str(change.value())
        try:
            self._change_database(self._database(namespace), to_set, to_reset)
        except ForebayError as e:
            raise self._translated_database_error(e, namespace) from e

    def dropNamespace(self, namespace: JavaObject, cascade: bool) -> bool:
        try:
            self._remove_database(self._database(namespace), cascade)
        except ForebayError as e:
            raise self._translated_database_error(e, namespace) from e
        return True


def database_properties(info: DatabaseInfo) -> dict[str, str]:
    """What DESCRIBE NAMESPACE EXTENDED shows of a cluster's database."""
    shown = dict(info.custom_properties)
    if info.comment is not None:
        shown[COMMENT] = info.comment
    return shown


class ClusterNamespaces(Namespaces):
    """The databases of a cluster."""

    _context: CatalogContext

    def _database_names(self) -> list[str]:
        return self._context.connection.list_databases()

    def _has_database(self, database: str) -> bool:
        return self._context.connection.database_exists(database)

    def _database_properties(self, database: str) -> dict[str, str]:
        return database_properties(self._context.admin.database_info(database))

    def _make_database(self, database: str, properties: Mapping[str, str]) -> None:
        if LOCATION in properties:
            raise InvalidRequest(
                f"database {database} cannot have a LOCATION: the server decides where tables are kept",
                ErrorCode.INVALID_DATABASE_EXCEPTION,
            )
        custom = {name: value for name, value in properties.items() if name != COMMENT}
        self._context.connection.create_database(database, comment=properties.get(COMMENT), options=custom)

    def _change_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        custom = {name: value for name, value in to_set.items() if name != COMMENT}
        comment = "" if COMMENT in to_reset else to_set.get(COMMENT)
        removed = [name for name in to_reset if name != COMMENT]
        self._context.admin.alter_database(database, custom, removed, comment)

    def _remove_database(self, database: str, cascade: bool) -> None:
        self._context.connection.drop_database(database, cascade=cascade)
