"""Folds: reduce the rows of each key to one value, for one column and one aggregate function.

Most functions select one of the rows (`fold_picked` returns its position, and the value is gathered later together with
all other columns); the others compute a new value. Sums, products and joined strings are here, lists and maps in
`merge.nested`.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.metadata.merge_engines import INTEGER_OVERFLOW
from forebay.paimon.merge._fold import fold_floats, fold_integers, fold_pick, fold_wide
from forebay.paimon.merge.functions import RETRACTING, Aggregator
from forebay.paimon.merge.order import decimal_words, fixed_values, sort_key, validity

SKIP, ADD, ADD_OLDER, RETRACT, SET, CLEAR, SET_RETRACT = range(7)
"""The operation of a row in a fold (`Op` in the kernels). ADD_OLDER: the row is older than those already added."""

PICKS = {
    "last_value": 0,
    "last_non_null_value": 1,
    "first_value": 2,
    "first_non_null_value": 3,
    "max": 4,
    "min": 5,
    "primary-key": 6,
    "bool_or": 4,
    "bool_and": 5,
    "latest": 7,
}
"""The functions that select a row, with the kernel's number. For booleans, `or` is the maximum, `and` the minimum."""

_COMPARING = frozenset({4, 5, 7})
"""The kernel's numbers of functions that compare values."""

_WHITESPACE = (
    "".join(map(chr, [*range(9, 14), *range(0x1C, 0x21), 0x1680, *range(0x2000, 0x2007), *range(0x2008, 0x200B)]))
    + "\u2028\u2029\u205f\u3000"
)
"""The characters that Java considers white space, which excludes no-break spaces."""

_EXACT = decimal.Context(prec=1000, traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Inexact])
_ROUNDING = decimal.Context(prec=1000, rounding=decimal.ROUND_HALF_UP, traps=[decimal.InvalidOperation])

_INTEGER_RANGE_BITS = 63
_FAIL, _NULL, _WRAP = range(3)
"""The kernel's modes of overflow: raise an error, return null, or wrap around."""

_DECIMAL_INT_PRECISION_MAX = 9
_DECIMAL_LONG_PRECISION_MAX = 18

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyGroups:
    """Rows by key: `rows[starts[g]:starts[g + 1]]` are those of key g in order, and `ops` are their operations."""

    rows: Indices
    starts: Indices
    ops: npt.NDArray[np.uint8]

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    def with_ops(self, ops: npt.NDArray[np.uint8]) -> KeyGroups:
        return replace(self, ops=ops)

    def local(self) -> KeyGroups:
        """The same groups, over a column from which `rows` have been taken."""
        return replace(self, rows=np.arange(len(self.rows), dtype=np.int64))

    def has_only(self, *ops: int) -> bool:
        return bool(np.isin(self.ops, ops).all())

    def numbers(self) -> Indices:
        """The index of the key of each element of `rows`."""
        return np.repeat(np.arange(self.count, dtype=np.int64), np.diff(self.starts))


def allowed_ops(aggregator: Aggregator, groups: KeyGroups) -> KeyGroups:
    """`groups` without retractions that the column ignores. Raises `InvalidRequest` if it cannot retract rows."""
    retracts = (groups.ops == RETRACT) | (groups.ops == SET_RETRACT)
    if not retracts.any():
        return groups
    if aggregator.ignore_retract:
        ignored = np.array([SKIP, ADD, ADD_OLDER, SKIP, SET, CLEAR, SET], np.uint8)
        return groups.with_ops(ignored[groups.ops])
    if aggregator.function not in RETRACTING:
        raise InvalidRequest(
            f"aggregate function '{aggregator.function}' of column '{aggregator.column}' cannot take back rows (-U, "
            f"-D); set 'fields.{aggregator.column}.ignore-retract' to leave them out"
        )
    return groups


