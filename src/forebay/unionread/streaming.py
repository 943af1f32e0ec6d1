"""A streaming read as values: its position, and what the next micro-batch reads. Pure functions, without I/O.

A stream that begins with the whole table (`FullRead`) first reads a lake snapshot and perhaps a table snapshot, as a
list of *pieces*, and then the logs from the offsets that belong to these. Rows of the snapshots and rows of the logs
never share a micro-batch, so that a key comes at most once in a batch, in its newest version.

A `StreamOffset` is stored as JSON in the checkpoint of the streaming engine. Rules:

- The content between two offsets never changes, so a retried batch is the same batch.
- The start of a stream may be answered differently the second time ("latest", a snapshot that is opened). So the end of
  a first batch carries its start, and the first batch is retried from there.
- A bucket that an offset does not name belongs to a partition that was added later: it is read from offset 0.
- Offsets name the epoch of the log that they belong to (`forebay.metadata.log_offset`), where the servers have any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.base.errors import Conflict, CorruptData, ErrorCode, InternalError, NotFound, UnsupportedOperation
from forebay.client.results import LakeSnapshot
from forebay.client.row_view import RowView
from forebay.lake.storage import LakeStorage
from forebay.metadata.log_offset import LogPosition, bucket_of, bucket_text, epoch_of, with_epoch
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket, TableInfo
from forebay.unionread.expired import check_stream_is_complete, planner_of, stand_in_for
from forebay.unionread.lake_side import LakeSide
from forebay.unionread.open_lakes import lake_of
from forebay.unionread.planning import readable_snapshot
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import LakeSnapshotSplit

if TYPE_CHECKING:
    from forebay.client.table import Table


VERSION = 1

K = TypeVar("K")


@dataclass(frozen=True)
class FullRead:
    """A whole table that is being read. `done` pieces of it have been read.

    Its pieces are the splits of the lake snapshot `lake_snapshot` (None: no lake), followed by `buckets`, read from the
    table snapshot `table_snapshot` (None if there are no such buckets). `lake_identity` names the lake snapshot among
    all that ever have its id, for after a rollback of the lake table; offsets of earlier releases have none.
    """

    lake_snapshot: int | None = None
    table_snapshot: str | None = None
    buckets: tuple[TableBucket, ...] = ()
    done: int = 0
    lake_identity: str | None = None


@dataclass(frozen=True)
class StreamOffset:
    """The position of a stream: everything below the offsets `log` has been read, and of `full` what it says.

    `is_first`: this is where a stream begins. `start`: where the batch that ends here began, for the first one only.
    """

    table_id: int
    log: Mapping[TableBucket, int]
    full: FullRead | None = None
    is_first: bool = False
    start: StreamOffset | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON values. Equal offsets have equal JSON texts."""
        document: dict[str, Any] = {
            **LogPosition(self.log).to_json(),
            "version": VERSION,
            "table": self.table_id,
        }
        if self.full is not None:
            document["full"] = {
                "lake": self.full.lake_snapshot,
                "snapshot": self.full.table_snapshot,
                "buckets": [bucket_text(bucket) for bucket in self.full.buckets],
                "done": self.full.done,
            }
            if self.full.lake_identity is not None:
                document["full"]["lake_identity"] = self.full.lake_identity
        if self.is_first:
            document["first"] = True
        if self.start is not None:
            document["start"] = self.start.to_json()
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StreamOffset:
        """Return the offset. Raises `CorruptData` for an invalid and `UnsupportedOperation` for a newer one."""
        try:
            version = int(document["version"])
            if version > VERSION:
                raise UnsupportedOperation(
                    f"the checkpoint holds a stream offset of version {version}; this release reads {VERSION}"
                )
            table_id = int(document["table"])
            start = document.get("start")
            return cls(
                table_id,
                LogPosition.from_json(document),
                _full_of(table_id, document.get("full")),
                bool(document.get("first", False)),
                None if start is None else cls.from_json(start),
            )
        except (AttributeError, KeyError, TypeError, ValueError, CorruptData) as e:
            if isinstance(e, UnsupportedOperation):
                raise
            raise CorruptData(f"the checkpoint holds {document!r}, which is no stream offset: {e!r}") from e


