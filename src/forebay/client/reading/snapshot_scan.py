"""Scans of a table snapshot: page by page, any number of times, always of the same rows.

A page is requested by bucket and *position*, the place after the last row of the previous page. The server keeps no
state of the reader, so a lost page is simply requested again, and any process that knows a position can resume there.
One page is prefetched, so that the server works while the client decodes.

Failures: transient ones are retried until `client.retry-timeout`; a snapshot that is gone (its lease expired, its table
was dropped, the server was restarted) raises `NotFound`, and a new snapshot is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from forebay.api.scan import RowReader, Scan, ScanRequest
from forebay.base.errors import CorruptData, ErrorCode, ForebayError, NotFound
from forebay.base.retrying import BackOff, WaitNotice, may_read_again
from forebay.client.cluster.rpc import Call
from forebay.client.reading.planning import explained, fixes_keys
from forebay.client.views import Pages, RowView
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import error_of

if TYPE_CHECKING:
    from forebay.client.reading.live_scan import BucketScan
    from forebay.client.session import Session

GONE = (ErrorCode.SCANNER_EXPIRED, ErrorCode.UNKNOWN_SCANNER_ID)


class Pinned(Protocol):
    """What a scan needs of its `TableSnapshot`."""

    connection: Session
    info: TableInfo
    log_offsets: dict[TableBucket, int]

    @property
    def raw_id(self) -> bytes: ...

    @property
    def is_exact(self) -> bool: ...

    def release(self) -> None: ...

    def bucket_scan(
        self, bucket: TableBucket, view: RowView, limit: int | None, resume_after: bytes | None, *, pages: Pages
    ) -> SnapshotBucketScan: ...


class SnapshotBucketScan:
    """A scan of one bucket of a table snapshot, in key order. Iterate over it. Not thread-safe.

    `position` is the place after the rows returned so far: `snapshot.scan_bucket(..., resume_after=position)` resumes
    there, also in another process. It is None before the first row, and always if the snapshot is not exact. A page
    truncated by a limit because of a filter does not advance it.
    """

    def __init__(
        self,
        snapshot: Pinned,
        bucket: TableBucket,
        view: RowView,
        limit: int | None = None,
        resume_after: bytes | None = None,
        *,
        pages: Pages | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._session = snapshot.connection
        self.bucket = bucket
        self._view = view
        self._pages = pages or Pages(view, self._session.cluster)
        self._left = limit
        self._pushes_limit = view.bound is None
        self.position = resume_after
        self._next_position = resume_after
        self.finished = limit == 0
        self._asked: Call | None = None
        self._back_off = BackOff(self._session.ids)
        self._failing_since: float | None = None
        self._notice = WaitNotice(snapshot.connection.clock)

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    @property
    def log_offset(self) -> int:
        """Changes below this offset are included in the rows, all others are not."""
        return self._snapshot.log_offsets[self.bucket]

    # ---- driven by a SnapshotReader, or by __iter__ -----------------------------------------------------------------

    def ask(self) -> None:
        """Request the next page, unless it is requested already."""
        if self.finished or self._asked is not None:
            return
        cluster, bucket = self._session.cluster, self.bucket
        request = pb.ScanKvRequest(
            table_snapshot_id=self._snapshot.raw_id,
            resume_after=self._next_position,
            batch_size_bytes=self._session.settings["client.scanner.kv.fetch.max-bytes"],
            bucket_scan_req=pb.PbScanReqForBucket(
                table_id=bucket.table_id,
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket,
                limit=self._left if self._pushes_limit else None,
            ),
        )
        try:
            node = cluster.leader(self._snapshot.info.path, bucket)
            wanted = self._pages.wanted_of(node)
            if wanted is not None:
                request.as_arrow.CopyFrom(wanted)
            self._asked = cluster.send(node, ApiKey.SCAN_KV, request)
        except ForebayError as e:
            self._failed(e)

    def take(self) -> pa.RecordBatch | None:
        """The next rows, blocking if necessary; None for a page without rows, or after a transient failure."""
        self.ask()
        call, self._asked = self._asked, None
        if call is None:
            return None
        limit = self._session.cluster.request_seconds
        try:
            if not call.wait(call.sent_at + limit - self._session.clock.monotonic()):
                call.give_up(limit)
            response, payloads = call.response().parse_split(pb.ScanKvResponse)
            error = error_of(response)
            if error is not None:
                raise error
        except ForebayError as e:
            self._failed(e)
            return None
        if self._failing_since is not None:
            self._failing_since, self._back_off = None, BackOff(self._session.ids)
            self._notice.over()
        return self._page(response, payloads)

    def _page(self, response: pb.ScanKvResponse, payloads: Sequence[memoryview]) -> pa.RecordBatch | None:
        page = self._pages.page(response, payloads)
        is_at_end = not response.has_more_results
        if not response.HasField("position") and (page.rows or not is_at_end):
            raise CorruptData(f"a page of bucket {self.bucket} came without its position")
        if self._left is not None and self._pushes_limit:
            self._left -= page.rows
        self.finished = is_at_end or self._left == 0
        if response.HasField("position"):
            self._next_position = response.position
        here = self._next_position
        if not self.finished and (self._pushes_limit or self._left is None):
            self.ask()
        if not page.rows:  # the filter may have excluded each row of a page
            self.position = here
            return None
        batch = self._view.show(page.decode())
        if self._left is not None and not self._pushes_limit:
            if batch.num_rows > self._left:
                self.finished = True
                return batch.slice(0, self._left)
            self._left -= batch.num_rows
            self.finished = self.finished or self._left == 0
        self.position = here
        return batch

    def _failed(self, error: ForebayError) -> None:
        """Wait before a retry, or raise."""
        where = f"bucket {self.bucket.bucket} of table {self._snapshot.info.path}"
        if error.code in GONE:
            raise gone(f"reading {where}", error)
        if error.stale_metadata:
            self._session.cluster.forget_leader([self.bucket])
        clock = self._session.clock
        now = clock.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if not may_read_again(error) or now - self._failing_since > self._session.cluster.retry_seconds:
            raise type(error)(f"reading {where} failed: {error.message}", error.code)
        self._notice.tell(f"reading {where}: {error.message}")
        clock.sleep(self._back_off.next_seconds())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            while not self.finished:
                batch = self.take()
                if batch is not None and batch.num_rows:
                    yield batch
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading. The table snapshot stays open."""
        self.finished = True

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not begun" if self.position is None else "under way"
        return f"<forebay.SnapshotBucketScan of {self._snapshot.info.path}, {self.bucket}, {state}>"


