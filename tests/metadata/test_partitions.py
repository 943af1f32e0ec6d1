"""Partition values as text and back, names, and partitions that follow the clock."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata import types
from forebay.metadata.auto_partition import AutoPartitioning, TimeFormat, time_zone
from forebay.metadata.names import check_partition_value, check_table_path, name_problem
from forebay.metadata.partitions import matches_partial, partition_text, partition_value, resolve_spec
from forebay.metadata.table import Column, PartitionInfo, Schema, TableDescriptor, TableInfo, TablePath
from forebay.metadata.types import DataType

BERLIN = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("t", "value", "text"),
    [
        (types.string(), "a-b", "a-b"),
        (types.char(2), "ab", "ab"),
        (types.boolean(), True, "true"),
        (types.boolean(), False, "false"),
        (types.bytes_(), b"\x01\xff", "01ff"),
        (types.int_(), -7, "-7"),
        (types.bigint(), 2**40, str(2**40)),
        (types.float_(), 0.1, "0_1"),
        (types.double(), 12.5, "12_5"),
        (types.double(), 1e20, "1_0E20"),
        (types.double(), 1.5e-7, "1_5E-7"),
        (types.double(), math.inf, "Inf"),
        (types.double(), -math.inf, "-Inf"),
        (types.date(), dt.date(2024, 1, 15), "2024-01-15"),
        (types.time(3), dt.time(10, 11, 12, 345_000), "10-11-12_345"),
        (types.timestamp(6), dt.datetime(2024, 1, 15, 10, 11, 12, 345_670), "2024-01-15-10-11-12_34567"),
        (types.timestamp(0), dt.datetime(2024, 1, 15, 10, 11, 12), "2024-01-15-10-11-12_"),
    ],
)
def test_values_become_text_and_text_becomes_values(t: DataType, value: Any, text: str) -> None:
    assert partition_text(t, value) == text
    back = partition_value(t, text) if "Inf" not in text else value
    assert back == value


def test_special_floats_and_zones() -> None:
    assert partition_text(types.float_(), math.nan) == "NaN"
    moment = dt.datetime(2024, 1, 15, 10, 11, 12, tzinfo=BERLIN)
    assert partition_text(types.timestamp_ltz(6), moment) == "2024-01-15-08-11-12_"
    assert partition_value(types.timestamp_ltz(6), "2024-01-15-08-11-12_") == moment
    assert partition_value(types.timestamp(6), "2024-01-15-08-11-12").tzinfo is None


@pytest.mark.parametrize(
    ("t", "text"),
    [(types.int_(), "x"), (types.date(), "2024-13-01"), (types.time(3), "10-11"), (types.bytes_(), "0g")],
)
def test_text_that_is_no_value_is_refused(t: DataType, text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"partition value '{text}' is not a") as caught:
        partition_value(t, text)
    assert caught.value.code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a-B_9", None),
        ("x" * 200, None),
        ("x" * 201, "longer than 200"),
        ("", "empty"),
        (".", "folder"),
        ("..", "folder"),
        ("a b", "ASCII letters"),
        ("ä", "ASCII letters"),
    ],
)
def test_names(name: str, problem: str | None) -> None:
    found = name_problem(name)
    assert found is None if problem is None else problem in str(found)


def test_new_things_have_no_internal_names_and_old_ones_may() -> None:
    for path, code in (
        (TablePath("__db", "t"), ErrorCode.INVALID_DATABASE_EXCEPTION),
        (TablePath("db", "__t"), ErrorCode.INVALID_TABLE_EXCEPTION),
        (TablePath("db", "a b"), ErrorCode.INVALID_TABLE_EXCEPTION),
    ):
        with pytest.raises(InvalidRequest, match="is not allowed") as caught:
            check_table_path(path)
        assert caught.value.code == code
    check_table_path(TablePath("db", "_t"))
    check_partition_value("p", "__x", creating=False)
    with pytest.raises(InvalidRequest, match="names that begin with '__' are internal"):
        check_partition_value("p", "__x", creating=True)


def partitioned(*keys: str, key_type: DataType | None = None, **options: str) -> TableDescriptor:
    columns = [Column("v", types.int_()), *(Column(key, key_type or types.string()) for key in keys)]
    properties = {f"table.auto-partition.{name.replace('_', '-')}": value for name, value in options.items()}
    return TableDescriptor(Schema.of(columns), partition_keys=keys, bucket_count=1, properties=properties)


def test_a_spec_names_all_partition_keys_and_no_others() -> None:
    info = TableInfo(TablePath("db", "t"), 1, 1, partitioned("a", "b"))
    assert resolve_spec(info, {"b": "2", "a": "1"}, creating=True) == (("a", "1"), ("b", "2"))
    for spec in ({"a": "1"}, {"a": "1", "b": "2", "c": "3"}, {}):
        with pytest.raises(InvalidRequest, match=r"partitioned by \['a', 'b'\]"):
            resolve_spec(info, spec, creating=True)
    with pytest.raises(InvalidRequest, match="partition value 'x y' of key 'b'"):
        resolve_spec(info, {"a": "1", "b": "x y"}, creating=False)
    partition = PartitionInfo(1, (("a", "1"), ("b", "2")))
    assert matches_partial(partition, {})
    assert matches_partial(partition, {"b": "2"})
    assert not matches_partial(partition, {"a": "1", "b": "3"})
    assert not matches_partial(partition, {"c": "1"})


# ---- times ----------------------------------------------------------------------------------------------------------

JANUARY = 1_706_700_600_000  # 2024-01-31 11:30 UTC


@pytest.mark.parametrize(
    ("unit", "before", "now", "after"),
    [
        ("YEAR", "2023", "2024", "2025"),
        ("QUARTER", "20234", "20241", "20242"),
        ("MONTH", "202312", "202401", "202402"),
        ("DAY", "20240130", "20240131", "20240201"),
        ("HOUR", "2024013110", "2024013111", "2024013112"),
    ],
)
def test_units_of_time(unit: str, before: str, now: str, after: str) -> None:
    rules = AutoPartitioning.of(partitioned("p", enabled="true", time_unit=unit, num_precreate="2", num_retention="1"))
    assert rules is not None
    assert [rules.value(JANUARY, offset) for offset in (-1, 0, 1)] == [before, now, after]
    assert rules.values_to_create(JANUARY) == [now, after]
    assert not rules.has_expired(before, JANUARY)
    assert rules.has_expired(rules.value(JANUARY, -2), JANUARY)
    rules.check_new(before, JANUARY)
    with pytest.raises(InvalidRequest, match=f"is out of date: partitions are kept from '{before}' on"):
        rules.check_new(rules.value(JANUARY, -2), JANUARY)
    with pytest.raises(InvalidRequest, match=f"is no {unit.lower()} in the format"):
        rules.check_new("soon", JANUARY)


def test_what_is_no_time_or_is_kept_for_ever_never_expires() -> None:
    kept = AutoPartitioning.of(partitioned("p", enabled="true", num_retention="-1"))
    assert kept is not None
    assert not kept.has_expired("19700101", JANUARY)
    none = AutoPartitioning.of(partitioned("p", enabled="true", num_retention="0"))
    assert none is not None
    assert none.has_expired("20240130", JANUARY)
    assert not none.has_expired("20240131", JANUARY)
    assert not none.has_expired("0000", JANUARY)
    off = AutoPartitioning.of(partitioned("p", time_format="yyyyMMdd", num_retention="0"))
    assert off is not None
    assert not off.has_expired("19700101", JANUARY)
    assert AutoPartitioning.of(partitioned("p")) is None
    assert AutoPartitioning.of(partitioned(enabled="true")) is None


@pytest.mark.parametrize(
    ("value", "is_time"),
    [
        ("2024-13", False),
        ("2024-12", True),
        ("2024-00", False),
        ("2024-01", True),
        ("2024-1", False),
        ("2024_01", False),
    ],
)
def test_values_in_a_format(value: str, is_time: bool) -> None:
    assert TimeFormat.of("yyyy-MM", "month").matches(value) == is_time


@pytest.mark.parametrize(
    ("pattern", "unit", "text"),
    [("'y'yyyy", "year", "y2024"), ("uuuu-LL", "month", "2024-11"), ("yyyyMMdd'T'HH", "hour", "20241111T11")],
)
def test_formats(pattern: str, unit: str, text: str) -> None:
    assert TimeFormat.of(pattern, unit).text(dt.datetime(2024, 11, 11, 11)) == text


@pytest.mark.parametrize(
    ("pattern", "unit", "words"),
    [
        ("MMyyyy", "month", "in this order"),
        ("yyyy", "month", "it must have the fields"),
        ("yyy", "year", "'yyy' is not one of"),
        ("yyyymm", "month", "'mm' is not one of"),
        ("yyyy'x", "year", "a quotation is not closed"),
        ("yyyy[MM]", "month", "'\\[' is not supported"),
        ("yyyy MM", "month", "ASCII letters"),
        ("yyyy''", "year", "ASCII letters"),
        ("'__'yyyy", "year", "are internal"),
    ],
)
def test_formats_that_cannot_be_are_refused(pattern: str, unit: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        TimeFormat.of(pattern, unit)
    assert caught.value.code == ErrorCode.INVALID_TABLE_EXCEPTION


@pytest.mark.parametrize(
    ("text", "hours"), [("GMT+8", 8), ("+05:30", 5.5), ("-0330", -3.5), ("UTC", 0), ("+23:59", 23 + 59 / 60)]
)
def test_zones(text: str, hours: float) -> None:
    assert time_zone(text).utcoffset(dt.datetime(2024, 1, 1)) == dt.timedelta(hours=hours)


@pytest.mark.parametrize("text", ["+24", "+05:60", "Nowhere/Land", "", "../etc"])
def test_what_is_no_zone_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no time zone") as caught:
        time_zone(text)
    assert caught.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION


@pytest.mark.parametrize(
    ("descriptor", "words"),
    [
        (partitioned("a", "b", enabled="true"), "with several partition keys needs"),
        (partitioned("a", "b", enabled="true", key="c", num_precreate="0"), "is not one of the partition keys"),
        (partitioned("a", "b", enabled="true", key="a", num_precreate="1"), "must be 0 for a table with several"),
        (partitioned("d", key_type=types.date(), enabled="true"), "is a DATE"),
        (
            partitioned("d", key_type=types.date(), enabled="true", time_unit="MONTH", time_format="yyyy-MM"),
            "is a DATE",
        ),
    ],
)
def test_rules_that_cannot_be_are_refused(descriptor: TableDescriptor, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        AutoPartitioning.of(descriptor)


def test_rules_that_can_be() -> None:
    two = AutoPartitioning.of(partitioned("a", "b", enabled="true", key="b", num_precreate="0"))
    assert two is not None
    assert (two.key, two.values_to_create(JANUARY)) == ("b", [])
    day = AutoPartitioning.of(
        partitioned("d", key_type=types.date(), enabled="true", time_format="yyyy-MM-dd", time_zone="GMT+13")
    )
    assert day is not None
    assert day.value(JANUARY) == "2024-02-01"


def test_hours_and_days_continue_through_changes_of_summer_time_and_the_ends_of_time() -> None:
    zone = {"time_zone": "Europe/Berlin", "enabled": "true"}
    hours = AutoPartitioning.of(partitioned("p", time_unit="HOUR", **zone))
    days = AutoPartitioning.of(partitioned("p", time_unit="DAY", **zone))
    assert hours is not None
    assert days is not None
    before = int(dt.datetime(2024, 3, 31, 0, 30, tzinfo=dt.UTC).timestamp() * 1000)  # 01:30 in Berlin
    assert [hours.value(before, offset) for offset in range(3)] == ["2024033101", "2024033103", "2024033104"]
    assert [days.value(before, offset) for offset in (-1, 0, 1)] == ["20240330", "20240331", "20240401"]
    assert days.value(before, -(10**7)) == "00010101"
    assert days.value(before, 10**7) == "99991231"
