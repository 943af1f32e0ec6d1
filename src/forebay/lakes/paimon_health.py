"""The state of a Paimon table, from its metadata: see `forebay.lakes.health`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import numpy as np

from forebay.base.progress import OnProgress, no_progress
from forebay.base.quantity import Past
from forebay.lakes.health import (
    ORPHANS_LISTED_MAX,
    FileColumns,
    LakeFile,
    LakeHealth,
    LakeSnapshotInfo,
    LakeTag,
    Numbers,
    OrphanFiles,
    PlannedRewrite,
)
from forebay.paimon.commit.file_changes import DELETION_VECTORS
from forebay.paimon.compact.tasks import CompactPlanner
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.partition_path import value_text
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import SelectedRows, live_of
from forebay.paimon.table import Table

_EPOCH = dt.datetime(1970, 1, 1)


class PaimonHealth(LakeHealth):
    """A table of a Paimon catalog."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def _context(self) -> TableContext:
        return self._table.context

    @property
    def format(self) -> str:
        return "paimon"

    @property
    def location(self) -> str:
        return self._context.paths.root

    @property
    def partition_keys(self) -> Sequence[str]:
        return self._table.schema.partition_keys

    @property
    def options(self) -> dict[str, str]:
        return dict(self._table.schema.options)

    def latest(self) -> LakeSnapshotInfo | None:
        snapshot = self._context.snapshots.latest()
        return None if snapshot is None else _info(snapshot)

    def files(self) -> FileColumns | None:
        snapshot = self._context.snapshots.latest()
        return None if snapshot is None else self._columns(snapshot)

    def _columns(self, snapshot: Snapshot) -> FileColumns:
        manifests = self._context.manifests
        names = [manifest.file_name for manifest in manifests.data_manifests(snapshot)]
        parts = [
            part for part in live_of([SelectedRows.of_all(n, manifests.rows(n)) for n in names]) if len(part.positions)
        ]
        codes: dict[bytes, int] = {}
        partitions = []
        for part in parts:
            own = np.array([codes.setdefault(p, len(codes)) for p in part.rows.partitions], np.int64)
            partitions.append(own[part.rows.partition_codes[part.positions]])

        def joined(arrays: Sequence[Numbers]) -> Numbers:
            return np.concatenate([np.zeros(0, np.int64), *arrays])

        buckets, codes_of_files = joined([p.rows.buckets[p.positions] for p in parts]), joined(partitions)
        return FileColumns(
            joined([p.rows.file_sizes[p.positions] for p in parts]),
            joined([p.rows.row_counts[p.positions] for p in parts]),
            buckets,
            codes_of_files,
            [self._partition_name(partition) for partition in codes],
            self._deletes(snapshot, codes, codes_of_files, buckets),
            joined([p.rows.levels[p.positions] for p in parts]) if self._table.has_primary_key else None,
            lambda positions: self._describe(parts, positions),
        )

    def _deletes(
        self, snapshot: Snapshot, codes: Mapping[bytes, int], partitions: Numbers, buckets: Numbers
    ) -> Numbers:
        """For each file, whether its bucket has deletion vectors: which file they are for is in the index itself."""
        if not self._context.options.deletion_vectors_enabled:
            return np.zeros(len(buckets), np.int64)
        places = {
            codes[e.partition] << 32 | (e.bucket & 0xFFFFFFFF)
            for e in self._context.manifests.read_index(snapshot.index_manifest)
            if e.index_file.index_type == DELETION_VECTORS and e.partition in codes
        }
        return np.isin(partitions << 32 | (buckets & 0xFFFFFFFF), np.array(sorted(places), np.int64)).astype(np.int64)

    def _describe(self, parts: Sequence[SelectedRows], positions: Numbers) -> list[LakeFile]:
        starts = np.cumsum([0, *(len(part.positions) for part in parts)])
        files = []
        for position in positions.tolist():
            part = int(np.searchsorted(starts, position, side="right")) - 1
            rows = parts[part].positions[position - starts[part] : position - starts[part] + 1]
            [entry] = parts[part].rows.entries(rows)
            path = self._context.paths.data_file(entry.partition, entry.bucket, entry.file)
            files.append(LakeFile(path, _from_local(entry.file.creation_time)))
        return files

    def _partition_name(self, partition: bytes) -> str:
        fields, default = self._table.schema.partition_fields, self._context.options.partition_default_name
        values = zip(fields, row_layout(fields).decode(partition), strict=True)
        return "/".join(f"{f.name}={default if v is None else value_text(f.type, v, legacy=False)}" for f, v in values)

    def snapshots(self, skip: int, limit: int) -> tuple[list[LakeSnapshotInfo], int]:
        ids = sorted(self._context.snapshots.ids(), reverse=True)
        page = (self._context.snapshots.find(each) for each in ids[skip : skip + limit])
        return [_info(each) for each in page if each is not None], len(ids)  # some may have expired since

    def tags(self) -> list[LakeTag]:
        """The tags, by snapshot and name. `created` is None for tags that do not record it."""
        return [
            LakeTag(
                tag.name,
                tag.snapshot.id,
                _time(tag.snapshot.time_millis),
                None if tag.created is None else tag.created.astimezone(dt.UTC),
                tag.retained,
                tag.snapshot.total_record_count,
            )
            for tag in self._context.tags.tags()
        ]

    def planned(self, *, full: bool) -> list[PlannedRewrite]:
        """See `LakeHealth.planned`: one rewrite for each task of a compaction."""
        return [
            PlannedRewrite(
                self._partition_name(task.partition),
                task.bucket,
                len(task.input_files),
                sum(file.file_size for file in task.input_files),
                sum(file.row_count for file in task.input_files),
            )
            for task in CompactPlanner(self._context).plan(full=full)
        ]

    def orphans(self, older_than: Past, progress: OnProgress = no_progress) -> OrphanFiles:
        removal = self._table.remove_orphan_files(older_than=older_than, dry_run=True, progress=progress)
        return OrphanFiles(len(removal.files), removal.bytes, tuple(removal.files[:ORPHANS_LISTED_MAX]))

    def compact(self, *, full: bool, progress: OnProgress = no_progress) -> int | None:
        snapshot = self._table.new_handle().compact(full, progress=progress)
        return None if snapshot is None else snapshot.id

    def create_tag(self, name: str, snapshot_id: int | None = None, retained: dt.timedelta | None = None) -> None:
        self._table.create_tag(name, snapshot_id, retained)

    def delete_tag(self, name: str) -> None:
        self._table.new_handle().delete_tag(name)

    def readers(self) -> dict[str, int]:
        return self._context.consumers.all()


def _info(snapshot: Snapshot) -> LakeSnapshotInfo:
    return LakeSnapshotInfo(
        snapshot.id,
        _time(snapshot.time_millis),
        snapshot.commit_kind.value,
        snapshot.commit_user,
        snapshot.total_record_count,
        snapshot.delta_record_count,
        snapshot.schema_id,
    )


def _time(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def _from_local(milliseconds: int | None) -> dt.datetime | None:
    """The time that Paimon records as the local one of the writer's machine, taken to be in this machine's zone."""
    return None if milliseconds is None else (_EPOCH + dt.timedelta(milliseconds=milliseconds)).astimezone(dt.UTC)
