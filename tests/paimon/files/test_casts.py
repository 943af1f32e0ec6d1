"""Columns read as another type: Java's conversions, checked against hand-computed values."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField, TypeRoot
from forebay.paimon.files.casts import evolve, evolve_exactly, is_castable, same_type
from forebay.paimon.format.arrow import arrow_type

INT, LONG, TINY, SMALL = types.int_(), types.bigint(), types.tinyint(), types.smallint()
TEXT, DOUBLE, FLOAT = types.string(), types.double(), types.float_()


def varchar(length: int) -> DataType:
    return DataType(TypeRoot.STRING, length=length)


def cast(values: list[Any], source: DataType, target: DataType) -> list[Any]:
    result = evolve(pa.array(values, arrow_type(source)), source, target)
    assert result.type == arrow_type(target)
    found: list[Any] = result.to_pylist()
    return found


@pytest.mark.parametrize(
    ("values", "source", "target", "wanted"),
    [
        ([1, None, -7], INT, LONG, [1, None, -7]),
        ([383, -129, 127], INT, TINY, [127, 127, 127]),
        ([1 << 40, (1 << 31) + 5], LONG, INT, [0, -(1 << 31) + 5]),
        ([1.9, -1.9, 1e20, float("nan"), None], DOUBLE, INT, [1, -1, (1 << 31) - 1, 0, None]),
        ([1e20, -1e20], DOUBLE, LONG, [(1 << 63) - 1, -(1 << 63)]),
        ([2.0**31, -(2.0**31), 2.0**31 - 1], DOUBLE, INT, [(1 << 31) - 1, -(1 << 31), (1 << 31) - 1]),
        ([2.0**63, -(2.0**63)], DOUBLE, LONG, [(1 << 63) - 1, -(1 << 63)]),
        ([300.7], DOUBLE, TINY, [44]),
        ([1, None], INT, DOUBLE, [1.0, None]),
        ([True, False, None], types.boolean(), INT, [1, 0, None]),
        ([2, 0, None], INT, types.boolean(), [True, False, None]),
        ([1, -1, None], INT, types.decimal(5, 2), [Decimal("1.00"), Decimal("-1.00"), None]),
        ([12345], INT, types.decimal(5, 2), [None]),
        ([1.005, 2.5], DOUBLE, types.decimal(5, 2), [Decimal("1.01"), Decimal("2.50")]),
        ([999.994, 999.995, -999.995], DOUBLE, types.decimal(5, 2), [Decimal("999.99"), None, None]),
        ([Decimal("0.95"), Decimal("0.94")], types.decimal(6, 2), types.decimal(1, 1), [None, Decimal("0.9")]),
        (
            [Decimal("2.345"), Decimal("-2.345")],
            types.decimal(6, 3),
            types.decimal(6, 2),
            [Decimal("2.35"), Decimal("-2.35")],
        ),
        ([Decimal("123.4")], types.decimal(6, 3), types.decimal(3, 1), [None]),
        ([Decimal("99.9")], types.decimal(6, 1), types.decimal(2, 0), [None]),
        ([Decimal("3.99"), Decimal("-3.99")], types.decimal(6, 2), INT, [3, -3]),
        ([Decimal("1.5")], types.decimal(6, 2), DOUBLE, [1.5]),
        ([1, -20, None], INT, TEXT, ["1", "-20", None]),
        ([1.0, 1e10, 1.5e-5, float("inf")], DOUBLE, TEXT, ["1.0", "1.0E10", "1.5E-5", "Infinity"]),
        ([0.1], FLOAT, TEXT, ["0.1"]),
        ([Decimal("1.50")], types.decimal(6, 2), TEXT, ["1.50"]),
        ([True], types.boolean(), TEXT, ["true"]),
        ([datetime.date(2024, 2, 29)], types.date(), TEXT, ["2024-02-29"]),
        (["abcdef", "äöü", None], TEXT, varchar(2), ["ab", "äö", None]),
        (["a"], TEXT, types.char(3), ["a  "]),
        ([" 12 ", "-3", None], TEXT, INT, [12, -3, None]),
        (["1.25"], TEXT, DOUBLE, [1.25]),
        (["1.255"], TEXT, types.decimal(5, 2), [Decimal("1.26")]),
        (["yes", "F", None], TEXT, types.boolean(), [True, False, None]),
        (["2024-02-29"], TEXT, types.date(), [datetime.date(2024, 2, 29)]),
        (["ab"], TEXT, types.bytes_(), [b"ab"]),
        ([b"ab"], types.bytes_(), TEXT, ["ab"]),
        ([b"abc", b"a", None], types.bytes_(), types.binary(2), [b"ab", b"a\0", None]),
    ],
)
def test_values_become_what_java_makes_of_them(
    values: list[Any], source: DataType, target: DataType, wanted: list[Any]
) -> None:
    assert cast(values, source, target) == wanted


def test_timestamps_lose_digits_downwards_also_before_1970() -> None:
    before, after = (
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        datetime.datetime(2024, 1, 1, 0, 0, 0, 123_456),
    )
    cut = cast([before, after, None], types.timestamp(6), types.timestamp(3))
    assert cut == [before.replace(microsecond=999_000), after.replace(microsecond=123_000), None]
    assert cast([before], types.timestamp(6), types.timestamp(4)) == [before.replace(microsecond=999_900)]
    assert cast([before], types.timestamp(6), types.date()) == [datetime.date(1969, 12, 31)]
    assert cast([before], types.timestamp(6), types.time(3)) == [datetime.time(23, 59, 59, 999_000)]
    assert cast([before], types.timestamp(6), LONG) == [-1]


def test_a_date_becomes_midnight_and_an_instant_keeps_its_utc_clock() -> None:
    assert cast([datetime.date(2024, 1, 2)], types.date(), types.timestamp(6)) == [datetime.datetime(2024, 1, 2)]
    noon = datetime.datetime(2024, 1, 1, 12)
    assert cast([noon], types.timestamp(6), types.timestamp_ltz(3)) == [noon.replace(tzinfo=datetime.UTC)]
    assert cast([noon], types.timestamp(0), TEXT) == ["2024-01-01 12:00:00"]


def test_times_and_nested_values_become_the_texts_that_java_prints() -> None:
    clock = [datetime.time(1, 2, 3, 500_000), datetime.time(0, 0), None]
    assert cast(clock, types.time(3), TEXT) == ["01:02:03.5", "00:00:00.0", None]
    assert cast([datetime.datetime(2024, 1, 1)], types.timestamp(3), TEXT) == ["2024-01-01 00:00:00.000"]
    assert cast([[1, None], [], None], types.array(INT), TEXT) == ["[1, null]", "[]", None]
    assert cast([[("a", 1.5), ("b", None)]], types.map_(TEXT, DOUBLE), TEXT) == ["{a -> 1.5, b -> null}"]
    nested = row_of((1, "a", INT), (2, "b", types.array(TEXT)))
    assert cast([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}], nested, TEXT) == [
        "{1, [x]}",
        None,
        "{null, null}",
    ]
    assert cast([{}, None], row_of(), TEXT) == ["{}", None]


def test_texts_become_integers_without_their_fraction_and_times_of_the_parts_that_are_there() -> None:
    assert cast(["12.9", "-1.99", ".5", "7.", "+3", None], TEXT, INT) == [12, -1, 0, 7, 3, None]
    clock = [datetime.time(1), datetime.time(1, 2), datetime.time(1, 2, 3), datetime.time(1, 2, 3, 450_000), None]
    assert cast(["1", "01:02", "01:02:03", "01:02:03.45", None], TEXT, types.time(3)) == clock
    assert cast(["23:59:59"], TEXT, types.time(3)) == [datetime.time(23, 59, 59)]


@pytest.mark.parametrize("text", ["", "-", "1e3", "0x1", "1.2.3", "٣"])
def test_a_text_that_is_no_integer_to_java_is_none_to_us(text: str) -> None:
    with pytest.raises(InvalidRequest, match="integer"):
        cast([text], TEXT, INT)


@pytest.mark.parametrize("text", ["", "24:00:00", "1:60", "1:2:60", "1:2:3:4", "noon"])
def test_a_text_that_is_no_time_is_an_error_that_says_so(text: str) -> None:
    with pytest.raises(InvalidRequest, match="TIME"):
        cast([text], TEXT, types.time(3))


def test_a_text_that_is_no_number_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidRequest, match="cannot be read as INT"):
        cast(["12a"], TEXT, INT)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_is_no_decimal(value: float) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be read as DECIMAL\(5, 2\)"):
        cast([value], DOUBLE, types.decimal(5, 2))


def test_a_text_with_more_digits_than_the_timestamp_loses_them() -> None:
    texts = ["2024-02-29 12:34:56.789123456", "1969-12-31 23:59:59.999999999", "0001-01-01 00:00:00", None]
    seconds = [datetime.datetime(2024, 2, 29, 12, 34, 56), datetime.datetime(1969, 12, 31, 23, 59, 59)]
    assert cast(texts, TEXT, types.timestamp(0)) == [*seconds, datetime.datetime(1, 1, 1), None]
    millis = [seconds[0].replace(microsecond=789_000), seconds[1].replace(microsecond=999_000)]
    assert cast(texts[:2], TEXT, types.timestamp(3)) == millis


def test_a_moment_beyond_the_reach_of_nanoseconds_is_an_error_not_another_moment() -> None:
    cases: list[tuple[list[Any], DataType]] = [([10**11], LONG), ([datetime.date(1, 1, 1)], types.date())]
    for values, source in cases:
        assert cast(values, source, types.timestamp(6))
        with pytest.raises(InvalidRequest, match=r"TIMESTAMP\(9\)"):
            cast(values, source, types.timestamp(9))


def test_a_decimal_becomes_the_nearest_double() -> None:
    assert cast([Decimal("-2.5500"), Decimal("1.2550")], types.decimal(20, 4), DOUBLE) == [-2.55, 1.255]


def test_a_change_without_a_cast_is_refused_by_both_types() -> None:
    assert not is_castable(types.date(), INT)
    with pytest.raises(UnsupportedOperation, match="DATE cannot be read as INT"):
        cast([datetime.date(2024, 1, 1)], types.date(), INT)


def row_of(*fields: tuple[int, str, DataType]) -> DataType:
    return DataType(TypeRoot.ROW, fields=tuple(RowField(name, t, field_id=i) for i, name, t in fields))


def test_fields_of_rows_are_found_by_id_whatever_their_names_and_order() -> None:
    old = row_of((1, "a", INT), (2, "b", TEXT), (3, "gone", INT))
    new = row_of((2, "renamed", TEXT), (4, "added", DOUBLE), (1, "a", LONG))
    values = [{"a": 1, "b": "x", "gone": 5}, None, {"a": None, "b": "y", "gone": 6}]
    assert cast(values, old, new) == [
        {"renamed": "x", "added": None, "a": 1},
        None,
        {"renamed": "y", "added": None, "a": None},
    ]


@pytest.mark.parametrize(
    ("new", "castable"),
    [
        (row_of((1, "a", LONG), (2, "b", TEXT)), True),
        (row_of((2, "b", TEXT), (9, "added", DOUBLE)), True),
        (row_of((1, "a", types.date())), False),
        (row_of((3, "a", types.date())), True),
        (row_of((1, "a", INT), (2, "b", types.array(TEXT))), False),
    ],
)
def test_rows_can_be_cast_if_each_field_that_stays_can(new: DataType, castable: bool) -> None:
    old = row_of((1, "a", INT), (2, "b", TEXT))
    assert is_castable(old, new) is castable
    assert is_castable(types.array(types.map_(TEXT, old)), types.array(types.map_(TEXT, new))) is castable


def test_rows_inside_arrays_and_maps_change_too_also_in_a_slice() -> None:
    old, new = row_of((1, "a", INT)), row_of((1, "b", LONG), (2, "c", TEXT))
    source = types.array(types.map_(TEXT, old))
    values = [[[("k", {"a": 1})]], None, [[], None, [("x", None), ("y", {"a": 2})]], []]
    array = pa.array(values, arrow_type(source)).slice(1)
    result = evolve(array, source, types.array(types.map_(TEXT, new)))
    assert result.to_pylist() == [None, [[], None, [("x", None), ("y", {"b": 2, "c": None})]], []]


def test_types_are_the_same_whatever_may_be_null() -> None:
    assert same_type(INT, INT.not_null())
    assert same_type(types.array(INT), types.array(INT.not_null()))
    assert not same_type(types.array(INT), types.array(LONG))
    assert not same_type(row_of((1, "a", INT)), row_of((2, "a", INT)))
    assert not same_type(varchar(3), replace(varchar(3), length=4))


def test_a_cast_is_exact_only_if_it_can_be_undone() -> None:
    numbers = pa.array([1, None, 3], pa.int64())
    assert evolve_exactly(numbers, types.bigint(), types.int_()).equals(pa.array([1, None, 3], pa.int32()))  # type: ignore[union-attr]
    assert evolve_exactly(pa.array([2**40], pa.int64()), types.bigint(), types.int_()) is None
    assert evolve_exactly(pa.array([True]), types.boolean(), types.double()) is None, "no way back"
