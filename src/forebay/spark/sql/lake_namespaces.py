"""The databases of a lake's catalog as Spark's namespaces.

The lake's catalogs keep names and nothing else of a database, so comments, properties and locations are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.spark.sql.namespaces import Namespaces

if TYPE_CHECKING:
    from forebay.spark.lake_context import PaimonContext


class LakeNamespaces(Namespaces):
    """Databases of a Paimon catalog."""

    _context: PaimonContext

    def _database_names(self) -> list[str]:
        return self._context.lake.list_databases()

    def _has_database(self, database: str) -> bool:
        return database in self._context.lake.list_databases()

    def _no_such_database(self, database: str) -> NotFound:
        return NotFound(f"there is no database '{database}'", ErrorCode.DATABASE_NOT_EXIST)

    def _database_properties(self, database: str) -> dict[str, str]:
        if not self._has_database(database):
            raise self._no_such_database(database)
        return {}

    def _make_database(self, database: str, properties: Mapping[str, str]) -> None:
        if properties:
            raise UnsupportedOperation(
                f"database {database} cannot have {', '.join(sorted(properties))}: of a database a lake keeps only the "
                "name; leave COMMENT, LOCATION and DBPROPERTIES out"
            )
        self._context.lake.create_database(database)

    def _change_database(self, database: str, to_set: Mapping[str, str], to_reset: Sequence[str]) -> None:
        if not self._has_database(database):
            raise self._no_such_database(database)
        raise UnsupportedOperation(f"of database {database} a lake keeps only the name: nothing can be changed")

    def _remove_database(self, database: str, cascade: bool) -> None:
        if not self._has_database(database):
            raise self._no_such_database(database)
        if not cascade and self._context.lake.list_tables(database):
            raise InvalidRequest(f"database '{database}' has tables", ErrorCode.DATABASE_NOT_EMPTY)
        self._context.lake.drop_database(database, cascade=cascade)
