"""Tiering into Iceberg: the committer that creates one snapshot from the writers' files.

The newest tiering snapshot has the tag `TIERED_TAG`, which moves in the same step that makes the snapshot visible. So
it never expires, and fencing does not depend on snapshot retention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Record

from forebay.base.errors import Conflict, ErrorCode, NotFound
from forebay.codec.kv.key_index import KeyIndex
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
from forebay.lakes.iceberg_commit import Change, commit
from forebay.lakes.iceberg_errors import lake_errors
from forebay.lakes.iceberg_files import (
    NO_POSITIONS,
    Positions,
    WrittenFile,
    read_positions,
    read_rows,
    remove_files,
    write_positions,
)
from forebay.lakes.iceberg_history import (
    TIERED_TAG,
    USER_PROPERTY,
    Held,
    held_offsets,
    newest_tiered,
    sequence_of,
    summary_of,
    was_undone,
)
from forebay.lakes.iceberg_keys import KeyColumns, locate
from forebay.lakes.iceberg_layout import live_files
from forebay.lakes.iceberg_tables import check_fits, load_table, opened
from forebay.lakes.iceberg_upkeep import Upkeep
from forebay.lakes.iceberg_writer import FilePlace, IcebergLakeWriter, IcebergWriteResult
from forebay.metadata.table import TableInfo, TablePath

_AUTO_COMPACTION, _AUTO_EXPIRE = "table.datalake.auto-compaction", "table.datalake.auto-expire-snapshot"


def current_table(options: Mapping[str, str], path: TablePath) -> Table:
    """The current lake table. Raises `NotFound`."""
    with opened(options) as catalog:
        return load_table(catalog, path)


class IcebergTieringFactory(LakeTieringFactory):
    """Creates writers and committers for the tables of one catalog."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def validate(self, info: TableInfo) -> None:
        check_fits(current_table(self._options, info.path), info.descriptor, info.path)

    def create_writer(self, context: WriterContext) -> LakeWriter:
        return IcebergLakeWriter(partial(current_table, self._options, context.info.path), context)

    def create_committer(self, context: CommitterContext) -> LakeCommitter:
        current_table(self._options, context.info.path)
        return IcebergLakeCommitter(self._options, context)


