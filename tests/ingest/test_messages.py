"""Messages as rows: Debezium's change events with and without their schema part, plain JSON, and what is wrong."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from forebay.base.errors import InvalidRequest
from forebay.client.admin.definition import new_descriptor
from forebay.debezium.events import UNAVAILABLE
from forebay.debezium.values import type_of
from forebay.ingest.messages import Message, MessageReading, MessageRows, RowRun, key_fields, read, runs
from forebay.metadata.table import TableInfo, TablePath
from tests import debezium_events

CONNECT = "org.apache.kafka.connect.data"


def table(columns: Mapping[str, str], key: str = "id") -> TableInfo:
    descriptor = new_descriptor(
        columns, primary_key=key or (), partition_keys=(), bucket_keys=(), buckets=1, options=None, comment=None,
        auto_increment=None,
    )  # fmt: skip
    return TableInfo(TablePath("fluss", "t"), 1, 1, descriptor)


def message(value: Any, offset: int = 0, key: Any = None) -> Message:
    def text(given: Any) -> bytes | None:
        return given if given is None or isinstance(given, bytes) else json.dumps(given).encode()

    return Message(0, offset, text(key), text(value))


def change(op: str, row: Mapping[str, Any] | None, types: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    payload = {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row}
    if types is None:
        return payload
    fields = [{"field": name, **described} for name, described in types.items()]
    return {"payload": payload, "schema": {"fields": [{"field": "after", "fields": fields}]}}


def rows(found: list[RowRun]) -> list[dict[str, Any]]:
    return [row for run in found for row in run.rows.to_pylist()]


def read_all(info: TableInfo, *values: Any, unit: str | None = None) -> tuple[MessageRows, list[RowRun]]:
    batch = read([message(value, at) for at, value in enumerate(values)], MessageReading(time_unit=unit))
    return batch, runs(batch, info, MessageReading(time_unit=unit))


def test_events_are_the_rows_that_every_decoder_finds() -> None:
    texts = [debezium_events.text_of(event) for event, _ in debezium_events.EVENTS]
    batch, found = read_all(table(debezium_events.COLUMNS), *(t if t is None else t.encode() for t in texts), unit="ms")
    assert rows(found) == debezium_events.rows()
    wrong = [(wrong.offset, reason) for wrong, reason in batch.wrong]
    assert debezium_events.begins(wrong) == debezium_events.reasons()


def test_an_update_leaves_alone_what_the_database_did_not_log() -> None:
    batch, found = read_all(
        table(debezium_events.COLUMNS), *(event for event, _ in debezium_events.UNLOGGED), unit="ms"
    )
    assert batch.wrong == []
    every = tuple(debezium_events.COLUMNS)
    assert [run.columns for run in found] == [
        tuple(name for name in every if name != missing) for _, missing in debezium_events.UNLOGGED
    ]


VALUES: list[tuple[str, Mapping[str, Any] | None, Any, Any]] = [
    ("BOOLEAN", {"type": "boolean"}, True, True),
    ("BOOLEAN", {"type": "int16"}, 1, True),
    ("TINYINT", {"type": "int16"}, -128, -128),
    ("BIGINT", {"type": "int64"}, 2**63 - 1, 2**63 - 1),
    ("BIGINT", {"type": "string"}, "18", 18),
    ("DOUBLE", {"type": "double"}, 0.1, 0.1),
    ("DOUBLE", {"type": "double"}, "NaN", float("nan")),
    ("STRING", {"type": "string"}, "Zoë", "Zoë"),
    ("BYTES", {"type": "bytes"}, "AP8=", b"\0\xff"),
    ("DATE", {"type": "int32", "name": "io.debezium.time.Date"}, -1, dt.date(1969, 12, 31)),
    ("DATE", None, "2024-02-29", dt.date(2024, 2, 29)),
    ("TIME(6)", {"type": "int64", "name": "io.debezium.time.MicroTime"}, 3_723_500_000, dt.time(1, 2, 3, 500_000)),
    ("TIME(3)", {"type": "int32", "name": f"{CONNECT}.Time"}, 1, dt.time(0, 0, 0, 1000)),
    ("TIME(3)", {"type": "string", "name": "io.debezium.time.ZonedTime"}, "01:02:03.5Z", dt.time(1, 2, 3, 500_000)),
    ("TIMESTAMP(3)", {"type": "int64", "name": "io.debezium.time.Timestamp"}, 1,
     dt.datetime(1970, 1, 1, 0, 0, 0, 1000)),
    ("TIMESTAMP(6)", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, -1,
     dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)),
    ("TIMESTAMP(6)", {"type": "int64", "name": f"{CONNECT}.Timestamp"}, 1_700_000_000_123,
     dt.datetime(2023, 11, 14, 22, 13, 20, 123_000)),
    ("TIMESTAMP(6)", None, "2024-01-01 00:00:00.25", dt.datetime(2024, 1, 1, 0, 0, 0, 250_000)),
    ("TIMESTAMP_LTZ(6)", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
     "2024-01-01T01:00:00.000001+01:00", dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=ZoneInfo("UTC"))),
    ("DECIMAL(10, 2)", {"type": "bytes", "name": f"{CONNECT}.Decimal", "parameters": {"scale": "2"}}, "/2o=",
     Decimal("-1.50")),
    ("DECIMAL(38, 20)", {"type": "bytes", "name": f"{CONNECT}.Decimal", "parameters": {"scale": "20"}},
     base64.b64encode((10**37 + 1).to_bytes(16, "big")).decode(), Decimal("100000000000000000.00000000000000000001")),
    ("DECIMAL(10, 2)", {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
     {"scale": 1, "value": "Dw=="}, Decimal("1.50")),
    ("DECIMAL(20, 4)", {"type": "string"}, "1234567890123456.0001", Decimal("1234567890123456.0001")),
    ("DECIMAL(20, 4)", None, 0.1, Decimal("0.1000")),
    ("ARRAY<INT>", {"type": "array", "items": {"type": "int32"}}, [1, None, 3], [1, None, 3]),
    ("MAP<STRING, INT>", {"type": "map"}, {"a": 1}, [("a", 1)]),
    ("ROW<a INT, b DATE>", None, {"a": 1, "b": 0}, {"a": 1, "b": dt.date(1970, 1, 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "described", "given", "wanted"), VALUES, ids=lambda value: str(value)[:40])
def test_values_are_what_the_database_has(type_: str, described: Any, given: Any, wanted: Any) -> None:
    info = table({"id": "BIGINT", "v": type_})
    types = None if described is None else {"id": {"type": "int64"}, "v": described}
    batch, found = read_all(info, change("c", {"id": 1, "v": given}, types), change("u", {"id": 2, "v": None}, types))
    assert batch.wrong == []
    assert repr(rows(found)) == repr(
        [{"_change_type": "insert", "id": 1, "v": wanted}, {"_change_type": "update_after", "id": 2, "v": None}]
    )


@pytest.mark.parametrize(
    ("type_", "described", "given"),
    [
        ("BOOLEAN", None, 2), ("TINYINT", None, 128), ("INT", None, 1.5), ("INT", None, True), ("INT", None, "x"),
        ("STRING", None, 5), ("STRING", None, {"a": 1}), ("BYTES", None, "no base64!"), ("DATE", None, "2024-02-30"),
        ("DECIMAL(10, 2)", None, "1.234"), ("DECIMAL(4, 2)", None, "100"), ("DECIMAL(4, 2)", None, "abc"),
        ("TIMESTAMP(3)", {"name": "io.debezium.time.MicroTimestamp"}, 1), ("TIMESTAMP(6)", None, 5),
        ("TIMESTAMP(6)", None, "2024-01-01T00:00:00Z"), ("TIMESTAMP_LTZ(6)", None, "2024-01-01T00:00:00"),
        ("ARRAY<INT>", None, {"a": 1}), ("ARRAY<INT>", None, ["a"]), ("DOUBLE", None, "abc"), ("DOUBLE", None, True),
        ("BIGINT NOT NULL", None, None),
    ],
)  # fmt: skip
def test_values_that_are_not_of_the_type_are_wrong_and_no_others(type_: str, described: Any, given: Any) -> None:
    info = table({"id": "BIGINT", "v": type_})
    types = None if described is None else {"v": described}
    events = [change("c", {"id": at, "v": given if at == 1 else None}, types) for at in range(3)]
    if "NOT NULL" in type_:
        events = [change("c", {"id": at, "v": None if at == 1 else 7}, types) for at in range(3)]
    batch, found = read_all(info, *events)
    [(wrong, reason)] = batch.wrong
    assert wrong.offset == 1
    assert "'v' is " in reason
    assert [row["id"] for row in rows(found)] == [0, 2]


def test_numbers_without_a_schema_part_have_the_unit_that_is_given() -> None:
    info = table({"id": "BIGINT", "at": "TIMESTAMP(6)"})
    _, found = read_all(info, change("c", {"id": 1, "at": 1_500}), unit="ms")
    assert rows(found)[0]["at"] == dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)
    batch, _ = read_all(info, change("c", {"id": 1, "at": 1_500}))
    assert "--time-unit" in batch.wrong[0][1]


def test_changes_have_the_kinds_of_their_operations_and_tombstones_are_none() -> None:
    info = table({"id": "BIGINT", "v": "INT NOT NULL"})
    events = [change("r", {"id": 1, "v": 1}), change("u", {"id": 1, "v": 2}), change("d", {"id": 1, "v": None}), None]
    batch, found = read_all(info, *events)
    assert batch.wrong == []
    assert [row["_change_type"] for row in rows(found)] == ["insert", "update_after", "delete"]
    wrong, _ = read_all(info, change("t", None), change("c", None), [1], b"\xff", {"id": 1})
    assert [reason.partition(":")[0] for _, reason in wrong.wrong] == [
        "its op is t", "it has no row in 'after'", "its value is not a change event of Debezium",
        "its value is not JSON", "its op is missing",
    ]  # fmt: skip


def test_an_update_without_a_large_value_leaves_it_alone_and_keeps_the_order() -> None:
    info = table({"id": "BIGINT", "v": "INT", "long": "STRING", "raw": "BYTES"})
    raw = base64.b64encode(UNAVAILABLE.encode()).decode()
    batch, found = read_all(
        info, change("c", {"id": 1, "v": 1, "long": "x", "raw": ""}),
        change("u", {"id": 1, "v": 2, "long": UNAVAILABLE}),
        change("u", {"id": 1, "v": 3, "long": UNAVAILABLE}),
        change("u", {"id": 1, "v": 4, "long": "y", "raw": raw}),
        change("d", {"id": 1}),
    )  # fmt: skip
    assert batch.wrong == []
    assert [(run.columns, run.rows.num_rows) for run in found] == [
        (None, 1), (("id", "v", "raw"), 2), (("id", "v", "long"), 1), (None, 1),
    ]  # fmt: skip
    wrong, found = read_all(info, change("c", {"id": 2, "long": UNAVAILABLE}))
    assert found == []
    assert "REPLICA IDENTITY FULL" in wrong.wrong[0][1]
    fixed = table({"id": "BIGINT", "long": "STRING NOT NULL"})
    wrong, _ = read_all(fixed, change("u", {"id": 2, "long": UNAVAILABLE}))
    assert "did not log 'long'" in wrong.wrong[0][1]


def test_the_schema_of_the_source_may_change_between_messages() -> None:
    info = table({"id": "BIGINT", "at": "TIMESTAMP(6)", "v": "INT"})
    milli, micro = ({"at": {"name": f"io.debezium.time.{name}"}} for name in ("Timestamp", "MicroTimestamp"))
    events = [change("c", {"id": 1, "at": 1}, milli), change("c", {"id": 2, "at": 1000, "v": 2}, micro | {"v": {}})]
    batch, found = read_all(info, *events, change("c", {"id": 3, "at": 1}, milli))
    assert batch.wrong == []
    assert {row["at"] for row in rows(found)} == {dt.datetime(1970, 1, 1, 0, 0, 0, 1000)}
    assert [row["v"] for row in rows(found)] == [None, 2, None]


def test_columns_that_the_table_lacks_are_found_with_their_types() -> None:
    info = table({"id": "BIGINT"})
    types = {"id": {"type": "int64"}, "new": {"type": "int32", "optional": True, "name": "io.debezium.time.Date"}}
    batch, found = read_all(info, change("c", {"id": 1, "new": 1}, types), change("c", {"id": 1, "plain": 1}))
    strange = batch.strange(info)
    assert str(type_of(strange["new"])) == "DATE"
    assert strange["plain"] == {}
    assert rows(found) == [{"_change_type": "insert", "id": 1}] * 2
    with pytest.raises(InvalidRequest, match="no type is known"):
        type_of({"field": "g", "type": "struct", "name": "io.debezium.data.geometry.Point"})


def test_plain_objects_are_rows_and_their_absence_deletes_by_key() -> None:
    info = table({"id": "BIGINT", "v": "INT"})
    messages = [message({"id": 1, "v": 1}), message(None, 1, {"id": 1}), message(None, 2, b"1"), message("text", 3)]
    batch = read(messages, MessageReading("json"))
    assert [(row["_change_type"], row["id"]) for row in rows(runs(batch, info, MessageReading("json")))] == [
        ("update_after", 1), ("delete", 1),
    ]  # fmt: skip
    assert [wrong.offset for wrong, _ in batch.wrong] == [2, 3]
    log = table({"id": "BIGINT"}, key="")
    assert rows(runs(read(messages[:1], MessageReading("json")), log, MessageReading("json"))) == [{"id": 1}]


def test_the_key_of_a_message_is_the_primary_key() -> None:
    assert key_fields(message(None, key={"schema": {}, "payload": {"a": 1, "b": 2}})) == ["a", "b"]
    assert key_fields(message(None, key={"a": 1})) == ["a"]
    assert key_fields(message(None, key=b"plain")) == key_fields(message(None)) == []


@pytest.mark.parametrize("form", ["debezium", "json"])
def test_rows_without_a_schema_part_become_columns_together(form: str) -> None:
    values = [{"id": i} if form == "json" else change("c", {"id": i}) for i in range(3)]
    batch = read([message(value, at) for at, value in enumerate(values)], MessageReading(form))
    assert len({id(row.fields) for row in batch.rows}) == 1
