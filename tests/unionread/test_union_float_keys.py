"""FLOAT and DOUBLE keys: -0.0 is 0.0 and all NaNs are one, in the stream, the lake, union reads and lookups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay import col
from forebay.base.errors import ForebayError
from tests.unionread.world import ICEBERG, World

PATTERNS = {
    pa.float32(): ("u4", [0x7FC00000, 0xFFC00001, 0x7F800123, 0x80000000, 0x00000000]),
    pa.float64(): ("u8", [0x7FF8 << 48, 0xFFF8000000000001, 0x7FF0000000000123, 1 << 63, 0]),
}
"""Three NaNs and the two zeros, by their bits."""


def keys(of: pa.DataType, *positions: int) -> pa.Array:
    unsigned, patterns = PATTERNS[of]
    return pa.array(np.array([patterns[p] for p in positions], unsigned).view(unsigned.replace("u", "f")))


def rows(of: pa.DataType, positions: list[int], value: int) -> pa.RecordBatch:
    values = pa.array(range(value, value + len(positions)), pa.int64())
    schema = pa.schema([pa.field("k", of, nullable=False), pa.field("v", pa.int64())])
    return pa.RecordBatch.from_arrays([keys(of, *positions), values], schema=schema)


def bits(table: pa.Table) -> list[tuple[bytes, Any]]:
    """The bytes of each key, with the value."""
    return sorted(zip((k.tobytes() for k in table["k"].to_numpy()), table["v"].to_pylist()))


@pytest.mark.parametrize("of", PATTERNS, ids=str)
@pytest.mark.parametrize("buckets", [1, 3])
def test_zeros_of_both_signs_and_all_nans_are_one_key_each_everywhere(
    both: World, of: pa.DataType, buckets: int
) -> None:
    schema = pa.schema([pa.field("k", of, nullable=False), ("v", pa.int64())])
    if both.lake == ICEBERG:
        with pytest.raises(ForebayError, match="primary key"):
            both.create(schema, primary_key=["k"], buckets=buckets)
        return
    table = both.create(schema, primary_key=["k"], buckets=buckets)
    zero = 0.0

    def expected(of_nan: int, of_zero: int) -> list[tuple[bytes, Any]]:
        return sorted(zip((k.tobytes() for k in keys(of, 0, 4).to_numpy()), (of_nan, of_zero)))

    def check(of_nan: int, of_zero: int) -> None:
        found = expected(of_nan, of_zero)
        assert bits(table.scan().to_arrow()) == found
        assert bits(both.read(table)) == found
        for position in range(5):
            one = table.lookup(pa.table({"k": keys(of, position)}))
            assert one["v"].to_pylist() == [of_nan if position < 3 else of_zero]
        assert both.read(table, filter=col("k") == zero)["v"].to_pylist() == [of_zero]
        assert both.read(table, filter=col("k") == -zero)["v"].to_pylist() == [of_zero]
        assert both.read(table, filter=col("k") > 1e30)["v"].to_pylist() == [of_nan]

    table.upsert(rows(of, [0, 3, 1, 4, 2], 0))
    check(4, 3)
    both.tier(table)
    check(4, 3)
    assert bits(both.read(table, lake_only=True)) == expected(4, 3)
    table.upsert(rows(of, [1, 3], 10))
    check(10, 11)
    both.tier(table)
    assert bits(both.read(table, lake_only=True)) == expected(10, 11)
    table.delete(pa.table({"k": keys(of, 2, 3)}))
    assert both.read(table).num_rows == table.scan().to_arrow().num_rows == 0
    both.tier(table)
    assert both.read(table, lake_only=True).num_rows == 0