def fold_picked(function: str, column: pa.Array, groups: KeyGroups) -> Indices:
    """The row of `column` whose value each key gets, or -1 for null."""
    number = PICKS[function]
    if number not in _COMPARING:
        valid = validity(column)
        return fold_pick(number, groups.rows, groups.starts, groups.ops, len(column), valid, None)
    values = column.take(pa.array(groups.rows))
    local = groups.local()
    key = sort_key([values])
    picked = fold_pick(number, local.rows, local.starts, local.ops, len(values), validity(values), key)
    if len(groups.rows) == 0:
        return picked
    return np.where(picked < 0, -1, groups.rows[picked])


class FoldFailure(Exception):
    """Raised if the values of one key have no result. `group` is the key's index in its `KeyGroups`."""

    def __init__(self, message: str, group: int) -> None:
        super().__init__(message)
        self.message, self.group = message, group


def fold_number(aggregator: Aggregator, column: pa.Array, groups: KeyGroups) -> pa.Array:
    """Sums and products. Raises `FoldFailure` if an integer overflows or a product would retract a zero.

    As in Java, a DECIMAL of up to 9 digits is a 32-bit number and one of up to 18 a 64-bit number, which may exceed its
    precision as long as it fits. Sums that exceed 32 bits fail, where Java's files would contain a wrong number. Other
    decimals that do not fit become null.
    """
    inputs = column.take(pa.array(groups.rows))
    product = aggregator.function == "product"
    local = groups.local()
    try:
        if pa.types.is_decimal(inputs.type):
            return _fold_decimal(product, inputs, local, aggregator.wraps)
        if pa.types.is_floating(inputs.type):
            single = inputs.type.bit_width == 32
            values = inputs.cast(pa.float64())
            floats, some = fold_floats(
                product, single, _doubles(values), validity(inputs), local.rows, local.starts, local.ops
            )
            return _from_numpy(floats, some, inputs.type)
        bits = inputs.type.bit_width - 1
        values = _longs(inputs.cast(pa.int64()))
        least, greatest = -(1 << bits), (1 << bits) - 1
        on_overflow = _WRAP if aggregator.wraps else _FAIL
        numbers, some = fold_integers(
            product, values, validity(inputs), least, greatest, on_overflow, local.rows, local.starts, local.ops
        )
        return _from_numpy(numbers, some, inputs.type)
    except ArithmeticError as e:
        what, group = e.args
        advice = (
            f"set '{INTEGER_OVERFLOW}' to 'wrap' for a read or a compaction that goes on with the lowest bits"
            if isinstance(e, OverflowError)
            else f"set 'fields.{aggregator.column}.ignore-retract' to leave out -U and -D"
        )
        raise FoldFailure(
            f"column '{aggregator.column}': '{aggregator.function}' fails for {aggregator.data_type}: {what}; {advice}",
            group,
        ) from e


def _doubles(column: pa.Array) -> npt.NDArray[np.float64]:
    return fixed_values(column, np.dtype(np.float64)).astype(np.float64, copy=False)


def _longs(column: pa.Array) -> Indices:
    return fixed_values(column, np.dtype(np.int64)).astype(np.int64, copy=False)


def _from_numpy(values: npt.NDArray[np.generic], some: npt.NDArray[np.uint8], data_type: pa.DataType) -> pa.Array:
    return pa.array(values, mask=some == 0).cast(data_type)


def decimals_from_words(words: npt.NDArray[np.uint64], some: npt.NDArray[np.uint8], data_type: pa.DataType) -> pa.Array:
    """Decimals from the low and high halves of their unscaled values, concatenated."""
    bitmap = pa.array(some.astype(np.bool_)).buffers()[1]
    return pa.Array.from_buffers(data_type, len(some), [bitmap, pa.py_buffer(np.ascontiguousarray(words))])


def _fold_decimal(product: bool, values: pa.Array, groups: KeyGroups, wraps: bool) -> pa.Array:
    precision = values.type.precision
    low, high = decimal_words(values)
    valid = validity(values)
    if product:
        return _decimal_products(values, groups)
    if precision > _DECIMAL_LONG_PRECISION_MAX:
        words, some = fold_wide(low, high, valid, precision, groups.rows, groups.starts, groups.ops)
        return decimals_from_words(words, some, values.type)
    short = precision <= _DECIMAL_INT_PRECISION_MAX
    bits = 31 if short else _INTEGER_RANGE_BITS
    numbers, some = fold_integers(
        False,
        low.view(np.int64),
        valid,
        -(1 << bits),
        (1 << bits) - 1,
        _NULL if not short else _WRAP if wraps else _FAIL,
        groups.rows,
        groups.starts,
        groups.ops,
    )
    words = np.empty(2 * len(numbers), np.uint64)
    words[0::2] = numbers.view(np.uint64)
    words[1::2] = (numbers >> 63).view(np.uint64)
    return decimals_from_words(words, some, values.type)


