"""Copying rows: logs bucket by bucket in order, tables with a primary key by upserts.

A log of a new table begins at offset 0, and uses one offset per record. So the end offset of a bucket on the target is
the number of the source's records that it has, and an interrupted copy continues there: no record is appended twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.client.table import Table
from forebay.client.writing.encode import APPEND, WriteEncoder
from forebay.moving.checksum import log_checksum
from forebay.moving.plan import Place, Side

OnRows = Callable[[int], None]
"""Called with the number of rows copied since the last call."""


def copy_logs(source: Side, target: Side, on_rows: OnRows) -> None:
    """Append the records that each bucket of the target lacks. Raises `InvalidRequest` if its log is not a copy."""
    read = _table(source)
    encoder = WriteEncoder.of(target.connection.settings, target.info)
    for place, end in source.ends.items():
        first = source.starts[place] + target.ends[place] - target.starts[place]
        if target.starts[place] != 0 or first > end:
            raise InvalidRequest(
                f"bucket {_place_text(place)} of table {target.info.path} has offsets {target.starts[place]} to "
                f"{target.ends[place]} on the target, and {source.starts[place]} to {end} on the source: it is not a "
                "copy; drop the table on the target, and start again",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        if first == end:
            continue
        bucket = source.buckets[place]
        with read.changes({bucket: first}, {bucket: end}, include=()) as log:
            rows = pa.RecordBatchReader.from_batches(log.schema, _with_progress(log, on_rows))
            target.connection.sender.write(encoder, APPEND, rows, bucket=place[1])


def copy_rows(source: Side, target: Side, on_rows: OnRows) -> None:
    """Upsert all rows of a table with a primary key: those of its lake, and of the stream after it.

    Partitions that are only in the lake stay there, because the stream dropped them.
    """
    read, write = _table(source), _table(target)
    partitions = sorted({place[0] for place in source.buckets if place[0] is not None}) or None
    if source.info.is_partitioned and partitions is None:
        return
    kind = "union" if source.info.lake_enabled else "live"
    with read.scan(source=kind, partitions=partitions).reader() as scan:
        rows = pa.RecordBatchReader.from_batches(scan.schema, _with_progress(scan, on_rows))
        # Rows are merged already, and those of an interrupted move are sent again.
        write.upsert(rows, merge_mode="default" if target.info.descriptor.merge_engine is None else "overwrite")


def check_logs(source: Side, target: Side) -> int:
    """The number of records of both sides, bucket by bucket in the same order. Raises `CorruptData` if they differ."""
    records = 0
    for place, end in source.ends.items():
        here = log_checksum(_table(source), source.buckets[place], source.starts[place], end)
        there = log_checksum(_table(target), target.buckets[place], target.starts[place], target.ends[place])
        if here != there:
            raise CorruptData(
                f"the log of bucket {_place_text(place)} of table {source.info.path} has {here} on the source, and "
                f"{there} on the target; drop the table on the target, and begin again"
            )
        records += here.rows
    return records


def _with_progress(batches: Iterable[pa.RecordBatch], on_rows: OnRows) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        on_rows(batch.num_rows)


def _table(side: Side) -> Table:
    return side.connection.table(side.info).at_server


def _place_text(place: Place) -> str:
    partition, bucket = place
    return str(bucket) if partition is None else f"{bucket} of partition '{partition}'"