class IcebergLakeCommitter(LakeCommitter):
    """Commits rounds as `TIERING_USER`. Other commits (compaction jobs) may come in between."""

    def __init__(self, options: Mapping[str, str], context: CommitterContext) -> None:
        self._options, self._context = options, context
        self._base = context.base
        self._touched: set[Record] = set()

    def commit(self, results: Sequence[IcebergWriteResult], properties: Mapping[str, str]) -> LakeCommitResult:
        """See `LakeCommitter.commit`. The fencing check is repeated on each attempt against the newest metadata.

        Also raises `Conflict` if the table was recreated since the writers opened it.
        """
        snapshot_properties = {
            **properties,
            USER_PROPERTY: TIERING_USER,
            **self._context.properties,
        }
        moves = _MovedDeletes(results)

        def prepare(table: Table) -> Change:
            newest = newest_tiered(table)
            # Only the base can be a newest tiering snapshot that no longer exists: other software may expire it.
            if newest is not None or not self._base_has_expired(table):
                check_base(self._context, self._base, newest)
            self._check_table(table, results)
            deletes = moves.current_deletes(table)
            added = [file.data_file(r.spec_id) for r in results for file in r.files]
            added += [file.data_file(spec_id) for spec_id, file in deletes]
            kind = Operation.OVERWRITE if deletes else Operation.APPEND
            return Change(kind, added, properties=snapshot_properties, tag=TIERED_TAG)

        with opened(self._options) as catalog:
            table, snapshot = commit(partial(load_table, catalog, self._context.info.path), prepare)
        moves.remove_unused(table)
        self._base = snapshot.snapshot_id
        self._touched |= {Record(*r.partition) for r in results if r.files or r.deletes is not None}
        return LakeCommitResult(snapshot.snapshot_id, snapshot.snapshot_id, stats=_stats(snapshot))

    def _base_has_expired(self, table: Table) -> bool:
        metadata = table.metadata
        if self._base is None or not metadata.snapshots or metadata.snapshot_by_id(self._base) is not None:
            return False
        return not was_undone(table, self._base)

    def _check_table(self, table: Table, results: Sequence[IcebergWriteResult]) -> None:
        if any(r.table_uuid != str(table.metadata.table_uuid) for r in results):
            raise Conflict(
                f"the lake table {self._context.info.path} was recreated while the round was written; "
                "nothing was committed",
                ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
            )

    @lake_errors("a file of the lake")
    def abort(self, results: Sequence[IcebergWriteResult]) -> None:
        """Delete the files of uncommitted results; files of a snapshot are always kept."""
        table = current_table(self._options, self._context.info.path)
        committed = _committed_paths(table, self._context.base)
        remove_files(table.io, [path for r in results for path in r.paths if path not in committed])

    def get_missing_lake_snapshot(self, latest_known: int | None) -> CommittedLakeSnapshot | None:
        """See `LakeCommitter.get_missing_lake_snapshot`. Age is compared by sequence number: ids are random."""
        table = current_table(self._options, self._context.info.path)
        metadata, newest = table.metadata, newest_tiered(table)
        if newest is None or newest.snapshot_id == latest_known:
            return None
        latest = None if latest_known is None else metadata.snapshot_by_id(latest_known)
        candidate = metadata.snapshot_by_id(newest.snapshot_id)
        is_newer = latest is None or candidate is None or sequence_of(candidate) > sequence_of(latest)
        return newest if is_newer else None

    def has_snapshot(self, snapshot_id: int) -> bool:
        return current_table(self._options, self._context.info.path).metadata.snapshot_by_id(snapshot_id) is not None

    def was_undone(self, snapshot_id: int, offsets_name: str | None) -> bool:
        return was_undone(current_table(self._options, self._context.info.path), snapshot_id)

    def has_rows(self) -> bool:
        head = current_table(self._options, self._context.info.path).current_snapshot()
        return head is not None and summary_of(head).get("total-records") != "0"

    @lake_errors("the metadata of the lake")
    def held_offsets(self) -> Held | None:
        table = current_table(self._options, self._context.info.path)
        head = table.current_snapshot()
        return {} if head is None else held_offsets(table, head)

    def can_restore(self, snapshot_id: int) -> bool:
        return self.has_snapshot(snapshot_id)

    @lake_errors("the metadata of the lake")
    def restore(self, snapshot_id: int, newest: int | None) -> None:
        """See `LakeCommitter.restore`. Moves the main branch back to the snapshot; Iceberg keeps undone snapshots."""
        with opened(self._options) as catalog:
            table = load_table(catalog, self._context.info.path)
            current = newest_tiered(table)
            if (None if current is None else current.snapshot_id) != newest:
                raise Conflict(
                    f"the lake table {self._context.info.path} has another newest tiering snapshot by now: look at it "
                    "again (forebay tiering status), and decide then"
                )
            with table.manage_snapshots() as change:
                change.set_current_snapshot(snapshot_id)

    def maintain(self) -> None:
        """Compact buckets with many small files or deletes, and expire snapshots, according to the table's options.

        Only the buckets of rounds that this committer committed are considered; others have not changed.
        """
        descriptor = self._context.info.descriptor
        with opened(self._options) as catalog:
            upkeep = Upkeep(partial(load_table, catalog, self._context.info.path))
            if descriptor.option(_AUTO_COMPACTION):
                upkeep.compact(partitions=self._touched)
            if descriptor.option(_AUTO_EXPIRE):
                upkeep.expire()


