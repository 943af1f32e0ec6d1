"""Cursors of lookups: the current rows of some keys of a primary-key table.

Rule: the rows of a bucket are those of one point in time, as a scan's are. A server answers a few keys of a bucket at
one point in time. For more keys, and where a reader has a position (`log_offsets`), the end of the bucket's log is
compared before and after: if nothing was appended in between, then all lookups saw the rows of that offset; otherwise
the bucket is scanned. Apache Fluss answers all keys of a bucket at once, but its ends of logs say nothing exact about
its rows, so a reader with a position scans there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa

from forebay.base.errors import CorruptData, ForebayError, LimitExceeded
from forebay.client.cluster.offsets import LATEST, LOG_END, list_offsets
from forebay.client.lookups.lookup import KeyItem, Lookups
from forebay.client.reading.bucket_reader import BucketCursor, TableReader
from forebay.client.reading.key_filter import KEYS_MAX
from forebay.client.reading.key_plan import BucketKeys
from forebay.client.reading.live_cursor import LiveCursor
from forebay.client.reading.pages import Pages
from forebay.client.row_view import RowView
from forebay.codec.kv.value_batch import ValueDecoder, parse_values
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol.api import ApiKey

if TYPE_CHECKING:
    from forebay.client.cluster.cluster import ClusterClient
    from forebay.client.session import Session

AT_ONCE_MAX = 16
"""Keys of a bucket that a Forebay server reads at one point in time."""

_NO_POSITIONS = np.zeros(0, np.int64)


def knows_log_ends(cluster: ClusterClient, info: TableInfo, bucket: TableBucket) -> bool:
    """Whether the end of a bucket's log tells exactly which rows a lookup sees: on Forebay's servers."""
    versions = cluster.channel(cluster.leader(info.path, bucket)).versions
    return versions.offers(ApiKey.OPEN_TABLE_SNAPSHOT)


class RowsByBucket:
    """Rows that were looked up, by bucket, and the buckets that have to be scanned.

    The lookups of these did not all see the same rows, or found too much.
    """

    def __init__(self) -> None:
        self.rows: dict[TableBucket, pa.RecordBatch] = {}
        self.changed: list[TableBucket] = []


def look_up(
    session: Session,
    view: RowView,
    keys: BucketKeys,
    log_offsets: Mapping[TableBucket, int] | None = None,
    decoder: ValueDecoder | None = None,
) -> RowsByBucket:
    """The rows of `keys` that match the filter of `view`, each bucket as of one point in time.

    With `log_offsets`, which a Forebay server gave, it is that of these offsets. Buckets that have changed since, or
    meanwhile, are in `changed`, without rows, and so are all if the rows are too large for an answer.
    """
    cluster, info, rows = session.cluster, view.info, RowsByBucket()
    chunk = KEYS_MAX if log_offsets is None else session.settings["client.lookup.max-batch-size"]
    items = [
        KeyItem(bucket, list(of_bucket[first : first + chunk]), _NO_POSITIONS, first // chunk)
        for bucket, of_bucket in keys.items()
        for first in range(0, len(of_bucket), chunk)
    ]
    values: dict[TableBucket, list[bytes]] = {bucket: [] for bucket in keys}
    try:
        answers = Lookups(cluster, info).ask(cluster, info.path, items)
    except LimitExceeded:
        rows.changed = list(keys)
        return rows
    for item, answer in answers:
        if len(answer) != len(item.keys):
            raise CorruptData(f"the server returned {len(answer)} values for {len(item.keys)} keys")
        values[item.bucket] += [value for value in answer if value is not None]
    if log_offsets is not None:
        ends = list_offsets(cluster, info, list(keys), LOG_END)
        rows.changed = [bucket for bucket in keys if ends[bucket] != log_offsets[bucket]]
        for bucket in rows.changed:
            del values[bucket]
    decoder = decoder or view.decoder(cluster)
    for bucket, of_rows in values.items():
        if of_rows:
            rows.rows[bucket] = view.show(decoder.decode(*parse_values(of_rows)))
    return rows


class KeyCursor(BucketCursor):
    """The rows of a bucket that a lookup has returned. `log_offset` is None if it is not known."""

    def __init__(self, bucket: TableBucket, rows: pa.RecordBatch | None, log_offset: int | None) -> None:
        self.bucket = bucket
        self._rows, self._log_offset = rows, log_offset

    @property
    def log_offset(self) -> int | None:
        return self._log_offset

    def request(self, pages: Pages, limit: int | None) -> None:
        return None

    def rows(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        return iter(() if self._rows is None else (self._rows,))

    def failed(self, error: ForebayError, rows_read: int) -> NoReturn:
        raise error


class KeyCursors:
    """The cursors of the buckets that some keys are in. The keys of all buckets are looked up for the first one."""

    def __init__(self, session: Session, view: RowView, keys: BucketKeys, *, with_position: bool) -> None:
        """`with_position`: the log offset of each bucket's rows is needed."""
        self._session, self._view, self._keys = session, view, keys
        self._with_position = with_position
        self._log_offsets: Mapping[TableBucket, int] = {}
        self._found: RowsByBucket | None = None

    def open(self, bucket: TableBucket) -> BucketCursor:
        """The rows that were looked up in `bucket`, or a scan of it if they are not those of one point in time."""
        rows = self._found
        if rows is None:
            rows = self._found = self._look_up()
        if bucket in rows.changed:
            return LiveCursor(self._session, self._view, bucket)
        return KeyCursor(bucket, rows.rows.get(bucket), self._log_offsets.get(bucket))

    def _look_up(self) -> RowsByBucket:
        session, view, keys = self._session, self._view, self._keys
        is_exact = knows_log_ends(session.cluster, view.info, next(iter(keys)))
        if self._with_position and not is_exact:
            rows = RowsByBucket()
            rows.changed = list(keys)
            return rows
        offsets = None
        if is_exact and (self._with_position or max(map(len, keys.values())) > AT_ONCE_MAX):
            offsets = list_offsets(session.cluster, view.info, list(keys), LATEST)
            self._log_offsets = offsets
        return look_up(session, view, keys, offsets)


def key_reader(
    session: Session, view: RowView, keys: BucketKeys, limit: int | None = None, *, with_position: bool
) -> TableReader:
    """A reader of the rows of `keys` that match the filter of `view`; `with_position`: `log_offsets` are needed."""
    return TableReader(session, view, keys, KeyCursors(session, view, keys, with_position=with_position).open, limit)
