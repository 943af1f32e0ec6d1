"""The parts of a table that distributed engines use, besides the user interface in `table`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Self

import pyarrow as pa

from forebay.api.scan import ArrowStream
from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.arguments import name_list
from forebay.base.completion import hidden_from_completion
from forebay.metadata.predicate import Predicate
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.commit.partition_filter import PartitionFilter
from forebay.paimon.compact.clustering import SortOrder
from forebay.paimon.compact.tasks import CompactPlanner, CompactTask, run_task
from forebay.paimon.compact.writing import TableWriteCompaction
from forebay.paimon.display import table_html
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.maintain.maintenance import Maintenance
from forebay.paimon.maintain.partition_expiry import ExpirySchedule
from forebay.paimon.option_names import option_texts
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.lock import CommitGuard
from forebay.paimon.store.manifests import ManifestCache
from forebay.paimon.store.paths import MAIN_BRANCH, PathFactory
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.system_tables.registry import SystemTable
from forebay.paimon.write.table_write import TableWrite


@hidden_from_completion("new_handle")
class EngineTable(ArrowStream):
    """The parts of one branch of a table. The schema of an instance is fixed at creation."""

    def __init__(
        self,
        io: FileIO,
        root: str,
        *,
        name: str = "",
        branch: str = MAIN_BRANCH,
        options: Mapping[str, Any] | None = None,
        lock: CommitGuard | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
        manifest_cache: ManifestCache | None = None,
    ) -> None:
        """The table at `root`. `options` replace the table's own for this instance (Paimon's dynamic options)."""
        self._lock, self._clock, self._ids = lock, clock, ids
        main = PathFactory(root, branch=branch, ids=ids)
        self._io, self._root = io, main.root  # absolute, in this process and where it is unpickled
        self.name = name or root
        schemas = SchemaManager(io, main, lock, clock)
        latest = schemas.latest()
        self._overrides = option_texts(options)
        self.schema: TableSchema = latest.with_options({**latest.options, **self._overrides})
        paths = PathFactory.of(self._root, self.schema, branch, ids)
        self.context = TableContext(io, paths, self.schema, schemas, clock, manifest_cache)
        """The internals that engines need: snapshots, manifests, tags, schemas, paths and options."""
        self._expiry_schedule = ExpirySchedule(clock)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, schema {self.schema.id}, {len(self.schema.fields)} columns)"

    def _repr_html_(self) -> str:
        return table_html(self.name, self.schema, {"location": self._root, "branch": self.context.paths.branch})

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of all columns."""
        return self.split_reader().schema

    @property
    def has_primary_key(self) -> bool:
        """Whether the table has a primary key, by which rows are replaced."""
        return self.schema.has_primary_key

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only what is needed to reopen the table; an unpickled table has the latest schema of that time."""
        again = partial(
            type(self), self._io, self._root, name=self.name, branch=self.context.paths.branch,
            options=self._overrides, lock=self._lock, clock=self._clock, ids=self._ids,
        )  # fmt: skip
        return again, ()

    def on_branch(self, branch: str) -> Self:
        """The branch `branch` of the same table."""
        return self._opened(branch, self._overrides)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same table with some options replaced for this instance, and with its latest schema."""
        return self._opened(self.context.paths.branch, {**self._overrides, **options})

    def _opened(self, branch: str, options: Mapping[str, Any]) -> Self:
        return type(self)(
            self._io, self._root, name=self.name, branch=branch, options=options, lock=self._lock, clock=self._clock,
            ids=self._ids,
        )  # fmt: skip

    def new_handle(self) -> Self:
        """A handle of the table that shares its caches, but expires partitions on a schedule of its own."""
        handle = object.__new__(type(self))
        vars(handle).update(vars(self), _expiry_schedule=ExpirySchedule(self._clock))
        return handle

    def refresh(self) -> Self:
        """The same table with its latest schema."""
        return self.with_options({})

    # -- reading ------------------------------------------------------------------------------------------------------

    def system(self, name: str) -> SystemTable:
        """The system table `name`. Raises `NotFound`.

        There are: snapshots, schemas, options, manifests, files, partitions, buckets, tags, branches, consumers,
        statistics, aggregation_fields, audit_log, binlog, ro.
        """
        return SystemTable(name, self.context)

    def split_reader(
        self,
        columns: Sequence[str] | None = None,
        filter: Predicate | None = None,  # noqa: A002 - the word that users know
    ) -> SplitReader:
        """A reader of the splits of `scan(...).plan()`, for engines; pass the same filter."""
        return SplitReader(self.context, columns, ScanFilter.of(self.schema, filter))

    # -- writing ------------------------------------------------------------------------------------------------------

    def new_write(self, *, ignore_existing: bool = False) -> TableWrite:
        """The writing half of a commit. It also compacts, unless the table is `write-only`."""
        compaction = None if self.context.options.write_only else TableWriteCompaction(self.context)
        return TableWrite(self.context, ignore_existing, compaction)

    def new_commit(self, user: str | None = None, *, ignore_empty: bool = True) -> FileStoreCommit:
        """The committing half. A stream passes a fixed `user`, and keeps it across restarts."""
        user = user or self._ids.token_hex()
        return FileStoreCommit(self.context, user, lock=self._lock, ignore_empty=ignore_empty)

    def maintenance(self) -> Maintenance:
        """All maintenance operations; `Table` has methods for the most common ones."""
        return Maintenance(self.context, self.new_commit, self._expiry_schedule)

    # -- compacting ---------------------------------------------------------------------------------------------------

    def plan_compaction(
        self,
        full: bool = False,
        partitions: Sequence[Mapping[str, Any]] | PartitionFilter | None = None,
        *,
        order_by: Sequence[str] = (),
        strategy: str = "order",
        buckets: Collection[int] | None = None,
    ) -> list[CompactTask]:
        """The tasks that make up `compact`, for engines with several workers. They can be pickled.

        Workers call `run_compaction` for each task; all resulting messages go to one `new_commit().commit`.
        """
        order = sort_order(order_by, strategy)
        return CompactPlanner(self.context).plan(full=full, partitions=partitions, order=order, buckets=buckets)

    def run_compaction(self, task: CompactTask) -> CommitMessage:
        """Run one task of `plan_compaction`."""
        return run_task(self.context, task)


def sort_order(columns: Sequence[str], strategy: str) -> SortOrder | None:
    return SortOrder(name_list(columns, "order_by"), strategy) if columns else None
