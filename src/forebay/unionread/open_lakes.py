"""The lakes that a connection has opened, and scans of their tables, kept from one union read to the next.

They belong to the connection (`Session.attached`): a union read of an unchanged lake table opens nothing again. Another
process has its own, also after a fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.base.errors import InvalidRequest
from forebay.client.row_view import RowView
from forebay.client.session import Session
from forebay.lake.formats import create_lake_storage
from forebay.lake.lru_cache import LruCache
from forebay.lake.source import LakeSource
from forebay.lake.storage import LakeStorage
from forebay.unionread.lake_side import LakeSide, merge_columns

if TYPE_CHECKING:
    from forebay.client.table import Table

LAKES_KEPT = 8
"""Maximum number of open lakes cached per connection: a cluster has one, and more if options of tables differ."""

_SIDES_KEPT = 256
"""Maximum number of scans of lake tables cached per connection: queries with other columns or filters have others."""


class OpenLakes:
    """The open lakes of a connection, and the scans of their tables. Thread-safe."""

    def __init__(self) -> None:
        self._storages: LruCache[tuple[str, frozenset[tuple[str, str]]], LakeStorage] = LruCache(LAKES_KEPT)
        self._sides: LruCache[tuple[object, ...], tuple[LakeSource, LakeSide]] = LruCache(_SIDES_KEPT)

    @classmethod
    def of(cls, session: Session) -> OpenLakes:
        """The open lakes of a connection."""
        return session.attached(cls)

    def storage(self, table: Table) -> LakeStorage:
        """The lake that a table's options name, overridden by those of the user.

        Raises `InvalidRequest` for a table without a lake, `UnsupportedOperation` for a format that is not installed.
        """
        info = table.info
        lake_format = info.descriptor.lake_format
        if lake_format is None:
            raise InvalidRequest(f"table {info.path} is no lake table")
        options = table.connection.settings.lake_options_of(info)
        key = lake_format, frozenset(options.items())
        storage = self._storages.get(key)
        if storage is None:
            storage = create_lake_storage(lake_format, options)
            self._storages.put(key, storage)
        return storage

    def side(self, storage: LakeStorage, view: RowView, *, counting: bool) -> LakeSide:
        """The lake's half of a read of `view`. `counting`: rows are only counted, so none are merged."""
        info = view.info
        source = storage.create_source(info.path)
        key = info.path, info.table_id, info.schema_id, view.read, not view.columns, counting, repr(view.predicate)
        cached = self._sides.get(key)
        if cached is not None and cached[0] is source:  # the same object: nothing of the table has changed
            return cached[1]
        columns = merge_columns(info, view) if info.has_primary_key else view.read
        if not view.columns and view.predicate is None and (counting or not info.has_primary_key):
            columns = ()
        side = LakeSide.of(source, columns, view.predicate)
        self._sides.put(key, (source, side))
        return side


def lake_of(table: Table) -> LakeStorage:
    """The lake that a table's options name; its connection keeps it open. Raises as `OpenLakes.storage`."""
    return OpenLakes.of(table.connection).storage(table)
