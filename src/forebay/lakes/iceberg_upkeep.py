"""Maintenance of an Iceberg table: compaction of small files and deletes, and expiry of snapshots and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyarrow.fs import FileSelector
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate, TableRequirement
from pyiceberg.typedef import Record

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import Conflict, UnsupportedOperation
from forebay.base.lake_events import LakeCompaction, LakeRemoval, tell
from forebay.base.progress import OnProgress, no_progress
from forebay.base.quantity import Past, past_ms
from forebay.lakes.iceberg_commit import Change, commit
from forebay.lakes.iceberg_files import WrittenFile, remove_files
from forebay.lakes.iceberg_keys import Deletes
from forebay.lakes.iceberg_layout import LiveFile, live_files
from forebay.lakes.iceberg_rows import live_batches
from forebay.lakes.iceberg_writer import BUFFER_BYTES, FilePlace, RowFiles

COMPACTION_USER = "forebay-compaction"
FILES_MIN = 5
"""The number of small files, or of delete files, at which a bucket is compacted."""

_SMALL_SHARE = 0.75
_TARGET_BYTES, _TARGET_BYTES_DEFAULT = "write.target-file-size-bytes", 512 << 20
_AGE, _AGE_DEFAULT = "history.expire.max-snapshot-age-ms", 5 * 24 * 3600 * 1000
_KEEP, _KEEP_DEFAULT = "history.expire.min-snapshots-to-keep", 1


@dataclass(frozen=True)
class _Rewrite:
    """Files of one bucket, and the `files` that replace them."""

    partition: Record
    inputs: tuple[LiveFile, ...]
    files: tuple[WrittenFile, ...]


class Upkeep:
    """Maintains one table. `load` loads the current table."""

    def __init__(self, load: Callable[[], Table], clock: Clock = SYSTEM_CLOCK) -> None:
        self._load, self._clock = load, clock

    # -- compaction ---------------------------------------------------------------------------------------------------

    def compact(
        self,
        files_min: int = FILES_MIN,
        partitions: Iterable[Record] | None = None,
        progress: OnProgress = no_progress,
    ) -> int | None:
        """Rewrite buckets with many small files or deletes, without deleted rows; return the new snapshot's id.

        `partitions` (values of the partition spec) limits it to these; `progress` counts them. Returns None if there
        was nothing to do, or if another writer changed the same files meanwhile.
        """
        table = self._load()
        if partitions is None:
            groups = _by_partition(table)
        else:
            head = table.current_snapshot()
            groups = {p: live_files(table.metadata, head, table.io, partition=p) for p in partitions}
        rewrites: list[_Rewrite] = []
        try:
            for done, (partition, files) in enumerate(groups.items()):
                progress(done, len(groups))
                selection = _worth_rewriting(table, files, files_min)
                if selection:
                    began = self._clock.monotonic()
                    rewrites.append(_rewrite(table, partition, selection))
                    tell(LakeCompaction(".".join(table.name()), self._clock.monotonic() - began))
            return self._commit(rewrites) if rewrites else None
        except Conflict:
            remove_files(table.io, [f.path for r in rewrites for f in r.files])
            return None

    def plan(self, files_min: int = FILES_MIN) -> list[tuple[Record, list[LiveFile]]]:
        """The buckets that `compact` would rewrite now, and the files of each that it would replace."""
        table = self._load()
        candidates = (
            (partition, _worth_rewriting(table, files, files_min)) for partition, files in _by_partition(table).items()
        )
        return [(partition, selection) for partition, selection in candidates if selection]

    def _commit(self, rewrites: Sequence[_Rewrite]) -> int:
        inputs = [f for r in rewrites for f in r.inputs]

        def prepare(table: Table) -> Change:
            live: list[LiveFile] = []
            for r in rewrites:
                current = live_files(table.metadata, table.current_snapshot(), table.io, partition=r.partition)
                same = {(f.file.file_path, f.sequence, f.deletes) for f in current}
                if not same.issuperset((f.file.file_path, f.sequence, f.deletes) for f in r.inputs):
                    raise Conflict("files that were compacted have changed meanwhile")
                live += current
            spec_id = table.metadata.default_spec_id
            added = [file.data_file(spec_id) for r in rewrites for file in r.files]
            removed = frozenset(f.file.file_path for f in inputs) | _unneeded_deletes(table, inputs, live)
            return Change(Operation.REPLACE, added, removed, {"commit-user": COMPACTION_USER})

        return commit(self._load, prepare, self._clock)[1].snapshot_id

    # -- expiry -------------------------------------------------------------------------------------------------------

    def expire(self, older_than: Past | None = None, keep: int | None = None) -> list[int]:
        """Expire old snapshots and delete files that no other snapshot needs; return the ids of expired snapshots.

        `older_than` is a time, or a timedelta before now. The default follows the table's properties: snapshots older
        than `history.expire.max-snapshot-age-ms`, except the newest `history.expire.min-snapshots-to-keep`. Snapshots
        of branches and tags are kept.
        """
        table = self._load()
        properties = table.properties
        age = int(properties.get(_AGE, _AGE_DEFAULT))
        limit = self._clock.now_ms() - age if older_than is None else self._past_ms(older_than)
        count_min = int(properties.get(_KEEP, _KEEP_DEFAULT)) if keep is None else keep
        referenced = {ref.snapshot_id for ref in table.metadata.refs.values()}
        ordered = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
        old = [s for s in ordered[: max(0, len(ordered) - count_min)] if s.timestamp_ms < limit]
        expired = [s for s in old if s.snapshot_id not in referenced]
        head = table.current_snapshot()
        if not expired or head is None:
            return []
        ids = [s.snapshot_id for s in expired]
        unused: list[str] | FileNotFoundError
        try:
            unused = _unused_files(table.io, expired, [s for s in ordered if s.snapshot_id not in set(ids)])
        except FileNotFoundError as e:
            unused = e
        # To read manifests may take long, and a catalog knows no requirement that there are no other branches and tags.
        before, table = table.metadata, self._load()
        if before.refs != table.metadata.refs or any(table.metadata.snapshot_by_id(i) is None for i in ids):
            return []  # another process has tagged or expired some of them; the next round's maintenance looks again
        if isinstance(unused, FileNotFoundError):
            raise unused
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=before.table_uuid),
            *(
                AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
                for name, ref in before.refs.items()
            ),
        )
        try:
            update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids})
            table.catalog.commit_table(table, requirements, (update,))
        except CommitFailedException:
            return []  # another commit was faster; the next round's maintenance retries
        remove_files(table.io, unused)
        tell(LakeRemoval(".".join(table.name()), len(ids), len(unused)))
        return ids

    def _past_ms(self, older_than: Past) -> int:
        return past_ms(older_than, self._clock.now_ms(), "older_than")

    # -- left-over files ----------------------------------------------------------------------------------------------

    def remove_orphan_files(self, older_than: Past, *, dry_run: bool = False) -> list[str]:
        """Delete unreferenced files not modified since `older_than` (with `dry_run`: none); return their paths.

        `older_than` is a time, or a timedelta before now; it must be before the start of any round that may still be
        running. Metadata files (JSON) are kept. Raises `UnsupportedOperation` if pyiceberg does not access the files
        through Arrow.
        """
        limit_ms = self._past_ms(older_than)
        table = self._load()
        if not isinstance(table.io, PyArrowFileIO):
            raise UnsupportedOperation(f"files behind {type(table.io).__name__} cannot be listed")
        scheme, host, root = PyArrowFileIO.parse_location(table.location(), table.io.properties)
        system = table.io.fs_by_scheme(scheme, host)
        listed = [
            f
            for f in system.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
            if f.is_file and f.extension in ("parquet", "avro") and (f.mtime_ns or 0) < limit_ms * 1_000_000
        ]
        # References are read after the listing, so that files of rounds committed in between count as used.
        table = self._load()
        manifests = _manifests_of(table.io, table.metadata.snapshots)
        used = {*manifests, *_paths_in(table.io, manifests.values())}
        used |= {s.manifest_list for s in table.metadata.snapshots if s.manifest_list}
        used_paths = {PyArrowFileIO.parse_location(path, table.io.properties)[2] for path in used}
        orphans = [f.path for f in listed if f.path not in used_paths]
        for path in () if dry_run else orphans:
            system.delete_file(path)
        if not dry_run:
            sizes = {f.path: f.size or 0 for f in listed}
            size = sum(sizes[path] for path in orphans)
            tell(LakeRemoval(".".join(table.name()), orphans=len(orphans), orphan_bytes=size))
        return orphans


def _by_partition(table: Table) -> dict[Record, list[LiveFile]]:
    """The files of the current snapshot that the current partition spec can replace, by partition."""
    groups: dict[Record, list[LiveFile]] = {}
    for f in live_files(table.metadata, table.current_snapshot(), table.io):
        if f.file.spec_id == table.metadata.default_spec_id:
            groups.setdefault(f.file.partition, []).append(f)
    return groups


def _worth_rewriting(table: Table, files: Sequence[LiveFile], files_min: int) -> list[LiveFile]:
    """The files of a bucket that are worth rewriting together."""
    target = int(table.properties.get(_TARGET_BYTES, _TARGET_BYTES_DEFAULT))
    small = [f for f in files if f.file.file_size_in_bytes < target * _SMALL_SHARE]
    deletes = {d for f in files for d in f.deletes}
    if len(small) < files_min and len(deletes) < files_min:
        return []
    return [f for f in files if f.deletes or f in small]


def _rewrite(table: Table, partition: Record, files: Sequence[LiveFile]) -> _Rewrite:
    """Write the live rows of `files` into new files."""
    schema = table.metadata.schema()
    deletes = Deletes(table.io, {f.file.file_path: f.deletes for f in files}, schema)
    width = len(table.metadata.spec().fields)
    output = RowFiles(table.io, table, FilePlace(table, tuple(partition[i] for i in range(width))))
    try:
        rows = (b for f in files for b in live_batches(table.io, f.file.file_path, schema.fields, deletes))
        for batch in _larger(rows):
            output.write(batch)
        new_files = tuple(output.close())
    except BaseException:
        output.abort()
        raise
    return _Rewrite(partition, tuple(files), new_files)


def _unneeded_deletes(table: Table, rewritten: Sequence[LiveFile], live: Iterable[LiveFile]) -> frozenset[str]:
    """The delete files that apply only to the files `rewritten`; `live` are all files of their buckets."""
    deletes = {d for f in rewritten for d in f.deletes}
    if any(d.equality_ids for d in deletes):  # these may apply to the whole table
        live = live_files(table.metadata, table.current_snapshot(), table.io)
    paths = {f.file.file_path for f in rewritten}
    in_use = {d.path for f in live if f.file.file_path not in paths for d in f.deletes}
    return frozenset(d.path for d in deletes) - in_use


def _larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches large enough for row groups."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= BUFFER_BYTES:
            yield pa.concat_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.concat_batches(pending)


def _unused_files(io: FileIO, expired: Sequence[Snapshot], others: Sequence[Snapshot]) -> list[str]:
    """The files of the `expired` snapshots that none of the `others` has: rows, deletes, manifests and lists."""
    theirs = _manifests_of(io, expired)
    if all(b.parent_snapshot_id == a.snapshot_id for a, b in pairwise([*expired, *others])):
        # Files that the oldest kept snapshot lacks are in no later one.
        ours = _manifests_of(io, others[:1])
        files = set(_removed_paths(io, [*expired, *others[:1]]))
    else:
        ours = _manifests_of(io, others)
        files = set(_paths_in(io, (m for path, m in theirs.items() if path not in ours)))
        files -= set(_paths_in(io, ours.values()))
    lists = {s.manifest_list for s in expired if s.manifest_list} - {s.manifest_list for s in others}
    return [*sorted(files), *sorted(theirs.keys() - ours.keys()), *sorted(lists)]


def _removed_paths(io: FileIO, snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """The files that these snapshots, each the parent of the next, have removed from the table."""
    for snapshot in snapshots:
        for manifest in snapshot.manifests(io):
            if manifest.added_snapshot_id != snapshot.snapshot_id or not manifest.deleted_files_count:
                continue
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.status is ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry.data_file.file_path


def _manifests_of(io: FileIO, snapshots: Sequence[Snapshot]) -> dict[str, ManifestFile]:
    return {m.manifest_path: m for s in snapshots for m in s.manifests(io)}


def _paths_in(io: FileIO, manifests: Iterable[ManifestFile]) -> Iterator[str]:
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
            yield entry.data_file.file_path
