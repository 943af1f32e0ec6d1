"""Amounts, lists of names and markup that people write and read."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from forebay.base.arguments import did_you_mean, name_list, one_or_more_names, whole_number
from forebay.base.errors import InvalidRequest
from forebay.base.markup import facts_html, grid
from forebay.base.quantity import (
    format_bytes,
    moment_at,
    moment_ms,
    parse_bool,
    parse_duration_ms,
    parse_memory_bytes,
    past_ms,
    span_ms,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500", 500), (" 30 s ", 30_000), ("10min", 600_000), ("1 D", 86_400_000), ("2 hours", 7_200_000), ("999 µs", 0)],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("4mb", 4 << 20), ("64 KB", 64 << 10), ("1 tebibytes", 1 << 40)])
def test_memory_sizes(text: str, size: int) -> None:
    assert parse_memory_bytes(text) == size


@pytest.mark.parametrize("text", ["", "s", "1.5 s", "-1 s", "1 fortnight", "1 s s", "1 mb s"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a duration"):
        parse_duration_ms(text)
    with pytest.raises(InvalidRequest, match="is not a memory size"):
        parse_memory_bytes(text)


def test_booleans() -> None:
    assert (parse_bool(" True "), parse_bool("FALSE")) == (True, False)
    for text in ("", "1", "yes"):
        with pytest.raises(InvalidRequest, match="is not a boolean"):
            parse_bool(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (-1023, "-1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes_for_people(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_a_list_of_names_is_no_text_and_a_number_no_boolean() -> None:
    assert name_list(iter(["a", "b"]), "columns") == ("a", "b")
    with pytest.raises(InvalidRequest, match=r"columns is a list of names, got the text 'ab': write \['ab'\]"):
        name_list("ab", "columns")
    assert whole_number(0, "limit") == 0
    for value in (True, 1.0, "1", None):
        with pytest.raises(InvalidRequest, match="limit is a whole number, got"):
            whole_number(value, "limit")


def test_a_name_that_looks_like_another_is_asked_about() -> None:
    assert did_you_mean("amuont", ["id", "amount"]) == "; did you mean 'amount'?"
    assert did_you_mean("xyz", ["id", "amount"]) == ""


def test_markup_escapes_leaves_out_what_has_no_value_and_tells_of_more() -> None:
    html = facts_html({"name": "<b>", "none": None, "empty": "", "zero": 0})
    assert "&lt;b&gt;" in html
    assert "zero" in html
    assert "none" not in html
    assert "empty" not in html
    assert grid(("n",), [(i,) for i in range(200)]).endswith("</table>")
    long = grid(("n",), [(i,) for i in range(201)])
    assert long.endswith("<div>and 1 more</div>")
    assert ">199<" in long
    assert ">200<" not in long
    assert grid((), [(None,)]).count("<tr>") == 1
    assert grid(("n",), []).count("<th ") == 1


@pytest.mark.parametrize(
    ("span", "milliseconds"),
    [(dt.timedelta(minutes=1, microseconds=1500), 60_002), (2, 2000), (0.25, 250), ("10 min", 600_000), (0, 0)],
)
def test_spans_are_timedeltas_seconds_or_text(span: Any, milliseconds: int) -> None:
    assert span_ms(span, "lease") == milliseconds


@pytest.mark.parametrize("span", [None, True, [1], "soon", -1, dt.timedelta(-1), float("nan"), float("inf")])
def test_what_is_no_span_is_refused(span: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"timedelta|duration"):
        span_ms(span, "lease")


def test_moments_are_datetimes_or_iso_text() -> None:
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert moment_ms(noon, "older_than") == moment_ms("2026-01-31T13:00:00+01:00", "older_than") == 1_769_860_800_000
    assert moment_ms(noon.replace(tzinfo=None), "older_than") == 1_769_860_800_000, "without a zone: UTC"
    assert moment_ms("2026-01-31 12:00:00", "older_than") == 1_769_860_800_000, "without a zone: UTC"
    assert moment_ms(dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC), "older_than") == -1
    for wrong in ("yesterday", 1_769_860_800_000, None, dt.date(2026, 1, 31)):
        with pytest.raises(InvalidRequest, match=r"older_than=.*give a datetime, or ISO text"):
            moment_ms(wrong, "older_than")  # type: ignore[arg-type]


def test_a_name_in_another_case_is_suggested_as_it_is_spelled() -> None:
    assert did_you_mean("SCAN.maxrecord", ["scan.maxRecords", "other"]) == "; did you mean 'scan.maxRecords'?"


def test_one_name_or_several_are_names() -> None:
    assert one_or_more_names("id", "primary_key") == one_or_more_names(["id"], "primary_key") == ("id",)
    assert one_or_more_names((), "primary_key") == ()
    for wrong in (5, None, ["id", None], [["id"]]):
        with pytest.raises(InvalidRequest, match=r"primary_key=.* is not a name"):
            one_or_more_names(wrong, "primary_key")  # type: ignore[arg-type]


def test_what_is_past_is_a_moment_or_a_length_of_time_ago() -> None:
    assert past_ms("1970-01-01T00:00:01+00:00", 5000, "older_than") == 1000
    assert past_ms(dt.timedelta(seconds=1), 5000, "older_than") == 4000
    with pytest.raises(InvalidRequest, match=r"older_than=1\.5 is not a point in time"):
        past_ms(1.5, 5000, "older_than")  # type: ignore[arg-type]


@pytest.mark.parametrize("milliseconds", [0, -1, 1_769_860_800_123])
def test_milliseconds_become_a_moment_and_back(milliseconds: int) -> None:
    assert moment_ms(moment_at(milliseconds), "at") == milliseconds


def test_a_moment_beyond_the_calendar_is_the_last_or_the_first_there_is() -> None:
    assert (moment_at(1 << 62).year, moment_at(-1 << 62).year) == (9999, 1)
