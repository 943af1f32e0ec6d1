"""A small partitioned primary-key table and messages about files that do not exist, for commit tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from forebay.base.ambient import SYSTEM_CLOCK, Clock, IdSource
from forebay.metadata import types
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement, DataIncrement
from forebay.paimon.format.file_meta import EMPTY_STATS, DataFileMeta, FileSource
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.snapshots import SnapshotManager

SCHEMA = TableSchema(
    id=0,
    fields=(
        DataField(0, "dt", types.string().not_null()),
        DataField(1, "id", types.bigint().not_null()),
        DataField(2, "v", types.string()),
    ),
    highest_field_id=2,
    partition_keys=("dt",),
    primary_keys=("dt", "id"),
    options={"bucket": "2", "commit.min-retry-wait": "1 ms"},
)
ROWS_EACH = 10
FAST = LocalFileIO(sync=False)

_PARTITIONS = row_layout(SCHEMA.partition_fields)
_KEYS = row_layout(SCHEMA.key_fields)


def partition(dt: str = "a") -> bytes:
    return _PARTITIONS.encode_one([dt])


def data_file(name: str, low: int = 0, high: int = 9, level: int = 0) -> DataFileMeta:
    """A file of ten rows with keys from `low` to `high`."""
    return DataFileMeta(
        file_name=name,
        file_size=1000,
        row_count=ROWS_EACH,
        min_key=_KEYS.encode_one([low]),
        max_key=_KEYS.encode_one([high]),
        key_stats=EMPTY_STATS,
        value_stats=EMPTY_STATS,
        min_sequence_number=0,
        max_sequence_number=9,
        schema_id=0,
        level=level,
        creation_time=1_700_000_000_000,
        delete_row_count=0,
        file_source=FileSource.APPEND,
    )


def append(*names: str, dt: str = "a", bucket: int = 0, buckets: int = 2) -> CommitMessage:
    """A message that adds level-0 files."""
    return CommitMessage(partition(dt), bucket, buckets, DataIncrement(tuple(map(data_file, names))))


def compact(
    before: Iterable[DataFileMeta], after: Iterable[DataFileMeta], dt: str = "a", bucket: int = 0
) -> CommitMessage:
    return CommitMessage(partition(dt), bucket, 2, compact=CompactIncrement(tuple(before), tuple(after)))


class Table:
    """A table in a directory, and committers on it."""

    def __init__(self, root: Path | str, io: FileIO = FAST, options: Mapping[str, str] | None = None) -> None:
        self.schema = SCHEMA.with_options({**SCHEMA.options, **(options or {})})
        self.io = io
        self.paths = PathFactory.of(str(root), self.schema)
        self.snapshots = SnapshotManager(FAST, self.paths)

    @classmethod
    def create(cls, root: Path | str, io: FileIO = FAST, options: Mapping[str, str] | None = None) -> Table:
        table = cls(root, io, options)
        SchemaManager(FAST, table.paths).create(table.schema)
        return table

    def context(self, io: FileIO, clock: Clock = SYSTEM_CLOCK, ids: IdSource | None = None) -> TableContext:
        """The table over another file system, clock or source of ids."""
        paths = self.paths if ids is None else PathFactory.of(self.paths.root, self.schema, self.paths.branch, ids)
        return TableContext(io, paths, self.schema, SchemaManager(io, paths), clock)

    def commit(
        self, user: str = "user", io: FileIO | None = None, clock: Clock = SYSTEM_CLOCK, ids: IdSource | None = None
    ) -> FileStoreCommit:
        return FileStoreCommit(self.context(io or self.io, clock, ids), user)

    def files(self, snapshot_id: int | None = None) -> list[str]:
        """The names of the data files in a snapshot, by default the latest, with a fresh eye (no cache)."""
        snapshot = self.snapshots.latest() if snapshot_id is None else self.snapshots.snapshot(snapshot_id)
        if snapshot is None:
            return []
        entries = ManifestStore(FAST, self.paths, self.schema).live_files(snapshot)
        return sorted(e.file.file_name for e in entries)

    def manifest_files(self) -> set[str]:
        return {status.path.rpartition("/")[2] for status in FAST.list(self.paths.manifest_directory)}

    def referenced_manifests(self) -> set[str]:
        """Names of all manifests and lists that some snapshot refers to."""
        store = ManifestStore(FAST, self.paths, self.schema)
        names: set[str] = set()
        for snapshot in self.snapshots.snapshots():
            names |= {snapshot.base_manifest_list, snapshot.delta_manifest_list}
            names |= {m.file_name for m in store.data_manifests(snapshot)}
            if snapshot.index_manifest:
                names.add(snapshot.index_manifest)
            if snapshot.changelog_manifest_list:
                names.add(snapshot.changelog_manifest_list)
                names |= {m.file_name for m in store.changelog_manifests(snapshot)}
        return names

    def check(self) -> None:
        """Every snapshot's record counts are those of its files, and follow on the snapshot before."""
        store = ManifestStore(FAST, self.paths, self.schema)
        before = None
        for snapshot in self.snapshots.snapshots():
            rows = sum(e.file.row_count for e in store.live_files(snapshot))
            assert snapshot.total_record_count == rows, f"snapshot {snapshot.id}"
            if before is not None:
                assert snapshot.id == before.id + 1
                assert snapshot.total_record_count == before.total_record_count + snapshot.delta_record_count
            before = snapshot
