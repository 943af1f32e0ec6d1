"""The current rows of a bucket on clusters without ScanKv (Fluss before 1.0).

`ReplayCursor` reads them in one of three ways, in this order:

- a limit without a filter: LimitScan;
- the changelog from its beginning, folded: the last change of each key wins. Memory: the rows of the bucket;
- if the beginning of the changelog is gone: a LimitScan of all rows, which the server returns in one response.

`rows_at` does the second of these up to any offset.

The cursor's `log_offset` is read before the rows, so changes from there on may be included already. Applying them again
is harmless, since a change sets a whole row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.changes import CHANGE_TYPE_COLUMN, DELETE, UPDATE_BEFORE
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.client.arrays import array_of, integers
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from forebay.client.reading.bucket_reader import BucketCursor
from forebay.client.reading.log_reader import LogReader
from forebay.client.reading.pages import Pages
from forebay.client.row_view import RowView
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.kv.value_batch import parse_value_batch
from forebay.codec.rows.keys import primary_key_encoder
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import error_of

if TYPE_CHECKING:
    from forebay.client.session import Session

_EVERYTHING = (1 << 31) - 1
"""The largest limit of a LimitScan: all rows."""

_FOLD_ROWS = 1 << 19
"""Changes are folded into the rows when there are this many, or as many as there are rows."""


class ReplayCursor(BucketCursor):
    """The current rows of a bucket, without pages. Changes from `log_offset` on may be missing in them."""

    def __init__(self, session: Session, view: RowView, bucket: TableBucket) -> None:
        self._session, self._view = session, view
        self.bucket = bucket
        self._log_offset: int | None = None

    @property
    def log_offset(self) -> int | None:
        return self._log_offset

    def request(self, pages: Pages, limit: int | None) -> None:
        return None

    def rows(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """The current rows, at most `limit` if the view has no filter."""
        session, view, bucket = self._session, self._view, self.bucket
        cluster, info = session.cluster, view.info
        self._log_offset = latest = list_offsets(cluster, info, [bucket], LATEST)[bucket]
        if limit is not None and view.bound is None:
            return _limit_scan(session, bucket, view, limit)
        if list_offsets(cluster, info, [bucket], EARLIEST)[bucket] > 0:
            return _limit_scan(session, bucket, view, _EVERYTHING)
        return _fold(session, bucket, view, latest)

    def failed(self, error: ForebayError, rows_read: int) -> NoReturn:
        raise error


def rows_at(session: Session, view: RowView, bucket: TableBucket, offset: int) -> Iterator[pa.RecordBatch] | None:
    """The rows of a bucket after all changes below log offset `offset`, in no order.

    None if the beginning of the changelog is gone. Memory: the rows of the bucket.
    """
    if list_offsets(session.cluster, view.info, [bucket], EARLIEST)[bucket] > 0:
        return None
    return _fold(session, bucket, view, offset) if offset > 0 else iter(())


def _limit_scan(session: Session, bucket: TableBucket, view: RowView, limit: int) -> Iterator[pa.RecordBatch]:
    cluster, info = session.cluster, view.info
    request = pb.LimitScanRequest(
        table_id=bucket.table_id, partition_id=bucket.partition_id, bucket_id=bucket.bucket, limit=limit
    )

    def attempt() -> memoryview | None:
        node = cluster.leader(info.path, bucket)
        answer = cluster.channel(node).send(ApiKey.LIMIT_SCAN, request).result(cluster.request_seconds)
        response, payloads = answer.parse_split(pb.LimitScanResponse)
        error = error_of(response)
        if error is not None:
            raise error
        if response.is_log_table:
            raise InvalidRequest(f"table {info.path} is a log table", ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION)
        return payloads[0] if payloads else None

    records = cluster.retrying(attempt, stale=lambda: cluster.refresh_bucket(info.path, bucket))
    if records is not None and len(records):
        yield view.show(view.decoder(session.cluster).decode(*parse_value_batch(records)))


def _fold(session: Session, bucket: TableBucket, view: RowView, stop: int) -> Iterator[pa.RecordBatch]:
    """Rows after all changes up to offset `stop`."""
    info, schema = view.info, view.info.schema
    names = [name for name in schema.names if name in {*(c.name for c in view.read), *schema.primary_key}]
    encoder = primary_key_encoder(info.descriptor)
    storage = storage_schema([schema.column(name) for name in names])
    rows = storage.empty_table()
    changes: list[pa.RecordBatch] = []
    pending = 0

    def folded() -> pa.Table:
        table = pa.Table.from_batches(changes).combine_chunks()
        types = table[CHANGE_TYPE_COLUMN]
        table = table.filter(pc.not_equal(types.cast(pa.string()), UPDATE_BEFORE))
        deleted = pc.equal(table[CHANGE_TYPE_COLUMN].cast(pa.string()), DELETE)
        news = table.drop_columns([CHANGE_TYPE_COLUMN]).cast(storage)
        together = pa.concat_tables([rows, news]).combine_chunks()
        is_deleted = np.zeros(together.num_rows, np.bool_)
        is_deleted[rows.num_rows :] = deleted.to_numpy()
        keys = [encoder.encode(batch) for batch in together.select(list(encoder.names)).to_batches()]
        last = _last_of_each(pa.chunked_array(keys, pa.binary()).combine_chunks())
        return together.take(array_of(last[~is_deleted[last]]))

    with LogReader(session, info, {bucket: 0}, {bucket: stop}, RowView(info, names), ("change_type",)) as reader:
        for batch in reader:
            changes.append(batch)
            pending += batch.num_rows
            if pending >= max(_FOLD_ROWS, rows.num_rows):
                rows = folded()
                changes, pending = [], 0
    if changes:
        rows = folded()
    for batch in rows.select([column.name for column in view.read]).to_batches(max_chunksize=1 << 16):
        yield view.show(batch)


def _last_of_each(keys: pa.Array) -> np.ndarray:
    """Positions of the last row of each key, ascending."""
    encoded = keys.dictionary_encode()
    last = np.zeros(len(encoded.dictionary), np.int64)
    last[integers(encoded.indices)] = np.arange(len(keys))
    return np.sort(last)
