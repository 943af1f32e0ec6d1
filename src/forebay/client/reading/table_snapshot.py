"""Table snapshots: all buckets of a primary-key table at one instant, with the log offset that belongs to each.

    with table.snapshot() as snapshot:
        snapshot.scan().to_arrow()          the rows of that instant, as often as one likes
        snapshot.log_offsets                where the changelog goes on from exactly these rows

Consistency: the server blocks writes to the table while it pins the buckets. Everything acknowledged before the
snapshot was requested is in it, in all buckets; and if a write is in it, so is every write that was acknowledged before
that one began. Of a concurrent write it may include the rows of some buckets but not of others, because a write call
completes bucket by bucket.

A snapshot pickles as a description from which other processes can read: workers, retried tasks. It stays open while it
is read or renewed, and for its lease after that; `release` closes it. Only the object that opened it releases it, at
the end of its `with` block or when it is garbage-collected; copies never do.

Clusters without table snapshots (Apache Fluss): `is_exact` is False, each bucket is scanned as it is when it is read,
and `log_offsets` are the ends of the logs when the snapshot was opened. Changes from there on may be in the rows
already; applying them again is harmless, since a change sets a whole row. `scan_bucket(...).log_offset` is the exact
offset of a bucket's rows.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forebay.api.filters import FilterLike, as_predicate
from forebay.api.scan import ArrowStream, Scan, ScanRequest
from forebay.base import threads
from forebay.base.completion import hidden_from_completion
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, LimitExceeded, NotFound, UnsupportedOperation
from forebay.base.quantity import Span, span_ms
from forebay.base.retrying import BackOff
from forebay.client.cluster.buckets import check_bucket, plan_buckets
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.offsets import LATEST, list_offsets
from forebay.client.cluster.partitions import PartitionSelector
from forebay.client.reading.bucket_reader import BucketReader
from forebay.client.reading.snapshot_cursor import GONE, SnapshotCursor, gone
from forebay.client.reading.snapshot_scan import SnapshotScan
from forebay.client.results import TableSnapshotInfo
from forebay.client.row_view import RowView
from forebay.codec.arrow.arrow_types import user_schema
from forebay.metadata.log_offset import with_epoch
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode
from forebay.protocol.messages import partition_id_of

if TYPE_CHECKING:
    from forebay.client.session import Session
    from forebay.metadata.predicate import Predicate


@hidden_from_completion("of_buckets", "on", "raw_id", "release_when_collected", "scan_bucket")
class TableSnapshot(ArrowStream):
    """A table as of one instant: `table.snapshot()`. Thread-safe; its scans are not.

    `snapshot_id` is None if nothing is pinned: the snapshot is not exact, or the table has no bucket. `row_counts` has
    None for buckets that are not counted.
    """

    def __init__(
        self,
        session: Session,
        info: TableInfo,
        snapshot_id: str | None,
        log_offsets: Mapping[TableBucket, int],
        row_counts: Mapping[TableBucket, int | None],
        *,
        lease_seconds: float = 0.0,
        is_exact: bool = True,
    ) -> None:
        self.connection = session
        self.info = info
        self.snapshot_id = snapshot_id
        self.log_offsets = dict(log_offsets)
        self.row_counts = dict(row_counts)
        self.is_exact = is_exact
        self.lease_seconds = lease_seconds
        self.released = False
        self._renewed_at_ms = session.clock.now_ms()
        self._finalizer: weakref.finalize[..., TableSnapshot] | None = None

    @property
    def raw_id(self) -> bytes:
        """The id on the wire. Raises `InvalidRequest` if the snapshot was released here, or pins nothing."""
        if self.snapshot_id is None or self.released:
            raise InvalidRequest(f"this snapshot of table {self.info.path} was released, or pins nothing")
        return self.snapshot_id.encode()

    @property
    def buckets(self) -> list[TableBucket]:
        """The buckets of the snapshot, in order."""
        return list(self.log_offsets)

    @property
    def expires(self) -> dt.datetime | None:
        """The earliest time at which the server may close the unused snapshot; None if it pins nothing.

        Reads by other processes extend it without this object's knowledge.
        """
        if self.snapshot_id is None:
            return None
        moment = self._renewed_at_ms / 1000 + self.lease_seconds
        return dt.datetime.fromtimestamp(moment, dt.UTC)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002 - the word of pyarrow
        limit: int | None = None,
        *,
        buckets: Sequence[TableBucket | int] | None = None,
    ) -> Scan:
        """A scan of all rows (of some buckets) like `table.scan()`, but as of this instant. May be repeated."""
        request = ScanRequest(columns, self._predicate(filter), limit)
        selected = self.buckets if buckets is None else [self._own(bucket) for bucket in buckets]
        return SnapshotScan(self, request, selected)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scan().__arrow_c_stream__(requested_schema)

    def _predicate(self, filter_like: FilterLike | None) -> Predicate | None:
        return as_predicate(filter_like, user_schema(self.info.schema.columns))

    def scan_bucket(
        self,
        bucket: TableBucket | int,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002 - the word of pyarrow
        limit: int | None = None,
        resume_after: bytes | None = None,
    ) -> BucketReader:
        """A reader of one bucket, from the first row or after the `position` of another such reader.

        Rows come in the order of the bucket's engine.

        If the snapshot is not exact, it reads the current rows, and its `log_offset` is theirs from the first row on.
        Raises `UnsupportedOperation` for `resume_after` if the snapshot is not exact: the rows before that position may
        have changed.
        """
        ScanRequest(limit=limit)
        own, view = self._own(bucket), RowView(self.info, columns, self._predicate(filter))
        if self.is_exact:
            return BucketReader(self.connection, view, SnapshotCursor(self, own, resume_after), limit)
        if resume_after is not None:
            raise UnsupportedOperation(
                f"a scan of table {self.info.path} cannot be resumed: this cluster has no table snapshots. Read the "
                "bucket again from its beginning"
            )
        from forebay.client.reading.live_cursor import LiveCursor

        cursor = LiveCursor(self.connection, view, own, self.log_offsets[own])
        return BucketReader(self.connection, view, cursor, limit)

    def _own(self, bucket: TableBucket | int) -> TableBucket:
        resolved = check_bucket(self.info, bucket)
        if resolved not in self.log_offsets:
            raise InvalidRequest(f"this snapshot of table {self.info.path} does not hold bucket {resolved}")
        return resolved

    # ---- the lease --------------------------------------------------------------------------------------------------

    def renew(self, lease: Span | None = None) -> None:
        """Renew the lease, optionally with another duration. Raises `NotFound` if the snapshot no longer exists."""
        if self.snapshot_id is None:
            return
        request = pb.RenewTableSnapshotRequest(table_snapshot_id=self.raw_id, lease_ms=lease_ms(lease))

        def attempt() -> pb.RenewTableSnapshotResponse:
            node = self._node()
            return self.connection.cluster.call(
                node, ApiKey.RENEW_TABLE_SNAPSHOT, request, pb.RenewTableSnapshotResponse
            )

        try:
            answer = self.connection.cluster.retrying(attempt, stale=self._forget_node)
        except NotFound as e:
            raise gone(f"renewing the lease on a snapshot of table {self.info.path}", e) if e.code in GONE else e from e
        self.lease_seconds = answer.lease_ms / 1000
        self._renewed_at_ms = self.connection.clock.now_ms()

    def release(self) -> None:
        """Close the snapshot for all readers. Idempotent; an unreachable server closes it when its lease expires."""
        if self._finalizer is not None:
            self._finalizer.detach()
        if self.released or self.snapshot_id is None:
            return
        self.released = True
        _release(self.connection, self.info, self.buckets[0], self.snapshot_id)

    def keep(self) -> TableSnapshot:
        """This snapshot, detached from this object: it now ends only when its lease expires or with `release`."""
        if self._finalizer is not None:
            self._finalizer.detach()
        return self

    def release_when_collected(self) -> None:
        """Release the snapshot when this object is garbage-collected, at the latest."""
        if self.snapshot_id is not None:
            self._finalizer = weakref.finalize(
                self, _release_later, self.connection, self.info, self.buckets[0], self.snapshot_id, os.getpid()
            )
            self._finalizer.atexit = False

    def _node(self) -> ServerNode:
        return self.connection.cluster.leader(self.info.path, self.buckets[0])

    def _forget_node(self) -> None:
        self.connection.cluster.refresh_bucket(self.info.path, self.buckets[0])

    def __enter__(self) -> TableSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # ---- copies -----------------------------------------------------------------------------------------------------

    def of_buckets(self, buckets: Collection[TableBucket]) -> TableSnapshot:
        """A copy restricted to these buckets, for a worker. It never releases the snapshot."""
        copy = TableSnapshot.__new__(TableSnapshot)
        copy.__setstate__(self.__getstate__())
        copy.log_offsets = {bucket: self.log_offsets[bucket] for bucket in buckets}
        copy.row_counts = {bucket: self.row_counts[bucket] for bucket in buckets}
        return copy

    def on(self, session: Session) -> TableSnapshot:
        """A copy that uses another connection to the same cluster."""
        copy = self.of_buckets(self.buckets)
        copy.connection = session
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_finalizer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        kind = self.snapshot_id or ("empty" if self.is_exact else "not exact")
        state = ", released" if self.released else ""
        return f"<forebay.TableSnapshot of {self.info.path}, {kind}, {len(self.log_offsets)} buckets{state}>"


def _release(session: Session, info: TableInfo, bucket: TableBucket, snapshot_id: str) -> None:
    request = pb.ReleaseTableSnapshotRequest(table_snapshot_id=snapshot_id.encode())
    with contextlib.suppress(ForebayError):  # the lease will expire
        node = session.cluster.leader(info.path, bucket)
        session.cluster.call(node, ApiKey.RELEASE_TABLE_SNAPSHOT, request, pb.ReleaseTableSnapshotResponse)


def _release_later(session: Session, info: TableInfo, bucket: TableBucket, snapshot_id: str, pid: int) -> None:
    """Release in a separate thread: garbage collection can run anywhere, even while a connection lock is held."""
    if pid == os.getpid() and not session.closed:
        arguments = (session, info, bucket, snapshot_id)
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
            threads.thread(_release, args=arguments, name="forebay-release").start()


def lease_ms(lease: Span | None) -> int | None:
    """A lease in milliseconds. Raises `InvalidRequest` for an invalid one."""
    if lease is None:
        return None
    milliseconds = span_ms(lease, "lease")
    if milliseconds < 1:
        raise InvalidRequest(f"a lease of {lease!r} is too short; give at least a few seconds")
    return milliseconds


_OPENINGS_MAX = 5
"""Maximum attempts at a snapshot if partitions are created while it is opened."""


# ---- opening --------------------------------------------------------------------------------------------------------


def open_table_snapshot(
    session: Session,
    info: TableInfo,
    lease: Span | None = None,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
    name: str = "",
) -> TableSnapshot:
    """See `Table.snapshot`."""
    if not info.has_primary_key:
        raise InvalidRequest(
            f"table {info.path} has no primary key; read its log between two offsets instead",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    cluster = session.cluster
    duration = lease_ms(lease)

    def attempt() -> TableSnapshot:
        # Partitions are created and dropped: they are resolved again for every attempt.
        def chosen() -> list[TableBucket]:
            return plan_buckets(cluster, info, partitions)

        if partitions is None:
            return open_snapshot_of(session, info, chosen(), duration, name, are_all=True)
        return open_snapshot_with(session, info, chosen(), chosen, duration, name)

    snapshot = cluster.retrying(attempt, stale=lambda: cluster.refresh([info.path]))
    snapshot.release_when_collected()
    return snapshot


def open_snapshot_of(
    session: Session,
    info: TableInfo,
    buckets: Sequence[TableBucket],
    lease_ms: int | None,
    name: str = "",
    *,
    are_all: bool = False,
) -> TableSnapshot:
    """A snapshot of all buckets of some partitions, which is not released automatically yet.

    `are_all`: they are those of all partitions. The snapshot then has the partitions of its own moment: one that was
    created since they were listed may have rows that others of the snapshot came after.

    Raises `LimitExceeded` (TOO_MANY_SCANNERS) if the server stays at its snapshot limit for
    `client.scanner.kv.open-timeout`, `Unavailable`, `NotFound`.
    """
    cluster = session.cluster
    if not buckets:
        return TableSnapshot(session, info, None, {}, {})
    nodes = {cluster.leader(info.path, bucket) for bucket in buckets}
    node = next(iter(nodes))
    # Several servers have no common point in time.
    if len(nodes) > 1 or not cluster.channel(node).versions.offers(ApiKey.OPEN_TABLE_SNAPSHOT):
        offsets = list_offsets(cluster, info, buckets, LATEST)
        return TableSnapshot(session, info, None, offsets, dict.fromkeys(buckets), is_exact=False)
    partitions = dict.fromkeys(b.partition_id for b in buckets if b.partition_id is not None)
    request = pb.OpenTableSnapshotRequest(
        table_id=info.table_id,
        partition_id=[] if are_all else list(partitions),
        lease_ms=lease_ms,
        name=name or None,
    )
    response = _open(session, info, node, request)
    requested = set(buckets)
    offsets, counts = {}, {}
    for message in response.buckets:
        bucket = TableBucket(info.table_id, message.bucket_id, partition_id_of(message))
        if are_all or bucket in requested:
            offsets[bucket] = with_epoch(message.log_offset, message.log_epoch)
            counts[bucket] = message.row_count if message.HasField("row_count") else None
    return TableSnapshot(
        session,
        info,
        response.table_snapshot_id.decode(),
        offsets,
        counts,
        lease_seconds=response.lease_ms / 1000,
    )


def open_snapshot_with(
    session: Session,
    info: TableInfo,
    buckets: Sequence[TableBucket],
    chosen: Callable[[], Sequence[TableBucket]],
    lease_ms: int | None,
    name: str = "",
) -> TableSnapshot:
    """The same of `buckets`, and of those that `chosen` finds beside them once the snapshot is open.

    They are of partitions that may have been created before it was, with rows that others of the snapshot came after.
    So it is opened again, with them.
    """
    snapshot = open_snapshot_of(session, info, buckets, lease_ms, name)
    for _ in range(_OPENINGS_MAX if snapshot.is_exact else 0):
        try:
            missing = [bucket for bucket in chosen() if bucket not in snapshot.log_offsets]
        except ForebayError as e:
            if e.code == ErrorCode.PARTITION_NOT_EXISTS:  # dropped since: the snapshot has it
                break
            snapshot.release()
            raise
        if not missing:
            break
        snapshot.release()
        snapshot = open_snapshot_of(session, info, [*snapshot.buckets, *missing], lease_ms, name)
    return snapshot


def _open(
    session: Session, info: TableInfo, node: ServerNode, request: pb.OpenTableSnapshotRequest
) -> pb.OpenTableSnapshotResponse:
    clock, limit = session.clock, session.settings["client.scanner.kv.open-timeout"]
    deadline = clock.monotonic() + limit
    back_off: BackOff | None = None
    while True:
        try:
            return session.cluster.call(node, ApiKey.OPEN_TABLE_SNAPSHOT, request, pb.OpenTableSnapshotResponse)
        except LimitExceeded as e:
            if clock.monotonic() > deadline:
                raise LimitExceeded(
                    f"no snapshot of table {info.path} within {limit:g} s ('client.scanner.kv.open-timeout'): "
                    f"{e.message}",
                    e.code,
                ) from e
        back_off = back_off or BackOff(session.ids)
        clock.sleep(back_off.next_seconds())


def pinned_scan(session: Session, info: TableInfo, request: ScanRequest) -> Scan | None:
    """The scan of a new table snapshot that `request` means; None on a cluster without table snapshots."""
    snapshot = open_table_snapshot(session, info, None, request.partitions, "pinned scan")
    if not snapshot.is_exact:
        return None
    selected = snapshot.buckets
    if request.buckets is not None:
        requested = set(plan_buckets(session.cluster, info, request.partitions, request.buckets))
        selected = [bucket for bucket in selected if bucket in requested]
    return SnapshotScan(snapshot, replace(request, partitions=None, buckets=None), selected)


# ---- listing --------------------------------------------------------------------------------------------------------


def list_table_snapshots(cluster: ClusterClient, table_id: int | None) -> list[TableSnapshotInfo]:
    """See `Admin.list_table_snapshots`."""
    request = pb.ListTableSnapshotsRequest(table_id=table_id)

    def attempt() -> list[TableSnapshotInfo]:
        snapshots = []
        for node in cluster.refresh().tablet_servers.values():
            if cluster.channel(node).versions.offers(ApiKey.LIST_TABLE_SNAPSHOTS):
                answer = cluster.call(node, ApiKey.LIST_TABLE_SNAPSHOTS, request, pb.ListTableSnapshotsResponse)
                snapshots += [snapshot_info_from_pb(message) for message in answer.table_snapshots]
        return snapshots

    return cluster.retrying(attempt)


def release_table_snapshot(cluster: ClusterClient, snapshot_id: str) -> None:
    """See `Admin.release_table_snapshot`."""
    request = pb.ReleaseTableSnapshotRequest(table_snapshot_id=snapshot_id.encode())

    def attempt() -> None:
        for node in cluster.refresh().tablet_servers.values():
            cluster.call(node, ApiKey.RELEASE_TABLE_SNAPSHOT, request, pb.ReleaseTableSnapshotResponse)

    cluster.retrying(attempt)


def snapshot_info_from_pb(message: Any) -> TableSnapshotInfo:
    """Return a table snapshot's description from the message of ListTableSnapshots."""
    return TableSnapshotInfo(
        message.table_snapshot_id.decode(),
        message.table_id,
        message.name,
        dt.timedelta(milliseconds=message.age_ms),
        dt.timedelta(milliseconds=message.lease_left_ms),
        message.bucket_count,
        message.pages,
        message.read_bytes,
    )
