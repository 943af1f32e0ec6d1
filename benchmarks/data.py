"""The rows of all benchmarks: 8 mixed columns, about 70 bytes a row, the same in every run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("quantity", pa.int32()),
        pa.field("price", pa.float64()),
        pa.field("customer", pa.string()),
        pa.field("status", pa.string()),
        pa.field("changed_at", pa.timestamp("us")),
        pa.field("paid", pa.bool_()),
        pa.field("amount", pa.decimal128(12, 2)),
    ]
)
KEY = "id"

BATCH_ROWS = 50_000
"""The number of rows that a program passes at a time."""

_EPOCH_US = 1_700_000_000_000_000
_STATUSES = pa.array(["ordered ", "packed  ", "shipped ", "returned"])


def batch_of(ids: npt.NDArray[np.int64], seed: int) -> pa.RecordBatch:
    """Rows with these ids; all other values are drawn from `seed`."""
    rng = np.random.default_rng(seed)
    rows = len(ids)
    letters = rng.integers(97, 123, (rows, 12), dtype=np.uint8).tobytes()
    offsets = np.arange(0, 12 * rows + 1, 12, dtype=np.int32)
    customers = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    cents = np.zeros((rows, 2), np.int64)
    cents[:, 0] = rng.integers(0, 10_000_000, rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids),
            pa.array(rng.integers(0, 1000, rows, dtype=np.int32), mask=rng.random(rows) < 0.1),
            pa.array(rng.random(rows) * 1000),
            customers,
            _STATUSES.take(pa.array(rng.integers(0, 4, rows))),
            pa.array(_EPOCH_US + rng.integers(0, 10**12, rows), pa.timestamp("us")),
            pa.array(rng.random(rows) < 0.5),
            pa.Array.from_buffers(pa.decimal128(12, 2), rows, [None, pa.py_buffer(cents)]),
        ],
        schema=SCHEMA,
    )


def batches(rows: int, *, first: int = 0, seed: int = 1, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """`rows` rows with ids from `first` on, in batches."""
    for start in range(0, rows, batch_rows):
        ids = np.arange(first + start, first + min(start + batch_rows, rows), dtype=np.int64)
        yield batch_of(ids, seed + start)


def table(rows: int, *, first: int = 0, seed: int = 1) -> pa.Table:
    """`rows` rows in one Arrow table."""
    return pa.Table.from_batches(batches(rows, first=first, seed=seed), SCHEMA)


def half_updates(rows: int, existing: int, seed: int = 2) -> list[pa.RecordBatch]:
    """`rows` rows to upsert into a table that has the ids below `existing`: every second one of them is new.

    Updated ids are spread over all existing ones, and none is updated twice if there are enough.
    """
    rng = np.random.default_rng(seed)
    changed = rng.permutation(existing)[: (rows + 1) // 2]
    old = np.resize(changed, (rows + 1) // 2) if existing else np.arange(existing, existing + (rows + 1) // 2)
    ids = np.empty(rows, np.int64)
    ids[0::2] = old
    ids[1::2] = np.arange(existing, existing + rows // 2)
    return [batch_of(ids[start : start + BATCH_ROWS], seed + start) for start in range(0, rows, BATCH_ROWS)]
