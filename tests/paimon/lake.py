"""Helpers of tests of whole tables: a catalog on a directory, without fsync, and rows of all types."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from forebay.api.changes import CHANGE_TYPE_COLUMN, CHANGE_TYPES, ROW_KINDS
from forebay.metadata.predicate import Predicate
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.read.facade import open_stream
from forebay.paimon.read.table_stream import TableStream
from forebay.paimon.store.schema_changes import SchemaChange
from forebay.paimon.stream_writer import StreamWriter
from forebay.paimon.table import Table


def new_catalog(folder: Path) -> FileSystemCatalog:
    """A catalog in `folder` with database `db`."""
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(folder / "lake"))
    catalog.create_database("db")
    return catalog


class TrackedIO(LocalFileIO):
    """A local file system that knows which of its files are open for reading."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.inputs: list[BytesIO] = []

    def open_input(self, path: str) -> BinaryIO:
        self.inputs.append(BytesIO(self.read(path)))
        return self.inputs[-1]

    @property
    def open_inputs(self) -> int:
        return sum(not source.closed for source in self.inputs)


def put(target: Table | StreamWriter, rows: Any, kinds: Any = None) -> Any:
    """Write rows to a table, with or without a primary key: its snapshot (of a stream writer: how many rows).

    `kinds`: what each row is, in Paimon's words (+I, -U, +U, -D).
    """
    if kinds is not None:
        done = target.write_changes(with_kinds(rows, kinds))
    else:
        done = target.upsert(rows, missing="null") if target.has_primary_key else target.append(rows)
    return done if isinstance(done, int) else done.snapshot


def with_kinds(rows: Any, kinds: Any) -> Any:
    """Rows with the column that says what each is."""
    words = [CHANGE_TYPES[ROW_KINDS.index(kind) if isinstance(kind, str) else kind] for kind in kinds]
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows.append_column(CHANGE_TYPE_COLUMN, pa.array(words, pa.string()))
    return [{**row, CHANGE_TYPE_COLUMN: word} for row, word in zip(rows, words, strict=True)]


def rows_of(table: Table, columns: list[str] | None = None, where: Any = None, as_of: Any = None) -> list[Any]:
    """All rows, as tuples, sorted by their text (for tables without nested columns: any order serves)."""
    read = table.scan(columns, where, as_of=as_of).to_arrow()
    return sorted((tuple(row.values()) for row in read.to_pylist()), key=repr)


def altered(table: Table, changes: Sequence[SchemaChange]) -> Table:
    """The table after changes of its schema, as engines make them."""
    table.context.schemas.change(changes, has_snapshots=table.context.snapshots.latest_id() is not None)
    return table.refresh()


def stream_of(
    table: Table,
    columns: list[str] | None = None,
    filter: Any = None,  # noqa: A002
    *,
    scan_mode: str | None = None,
    follow: bool = True,
    **how: Any,
) -> TableStream:
    """A stream with Paimon's row kinds, from where the table's options say, as engines read it."""
    options = {**table.schema.options, **({} if scan_mode is None else {"scan.mode": scan_mode})}
    context = table.context.with_schema(table.schema.with_options(options))
    return open_stream(context, columns=columns, predicate=filter, follow=follow, **how)


def at_ms(milliseconds: int) -> datetime.datetime:
    """The moment that many milliseconds after 1970 began in UTC; the last that there is, if that is later."""
    last = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    began = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return last if milliseconds > 1 << 47 else began + datetime.timedelta(milliseconds=milliseconds)


def live_files(table: Table) -> list[DataFileMeta]:
    """The data files of the latest snapshot."""
    snapshot = table.context.snapshots.latest()
    return [] if snapshot is None else [e.file for e in table.context.manifests.live_files(snapshot)]


def planned_files(table: Table, where: Predicate | None = None) -> list[DataFileMeta]:
    """The files that a scan with a filter reads."""
    return [f for split in table.scan(filter=where).plan() for f in split.files]


ALL_TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("whole", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("d9", pa.decimal128(9, 2)),
        ("d18", pa.decimal128(18, 4)),
        ("d38", pa.decimal128(38, 6)),
        ("day", pa.date32()),
        ("clock", pa.time32("ms")),
        ("ms", pa.timestamp("ms")),
        ("us", pa.timestamp("us")),
        ("instant", pa.timestamp("us", tz="UTC")),
        ("numbers", pa.list_(pa.int32())),
        ("pairs", pa.map_(pa.string(), pa.int32())),
        ("nested", pa.struct([("x", pa.int32()), ("y", pa.string()), ("z", pa.list_(pa.int32()))])),
    ]
)


def all_types_rows(count: int = 20) -> pa.Table:
    """`count` rows of all types; every fifth has nothing but an id."""
    return pa.Table.from_pylist([_row(i) if i % 5 != 4 else {"id": i} for i in range(count)], schema=ALL_TYPES)


def _row(i: int) -> dict[str, Any]:
    moment = datetime.datetime(1960 + 4 * i, 1, 1, 1, 1, i % 60, 123_456)
    return {
        "id": i,
        "flag": i % 2 == 0,
        "tiny": i - 10,
        "small": i * 100,
        "whole": -i * 100_000,
        "single": i / 4,
        "double": i / 3,
        "text": "é" * i + "z",
        "raw": bytes([i, 255]),
        "d9": Decimal(i).scaleb(-2),
        "d18": Decimal(-i * 10**12).scaleb(-4),
        "d38": Decimal(i * 10**30).scaleb(-6),
        "day": moment.date(),
        "clock": datetime.time(1, 2, i, 5000),
        "ms": moment.replace(microsecond=123_000),
        "us": moment,
        "instant": moment.replace(tzinfo=datetime.UTC),
        "numbers": [i, None, i + 1],
        "pairs": [("a", i), ("b", None)],
        "nested": {"x": i, "y": "q", "z": [1]},
    }
