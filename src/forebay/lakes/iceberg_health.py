"""The state of an Iceberg table, by pyiceberg: see `forebay.lakes.health`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record

from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound
from forebay.base.progress import OnProgress, no_progress
from forebay.base.quantity import Past
from forebay.lake.source import BUCKET_COLUMN, UNAWARE_BUCKET
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
from forebay.lakes.iceberg_errors import lake_errors
from forebay.lakes.iceberg_layout import live_files
from forebay.lakes.iceberg_tables import load_table, opened
from forebay.lakes.iceberg_upkeep import FILES_MIN, Upkeep
from forebay.metadata.table import TablePath


class IcebergHealth(LakeHealth):
    """A table of an Iceberg catalog, given by pyiceberg's options."""

    def __init__(self, options: Mapping[str, str], path: str) -> None:
        """Raises `NotFound`."""
        self._options, self._path = options, TablePath.parse(path)
        with self._opened() as table:
            self._table = table

    @contextmanager
    def _opened(self) -> Iterator[Table]:
        with opened(self._options) as catalog, lake_errors(f"Iceberg table {self._path}"):
            yield load_table(catalog, self._path)

    @property
    def format(self) -> str:
        return "iceberg"

    @property
    def location(self) -> str:
        return self._table.location()

    @property
    def partition_keys(self) -> Sequence[str]:
        return [field.name for field in self._table.spec().fields]

    @property
    def options(self) -> dict[str, str]:
        return dict(self._table.properties)

    def latest(self) -> LakeSnapshotInfo | None:
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else _info(snapshot)

    def files(self) -> FileColumns | None:
        """The data files of the current snapshot, read from its manifests; None before the first snapshot."""
        table = self._table
        snapshot = table.current_snapshot()
        if snapshot is None:
            return None
        with lake_errors(f"Iceberg table {self._path}"):
            live = live_files(table.metadata, snapshot, table.io)
        place_of, codes = _Places(table.metadata), dict[str, int]()
        places = [place_of(f.file) for f in live]
        paths = [f.file.file_path for f in live]

        def numbers(values: Iterator[int]) -> Numbers:
            return np.fromiter(values, np.int64, len(live))

        return FileColumns(
            numbers(f.file.file_size_in_bytes for f in live),
            numbers(f.file.record_count for f in live),
            numbers(bucket for _, bucket in places),
            numbers(codes.setdefault(partition, len(codes)) for partition, _ in places),
            list(codes),
            numbers(len(f.deletes) for f in live),
            None,
            lambda positions: [LakeFile(paths[i]) for i in positions.tolist()],
        )

    def snapshots(self, skip: int, limit: int) -> tuple[list[LakeSnapshotInfo], int]:
        metadata = self._table.metadata
        newest_first = sorted(metadata.snapshots, key=lambda s: (s.sequence_number or 0, s.timestamp_ms), reverse=True)
        return [_info(each) for each in newest_first[skip : skip + limit]], len(newest_first)

    def tags(self) -> list[LakeTag]:
        """The tags, by snapshot time and name. Iceberg does not record when a tag was created."""
        metadata, tags = self._table.metadata, []
        for name, ref in metadata.refs.items():
            if ref.snapshot_ref_type is not SnapshotRefType.TAG:
                continue
            snapshot = metadata.snapshot_by_id(ref.snapshot_id)
            info = None if snapshot is None else _info(snapshot)
            retention = None if ref.max_ref_age_ms is None else dt.timedelta(milliseconds=ref.max_ref_age_ms)
            tags.append(
                LakeTag(
                    name,
                    ref.snapshot_id,
                    None if info is None else info.at,
                    None,
                    retention,
                    None if info is None else info.rows,
                )
            )
        return sorted(tags, key=lambda tag: (tag.at or dt.datetime.min.replace(tzinfo=dt.UTC), tag.name))

    def planned(self, *, full: bool) -> list[PlannedRewrite]:
        """See `LakeHealth.planned`. Without `full`, only buckets with `FILES_MIN` small files or delete files."""
        with self._upkeep() as upkeep:
            plan = upkeep.plan(1 if full else FILES_MIN)
        place_of = _Places(self._table.metadata)
        return [
            PlannedRewrite(
                *place_of(files[0].file),
                len(files),
                sum(f.file.file_size_in_bytes for f in files),
                sum(f.file.record_count for f in files),
            )
            for _, files in plan
        ]

    @contextmanager
    def _upkeep(self) -> Iterator[Upkeep]:
        with opened(self._options) as catalog, lake_errors(f"Iceberg table {self._path}"):
            yield Upkeep(partial(load_table, catalog, self._path))

    def orphans(self, older_than: Past, progress: OnProgress = no_progress) -> OrphanFiles:
        with self._upkeep() as upkeep:
            paths = upkeep.remove_orphan_files(older_than, dry_run=True)
        return OrphanFiles(len(paths), None, tuple(paths[:ORPHANS_LISTED_MAX]))

    def compact(self, *, full: bool, progress: OnProgress = no_progress) -> int | None:
        with self._upkeep() as upkeep:
            return upkeep.compact(1 if full else FILES_MIN, progress=progress)

    def create_tag(self, name: str, snapshot_id: int | None = None, retained: dt.timedelta | None = None) -> None:
        """See `LakeHealth.create_tag`. Raises `InvalidRequest` for an empty name or `main`, which is the branch."""
        if not name.strip() or name == "main":
            raise InvalidRequest(f"a tag cannot be called {name!r}")
        with self._opened() as table:
            snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
            if snapshot is None:
                which = "no snapshot yet" if snapshot_id is None else f"no snapshot {snapshot_id}"
                raise NotFound(f"table {self._path} has {which}")
            if name in table.metadata.refs:
                raise AlreadyExists(f"table {self._path} has a tag or branch {name!r} already")
            max_age_ms = None if retained is None else round(retained.total_seconds() * 1000)
            self._change(table, lambda change: change.create_tag(snapshot.snapshot_id, name, max_age_ms))

    def delete_tag(self, name: str) -> None:
        with self._opened() as table:
            ref = table.metadata.refs.get(name)
            if ref is None or ref.snapshot_ref_type is not SnapshotRefType.TAG:
                raise NotFound(f"table {self._path} has no tag {name!r}")
            self._change(table, lambda change: change.remove_tag(name))

    def _change(self, table: Table, make: Callable[[ManageSnapshots], Any]) -> None:
        with table.manage_snapshots() as change:
            make(change)


