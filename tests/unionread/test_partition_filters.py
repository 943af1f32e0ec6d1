"""The partitions that a read covers, and matching lake partitions with those of the stream."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from forebay import col
from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.client.row_view import RowView
from forebay.metadata import types
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column, PartitionInfo, Schema, TableDescriptor, TableInfo, TablePath
from forebay.metadata.types import DataType
from forebay.unionread.partitions import PartitionFilter, PartitionMatch


def info(**keys: DataType) -> TableInfo:
    schema = Schema.of([Column("v", types.int_()), *(Column(name, t) for name, t in keys.items())])
    return TableInfo(TablePath("db", "t"), 1, 1, TableDescriptor(schema, tuple(keys), (), 1))


DAYS = info(day=types.date(), place=types.string().not_null())
ALL = [(day, place) for day in ("2024-01-01", "2024-01-02") for place in ("x", "y")]


@pytest.mark.parametrize(
    ("selectors", "predicate", "covered"),
    [
        (None, None, ALL),
        ("2024-01-01$x", None, ALL[:1]),
        (["2024-01-01$x", "2024-01-02$y", "2024-01-03$x"], None, [ALL[0], ALL[3]]),
        ({"place": "y"}, None, [ALL[1], ALL[3]]),
        ([{"day": "2024-01-02"}, {"place": "x", "day": "2024-01-01"}], None, [ALL[0], *ALL[2:]]),
        ([], None, []),
        (None, col("place") == "y", [ALL[1], ALL[3]]),
        (None, (col("place") == "y") & (col("v") > 3), [ALL[1], ALL[3]]),
        (None, (col("place") == "y") | (col("v") > 3), ALL),
        (None, col("v") > 3, ALL),
        (None, col("place").is_null(), []),
        # A lake may have rows of null under any name of a nullable key.
        (None, col("day").is_null(), ALL),
        ({"place": "x"}, col("place") == "y", []),
    ],
)
def test_partitions_are_covered_that_were_chosen_and_may_match(
    selectors: Any, predicate: Predicate | None, covered: list[tuple[str, str]]
) -> None:
    found = PartitionFilter(RowView(DAYS, (), predicate), selectors)
    assert [values for values in ALL if found.covers(values)] == covered
    assert found.covers(())


def test_a_filter_on_dates_rules_partitions_out() -> None:
    found = PartitionFilter(RowView(DAYS, (), col("day") > dt.date(2024, 1, 1)), None)
    assert [values for values in ALL if found.covers(values)] == ALL[2:]


@pytest.mark.parametrize(("text", "covered"), [("7", False), ("8", True), ("007", True), ("seven", True)])
def test_a_text_that_is_not_the_one_of_its_value_is_read(text: str, covered: bool) -> None:
    found = PartitionFilter(RowView(info(n=types.int_().not_null()), (), col("n") == 8), None)
    assert found.covers((text,)) is covered


def test_selectors_that_name_no_partition_key_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"is partitioned by \['day', 'place'\], not by \['hour'\]") as refused:
        PartitionFilter(RowView(DAYS), {"hour": "1", "day": "2024-01-01"})
    assert refused.value.code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    with pytest.raises(InvalidRequest, match=r"table db\.t is not partitioned") as refused:
        PartitionFilter(RowView(info()), "a")
    assert refused.value.code == ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
    whole = PartitionFilter(RowView(info(), (), col("v") == 1), None)
    assert (whole.covers(()), whole.predicate) == (True, None)


def match(t: DataType, *names: str) -> PartitionMatch:
    return PartitionMatch(info(n=t), [PartitionInfo(i, (("n", name),)) for i, name in enumerate(names)])


@pytest.mark.parametrize(
    ("t", "names", "asked", "found"),
    [
        (types.int_(), ["7", "8"], "8", 1),
        (types.int_(), ["007"], "7", 0),
        (types.int_(), ["7"], "007", 0),
        (types.int_(), ["7", "07"], "07", 1),
        (types.int_(), ["7", "07"], "007", None),
        (types.int_(), ["7"], "9", None),
        (types.int_(), ["seven"], "seven", 0),
        (types.boolean(), ["TRUE"], "true", 0),
        (types.string(), ["007"], "7", None),
        (types.string(), ["a"], "A", None),
    ],
)
def test_partitions_of_the_lake_are_found_in_the_stream_by_their_values(
    t: DataType, names: list[str], asked: str, found: int | None
) -> None:
    assert match(t, *names).find((asked,)) == found
