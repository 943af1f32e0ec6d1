"""Columns are converted exactly to the requested type: what is renamed, what is cast, and what does not fit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.codec.casting.arrays import CastError
from forebay.codec.casting.conform import conform_array

TEXT_TO_LONG = pa.map_(pa.string(), pa.int64())
NAMED = pa.struct([("a", pa.int32()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([1]), TEXT_TO_LONG),
        (pa.array([[("a", 1)]], TEXT_TO_LONG), pa.int64()),
        (pa.array([1]), pa.list_(pa.int64())),
        (pa.array([[1]]), pa.int64()),
        (pa.array([[1]]), TEXT_TO_LONG),
        (pa.array([1]), NAMED),
        (pa.array([{"a": 1, "b": "x"}], NAMED), pa.int64()),
        (pa.array(["x"]), pa.time32("ms")),
    ],
    ids=lambda value: str(value if isinstance(value, pa.DataType) else value.type),
)
def test_columns_of_another_kind_are_refused_by_name(array: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(InvalidRequest, match=r"column 'c' of type .* cannot become"):
        conform_array(array, target, "c", False)


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([[("a", 1)], None], pa.map_(pa.large_string(), pa.int32()), TEXT_TO_LONG),
        ([[1, None], None, []], pa.list_(pa.int32()), pa.list_(pa.field("element", pa.int64()))),
        ([{"a": 1, "b": None}, None], pa.struct([("a", pa.int64()), ("b", pa.large_string())]), NAMED),
    ],
    ids=["map", "list", "struct"],
)
def test_parts_of_nested_columns_are_cast(values: list[Any], source: pa.DataType, target: pa.DataType) -> None:
    made = conform_array(pa.array(values, source), target, "c", False)
    made.validate(full=True)
    assert (made.type, made.to_pylist()) == (target, values)


def test_a_value_that_does_not_fit_says_why() -> None:
    assert str(CastError("a.b", "'x' does not fit INT", 3)) == "'x' does not fit INT"
