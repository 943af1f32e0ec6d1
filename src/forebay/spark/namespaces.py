"""Databases as Spark's namespaces: the part of the catalog that implements `SupportsNamespaces`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from forebay.base.errors import AlreadyExists, ErrorCode, ForebayError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.table import DatabaseInfo
from forebay.spark.context import CatalogContext
from forebay.spark.jvm import CONNECTOR, JavaObject
from forebay.spark.proxy import JavaProxy

_COMMENT = "comment"
_SPARKS_OWN = ("owner",)
_NO_LOCATION = "location"


def database_properties(info: DatabaseInfo) -> dict[str, str]:
    """What DESCRIBE NAMESPACE EXTENDED shows."""
    shown = dict(info.custom_properties)
    if info.comment is not None:
        shown[_COMMENT] = info.comment
    return shown


class Namespaces(JavaProxy):
    """Databases. A namespace has one part; deeper ones do not exist."""

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "catalog.SupportsNamespaces",)

    def __init__(self, context: CatalogContext) -> None:
        super().__init__(context.jvm)
        self._context = context

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
        return self.jvm.string_arrays([[name] for name in self._context.admin.list_databases()])

    def _require(self, namespace: JavaObject) -> str:
        database = self._database(namespace)
        if not self._context.admin.database_exists(database):
            raise self._no_such_namespace([database])
        return database

    def namespaceExists(self, namespace: JavaObject) -> bool:
        parts = [str(part) for part in namespace]
        return len(parts) == 1 and self._context.admin.database_exists(parts[0])

    def loadNamespaceMetadata(self, namespace: JavaObject) -> JavaObject:
        try:
            info = self._context.admin.database_info(self._database(namespace))
        except NotFound as e:
            raise self._translated_database_error(e, namespace) from e
        return self.jvm.map(database_properties(info))

    def createNamespace(self, namespace: JavaObject, metadata: JavaObject) -> None:
        properties = {str(key): str(value) for key, value in metadata.items() if key not in _SPARKS_OWN}
        comment = properties.pop(_COMMENT, None)
        database = ".".join(str(part) for part in namespace)
        if _NO_LOCATION in properties:
            raise InvalidRequest(
                f"database {database} cannot have a LOCATION: the server decides where tables are kept",
                ErrorCode.INVALID_DATABASE_EXCEPTION,
            )
        try:
            self._context.admin.create_database(database, comment, properties)
        except AlreadyExists as e:
            raise self._translated_database_error(e, namespace) from e

    def alterNamespace(self, namespace: JavaObject, changes: JavaObject) -> None:
        to_set: dict[str, str] = {}
        to_reset: list[str] = []
        comment: str | None = None
        for change in changes:
            kind, name = str(change.getClass().getSimpleName()), str(change.property())
            if name in (_NO_LOCATION, *_SPARKS_OWN):
                raise UnsupportedOperation(f"a database has no {name} that could be changed")
            if kind == "RemoveProperty" and name != _COMMENT:
                to_reset.append(name)
            elif name == _COMMENT:
                comment = "" if kind == "RemoveProperty" else str(change.value())
            else:
                to_set[name] = str(change.value())
        try:
            self._context.admin.alter_database(self._database(namespace), to_set, to_reset, comment)
        except NotFound as e:
            raise self._translated_database_error(e, namespace) from e

    def dropNamespace(self, namespace: JavaObject, cascade: bool) -> bool:
        try:
            self._context.admin.drop_database(self._database(namespace), cascade=cascade)
        except ForebayError as e:
            raise self._translated_database_error(e, namespace) from e
        return True
