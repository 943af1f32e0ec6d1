"""The context of readers and writers of one table: its files, paths, schema and options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.snapshots import SnapshotManager
from forebay.paimon.store.tags import TagManager

_SHARED = ("snapshots", "manifests", "tags")


@dataclass(frozen=True)
class TableContext:
    """A table as its parts see it. `schema` is the version to read or write as; `schemas` gives any version.

    It pickles, for the workers of a distributed engine.
    """

    io: FileIO
    paths: PathFactory
    schema: TableSchema
    schemas: SchemaManager
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False)

    @cached_property
    def snapshots(self) -> SnapshotManager:
        return SnapshotManager(self.io, self.paths)

    @cached_property
    def manifests(self) -> ManifestStore:
        return ManifestStore(self.io, self.paths, self.schema)

    @cached_property
    def tags(self) -> TagManager:
        return TagManager(self.io, self.paths, self.clock)

    @cached_property
    def branches(self) -> BranchManager:
        return BranchManager(self.io, self.paths)

    @cached_property
    def consumers(self) -> ConsumerManager:
        return ConsumerManager(self.io, self.paths)

    @cached_property
    def options(self) -> CoreOptions:
        return CoreOptions(self.schema.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.io, self.paths.root, self.paths.branch, self.schema, self.clock)

    def with_schema(self, schema: TableSchema) -> TableContext:
        """The same table, read or written under another schema or with other options."""
        made = replace(self, schema=schema)
        vars(made).update({name: getattr(self, name) for name in _SHARED})  # what they have in memory is of use to both
        return made

    def on_branch(self, branch: str) -> TableContext:
        """Another branch of the same table, with this one's schema."""
        paths = self.paths.on_branch(branch)
        return replace(self, paths=paths, schemas=SchemaManager(self.io, paths))

    def able_to_rewrite(self, files: Iterable[DataFileMeta]) -> TableContext:
        """The same table under the newest schema of `files`, if that is newer than its own.

        A program that runs for long sees the table as it was when it opened it. Files that others wrote since may have
        columns that it does not know, and types that are wider; to rewrite them under its own schema would lose values.
        """
        newest = max((f.schema_id for f in files), default=self.schema.id)
        if newest <= self.schema.id:
            return self
        found = self.schemas.schema(newest)
        return self.with_schema(found.with_options({**found.options, **self.schema.options}))


def _opened(io: FileIO, root: str, branch: str, schema: TableSchema, clock: Clock) -> TableContext:
    """Return a context on another worker: paths and schemas are looked up again."""
    paths = PathFactory.of(root, schema, branch)
    return TableContext(io, paths, schema, SchemaManager(io, paths), clock)