def _full_of(table_id: int, document: Mapping[str, Any] | None) -> FullRead | None:
    if document is None:
        return None
    lake, snapshot, identity = document["lake"], document["snapshot"], document.get("lake_identity")
    return FullRead(
        None if lake is None else int(lake),
        None if snapshot is None else str(snapshot),
        tuple(bucket_of(table_id, text) for text in document["buckets"]),
        int(document["done"]),
        None if identity is None else str(identity),
    )


# ---- the next micro-batch -------------------------------------------------------------------------------------------


def next_offset(
    start: StreamOffset,
    ends: Mapping[TableBucket, int],
    pieces: Sequence[int | None] = (),
    limit: int | None = None,
) -> StreamOffset:
    """Return where a batch from `start` ends. It is `start` itself if there is nothing to read.

    `ends` are the current ends of all buckets' logs; other buckets are gone. `pieces` are the row counts of the pieces
    of the full read, None if unknown. At most `limit` log records are taken (None: all), and as many pieces as fit, but
    at least one, for a piece is never split.
    """
    end = _after_pieces(start, pieces, limit)
    if end.full is None and not (start.full is not None and start.full.done < len(pieces)):
        end = replace(end, log=_after_logs(start.log, ends, limit))
    if end.full == start.full and dict(end.log) == dict(start.log):
        return start
    return replace(end, is_first=False, start=replace(start, start=None) if start.is_first else None)


def _after_pieces(start: StreamOffset, pieces: Sequence[int | None], limit: int | None) -> StreamOffset:
    full = start.full
    if full is None:
        return start
    done, left = full.done, limit
    while done < len(pieces):
        rows = pieces[done]
        if left is not None:
            # A piece of unknown size fills a batch.
            if done > full.done and (rows is None or rows > left):
                break
            left = 0 if rows is None else max(0, left - rows)
        done += 1
    return replace(start, full=None if done >= len(pieces) else replace(full, done=done))


def _after_logs(
    log: Mapping[TableBucket, int], ends: Mapping[TableBucket, int], limit: int | None
) -> dict[TableBucket, int]:
    starts = {bucket: log.get(bucket, 0) for bucket in ends}
    waiting = {bucket: max(0, end - starts[bucket]) for bucket, end in ends.items()}
    taken = waiting if limit is None else shares(waiting, limit)
    return {
        # What ends before the end of a log belongs to its epoch, too.
        bucket: with_epoch(starts[bucket] + taken[bucket], epoch_of(ends[bucket])) if taken[bucket] else starts[bucket]
        for bucket in ends
        if bucket in log or taken[bucket]
    }


