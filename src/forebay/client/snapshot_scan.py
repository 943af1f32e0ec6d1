"""Reading a table snapshot: page by page, from the very same rows, as often as one likes.

A page is asked for by bucket and *position*, the place behind the last row of the page before. The server keeps nothing
about the reader, so a page that got lost is simply asked for again, and whoever knows a position reads on from there.
One page is asked for ahead, so that the server works while we decode.

What failures mean: passing ones are tried again until `client.retry-timeout`; a snapshot that is gone (its lease ended,
its table was dropped, the server was restarted) is `NotFound`, and only another snapshot helps.
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
from forebay.client.rpc import Call
from forebay.client.table_scan import told
from forebay.client.views import RowView
from forebay.codec.value_batch import ValueDecoder, parse_value_batch
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.convert import error_of

if TYPE_CHECKING:
    from forebay.client.live_scan import BucketScan
    from forebay.client.session import Session

GONE = (ErrorCode.SCANNER_EXPIRED, ErrorCode.UNKNOWN_SCANNER_ID)


class Pinned(Protocol):
    """What a scan needs of the `TableSnapshot` that it reads."""

    connection: Session
    info: TableInfo
    log_offsets: dict[TableBucket, int]

    @property
    def raw_id(self) -> bytes: ...

    @property
    def is_exact(self) -> bool: ...

    def bucket_scan(
        self, bucket: TableBucket, view: RowView, limit: int | None, *, decoder: ValueDecoder
    ) -> SnapshotBucketScan: ...


class SnapshotBucketScan:
    """The rows of one bucket of a table snapshot, in key order. Iterate over it. Not thread-safe.

    `position` is the place behind the rows that were handed out: `snapshot.scan_bucket(..., resume_after=position)`
    goes on there, in another process, too. It is None before the first row, and always where the snapshot is not exact.
    A page that a limit has cut, because of a filter, does not move it.
    """

    def __init__(
        self,
        snapshot: Pinned,
        bucket: TableBucket,
        view: RowView,
        limit: int | None = None,
        resume_after: bytes | None = None,
        *,
        decoder: ValueDecoder | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._session = snapshot.connection
        self.bucket = bucket
        self._view = view
        self._decoder = decoder or view.decoder(self._session.cluster)
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
        """The changes below it are in the rows, all others are not."""
        return self._snapshot.log_offsets[self.bucket]

    # ---- driven by a SnapshotReader, or by __iter__ -----------------------------------------------------------------

    def ask(self) -> None:
        """Ask for the next page, unless that has been done."""
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
            self._asked = cluster.send(node, ApiKey.SCAN_KV, request)
        except ForebayError as e:
            self._failed(e)

    def take(self) -> pa.RecordBatch | None:
        """The next rows, waiting for them if need be; None for a page without any, or after a failure that passes."""
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
        page = parse_value_batch(payloads[0]) if payloads else None
        rows = 0 if page is None else len(page[1])
        if rows and not response.HasField("position"):
            raise CorruptData(f"a page of bucket {self.bucket} came without its position")
        if self._left is not None and self._pushes_limit:
            self._left -= rows
        self.finished = not response.has_more_results or self._left == 0
        if rows:
            self._next_position = response.position
        if not rows:
            return None
        assert page is not None
        here = self._next_position
        if not self.finished and (self._pushes_limit or self._left is None):
            self.ask()
        batch = self._view.show(self._decoder.decode(*page))
        if self._left is not None and not self._pushes_limit:
            if batch.num_rows > self._left:
                self.finished = True
                return batch.slice(0, self._left)
            self._left -= batch.num_rows
            self.finished = self.finished or self._left == 0
        self.position = here
        return batch

    def _failed(self, error: ForebayError) -> None:
        """Wait before the next attempt, or raise."""
        where = f"bucket {self.bucket.bucket} of table {self._snapshot.info.path}"
        if error.code in GONE:
            raise gone(f"reading {where}", error)
        if error.stale_metadata:
            self._session.cluster.forget_leader([self.bucket])
        clock = self._session.clock
        now = clock.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if not may_read_again(error) or now - self._failing_since > self._session.settings["client.retry-timeout"]:
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
        """End the reading. The table snapshot stays."""
        self.finished = True

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not begun" if self.position is None else "under way"
        return f"<forebay.SnapshotBucketScan of {self._snapshot.info.path}, {self.bucket}, {state}>"


class LiveBucketScan(SnapshotBucketScan):
    """The same where the cluster has no table snapshots: the rows as they are now, with an offset of their own."""

    def __init__(
        self,
        snapshot: Pinned,
        bucket: TableBucket,
        view: RowView,
        limit: int | None = None,
        *,
        decoder: ValueDecoder | None = None,
    ) -> None:
        from forebay.client.live_scan import BucketScan

        super().__init__(snapshot, bucket, view, limit, decoder=decoder)
        pushed = limit if self._pushes_limit else None
        self._live: BucketScan = BucketScan(
            snapshot.connection, snapshot.info, bucket, view, pushed, decoder=self._decoder
        )

    @property
    def log_offset(self) -> int:
        """The changes below it are in the rows. Known once the first rows have come; before, the snapshot's."""
        live = self._live.log_offset
        return self._snapshot.log_offsets[self.bucket] if live is None else live

    def ask(self) -> None:
        """Nothing is asked for ahead of `take`."""

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
    """The error for a table snapshot that has ended."""
    return NotFound(
        f"{what} is not possible any more: {error.message}. What has been read of the old one belongs to another "
        "instant, so drop it",
        error.code,
    )


