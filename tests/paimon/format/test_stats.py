"""Statistics of columns."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.stats import (
    ColumnStats,
    StatsCollector,
    bounds,
    pack_stats,
    parse_mode,
    unpack_stats,
)


def _collect(t: DataType, mode: str, *batches: list[object]) -> ColumnStats:
    field = DataField(0, "c", t)
    collector = StatsCollector([field], [parse_mode(mode)])
    for values in batches:
        collector.add(pa.RecordBatch.from_pydict({"c": values}, schema=arrow_schema([field])))
    (stats,) = collector.columns()
    packed, names = collector.result()
    assert names is None
    assert repr(unpack_stats(packed, [field])["c"]) == repr(stats)
    return stats


def test_modes_keep_nothing_counts_or_bounds() -> None:
    batches = [[3, None], [1, 5, None]]
    assert _collect(types.int_(), "none", *batches) == ColumnStats()
    assert _collect(types.int_(), "counts", *batches) == ColumnStats(null_count=2)
    assert _collect(types.int_(), "full", *batches) == ColumnStats(1, 5, 2)
    assert _collect(types.int_(), "truncate(16)", *batches) == ColumnStats(1, 5, 2)
    assert _collect(types.int_(), "full", [None, None]) == ColumnStats(None, None, 2)


def test_truncated_bounds_enclose_the_values() -> None:
    assert _collect(types.string(), "truncate(3)", ["abcd", "abz"]) == ColumnStats("abc", "abz", 0)
    assert _collect(types.string(), "truncate(3)", ["abzz"]) == ColumnStats("abz", "ab{", 0)
    assert _collect(types.string(), "truncate(2)", ["a\U0010ffffx"]) == ColumnStats("a\U0010ffff", "b", 0)
    assert _collect(types.string(), "truncate(1)", ["\ud7ffx"]) == ColumnStats("\ud7ff", "\ue000", 0)
    assert _collect(types.string(), "truncate(1)", ["\U0010fffex"]) == ColumnStats("\U0010fffe", "\U0010ffff", 0)
    assert _collect(types.bytes_(), "truncate(2)", [b"a\xffz"]) == ColumnStats(b"a\xff", b"b", 0)


def test_bounds_that_cannot_be_rounded_up_are_left_out() -> None:
    assert _collect(types.bytes_(), "truncate(2)", [b"\xff\xff\x00"]) == ColumnStats(None, None, 0)
    assert _collect(types.string(), "truncate(1)", ["\U0010ffffa"]) == ColumnStats(None, None, 0)


@given(st.lists(st.text(), min_size=1), st.integers(1, 5))
def test_truncated_bounds_of_any_text_enclose_it(texts: list[str], length: int) -> None:
    stats = _collect(types.string(), f"truncate({length})", list(texts))
    if stats.max is not None:
        encoded = [text.encode() for text in texts]
        assert stats.min.encode() <= min(encoded)
        assert max(encoded) <= stats.max.encode()
        assert len(stats.min) <= length
        assert len(stats.max) <= length


def test_a_nan_leaves_a_column_without_bounds_and_zeros_have_both_signs() -> None:
    assert _collect(types.double(), "full", [1.0, 2.0], [math.nan, 3.0], [0.5]) == ColumnStats(None, None, 0)
    assert repr(_collect(types.double(), "full", [0.0, -0.0])) == "ColumnStats(min=-0.0, max=0.0, null_count=0)"


def test_nested_columns_have_null_counts_only() -> None:
    assert _collect(types.array(types.int_()), "full", [[1], None]) == ColumnStats(None, None, 1)


def test_dense_statistics_leave_out_columns_of_mode_none() -> None:
    fields = [DataField(i, name, types.int_()) for i, name in enumerate("abc")]
    collector = StatsCollector(fields, [parse_mode(m) for m in ("none", "full", "counts")])
    collector.add(pa.RecordBatch.from_pydict({"a": [1], "b": [2], "c": [3]}, schema=arrow_schema(fields)))
    stats, names = collector.result(dense=True)
    assert names == ("b", "c")
    assert unpack_stats(stats, fields, names) == {"b": ColumnStats(2, 2, 0), "c": ColumnStats(None, None, 0)}
    assert unpack_stats(pack_stats(fields, [ColumnStats()] * 3), fields)["a"] == ColumnStats()


@pytest.mark.parametrize("mode", ["", "some", "truncate(0)", "truncate(x)"])
def test_an_unknown_mode_is_refused(mode: str) -> None:
    with pytest.raises(InvalidRequest, match="statistics mode"):
        parse_mode(mode)


def test_bounds_of_floats_are_in_javas_order() -> None:
    low, high = bounds([0.0, -0.0, math.nan, 1.0], types.double())
    assert math.copysign(1, low) == -1
    assert math.isnan(high)
    assert bounds([], types.int_()) == (None, None)
