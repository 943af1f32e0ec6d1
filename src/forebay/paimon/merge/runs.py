"""Merging sorted runs into one, with one row per key.

Runs are read in windows (`windows`), so that memory does not grow with their size; a large number of runs is first
reduced on the local disk (`spilling`). A range of keys in which only one run has rows is passed on without a copy.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.paimon.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from forebay.paimon.io.closing import closed_after
from forebay.paimon.merge._order import group_starts
from forebay.paimon.merge.engines import SortedRows, merge_sorted_rows
from forebay.paimon.merge.order import fixed_values
from forebay.paimon.merge.spec import MergeSpec
from forebay.paimon.merge.spilling import few_runs
from forebay.paimon.merge.windows import Window, ordered, windows


def merge_runs(
    runs: Sequence[Iterable[pa.RecordBatch]],
    spec: MergeSpec,
    *,
    columns: Sequence[str] | None = None,
    keep_deletes: bool = True,
    unique_keys: bool = True,
) -> Generator[pa.RecordBatch]:
    """Merge runs into one, ascending by key, with one row per key.

    Each run is sorted by key and, if keys repeat (`unique_keys=False`), by sequence fields and sequence number. All
    have the same columns: key columns, sequence number, kind, and value columns including `spec.required_columns`.
    `columns` are the result columns (None: all). A reader of the state passes `keep_deletes=False`; a compaction that
    does not include older levels must keep deletes. Of rows that are equal in all sort columns, the one from the later
    run counts as later. Runs that have a `close` are closed at the end.
    """
    with (
        few_runs(runs, spec, unique_keys) as (few, unique),
        closed_after(windows(few, spec.key_columns, unique)) as merge_windows,
    ):
        for window in merge_windows:
            merged = _merge_window(window, spec, columns, keep_deletes, unique)
            if merged.num_rows:
                yield merged


def _merge_window(
    window: Window, spec: MergeSpec, columns: Sequence[str] | None, keep_deletes: bool, unique_keys: bool
) -> pa.RecordBatch:
    batches, keys = window
    names = columns if columns is not None else batches[0].schema.names
    if len(batches) == 1 and unique_keys:
        return _unmerged(batches[0], names, keep_deletes)
    merge_columns = _needed(batches[0].schema, spec, names)
    whole = {name: pa.concat_arrays([batch.column(name) for batch in batches]) for name in merge_columns}
    order, key = ordered(whole, keys, [batch.num_rows for batch in batches], spec)
    rows = SortedRows(whole, order, group_starts(key, order))
    # Arrow cannot create a batch with rows but without columns, but can drop all columns of one.
    gathered = list(names) or [VALUE_KIND]
    schema = pa.schema([batches[0].schema.field(name) for name in gathered])
    arrays = merge_sorted_rows(rows, spec, gathered, keep_deletes=keep_deletes)
    merged = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return merged if names else merged.select([])


def _unmerged(batch: pa.RecordBatch, names: Sequence[str], keep_deletes: bool) -> pa.RecordBatch:
    projected = batch if list(names) == batch.schema.names else batch.select(list(names))
    if keep_deletes:
        return projected
    retracting = (fixed_values(batch.column(VALUE_KIND), np.dtype(np.int8)).astype(np.int8, copy=False) & 1) == 1
    return projected.filter(pc.invert(pa.array(retracting))) if retracting.any() else projected


def _needed(schema: pa.Schema, spec: MergeSpec, names: Sequence[str]) -> list[str]:
    """The columns that take part: result columns, sort columns, and keys if an error may name one."""
    deciding = {SEQUENCE_NUMBER, VALUE_KIND, *names, *spec.sequence_fields}
    for group in spec.sequence_groups:
        deciding.update(group.sequence_fields)
    if spec.aggregators:
        deciding.update(spec.key_columns)
    return [name for name in schema.names if name in deciding]
