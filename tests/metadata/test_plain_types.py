"""The types that every Parquet reader reads identically."""

from __future__ import annotations

import pytest

from forebay.metadata import types
from forebay.metadata.plain_types import has_nanoseconds, is_plain, is_timestamp
from forebay.metadata.types import DataType

PLAIN = [types.boolean(), types.bigint(), types.string(), types.binary(3), types.decimal(9, 2), types.date()]
MICROSECONDS = [types.timestamp(0), types.timestamp(6), types.timestamp_ltz(3), types.timestamp_ltz(6)]
NANOSECONDS = [types.timestamp(7), types.timestamp_ltz(9)]
OTHERS = [
    types.time(0),
    types.time(9),
    types.array(types.int_()),
    types.map_(types.string(), types.int_()),
    types.row(types.field("a", types.int_())),
]


@pytest.mark.parametrize("t", [*PLAIN, *MICROSECONDS, *NANOSECONDS, *OTHERS], ids=str)
def test_plain_is_all_but_times_nanoseconds_and_nested_types(t: DataType) -> None:
    assert is_plain(t) == (t in PLAIN or t in MICROSECONDS)
    assert is_timestamp(t) == (t in MICROSECONDS or t in NANOSECONDS)
    assert has_nanoseconds(t) == (t in NANOSECONDS)
