"""Tiering into Paimon: writers of one bucket each, and the committer that creates one snapshot from their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from forebay.base.errors import Conflict, InvalidRequest
from forebay.codec.log.log_batch import ChangeType
from forebay.lake.records import ChangeRows
from forebay.lake.tiering import (
    TIERING_USER,
    CommittedLakeSnapshot,
    CommitterContext,
    LakeCommitResult,
    LakeCommitter,
    LakeTieringFactory,
    LakeWriter,
    TieringStats,
    WriterContext,
    check_base,
)
from forebay.lake.writing import LakeRows, check_appended, check_partition
from forebay.lakes.paimon_history import newest_tiered, was_undone
from forebay.lakes.paimon_source import PaimonLakeSource, held_offsets
from forebay.lakes.paimon_tables import check_fits, has_system_columns, lake_table
from forebay.metadata.table import TableInfo
from forebay.paimon.commit.committer import Committable
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement, DataIncrement
from forebay.paimon.format.file_meta import FileKind
from forebay.paimon.format.snapshot import BATCH_COMMIT_IDENTIFIER, Snapshot
from forebay.paimon.table import Table
from forebay.paimon.write.bucketing import UNAWARE, PartitionSplitter

_AUTO_COMPACTION, _AUTO_EXPIRE = "table.datalake.auto-compaction", "table.datalake.auto-expire-snapshot"
_ROW_KINDS = np.array([0, 0, 1, 2, 3], np.int8)
"""Paimon's row kinds (+I, -U, +U, -D) by the numbers of `ChangeType`."""


@dataclass(frozen=True, slots=True)
class PaimonWriteResult:
    """The files of one writer."""

    messages: tuple[CommitMessage, ...]


class PaimonTieringFactory(LakeTieringFactory):
    """Creates writers and committers for the tables of one catalog."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def validate(self, info: TableInfo) -> None:
        check_fits(lake_table(self._options, info.path), info.descriptor, info.path)

    def create_writer(self, context: WriterContext) -> LakeWriter:
        compacts = bool(context.info.descriptor.option(_AUTO_COMPACTION))
        table = lake_table(self._options, context.info.path, {"write-only": "false" if compacts else "true"})
        return PaimonLakeWriter(table, context)

    def create_committer(self, context: CommitterContext) -> LakeCommitter:
        # An empty round still advances offsets, so the table's options must not suppress its snapshot.
        table = lake_table(self._options, context.info.path, {"snapshot.ignore-empty-commit": "false"})
        return PaimonLakeCommitter(table, context)


# ---- writing --------------------------------------------------------------------------------------------------------


class PaimonLakeWriter(LakeWriter):
    """Writes one bucket. The stream's bucket is the bucket in Paimon, so rows are not hashed again."""

    def __init__(self, table: Table, context: WriterContext) -> None:
        self._context = context
        self._keyed = table.schema.has_primary_key
        schema = arrow_schema(table.schema.fields)
        self._rows = LakeRows(context, schema, has_system_columns=has_system_columns(table.schema))
        self._partitions = PartitionSplitter(table.schema)
        self._bucket = 0 if table.context.options.bucket == UNAWARE else context.bucket
        self._write = table.new_write()
        self._partition: bytes | None = None
        self._pending: ChangeRows | None = None
        self._completed = False

    def write(self, records: ChangeRows) -> None:
        """See `LakeWriter.write`. Raises `InvalidRequest` after `complete`, and for changes in a table without a
        key."""
        if self._completed:
            raise InvalidRequest("the writer is complete; make another one")
        if len(records) == 0:
            return
        if self._keyed:
            self._write_paired(records)
            return
        check_appended(self._context.info, records)
        self._write_rows(records)

    def _write_paired(self, records: ChangeRows) -> None:
        """Write changes by key. The old image of an update is written only together with the following new one.

        It is for the changelog that readers of the Paimon table follow; alone, it would delete the row.
        """
        types = records.kinds
        if self._pending is not None:
            if types[0] == ChangeType.UPDATE_AFTER:
                self._write_rows(self._pending)
            self._pending = None
        before = types == ChangeType.UPDATE_BEFORE
        if not before.any():
            self._write_rows(records)
            return
        if before[-1]:
            self._pending = records.slice(len(records) - 1, 1)
        paired = np.append(types[1:] == ChangeType.UPDATE_AFTER, False)
        mask = ~before | paired
        self._write_rows(records if mask.all() else records.filter(pa.array(mask)))

    def _write_rows(self, records: ChangeRows) -> None:
        if len(records) == 0:
            return
        batch = self._rows.lake_batch(records)
        if self._partition is None:
            self._partition = self._partition_of(batch)
        self._write.write_bucket(self._partition, self._bucket, batch, _ROW_KINDS[records.kinds])

    def _partition_of(self, batch: pa.RecordBatch) -> bytes:
        """The partition of the first row, which is more exact than a name, where timestamps may have lost digits.

        Raises `InvalidRequest` if it is not the partition of this writer.
        """
        check_partition(self._context, {key: batch.column(key)[0] for key in self._context.partition or {}})
        return self._partitions.split(batch.slice(0, 1))[0][0]

    def complete(self) -> PaimonWriteResult:
        result = PaimonWriteResult(tuple(self._write.prepare_commit()))
        self._completed, self._pending = True, None
        self._write.close()
        return result

    def abort(self) -> None:
        if not self._completed:
            self._completed = True
            self._write.abort()


