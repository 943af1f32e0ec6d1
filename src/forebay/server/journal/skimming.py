"""What a journal says at its end, read without the rows before: where remote logs end there.

Who repeats a journal from far behind its end need not read the rows that remote logs got later: with many rows a second
they are nearly all that a journal has.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from forebay.log.remote import RemoteLogSegment
from forebay.metadata.table import TableBucket
from forebay.server.journal.followed_metadata import metadata_changes
from forebay.server.metadata_store import bucket_of
from forebay.store.journal import JournalObject
from forebay.store.journal_ahead import ObjectsAhead
from forebay.store.journal_format import Entry, MetadataChanged, MetadataImage
from forebay.store.objects import ObjectStore

_NEWEST_SEGMENTS = (
    "SELECT remote_logs.table_id, remote_logs.partition_id, remote_logs.bucket, segment_id, start_offset, "
    "remote_segments.end_offset, max_timestamp_ms, size_bytes "
    "FROM remote_logs JOIN remote_segments USING (table_id, partition_id, bucket) "
    "WHERE remote_segments.end_offset = remote_logs.end_offset"
)


def newest_segments(store: ObjectStore, first: int, last: int) -> dict[TableBucket, RemoteLogSegment]:
    """The last segment of each remote log, as the metadata say at object `last` of the journal.

    `first`: that of the checkpoint's image, or the first one of the journal. Raises `CorruptData` and `StorageFailure`.
    """
    ahead = ObjectsAhead(store, first, last, _is_of_metadata)
    with closing(ahead), closing(sqlite3.connect(":memory:", isolation_level=None)) as sql:
        for found in ahead:
            replay_metadata(sql, found)
        if not sql.execute("SELECT name FROM sqlite_master").fetchall():  # it ends before the first image
            return {}
        rows = sql.execute(_NEWEST_SEGMENTS).fetchall()
    return {bucket_of(*row[:3]): RemoteLogSegment(*row[3:]) for row in rows}


def _is_of_metadata(_number: int, entry: Entry) -> bool:
    return isinstance(entry, MetadataImage | MetadataChanged)


def replay_metadata(sql: sqlite3.Connection, found: JournalObject) -> None:
    """Make the changes of an object in a database in memory."""
    image, statements = metadata_changes(found)
    if image is not None:
        sql.deserialize(image)
    for text, values in statements:
        sql.execute(text, values)
