"""The files of a data directory that record the state of all its logs.

Nouns: an *offset checkpoint* maps table buckets to offsets; there is one for the recovery points (below them the logs
are synced) and one for the high watermarks. The *clean-shutdown marker* says that every log was closed gracefully after
its recovery point was checkpointed. The *lock* keeps a second server out.

Rules:
- A checkpoint is replaced as a whole, and read as a whole or not at all: a damaged one raises `CorruptData` and is
  never treated as empty, because then damage in a log would look like the torn tail that recovery may truncate.
- A recovery point may be too low, never too high: checkpoint `LogTablet.synced_offset`, and lower it before a
  truncation.
- The marker is written last and removed first: `take_clean_shutdown` removes it, durably, before any log is opened.

Checkpoint file, UTF-8 lines, so that people can read it:

    forebay offset checkpoint 1
    <table id> <partition id, or -> <bucket> <offset>       one line per bucket, sorted
    crc32c <8 hexadecimal digits>                           of all bytes before this line

Prior art: Kafka's and Fluss's checkpoint files, with a checksum instead of a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forebay.base.errors import Conflict, CorruptData, ErrorCode
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import FileLock, FileMissing, FileSystem
from forebay.metadata.table import TableBucket

_HEAD = "forebay offset checkpoint 1"
_MARKER = "forebay clean shutdown 1\n"


class OffsetCheckpoint:
    """One checkpoint file. Writers must not overlap."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self._fs = fs

    def read(self) -> dict[TableBucket, int]:
        """Return the checkpointed offsets; empty if there is no file. Raises `CorruptData` for a damaged one."""
        try:
            data = self._fs.read_bytes(self.path)
        except FileMissing:
            return {}
        body, separator, checksum = data.rpartition(b"crc32c ")
        if not separator or checksum != b"%08x\n" % crc32c(body):
            raise self._damaged("its checksum is wrong")
        head, *lines = body.decode().splitlines()
        if head != _HEAD:
            raise self._damaged(f"it begins with {head!r}")
        offsets = {}
        for line in lines:
            table, partition, bucket, offset = line.split(" ")
            key = TableBucket(int(table), int(bucket), None if partition == "-" else int(partition))
            offsets[key] = int(offset)
        return offsets

    def write(self, offsets: Mapping[TableBucket, int]) -> None:
        """Durably replace the file's content with `offsets`."""
        lines = sorted(
            (bucket.table_id, -1 if bucket.partition_id is None else bucket.partition_id, bucket.bucket, offset)
            for bucket, offset in offsets.items()
        )
        text = [_HEAD]
        text += [f"{table} {'-' if partition < 0 else partition} {b} {offset}" for table, partition, b, offset in lines]
        body = "".join(f"{line}\n" for line in text).encode()
        self._fs.write_atomic(self.path, body + b"crc32c %08x\n" % crc32c(body))

    def lower(self, bucket: TableBucket, offset: int) -> None:
        """Make sure, durably, that the checkpointed offset of `bucket` is at most `offset`. Call it before a cut."""
        offsets = self.read()
        if offsets.get(bucket, 0) > offset:
            offsets[bucket] = offset
            self.write(offsets)

    def _damaged(self, reason: str) -> CorruptData:
        return CorruptData(
            f"the checkpoint {self.path} is damaged: {reason}. Restore it; or remove it, and every log will be checked "
            "from its beginning and cut at its first damaged batch",
            ErrorCode.CORRUPT_MESSAGE,
        )


def _marker(not_closed: Iterable[TableBucket]) -> bytes:
    order = sorted((b.table_id, -1 if b.partition_id is None else b.partition_id, b.bucket) for b in not_closed)
    lines = [f"not closed {t} {'-' if p < 0 else p} {b}\n" for t, p, b in order]
    body = "".join([_MARKER, *lines]).encode()
    return body + b"crc32c %08x\n" % crc32c(body) if lines else body