class LiveBucketScan(SnapshotBucketScan):
    """The same for clusters without table snapshots: the current rows, with their own log offset."""

    def __init__(
        self,
        snapshot: Pinned,
        bucket: TableBucket,
        view: RowView,
        limit: int | None = None,
        *,
        pages: Pages | None = None,
    ) -> None:
        from forebay.client.reading.live_scan import BucketScan

        super().__init__(snapshot, bucket, view, limit, pages=pages)
        pushed = limit if self._pushes_limit else None
        self._live: BucketScan = BucketScan(snapshot.connection, snapshot.info, bucket, view, pushed, pages=self._pages)

    @property
    def log_offset(self) -> int:
        """Changes below this offset are included in the rows. Until the first rows arrive, the snapshot's offset."""
        live = self._live.log_offset
        return self._snapshot.log_offsets[self.bucket] if live is None else live

    def ask(self) -> None:
        """Do nothing: `take` does not prefetch."""

    def take(self) -> pa.RecordBatch | None:
        if not self._live.finished:
            self._live.wait()
        batch = self._live.take()
        self.finished = self._live.finished
        if batch is not None and self._left is not None and not self._pushes_limit:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
            self.finished = self.finished or self._left == 0
        return batch

    def close(self) -> None:
        super().close()
        self._live.close()


def gone(what: str, error: ForebayError) -> NotFound:
    """The error for a table snapshot that no longer exists."""
    return NotFound(
        f"{what} is no longer possible: {error.message}. What has been read of the old one belongs to another "
        "instant, so drop it",
        error.code,
    )