def _decimal_products(inputs: pa.Array, groups: KeyGroups) -> pa.Array:
    """Products computed value by value: they are rare, and 256-bit arithmetic is not worth a kernel."""
    precision, scale = inputs.type.precision, inputs.type.scale
    values = inputs.to_pylist()
    unit = decimal.Decimal(1).scaleb(-scale)
    results: list[decimal.Decimal | None] = []
    for g in range(groups.count):
        result: decimal.Decimal | None = None
        for i in range(groups.starts[g], groups.starts[g + 1]):
            op, value = groups.ops[i], values[i]
            if op in (SET, CLEAR, SET_RETRACT):
                result = None if op == CLEAR else value
            if value is None or op in (SKIP, SET, CLEAR):
                continue
            if op in (ADD, ADD_OLDER) and result is None:
                result = value
                continue
            if result is None:
                continue
            retracts = op in (RETRACT, SET_RETRACT)
            if retracts and not value:
                raise ZeroDivisionError("a product cannot retract zero", g)
            try:
                raw = _EXACT.divide(result, value) if retracts else _EXACT.multiply(result, value)
                result = raw.quantize(unit, context=_ROUNDING)
            except decimal.DecimalException as e:
                raise ArithmeticError(f"{result} cannot take back {value}, the result has no end", g) from e
            if len(result.as_tuple().digits) > precision:
                result = None
        results.append(result)
    return pa.array(results, inputs.type)


def fold_text(aggregator: Aggregator, column: pa.Array, groups: KeyGroups) -> pa.Array:
    """`listagg`: non-blank strings, joined in order by the delimiter."""
    if aggregator.distinct or not groups.has_only(SKIP, ADD):
        return _text_by_value(aggregator, column, groups)
    values = column.take(pa.array(groups.rows)).cast(pa.string())
    filled = pc.greater(pc.binary_length(pc.utf8_trim(values, _WHITESPACE)), 0).fill_null(False)
    positions = np.flatnonzero(filled.to_numpy(zero_copy_only=False) & (groups.ops == ADD))
    offsets = np.searchsorted(positions, groups.starts).astype(np.int32)
    empty = offsets[1:] == offsets[:-1]
    lists = pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(positions)))
    joined = pc.binary_join(lists, aggregator.delimiter)
    return pc.if_else(pa.array(empty), pa.scalar(None, joined.type), joined)


def _is_blank(text: str | None) -> bool:
    return text is None or not text.strip(_WHITESPACE)


def _text_by_value(aggregator: Aggregator, column: pa.Array, groups: KeyGroups) -> pa.Array:
    values = column.take(pa.array(groups.rows)).to_pylist()
    results: list[str | None] = []
    for g in range(groups.count):
        result: str | None = None
        for i in range(groups.starts[g], groups.starts[g + 1]):
            op, value = groups.ops[i], values[i]
            if op in (SET, CLEAR):
                result = None if op == CLEAR else value
            elif op == ADD:
                result = _joined(aggregator, result, value)
            elif op == ADD_OLDER:
                result = _joined(aggregator, value, result)
        results.append(result)
    return pa.array(results, column.type)


def _joined(aggregator: Aggregator, result: str | None, value: str | None) -> str | None:
    if value is None or _is_blank(value):
        return result
    if result is None or _is_blank(result):
        return value
    if not aggregator.distinct:
        return result + aggregator.delimiter + value
    separator = aggregator.delimiter or " "
    members = set(result.split(separator))
    for token in value.split(separator):
        if not _is_blank(token) and token not in members:
            members.add(token)
            result += aggregator.delimiter + token
    return result
