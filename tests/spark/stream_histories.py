"""What streams must have delivered, computed from the full changelog of their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.client.table import Table
from forebay.metadata.table import TableBucket
from tests.spark.streams import Offset

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string(), nullable=False), ("n", pa.int64())]
)
Row = dict[str, Any]


class Records:
    """All that the logs of a table have had, by bucket and offset; those of dropped partitions, too.

    `dropped` are the ids of partitions that are gone; a table that `is_tiered` may have their rows in its lake.
    """

    def __init__(self, table: Table, *, is_tiered: bool) -> None:
        self.table, self.is_tiered = table, is_tiered
        self.records: dict[TableBucket, dict[int, Row]] = {}
        self.dropped: set[int] = set()

    def remember(self) -> None:
        """Read all that is in the logs now."""
        for bucket in self.table.buckets():
            found = self.records.setdefault(bucket, {})
            start = {bucket: max(found, default=-1) + 1}
            log = self.table.changes(start, "latest", include=("change_type", "offset", "timestamp"))
            for row in (row for batch in log for row in batch.to_pylist()):
                found[row["_log_offset"]] = row

    def between(self, bucket: TableBucket, start: int, stop: int) -> list[tuple[int, Row]]:
        """The records of a bucket from one offset to before the other, in order."""
        return sorted((o, row) for o, row in self.records.get(bucket, {}).items() if start <= o < stop)

    def state(self, bucket: TableBucket, start: int, stop: int) -> list[Row]:
        """What a range of records comes to: the newest row of each key; all of them, where there are no keys."""
        rows: dict[Any, Row | None] = {}
        for offset, record in self.between(bucket, start, stop):
            row = {name: record[name] for name in SCHEMA.names}
            key = (row["id"], row["part"]) if self.table.has_primary_key else offset
            if record["_change_type"] != "update_before":
                rows[key] = None if record["_change_type"] == "delete" else row
        return [row for row in rows.values() if row is not None]


def check(history: Records, logged: Sequence[Offset], sink: Mapping[int, Counter[str]], *, changelog: bool) -> None:
    """Every batch is what lies between its offsets, no less and no more; but for partitions that were dropped.

    `logged` are the ends of the batches, as in a checkpoint, and `sink` the rows of each batch, as a bag of texts.
    """
    history.remember()
    begin = logged[0].get("start", logged[0])
    starts = [begin, *logged]
    # A batch that begins in the full read is all of snapshots, unless there are no rows in them.
    in_full = [n for n in sink if "full" in starts[n] and starts[n]["log"] == logged[n]["log"]]
    at = {_bucket(history, text): offset for text, offset in begin["log"].items()}
    if in_full:
        _check_full([sink[number] for number in in_full], history, at, changelog)
    for number, end in enumerate(logged):
        rows = Rows()
        for bucket, stop in ((_bucket(history, text), offset) for text, offset in end["log"].items()):
            start = at.get(bucket, 0)
            assert start <= stop
            at[bucket] = stop
            between = [record for _, record in history.between(bucket, start, stop)]
            rows.add(between if changelog else history.state(bucket, start, stop), history, bucket)
        if number not in in_full:
            rows.check(sink[number])
    ends = history.table.changes("earliest", "latest").stop_offsets or {}
    assert {b: at.get(b, 0) for b in ends} == ends, "the stream has not come to the end"


def _check_full(batches: list[Counter[str]], history: Records, ends: dict[TableBucket, int], changelog: bool) -> None:
    """The batches of the full read are what the logs came to at its offsets."""
    inserted = {"_change_type": "insert", "_log_offset": -1, "_commit_timestamp": None} if changelog else {}
    rows = Rows()
    for bucket, stop in ends.items():
        rows.add([{**inserted, **row} for row in history.state(bucket, 0, stop)], history, bucket)
    if history.is_tiered:
        # The lake keeps the rows of a partition that was dropped before the stream began, as they were at some time.
        for bucket in history.records.keys() - ends.keys():
            records = history.records[bucket].values() if bucket.partition_id in history.dropped else ()
            rows.add([{**inserted, **{n: row[n] for n in SCHEMA.names}} for row in records], history, bucket)
    rows.check(sum(batches, Counter()))


class Rows:
    """Rows that must be there, and rows of dropped partitions, which may be there."""

    def __init__(self) -> None:
        self.required, self.possible = Counter[str](), Counter[str]()

    def add(self, rows: list[Row], history: Records, bucket: TableBucket) -> None:
        kind = self.possible if bucket.partition_id in history.dropped else self.required
        kind.update(map(repr, rows))

    def check(self, found: Counter[str]) -> None:
        assert self.required - found == Counter(), "rows are missing"
        assert found - self.required - self.possible == Counter(), "rows that should not be there, or twice"


def _bucket(history: Records, text: str) -> TableBucket:
    partition, _, number = text.rpartition("/")
    return TableBucket(history.table.info.table_id, int(number), int(partition) if partition else None)
