"""pyiceberg's SQL catalog, of which no connection to its database is left open."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import sql
from pyiceberg.utils.config import Config, merge_config
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

_CONFIG = Config()


class ClosingSqlCatalog(sql.SqlCatalog):
    """A catalog that leaves no connection behind if it cannot be opened."""

    def __init__(self, name: str, **properties: str) -> None:
        try:
            super().__init__(name, **properties)
        except BaseException:
            self.close()
            raise

    def keep_no_connection(self) -> None:
        """From now on each use has a connection of its own, closed at its end, so that threads may share the catalog.

        To dispose of a pool does not close the connections that other threads use at that moment.
        """
        shared = self.engine
        self.engine = create_engine(shared.url, echo=shared.echo, poolclass=NullPool)
        shared.dispose()


def open_sql_catalog(name: str, properties: Mapping[str, str]) -> ClosingSqlCatalog:
    """The catalog that pyiceberg's `load_catalog` opens: with properties of pyiceberg's own configuration, too."""
    return ClosingSqlCatalog(name, **merge_config(_CONFIG.get_catalog_config(name) or {}, {**properties}))  # type: ignore[arg-type]
