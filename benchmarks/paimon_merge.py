"""Merging five sorted runs of a primary-key table in memory, against pyarrow's sort and keep-last.

Run by hand: `python -m benchmarks.paimon_merge [rows]`. Rows are those of all runs together; each run after the first
updates 30 % of its keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.metadata import types
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.merge import MergeSpec, merge_function, merge_runs, sort_and_merge_buffer

RUNS = 5
BATCH_ROWS = 65_536
SYSTEM_COLUMNS = ("_KEY_id", "_SEQUENCE_NUMBER", "_VALUE_KIND")


def schema(key: types.DataType, options: dict[str, str]) -> TableSchema:
    columns = [
        ("id", key.not_null()),
        ("a", types.int_()),
        ("b", types.bigint()),
        ("c", types.double()),
        ("d", types.string()),
        ("e", types.string()),
        ("f", types.timestamp(6)),
        ("g", types.decimal(12, 2)),
    ]
    fields = tuple(DataField(i, name, t) for i, (name, t) in enumerate(columns))
    return TableSchema(0, fields, len(fields), (), ("id",), options)


def run_of(number: int, rows: int, rng: np.random.Generator, text_key: bool) -> pa.RecordBatch:
    ids = np.sort(rng.choice(rows * RUNS, rows, replace=False))
    if number:
        fresh = rng.random(rows) < 0.7
        ids = np.unique(np.where(fresh, ids, ids // RUNS * RUNS))
    count = len(ids)
    key = pa.array([f"customer-{i:012d}" for i in ids]) if text_key else pa.array(ids)
    numbers = pa.array(np.arange(count, dtype=np.int64) + number * rows)
    value = rng.integers(0, 1_000_000, count)
    columns = {
        "_KEY_id": key,
        "_SEQUENCE_NUMBER": numbers,
        "_VALUE_KIND": pa.array(np.zeros(count, np.int8)),
        "id": key,
        "a": pa.array(value.astype(np.int32)),
        "b": pa.array(value * 7),
        "c": pa.array(value / 3),
        "d": pa.array(value).cast(pa.string()),
        "e": pa.array([f"some text {i % 1000}" for i in range(count)]),
        "f": pa.array(value * 1_000_000).cast(pa.timestamp("us")),
        "g": pa.array(value).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
    }
    return pa.RecordBatch.from_pydict(columns)


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)


def sort_and_keep_last(runs: list[pa.RecordBatch], names: list[str]) -> int:
    table = pa.Table.from_batches(runs)
    indices = pc.sort_indices(table, [("_KEY_id", "ascending"), ("_SEQUENCE_NUMBER", "ascending")])
    keys = table["_KEY_id"].take(indices)
    last = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).combine_chunks()
    kept = indices.filter(pa.concat_arrays([last, pa.array([True])]))
    rows: int = table.select(names).take(kept).num_rows
    return rows


def measure(name: str, rows: int, action: Callable[[], int]) -> None:
    best = float("inf")
    found = 0
    for _ in range(3):
        start = time.perf_counter()
        found = action()
        best = min(best, time.perf_counter() - start)
    print(f"{name:45s} {rows / best / 1e6:7.2f} M rows/s   {found:>9,} rows out")


def merged_rows(runs: list[pa.RecordBatch], spec: MergeSpec, names: list[str]) -> int:
    merging = merge_runs([sliced(run) for run in runs], spec, columns=names, keep_deletes=False)
    return sum(batch.num_rows for batch in merging)


def main() -> None:
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    engines: dict[str, dict[str, str]] = {
        "deduplicate": {},
        "partial-update": {"merge-engine": "partial-update"},
        "first-row": {"merge-engine": "first-row"},
        "aggregation (sum, max)": {
            "merge-engine": "aggregation",
            "fields.b.aggregate-function": "sum",
            "fields.c.aggregate-function": "max",
            "fields.g.aggregate-function": "sum",
        },
        "deduplicate, sequence.field": {"sequence.field": "f"},
    }
    for text_key in (False, True):
        measure_key(engines, total, text_key)


def measure_key(engines: dict[str, dict[str, str]], total: int, text_key: bool) -> None:
    rng = np.random.default_rng(1)
    runs = [run_of(i, total // RUNS, rng, text_key) for i in range(RUNS)]
    rows = sum(run.num_rows for run in runs)
    key = types.string() if text_key else types.bigint()
    names = [name for name in runs[0].schema.names if name not in SYSTEM_COLUMNS]
    print(f"\n{key} key, {RUNS} runs, {rows:,} rows, {len(names)} columns")
    for name, options in engines.items():
        measure(name, rows, partial(merged_rows, runs, merge_function(schema(key, options)), names))
    measure("pyarrow: sort, keep last, take", rows, partial(sort_and_keep_last, runs, names))
    buffer = [arriving(run, rng) for run in runs]
    measure("write buffer: sort and merge", rows, partial(buffer_rows, buffer, merge_function(schema(key, {}))))


def arriving(run: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    """The rows of a run as a writer gets them: in random key order, numbered in order of arrival."""
    numbers = run["_SEQUENCE_NUMBER"]
    return run.take(pa.array(rng.permutation(run.num_rows))).set_column(1, "_SEQUENCE_NUMBER", numbers)


def buffer_rows(batches: list[pa.RecordBatch], spec: MergeSpec) -> int:
    return sum(piece.num_rows for piece in sort_and_merge_buffer(batches, spec))


if __name__ == "__main__":
    main()
