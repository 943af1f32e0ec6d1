"""Batch statistics: written with a log batch, read to leave out batches that a filter cannot match.

    version i8 = 1 | column count i16 | positions i16 each | null counts i32 each
    | bytes i32, aligned row of the least values | bytes i32, aligned row of the greatest values

The rows have one field a listed column (codec.rows.aligned_row); a null bound means that there is none: the column held
only nulls, or its writer does not collect bounds for its type. Positions are those of the schema that the batch was
written with. TIME bounds are whole milliseconds, rounded down.

`StatisticsFilter` is a bound predicate made ready for one such schema. Rule: it says "cannot match" only when it is
certain; a column without statistics, without bounds or with an unknown null count keeps the batch.

Prior art: Apache Fluss's LogRecordBatchStatistics, and the row-group pruning of Parquet readers. Unlike Fluss, a leaf
without statistics does not keep a batch that another operand of the same AND rules out, and prefixes are compared as
UTF-8 bytes, in the order in which the bounds were made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.arrow.arrow_types import time_unit
from forebay.codec.casting.literals import TICKS_PER_SECOND, is_floating, sort_key
from forebay.codec.filters import BoundLeaf, BoundPredicate
from forebay.codec.log._statistics import statistics_block
from forebay.codec.rows.aligned_row import INLINE_BYTES_MAX, PLAIN_SLOTS, null_bits_size, slot_reader
from forebay.metadata.predicate import CompoundFunction, LeafFunction
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import NESTED_ROOTS, DataType, TypeRoot

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1

_UNSUPPORTED = NESTED_ROOTS | {TypeRoot.BINARY, TypeRoot.BYTES}
_HEAD = struct.Struct("<bh")
_INT32 = struct.Struct("<i")
_UINT32_PAIR = struct.Struct("<II")
_F = LeafFunction
_Reader = Callable[[memoryview, int, int], Any]


# ---- which columns --------------------------------------------------------------------------------------------------


def is_supported(t: DataType) -> bool:
    """Whether statistics of columns of type `t` are collected."""
    return t.root not in _UNSUPPORTED


def statistics_columns(schema: Schema, option: str | None) -> tuple[int, ...] | None:
    """The positions that the table option `table.statistics.columns` names: a list of columns, or '*'.

    None (the option is not set) means that the table collects no statistics. '*' leaves out unsupported columns.
    Raises `InvalidRequest` (code INVALID_CONFIG_EXCEPTION) for a table with a primary key, a column that does not
    exist or has an unsupported type, and an empty list.
    """
    if option is None:
        return None
    if schema.primary_key:
        raise _bad_option("statistics are for log tables only, and this table has a primary key")
    if option.strip() == "*":
        return tuple(i for i, t in enumerate(schema.types) if is_supported(t))
    names = [name.strip() for name in option.split(",") if name.strip()]
    if not names:
        raise _bad_option("the list of statistics columns is empty; write '*' for all, or remove the option")
    for name in names:
        if name not in schema.names:
            raise _bad_option(f"statistics column '{name}' does not exist; the columns are {', '.join(schema.names)}")
        if not is_supported(schema.column(name).data_type):
            raise _bad_option(
                f"statistics column '{name}' has type {schema.column(name).data_type}; ARRAY, MAP, ROW, BINARY and "
                "BYTES have no statistics"
            )
    return schema.indexes(names)


def _bad_option(why: str) -> InvalidRequest:
    return InvalidRequest(why, ErrorCode.INVALID_CONFIG_EXCEPTION)


# ---- the block ------------------------------------------------------------------------------------------------------


def encode_statistics(batch: pa.RecordBatch, positions: Sequence[int]) -> bytes:
    """The statistics block of `batch` for the columns at `positions`, in that order; nothing for no rows.

    `batch` has the storage schema. Columns of unsupported types get a null count and no bounds.
    """
    return statistics_block(batch, positions) if positions and batch.num_rows else b""


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """A parsed block: for each listed column its position, null count, least and greatest value (None: no bound)."""

    positions: tuple[int, ...]
    null_counts: tuple[int, ...]
    minimums: tuple[Any, ...]
    maximums: tuple[Any, ...]


class _Block:
    """Where the parts of the block that lies in `view` from `start` to `end` are; values are read when asked for."""

    __slots__ = ("count", "greatest_at", "head", "least_at", "null_counts_at", "start", "view")

    def __init__(self, view: memoryview, start: int, end: int) -> None:
        if end - start < _HEAD.size:
            raise _corrupt(f"{end - start} bytes")
        version, count = _HEAD.unpack_from(view, start)
        if version != VERSION:
            count = 0  # of a later version, which we cannot read
        if count < 0 or _HEAD.size + 6 * count > end - start:
            raise _corrupt(f"{count} columns in {end - start} bytes")
        self.view = view
        self.start = start
        self.count = count
        self.null_counts_at = start + _HEAD.size + 2 * count
        self.head = null_bits_size(count)
        if count:
            self.least_at = self.null_counts_at + 4 * count + 4
            self.greatest_at = self._row_end(self.least_at, end) + 4
            self._row_end(self.greatest_at, end)

    def _row_end(self, at: int, end: int) -> int:
        """The end of the row that begins at `at`, behind its length."""
        if at > end:
            raise _corrupt("a row is missing")
        size: int = _INT32.unpack_from(self.view, at - 4)[0]
        if not self.head + 8 * self.count <= size <= end - at:
            raise _corrupt(f"a row of {size} bytes")
        return at + size

    def positions(self) -> tuple[int, ...]:
        return struct.unpack_from(f"<{self.count}h", self.view, self.start + _HEAD.size)

    def null_count(self, index: int) -> int:
        count: int = _INT32.unpack_from(self.view, self.null_counts_at + 4 * index)[0]
        return count

    def bound(self, index: int, row: int, read: _Reader) -> Any:
        """The value of a column in the row at `row`; None where there is no bound."""
        if self.view[row + (index + 8 >> 3)] >> (index & 7) & 1:
            return None
        return read(self.view, row, self.head + 8 * index)


def _reader(t: DataType) -> _Reader:
    """Return the reader of a bound of type `t`, by (view, start of the row, start of its slot in the row)."""
    if not is_supported(t):
        return _no_bound
    if t.root in PLAIN_SLOTS:
        unpack = PLAIN_SLOTS[t.root].unpack_from
        return lambda view, row, at: unpack(view, row + at)[0]
    if t.root in (TypeRoot.CHAR, TypeRoot.STRING):
        return _read_text
    read = slot_reader(t)

    def read_row(view: memoryview, row: int, at: int) -> Any:
        size = _INT32.unpack_from(view, row - 4)[0]
        return read(view[row : row + size], at)

    return read_row


def _read_text(view: memoryview, row: int, at: int) -> str:
    """A text bound; the same as a slot reader for text gives, in a third of the time."""
    last = view[row + at + 7]
    if last & 0x80:
        start, size = at, last & 0x7F
        _require(size <= INLINE_BYTES_MAX, "a text too long for its slot")
    else:
        size, start = _UINT32_PAIR.unpack_from(view, row + at)
        _require(start + size <= _INT32.unpack_from(view, row - 4)[0], "a text outside its row")
    try:
        return str(view[row + start : row + start + size], "utf-8")
    except UnicodeDecodeError as e:
        raise _corrupt(f"text that is not UTF-8: {e}") from e


def _no_bound(view: memoryview, row: int, at: int) -> None:
    """Return None: a column of a type without bounds has none, whatever its slot contains."""


def parse_statistics(data: Buffer, schema: Schema | Sequence[Column]) -> BatchStatistics | None:
    """The statistics in the block `data` of a batch written with `schema`.

    None for a block of no columns, which some writers make, or of a version that we do not know. Raises `CorruptData`.
    """
    view = memoryview(data).cast("B")
    block = _Block(view, 0, len(view))
    if block.count == 0:
        return None
    columns = schema.columns if isinstance(schema, Schema) else tuple(schema)
    positions = block.positions()
    for position in positions:
        _require(0 <= position < len(columns), f"column {position} of {len(columns)}")
    readers = [_reader(columns[position].data_type) for position in positions]
    return BatchStatistics(
        positions,
        tuple(block.null_count(i) for i in range(block.count)),
        tuple(block.bound(i, block.least_at, read) for i, read in enumerate(readers)),
        tuple(block.bound(i, block.greatest_at, read) for i, read in enumerate(readers)),
    )


# ---- pruning --------------------------------------------------------------------------------------------------------

_Test = Callable[[_Block, dict[int, int], int], bool]


class StatisticsFilter:
    """A bound predicate made ready for the batches of one schema. Thread-safe."""

    def __init__(self, bound: BoundPredicate, schema: Schema | Sequence[Column]) -> None:
        """`schema` is the one that the batches were written with; columns are matched by column id."""
        columns = schema.columns if isinstance(schema, Schema) else tuple(schema)
        self._column_count = len(columns)
        self._test = _compile(bound, {column.column_id: (i, column) for i, column in enumerate(columns)})
        self._indexes: dict[bytes, dict[int, int]] = {}

    def may_match(self, statistics: Buffer, row_count: int) -> bool:
        """Whether one of `row_count` rows may match whose batch has the block `statistics`.

        True when in doubt: for a batch without statistics, or without rows, and for one whose statistics cannot be
        read, because its reader will see what is wrong with it.
        """
        view = memoryview(statistics).cast("B")
        if not view:
            return True
        try:
            return self._matches(view, 0, len(view), row_count)
        except CorruptData:
            return True

    def test(self, data: Buffer, row_count: int) -> bool:
        """Whether one of `row_count` rows with the statistics block `data` may match. Raises `CorruptData`."""
        view = memoryview(data).cast("B")
        return self._matches(view, 0, len(view), row_count)

    def _matches(self, view: memoryview, start: int, end: int, row_count: int) -> bool:
        block = _Block(view, start, end)
        if block.count == 0 or row_count == 0:
            return True
        # All batches of a table list the same columns.
        listed = bytes(view[start + _HEAD.size : block.null_counts_at])
        index = self._indexes.get(listed)
        return self._test(block, self._learn(listed, block) if index is None else index, row_count)

    def _learn(self, listed: bytes, block: _Block) -> dict[int, int]:
        """Position in the schema -> index in the block."""
        positions = block.positions()
        for position in positions:
            _require(0 <= position < self._column_count, f"column {position} of {self._column_count}")
        index = {position: i for i, position in enumerate(positions)}
        if len(self._indexes) < 64:
            self._indexes[listed] = index
        return index


def _compile(bound: BoundPredicate, columns: dict[int | None, tuple[int, Column]]) -> _Test:
    if not isinstance(bound, BoundLeaf):
        children = [_compile(child, columns) for child in bound.children]
        join = all if bound.function is CompoundFunction.AND else any
        return lambda block, index, rows: join(child(block, index, rows) for child in children)
    entry = columns.get(bound.column.column_id)
    if entry is None or entry[1].data_type.as_nullable() != bound.column.data_type.as_nullable():
        return _keep
    return _compile_leaf(bound, entry[0], entry[1].data_type)


def _keep(block: _Block, index: dict[int, int], rows: int) -> bool:
    return True


def _compile_leaf(leaf: BoundLeaf, position: int, t: DataType) -> _Test:
    order = sort_key if is_floating(t) else None
    literals = [order(value) for value in leaf.literals] if order else list(leaf.literals)
    below_milliseconds = _below_milliseconds(t)
    read = _reader(t)
    decide = RANGE_DECISIONS.get(leaf.function)

    def test(block: _Block, index: dict[int, int], rows: int) -> bool:
        i = index.get(position)
        if i is None:
            return True
        nulls = block.null_count(i)
        has_null_count = 0 <= nulls <= rows
        if leaf.function is _F.IS_NULL:
            return not has_null_count or nulls > 0
        if has_null_count and nulls == rows:  # nothing but IS NULL holds for a null
            return False
        if decide is None:
            return True
        low, high = block.bound(i, block.least_at, read), block.bound(i, block.greatest_at, read)
        if low is None or high is None:
            return True
        if order:
            low, high = order(low), order(high)
        elif below_milliseconds:
            high += below_milliseconds
        return decide(low, high, literals)

    return test


def _below_milliseconds(t: DataType) -> int:
    """How far a TIME may lie above its bound, which is whole milliseconds, in the unit of the column."""
    return max(TICKS_PER_SECOND[time_unit(t.precision)] // 1_000, 1) - 1 if t.root is TypeRoot.TIME else 0


def _starts_with(low: Any, high: Any, literals: list[Any]) -> bool:
    prefix = literals[0]
    return bool((low.startswith(prefix) or low <= prefix) and (high.startswith(prefix) or high >= prefix))


RANGE_DECISIONS: dict[LeafFunction, Callable[[Any, Any, list[Any]], bool]] = {
    _F.EQUAL: lambda low, high, literals: low <= literals[0] <= high,
    _F.NOT_EQUAL: lambda low, high, literals: not low == high == literals[0],
    _F.LESS_THAN: lambda low, high, literals: low < literals[0],
    _F.LESS_OR_EQUAL: lambda low, high, literals: low <= literals[0],
    _F.GREATER_THAN: lambda low, high, literals: high > literals[0],
    _F.GREATER_OR_EQUAL: lambda low, high, literals: high >= literals[0],
    _F.STARTS_WITH: _starts_with,
    _F.IN: lambda low, high, literals: any(low <= value <= high for value in literals),
    _F.NOT_IN: lambda low, high, literals: not (low == high and low in literals),
}
"""Whether a column between `low` and `high` may hold a value that the filter lets through: (low, high, literals)."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise _corrupt(what)


def _corrupt(what: str) -> CorruptData:
    return CorruptData(f"batch statistics are malformed: {what}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
