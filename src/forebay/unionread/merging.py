"""Lake rows of one bucket, overridden by the tail of its changelog.

There are two ways, with the same result. `override` drops the lake rows whose keys changed, by a hash of the tail's
keys, and needs no order. `merge_sorted` also merges the tail's rows in key order, for lakes with sorted readers; its
result is sorted. Neither holds more in memory than the tail and one batch of the lake.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc

from forebay.codec.casting.conform import conform_array
from forebay.codec.rows.keys import KeyEncoder
from forebay.lake.source import KeyOrder, SortedRecordReader
from forebay.unionread.tail import Tail


def override(lake: Iterable[pa.RecordBatch], tail: Tail, encoder: KeyEncoder) -> Iterator[pa.RecordBatch]:
    """Yield the tail's rows, then those of the lake whose keys did not change. Batches have the storage schema.

    The lake's first batch is read before anything is yielded, so that an expired snapshot is found in time.
    """
    batches = iter(lake)
    first = list(islice(batches, 1))
    yield from tail.batches
    for batch in chain(first, batches):
        unchanged = _unchanged(batch, tail, encoder)
        if unchanged.num_rows:
            yield unchanged


def _unchanged(batch: pa.RecordBatch, tail: Tail, encoder: KeyEncoder) -> pa.RecordBatch:
    if not len(tail.changed) or not batch.num_rows:
        return batch
    changed = tail.changed.contains(encoder.encode(batch))
    return batch if not changed.true_count else batch.filter(pc.invert(changed))


def merge_sorted(
    reader: SortedRecordReader, stored: Callable[[pa.RecordBatch], pa.RecordBatch], tail: Tail, encoder: KeyEncoder
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of both in the order of the reader. `stored` converts its batches to the tail's schema."""
    rows, ranks = _sorted_tail(reader, tail)
    done = 0
    for batch in reader.read():
        if not batch.num_rows:
            continue
        comparable = _ranks(reader.order, batch)
        last = comparable[len(comparable) - 1].as_py()
        until = bisect_right(ranks, last, done)
        mine = stored(batch)
        if len(tail.changed):
            unchanged = pc.invert(tail.changed.contains(encoder.encode(mine)))
            mine, comparable = mine.filter(unchanged), comparable.filter(unchanged)
        if until > done and rows is not None:
            places = pa.concat_arrays([comparable, pa.array(ranks[done:until], pa.binary())])
            together = pa.Table.from_batches([mine, rows.slice(done, until - done)]).combine_chunks()
            yield together.take(pc.array_sort_indices(places)).combine_chunks().to_batches()[0]
            done = until
        elif mine.num_rows:
            yield mine
    if rows is not None and done < rows.num_rows:
        yield rows.slice(done)


def _sorted_tail(reader: SortedRecordReader, tail: Tail) -> tuple[pa.RecordBatch | None, list[bytes]]:
    """Return the tail's rows in the order of the reader, and their ranks."""
    if not tail.rows:
        return None, []
    (rows,) = pa.Table.from_batches(tail.batches).combine_chunks().to_batches()
    fields = [reader.schema.field(name) for name in reader.order.columns]
    keys = [conform_array(rows.column(f.name), f.type, f.name, truncate=False) for f in fields]
    ranks = reader.order.comparable(pa.RecordBatch.from_arrays(keys, schema=pa.schema(fields)))
    order = pc.array_sort_indices(ranks)
    return rows.take(order), ranks.take(order).to_pylist()


def _ranks(order: KeyOrder, batch: pa.RecordBatch) -> pa.BinaryArray:
    return order.comparable(batch.select(list(order.columns)))
