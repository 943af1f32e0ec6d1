"""Rows of a console: cells, looks into logs, live tails, and a key's history."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest, LimitExceeded
from forebay.console import rows
from forebay.console.session import TAILS_MAX, Console


@pytest.fixture
def events(console: Console) -> Any:
    """A log table of three buckets with 300 records, appended ten at a time."""
    console.conn.create_database("web")
    table = console.conn.create_table("web.events", {"n": "INT", "page": "STRING"}, buckets=3)
    for first in range(0, 300, 10):
        table.append([{"n": n, "page": f"p{n % 7}"} for n in range(first, first + 10)])
    return table


def _values(page: dict[str, Any], name: str) -> list[Any]:
    index = [column["name"] for column in page["columns"]].index(name)
    return [row[index] for row in page["rows"]]


def test_columns_have_the_types_of_sql_as_the_page_of_a_table_has_them() -> None:
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("ms", "UTC"), "span": pa.month_day_nano_interval()})
    assert [column["type"] for column in rows.columns_of(schema)] == [
        "BIGINT", "TIMESTAMP_LTZ(3)", "month_day_nano_interval"
    ]  # fmt: skip


def test_cells_are_what_a_page_shows_exactly() -> None:
    values = {
        "big": pa.array([2**60, None]),
        "small": pa.array([7, -1]),
        "float": pa.array([float("nan"), 1.5]),
        "decimal": pa.array([decimal.Decimal("1.50"), None]),
        "bytes": pa.array([b"\x00\xff", b"x" * 3000]),
        "long": pa.array(["x" * 3000, ""]),
        "time": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", "UTC")),
        "list": pa.array([[1, None], []]),
        "nested time": pa.array([[1], None], pa.list_(pa.timestamp("ns"))),
        "bool": pa.array([True, None]),
        "interval": pa.array([pa.MonthDayNano([14, 2, 3_500_000_000]), pa.MonthDayNano([0, 0, 0])]),
        "late": pa.array([2**31 - 1, None], pa.date32()),
        "nested late": pa.array([[{"d": 2**31 - 1}], None], pa.list_(pa.struct({"d": pa.date32()}))),
        "duration": pa.array([90, None], pa.duration("s")),
        "nothing": pa.nulls(2),
    }
    first, second = rows.rows_of(pa.table(values))
    assert first[:5] == [str(2**60), 7, "nan", "1.50", "00ff"]
    assert first[5].endswith("x… (3,000 characters)")
    assert (first[6], first[7], first[9]) == ("2023-11-14 22:13:20.123456789Z", "[1, null]", True)
    assert first[8] == '["1970-01-01 00:00:00.000000001"]'
    late = "<value out of range: 2147483647>"
    assert first[10:] == ["14 months 2 days 3.5 seconds", late, f'[{{"d": "{late}"}}]', "90", None]
    assert second[:4] == [None, -1, 1.5, None]
    assert second[4].endswith("… (3,000 bytes)")
    assert second[5:10] == ["", None, "[]", None, None]
    assert second[10:] == ["0 seconds", None, None, None, None]
    json.dumps([first, second], allow_nan=False)


@pytest.mark.parametrize("place", ["start", "end"])
def test_pages_of_a_log_have_each_record_once_in_order_of_time(console: Console, events: Any, place: str) -> None:
    found, token, pages = list[int](), None, 0
    while pages == 0 or token is not None:
        page = rows.peek(console, "web", "events", place=place, limit=70, page_token=token)
        found += _values(page, "n")
        times = _values(page, "_time")
        assert times == sorted(times, reverse=place == "end")
        token, pages = page["next"], pages + 1
    assert page["complete"]
    assert sorted(found) == list(range(300))
    assert pages == 5
    assert (0 if place == "start" else 299) in found[:70]  # appends of the same millisecond have no order


def test_a_filter_searches_until_it_has_a_page(console: Console, events: Any) -> None:
    page = rows.peek(console, "web", "events", filter="page = 'p3' AND n < 50", limit=5)
    assert len(page["rows"]) == 5
    assert _values(page, "_time") == sorted(_values(page, "_time"), reverse=True)
    rest = rows.peek(console, "web", "events", filter="page = 'p3' AND n < 50", limit=5, page_token=page["next"])
    assert sorted(_values(page, "n") + _values(rest, "n")) == [n for n in range(50) if n % 7 == 3]
    assert rest["complete"]
    assert rest["searched"] == 300
    assert rows.peek(console, "web", "events", filter="n < 0")["rows"] == []


def test_a_look_begins_at_an_offset_or_a_time(console: Console, events: Any) -> None:
    bucket = events.buckets()[1]
    end = console.conn.admin.list_offsets(events.path, "latest")[bucket]
    page = rows.peek(console, "web", "events", place="offset", bucket=1, offset=end - 3)
    assert _values(page, "_offset") == [end - 3, end - 2, end - 1]
    assert set(_values(page, "_bucket")) == {1}
    moment = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    assert len(rows.peek(console, "web", "events", place="time", time=moment.isoformat(), limit=1000)["rows"]) == 300
    for wrong in ({"place": "x"}, {"place": "offset", "offset": 1}, {"place": "time"}, {"bucket": 9}, {"limit": 0}):
        with pytest.raises(InvalidRequest):
            rows.peek(console, "web", "events", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="expired"):
        rows.peek(console, "web", "events", page_token="0" * 32)
    with pytest.raises(InvalidRequest):
        rows.peek(console, "web", "events", filter="nothing = 1")


def test_changes_and_current_rows_of_a_table_with_keys(console: Console) -> None:
    console.conn.create_database("sales")
    table = console.conn.create_table(
        "sales.visits", {"id": "BIGINT", "day": "STRING", "n": "INT"}, primary_key=["id", "day"], partition_keys="day"
    )
    table.upsert([{"id": i, "day": "d1", "n": 0} for i in range(3)] + [{"id": 9, "day": "d2", "n": 0}])
    table.upsert([{"id": 1, "day": "d1", "n": 5}])
    page = rows.peek(console, "sales", "visits", columns="n")
    assert [column["name"] for column in page["columns"]] == ["_change", "_offset", "_time", "_partition", "n"]
    assert _values(page, "_change")[:2] == ["update_after", "update_before"]
    assert set(_values(page, "_partition")) == {"d1", "d2"}
    assert set(_values(rows.peek(console, "sales", "visits", partition="d2"), "id")) == {9}
    current = rows.peek(console, "sales", "visits", place="current", filter="n > 1")
    assert (current["rows"], current["complete"]) == ([[1, "d1", 5]], True)
    assert len(rows.peek(console, "sales", "visits", place="current", limit=2)["rows"]) == 2


# ---- live tails -----------------------------------------------------------------------------------------------------


def test_a_tail_has_what_is_written_from_now_on_and_counts_what_it_leaves_out(console: Console, events: Any) -> None:
    tail = rows.LiveTail(console, "web", "events", filter="n >= 1000")
    assert [column["name"] for column in tail.columns] == ["_offset", "_time", "_bucket", "n", "page"]
    events.append([{"n": 5, "page": "x"}])
    events.append([{"n": n, "page": "x"} for n in range(1000, 1500)])
    seen, skipped = list[Any](), 0
    while len(seen) + skipped < 500:
        moment = tail.next()
        seen += moment["rows"]
        skipped += moment["skipped"]
    assert len(seen) + skipped == 500
    assert skipped > 0
    assert seen[-1][3] == 1499
    tail.end()
    tail.end()


def test_there_are_not_too_many_tails(console: Console, events: Any) -> None:
    open_tails = [rows.LiveTail(console, "web", "events") for _ in range(TAILS_MAX)]
    with pytest.raises(LimitExceeded, match="live tails"):
        rows.LiveTail(console, "web", "events")
    open_tails[0].end()
    open_tails[0] = rows.LiveTail(console, "web", "events")
    for tail in open_tails:
        tail.end()


# ---- one key --------------------------------------------------------------------------------------------------------


def test_a_key_has_its_changes_its_row_and_the_reason(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.conn.create_database("sales")
    table = console.conn.create_table("sales.orders", {"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=1)
    table.upsert([{"id": 1, "v": "a"}])
    for n in range(4):
        table.upsert([{"id": i, "v": str(n)} for i in range(10, 20)])
    table.upsert([{"id": 1, "v": "b"}])
    found = rows.key(console, "sales", "orders", key='{"id": "1"}')
    assert [(event["change"], event["row"]) for event in found["events"]] == [
        ("insert", [1, "a"]), ("update_before", [1, "a"]), ("update_after", [1, "b"])
    ]  # fmt: skip
    assert (found["row"], found["complete"], found["bucket"]) == ([1, "b"], True, 0)
    assert found["why"].startswith("key id=1: the stream has the row: its newest record is at offset")
    table.delete([1])
    assert rows.key(console, "sales", "orders", key='{"id": "1"}')["row"] is None
    monkeypatch.setattr(rows, "_EVENTS_MAX", 1)
    monkeypatch.setattr(rows, "_FIRST_WINDOW_ROWS", 2)
    page = rows.key(console, "sales", "orders", key='{"id": "1"}')
    changes = [event["change"] for event in page["events"]]
    assert not page["complete"]
    assert page["why"] is not None
    while page["next"] is not None:
        page = rows.key(console, "sales", "orders", key='{"id": "1"}', page_token=page["next"])
        changes = [event["change"] for event in page["events"]] + changes
        assert page["why"] is None
    assert changes == ["insert", "update_before", "update_after", "delete"]
    for wrong in ("1", "[]", '{"id": 1}', '{"no": "1"}', '{"id": "x"}'):
        with pytest.raises(InvalidRequest):
            rows.key(console, "sales", "orders", key=wrong)
