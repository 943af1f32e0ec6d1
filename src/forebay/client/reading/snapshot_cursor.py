"""Cursors of table snapshots: the rows of a bucket, page by page, the same rows in the same order each time.

The order is that of the server's engine: of keys with LMDB, of the engine's log with hlog.

A page is requested by bucket and *position*, the place after the last row of the previous page. The server keeps no
state of the reader, so a lost page is simply requested again, and any process that knows a position can resume there.

Failures: transient ones are retried until `client.retry-timeout`; a snapshot that is gone (its lease expired, its table
was dropped, the server was restarted) raises `NotFound`, and a new snapshot is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from forebay.base.errors import CorruptData, ErrorCode, ForebayError, NotFound
from forebay.base.retrying import may_read_again
from forebay.client.reading.bucket_reader import BucketCursor, PageRequest, Retry, TableReader, about
from forebay.client.reading.pages import Pages
from forebay.client.row_view import RowView
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb

if TYPE_CHECKING:
    from forebay.client.session import Session

GONE = (ErrorCode.SCANNER_EXPIRED, ErrorCode.UNKNOWN_SCANNER_ID)


class PinnedRows(Protocol):
    """The methods of a `TableSnapshot` that a cursor needs."""

    connection: Session
    info: TableInfo
    log_offsets: dict[TableBucket, int]

    @property
    def raw_id(self) -> bytes: ...


class SnapshotCursor(BucketCursor):
    """The rows of one bucket of a table snapshot, from the first one or from a position on."""

    def __init__(self, snapshot: PinnedRows, bucket: TableBucket, resume_after: bytes | None = None) -> None:
        self._snapshot = snapshot
        self.bucket = bucket
        self._next_position = resume_after

    @property
    def log_offset(self) -> int:
        return self._snapshot.log_offsets[self.bucket]

    @property
    def next_position(self) -> bytes | None:
        return self._next_position

    def request(self, pages: Pages, limit: int | None) -> PageRequest:
        """Return the request for the page after `next_position`. Any leader of the bucket can answer it."""
        session, bucket = self._snapshot.connection, self.bucket
        message = pb.ScanKvRequest(
            table_snapshot_id=self._snapshot.raw_id,
            resume_after=self._next_position,
            batch_size_bytes=session.settings["client.scanner.kv.fetch.max-bytes"],
            bucket_scan_req=pb.PbScanReqForBucket(
                table_id=bucket.table_id,
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket,
                limit=limit,
            ),
        )
        node = session.cluster.leader(self._snapshot.info.path, bucket)
        as_arrow = pages.arrow_request(node)
        if as_arrow is not None:
            message.as_arrow.CopyFrom(as_arrow)
        return PageRequest(node, message)

    def received(self, response: pb.ScanKvResponse, rows: int) -> bool:
        """Advance `next_position`. Raises `CorruptData` for a page with rows, or with a successor, without one."""
        is_last = not response.has_more_results
        if response.HasField("position"):
            self._next_position = response.position
        elif rows or not is_last:
            raise CorruptData(f"a page of bucket {self.bucket} came without its position")
        return is_last

    def failed(self, error: ForebayError, rows_read: int) -> Retry:
        """Return how to retry: the same page, for `client.retry-timeout`. Raises `NotFound` if the snapshot is gone."""
        info, cluster = self._snapshot.info, self._snapshot.connection.cluster
        where = f"reading bucket {self.bucket.bucket} of table {info.path}"
        if error.code in GONE:
            raise gone(where, error)
        if error.stale_metadata:
            cluster.forget_leader([self.bucket])
        final = about("reading", error, info, self.bucket)
        if not may_read_again(error):
            raise final
        return Retry(cluster.retry_seconds, final, f"{where}: {error.message}")


def gone(what: str, error: ForebayError) -> NotFound:
    """The error for a table snapshot that no longer exists."""
    return NotFound(
        f"{what} is no longer possible: {error.message}. What has been read of the old one belongs to another "
        "instant, so drop it",
        error.code,
    )


def snapshot_reader(
    snapshot: PinnedRows,
    view: RowView,
    buckets: Sequence[TableBucket],
    limit: int | None = None,
    after: Mapping[TableBucket, bytes] | None = None,
    *,
    covered: Sequence[TableBucket] | None = None,
) -> TableReader:
    """A reader of `buckets` of a table snapshot, of which several are read concurrently, in turns.

    `after` are the positions of buckets that another reader has begun to read. `covered` are all buckets of the scan,
    where `buckets` are only those that can have matching rows.
    """
    positions = {} if after is None else after
    return TableReader(
        snapshot.connection,
        view,
        buckets,
        lambda bucket: SnapshotCursor(snapshot, bucket, positions.get(bucket)),
        limit,
        log_offsets={bucket: snapshot.log_offsets[bucket] for bucket in (buckets if covered is None else covered)},
        begun=positions,
        takes_turns=True,
    )