class _Places:
    """The partition's name and the bucket of a data file, of any partition spec of the table."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._specs, self._schema = metadata.specs(), metadata.schema()
        self._cache: dict[tuple[int, Record], tuple[str, int]] = {}

    def __call__(self, file: DataFile) -> tuple[str, int]:
        key = file.spec_id, file.partition
        place = self._cache.get(key)
        if place is None:
            place = self._cache[key] = self._place(file)
        return place

    def _place(self, file: DataFile) -> tuple[str, int]:
        bucket, names = UNAWARE_BUCKET, []
        for i, field in enumerate(self._specs[file.spec_id].fields):
            value = file.partition[i]
            is_bucket = field.name == BUCKET_COLUMN or isinstance(field.transform, BucketTransform)
            if is_bucket and value is not None:
                bucket = int(value)
            elif not is_bucket:
                text = field.transform.to_human_string(self._schema.find_type(field.source_id), value)
                names.append(f"{field.name}={text}")
        return "/".join(names), bucket


def _info(snapshot: Snapshot) -> LakeSnapshotInfo:
    summary = snapshot.summary
    properties = {} if summary is None else summary.additional_properties
    added, deleted = (properties.get(name) for name in ("added-records", "deleted-records"))
    return LakeSnapshotInfo(
        snapshot.snapshot_id,
        dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC),
        "" if summary is None else summary.operation.value,
        properties.get("commit-user"),
        int(properties["total-records"]) if "total-records" in properties else None,
        int(added or 0) - int(deleted or 0) if added is not None or deleted is not None else None,
        snapshot.schema_id,
    )
