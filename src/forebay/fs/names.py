"""Every file and folder name of a data directory, made and parsed in one place.

    <data>/lock
    <data>/clean-shutdown
    <data>/restored          the directory is a copy that no server has opened yet
    <data>/recovery-points.checkpoint
    <data>/high-watermarks.checkpoint
    <data>/ends-of-logs-<number>
    <data>/<database>/<table>-<table id>/[<partition>-p<partition id>/]log-<bucket>/<20-digit offset>.log
                                                                                    <20-digit offset>.index
                                                                                    <20-digit offset>.timeindex
                                                                                    <20-digit offset>.writer_snapshot
                                                                    <20-digit offset>.damaged   (forebay repair)
                                                                       kv-<bucket>/
    <data>/transactions.staged/<transaction id>/<attempt>.stage
    <data>/kv-snapshots.made/<random>/       files of a KV snapshot while it is made; removed at the next start
    <data>/<database>/<table>-<table id>/lake/<32 hexadecimal digits>.offsets     (lake_offsets_folder)
    .<name>.<random>.tmp     a file that is being written; left over after a crash
    <folder>.deleted         a folder on its way out; removed at the next start

The layout below a database is Apache Fluss's own (`FlussPaths`), so that its documentation holds. Twenty digits make
names sort as offsets do. The ids keep a table apart from an earlier one of the same name.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from forebay.base.errors import InvalidRequest
from forebay.base.locations import below, check_name
from forebay.metadata.table import PhysicalTablePath, TableBucket, TablePath

LOCK_FILE = "lock"
CLEAN_SHUTDOWN_FILE = "clean-shutdown"
RESTORED_FILE = "restored"
RECOVERY_POINTS_FILE = "recovery-points.checkpoint"
HIGH_WATERMARKS_FILE = "high-watermarks.checkpoint"

READS_FOLDER = "standby.reads"
"""Of a standby: all that is only for its reads. No server needs it."""
DOWNLOADS_FOLDER = "kv-snapshots.made"
"""The files of a KV snapshot while it is made; what a crash has left is removed at the next start."""
STAGES_FOLDER = "transactions.staged"
"""No database has a point in its name, so that it is none of these folders."""

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
WRITER_SNAPSHOT_SUFFIX = ".writer_snapshot"
LOG_START_SUFFIX = ".log_start"
LAKE_OFFSETS_SUFFIX = ".offsets"
DAMAGED_SUFFIX = ".damaged"
RESTORED_CHANGES_FILE = "restored-changes"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIX = ".tmp"

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""Rows, metadata and offsets are for the user that the server runs as, whatever the umask."""

NAME_BYTES_MAX = 255
"""Most bytes of a file's or folder's name on the usual file systems."""

PARTITION_NAME_BYTES_MAX = NAME_BYTES_MAX - len(f"-p{2**63 - 1}") - len(DELETED_SUFFIX)
"""Most bytes of a partition's name: its folder has room for every id, and for the suffix with which it is removed."""

TabletKind = Literal["log", "kv"]

_OFFSET_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.writer_snapshot|\.log_start)")
_LOG_ENDS_FILE = re.compile(r"ends-of-logs-\d+")
_LAKE_OFFSETS_FILE = re.compile(r"[0-9a-f]{32}\.offsets")
_TABLE_FOLDER = re.compile(r"(.+)-(\d+)", re.DOTALL)
_PARTITION_FOLDER = re.compile(r"(.+)-p(\d+)", re.DOTALL)
_TABLET_FOLDER = re.compile(r"(log|kv)-(\d+)")


class TabletFolder(NamedTuple):
    """The parts of the path of a tablet's folder."""

    kind: TabletKind
    table: PhysicalTablePath
    bucket: TableBucket


def join(folder: str, *parts: str) -> str:
    """The path of `parts`, names or relative paths, below `folder`. Raises `InvalidRequest` if they lead out of it."""
    for part in parts:
        folder = below(folder, part)
    return folder


# ---- files of one log tablet


def offset_file(folder: str, offset: int, suffix: str) -> str:
    """The path of the file of kind `suffix` that begins (a writer snapshot: ends) at `offset`."""
    if not 0 <= offset < 1 << 63:
        raise InvalidRequest(f"offset {offset} cannot name a file: it must be from 0 to 2^63-1")
    return f"{folder}/{offset:020d}{suffix}"


def log_file(folder: str, base_offset: int) -> str:
    """The batches of the segment that begins at `base_offset`."""
    return offset_file(folder, base_offset, LOG_SUFFIX)


def offset_index_file(folder: str, base_offset: int) -> str:
    """The offset index of the segment that begins at `base_offset`."""
    return offset_file(folder, base_offset, OFFSET_INDEX_SUFFIX)


