"""Partition directories."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.format.partition_path import (
    escape,
    java_float_text,
    parse_value,
    partition_path,
    partition_spec,
    value_text,
)
from forebay.paimon.format.schema import DataField

MOMENT = 1_704_067_201  # 2024-01-01 00:00:01


@pytest.mark.parametrize(
    ("t", "value", "legacy", "modern"),
    [
        (types.int_(), -5, "-5", "-5"),
        (types.boolean(), True, "true", "true"),
        (types.string(), "a=b/c", "a=b/c", "a=b/c"),
        (types.date(), 19723, "19723", "2024-01-01"),
        (types.decimal(10, 3), Decimal("1.500"), "1.500", "1.500"),
        (types.time(0), 3_723_004, "3723004", "01:02:03"),
        (types.time(3), 3_723_040, "3723040", "01:02:03.04"),
        (types.timestamp(0), MOMENT * 1000, "2024-01-01T00:00:01", "2024-01-01 00:00:01"),
        (types.timestamp(3), (MOMENT - 1) * 1000, "2024-01-01T00:00", "2024-01-01 00:00:00.000"),
        (types.timestamp(6), MOMENT * 10**6 + 120_000, "2024-01-01T00:00:01.120", "2024-01-01 00:00:01.120000"),
        (types.timestamp(9), MOMENT * 10**9 + 5, "2024-01-01T00:00:01.000000005", "2024-01-01 00:00:01.000000005"),
        (types.float_(), 0.1, "0.1", "0.1"),
        (types.double(), 1e10, "1.0E10", "1.0E10"),
    ],
)
def test_values_are_written_in_the_legacy_and_in_the_sql_way(t: DataType, value: Any, legacy: str, modern: str) -> None:
    assert value_text(t, value, legacy=True) == legacy
    assert value_text(t, value, legacy=False) == modern
    for text in (legacy, modern):
        parsed = parse_value(t, text)
        assert parsed == value or value_text(t, parsed, legacy=False) == modern


@pytest.mark.parametrize(
    ("value", "single", "text"),
    [
        (0.0, False, "0.0"),
        (-0.0, False, "-0.0"),
        (1.0, False, "1.0"),
        (123456.789, False, "123456.789"),
        (9999999.0, False, "9999999.0"),
        (1e7, False, "1.0E7"),
        (0.001, False, "0.001"),
        (0.00012, False, "1.2E-4"),
        (-1.5e300, False, "-1.5E300"),
        (struct.unpack("<f", struct.pack("<f", 0.1))[0], True, "0.1"),
        (3.4028234663852886e38, True, "3.4028235E38"),
        (math.inf, False, "Infinity"),
        (-math.inf, True, "-Infinity"),
        (math.nan, True, "NaN"),
    ],
)
def test_floats_are_printed_as_java_prints_them(value: float, single: bool, text: str) -> None:
    assert java_float_text(value, single) == text


@given(st.text())
def test_escaping_is_undone_by_unescaping(text: str) -> None:
    escaped = escape(text)
    assert unquote(escaped) == text
    assert not set(escaped) & set("\"#'*/:=?\\{}[]^\n")


def test_a_path_names_all_partition_columns_and_reads_back() -> None:
    fields = [DataField(0, "dt", types.date()), DataField(1, "a/b", types.string()), DataField(2, "n", types.int_())]
    spec = partition_spec(fields, (19723, "x=y", None))
    assert spec == {"dt": "19723", "a/b": "x=y", "n": "__DEFAULT_PARTITION__"}
    assert partition_path(spec) == "dt=19723/a%2Fb=x%3Dy/n=__DEFAULT_PARTITION__"
    assert dict(map(unquote, part.split("=")) for part in partition_path(spec).split("/")) == spec
    assert parse_value(fields[2].type, spec["n"]) is None
    assert partition_path({}) == ""


def test_blank_text_is_written_as_the_default_partition() -> None:
    assert partition_spec([DataField(0, "s", types.string())], ("  ",), "none") == {"s": "none"}


@pytest.mark.parametrize(
    ("t", "text"),
    [
        (types.int_(), "x"),
        (types.date(), "2024-13-01"),
        (types.boolean(), "yes"),
        (types.decimal(3), "q"),
        (types.timestamp(9), "2024-01-01 00:00:00.1234567891"),
    ],
)
def test_text_that_is_no_value_of_the_column_is_refused(t: DataType, text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a value of type"):
        parse_value(t, text)


def test_instants_are_shown_in_the_zone_that_is_requested() -> None:
    assert value_text(types.timestamp_ltz(0), MOMENT * 1000, False, "Asia/Tokyo") == "2024-01-01 09:00:01"
    assert value_text(types.timestamp_ltz(0), MOMENT * 1000, True, "Asia/Tokyo") == "2024-01-01T00:00:01"
    assert value_text(types.timestamp(0), MOMENT * 1000, False, "Asia/Tokyo") == "2024-01-01 00:00:01"