def _stats(snapshot: Snapshot) -> TieringStats:
    """Exact statistics, unless the table has equality deletes: the number of rows they remove is unknown."""
    summary = summary_of(snapshot)
    numbers = [
        summary.get(f"total-{name}") for name in ("records", "position-deletes", "equality-deletes", "files-size")
    ]
    rows, positions, equalities, size = (None if n is None else int(n) for n in numbers)
    is_exact = rows is not None and positions is not None and equalities == 0
    return TieringStats(file_bytes=size, rows=(rows or 0) - (positions or 0) if is_exact else None)


# ---- files ----------------------------------------------------------------------------------------------------------


def _committed_paths(table: Table, base: int | None) -> set[str]:
    """The files of all snapshots since `base`, and of the newest one."""
    base_snapshot = None if base is None else table.metadata.snapshot_by_id(base)
    oldest = -1 if base_snapshot is None else sequence_of(base_snapshot)
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        if sequence_of(snapshot) > oldest or snapshot.snapshot_id == table.metadata.current_snapshot_id
        for manifest in snapshot.manifests(table.io)
    }
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


class _MovedDeletes:
    """The position deletes of a round, moved to the rows' positions at the time of the commit.

    Writers found the rows in the files of a snapshot. If a compaction has rewritten these since, the rows have moved:
    their keys are read from the old files, and looked up in the new ones.
    """

    def __init__(self, results: Sequence[IcebergWriteResult]) -> None:
        self._results = [r for r in results if r.deletes is not None]
        self._input_paths = {r.deletes.path for r in self._results if r.deletes is not None}
        self._new_paths: set[str] = set()
        self._used: set[str] = set()

    def current_deletes(self, table: Table) -> list[tuple[int, WrittenFile]]:
        """The delete files for the table's head, each with the id of its partition spec."""
        files = [(r.spec_id, self._current(table, r)) for r in self._results]
        self._used = {file.path for _, file in files}
        return files

    def _current(self, table: Table, result: IcebergWriteResult) -> WrittenFile:
        assert result.deletes is not None
        head = table.current_snapshot()
        if not result.referenced or head is None or head.snapshot_id == result.snapshot:
            return result.deletes
        record = Record(*result.partition)
        files = live_files(table.metadata, head, table.io, partition=record)
        live_paths = {f.file.file_path for f in files}
        moved = frozenset(result.referenced) - live_paths
        if not moved:
            return result.deletes
        every = moved | live_paths | {f.path for f in result.files}
        positions = read_positions(table.io, result.deletes.path, "PARQUET", every)
        keys, index = _keys_of(table, {path: positions.pop(path) for path in moved})
        for path, new_positions in locate(table.io, files, keys, index, table.metadata.schema()).items():
            positions[path] = np.concatenate([positions.get(path, NO_POSITIONS), new_positions])
        new_path = FilePlace(table, result.partition).new_path("deletes")
        self._new_paths.add(new_path)
        return write_positions(table.io, new_path, result.partition, positions, table.properties)

    def remove_unused(self, table: Table) -> None:
        """Delete the delete files that the committed snapshot does not use."""
        remove_files(table.io, sorted((self._new_paths | self._input_paths) - self._used))


def _keys_of(table: Table, rows: Mapping[str, Positions]) -> tuple[KeyColumns, KeyIndex]:
    """The keys of rows in data files that may no longer be in a snapshot. Raises `Conflict` if a file is gone."""
    schema = table.metadata.schema()
    partitions = {f.source_id for f in table.metadata.spec().fields if str(f.transform) == "identity"}
    keys = KeyColumns([schema.find_field(i) for i in schema.identifier_field_ids if i not in partitions])
    index = KeyIndex()
    for path, positions in rows.items():
        try:
            for start, batch in read_rows(table.io, path, keys.fields):
                first, last = np.searchsorted(positions, [start, start + batch.num_rows])
                index.add(keys.encode(batch.take(pa.array(positions[first:last] - start))))
        except NotFound as e:
            raise Conflict(
                f"data file {path} was compacted and removed while the round was written; repeat the round"
            ) from e
    return keys, index
