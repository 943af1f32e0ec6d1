"""Cursors of live scans: the current rows of a bucket, read from the server that holds it (FIP-17, ScanKv).

A *session* is a scan of one bucket on its leader, a snapshot taken when it opens. A bucket is read as of one point in
time, given by `log_offset`; different buckets have different points in time.

Failures:

    transient, while opening     retried until client.retry-timeout: nothing has been read yet
    TOO_MANY_SCANNERS            the bucket waits for another session of its reader to end; without one, retried until
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
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.base.errors import (
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from forebay.base.retrying import may_read_again
from forebay.client.cluster.buckets import check_bucket
from forebay.client.cluster.rpc import Call
from forebay.client.reading.bucket_reader import BucketCursor, BucketReader, PageRequest, Retry, TableReader, about
from forebay.client.reading.pages import Pages
from forebay.client.row_view import RowView
from forebay.metadata.log_offset import with_epoch
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode

if TYPE_CHECKING:
    from forebay.client.session import Session

_GONE = (ErrorCode.SCANNER_EXPIRED, ErrorCode.UNKNOWN_SCANNER_ID)
_CANNOT_REPEAT = (*_GONE, ErrorCode.INVALID_SCAN_REQUEST)
_LOST = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIME_OUT)


class LiveCursor(BucketCursor):
    """The current rows of a bucket.

    `log_offset` is known once the first page has arrived; until then it is `first_offset`.
    """

    def __init__(self, session: Session, view: RowView, bucket: TableBucket, first_offset: int | None = None) -> None:
        self._session, self._info, self._view = session, view.info, view
        self.bucket = bucket
        self._log_offset = first_offset
        self._page_bytes: int = session.settings["client.scanner.kv.fetch.max-bytes"]
        self._process = os.getpid()
        self._begin()

    def _begin(self) -> None:
        self._node: ServerNode | None = None
        self._scanner_id: bytes | None = None
        self._sequence = 0
        self._repeated = False

    @property
    def log_offset(self) -> int | None:
        return self._log_offset

    # ---- pages ------------------------------------------------------------------------------------------------------

    def request(self, pages: Pages, limit: int | None) -> PageRequest | None:
        """Open a session, continue it, or repeat the last call. None: the cluster has no live scans."""
        if self._process != os.getpid():
            raise InvalidRequest("this scan belongs to the process that began it; begin another one after a fork")
        message = pb.ScanKvRequest(call_seq_id=self._sequence, batch_size_bytes=self._page_bytes)
        if self._scanner_id is not None:
            message.scanner_id = self._scanner_id
            return PageRequest(self._leader(), message)
        cluster = self._session.cluster
        self._node = node = cluster.leader(self._info.path, self.bucket)
        if self._must_replay(node):
            return None
        message.bucket_scan_req.CopyFrom(
            pb.PbScanReqForBucket(
                table_id=self.bucket.table_id,
                partition_id=self.bucket.partition_id,
                bucket_id=self.bucket.bucket,
                limit=limit,
            )
        )
        if cluster.has_log_epochs(node):
            message.with_log_epoch = True
        as_arrow = pages.arrow_request(node)
        if as_arrow is not None:
            message.as_arrow.CopyFrom(as_arrow)
        return PageRequest(node, message)

    def received(self, response: pb.ScanKvResponse, rows: int) -> bool:
        """Store the log offset and the scan session. The last page has no session: the server has closed it."""
        self._repeated = False
        if response.HasField("log_offset"):
            self._log_offset = with_epoch(response.log_offset, response.log_epoch)
        if response.has_more_results:
            if response.HasField("scanner_id"):
                self._scanner_id = response.scanner_id
            self._sequence += 1
            return False
        self._scanner_id = None
        return True

    def _leader(self) -> ServerNode:
        if self._node is None:
            raise InternalError("a scan session without a server")
        return self._node

    # ---- clusters without ScanKv ------------------------------------------------------------------------------------

    def _must_replay(self, node: ServerNode) -> bool:
        """Whether live scans are unsupported by the cluster, or disabled by the settings."""
        if not self._session.settings.scans_on_servers:
            return True
        if self._session.cluster.channel(node).versions.offers(ApiKey.SCAN_KV):
            return False
        warn_once(self._session)
        return True

    def rows(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Return the rows by replaying the bucket's changelog, for clusters without scans."""
        from forebay.client.reading.replay import ReplayCursor

        replay = ReplayCursor(self._session, self._view, self.bucket)
        rows = replay.rows(limit)
        self._log_offset = replay.log_offset
        return rows

    # ---- failures ---------------------------------------------------------------------------------------------------

    def failed(self, error: ForebayError, rows_read: int) -> Retry:
        """Return how to retry.

        A page lost in transit is requested again. A session that has not returned rows is replaced by a new one. Raises
        the error if rows have been returned and the session is lost, because a new one reads another instant.
        """
        if error.code == ErrorCode.TOO_MANY_SCANNERS and self._scanner_id is None:
            return self._refused(error)
        if error.stale_metadata:
            self._session.cluster.forget_leader([self.bucket])
        if self._scanner_id is None:
            if not may_read_again(error):
                raise about("scanning", error, self._info, self.bucket)
        elif error.code in _LOST:
            self._repeated = True
        elif rows_read == 0 and (may_read_again(error) or error.code in _CANNOT_REPEAT):
            self._send_close(self._scanner_id)
            self._begin()
        else:
            raise self._broken(error)
        return Retry(
            self._session.settings["client.retry-timeout"],
            about("scanning", error, self._info, self.bucket),
            f"scanning bucket {self.bucket.bucket} of table {self._info.path}: {error.message}",
        )

    def _refused(self, error: ForebayError) -> Retry:
        """A server at its session limit: retry for a limited time."""
        limit: float = self._session.settings["client.scanner.kv.open-timeout"]
        final = LimitExceeded(
            f"no scan session for bucket {self.bucket.bucket} of table {self._info.path} within {limit:g} s "
            f"('client.scanner.kv.open-timeout'): {error.message}. Close scans that are not read to their end, run "
            "fewer at a time, or raise the server's limits",
            error.code,
        )
        return Retry(limit, final, is_refusal=True)

    def _broken(self, error: ForebayError) -> ForebayError:
        """The error of a scan that cannot continue, although some of its rows have been returned."""
        self._scanner_id = None if error.code in _GONE else self._scanner_id
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
        return about("scanning", error, self._info, self.bucket)

    # ---- ends -------------------------------------------------------------------------------------------------------

    def close(self, call: Call | None) -> None:
        """Close the session without waiting for the response. `call` may have opened it."""
        if self._process != os.getpid():
            return
        if call is None:
            self._send_close(self._scanner_id)
            return
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
        message = pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True, batch_size_bytes=self._page_bytes)
        try:
            self._session.cluster.send(self._leader(), ApiKey.SCAN_KV, message)
        except ForebayError:
            return  # best effort: the server expires idle sessions


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


def bucket_scan(
    session: Session,
    info: TableInfo,
    bucket: TableBucket | int,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> BucketReader:
    """A reader of the current rows of one bucket: cheap to open, for tasks that read one bucket each."""
    view = RowView(info, columns)
    return BucketReader(session, view, LiveCursor(session, view, check_bucket(info, bucket)), limit)


def live_reader(
    session: Session, view: RowView, buckets: Iterable[TableBucket], limit: int | None = None
) -> TableReader:
    """A reader of the current rows of `buckets`."""
    return TableReader(session, view, buckets, lambda bucket: LiveCursor(session, view, bucket), limit)
