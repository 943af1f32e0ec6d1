"""Sorting rows so that files cover narrow ranges: by columns in order, or along a space-filling curve through them.

Rows are sorted in parts that fit into memory; parts are spilled to a local file and merged. `zorder` and `hilbert` give
all columns the same weight: values are first replaced by their rank in a sample, so that skewed columns and columns of
different types cluster equally well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.paimon.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from forebay.paimon.io.closing import closed_after
from forebay.paimon.merge._order import sort_rows
from forebay.paimon.merge.order import flag_values, key_bytes, sort_key, words_as_bytes
from forebay.paimon.merge.runs import merge_runs
from forebay.paimon.merge.spec import MergeEngine, MergeSpec

ORDER, ZORDER, HILBERT = "order", "zorder", "hilbert"
STRATEGIES = (ORDER, ZORDER, HILBERT)

_KEY = "_FOREBAY_SORT_KEY"
_BATCH_ROWS = 1 << 16
_SPILLED_PARTS = 32
"""The number of batches that a part is spilled in: a merge loads one batch of each part."""
_BITS_MAX = 16

_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The columns to cluster by, and the strategy: `order`, `zorder` or `hilbert`."""

    columns: tuple[str, ...]
    strategy: str = ORDER

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InvalidRequest(f"'{self.strategy}' is no way to sort; there are {', '.join(STRATEGIES)}")
        if len(set(self.columns)) != len(self.columns):
            raise InvalidRequest(f"a column to sort by is named twice: {', '.join(self.columns)}")


def sorted_batches(batches: Iterable[pa.RecordBatch], order: SortOrder, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows of `batches`, sorted. About `bytes_max` bytes are in memory at a time, half of them while sorting."""
    curve = None if order.strategy == ORDER else _Curve(order)
    with tempfile.TemporaryDirectory(prefix="forebay-sort-") as folder, closed_after(batches):
        parts: list[str] = []
        waiting: list[pa.RecordBatch] = []
        size = 0
        done = 0
        last: pa.RecordBatch | None = None
        for batch in batches:
            waiting.append(batch)
            size += batch.nbytes
            if size >= bytes_max // 2:
                parts.append(f"{folder}/{len(parts)}.arrow")
                _spill(_sorted_part(waiting, order, curve, done), parts[-1])
                done += sum(b.num_rows for b in waiting)
                waiting, size = [], 0
        if waiting:
            last = _sorted_part(waiting, order, curve, done)
        if not parts:
            if last is not None:
                yield from _sliced(_without_system(last))
            return
        if last is not None:
            parts.append(f"{folder}/{len(parts)}.arrow")
            _spill(last, parts[-1])
            del last
        runs = [_spilled(path) for path in parts]
        for merged in merge_runs(runs, _SPEC):
            yield _without_system(merged)


# The merge key of parts includes the row number, so that no two rows are equal and none is merged away.
_SPEC = MergeSpec(MergeEngine.DEDUPLICATE, (_KEY, SEQUENCE_NUMBER))


def _sorted_part(
    batches: Sequence[pa.RecordBatch], order: SortOrder, curve: _Curve | None, first: int
) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    batch = table.to_batches()[0]
    columns = [batch.column(name) for name in order.columns]
    keys = key_bytes([_with_null(c) for c in columns], batch.num_rows) if curve is None else curve.keys(columns)
    at = sort_rows([sort_key([keys])])
    numbers = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
    batch = batch.append_column(_KEY, keys).append_column(SEQUENCE_NUMBER, numbers)
    batch = batch.append_column(VALUE_KIND, pa.array(np.zeros(batch.num_rows, np.int8)))
    return batch.take(pa.array(at))


def _with_null(column: pa.Array) -> pa.Array:
    """A column with a null appended: keys of parts are comparable only if all or none of them have nulls."""
    return pa.concat_arrays([column, pa.nulls(1, column.type)])


class _Curve:
    """A curve through the space of some columns. Ranks are learnt from the first part that is sorted."""

    def __init__(self, order: SortOrder) -> None:
        self._hilbert = order.strategy == HILBERT
        self._bits = min(_BITS_MAX, 64 // max(1, len(order.columns)))
        self._borders: list[_Words] | None = None

    def keys(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Positions on the curve, as bytes."""
        values = [_ordered_words(column) for column in columns]
        if self._borders is None:
            self._borders = [_quantiles(v, 1 << self._bits) for v in values]
        axes = [_ranks(v, borders, self._bits) for borders, v in zip(self._borders, values, strict=True)]
        if self._hilbert and len(axes) > 1:
            axes = hilbert_transposed(axes, self._bits)
        return words_as_bytes(interleaved(axes, self._bits))


def _ordered_words(column: pa.Array) -> _Words:
    """The first eight bytes of each value as an order-preserving number. Longer values may tie. Nulls are 0."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.uint64)
    if column.null_count == 0:
        return np.asarray(sort_key([column]).prefix, np.uint64)
    present = flag_values(column.is_valid())
    words = np.zeros(len(column), np.uint64)
    words[present == 1] = sort_key([column.drop_null()]).prefix
    return words


def _quantiles(values: _Words, count: int) -> _Words:
    """At most `count - 1` boundaries between ranges with about the same number of rows."""
    ordered = np.sort(values)
    places = np.linspace(0, len(ordered) - 1, min(count, len(ordered))).astype(np.int64)[1:]
    return np.unique(ordered[places])


def _ranks(values: _Words, borders: _Words, bits: int) -> _Words:
    """Ranks among the boundaries, scaled to all of `bits`, so that the top bits of all columns weigh the same."""
    ranks = np.searchsorted(borders, values, "right").astype(np.uint64)
    return ranks * np.uint64(max(1, (1 << bits) // (len(borders) + 1)))


def interleaved(axes: Sequence[_Words], bits: int) -> _Words:
    """The bits of all axes, interleaved, the most significant first: the Z-order curve."""
    curve = np.zeros(len(axes[0]), np.uint64)
    for bit in range(bits - 1, -1, -1):
        for axis in axes:
            curve = (curve << np.uint64(1)) | ((axis >> np.uint64(bit)) & np.uint64(1))
    return curve


def hilbert_transposed(axes: Sequence[_Words], bits: int) -> list[_Words]:
    """Points as axes whose interleaved bits are positions on the Hilbert curve (method of J. Skilling, 2004)."""
    x = [axis.copy() for axis in axes]
    top = np.uint64(1 << (bits - 1))
    q = top
    while q > 1:
        low = q - np.uint64(1)
        for i in range(len(x)):
            far = (x[i] & q) != 0
            swap = (x[0] ^ x[i]) & low
            x[0] = np.where(far, x[0] ^ low, x[0] ^ swap)
            if i:
                x[i] = np.where(far, x[i], x[i] ^ swap)
        q >>= np.uint64(1)
    for i in range(1, len(x)):
        x[i] = x[i] ^ x[i - 1]
    turn = np.zeros(len(x[0]), np.uint64)
    q = top
    while q > 1:
        turn = np.where((x[-1] & q) != 0, turn ^ (q - np.uint64(1)), turn)
        q >>= np.uint64(1)
    return [axis ^ turn for axis in x]


def _spill(batch: pa.RecordBatch, path: str) -> None:
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        for part in _sliced(batch, max(1024, batch.num_rows // _SPILLED_PARTS)):
            writer.write_batch(part)


def _spilled(path: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def _sliced(batch: pa.RecordBatch, rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _without_system(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns([_KEY, SEQUENCE_NUMBER, VALUE_KIND])
