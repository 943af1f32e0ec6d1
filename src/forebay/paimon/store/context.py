"""The context of readers and writers of one table: its files, paths, schema and options."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.manifests import ManifestCache, ManifestStore
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.snapshots import SnapshotManager
from forebay.paimon.store.tags import TagManager

_T = TypeVar("_T")

_SHARED = ("snapshots", "manifests", "tags")


@dataclass(frozen=True)
class TableContext:
    """The table as seen by readers and writers. `schema` is the version to use; `schemas` returns any version.

    It can be pickled, for the workers of a distributed engine.
    """

    io: FileIO
    paths: PathFactory
    schema: TableSchema
    schemas: SchemaManager
    clock: Clock = field(default=SYSTEM_CLOCK, compare=False)
    manifest_cache: ManifestCache | None = field(default=None, compare=False, repr=False)
    """The cache that the tables of one catalog share. It is not pickled."""

    @cached_property
    def snapshots(self) -> SnapshotManager:
        return SnapshotManager(self.io, self.paths)

    @cached_property
    def manifests(self) -> ManifestStore:
        return ManifestStore(self.io, self.paths, self.schema, self.manifest_cache)

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

    @cached_property
    def _made(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What `make` returns, which is called once for each `key`: a value that follows from schema and options.

        Writers of thousands of buckets share such values.
        """
        made: _T | None = self._made.get(key)
        if made is None:
            made = self._made[key] = make()
        return made

    @property
    def store_options(self) -> Mapping[str, str]:
        """The options by which the store of the table's files was opened; none for stores that need none."""
        options: Mapping[str, str] = getattr(self.io, "options", {})
        return options

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.io, self.paths.root, self.paths.branch, self.schema, self.clock)

    def with_schema(self, schema: TableSchema) -> TableContext:
        """The same table with another schema or other options."""
        table = replace(self, schema=schema)
        vars(table).update({name: getattr(self, name) for name in _SHARED})  # in-memory state is useful to both
        return table

    def with_memory_share(self, shares: int) -> TableContext:
        """The same table with 1/`shares` of the memory that its options allow for merges and write buffers."""
        if shares <= 1:
            return self
        options = self.options
        memory = {
            "sort-spill-buffer-size": options.sort_spill_buffer_size,
            "write-buffer-size": options.write_buffer_size,
        }
        shared = {name: f"{max(1, size // shares)} b" for name, size in memory.items()}
        return self.with_schema(self.schema.with_options({**self.schema.options, **shared}))

    def on_branch(self, branch: str) -> TableContext:
        """Another branch of the same table, with this one's schema."""
        paths = self.paths.on_branch(branch)
        return replace(self, paths=paths, schemas=SchemaManager(self.io, paths))

    def able_to_rewrite(self, files: Iterable[DataFileMeta]) -> TableContext:
        """The same table with the newest schema of `files`, if that is newer than its own.

        A long-running program uses the schema of when it opened the table. Files that other programs have written since
        may have new columns and wider types; rewriting them with the old schema would lose values.
        """
        newest = max((f.schema_id for f in files), default=self.schema.id)
        if newest <= self.schema.id:
            return self
        newest_schema = self.schemas.schema(newest)
        return self.with_schema(newest_schema.with_options({**newest_schema.options, **self.schema.options}))


def _opened(io: FileIO, root: str, branch: str, schema: TableSchema, clock: Clock) -> TableContext:
    """A context on another worker, which looks up paths and schemas again."""
    paths = PathFactory.of(root, schema, branch)
    return TableContext(io, paths, schema, SchemaManager(io, paths), clock)
