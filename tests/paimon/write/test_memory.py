"""Memory is bounded by options, not by the size of a table: writing, merging, compacting and sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.paimon.compact.running import TaskThreads
from forebay.paimon.table import Table
from tests.paimon.lake import live_files, new_catalog, put

MB = 1 << 20
COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("a", pa.int64()), ("b", pa.float64()), ("text", pa.string())])
OPTIONS = {
    "write-only": "true",
    "write-buffer-size": "1 mb",
    "file.block-size": "1 mb",
    "sort-spill-buffer-size": "2 mb",
    "sort-spill-threshold": "8",
}
SIZES = (200_000, 800_000)
"""Rows of about 46 bytes: the larger table has 37 MB."""

_POOLS: list[pa.MemoryPool] = []
"""Kept to the end of the process: buffers that outlive their pool would take the process down."""


def arriving(rows: int) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(11)
        for _ in range(0, rows, 10_000):
            ids = rng.integers(0, rows, 10_000)
            text = pa.array(ids).cast(pa.string())
            yield pa.record_batch(
                [pa.array(ids), pa.array(ids * 3), pa.array(rng.random(10_000)), text], schema=COLUMNS
            )

    return pa.RecordBatchReader.from_batches(COLUMNS, batches())


def peak(action: Callable[[], object]) -> float:
    """How many megabytes of Arrow's memory `action` has in use at most."""
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    _POOLS.append(counting)
    pa.set_memory_pool(counting)
    try:
        action()
    finally:
        pa.set_memory_pool(usual)
    return counting.max_memory() / MB


def read_through(table: Table) -> int:
    return sum(batch.num_rows for batch in table.scan())


def table_of(folder: Path, keyed: bool) -> Table:
    keys = ["id"] if keyed else []
    bucket = "1" if keyed else "-1"
    return new_catalog(folder).create_table("db.t", COLUMNS, primary_key=keys, options={**OPTIONS, "bucket": bucket})


@pytest.mark.parametrize("rows", SIZES)
def test_a_primary_key_table_is_written_merged_and_compacted_in_little_memory(tmp_path: Path, rows: int) -> None:
    table = table_of(tmp_path, keyed=True)
    assert peak(lambda: put(table, arriving(rows))) < 8
    assert len(live_files(table)) >= rows // 40_000  # many runs, which all hold keys from everywhere
    counts: list[int] = []
    assert peak(lambda: counts.append(read_through(table))) < 12
    assert peak(lambda: table.compact(full=True)) < 14
    assert len(live_files(table)) == 1
    assert peak(lambda: counts.append(read_through(table))) < 12
    assert counts[0] == counts[1]
    assert 0.9 * rows > counts[0] > 0.5 * rows


def test_a_compaction_has_one_budget_of_memory_however_many_threads_it_has(tmp_path: Path) -> None:
    peaks: list[float] = []
    rows: list[pa.Table] = []
    for threads in (1, 4):
        options = {**OPTIONS, "sort-spill-buffer-size": "8 mb", "bucket": "4"}
        catalog = new_catalog(tmp_path / str(threads))
        table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
        for _ in range(2):
            put(table, arriving(800_000))
        peaks.append(peak(lambda: table.compact(full=True, runner=TaskThreads(threads))))  # noqa: B023
        assert len(live_files(table)) == 4
        rows.append(table.scan().to_arrow().sort_by("id"))
    assert peaks[1] < 1.5 * peaks[0] + 4, peaks
    assert rows[0].equals(rows[1])
    assert rows[0].num_rows > 400_000


@pytest.mark.parametrize("rows", SIZES)
def test_an_append_table_is_written_compacted_and_sorted_in_little_memory(tmp_path: Path, rows: int) -> None:
    table = table_of(tmp_path, keyed=False)
    assert peak(lambda: put(table, arriving(rows))) < 8
    assert peak(lambda: table.compact(order_by=["b"])) < 12
    assert read_through(table) == rows
