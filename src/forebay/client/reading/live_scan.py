"""Live scans: the current rows of a primary-key table, read from the servers that hold them (FIP-17, ScanKv).

Nouns: a *session* is a scan of one bucket on its leader, a snapshot taken when it opens; a *page* is one response. A
`BucketScan` reads one session; a `LiveReader` reads all buckets of a table through a few sessions at a time.

Rules: a bucket is read as of one point in time, given by `log_offsets`; different buckets have different points in
time. One page is prefetched, so that the server works while the client decodes; a limit is sent to the server, and then
buckets are read one at a time, so that no more rows are read than the limit needs. Memory does not depend on the size
of the table: at most two pages per session.

Failures:

    transient, while opening     retried until client.retry-timeout: nothing has been read yet
    TOO_MANY_SCANNERS            the bucket waits for one of this reader's sessions to end; without one, retried until
                                 client.scanner.kv.open-timeout
    lost page                    requested again with the same call number; a Forebay server resends it, a Fluss server
                                 refuses (INVALID_SCAN_REQUEST), and the scan fails, unless no rows of the bucket have
                                 been returned: then it starts over
    session gone, leader moved   the same: start over if no rows have been returned, otherwise fail

Clusters without ScanKv (Fluss 0.9) are read by forebay.client.reading.replay, with one warning; so are others with
`client.scanner.kv.batch-strategy=snapshot_merge`.

Prior art: KvBatchScanner of Fluss, which opens all buckets at once and cannot retry a page.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.api.scan import RowReader, ScanRequest
from forebay.base import threads
from forebay.base.errors import (
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from forebay.base.retrying import BackOff, WaitNotice, may_read_again
from forebay.client.cluster.buckets import check_bucket, plan_buckets
from forebay.client.cluster.rpc import Call
from forebay.client.views import Pages, RowView
from forebay.metadata.log_offset import with_epoch
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode
from forebay.protocol.messages import error_of

if TYPE_CHECKING:
    from forebay.client.session import Session

_GONE = (ErrorCode.SCANNER_EXPIRED, ErrorCode.UNKNOWN_SCANNER_ID)
_CANNOT_REPEAT = (*_GONE, ErrorCode.INVALID_SCAN_REQUEST)
_LOST = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIME_OUT)


class BucketScan:
    """A scan of one bucket. Iterate over it, or let a `LiveReader` drive it. Not thread-safe.

    `log_offset` is known once the first page has arrived: changes below it are included, later ones are not.
    """

    def __init__(
        self,
        session: Session,
        info: TableInfo,
        bucket: TableBucket,
        view: RowView,
        limit: int | None = None,
        *,
        pages: Pages | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._session = session
        self._info = info
        self.bucket = bucket
        self._view = view
        self._pages = pages or Pages(view, session.cluster)
        self._wake = wake
        self._limit = limit
        self._page_bytes: int = session.settings["client.scanner.kv.fetch.max-bytes"]
        self._retry_seconds: float = session.settings["client.retry-timeout"]
        self._begin()
        self.log_offset: int | None = None
        self.rows_handed_out = 0
        self.finished = limit == 0  # on the wire 0 means no limit
        self.refused = False
        self._open_seconds: float = session.settings["client.scanner.kv.open-timeout"]
        self._replay: Iterator[pa.RecordBatch] | None = None
        self._process = os.getpid()
        self._back_off = BackOff(session.ids)
        self._failing_since: float | None = None
        self._notice = WaitNotice(session.clock)

    def _begin(self) -> None:
        self._node: ServerNode | None = None
        self._scanner_id: bytes | None = None
        self._sequence = 0
        self._call: Call | None = None
        self._closing = False
        self._repeated = False
        self.not_before = 0.0

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    # ---- driven by a LiveReader, or by __iter__ ---------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns without blocking."""
        return self.finished or self._replay is not None or (self._call is not None and self._call.done)

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight: call `ask`, once `not_before` has passed."""
        return not self.finished and self._call is None and self._replay is None

    def ask(self) -> None:
        """Send the next request: open, continue, or retry. A transient failure only postpones `not_before`."""
        if self._process != os.getpid():
            raise InvalidRequest("this scan belongs to the process that began it; begin another one after a fork")
        try:
            request = pb.ScanKvRequest(call_seq_id=self._sequence, batch_size_bytes=self._page_bytes)
            if self._scanner_id is None:
                self._node = node = self._session.cluster.leader(self._info.path, self.bucket)
                if self._must_replay(node):
                    self._replay_instead()
                    return
                request.bucket_scan_req.CopyFrom(
                    pb.PbScanReqForBucket(
                        table_id=self.bucket.table_id,
                        partition_id=self.bucket.partition_id,
                        bucket_id=self.bucket.bucket,
                        limit=self._limit,
                    )
                )
                if self._session.cluster.has_log_epochs(node):
                    request.with_log_epoch = True
                wanted = self._pages.wanted_of(node)
                if wanted is not None:
                    request.as_arrow.CopyFrom(wanted)
            else:
                request.scanner_id = self._scanner_id
            self._call = self._send(request, self._answered)
        except ForebayError as e:
            self._failed(e)

    def _send(self, request: pb.ScanKvRequest, callback: Callable[[Call], None] | None) -> Call:
        if self._node is None:
            raise InternalError("a scan session without a server")
        return self._session.cluster.send(self._node, ApiKey.SCAN_KV, request, callback=callback)

    def take(self) -> pa.RecordBatch | None:
        """The page that has arrived, or None if it has no rows; the next one is requested before decoding this one."""
        if self._replay is not None:
            return self._take_replayed()
        call, self._call = self._call, None
        if call is None:
            return None
        try:
            response, payloads = call.response().parse_split(pb.ScanKvResponse)
            error = error_of(response)
            if error is not None:
                raise error
        except ForebayError as e:
            self._failed(e)
            return None
        self._failing_since, self._back_off = None, BackOff(self._session.ids)
        self._notice.over()
        self.refused = self._repeated = False
        if response.HasField("log_offset"):
            self.log_offset = with_epoch(response.log_offset, response.log_epoch)
        if response.HasField("scanner_id"):
            self._scanner_id = response.scanner_id
        page = self._pages.page(response, payloads)
        self.rows_handed_out += page.rows
        if response.has_more_results:
            self._sequence += 1
            self.ask()
        else:
            self._scanner_id = None
            self.finished = True
        return self._view.show(page.decode()) if page.rows else None

    def wait(self) -> None:
        """Wait until `take` does not block."""
        clock = self._session.clock
        if self.is_idle:
            clock.sleep(max(self.not_before - clock.monotonic(), 0.0))
            self.ask()
        if self._call is not None:
            self._wait_for_call(self._call)

    def _wait_for_call(self, call: Call) -> None:
        limit = self._session.cluster.request_seconds
        if not call.wait(call.sent_at + limit - self._session.clock.monotonic()):
            call.give_up(limit)

    def check_overdue(self) -> None:
        """Abandon a request that has timed out."""
        call, limit = self._call, self._session.cluster.request_seconds
        if call is None or call.done:
            return
        if call.sent_at + limit <= self._session.clock.monotonic():
            call.give_up(limit)
        else:
            call.tell_if_late()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            while not self.finished:
                self.wait()
                batch = self.take()
                if batch is not None and batch.num_rows:
                    yield batch
        finally:
            self.close()

    # ---- failures ---------------------------------------------------------------------------------------------------

    def _failed(self, error: ForebayError) -> None:
        """Handle a failure: schedule a retry, or raise."""
        self._call = None
        if error.code == ErrorCode.TOO_MANY_SCANNERS and self._scanner_id is None:
            self._refuse(error)
            return
        if error.stale_metadata:
            self._session.cluster.forget_leader([self.bucket])
        if self._scanner_id is None:
            if not may_read_again(error):
                raise _about(error, self._info, self.bucket)
            self._try_later(error)
        elif error.code in _LOST:
            self._repeated = True
            self._try_later(error)
        elif self.rows_handed_out == 0 and (may_read_again(error) or error.code in _CANNOT_REPEAT):
            self._start_again(error)
        else:
            raise self._broken(error)

    def _refuse(self, error: ForebayError) -> None:
        """Handle a server at its session limit: retry for a limited time."""
        now, limit = self._session.clock.monotonic(), self._open_seconds
        self.refused = True
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > limit:
            raise LimitExceeded(
                f"no scan session for bucket {self.bucket.bucket} of table {self._info.path} within {limit:g} s "
                f"('client.scanner.kv.open-timeout'): {error.message}. Close scans that are not read to their end, run "
                "fewer at a time, or raise the server's limits",
                error.code,
            )
        self.not_before = now + self._back_off.next_seconds()

    def _start_again(self, error: ForebayError) -> None:
        self.close()
        self._begin()
        self._try_later(error)

    def _try_later(self, error: ForebayError) -> None:
        clock = self._session.clock
        now = clock.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > self._retry_seconds:
            raise _about(error, self._info, self.bucket)
        self._notice.tell(f"scanning bucket {self.bucket.bucket} of table {self._info.path}: {error.message}")
        self.not_before = now + self._back_off.next_seconds()

    def _broken(self, error: ForebayError) -> ForebayError:
        """The error of a scan that cannot continue, although some of its rows have been returned."""
        self._scanner_id = None if error.code in _GONE else self._scanner_id
        self.close()
        self.finished = True
        where = f"the scan of bucket {self.bucket.bucket} of table {self._info.path}"
        if self._repeated and error.code in _CANNOT_REPEAT:
            return Unavailable(
                f"{where} lost a page in transit, and the server cannot send it again ({error.message}). Scan the "
                "bucket again; its rows so far belong to another instant, so drop them"
            )
        if error.code in _GONE:
            return NotFound(
                f"{where} was ended by the server: {error.message}. A session ends when its reader pauses for longer "
                "than the server's 'kv.scanner.ttl', or when the bucket moves. Read faster, into memory first if need "
                "be, or raise that setting; then scan the bucket again",
                error.code,
            )
        if may_read_again(error):
            return Unavailable(
                f"{where} cannot go on, because the bucket has moved or its server is away ({error.message}). Scan the "
                "bucket again; its rows so far belong to another instant, so drop them",
                error.code,
            )
        return _about(error, self._info, self.bucket)

    # ---- ends -------------------------------------------------------------------------------------------------------

    def _answered(self, call: Call) -> None:
        if self._closing:
            self._close_session(call)
        elif self._wake is not None:
            self._wake()

    def close(self) -> None:
        """Close the session on the server without waiting for the response. Idempotent."""
        if self._closing or self._process != os.getpid():
            return
        self._closing = True
        call = self._call
        if call is None:
            self._send_close(self._scanner_id)
        elif call.done:
            self._close_session(call)
        # An in-flight call must complete first: closing concurrently would be an error. Its callback closes the
        # session.

    def _close_session(self, call: Call) -> None:
        try:
            response = call.response().parse_split(pb.ScanKvResponse)[0]
        except ForebayError:
            self._send_close(self._scanner_id)  # the session may still exist
            return
        if response.has_more_results:
            self._send_close(response.scanner_id)

    def _send_close(self, scanner_id: bytes | None) -> None:
        if scanner_id is None or self._session.closed:
            return
        try:
            self._send(
                pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True, batch_size_bytes=self._page_bytes), None
            )
        except ForebayError:
            return  # best effort: the server expires idle sessions

    def __repr__(self) -> str:
        state = "finished" if self.finished else f"{self.rows_handed_out} rows read"
        return f"<forebay.BucketScan of {self._info.path}, {self.bucket}, {state}>"

    # ---- clusters without ScanKv ------------------------------------------------------------------------------------

    def _must_replay(self, node: ServerNode) -> bool:
        """Whether live scans are unsupported by the cluster, or disabled by the settings."""
        if not self._session.settings.scans_on_servers:
            return True
        if self._session.cluster.channel(node).versions.offers(ApiKey.SCAN_KV):
            return False
        warn_once(self._session)
        return True

    def _replay_instead(self) -> None:
        from forebay.client.reading.replay import current_rows

        replayed = current_rows(self._session, self._info, self.bucket, self._view, self._limit)
        self.log_offset = replayed.log_offset
        self._replay = replayed.batches

    def _take_replayed(self) -> pa.RecordBatch | None:
        batch = next(self._replay, None) if self._replay is not None else None
        if batch is None:
            self.finished = True
        else:
            self.rows_handed_out += batch.num_rows
        return batch


_warned: set[str] = set()


def warn_once(session: Session) -> None:
    """Warn, once per cluster and process, that the cluster does not support ScanKv."""
    servers = repr(session.settings.bootstrap_servers)
    if servers not in _warned:
        _warned.add(servers)
        warnings.warn(
            "this cluster has no ScanKv API (it came after Fluss 0.9): the current rows are rebuilt from the changelog "
            "or fetched by limit scans, which takes memory and time in proportion to the table",
            RuntimeWarning,
            stacklevel=2,
        )


def _about(error: ForebayError, info: TableInfo, bucket: TableBucket) -> ForebayError:
    return type(error)(f"scanning bucket {bucket.bucket} of table {info.path} failed: {error.message}", error.code)


def bucket_scan(
    session: Session,
    info: TableInfo,
    bucket: TableBucket | int,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> BucketScan:
    """A reader of the current rows of one bucket: cheap to open, for tasks that read one bucket each."""
    return BucketScan(session, info, check_bucket(info, bucket), RowView(info, columns), limit)


class LiveReader(RowReader):
    """A reader of the current rows of a primary-key table: `table.scan().reader()`."""

    def __init__(self, session: Session, info: TableInfo, request: ScanRequest) -> None:
        self._session, self._info = session, info
        self._view = RowView(info, request.columns, request.predicate)
        super().__init__(self._view.schema, request.limit)
        self._pages = Pages(self._view, session.cluster)
        buckets = plan_buckets(session.cluster, info, request.partitions, request.buckets)
        self.buckets: Sequence[TableBucket] = tuple(buckets)
        self._waiting = deque(buckets if request.limit != 0 else ())
        self._active: deque[BucketScan] = deque()
        self._log_offsets: dict[TableBucket, int] = {}
        self._finished: set[TableBucket] = set()
        self._changed = threads.event()
        # With a limit, buckets are read one at a time: prefetching would be wasted.
        limited = request.limit is not None
        self._sessions_max: int = 1 if limited else self._session.settings["client.scanner.kv.max-sessions"]
        self._pushed_limit = limited and request.predicate is None

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        return dict(self._log_offsets)

    @property
    def remaining(self) -> list[TableBucket]:
        """The buckets that have not been read completely: `table.scan(buckets=...)` with these reads the rest.

        After an error they include the buckets that were being read; discard the rows already returned for these.
        """
        return [bucket for bucket in self.buckets if bucket not in self._finished]

    def _described(self) -> str:
        return f" of {self._info.path}, {len(self.buckets) - len(self.remaining)} of {len(self.buckets)} buckets read"

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        try:
            while self._active or self._waiting:
                self._open_more()
                scan = self._next_ready()
                if scan is None:
                    continue
                batch = scan.take()
                if scan.log_offset is not None:
                    self._log_offsets[scan.bucket] = scan.log_offset
                if scan.finished:
                    self._active.remove(scan)
                    self._finished.add(scan.bucket)
                if batch is not None and batch.num_rows:
                    yield scan.bucket, batch
        finally:
            for scan in self._active:
                scan.close()
            self._active.clear()

    def _open_more(self) -> None:
        while self._waiting and len(self._active) < self._sessions_max:
            scan = BucketScan(
                self._session,
                self._info,
                self._waiting.popleft(),
                self._view,
                self._left if self._pushed_limit else None,
                pages=self._pages,
                wake=self._changed.set,
            )
            self._active.append(scan)
            scan.ask()

    def _next_ready(self) -> BucketScan | None:
        """A scan whose page has arrived, in round-robin order; None if none arrives within the wait."""
        self._changed.clear()
        now = self._session.clock.monotonic()
        wake_in = 1.0
        for scan in list(self._active):
            if scan.is_idle:
                if scan.refused and len(self._active) > 1:
                    # One of our own sessions will end before those of other clients do.
                    self._active.remove(scan)
                    self._waiting.appendleft(scan.bucket)
                    self._sessions_max = len(self._active)
                    continue
                if scan.not_before <= now:
                    scan.ask()
                else:
                    wake_in = min(wake_in, scan.not_before - now)
            scan.check_overdue()
            if scan.is_ready:
                self._active.remove(scan)
                self._active.append(scan)
                return scan
        if self._active:
            self._changed.wait(wake_in)
        return None
