"""Turning write buffers into sorted runs, one piece at a time.

A buffer consists of many batches, and is the largest object in a writer's memory. Only the sort columns are
concatenated; all others stay in their batches, and each piece of the run gathers its rows from there. Besides the
buffer, memory therefore holds one piece and a second copy of variable-width columns (text, nested values), instead of
two more copies of everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from forebay.paimon.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from forebay.paimon.merge._order import group_starts, sort_rows
from forebay.paimon.merge.engines import SortedRows, merge_sorted_rows, winning_rows
from forebay.paimon.merge.folds import Indices
from forebay.paimon.merge.order import sort_key
from forebay.paimon.merge.spec import MergeSpec
from forebay.paimon.merge.windows import concatenated, key_of, sequence_key

PIECE_ROWS = 1 << 16
"""The default number of rows in a piece: the maximum row group size of a sorted file."""


def sort_buffer(
    batches: Sequence[pa.RecordBatch], spec: MergeSpec, rows_max: int = PIECE_ROWS
) -> Iterator[pa.RecordBatch]:
    """All rows of a write buffer, sorted by key, sequence fields and sequence number, without merging.

    There must be at least one batch. Pieces have at most `rows_max` rows, and at least one.
    """
    yield from _gathered(batches, _sorted(batches, spec).order, rows_max)


def sort_and_merge_buffer(
    batches: Sequence[pa.RecordBatch], spec: MergeSpec, rows_max: int = PIECE_ROWS
) -> Iterator[pa.RecordBatch]:
    """A write buffer as a sorted run with unique keys, including deletes. Rows already have sequence numbers.

    There must be at least one batch. Pieces have at most `rows_max` rows, and at least one. Raises like
    `merge_sorted_rows`.
    """
    rows = _sorted(batches, spec, as_java_buffers=True)
    winners = winning_rows(rows, spec)
    if winners is not None:
        del rows
        yield from _gathered(batches, winners, rows_max)
        return
    whole = concatenated(batches)
    rows = SortedRows(dict(zip(whole.schema.names, whole.columns)), rows.order, rows.starts)
    merged = pa.RecordBatch.from_arrays(merge_sorted_rows(rows, spec, whole.schema.names), schema=whole.schema)
    for start in range(0, merged.num_rows, rows_max):
        yield merged.slice(start, rows_max)


def _sorted(batches: Sequence[pa.RecordBatch], spec: MergeSpec, *, as_java_buffers: bool = False) -> SortedRows:
    """The order of all rows, with the sort columns and the kinds.

    `as_java_buffers`: within a key, rows with -0.0 come before those with 0.0, regardless of write order, because Java
    sorts its buffers by bits before it compares keys.
    """
    deciding = {*spec.key_columns, *spec.sequence_fields, SEQUENCE_NUMBER, VALUE_KIND}
    names = [name for name in batches[0].schema.names if name in deciding]
    batch = concatenated([b.select(names) for b in batches])
    columns = dict(zip(names, batch.columns))
    key, sequence = key_of(batch, spec.key_columns), sequence_key(columns, spec)
    number = sort_key([columns[SEQUENCE_NUMBER]])
    keys = [key, number] if sequence is None else [key, sequence, number]
    by_bits = [columns[name] for name in spec.key_columns]
    if as_java_buffers and any(pa.types.is_floating(column.type) for column in by_bits):
        keys[0] = sort_key(by_bits)
    order = sort_rows(keys)
    return SortedRows(columns, order, group_starts(key, order))


def _gathered(batches: Sequence[pa.RecordBatch], rows: Indices, rows_max: int) -> Iterator[pa.RecordBatch]:
    """The rows of all batches selected by `rows`, in that order."""
    schema = batches[0].schema
    if len(rows) == sum(b.num_rows for b in batches) and bool((rows[1:] > rows[:-1]).all()):
        yield from _sliced(batches, rows_max)
        return
    columns = [_takeable([b.column(i) for b in batches]) for i in range(len(schema))]
    for start in range(0, len(rows), rows_max):
        positions = pa.array(rows[start : start + rows_max])
        yield pa.RecordBatch.from_arrays([_one(column.take(positions)) for column in columns], schema=schema)


def _sliced(batches: Sequence[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """All rows in order; without a copy if a piece lies in one batch."""
    table = pa.Table.from_batches(batches)
    for start in range(0, table.num_rows, rows_max):
        piece = table.slice(start, rows_max)
        yield pa.RecordBatch.from_arrays([_one(column) for column in piece.columns], schema=table.schema)


def _takeable(chunks: list[pa.Array]) -> pa.Array | pa.ChunkedArray:
    """A column in a form that is efficient to take rows from repeatedly.

    Arrow takes fixed-width values from many chunks, but concatenates all other chunks first, each time.
    """
    if len(chunks) == 1:
        return chunks[0]
    return pa.chunked_array(chunks) if _is_fixed(chunks[0].type) else pa.concat_arrays(chunks)


def _is_fixed(t: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(t) or pa.types.is_decimal(t) or pa.types.is_fixed_size_binary(t))


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
