"""Statistics of columns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.files.column_stats import dense_stats, footer_ranges, in_mode
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.stats import (
    ColumnStats,
    bounds,
    pack_stats,
    parse_mode,
    unpack_stats,
)


def _kept(t: DataType, mode: str, *values: Any) -> ColumnStats:
    """What a statistics mode keeps of a column with these values."""
    there = [value for value in values if value is not None]
    found = ColumnStats(min(there, default=None), max(there, default=None), len(values) - len(there))
    kept = in_mode(found, parse_mode(mode))
    field = DataField(0, "c", t)
    assert repr(unpack_stats(pack_stats([field], [kept]), [field])["c"]) == repr(kept)
    return kept


def test_modes_keep_nothing_counts_or_bounds() -> None:
    values = [3, None, 1, 5, None]
    assert _kept(types.int_(), "none", *values) == ColumnStats()
    assert _kept(types.int_(), "counts", *values) == ColumnStats(null_count=2)
    assert _kept(types.int_(), "full", *values) == ColumnStats(1, 5, 2)
    assert _kept(types.int_(), "truncate(16)", *values) == ColumnStats(1, 5, 2)
    assert _kept(types.int_(), "full", None, None) == ColumnStats(None, None, 2)


def test_truncated_bounds_enclose_the_values() -> None:
    assert _kept(types.string(), "truncate(3)", "abcd", "abz") == ColumnStats("abc", "abz", 0)
    assert _kept(types.string(), "truncate(3)", "abzz") == ColumnStats("abz", "ab{", 0)
    assert _kept(types.string(), "truncate(2)", "a\U0010ffffx") == ColumnStats("a\U0010ffff", "b", 0)
    assert _kept(types.string(), "truncate(1)", "\ud7ffx") == ColumnStats("\ud7ff", "\ue000", 0)
    assert _kept(types.string(), "truncate(1)", "\U0010fffex") == ColumnStats("\U0010fffe", "\U0010ffff", 0)
    assert _kept(types.bytes_(), "truncate(2)", b"a\xffz") == ColumnStats(b"a\xff", b"b", 0)


def test_bounds_that_cannot_be_rounded_up_are_left_out() -> None:
    assert _kept(types.bytes_(), "truncate(2)", b"\xff\xff\x00") == ColumnStats(None, None, 0)
    assert _kept(types.string(), "truncate(1)", "\U0010ffffa") == ColumnStats(None, None, 0)


@given(st.lists(st.text(), min_size=1), st.integers(1, 5))
def test_truncated_bounds_of_any_text_enclose_it(texts: list[str], length: int) -> None:
    stats = _kept(types.string(), f"truncate({length})", *texts)
    if stats.max is not None:
        encoded = [text.encode() for text in texts]
        assert stats.min.encode() <= min(encoded)
        assert max(encoded) <= stats.max.encode()
        assert len(stats.min) <= length
        assert len(stats.max) <= length


def test_dense_statistics_leave_out_columns_of_mode_none() -> None:
    fields = [DataField(i, name, types.int_()) for i, name in enumerate("abc")]
    found = {"b": ColumnStats(2, 2, 0), "c": ColumnStats(None, None, 0)}
    stats, names = dense_stats(fields, found, dense=True)
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


@pytest.mark.parametrize(
    ("values", "bounds_of_file"),
    [([0.0, 2.0], (-0.0, 2.0)), ([-2.0, -0.0], (-2.0, 0.0)), ([1.0, 2.0], (1.0, 2.0)), ([-2.0, -1.0], (-2.0, -1.0))],
)
def test_a_zero_in_the_ranges_of_a_file_includes_both_zeros(
    tmp_path: Path, values: list[float], bounds_of_file: tuple[float, float]
) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"c": pa.array(values, pa.float64())}), path)
    found = footer_ranges(pq.read_metadata(path), [DataField(0, "c", types.double())], set())["c"]
    assert repr((found.min, found.max, found.null_count)) == repr((*bounds_of_file, 0))  # == takes both zeros for one
