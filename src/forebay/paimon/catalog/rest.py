"""The REST catalog: a server manages tables, views and commits; files are read and written directly.

A commit writes its files and manifests as usual, and then asks the server to create the snapshot instead of creating
the snapshot file. The server also changes schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import (
    AccessDenied,
    AlreadyExists,
    InvalidRequest,
    NotFound,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)
from forebay.base.locations import location
from forebay.paimon.catalog.catalog import BRANCH_MARK, Catalog, split_name
from forebay.paimon.catalog.rest_api import RestApi
from forebay.paimon.catalog.rest_messages import change_to_json, new_table_to_json
from forebay.paimon.catalog.views import View, view_changes_to_json, view_from_json, view_to_json
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.snapshot import FIRST_SNAPSHOT_ID
from forebay.paimon.format.snapshot_json import parse_snapshot, snapshot_to_json
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.opening import open_file_io
from forebay.paimon.store.lock import Check
from forebay.paimon.store.manifests import ManifestCache
from forebay.paimon.store.schema_changes import SchemaChange
from forebay.paimon.table import Table

_SNAPSHOT = re.compile(r"(?:/branch/branch-(?P<branch>[^/]+))?/snapshot/snapshot-(?P<id>\d+)$")


class RestCatalog(Catalog):
    """Databases, tables and views of a server. Thread-safe."""

    has_views: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, str], *, clock: Clock = SYSTEM_CLOCK, ids: IdSource = SYSTEM_IDS) -> None:
        """`options`: `uri`, `warehouse`, `token.provider` (bear), `token`, `header.*`, and those of file systems."""
        self._api = RestApi(options, clock)
        self.warehouse = options.get("warehouse", "")
        self._clock, self._ids = clock, ids
        if self._api.options.get("data-token.enabled", "false").lower() == "true":
            raise UnsupportedOperation(
                "this REST catalog gives out tokens for data (data-token.enabled), which is not supported; give the "
                "file system's own credentials, and let the server switch it off"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls(options)

    # -- databases ----------------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        return sorted(self._api.listed("databases", "databases"))

    def _create_database(self, name: str, properties: Mapping[str, str], ignore_if_exists: bool) -> None:
        try:
            self._api.post("databases", body={"name": name, "options": dict(properties)})
        except AlreadyExists:
            if not ignore_if_exists:
                raise

    def drop_database(self, name: str, *, cascade: bool = False, ignore_if_not_exists: bool = False) -> None:
        """Drop the database. Raises `InvalidRequest` if it has tables or views, unless `cascade` drops them first."""
        try:
            tables = self.list_tables(name)
            if tables and not cascade:
                raise InvalidRequest(f"database '{name}' has tables ({', '.join(tables[:5])}); drop them first")
            views = self._views_if_served(name)
            if views and not cascade:
                raise InvalidRequest(f"database '{name}' has views ({', '.join(views[:5])}); drop them first")
            for view in views:
                self.drop_view(f"{name}.{view}", ignore_if_not_exists=True)
            for table in tables:
                self.drop_table(f"{name}.{table}", ignore_if_not_exists=True)
            self._api.delete("databases", name)
        except NotFound:
            if not ignore_if_not_exists:
                raise

    # -- tables -------------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        return sorted(self._api.listed("tables", "databases", database, "tables"))

    def create_defined(self, name: str, definition: TableSchema, *, ignore_if_exists: bool = False) -> Table:
        """Create a table. Raises `AlreadyExists` if there is a table (unless `ignore_if_exists`) or a view of this
        name."""
        database, table = _split(name)
        if self._view_exists(name):
            raise AlreadyExists(f"table '{name}' cannot be created: there is a view of this name")
        try:
            self._api.post("databases", database, "tables", body=new_table_to_json(database, table, definition))
        except AlreadyExists as e:
            if not ignore_if_exists:
                raise AlreadyExists(f"table '{name}' exists already: {e.message}") from e
        return self.table(name)

    def _place(self, name: str) -> tuple[str, str | None]:
        """The table's directory, and its id."""
        database, table = _split(name)
        response = self._api.get("databases", database, "tables", table)
        return location(str(response["path"]), f"the path of table '{name}'"), response.get("id")

    def _opened(
        self,
        name: str,
        place: tuple[str, str | None],
        branch: str,
        options: Mapping[str, Any] | None,
        manifest_cache: ManifestCache | None = None,
    ) -> Table:
        path, table_id = place
        return Table(
            open_file_io(path, self._api.options), path, name=name, branch=branch, options=options,
            lock=RestCommits(self._api, *_split(name), table_id), clock=self._clock, ids=self._ids,
            manifest_cache=manifest_cache,
        )  # fmt: skip

    def renewed(self) -> RestCatalog:
        """A new client: see `Catalog.renewed`. Its options include the server's configuration, such as credentials."""
        if self._api.is_configured_as_before():
            return self
        return RestCatalog(self._api.caller_options, clock=self._clock, ids=self._ids)

    def table_exists(self, name: str) -> bool:
        """Whether the server has the table. All errors of the server except `NotFound` are raised."""
        database, table = _split(name)
        try:
            self._api.get("databases", database, "tables", table)
        except NotFound:
            return False
        return True

    def drop_table(self, name: str, *, ignore_if_not_exists: bool = False) -> None:
        """Raises `NotFound` if there is no such table, unless `ignore_if_not_exists`."""
        database, table = _split(name)
        try:
            self._api.delete("databases", database, "tables", table)
        except NotFound:
            if not ignore_if_not_exists:
                raise

    def rename_table(self, name: str, new_name: str) -> None:
        if self._view_exists(new_name):
            raise AlreadyExists(f"table '{name}' cannot be renamed: there is a view '{new_name}'")
        self._api.post("tables", "rename", body=_renaming(name, new_name))

    # -- views --------------------------------------------------------------------------------------------------------

    def list_views(self, database: str) -> list[str]:
        return sorted(self._api.listed("views", "databases", database, "views"))

    def _views_if_served(self, database: str) -> list[str]:
        """The views of an existing database; none if the server has no views at all."""
        try:
            return self.list_views(database)
        except (NotFound, UnsupportedOperation):
            return []

    def _view_exists(self, name: str) -> bool:
        try:
            self.view(name)
        except NotFound:
            return False
        return True

    def view(self, name: str) -> View:
        try:
            response = self._api.get("databases", *_in(name))
        except UnsupportedOperation as e:
            raise NotFound(f"there is no view '{name}': {e.message}") from e
        return view_from_json(name, response.get("schema"))

    def _put_view(self, view: View, replace: bool) -> None:
        """Create or replace the view. A server replaces no query: then the view is dropped and created."""
        if replace:
            try:
                old = self.view(view.name)
            except NotFound:
                return self._post_view(view)
            return self._replace(old, view)
        try:
            self._post_view(view)
        except AlreadyExists as e:
            raise AlreadyExists(f"view '{view.name}' exists already: {e.message}") from e

    def _post_view(self, view: View) -> None:
        database, name = _split(view.name)
        body = {"identifier": {"database": database, "object": name}, "schema": view_to_json(view)}
        self._api.post("databases", database, "views", body=body)

    def _replace(self, old: View, new: View) -> None:
        changes = view_changes_to_json(old, new)
        if changes is not None:
            if changes:
                self._api.post("databases", *_in(new.name), body={"changes": changes})
            return
        self.drop_view(new.name, ignore_if_not_exists=True)
        try:
            self._post_view(new)
        except (InvalidRequest, AccessDenied, UnsupportedOperation, Unavailable, StorageFailure):
            self._post_view(old)  # the server has not created the new one
            raise

    def drop_view(self, name: str, *, ignore_if_not_exists: bool = False) -> None:
        try:
            self._api.delete("databases", *_in(name))
        except NotFound:
            if not ignore_if_not_exists:
                raise

    def rename_view(self, name: str, new_name: str) -> None:
        if self.table_exists(new_name):
            raise AlreadyExists(f"view '{name}' cannot be renamed: there is a table '{new_name}'")
        self._api.post("views", "rename", body=_renaming(name, new_name))


