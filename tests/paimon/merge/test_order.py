"""Key order: every type, several columns, nulls, descending."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import UnsupportedOperation
from forebay.paimon.merge._order import SortKey, group_starts, merge_sorted, sort_rows
from forebay.paimon.merge.order import concat_keys, sort_key
from tests.paimon.merge.reference import compare

FLOATS = [-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
TEXT = st.text(st.sampled_from(["\x00", "\x01", "a", "b", "\x7f", "é", "\uffff", "\U0001f600"]), max_size=12)

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "smallint": (pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    "int": (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "bigint": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "float": (pa.float32(), st.sampled_from([v for v in FLOATS if v != 5e-324])),
    "double": (pa.float64(), st.sampled_from(FLOATS)),
    "string": (pa.string(), TEXT),
    "large string": (pa.large_string(), TEXT),
    "string view": (pa.string_view(), TEXT),
    "binary": (pa.binary(), st.binary(max_size=12)),
    "fixed binary": (pa.binary(9), st.binary(min_size=9, max_size=9)),
    "small decimal": (pa.decimal128(6, 2), st.decimals(-9999, 9999, places=2)),
    "large decimal": (pa.decimal128(38, 2), st.decimals(-(10**30), 10**30, places=2)),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time32("ms"), st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXT),
}


def expected_order(columns: list[list[Any]], descending: bool) -> list[int]:
    def order(i: int, j: int) -> int:
        for column in columns:
            a, b = column[i], column[j]
            flip = -1 if descending and a is not None and b is not None else 1
            if found := flip * compare(a, b):
                return found
        return 0

    return sorted(range(len(columns[0])), key=cmp_to_key(order))


@given(st.data(), st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3), st.booleans())
def test_rows_sort_as_java_sorts_them(data, chosen, descending):
    rows = data.draw(st.integers(0, 12))
    lists, arrays = [], []
    for name in chosen:
        arrow_type, values = VALUES[name]
        values = data.draw(st.one_of(st.just(values), st.just(st.none() | values)))
        lists.append(data.draw(st.lists(values, min_size=rows, max_size=rows)))
        # One row in front that is sliced away: offsets must be respected.
        padded = pa.array([lists[-1][0] if rows else None, *lists[-1]], arrow_type)
        arrays.append(padded.slice(1))
    key = sort_key(arrays, descending=descending)
    assert sort_rows([key]).tolist() == expected_order(lists, descending)


@pytest.mark.parametrize("name", sorted(VALUES))
@given(data=st.data())
def test_one_column_of_every_type_sorts_and_groups(name, data):
    arrow_type, values = VALUES[name]
    column = data.draw(st.lists(values, min_size=1, max_size=12))
    key = sort_key([pa.array(column, arrow_type)])
    order = sort_rows([key])
    assert order.tolist() == expected_order([column], False)
    starts = group_starts(key, order)
    ordered = [column[i] for i in order]
    changes = [i for i in range(len(column)) if i == 0 or compare(ordered[i - 1], ordered[i]) != 0]
    assert starts.tolist() == [*changes, len(column)]


@given(st.lists(TEXT.map(lambda t: "the same beginning " + t), max_size=60))
def test_strings_that_begin_alike_sort_by_what_follows(texts):
    key = sort_key([pa.array(texts, pa.string())])
    assert sort_rows([key]).tolist() == sorted(range(len(texts)), key=lambda i: texts[i].encode())


def test_large_inputs_sort_stably():
    rng = np.random.default_rng(7)
    values = rng.integers(-(1 << 40), 1 << 40, 20_000) // (1 << 30)
    text = pa.array([f"{v:+d}" for v in values])
    assert sort_rows([sort_key([pa.array(values)])]).tolist() == np.argsort(values, kind="stable").tolist()
    bytes_order = sorted(range(len(values)), key=lambda i: text[i].as_py())
    assert sort_rows([sort_key([text])]).tolist() == bytes_order


@given(st.lists(st.tuples(TEXT, st.integers(0, 3)), max_size=20), st.integers(1, 5))
def test_keys_of_several_batches_join(rows, size):
    names = pa.array([r[0] for r in rows], pa.string())
    numbers = pa.array([r[1] for r in rows], pa.int32())
    whole = sort_key([names, numbers])
    parts = [sort_key([names.slice(i, size), numbers.slice(i, size)]) for i in range(0, len(rows), size)]
    joined = concat_keys([part.slice(0, len(part)) for part in parts]) if parts else whole
    assert sort_rows([joined]).tolist() == sort_rows([whole]).tolist()
    for i in range(len(rows)):
        assert joined.compare(i, whole, i) == 0


def test_first_above_counts_the_rows_up_to_a_key():
    key = sort_key([pa.array(["a", "b", "b", "d"])])
    probe = sort_key([pa.array(["", "a", "b", "c", "d", "e"])])
    assert [key.first_above(probe, i) for i in range(6)] == [0, 1, 3, 3, 4, 4]


def test_nested_columns_have_no_order():
    with pytest.raises(UnsupportedOperation, match="no order"):
        sort_key([pa.array([[1]])])


def test_kernels_refuse_arguments_that_do_not_fit_together():
    key = SortKey(np.array([1, 2], np.uint64))
    numbers, kinds = np.zeros(2, np.int64), np.zeros(2, np.int8)
    with pytest.raises(ValueError, match="length"):
        merge_sorted(key, None, numbers[:1], kinds, [0, 2])
    with pytest.raises(ValueError, match="cover"):
        merge_sorted(key, None, numbers, kinds, [0, 1])
    with pytest.raises(IndexError):
        group_starts(key, np.array([0, 2], np.int64))
    with pytest.raises(ValueError, match="offsets"):
        SortKey(np.array([1], np.uint64), np.array([0, 9], np.int64), np.zeros(3, np.uint8))
    with pytest.raises(IndexError):
        key.slice(1, 3)


def test_decimals_of_the_extremes_keep_their_order():
    values = [Decimal(-(10**38) + 1), Decimal(-1), Decimal(0), Decimal(10**18), Decimal(10**38 - 1)]
    key = sort_key([pa.array(values[::-1], pa.decimal128(38, 0))])
    assert sort_rows([key]).tolist() == [4, 3, 2, 1, 0]