def shares(waiting: Mapping[K, int], limit: int) -> dict[K, int]:
    """Return how many records each bucket may read, `limit` in all: the same for each, as far as they have so many.

    What small ones leave goes to the others, and the remainder to the one with the most waiting records, so that no
    bucket waits forever.
    """
    taken = {}
    left = limit
    smallest_first = sorted(waiting, key=lambda bucket: waiting[bucket])
    for place, bucket in enumerate(smallest_first):
        taken[bucket] = min(waiting[bucket], left // (len(smallest_first) - place))
        left -= taken[bucket]
    return taken


def capped(
    start: StreamOffset, ends: Mapping[TableBucket, int], target: Mapping[TableBucket, int]
) -> dict[TableBucket, int]:
    """Return `ends`, but no further than `target`: records after a stream's "up to now" are left for the next one."""
    return {
        bucket: max(start.log.get(bucket, 0), min(end, target.get(bucket, 0)))
        for bucket, end in ends.items()
        if bucket in start.log or bucket in target
    }


# ---- what a micro-batch reads ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MicroBatch:
    """The content between two offsets: the pieces of `full` from `first_piece` to before `stop_piece` (None: to the
    last one), and the log records from one offset to before the other. `start` is where it begins.
    """

    start: StreamOffset
    full: FullRead | None
    first_piece: int
    stop_piece: int | None
    logs: Mapping[TableBucket, tuple[int, int]]

    @property
    def records(self) -> int:
        return sum(stop - start for start, stop in self.logs.values())


def micro_batch(start: StreamOffset, end: StreamOffset) -> MicroBatch:
    """Return what a batch from `start` to `end` reads.

    Raises `Conflict` if the two belong to different tables, `InternalError` if `end` is before `start`.
    """
    if start.is_first:
        # It may have been requested again, after a crash; `end` has the answer that counts.
        start = end.start or (end if end.is_first else start)
    if start.table_id != end.table_id:
        raise Conflict(f"a stream cannot continue from table id {start.table_id} to {end.table_id}")
    logs = {}
    for bucket, stop in end.log.items():
        first = start.log.get(bucket, 0)
        if first > stop:
            raise InternalError(f"a micro-batch of bucket {bucket} would go from offset {first} back to {stop}")
        if first < stop:
            logs[bucket] = (first, stop)
    full = start.full
    if full is None:
        return MicroBatch(start, None, 0, 0, logs)
    return MicroBatch(start, full, full.done, None if end.full is None else end.full.done, logs)


# The lake's part of a stream that begins with the whole table: a snapshot's splits, always in one order.


def lake_snapshot_to_begin_with(
    table: Table,
    buckets: Sequence[TableBucket],
    earliest: Callable[[Sequence[TableBucket]], Mapping[TableBucket, int]],
) -> tuple[LakeSnapshot, str | None] | None:
    """Return the newest readable lake snapshot, with what names it among all that ever have its id; None if there is
    none, or if the stream has all rows itself.

    `buckets` are the stream's, `earliest` says where logs begin. A snapshot that another process has expired is
    replaced by one with the same rows, and one that was rolled back by the one before, if there is one: the log
    continues from exact offsets, so a snapshot with later changes will not do. Raises `NotFound`
    (LAKE_SNAPSHOT_NOT_EXIST) for rows that no longer exist anywhere.
    """
    info = table.info
    while True:
        registered = readable_snapshot(table)
        if registered is None:
            return None
        source = lake_of(table).create_source(info.path)
        try:
            planner = planner_of(table, source, registered)
            planner.plan()
        except NotFound as e:
            newest = readable_snapshot(table) if e.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST else None
            if newest is None:
                raise
            if not newest.is_same(registered):
                continue
        else:
            return registered, planner.identity
        partitions = frozenset(bucket.partition_id for bucket in buckets if bucket.partition_id is not None)
        where = buckets, partitions, lambda _: not info.has_primary_key, earliest
        stand_in = stand_in_for(table, source, registered, *where, up_to_now=False)
        if stand_in is not None:
            return stand_in.snapshot, stand_in.planner.identity
        check_stream_is_complete(info, source, registered, *where)
        return None


def lake_pieces(
    table: Table,
    snapshot_id: int,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    *,
    storage: LakeStorage | None = None,
    identity: str | None = None,
) -> tuple[UnionReader, list[LakeSnapshotSplit]]:
    """Return how a lake snapshot is read, and its splits, in an order that depends only on the snapshot.

    So a stream can record how many of them it has read. For the same reason a filter skips rows and never splits.
    `identity` is that of the snapshot (`forebay.lake.source.Planner.identity`), None if it is not known. Raises
    `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) for a snapshot that has expired, or was rolled back.
    """
    info = table.info
    view = RowView(info, columns, predicate)
    source = (storage or lake_of(table)).create_source(info.path)
    side = LakeSide.of(source, view.read, None)
    reader = UnionReader(table.connection.settings, view, None, side)
    try:
        planner = side.source.create_planner(snapshot_id)
        splits = planner.plan() if identity in (None, planner.identity) else None
    except NotFound as e:
        if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
            raise
        raise _unread(info, snapshot_id, "has expired") from e
    if splits is None:
        raise _unread(info, snapshot_id, "was rolled back, and whose number another one has")
    serializer = source.split_serializer()
    return reader, [LakeSnapshotSplit(split) for split in sorted(splits, key=serializer.serialize)]


def _unread(info: TableInfo, snapshot_id: int, what: str) -> NotFound:
    return NotFound(
        f"a stream of table {info.path} has not read all of lake snapshot {snapshot_id}, which {what}: start it with "
        "another checkpoint, and keep lake snapshots for longer",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    )