class SnapshotReader(RowReader):
    """The rows of a table snapshot, being read, of several buckets at the same time: `snapshot.scan().reader()`."""

    def __init__(self, snapshot: Pinned, buckets: Sequence[TableBucket], view: RowView, limit: int | None) -> None:
        super().__init__(view.schema, limit)
        self._snapshot = snapshot
        self._view = view
        self._limit = limit
        self.buckets = tuple(buckets)
        self._begun: set[TableBucket] = set()
        self._finished: set[TableBucket] = set()

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        return {bucket: self._snapshot.log_offsets[bucket] for bucket in self.buckets}

    @property
    def unread(self) -> list[TableBucket]:
        """The buckets of which nothing has been handed out, and that have not been found empty."""
        return [bucket for bucket in self.buckets if bucket not in self._begun and bucket not in self._finished]

    @property
    def partly_read(self) -> list[TableBucket]:
        """The buckets of which some rows have been handed out, and not yet all."""
        return [bucket for bucket in self.buckets if bucket in self._begun and bucket not in self._finished]

    def _described(self) -> str:
        return f" of {self._snapshot.info.path}, {len(self.buckets)} buckets"

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        session = self._snapshot.connection
        decoder = self._view.decoder(session.cluster)
        waiting = deque(() if self._limit == 0 else self.buckets)
        active: deque[SnapshotBucketScan] = deque()
        # With a limit buckets are read one after the other: reading ahead would be useless.
        most = 1 if self._limit is not None else session.settings["client.scanner.kv.max-sessions"]
        while active or waiting:
            while waiting and len(active) < most:
                scan = self._snapshot.bucket_scan(waiting.popleft(), self._view, self._left, decoder=decoder)
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
    """The rows of a table snapshot: `snapshot.scan()`. Every reading of it gives the same rows."""

    def __init__(self, snapshot: Pinned, request: ScanRequest, buckets: Sequence[TableBucket]) -> None:
        super().__init__(request)
        self._snapshot, self._buckets = snapshot, tuple(buckets)
        self._view = RowView(snapshot.info, request.columns, request.predicate)

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    def reader(self) -> RowReader:
        return self._read(self._buckets)

    def _read(self, buckets: Sequence[TableBucket]) -> RowReader:
        request, snapshot = self._request, self._snapshot
        if not snapshot.is_exact and buckets:
            from forebay.client.live_scan import LiveReader

            request = replace(request, partitions=None, buckets=buckets)
            return LiveReader(snapshot.connection, snapshot.info, request)
        return SnapshotReader(snapshot, buckets, self._view, request.limit)

    def plan(self) -> Sequence[TableBucket]:
        """The buckets to read, for engines that read with several workers; see `read_split`."""
        return list(self._buckets)

    def read_split(self, split: TableBucket) -> RowReader:
        return self._read([split])

    def explain(self) -> str:
        return "\n".join([repr(self._snapshot), *told(self._request, len(self._buckets))])

    def _described(self) -> str:
        return f" of {self._snapshot.info.path}, {len(self._buckets)} buckets"

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._snapshot, request, self._buckets)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._snapshot, self._request, self._buckets)
