"""The work of the lake engine's benchmark: the rows, our calls, and the same with pyarrow and plain Parquet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.paimon_turns import Cost, cost_of
from forebay.metadata.predicate import col
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table

COMMITS = 5
BUCKETS = 4
UPDATED = 0.3
"""Share of the rows of each commit after the first that update a row of an earlier commit."""

CODEC, LEVEL = "zstd", 1
"""Paimon's default compression, also used for pyarrow."""

APPEND: dict[str, Any] = {}
KEYED: dict[str, Any] = {
    "primary_key": [data.KEY],
    "options": {"bucket": str(BUCKETS), "write-only": "true"},  # no compaction while writing: it is measured separately
}


def changes(rows: int, commits: int = COMMITS, seed: int = 7) -> list[pa.Table]:
    """`rows` rows in commits of one size: new ids, and from the second commit on `UPDATED` of earlier ids, shuffled."""
    rng = np.random.default_rng(seed)
    known, parts = 0, []
    for number, size in enumerate(_shares(rows, commits)):
        updates = int(size * UPDATED) if number else 0
        old = rng.choice(known, updates, replace=False)
        ids = np.concatenate([old, np.arange(known, known + size - updates)])
        rng.shuffle(ids)
        known += size - updates
        slices = range(0, size, data.BATCH_ROWS)
        parts.append(
            pa.Table.from_batches(
                [data.batch_of(ids[i : i + data.BATCH_ROWS], seed + number * 1000 + i) for i in slices], data.SCHEMA
            )
        )
    return parts


def _shares(rows: int, commits: int) -> list[int]:
    return [rows * (i + 1) // commits - rows * i // commits for i in range(commits)]


def distinct_rows(parts: Sequence[pa.Table]) -> int:
    """The number of rows left when each key keeps its last row."""
    return len(pa.chunked_array([chunk for part in parts for chunk in part[data.KEY].chunks]).unique())


class Lake:
    """A warehouse in a directory, for creating, copying and reading tables. `sync`: whether files are made durable."""

    def __init__(self, folder: Path, sync: bool = True) -> None:
        self.folder = folder
        self.catalog = FileSystemCatalog(LocalFileIO(sync=sync), str(folder))
        self.catalog.create_database("db", ignore_if_exists=True)

    def path(self, name: str) -> Path:
        return self.folder / "db.db" / name

    def create(self, name: str, definition: Mapping[str, Any]) -> Table:
        return self.catalog.create_table(f"db.{name}", data.SCHEMA, **definition)

    def open(self, name: str) -> Table:
        """The table, with nothing of it in memory yet."""
        return self.catalog.table(f"db.{name}")

    def drop(self, name: str) -> None:
        shutil.rmtree(self.path(name))

    def copy(self, name: str, copy: str) -> Table:
        """A table with links to the same files, for work that can be done only once."""
        shutil.copytree(self.path(name), self.path(copy), copy_function=_linked)
        return self.open(copy)

    def filled(self, name: str, definition: Mapping[str, Any], parts: Sequence[pa.Table]) -> Table:
        """A table with a commit for each part."""
        table = self.create(name, definition)
        for part in parts:
            put(table, part)
        return table


def _linked(source: str, target: str) -> None:
    """A link, or a copy of a file that is written in place: Java Paimon does that to hints of the latest snapshot."""
    (shutil.copyfile if Path(source).parent.name == "snapshot" else os.link)(source, target)


def put(table: Table, rows: pa.Table) -> None:
    """Write rows to a table, with or without a primary key, in one commit."""
    if table.has_primary_key:
        table.upsert(rows)
    else:
        table.append(rows)


def write_cost(lake: Lake, definition: Mapping[str, Any], parts: Sequence[pa.Table]) -> Cost:
    """Write and commit the parts into a new table, which is deleted afterwards."""
    table = lake.create("written", definition)

    def work() -> None:
        for part in parts:
            put(table, part)

    cost = cost_of(work)
    lake.drop("written")
    return cost


def stream_cost(lake: Lake, definition: Mapping[str, Any], parts: Sequence[pa.Table]) -> Cost:
    """Write the parts into a new table, by one writer in a commit each."""
    table = lake.create("written", definition)

    def work() -> None:
        writer = table.stream_writer("benchmark")
        for number, part in enumerate(parts):
            writer.upsert(part)
            writer.commit(number)
        writer.close()

    cost = cost_of(work)
    lake.drop("written")
    return cost


def read_cost(table: Table, rows: int) -> Cost:
    """Plan and read the table into an Arrow table of so many rows."""
    found = 0

    def work() -> None:
        nonlocal found
        found = table.scan().to_arrow().num_rows

    cost = cost_of(work)
    check_rows(found, rows)
    return cost


def find_cost(table: Table, key: int) -> Cost:
    """Plan and read the one row of a key."""
    found = 0

    def work() -> None:
        nonlocal found
        found = table.scan(filter=col(data.KEY) == key).to_arrow().num_rows

    cost = cost_of(work)
    check_rows(found, 1)
    return cost


def compact_cost(lake: Lake, name: str) -> Cost:
    """Compact a copy of the table fully."""
    copy = lake.copy(name, "compacting")
    cost = cost_of(lambda: copy.compact(full=True))
    lake.drop("compacting")
    return cost


def check_rows(found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"{found} rows were read where there are {expected}")


# ---- plain Parquet --------------------------------------------------------------------------------------------------


def raw_write_cost(path: Path, rows: pa.Table, sync: bool, by_key: bool = False) -> Cost:
    """One Parquet file by pyarrow, compressed as Paimon's files are; sorted by key on the way if asked."""

    def work() -> None:
        written = rows.sort_by(data.KEY) if by_key else rows
        with path.open("wb") as file:
            pq.write_table(written, file, compression=CODEC, compression_level=LEVEL)
            if sync:
                file.flush()
                os.fsync(file.fileno())

    return cost_of(work)


def raw_read_cost(paths: Sequence[Path], rows: int) -> Cost:
    """The table's columns of Parquet files by pyarrow, all its threads, into an Arrow table."""
    found = 0

    def work() -> None:
        nonlocal found
        parts = [pq.read_table(path, columns=data.SCHEMA.names, partitioning=None) for path in paths]
        found = pa.concat_tables(parts).num_rows

    cost = cost_of(work)
    check_rows(found, rows)
    return cost


def raw_sorted_cost(path: Path, parts: Sequence[pa.Table]) -> Cost:
    """Sort the rows of each commit by key, and write them as one Parquet file."""
    return _total([raw_write_cost(path, part, sync=True, by_key=True) for part in parts])


def raw_compact_cost(paths: Sequence[Path], target: Path) -> Cost:
    """Read data files by pyarrow, sort the rows by key, and write one Parquet file."""

    def work() -> None:
        parts = [pq.read_table(path, columns=data.SCHEMA.names, partitioning=None) for path in paths]
        raw_write_cost(target, pa.concat_tables(parts), sync=True, by_key=True)

    return cost_of(work)


def _total(costs: Sequence[Cost]) -> Cost:
    return Cost(sum(c.wall for c in costs), sum(c.cpu for c in costs), sum(c.kernel for c in costs))


def data_paths(lake: Lake, name: str) -> list[Path]:
    """The data files that a scan of the table reads."""
    return [
        lake.path(name) / f"bucket-{split.bucket}" / file.file_name
        for split in lake.open(name).scan().plan()
        for file in split.files
    ]
