"""Which columns of a Parquet file get dictionaries."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.codec.arrow.parquet_dictionaries import ROWS_MIN, dictionary_paths, worth_a_dictionary

ROWS = ROWS_MIN + 1


@pytest.mark.parametrize("count", [10, ROWS])
@pytest.mark.parametrize(
    ("without", "expected"),
    [
        (set(), ["few", "nested.few"]),
        ({"few"}, ["nested.few"]),
        ({"nested"}, ["few"]),
        ({"nested.few"}, ["few"]),
        ({"few", "nested"}, []),
    ],
)
def test_columns_that_repeat_have_dictionaries_but_for_those_that_must_not(
    count: int, without: set[str], expected: list[str]
) -> None:
    few = pa.array([f"value {number % 7} of a few" for number in range(count)])
    table = pa.table({"few": few, "nested": pa.StructArray.from_arrays([few], ["few"])})
    assert worth_a_dictionary(table, frozenset(without)) == expected
    assert dictionary_paths(table.schema, frozenset(without)) == expected


def test_columns_whose_values_differ_have_none() -> None:
    table = pa.table({"few": [number % 7 for number in range(ROWS)], "many": range(ROWS)})
    assert worth_a_dictionary(table, frozenset()) == ["few"]
