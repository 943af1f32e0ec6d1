"""The work of the benchmark of lake and stream: servers with a lake, tables in it, rounds of tiering, reads of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay
from benchmarks import data
from benchmarks.paimon_turns import Cost
from benchmarks.running import BUCKETS, Bench, Run, scratch
from benchmarks.spark import cpu_by_part
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.testing.server import ServerProcess
from forebay.tiering.now import tier_table
from forebay.tiering.report import RoundReport
from forebay.tiering.runner import SplitRunner, ThreadRunner

LAKES = ("paimon", "iceberg")

CODEC, LEVEL = "zstd", 1
"""The default compression of Paimon and Iceberg; also used for Spark and pyarrow."""

_NEVER = "1 d"
_FILE_ROWS = 1_000_000
"""Rows of one Parquet file."""


class LakeBench(Bench):
    """A server with a lake, in a separate process, and a connection to it. `folder` is for temporary files."""

    def __init__(self, server: ServerProcess, connection: Connection, lake: str, folder: Path) -> None:
        super().__init__(server, connection)
        self.lake, self.folder = lake, folder
        self._numbers = count()

    def lake_table(self, primary_key: bool, *, buckets: int = BUCKETS, freshness: str = _NEVER) -> Table:
        """An empty table that is tiered on request, or as often as `freshness` requires once a service runs."""
        properties = {"table.datalake.enabled": "true", "table.datalake.freshness": freshness}
        return self.create(f"t{next(self._numbers)}", primary_key, buckets=buckets, options=properties)

    def filled(self, primary_key: bool, rows: int, *, buckets: int = BUCKETS, tiered: bool = True) -> Table:
        """A table of so many rows, with ids from 0 on, in its lake or only in the stream."""
        table = self.lake_table(primary_key, buckets=buckets)
        put(table, data.batches(rows))
        if tiered:
            self.tier(table, rows)
        return table

    def tier(self, table: Table, rows: int | None = None, runner: SplitRunner | None = None) -> RoundReport:
        """Run one round. Fails unless it wrote `rows` rows, and the lake has everything afterwards."""
        report = tier_table(self.connection, table.path, runner or ThreadRunner(1))
        check(report.lag_records == 0, f"the lake of {table.path} is {report.lag_records} records behind")
        check(rows is None or report.rows == rows, f"a round of {table.path} wrote {report.rows} rows, not {rows}")
        return report

    def cost(self, work: Callable[[], Any]) -> Cost:
        """The cost of running `work` once. CPU time is that of this process, the server, Spark and its workers."""
        own, began = time.process_time(), time.perf_counter()
        elsewhere = cpu_by_part(self, work)
        return Cost(time.perf_counter() - began, time.process_time() - own + sum(elsewhere.values()))


@contextmanager
def lake_bench(options: Run, lake: str) -> Iterator[LakeBench]:
    """A fresh server with a lake; both are removed afterwards, with their files."""
    with scratch(options, lake) as folder:
        settings = {"datalake.format": lake, f"datalake.{lake}.warehouse": str(folder / "lake")}
        with (
            ServerProcess(folder / "data", settings=settings) as server,
            forebay.connect(server.bootstrap_servers) as connection,
        ):
            yield LakeBench(server, connection, lake, folder)


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def put(table: Table, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> None:
    """Write batches, many at a time, until all are acknowledged."""
    with table.writer() as writer:
        for batch in batches:
            (writer.upsert if table.has_primary_key else writer.append)(batch)


class Tail:
    """Changes to a table of `rows` rows that only the stream has: each key is changed at most once in all of them.

    Log tables get rows with ids from `rows` on instead.
    """

    def __init__(self, table: Table, rows: int) -> None:
        self._table, self._rows, self.length = table, rows, 0
        self._keys = np.random.default_rng(11).permutation(rows).astype(np.int64)

    def grow(self, length: int) -> list[pa.RecordBatch]:
        """Write as many changes as needed to have `length` of them; return those written."""
        chosen = self._keys if self._table.has_primary_key else np.arange(self._rows, 2 * self._rows, dtype=np.int64)
        places = range(self.length, length, data.BATCH_ROWS)
        batches = [data.batch_of(chosen[i : min(i + data.BATCH_ROWS, length)], 100 + i) for i in places]
        put(self._table, batches)
        self.length = length
        return batches


def write_files(folder: Path, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> Path:
    """Write rows as Parquet files into a new directory, or beside existing ones; return it."""
    folder.mkdir(exist_ok=True)
    gathered: list[pa.RecordBatch] = []
    rows = 0

    def flush() -> None:
        nonlocal rows
        if gathered:
            target = folder / f"{len(list(folder.iterdir()))}.parquet"
            part = pa.Table.from_batches(gathered)
            pq.write_table(part, target, compression=CODEC, compression_level=LEVEL)
        gathered.clear()
        rows = 0

    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= _FILE_ROWS:
            flush()
    flush()
    return folder


def read_union(table: Table, rows: int) -> None:
    """Read all rows, in this process, batch by batch."""
    with table.scan(source="union").reader() as scan:
        found = sum(batch.num_rows for batch in scan)
    check(found == rows, f"a union read of {table.path} found {found} rows, not {rows}")


def read_files(folder: Path, rows: int) -> None:
    """Read all rows of Parquet files by pyarrow, one after the other, batch by batch."""
    found = 0
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path) as file:
            found += sum(batch.num_rows for batch in file.iter_batches())
    check(found == rows, f"{folder.name} has {found} rows, not {rows}")
