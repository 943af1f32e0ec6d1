"""The user interface of a table: one call to read, one to write; parts for advanced uses.

    table.upsert(rows)                                  # one commit; in a table without a primary key: append
    table.delete([{"id": 7}])
    table.scan(columns=["id", "name"], filter="id > 5", limit=10).to_arrow()

`stream_writer` is for continuous exactly-once writes. For engines with several workers, `new_write` and `new_commit`
are the two halves of a write; `plan` and `read_split` of a scan those of a read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.data import Missing, Rows
from forebay.api.filters import as_predicate
from forebay.api.keys import key_rows
from forebay.api.results import WriteResult
from forebay.api.scan import ScanRequest
from forebay.api.schemas import SchemaLike, TypeLike
from forebay.base.arguments import name_list, one_or_more_names, whole_number
from forebay.base.errors import Conflict, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.progress import OnProgress, no_progress
from forebay.base.quantity import Past, Span, span_ms
from forebay.metadata.predicate import Predicate
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.commit.partition_filter import PartitionFilter
from forebay.paimon.compact.dedicated import commit_with_compaction, compact_table
from forebay.paimon.compact.precommit import precommit
from forebay.paimon.compact.rescale import rescale_partitions
from forebay.paimon.compact.running import TaskRunner
from forebay.paimon.compact.tasks import CompactPlanner
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.lookup.lake_lookup import LakeLookupTable
from forebay.paimon.maintain.analyze import Statistics
from forebay.paimon.maintain.expire import Expired
from forebay.paimon.maintain.orphans import Orphans
from forebay.paimon.option_names import option_texts
from forebay.paimon.read.lake_partitions import LakePartition, PartitionSelector, partition_predicate, partitions_of
from forebay.paimon.read.scan import AsOf, LakeScan, snapshot_as_of
from forebay.paimon.read.table_changes import ChangesStart, LakeChanges, open_changes
from forebay.paimon.store.alteration import alteration
from forebay.paimon.store.lock import CatalogCommits
from forebay.paimon.store.schema_changes import SchemaChange, SetOption
from forebay.paimon.stream_writer import StreamWriter
from forebay.paimon.table_parts import EngineTable, sort_order
from forebay.paimon.write.table_write import TableWrite

FilterLike: TypeAlias = Predicate | str | pc.Expression | None
"""A filter: an expression of `forebay.col`, SQL text, or a pyarrow expression."""

Commit = Callable[[FileStoreCommit, list[CommitMessage]], list[Snapshot]]


class Table(EngineTable):
    """One branch of a table. Reading is thread-safe. The schema of an instance is fixed at creation."""

    def alter(
        self,
        *,
        add_columns: SchemaLike | None = None,
        drop_columns: Sequence[str] | str = (),
        rename_columns: Mapping[str, str] | None = None,
        change_types: Mapping[str, TypeLike] | None = None,
        comment: str | None = None,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - the word of SQL
        reset: Sequence[str] | str = (),
    ) -> Table:
        """Change the schema, in one step, and return the table with its new schema. Columns have their current names.

        Fields of nested rows have dotted names (`address.city`). `change_types` requires types that the old ones can be
        cast to; `set` and `reset` are for options. New columns are nullable. Raises `InvalidRequest` for changes that
        are not allowed.
        """
        changes = alteration(
            add_columns=add_columns, drop_columns=one_or_more_names(drop_columns, "drop_columns"),
            rename_columns=rename_columns, change_types=change_types, comment=comment, options=option_texts(set),
            reset=one_or_more_names(reset, "reset"),
        )  # fmt: skip
        return self._changed(changes)

    def _changed(self, changes: Sequence[SchemaChange]) -> Table:
        self.context.schemas.change(changes, has_snapshots=self.context.snapshots.latest_id() is not None)
        return self.refresh()

    # -- reading ------------------------------------------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,  # noqa: A002 - the word that users know
        limit: int | None = None,
        *,
        partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
        buckets: Sequence[int] | int | None = None,
        source: str | None = None,
        as_of: AsOf | None = None,
    ) -> LakeScan:
        """A lazy scan, which can be read in batches, as Arrow, pandas or polars data, in DuckDB, or counted.

        `columns` may name fields of nested rows (`address.city`). `filter` is an expression of `forebay.col`, SQL text
        or a pyarrow expression. `partitions` are names or dicts of values, `buckets` numbers. `as_of` reads an earlier
        state, with its columns: a snapshot id, a tag name, or a time. Without it, options such as `scan.mode` or
        `incremental-between` (see `with_options`) choose the snapshot; the default is the latest. Raises `NotFound` for
        missing snapshots and tags, `InvalidRequest` for unknown columns.
        """
        if source not in (None, "lake"):
            raise UnsupportedOperation(
                f"scan(source={source!r}) of lake table {self.name}: a lake table has no source but the lake; open the "
                "table by forebay.connect(...).table(...) for the others"
            )
        request = ScanRequest(columns, None, limit, partitions, [buckets] if isinstance(buckets, int) else buckets)
        if filter is not None:
            scan_of_all = LakeScan(self.context, self.name, ScanRequest(), as_of)
            request = replace(request, predicate=as_predicate(filter, scan_of_all.schema))
        return LakeScan(self.context, self.name, request, as_of)

    def to_duckdb(self, connection: Any = None, *, as_of: AsOf | None = None) -> Any:
        """A DuckDB relation over the table's latest snapshot, or `as_of`: see `Scan.to_duckdb`."""
        return self.scan(as_of=as_of).to_duckdb(connection)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """All rows, as a PyCapsule of an `ArrowArrayStream`: for polars, DuckDB, `pyarrow.table(table)` and others."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def partitions(self, values: Mapping[str, Any] | None = None) -> list[LakePartition]:
        """The partitions that have rows, by name; with `values`, those with these values of some keys."""
        return partitions_of(self.context, self.context.snapshots.latest(), values)

    def create_partition(self, values: Mapping[str, Any], *, ignore_if_exists: bool = False) -> None:
        """Raise `UnsupportedOperation`: a lake table's partitions are created by writing rows."""
        raise UnsupportedOperation(
            f"create_partition({dict(values)}): a lake table has the partitions that rows were written to; write rows"
        )

    def drop_partition(self, values: Mapping[str, Any], *, ignore_if_not_exists: bool = False) -> None:
        """Delete the rows of a partition; `values` has a value for each partition key. Raises `NotFound`."""
        missing = [key for key in self.schema.partition_keys if key not in values]
        if missing:
            raise InvalidRequest(f"drop_partition({dict(values)}) lacks '{missing[0]}'; give all of the partition keys")
        if not self.partitions(values):
            if ignore_if_not_exists:
                return
            raise NotFound(f"table {self.name} has no partition {dict(values)}")
        self.new_commit().drop_partitions([values])
        self.maintenance().after_commit(batch=True)

    def changes(
        self,
        start: ChangesStart = "earliest",
        stop: str | dt.datetime | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,  # noqa: A002 - the word that users know
        include: Sequence[str] = ("change_type",),
        partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
        buckets: Sequence[int] | None = None,
        timeout: Span | None = None,
    ) -> LakeChanges:
        """The changes of the table, snapshot by snapshot. Iterate over them, or call `poll`.

        With an end, `to_arrow()` and `to_pandas()` are also available. `start` is one of:

        * "earliest": the rows of the earliest snapshot as inserts, then all changes; the table's scan options override
          it
        * "latest": only changes from now on
        * "full": the current rows as inserts, then changes
        * a snapshot id (its changes and later ones), a time, or the `position` of other changes, to continue exactly
          there

        `stop` is None to read without end, "latest" to read up to now, or a time. The first column is `_change_type`
        (insert, update_before, update_after, delete), unless `include` is empty. Rows of kind update_before require a
        `changelog-producer`. `partitions` and `buckets` exclude all others, so that several readers can share the work.
        With `timeout` (a duration), iteration ends after this time without a change.
        """
        rows = as_predicate(filter, self.arrow_schema)
        selection = partition_predicate(self.schema, self.arrow_schema, partitions)
        return open_changes(
            self.context, self.name, start, stop, columns=columns,
            predicate=selection if rows is None else rows if selection is None else selection & rows,
            include=one_or_more_names(include, "include"), buckets=buckets, timeout=timeout,
        )  # fmt: skip

    def lookup(self, keys: Any, columns: Sequence[str] | None = None, *, missing: Missing = "null") -> pa.Table:
        """Rows by primary key: one row per key, in order. For many lookups, open a `lookup_table`.

        `keys` are plain values if the key is a single column, tuples in the order of the primary key, dicts, a single
        one of these, Arrow data or a data frame with the primary key's columns. A key without a row returns a row of
        nulls, including the key columns; with missing="drop" it returns no row, with missing="error" it raises
        `NotFound`.
        """
        with self.lookup_table(columns) as rows:
            return rows.lookup(keys, missing=missing)

    def lookup_table(self, columns: Sequence[str] | None = None, *, directory: str | None = None) -> LakeLookupTable:
        """A lookup table, which finds rows by primary key and joins with them, from copies in memory and `directory`.

        It follows new snapshots. Close it, or use it in a `with` block. For primary-key tables.
        """
        names = None if columns is None else name_list(columns, "columns")
        return LakeLookupTable(self.context, columns=names, directory=directory)

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, data: Rows) -> WriteResult:
        """The number of rows added, and the snapshot that contains them. For tables without a primary key.

        `data` is a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or polars DataFrame, any object with
        `__arrow_c_stream__`, or a list of dicts. Columns are matched by name; omitted ones get their default value, or
        null. Each call is one atomic commit.
        """
        self._require_key(False)
        return self._write(lambda w: w.write(data))

    def upsert(self, data: Rows, columns: Sequence[str] | str | None = None, *, missing: str = "error") -> WriteResult:
        """The number of rows inserted or updated, and the snapshot. For tables with a primary key.

        A row replaces or updates the one with the same key, according to the table's merge engine. With `columns`
        (which include the primary key), only these are written, and the others keep their values; this requires merge
        engine partial-update or aggregation, and otherwise raises `UnsupportedOperation`. `data` is as in `append`, but
        where rows replace others, data that lacks a column without default is an `InvalidRequest`, unless `missing` is
        "null".
        """
        self._require_key(True)
        return self._write(lambda w: w.upsert(data, columns, missing))

    def delete(self, keys: Any, columns: Sequence[str] | str | None = None) -> WriteResult:
        """The number of keys deleted, and the snapshot. Keys without a row are not an error.

        `keys` has the columns of the primary key in any form that `append` accepts, or is one dict, a list of tuples,
        or plain values if the key is a single column. In a table with sequence fields it has these, too: a delete
        removes rows whose sequence is not greater. Raises `UnsupportedOperation` if the merge engine would keep the
        rows, and for `columns`: a lake table deletes whole rows.
        """
        if columns is not None:
            raise UnsupportedOperation(
                f"table {self.name}: delete(columns={columns!r}) is not possible in a lake, where a delete takes the "
                "whole row; in a table with merge engine partial-update or aggregation upsert other values"
            )
        self._require_key(True)
        return self._write(lambda w: w.delete(key_rows(keys, self.schema.primary_keys, self.name)))

    def write_changes(self, data: Rows) -> WriteResult:
        """The number of changes written, without those that options of the table ignore, and the snapshot.

        `data` has the table's columns and `_change_type`, with the values insert, update_before, update_after and
        delete (or +I, -U, +U, -D). For all tables; without a primary key, only inserts are allowed.
        """
        return self._write(lambda w: w.write_changes(data))

    def overwrite(self, data: Rows, partition: Mapping[str, Any] | None = None) -> WriteResult:
        """The number of rows written in place of the old ones, and the snapshot.

        Replaces `partition` (values of some partition keys). Without it, replaces the partitions that `data` has rows
        for, or an unpartitioned table as a whole.
        """
        dynamic = False if partition is not None else None
        return self._commit(
            lambda w: w.write(data),
            lambda commit, messages: commit.overwrite(messages, partition, dynamic=dynamic),
            replaces=True,
        )

    def stream_writer(self, user: str) -> StreamWriter:
        """A writer with numbered commits that can be repeated after any failure; `user` identifies the stream.

        Close it, or use it in a `with` block.
        """
        return StreamWriter(self, user)

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def expire_snapshots(
        self,
        retain_min: int | None = None,
        retain_max: int | None = None,
        older_than: Past | None = None,
        *,
        progress: OnProgress = no_progress,
    ) -> Expired:
        """Expire old snapshots and delete the files that only they needed; by default according to the table's options.

        `older_than` is a time, or a timedelta before now. `progress` is in snapshots.
        """
        return self.maintenance().expire_snapshots(retain_min, retain_max, older_than, progress=progress)

    def expire_partitions(self, at: Past | None = None) -> list[dict[str, Any]]:
        """Drop partitions older than `at`, by default according to the table's options, and return their values.

        `at` is a time, or a timedelta before now.
        """
        return self.maintenance().expire_partitions(at)

    def create_tag(self, name: str, snapshot: int | None = None, retain: Span | None = None) -> None:
        """Tag a snapshot (by default the latest), for the time `retain` or until the tag is deleted.

        Tagged snapshots do not expire; read them with `scan(as_of=name)`. Raises `AlreadyExists`, `NotFound`.
        """
        target = self.context.snapshots.latest() if snapshot is None else self.context.snapshots.snapshot(snapshot)
        if target is None:
            raise NotFound(f"{self.name} has no snapshot to tag: nothing was written yet")
        self.context.tags.create(name, target, None if retain is None else span_ms(retain, "retain"))
        if not self.context.snapshots.exists(target.id):  # another process has let it expire, without knowing the tag
            self.context.tags.delete(name)
            raise NotFound(f"snapshot {target.id} of {self.name} expired while it was tagged: tag a later one")

    def delete_tag(self, name: str) -> None:
        """Delete a tag, and the files that only it needs. Raises `NotFound`."""
        self.maintenance().delete_tag(name)

    def branches(self) -> list[str]:
        """The names of the branches, without main, sorted."""
        return self.context.branches.names()

    def create_branch(self, name: str, tag: str | None = None, *, ignore_if_exists: bool = False) -> None:
        """Create a branch: empty with the current schema, or beginning with the snapshot of `tag`.

        Open it with `catalog.table(name, branch=...)`. No process may commit to main meanwhile. Raises `AlreadyExists`,
        `NotFound` for the tag.
        """
        self.context.branches.create(name, tag, ignore_if_exists)

    def delete_branch(self, name: str) -> None:
        """Delete a branch; data files that only it has become orphans. Raises `NotFound`."""
        self.context.branches.drop(name)

    def rename_branch(self, name: str, new_name: str) -> None:
        """Rename a branch. Raises `NotFound`, and `AlreadyExists` if the new name is taken."""
        self.context.branches.rename(name, new_name)

    def fast_forward(self, branch: str) -> None:
        """Replace the history of main with that of a branch. No process may commit to main meanwhile.

        Raises `NotFound`, and `InvalidRequest` for a branch without snapshots.
        """
        self.context.branches.fast_forward(branch)

    def remove_orphan_files(
        self,
        *,
        older_than: Past | None = None,
        dry_run: bool = False,
        progress: OnProgress = no_progress,
    ) -> Orphans:
        """Delete unreferenced files older than a day, and return them; with `dry_run`, only return them.

        `older_than` is another time, or a timedelta before now. `progress` is in scanned snapshots and tags, and files.
        """
        return self.maintenance().remove_orphan_files(older_than=older_than, dry_run=dry_run, progress=progress)

    def rollback_to(self, to: AsOf, *, dry_run: bool = False) -> Snapshot:
        """Roll back to a snapshot (an id, a tag name, or a time), and return it.

        Later snapshots are deleted; there must be no concurrent commit. With `dry_run`, nothing is deleted.
        """
        if isinstance(self._lock, CatalogCommits) and self._lock.owns_snapshots:
            raise UnsupportedOperation(f"{self.name} is in a REST catalog, whose server alone can roll it back")
        target, maintenance = snapshot_as_of(self.context, to, "to"), self.maintenance()
        if isinstance(to, str) and self.context.tags.find(to) is not None:
            return maintenance.rollback_to(tag=to, dry_run=dry_run)  # its snapshot may have expired
        return maintenance.rollback_to(snapshot=target.id, dry_run=dry_run)

    def analyze(self, columns: Sequence[str] = (), *, progress: OnProgress = no_progress) -> Statistics | None:
        """Collect statistics of the table, and of `columns`, for query planners. `progress` is in rows."""
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
        if self.context.options.precommit_compact and not self.has_primary_key:
            messages = precommit(self.context, messages)
        committer = self.new_commit()
        try:
            snapshots = commit_with_compaction(committer, messages, lambda rows: commit(committer, rows))
        except (Conflict, InvalidRequest):  # nothing was committed; after other errors the outcome is unknown
            committer.abort(messages)
            raise
        if snapshots:
            self.maintenance().after_commit(batch=True)
        return WriteResult(rows, snapshot=snapshots[0] if snapshots else None)

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
        """Compact now, regardless of `write-only`; return the snapshot, or None if there was nothing to do.

        Without `full`, only what is due by the table's options is compacted. `order_by` sorts an append table without
        buckets by these columns, with `strategy` order, zorder or hilbert. `progress` is in rows. `runner` runs the
        tasks; the default uses threads. `buckets` limits compaction to these buckets. `expire`: also expire old
        snapshots. Raises `Conflict` if other commits keep winning.
        """
        new_snapshot, _ = compact_table(
            self.context, CompactPlanner(self.context), self.new_commit, full=full, partitions=partitions,
            order=sort_order(order_by, strategy), progress=progress, runner=runner,
            buckets=buckets,
        )  # fmt: skip
        if new_snapshot is not None and expire:
            self.maintenance().after_commit(dedicated=True)
        return new_snapshot

    def rescale(
        self,
        buckets: int,
        partition: Mapping[str, Any] | PartitionFilter | None = None,
        *,
        progress: OnProgress = no_progress,
        runner: TaskRunner | None = None,
    ) -> Table:
        """Set the number of buckets, rewrite all partitions or one, and return the table with its new schema.

        Partitions that are not rewritten cannot be written to until they are. `progress` is in rows. With a `runner`,
        several tasks run at a time.
        """
        if self.context.options.bucket <= 0 or whole_number(buckets, "buckets") <= 0:
            raise InvalidRequest(
                f"only tables with a fixed number of buckets can be rescaled, to a positive number: {self.name} has "
                f"'bucket' = {self.context.options.bucket}, asked for {buckets}"
            )
        changed = self if self.context.options.bucket == buckets else self._changed([SetOption("bucket", str(buckets))])
        rescale_partitions(changed.context, changed.new_commit(), buckets, partition, progress, runner)
        return changed