class SnapshotReader(RowReader):
    """A reader of a table snapshot, which reads several buckets concurrently: `snapshot.scan().reader()`.

    `after` are the positions of buckets that another reader has begun to read. `covered` are all buckets of the scan,
    where `buckets` are only those that can have matching rows.
    """

    def __init__(
        self,
        snapshot: Pinned,
        buckets: Sequence[TableBucket],
        view: RowView,
        limit: int | None,
        after: Mapping[TableBucket, bytes] | None = None,
        *,
        covered: Sequence[TableBucket] | None = None,
    ) -> None:
        super().__init__(view.schema, limit)
        self._snapshot = snapshot
        self._view = view
        self._limit = limit
        self.buckets = tuple(buckets)
        self._covered = self.buckets if covered is None else tuple(covered)
        self._after = {} if after is None else after
        self._begun: set[TableBucket] = set(self._after)
        self._finished: set[TableBucket] = set()

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        return {bucket: self._snapshot.log_offsets[bucket] for bucket in self._covered}

    @property
    def unread(self) -> list[TableBucket]:
        """The buckets of which no rows have been returned yet, without those found to be empty."""
        return [bucket for bucket in self.buckets if bucket not in self._begun and bucket not in self._finished]

    @property
    def partly_read(self) -> list[TableBucket]:
        """The buckets of which some but not all rows have been returned."""
        return [bucket for bucket in self.buckets if bucket in self._begun and bucket not in self._finished]

    def _described(self) -> str:
        return f" of {self._snapshot.info.path}, {len(self.buckets)} buckets"

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        session = self._snapshot.connection
        pages = Pages(self._view, session.cluster)
        waiting = deque(() if self._limit == 0 else self.buckets)
        active: deque[SnapshotBucketScan] = deque()
        # With a limit, buckets are read one at a time: prefetching would be wasted.
        most = 1 if self._limit is not None else session.settings["client.scanner.kv.max-sessions"]
        while active or waiting:
            while waiting and len(active) < most:
                bucket = waiting.popleft()
                after = self._after.get(bucket)
                scan = self._snapshot.bucket_scan(bucket, self._view, self._left, after, pages=pages)
                scan.ask()
                active.append(scan)
            scan = active.popleft()
            batch = scan.take()
            if scan.finished:
                self._finished.add(scan.bucket)
            else:
                active.append(scan)
            if batch is not None and batch.num_rows:
                self._begun.add(scan.bucket)
                yield scan.bucket, batch


class SnapshotScan(Scan):
    """A scan of a table snapshot: `snapshot.scan()`. Every run returns the same rows."""

    def __init__(self, snapshot: Pinned, request: ScanRequest, buckets: Sequence[TableBucket]) -> None:
        super().__init__(request)
        self._snapshot, self._buckets = snapshot, tuple(buckets)
        self._view = RowView(snapshot.info, request.columns, request.predicate)

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    def reader(self) -> RowReader:
        info, predicate, snapshot = self._snapshot.info, self._request.predicate, self._snapshot
        if snapshot.is_exact and fixes_keys(info, predicate):
            from forebay.client.reading.key_filter import possible_buckets

            possible = possible_buckets(info, predicate, self._buckets)
            return SnapshotReader(snapshot, possible, self._view, self._request.limit, covered=self._buckets)
        return self._read(self._buckets)

    def pinned(self) -> Scan:
        if self._request.limit is None and (self._snapshot.is_exact or not self._buckets):
            return self
        return super().pinned()

    def release(self) -> None:
        self._snapshot.release()

    def _read(self, buckets: Sequence[TableBucket]) -> RowReader:
        request, snapshot = self._request, self._snapshot
        if not snapshot.is_exact and buckets:
            from forebay.client.reading.live_scan import LiveReader

            request = replace(request, partitions=None, buckets=buckets)
            return LiveReader(snapshot.connection, snapshot.info, request)
        return SnapshotReader(snapshot, buckets, self._view, request.limit)

    def plan(self) -> Sequence[TableBucket]:
        """The buckets to read, for engines that read with several workers; see `read_split`."""
        return list(self._buckets)

    def read_split(self, split: TableBucket) -> RowReader:
        return self._read([split])

    def explain(self) -> str:
        return "\n".join([repr(self._snapshot), *explained(self._request, len(self._buckets))])

    def _described(self) -> str:
        return f" of {self._snapshot.info.path}, {len(self._buckets)} buckets"

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._snapshot, request, self._buckets)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._snapshot, self._request, self._buckets)
