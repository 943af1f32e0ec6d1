"""Counts and checksums of a table's rows: equal for equal rows, on any server.

Rows are hashed in Fluss's compacted encoding, 64 bits each, and the hashes summed. In the sum of a log, each hash is
combined with the row's index in its bucket, so that another order gives another sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.client.table import Table
from forebay.codec._hash import checksums
from forebay.codec.casting.batches import iter_record_batches
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.table import Schema, TableBucket
from forebay.unionread.scan import union_scan

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Checksum:
    """The number of rows, and the sum of their hashes."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.rows + other.rows, (self.total + other.total) & _MASK)

    def __str__(self) -> str:
        return f"{self.rows:,} rows, checksum {self.total:016x}"


def _of(schema: Schema, batches: Iterable[Any], *, in_order: bool) -> Checksum:
    codec = row_codec(schema.columns, RowFormat.COMPACTED)
    rows = total = 0
    for data in batches:
        for batch in iter_record_batches(data, schema):
            plain, ordered = checksums(codec.encode(batch).__arrow_c_array__()[1], rows)
            total = (total + (ordered if in_order else plain)) & _MASK
            rows += batch.num_rows
    return Checksum(rows, total)


def union_checksum(table: Table) -> Checksum:
    """The checksum of the rows of lake and stream as one table, in any order."""
    with union_scan(table).reader() as scan:
        return _of(table.schema, scan, in_order=False)


def live_checksum(table: Table) -> Checksum:
    """The checksum of the rows that the servers have of a table with a primary key, in any order."""
    with table.scan().reader() as scan:
        return _of(table.schema, scan, in_order=False)


def log_checksum(table: Table, bucket: TableBucket, start: int, end: int) -> Checksum:
    """The checksum of the records of a part of a bucket's log, in order."""
    if start >= end:
        return Checksum()
    with table.changes({bucket: start}, {bucket: end}, include=()) as log:
        return _of(table.schema, log, in_order=True)


def checksum_of(schema: Schema, rows: pa.Table) -> Checksum:
    """The checksum of rows in any order."""
    return _of(schema, [rows], in_order=False)