def _parse_marker(data: bytes) -> frozenset[TableBucket] | None:
    """The buckets that a clean-shutdown marker excepts; None for what is no marker."""
    if data == _MARKER.encode():
        return frozenset()
    body, separator, checksum = data.rpartition(b"crc32c ")
    if not separator or checksum != b"%08x\n" % crc32c(body) or not body.startswith(_MARKER.encode()):
        return None
    buckets = []
    for line in body.decode().splitlines()[1:]:
        _, _, table, partition, bucket = line.split(" ")
        buckets.append(TableBucket(int(table), int(bucket), None if partition == "-" else int(partition)))
    return frozenset(buckets)


def read_clean_shutdown(fs: FileSystem, path: str) -> frozenset[TableBucket] | None:
    """The buckets that the clean-shutdown marker of the data directory `path` excepts; None where there is no marker.

    Raises `CorruptData` for a damaged one. The marker stays.
    """
    try:
        not_closed = _parse_marker(fs.read_bytes(names.join(path, names.CLEAN_SHUTDOWN_FILE)))
    except FileMissing:
        return None
    if not_closed is None:
        raise CorruptData(f"{names.join(path, names.CLEAN_SHUTDOWN_FILE)} is damaged", ErrorCode.CORRUPT_MESSAGE)
    return not_closed


class DataDirectory:
    """A locked data directory and its checkpoints. Create one with `open`, and `close` it last."""

    def __init__(self, fs: FileSystem, path: str, lock: FileLock) -> None:
        """For `open` only."""
        self.path = path
        self.recovery_points = OffsetCheckpoint(fs, names.join(path, names.RECOVERY_POINTS_FILE))
        self.high_watermarks = OffsetCheckpoint(fs, names.join(path, names.HIGH_WATERMARKS_FILE))
        self.not_closed: frozenset[TableBucket] = frozenset()
        """What the clean-shutdown marker that was taken excepts: buckets that were not opened after an unclean end."""
        self._fs = fs
        self._lock = lock

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> DataDirectory:
        """Create the directory if it is missing, lock it, and remove left-over temporary files from it.

        Raises `Conflict` if another process, or another server in this one, has it.
        """
        fs.make_directories(path)
        lock = fs.lock(names.join(path, names.LOCK_FILE))
        if lock is None:
            raise Conflict(
                f"the data directory {path} is in use by another server: stop that one, or choose another directory",
                ErrorCode.CLIENT_ERROR,
            )
        try:
            for entry in fs.list_directory(path):
                if names.is_temporary(entry.name) and not entry.is_directory:
                    fs.remove(names.join(path, entry.name))
        except BaseException:
            lock.release()
            raise
        return cls(fs, path, lock)

    @property
    def was_used(self) -> bool:
        """Whether a server has opened the directory: what it makes after the metadata is there."""
        file_names = {names.RECOVERY_POINTS_FILE, names.HIGH_WATERMARKS_FILE, names.CLEAN_SHUTDOWN_FILE}
        entries = self._fs.list_directory(self.path)
        return any(entry.name in file_names or names.is_log_ends_file(entry.name) for entry in entries)

    def take_clean_shutdown(self) -> bool:
        """Return whether the last server that used the directory shut down gracefully, and remove the marker.

        Call it once, before the first log is opened: the next call returns False. A damaged marker counts as none.
        `not_closed` then holds the buckets that the marker excepts.
        """
        marker = names.join(self.path, names.CLEAN_SHUTDOWN_FILE)
        try:
            not_closed = _parse_marker(self._fs.read_bytes(marker))
        except FileMissing:
            return False
        self._fs.remove(marker)
        self._fs.sync_directory(self.path)
        self.not_closed = not_closed or frozenset()
        return not_closed is not None

    def mark_clean_shutdown(self, not_closed: Iterable[TableBucket] = ()) -> None:
        """Record, durably, that all logs are closed and the recovery points checkpointed after that, except
        `not_closed`: buckets that have not been opened, and so not been checked, since a crash."""
        self._fs.write_atomic(names.join(self.path, names.CLEAN_SHUTDOWN_FILE), _marker(not_closed))

    def close(self) -> None:
        """Unlock the directory."""
        self._lock.release()