def _in(view: str) -> tuple[str, str, str]:
    """The path of "database.view" below the server's databases."""
    database, name = _split(view)
    return database, "views", name


def _renaming(name: str, new_name: str) -> dict[str, Any]:
    source, target = _split(name), _split(new_name)
    return {
        "source": {"database": source[0], "object": source[1]},
        "destination": {"database": target[0], "object": target[1]},
    }


class RestCommits:
    """Commits to one table through the server. See `forebay.paimon.store.lock.CatalogCommits`."""

    owns_snapshots = True

    def __init__(self, api: RestApi, database: str, table: str, table_id: str | None) -> None:
        self._api, self._database, self._table, self._id = api, database, table, table_id

    def create(self, io: FileIO, path: str, data: bytes, check: Check | None = None) -> bool:
        """Have the server create the snapshot for file `path`; False if another one already exists.

        The server compares the UUID of the snapshot before; `check` says whether this commit builds on that snapshot.
        """
        place = _SNAPSHOT.search(path)
        if place is None:
            raise UnsupportedOperation(
                f"{path} belongs to a table of a REST catalog, whose server writes it; a branch's schema stays"
            )
        snapshot = parse_snapshot(data)
        body: dict[str, Any] = {
            "tableId": self._id,
            "baseSnapshotUuid": self._uuid_before(io, path, snapshot.id),
            "snapshot": snapshot_to_json(snapshot),
            "statistics": [],
        }
        if check is not None:
            check()
        branch = place["branch"]
        table = self._table if branch is None else f"{self._table}{BRANCH_MARK}{branch}"
        answer = self._api.post("databases", self._database, "tables", table, "commit", body=body)
        return bool(answer.get("success"))

    def change_schema(self, changes: Sequence[SchemaChange]) -> bool:
        """Have the server change the schema."""
        body = {"changes": [change_to_json(change) for change in changes]}
        self._api.post("databases", self._database, "tables", self._table, body=body)
        return True

    def _uuid_before(self, io: FileIO, path: str, snapshot_id: int) -> str | None:
        if snapshot_id == FIRST_SNAPSHOT_ID:
            return None
        before = f"{path.rpartition('-')[0]}-{snapshot_id - 1}"
        try:
            uuid = json.loads(io.read(before)).get("uuid")
        except NotFound:
            return None
        return None if uuid is None else str(uuid)


def _split(name: str) -> tuple[str, str]:
    return split_name(name, "a table or view")
