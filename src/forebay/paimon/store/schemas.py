"""The schemas of one branch of a table: `schema/schema-0`, `schema-1`, ...; the latest one is current.

A schema file is created only if its id is free, so that of two concurrent changes one wins and the other is reapplied.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import AlreadyExists, Conflict, NotFound
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.schema_json import format_schema, parse_schema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.lock import CatalogCommits, Check, CommitGuard, create_exclusively
from forebay.paimon.store.paths import MAIN_BRANCH, PathFactory
from forebay.paimon.store.schema_changes import SchemaChange, apply_changes

_PREFIX = "schema-"
_ATTEMPTS = 20


class SchemaManager:
    """Reads and writes the schemas of a branch. Thread-safe; schema files never change, so they are cached."""

    def __init__(
        self, io: FileIO, paths: PathFactory, lock: CommitGuard | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._io, self._paths, self._lock, self._clock = io, paths, lock, clock
        self._schemas: dict[int, TableSchema] = {}
        self._files: dict[int, tuple[str, bytes]] = {}
        self._guard = threading.Lock()

    def schema(self, schema_id: int) -> TableSchema:
        """Schema `schema_id`. Raises `NotFound`."""
        cached = self._schemas.get(schema_id)
        if cached is None:
            path = self._paths.schema(schema_id)
            data = self._io.read(path)
            cached = parse_schema(data)
            with self._guard:
                self._schemas[schema_id], self._files[schema_id] = cached, (path, data)
        return cached

    def is_in_force(self, schema_id: int) -> bool:
        """Whether schema `schema_id`, with the content that was read, is still the newest of the table.

        The file is compared whole: ids come again where a table is dropped and recreated, or a schema rolled back, and
        times of files are too coarse to distinguish two files. A schema holds the millisecond of its creation.
        """
        file, ids = self._files.get(schema_id), self.ids()
        if file is None or not ids or ids[-1] != schema_id:
            return False
        path, data = file
        try:
            return self._io.read(path) == data
        except NotFound:
            return False

    def ids(self) -> list[int]:
        """The ids of all schemas, ascending."""
        names = (status.path.rpartition("/")[2] for status in self._io.list(self._paths.schema_directory))
        numbers = (name[len(_PREFIX) :] for name in names if name.startswith(_PREFIX))
        return sorted(int(number) for number in numbers if number.isdigit())

    def latest_id(self) -> int | None:
        """The id of the latest schema; None if there is no table."""
        cached = max(self._schemas, default=None)
        if cached is not None and not self._io.exists(self._paths.schema(cached + 1)):
            return cached
        ids = self.ids()
        return ids[-1] if ids else None

    def latest(self) -> TableSchema:
        """The current schema. Raises `NotFound` if there is no table."""
        latest_id = self.latest_id()
        if latest_id is None:
            branch = "" if self._paths.branch == MAIN_BRANCH else f", or it has no branch '{self._paths.branch}'"
            raise NotFound(f"there is no Paimon table at {self._paths.root}{branch}")
        return self.schema(latest_id)

    def all(self) -> list[TableSchema]:
        """All schemas, oldest first."""
        return [self.schema(schema_id) for schema_id in self.ids()]

    def create(self, schema: TableSchema) -> TableSchema:
        """Create a table with `schema`, whose id must be 0. Raises `AlreadyExists` if the table exists."""
        if self.ids() or not self._create_file(schema):
            raise AlreadyExists(f"there is a table at {self._paths.root} already")
        return schema

    def change(self, changes: Sequence[SchemaChange], has_snapshots: bool = True) -> TableSchema:
        """Apply `changes` in order to the latest schema, and write the result as a new schema.

        `has_snapshots`: the table holds data, which forbids changes of options that stored data depends on. Raises
        `InvalidRequest` naming a change that is not allowed, `Conflict` if concurrent changes keep winning.
        """
        catalog = self._lock if self._paths.branch == MAIN_BRANCH else None
        if isinstance(catalog, CatalogCommits) and catalog.change_schema(changes):
            return self.latest()
        for _ in range(_ATTEMPTS):
            before = self.latest()
            after = apply_changes(before, changes, self._clock.now_ms(), has_snapshots)
            if after is None:
                return before
            if self._create_file(after, partial(self._check_as_before, before.id, has_snapshots)):
                return after
        raise Conflict(f"the schema of {self._paths.root} was changed by others {_ATTEMPTS} times meanwhile; try again")

    def delete(self, schema_id: int) -> None:
        """Delete a schema file (rollback of a schema change; branches)."""
        self._io.delete(self._paths.schema(schema_id))
        with self._guard:
            self._schemas.pop(schema_id, None)
            self._files.pop(schema_id, None)

    def _create_file(self, schema: TableSchema, check: Check | None = None) -> bool:
        path = self._paths.schema(schema.id)
        return create_exclusively(self._io, path, format_schema(schema), self._lock, check)

    def _check_as_before(self, schema_id: int, has_snapshots: bool) -> None:
        """Raise `Conflict` unless schema `schema_id` is what was read, and if the table has its first rows since."""
        path, before = self._files[schema_id]
        try:
            current = self._io.read(path)
        except NotFound:
            current = None
        if current != before:
            raise Conflict(
                f"the table whose schema was to be changed is no longer at {self._paths.root}: it was dropped, and "
                "perhaps recreated; reopen it and repeat the change"
            )
        if not has_snapshots and any(not s.is_directory for s in self._io.list(self._paths.snapshot_directory)):
            raise Conflict(
                f"rows were written to {self._paths.root} while its schema was to be changed, which some changes do "
                "not allow; repeat the change"
            )
