"""Verifies an unused data directory: every file is read, nothing is changed.

Order: the directory's lock is taken (so no server can start in the meantime), then the metadata, the offset
checkpoints, and the log and state of each bucket are checked. The metadata is read from a copy, because SQLite writes
files beside it. LMDB's files are read without LMDB (`kv.lmdb.lmdb_file`). Damage ends only the checks that
depend on it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from forebay.base.errors import Conflict, CorruptData, ErrorCode, ForebayError, NotFound
from forebay.base.host import page_cache_witnesses
from forebay.base.locations import local_folder
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import PageCacheWitnesses
from forebay.lake.offsets import BucketOffsets
from forebay.log.checkpoints import OffsetCheckpoint, read_clean_shutdown
from forebay.log.log_ends import LogEndEvidence, StoredMarks, read_log_ends
from forebay.metadata.table import PhysicalTablePath, TableBucket
from forebay.server.journal.loss import LOSS_FILE, read_loss
from forebay.server.metadata.catalog import CatalogTable, LiveTable
from forebay.server.metadata_store import METADATA_FILE, LocalDatabaseFile, MetadataStore, StoredLakeSnapshot
from forebay.server.transactions.stages import StageFiles
from forebay.server.transactions.transaction import TransactionState
from forebay.verify.logs import LogImage, check_log
from forebay.verify.report import OnStep, Report, no_steps
from forebay.verify.states import StateCheck


def verify_directory(
    path: str | Path,
    *,
    scratch: str | Path | None = None,
    on_step: OnStep = no_steps,
    witnesses: PageCacheWitnesses = page_cache_witnesses,
) -> Report:
    """Check everything in the data directory `path`; return the report.

    `scratch`: a folder for copies of the metadata and for folds of changelogs, as large as the largest state; by
    default the system's temporary folder. Raises `NotFound` if there is no data directory, and `Conflict` while a
    server uses it. Damage is in the report and raises nothing.
    """
    directory = local_folder(path, "the data directory")
    with locked_directory(directory), tempfile.TemporaryDirectory(prefix="forebay-verify-", dir=scratch) as temporary:
        return DirectoryCheck(LocalFileSystem(), directory, Path(temporary), on_step, witnesses).check()


@contextmanager
def locked_directory(directory: str | Path) -> Iterator[None]:
    """Hold the lock of a data directory, without writing to it."""
    lock = os.path.join(directory, names.LOCK_FILE)
    if not os.path.exists(os.path.join(directory, METADATA_FILE)) and not os.path.exists(lock):
        raise NotFound(f"{directory} is not a data directory of a Forebay server", ErrorCode.CLIENT_ERROR)
    if not os.path.exists(lock):
        yield  # a copy without a lock file: no server has this directory open
        return
    descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise Conflict(
                f"a server uses the data directory {directory}: stop it, or verify it by its address "
                "(forebay verify -b HOST:PORT)",
                ErrorCode.CLIENT_ERROR,
            ) from e
        yield
    finally:
        os.close(descriptor)


class DirectoryMetadata:
    """The content of the metadata file."""

    def __init__(self, store: MetadataStore) -> None:
        """Raises `CorruptData`."""
        store.check_rows()
        store.databases()
        self.tables = {
            stored.info.table_id: LiveTable(
                CatalogTable(stored.info, stored.schemas, {p.partition_id: p for p in stored.partitions})
            )
            for stored in store.tables()
        }
        self.lake_snapshots: dict[int, tuple[StoredLakeSnapshot, ...]] = store.lake_snapshots()
        self.doomed = set(store.doomed_folders())
        self.transactions = store.transactions()


class DirectoryCheck:
    """One verification, or what `forebay.verify.repair` reads for a repair."""

    def __init__(
        self, fs: FileSystem, path: str, scratch: Path, on_step: OnStep, witnesses: PageCacheWitnesses
    ) -> None:
        self._fs = fs
        self._path = path
        self._scratch = scratch
        self._on_step = on_step
        self._witnesses = witnesses
        self._report = Report()
        self._ends: dict[TableBucket, LogImage] = {}

    def check(self) -> Report:
        """Check all files of the directory, and return the findings."""
        metadata = self.metadata()
        recovery_points = self._offsets(names.RECOVERY_POINTS_FILE)
        high_watermarks = self._offsets(names.HIGH_WATERMARKS_FILE)
        clean, not_closed = self._clean_shutdown()
        ends = self._log_ends(clean)
        for relative, bucket, evidence in self._each_bucket(metadata, recovery_points, clean, not_closed, ends):
            self._check_bucket(relative, bucket, evidence, metadata)
            self._check_high_watermark(bucket, high_watermarks.get(bucket, 0), evidence.clean)
        if metadata is not None:
            self._check_lake_offsets(metadata)
            self._check_stages(metadata)
            self._note_loss(metadata)
        return self._report

    def buckets(self) -> Iterator[tuple[str, TableBucket, LogEndEvidence, LiveTable]]:
        """Each bucket of a table: the folder of its log, what is known of its end, the table.

        Raises `CorruptData` if the files of the whole directory are damaged: then nothing is known.
        """
        metadata = self.metadata()
        points = self._offsets(names.RECOVERY_POINTS_FILE)
        clean, not_closed = self._clean_shutdown()
        if metadata is None or not self._report.is_clean:
            raise CorruptData(str(self._report.faults[0]), ErrorCode.CORRUPT_MESSAGE)
        folders = self._each_bucket(metadata, points, clean, not_closed, self._log_ends(clean))
        for relative, bucket, evidence in folders:
            if _exists(metadata, bucket):
                yield names.join(self._path, relative), bucket, evidence, metadata.tables[bucket.table_id]

    def _each_bucket(
        self,
        metadata: DirectoryMetadata | None,
        recovery_points: Mapping[TableBucket, int],
        clean: bool,
        not_closed: Collection[TableBucket],
        ends: Mapping[TableBucket, StoredMarks],
    ) -> Iterator[tuple[str, TableBucket, LogEndEvidence]]:
        """Each bucket that has a log, or should have one."""
        folders = self._log_folders(metadata)
        if metadata is not None:
            noted = {*(bucket for bucket, offset in recovery_points.items() if offset > 0), *ends}
            folders = sorted({*folders, *(_log_folder(metadata, each) for each in noted if _exists(metadata, each))})
        for relative in folders:
            folder = names.parse_tablet_folder(relative)
            if folder is not None:
                bucket = folder.bucket
                was_closed = clean and bucket in recovery_points and bucket not in not_closed
                yield (
                    relative,
                    bucket,
                    self._end_evidence(relative, recovery_points.get(bucket), was_closed, ends.get(bucket)),
                )

    def _note_loss(self, metadata: DirectoryMetadata) -> None:
        """List the end of each log as it was when a machine was lost that may have written more."""
        loss = read_loss(self._fs, self._path)
        if loss is None:
            return
        self._report.note(
            names.join(self._path, LOSS_FILE),
            f"made from the store after {loss.holder} was lost: what it acknowledged from {loss.since} on may be "
            "missing, behind the ends that follow",
        )
        for bucket, end in sorted(loss.ends.items()):
            if _exists(metadata, bucket):
                self._report.note(_log_folder(metadata, bucket), f"had its records up to offset {end} in the store")

    def _check_stages(self, metadata: DirectoryMetadata) -> None:
        """Staged rows of decided transactions must be there, for the server to write them; others are counted."""
        files = StageFiles(self._fs, names.join(self._path, names.STAGES_FOLDER))
        for transaction in metadata.transactions:
            if transaction.state == TransactionState.COMMITTED:
                continue
            folder = files.folder_of(transaction.transaction_id)
            stages = files.stages(transaction.transaction_id, settles=False)
            self._report.count("stages", len(stages))
            for attempt in transaction.attempts:
                stage = stages.get(attempt)
                if stage is None or not stage.is_finished:
                    reason = "is lost" if stage is None else "is damaged"
                    self._report.fault(
                        folder,
                        f"attempt '{attempt}' of version {transaction.version} of application "
                        f"'{transaction.application}', which is decided, {reason}",
                    )

    # ---- files of the whole directory -------------------------------------------------------------------------------

    def metadata(self) -> DirectoryMetadata | None:
        """The metadata, from a copy; None, and a fault, if it is damaged."""
        path = names.join(self._path, METADATA_FILE)
        self._report.count("metadata files")
        copies = self._scratch / "metadata"
        copies.mkdir()
        try:
            for suffix in ("", "-journal", "-wal"):
                if os.path.exists(path + suffix):
                    shutil.copyfile(path + suffix, copies / f"{METADATA_FILE}{suffix}")
            store = MetadataStore(LocalDatabaseFile(str(copies / METADATA_FILE)), is_new=False)
            try:
                return DirectoryMetadata(store)
            finally:
                store.close()
        except ForebayError as e:
            self._report.fault(path, e.message.replace(str(copies / METADATA_FILE), path))
        except (sqlite3.Error, OSError, ValueError, KeyError) as e:
            self._report.fault(path, f"{path} is damaged: {e!r}")
        return None

    def _offsets(self, name: str) -> dict[TableBucket, int]:
        self._report.count("offset checkpoints")
        try:
            return OffsetCheckpoint(self._fs, names.join(self._path, name)).read()
        except (ForebayError, ValueError) as e:
            self._report.fault(names.join(self._path, name), str(e))
            return {}

    def _log_ends(self, clean: bool) -> Mapping[TableBucket, StoredMarks]:
        """Where logs ended, as far as the last server has noted it."""
        stored = read_log_ends(self._fs, self._path, self._witnesses(self._path))
        for path, problem in stored.problems:
            # A power failure may leave a number half written.
            is_fault = clean or path in stored.same_cache
            (self._report.fault if is_fault else self._report.note)(path, f"{problem} (recovery points are used)")
        self._report.count("files of log ends", sum(names.is_log_ends_file(name) for name in os.listdir(self._path)))
        return stored.marks

    def _clean_shutdown(self) -> tuple[bool, frozenset[TableBucket]]:
        path = names.join(self._path, names.CLEAN_SHUTDOWN_FILE)
        try:
            not_closed = read_clean_shutdown(self._fs, self._path)
        except (CorruptData, ValueError):
            self._report.fault(path, f"{path} is damaged (the server takes its last end for a crash)")
            return False, frozenset()
        if not_closed is None:
            self._report.note(self._path, "the last server did not shut down: the unsynced ends of logs may be torn")
            return False, frozenset()
        return True, not_closed

    # ---- buckets ----------------------------------------------------------------------------------------------------

    def _log_folders(self, metadata: DirectoryMetadata | None) -> list[str]:
        """The log folders relative to the directory, without those that are about to be removed."""
        log_folders = []
        for folder, folders, _ in os.walk(self._path):
            relative = os.path.relpath(folder, self._path)
            if relative.count("/") > 3 or (metadata is not None and relative in metadata.doomed):
                folders.clear()
                continue
            log_folders += [os.path.join(relative, name) for name in folders if name.startswith("log-")]
        return sorted(log_folders)

    def _end_evidence(
        self, relative: str, recovery_point: int | None, clean: bool, marks: StoredMarks | None
    ) -> LogEndEvidence:
        """The evidence of a log's end: see `forebay.log.log_ends`."""
        if clean or marks is None:
            return LogEndEvidence(clean, recovery_point)
        witnesses = self._witnesses(self._path)
        is_same = not witnesses.isdisjoint(self._witnesses(names.join(self._path, relative)))
        return LogEndEvidence(clean, recovery_point, marks if is_same else marks._replace(written=None))

    def _check_bucket(
        self, relative: str, bucket: TableBucket, evidence: LogEndEvidence, metadata: DirectoryMetadata | None
    ) -> None:
        folder = names.join(self._path, relative)
        table = None if metadata is None else metadata.tables.get(bucket.table_id)
        if metadata is not None and (table is None or not _exists(metadata, bucket)):
            self._report.note(folder, "the metadata knows no such table or partition, so the folder is not checked")
            return
        self._report.count("buckets")
        try:
            log = check_log(self._fs, folder, evidence, self._report, self._on_step)
            self._ends[bucket] = log
            head, _, tail = folder.rpartition("/log-")
            kv_folder = f"{head}/kv-{tail}"
            if self._fs.exists(kv_folder):
                check = StateCheck(self._fs, kv_folder, log, table, self._scratch, self._report, self._on_step)
                check.run(evidence.clean, self._witnesses)
            elif table is not None and table.info.has_primary_key:
                self._report.note(kv_folder, "there is no key-value state: the server rebuilds it from the changelog")
        except ForebayError as e:
            self._report.fault(folder, e.message)

    def _check_high_watermark(self, bucket: TableBucket, offset: int, clean: bool) -> None:
        log = self._ends.get(bucket)
        if log is not None and log.is_whole and offset > log.end:
            text = f"{log.folder} ends at offset {log.end}, and readers have seen it up to {offset}"
            (self._report.fault if clean else self._report.note)(log.folder, text)

    # ---- the lake ---------------------------------------------------------------------------------------------------

    def _check_lake_offsets(self, metadata: DirectoryMetadata) -> None:
        """Check that the logs contain everything that lake snapshots hold of them."""
        for table_id, snapshots in metadata.lake_snapshots.items():
            for file in dict.fromkeys(file for snapshot in snapshots for file in snapshot.files):
                path = names.join(self._path, file.path)
                self._report.count("files of lake offsets")
                try:
                    data = self._fs.read_bytes(path)
                    if crc32c(data) != file.crc:
                        raise CorruptData(f"{path} does not have its checksum")
                    self._compare_ends(path, BucketOffsets.from_json(data), table_id)
                except ForebayError as e:
                    self._report.fault(path, e.message)

    def _compare_ends(self, path: str, offsets: BucketOffsets, table_id: int) -> None:
        if offsets.table_id != table_id:
            raise CorruptData(f"{path} has the offsets of table {offsets.table_id}, not of {table_id}")
        for bucket, offset in offsets.offsets.items():
            log = self._ends.get(bucket)
            if log is not None and log.is_whole and offset > log.end:
                raise CorruptData(
                    f"{path}: the lake has bucket {bucket} up to offset {offset}, and its log ends at {log.end}"
                )


def _exists(metadata: DirectoryMetadata, bucket: TableBucket) -> bool:
    table = metadata.tables.get(bucket.table_id)
    if table is None or not 0 <= bucket.bucket < table.info.bucket_count:
        return False
    return bucket.partition_id is None or bucket.partition_id in table.current.partitions_by_id


def _log_folder(metadata: DirectoryMetadata, bucket: TableBucket) -> str:
    table = metadata.tables[bucket.table_id]
    partitions = table.current.partitions_by_id
    partition = None if bucket.partition_id is None else partitions[bucket.partition_id].name
    return names.tablet_folder("log", PhysicalTablePath(table.info.path, partition), bucket)