def time_index_file(folder: str, base_offset: int) -> str:
    """The time index of the segment that begins at `base_offset`."""
    return offset_file(folder, base_offset, TIME_INDEX_SUFFIX)


def writer_snapshot_file(folder: str, end_offset: int) -> str:
    """The state of all writers after the batches below `end_offset`."""
    return offset_file(folder, end_offset, WRITER_SNAPSHOT_SUFFIX)


def damaged_file(folder: str, offset: int) -> str:
    """The bytes that a repair has taken out of a log, where `offset` should begin."""
    return offset_file(folder, offset, DAMAGED_SUFFIX)


def parse_offset_file(name: str) -> tuple[int, str] | None:
    """(offset, suffix) of a log tablet's file name, or None for a name of another kind."""
    match = _OFFSET_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


# ---- temporary and dying names


def temporary_name(name: str, token: str) -> str:
    """The name under which the file `name` is written before it is published; `token` makes it unique."""
    return f".{name}.{token}{TEMPORARY_SUFFIX}"


def is_temporary(name: str) -> bool:
    """Whether `name` was made by `temporary_name`."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def deleted_folder(folder: str) -> str:
    """The name that `folder` gets, in one atomic step, before its content is removed."""
    return folder + DELETED_SUFFIX


def is_deleted(name: str) -> bool:
    """Whether the folder `name` is on its way out."""
    return name.endswith(DELETED_SUFFIX)


# ---- files of a data directory


def log_ends_file(number: int) -> str:
    """The name of the file `number` with the ends of logs."""
    return f"ends-of-logs-{number}"


def is_log_ends_file(name: str) -> bool:
    """Whether `name` was made by `log_ends_file`."""
    return _LOG_ENDS_FILE.fullmatch(name) is not None


# ---- folders of tables


def table_folder(table: TablePath, table_id: int) -> str:
    """`<database>/<table>-<table id>`, relative to the data directory."""
    return f"{_checked('database', table.database)}/{_checked('table', table.table)}-{table_id}"


def lake_offsets_folder(table: TablePath, table_id: int) -> str:
    """The folder, relative to the data directory, of the files that say which log offsets lake snapshots hold."""
    return f"{table_folder(table, table_id)}/lake"


def lake_offsets_file(folder: str, token: str) -> str:
    """A file of log offsets in `folder`; `token` is 32 hexadecimal digits that make its name unique."""
    return f"{folder}/{token}{LAKE_OFFSETS_SUFFIX}"


def is_lake_offsets_file(name: str) -> bool:
    """Whether `name`, without a folder, was made by `lake_offsets_file`."""
    return _LAKE_OFFSETS_FILE.fullmatch(name) is not None


def bucket_parent_folder(table: PhysicalTablePath, bucket: TableBucket) -> str:
    """The folder, relative to the data directory, that holds the tablets of all buckets beside `bucket`."""
    folder = table_folder(table.table, bucket.table_id)
    if (table.partition is None) != (bucket.partition_id is None):
        raise InvalidRequest(f"{table} and {bucket} do not agree on whether there is a partition")
    if table.partition is None:
        return folder
    return f"{folder}/{_checked('partition', table.partition)}-p{bucket.partition_id}"


def tablet_folder(kind: TabletKind, table: PhysicalTablePath, bucket: TableBucket) -> str:
    """The folder of one tablet, relative to the data directory: `.../log-<bucket>` or `.../kv-<bucket>`."""
    return f"{bucket_parent_folder(table, bucket)}/{kind}-{bucket.bucket}"


def parse_tablet_folder(relative: str) -> TabletFolder | None:
    """The parts of a path that `tablet_folder` builds; None if `relative` is not such a path."""
    parts = relative.split("/")
    tablet = _TABLET_FOLDER.fullmatch(parts[-1])
    table = _TABLE_FOLDER.fullmatch(parts[1]) if 3 <= len(parts) <= 4 else None
    if tablet is None or table is None or not parts[0]:
        return None
    partition = _PARTITION_FOLDER.fullmatch(parts[2]) if len(parts) == 4 else None
    if len(parts) == 4 and partition is None:
        return None
    kind: TabletKind = "log" if tablet[1] == "log" else "kv"
    return TabletFolder(
        kind,
        PhysicalTablePath(TablePath(parts[0], table[1]), partition[1] if partition else None),
        TableBucket(int(table[2]), int(tablet[2]), int(partition[2]) if partition else None),
    )


def _checked(what: str, name: str) -> str:
    """`name`, unless it would lead out of its folder or cannot be a file name."""
    return check_name(name, f"{what} name")