# ---- committing -----------------------------------------------------------------------------------------------------


class PaimonLakeCommitter(LakeCommitter):
    """Commits rounds as `TIERING_USER`. Other commits (compaction jobs) may come in between."""

    def __init__(self, table: Table, context: CommitterContext) -> None:
        self._table, self._context = table, context
        self._base = context.base

    def commit(self, results: Sequence[PaimonWriteResult], properties: Mapping[str, str]) -> LakeCommitResult:
        """See `LakeCommitter.commit`. Compactions of the writers follow as a snapshot of their own, which is returned
        then."""
        snapshot_properties = {**properties, **self._context.properties}
        messages = [m for r in results for m in r.messages]
        rows = tuple(replace(m, compact=CompactIncrement()) for m in messages)
        snapshot = self._table.new_commit(TIERING_USER, ignore_empty=False).commit_if(
            self._check_base, Committable(BATCH_COMMIT_IDENTIFIER, rows, properties=snapshot_properties)
        )[-1]
        self._base = snapshot.id
        compacted = tuple(replace(m, data=DataIncrement()) for m in messages if not m.compact.is_empty)
        if compacted:
            snapshot = self._commit_compaction(compacted, snapshot_properties) or snapshot
        rows_there = None if self._table.schema.has_primary_key else snapshot.total_record_count
        return LakeCommitResult(snapshot.id, snapshot.id, stats=TieringStats(rows=rows_there))

    def _commit_compaction(
        self, messages: tuple[CommitMessage, ...], snapshot_properties: Mapping[str, str]
    ) -> Snapshot | None:
        """Commit the writers' compaction after the rows; None if another compaction, or round, was faster."""
        commit = self._table.with_options({"snapshot.ignore-empty-commit": "true"}).new_commit(TIERING_USER)
        try:
            snapshots = commit.commit_if(
                self._check_base, Committable(BATCH_COMMIT_IDENTIFIER, messages, properties=snapshot_properties)
            )
        except Conflict:
            commit.abort(messages)
            return None
        self._base = snapshots[-1].id
        return snapshots[-1]

    def _check_base(self, latest: Snapshot | None) -> None:
        """Raise `Conflict` unless this committer's round can be applied to the table's current state."""
        base, snapshots = self._base, self._table.context.snapshots
        newest = None if latest is None else newest_tiered(snapshots, base)
        if newest is None and base is not None:
            if latest is not None and base < latest.id and not snapshots.exists(base):
                return  # the base has expired, after many other snapshots
            newest = newest_tiered(snapshots)  # the base was rolled back
        check_base(self._context, base, newest)

    def abort(self, results: Sequence[PaimonWriteResult]) -> None:
        """Delete the files of uncommitted results; files of a snapshot are always kept."""
        committed = set(self._files_committed())
        messages = [m for r in results for m in r.messages]
        uncommitted = [
            m for m in messages if not committed & {(m.partition, m.bucket, f.file_name) for f in m.data.new_files}
        ]
        self._table.new_commit(TIERING_USER).abort(uncommitted)

    def _files_committed(self) -> Iterable[tuple[bytes, int, str]]:
        """The files added by rounds since the base of this one."""
        snapshots, manifests = self._table.context.snapshots, self._table.context.manifests
        latest = snapshots.latest_id()
        if latest is None:
            return
        for snapshot_id in range(max(self._context.base or 0, snapshots.earliest_id() or 0), latest + 1):
            snapshot = snapshots.find(snapshot_id)
            if snapshot is None or snapshot.commit_user != TIERING_USER:
                continue
            for entry in manifests.entries(manifests.delta_manifests(snapshot)):
                if entry.kind is FileKind.ADD:
                    yield entry.partition, entry.bucket, entry.file.file_name

    def get_missing_lake_snapshot(self, latest_known: int | None) -> CommittedLakeSnapshot | None:
        return newest_tiered(self._table.context.snapshots, (latest_known or 0) + 1)

    def has_snapshot(self, snapshot_id: int) -> bool:
        return self._table.context.snapshots.exists(snapshot_id)

    def was_undone(self, snapshot_id: int, offsets_name: str | None) -> bool:
        return was_undone(self._table.context, snapshot_id, offsets_name)

    def has_rows(self) -> bool:
        latest = self._table.context.snapshots.latest()
        return latest is not None and latest.total_record_count != 0

    def held_offsets(self) -> dict[tuple[tuple[str, ...], int], int] | None:
        if not has_system_columns(self._table.schema):
            return None
        latest = self._table.context.snapshots.latest()
        return {} if latest is None else held_offsets(PaimonLakeSource(self._table.context), latest.id)

    def maintain(self) -> None:
        """Expire snapshots and partitions, and compact tables without buckets, according to the table's options.

        The newest snapshot of a round never expires here, whatever the options, because reads start from it.
        """
        descriptor = self._context.info.descriptor
        table = self._table.with_options({"write-only": "false"})
        if descriptor.option(_AUTO_COMPACTION) and table.context.options.bucket == UNAWARE:
            table.compact(expire=False)
        if descriptor.option(_AUTO_EXPIRE):
            table.maintenance().after_commit(keep_from=self._base)
            if table.schema.partition_keys and table.context.options.partition_expiration_time_ms is not None:
                table.expire_partitions()
