"""A table, as users handle it: one call to read it, one to write it; the parts for those who need more.

    table.upsert(rows)                                  # one commit; in a table without a primary key: append
    table.delete([{"id": 7}])
    table.read(columns=["id", "name"], filter=col("id") > 5, limit=10).read_all()

`stream_writer` writes without end, each row once. `new_write` and `new_commit` are the two halves of a write for
engines with several workers; `scan` and `split_reader` those of a read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.api.results import WriteResult
from forebay.base.arguments import name_list, one_or_more_names, whole_number
from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import Conflict, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.ids import SYSTEM_IDS, IdSource
from forebay.base.progress import OnProgress, no_progress
from forebay.metadata.predicate import Predicate
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.commit.partitions import PartitionFilter
from forebay.paimon.compact.clustering import SortOrder
from forebay.paimon.compact.dedicated import commit_with_compaction, compact_table
from forebay.paimon.compact.precommit import precommit
from forebay.paimon.compact.rescale import rescale_partitions
from forebay.paimon.compact.running import TaskRunner
from forebay.paimon.compact.tasks import CompactPlanner, CompactTask, run_task
from forebay.paimon.compact.writing import TableWriteCompaction
from forebay.paimon.display import table_html
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.lookup.keys import key_rows
from forebay.paimon.lookup.lookup import Lookup
from forebay.paimon.maintain.analyze import Statistics
from forebay.paimon.maintain.expire import Expired
from forebay.paimon.maintain.maintenance import Maintenance
from forebay.paimon.maintain.orphans import Orphans
from forebay.paimon.maintain.partitions import ExpirySchedule
from forebay.paimon.option_names import option_texts
from forebay.paimon.options import CoreOptions
from forebay.paimon.read.batch_modes import chooses_snapshot
from forebay.paimon.read.expired import telling_expiry, told_of_expiry
from forebay.paimon.read.facade import open_stream, read_by_options, snapshot_by_options
from forebay.paimon.read.planner import Plan, Planner
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.read.table_stream import TableStream
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.lock import CatalogCommits, CommitGuard
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.paths import MAIN_BRANCH, PathFactory
from forebay.paimon.store.schema_changes import SchemaChange, SetOption
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.snapshots import SnapshotManager
from forebay.paimon.store.tags import TagManager
from forebay.paimon.stream_writer import StreamWriter
from forebay.paimon.system_tables.registry import SystemTable
from forebay.paimon.write.changes import write_changes
from forebay.paimon.write.table_write import TableWrite

Commit = Callable[[FileStoreCommit, list[CommitMessage]], list[Snapshot]]


class Table:
    """One branch of a table. Reading is thread-safe; what an instance knows of the schema is fixed when it is made."""

    def __init__(
        self,
        io: FileIO,
        root: str,
        *,
        name: str = "",
        branch: str = MAIN_BRANCH,
        options: Mapping[str, str] | None = None,
        lock: CommitGuard | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
    ) -> None:
        """The table at `root`. `options` replace the table's own for this instance (Paimon's dynamic options)."""
        self._io, self._root, self._lock, self._clock, self._ids = io, root, lock, clock, ids
        self.name = name or root
        bare = PathFactory(root, branch=branch, ids=ids)
        self.schemas = SchemaManager(io, bare, lock, clock)
        latest = self.schemas.latest()
        self._overrides = option_texts(options)
        self.schema: TableSchema = latest.with_options({**latest.options, **self._overrides})
        self.paths = PathFactory.of(root, self.schema, branch, ids)
        self.snapshots = SnapshotManager(io, self.paths)
        self.manifests = ManifestStore(io, self.paths, self.schema)
        self.tags = TagManager(io, self.paths, clock)
        self._expiry_schedule = ExpirySchedule(clock)
        self.context = TableContext(io, self.paths, self.schema, self.schemas.schema)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, schema {self.schema.id}, {len(self.schema.fields)} columns)"

    def _repr_html_(self) -> str:
        return table_html(self.name, self.schema, {"location": self._root, "branch": self.paths.branch})

    @property
    def options(self) -> CoreOptions:
        return self.context.options

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of what `read` yields without `columns`."""
        return self.split_reader().schema

    @property
    def has_primary_key(self) -> bool:
        """Whether rows have a primary key, by which they are replaced."""
        return self.schema.has_primary_key

    def __reduce__(self) -> tuple[Any, ...]:
        """A table pickles small; where it is unpickled, it is opened anew, under the schema that is the latest then."""
        place = (self._io, self._root, self.name, self.paths.branch, self._overrides, self._lock)
        return _reopened, (*place, self._clock, self._ids)

    def on_branch(self, branch: str) -> Table:
        """The same table's branch `branch`."""
        return Table(
            self._io, self._root, name=self.name, branch=branch, options=self._overrides, lock=self._lock,
            clock=self._clock, ids=self._ids,
        )  # fmt: skip

    def with_options(self, options: Mapping[str, str]) -> Table:
        """The same table with some options replaced for this instance, under its latest schema."""
        return Table(
            self._io, self._root, name=self.name, branch=self.paths.branch, options={**self._overrides, **options},
            lock=self._lock, clock=self._clock, ids=self._ids,
        )  # fmt: skip

    def refreshed(self) -> Table:
        """The same table under its latest schema."""
        return self.with_options({})

    def alter(self, changes: Sequence[SchemaChange]) -> Table:
        """Change the schema; the table under the new one."""
        self.schemas.change(changes, has_snapshots=self.snapshots.latest_id() is not None)
        return self.refreshed()

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(
        self,
        columns: Sequence[str] | None = None,
        filter: Predicate | None = None,  # noqa: A002 - the word that users know
        limit: int | None = None,
        *,
        snapshot: int | None = None,
        tag: str | None = None,
        timestamp_ms: int | None = None,
        watermark: int | None = None,
    ) -> pa.RecordBatchReader:
        """The rows of one snapshot: the latest, or the one named by at most one of the last four arguments.

        Without these, options such as `scan.mode` or `incremental-between` (see `with_options`) choose. `columns` may
        name fields of nested rows (`address.city`). Under time travel columns are those that the table had then.
        """
        travels = any(v is not None for v in (snapshot, tag, timestamp_ms, watermark))
        if not travels and chooses_snapshot(self.options):
            return read_by_options(self.context, self.snapshots, self.manifests, self.tags, columns, filter, limit)
        chosen = self._chosen_snapshot(snapshot, tag, timestamp_ms, watermark)
        context = self._context_of(chosen) if travels and chosen is not None else self.context
        scan_filter = ScanFilter.of(context.schema, filter)
        chosen_id = None if chosen is None else chosen.id
        with telling_expiry(self.snapshots, chosen_id):
            plan = Planner(context, self.snapshots, self.manifests).plan(chosen, scan_filter, limit)
        reader = SplitReader(context, columns, scan_filter)
        found = told_of_expiry(_rows(reader, plan, limit), self.snapshots, chosen_id)
        return pa.RecordBatchReader.from_batches(reader.schema, found)

    def stream(
        self,
        columns: Sequence[str] | None = None,
        filter: Predicate | None = None,  # noqa: A002 - the word that users know
        *,
        scan_mode: str | None = None,
        state: Mapping[str, Any] | None = None,
        buckets: Collection[int] | None = None,
        follow: bool = True,
    ) -> TableStream:
        """Changes as they are committed: batches with column `_row_kind` (+I, -U, +U, -D).

        `scan_mode` says where to begin (option `scan.mode`; by default with all rows of the latest snapshot);
        `state`, taken from an earlier stream, goes on exactly there. `buckets`: read these only, so that several
        readers can share the work. Without `follow` the stream ends when it has caught up.
        """
        options = {**self.schema.options, **({} if scan_mode is None else {"scan.mode": scan_mode})}
        return open_stream(
            self.context.with_schema(self.schema.with_options(options)), self.snapshots, self.manifests,
            columns=columns, predicate=filter, buckets=buckets, state=state, follow=follow, clock=self._clock,
        )  # fmt: skip

    def lookup(self, columns: Sequence[str] | None = None, directory: str | None = None) -> Lookup:
        """Finds rows by primary key, with local copies in memory and below `directory`; follows new snapshots.

        Close it, or use it in a `with` block. For primary-key tables.
        """
        return Lookup(
            self.context, self.snapshots, self.manifests, columns=columns, directory=directory, clock=self._clock
        )

    def system(self, name: str) -> SystemTable:
        """A system table: snapshots, schemas, options, manifests, files, partitions, buckets, tags, branches,
        consumers, statistics, aggregation_fields, audit_log, binlog, ro. Raises `NotFound`."""
        return SystemTable(name, self.context, self._clock)

    def scan(
        self,
        filter: Predicate | None = None,  # noqa: A002 - the word that users know
        limit: int | None = None,
        *,
        snapshot: int | None = None,
    ) -> Plan:
        """What a read consists of, split by split, for engines that read with several workers."""
        chosen = self._chosen_snapshot(snapshot, None, None, None)
        with telling_expiry(self.snapshots, None if chosen is None else chosen.id):
            return self.planner().plan(chosen, ScanFilter.of(self.schema, filter), limit)

    def planner(self) -> Planner:
        return Planner(self.context, self.snapshots, self.manifests)

    def split_reader(
        self,
        columns: Sequence[str] | None = None,
        filter: Predicate | None = None,  # noqa: A002 - the word that users know
    ) -> SplitReader:
        """A reader of the splits of `scan`; give it the same filter."""
        return SplitReader(self.context, columns, ScanFilter.of(self.schema, filter))

    def _chosen_snapshot(
        self, snapshot: int | None, tag: str | None, timestamp_ms: int | None, watermark: int | None
    ) -> Snapshot | None:
        given = [v for v in (snapshot, tag, timestamp_ms, watermark) if v is not None]
        if len(given) > 1:
            raise InvalidRequest("name one of snapshot, tag, timestamp_ms and watermark, not several")
        if tag is not None and not isinstance(tag, str):
            raise InvalidRequest(f"tag is a name, got {tag!r}")
        for number, what in ((snapshot, "snapshot"), (timestamp_ms, "timestamp_ms"), (watermark, "watermark")):
            if number is not None:
                whole_number(number, what)
        if not given:
            if chooses_snapshot(self.options):
                return snapshot_by_options(self.context, self.snapshots, self.manifests, self.tags)
            return self.snapshots.latest()
        if snapshot is not None:
            return self.snapshots.snapshot(snapshot)
        if tag is not None:
            return self.tags.tag(tag).snapshot
        if timestamp_ms is not None:
            return self.planner().at_timestamp(timestamp_ms)
        assert watermark is not None
        return self.planner().at_watermark(watermark)

    def _context_of(self, snapshot: Snapshot) -> TableContext:
        """The table under the schema of `snapshot`, with the options of now."""
        then = self.schemas.schema(snapshot.schema_id)
        return self.context.with_schema(then.with_options(self.schema.options))

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, data: Any) -> WriteResult:
        """What adding rows made: how many, and the snapshot that has them. For tables without a primary key.

        `data` is a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or polars DataFrame, anything else with
        `__arrow_c_stream__`, or a list of dicts. Columns are matched by name; those that are left out get their
        default value, or null. Each call is one commit: readers see all of it, or nothing.
        """
        self._require_key(False)
        return self._write(lambda w: w.write(data))

    def upsert(self, data: Any, columns: Sequence[str] | str | None = None) -> WriteResult:
        """What inserting or updating rows made: how many, and the snapshot. For tables with a primary key.

        A row replaces or changes the one with the same key, as the table's merge engine says. With `columns` (which
        include the primary key) only these are written, and the others stay as they are: that takes merge engine
        partial-update or aggregation, and is `UnsupportedOperation` in other tables. `data` is as in `append`.
        """
        self._require_key(True)
        return self._write(
            lambda w: w.write(data, columns=None if columns is None else one_or_more_names(columns, "columns"))
        )

    def delete(self, keys: Any, columns: Sequence[str] | str | None = None) -> WriteResult:
        """What deleting the rows with these keys made: how many keys, and the snapshot. Keys without a row are fine.

        `keys` holds the columns of the primary key, in the forms that `append` takes, or is one dict, a list of tuples,
        or plain values where one column is the key. `columns` is `UnsupportedOperation`: a lake deletes whole rows.
        """
        if columns is not None:
            raise UnsupportedOperation(
                f"table {self.name}: delete(columns={columns!r}) is not possible in a lake, where a delete takes the "
                "whole row; in a table with merge engine partial-update or aggregation upsert other values"
            )
        self._require_key(True)
        return self._write(lambda w: w.delete(key_rows(keys, self.schema.primary_keys, self.name)))

    def write_changes(self, data: Any) -> WriteResult:
        """What writing changes made: how many, and the snapshot.

        `data` has the table's columns and `_change_type`, whose values (insert, update_before, update_after, delete)
        say what becomes of each row. For tables of both kinds; without a primary key there are only inserts.
        """
        return self._write(lambda w: write_changes(w, data))

    def overwrite(self, data: Any, partition: Mapping[str, Any] | None = None) -> WriteResult:
        """What replacing rows made: how many rows are there instead, and the snapshot.

        Replaced is the table, or `partition` (values of some partition keys), or, in partitioned tables where that is
        not given, the partitions that `data` has rows of.
        """
        dynamic = False if partition is not None else None
        return self._commit(
            lambda w: w.write(data),
            lambda commit, messages: commit.overwrite(messages, partition, dynamic=dynamic),
            replaces=True,
        )

    def stream_writer(self, user: str) -> StreamWriter:
        """A writer whose commits are numbered, and may be repeated after any failure; `user` names the stream.

        Close it, or use it in a `with` block.
        """
        return StreamWriter(self, user, self._clock)

    def new_write(self, *, ignore_existing: bool = False) -> TableWrite:
        """The writing half of a commit. It compacts, too, unless the table is `write-only`."""
        compaction = (
            None
            if self.options.write_only
            else TableWriteCompaction(self.context, self.snapshots, self.manifests, self._clock)
        )
        return TableWrite(self.context, self.snapshots, self.manifests, self._clock, ignore_existing, compaction)

    def new_commit(self, user: str | None = None, *, ignore_empty: bool = True) -> FileStoreCommit:
        """The committing half. A stream gives its own `user`, and keeps it."""
        return FileStoreCommit(
            self._io, self.paths, self.schema, user or self._ids.token_hex(), lock=self._lock, clock=self._clock,
            ids=self._ids, ignore_empty=ignore_empty, manifests=self.manifests,
        )  # fmt: skip

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def maintenance(self) -> Maintenance:
        """All upkeep; the methods below are its most used parts."""
        return Maintenance(self.context, self.manifests, self.new_commit, self._clock, self._expiry_schedule)

    def expire_snapshots(
        self,
        retain_min: int | None = None,
        retain_max: int | None = None,
        older_than_ms: int | None = None,
        *,
        progress: OnProgress = no_progress,
    ) -> Expired:
        """Delete old snapshots, and the files that nothing else needs; by default as the table's options say.

        `older_than_ms` is a moment, in milliseconds since 1970. `progress` is in snapshots.
        """
        return self.maintenance().expire_snapshots(retain_min, retain_max, older_than_ms, progress=progress)

    def expire_partitions(self, time_ms: int | None = None) -> list[dict[str, Any]]:
        """Drop partitions older than `time_ms`, by default as the table's options say; their values."""
        return self.maintenance().expire_partitions(time_ms)

    def create_tag(self, name: str, snapshot: int | None = None, retained_ms: int | None = None) -> None:
        """Keep a snapshot (by default the latest) under a name, for `retained_ms` milliseconds or until it is deleted.

        Expiry leaves it alone; read it with `read(tag=...)`. Raises `AlreadyExists`, `NotFound`.
        """
        chosen = self.snapshots.latest() if snapshot is None else self.snapshots.snapshot(snapshot)
        if chosen is None:
            raise NotFound(f"{self.name} has no snapshot to tag: nothing was written yet")
        self.tags.create(name, chosen, retained_ms)

    def delete_tag(self, name: str) -> None:
        """Delete a tag, and the files that only it needs. Raises `NotFound`."""
        self.maintenance().delete_tag(name)

    def remove_orphan_files(
        self, *, older_than_ms: int | None = None, dry_run: bool = False, progress: OnProgress = no_progress
    ) -> Orphans:
        """Delete files that nothing refers to, and that are older than a day or than the moment `older_than_ms`.

        `progress` is in snapshots and tags that were looked through, and files.
        """
        return self.maintenance().remove_orphan_files(older_than_ms=older_than_ms, dry_run=dry_run, progress=progress)

    def rollback_to(
        self, *, snapshot: int | None = None, tag: str | None = None, timestamp_ms: int | None = None,
        dry_run: bool = False,
    ) -> Snapshot:  # fmt: skip
        """Make an older snapshot the latest again; it. What is behind it is dropped, nobody may commit meanwhile."""
        if isinstance(self._lock, CatalogCommits) and self._lock.owns_snapshots:
            raise UnsupportedOperation(f"{self.name} is in a REST catalog, whose server alone can roll it back")
        return self.maintenance().rollback_to(snapshot=snapshot, tag=tag, timestamp_ms=timestamp_ms, dry_run=dry_run)

    def analyze(self, columns: Sequence[str] = (), *, progress: OnProgress = no_progress) -> Statistics | None:
        """Collect statistics of the table, and of `columns`, for planners of queries. `progress` is in rows."""
        return self.maintenance().analyze(columns, progress)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _require_key(self, has: bool) -> None:
        if has is not self.has_primary_key:
            hint = "has no primary key by which to find rows: use append" if has else "has a primary key: use upsert"
            raise InvalidRequest(f"table {self.name} {hint}")

    def _write(self, write: Callable[[TableWrite], int]) -> WriteResult:
        return self._commit(write, lambda commit, messages: commit.commit(messages))

    def _commit(self, write: Callable[[TableWrite], int], commit: Commit, replaces: bool = False) -> WriteResult:
        with self.new_write(ignore_existing=replaces) as writer:
            rows = write(writer)
            messages = writer.prepare_commit()
        if self.options.precommit_compact and not self.has_primary_key:
            messages = precommit(self.context, messages, self._clock)
        committer = self.new_commit()
        try:
            made = commit_with_compaction(committer, messages, lambda rows: commit(committer, rows))
        except (Conflict, InvalidRequest):  # nothing was committed; after other errors that is not known
            committer.abort(messages)
            raise
        if made:
            self.maintenance().after_commit(batch=True)
        return WriteResult(rows, snapshot=made[0] if made else None)

    # -- compacting ---------------------------------------------------------------------------------------------------

    def compact(
        self,
        full: bool = False,
        partitions: Sequence[Mapping[str, Any]] | PartitionFilter | None = None,
        *,
        order_by: Sequence[str] = (),
        strategy: str = "order",
        progress: OnProgress = no_progress,
        runner: TaskRunner | None = None,
        buckets: Collection[int] | None = None,
        expire: bool = True,
    ) -> Snapshot | None:
        """Compact now, whatever `write-only` says; the snapshot, or None if there was nothing to do.

        Without `full`, only what the table's options say is due. `order_by` sorts an append table without buckets by
        these columns, by `strategy` order, zorder or hilbert. `progress` is in rows. `runner` does the tasks; by
        default threads. Only `buckets` are compacted. `expire`: old snapshots go then. Raises `Conflict` if overtaken.
        """
        made, _ = compact_table(
            self.context, self._compact_planner(), self.new_commit, full=full, partitions=partitions,
            order=_sort_order(order_by, strategy), clock=self._clock, progress=progress, runner=runner,
            buckets=buckets,
        )  # fmt: skip
        if made is not None and expire:
            self.maintenance().after_commit(dedicated=True)
        return made

    def plan_compaction(
        self,
        full: bool = False,
        partitions: Sequence[Mapping[str, Any]] | PartitionFilter | None = None,
        *,
        order_by: Sequence[str] = (),
        strategy: str = "order",
        buckets: Collection[int] | None = None,
    ) -> list[CompactTask]:
        """The tasks of which `compact` consists, for engines with several workers: they pickle.

        Each worker does `run_compaction` with a task of its own; the messages of all go to one `new_commit().commit`.
        """
        order = _sort_order(order_by, strategy)
        return self._compact_planner().plan(full=full, partitions=partitions, order=order, buckets=buckets)

    def run_compaction(self, task: CompactTask) -> CommitMessage:
        """Do one task of `plan_compaction`."""
        return run_task(self.context, task, self._clock)

    def _compact_planner(self) -> CompactPlanner:
        return CompactPlanner(self.context, self.snapshots, self.manifests, self._clock)

    def rescale(
        self,
        buckets: int,
        partition: Mapping[str, Any] | PartitionFilter | None = None,
        *,
        progress: OnProgress = no_progress,
        runner: TaskRunner | None = None,
    ) -> Table:
        """Give the table `buckets` buckets, and rewrite what is there: all, or one partition; the table under it.

        Partitions that are not rewritten cannot be written to until they are. `progress` is in rows. With a `runner`
        several tasks are done at a time.
        """
        if self.options.bucket <= 0 or whole_number(buckets, "buckets") <= 0:
            raise InvalidRequest(
                f"only tables with a fixed number of buckets can be rescaled, to a positive number: {self.name} has "
                f"'bucket' = {self.options.bucket}, asked for {buckets}"
            )
        changed = self if self.options.bucket == buckets else self.alter([SetOption("bucket", str(buckets))])
        rescale_partitions(changed.context, changed.new_commit(), buckets, partition, self._clock, progress, runner)
        return changed


def _reopened(
    io: FileIO,
    root: str,
    name: str,
    branch: str,
    options: dict[str, str],
    lock: CommitGuard | None,
    clock: Clock,
    ids: IdSource,
) -> Table:
    return Table(io, root, name=name, branch=branch, options=options, lock=lock, clock=clock, ids=ids)


def _sort_order(columns: Sequence[str], strategy: str) -> SortOrder | None:
    return SortOrder(name_list(columns, "order_by"), strategy) if columns else None


def _rows(reader: SplitReader, plan: Plan, limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for split in plan.splits:
        if left == 0:
            return
        for batch in reader.read(split):
            if left is None:
                yield batch
                continue
            taken = batch.slice(0, left)
            left -= taken.num_rows
            yield taken
            if left == 0:
                return
