"""Any bytes are rows of the table or a wrong message: no message stops a topic, and no value changes on the way."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.client.admin.definition import new_descriptor
from forebay.codec.casting.batches import iter_record_batches
from forebay.debezium.marks import VersionColumn
from forebay.ingest.messages import FORMATS, Message, MessageReading, read, runs
from forebay.metadata.table import TableInfo, TablePath
from tests.every_run import examples

CONNECT = "org.apache.kafka.connect.data"
DEBEZIUM = "io.debezium.time"
COLUMNS = {
    "id": "BIGINT NOT NULL", "day": "STRING", "flag": "BOOLEAN", "tiny": "TINYINT", "f": "FLOAT", "d": "DOUBLE",
    "dec": "DECIMAL(10, 2)", "s": "STRING", "by": "BYTES", "bin": "BINARY(2)", "date": "DATE", "tm": "TIME(3)",
    "tm6": "TIME(6)", "ts": "TIMESTAMP(6)", "ltz": "TIMESTAMP_LTZ(3)", "a": "ARRAY<INT>", "m": "MAP<STRING, DOUBLE>",
    "r": "ROW<x INT, y DATE>",
}  # fmt: skip
NAMES = [
    None, f"{CONNECT}.Decimal", f"{CONNECT}.Timestamp", f"{CONNECT}.Time", f"{CONNECT}.Date", f"{DEBEZIUM}.Date",
    f"{DEBEZIUM}.Timestamp", f"{DEBEZIUM}.MicroTimestamp", f"{DEBEZIUM}.NanoTimestamp", f"{DEBEZIUM}.Time",
    f"{DEBEZIUM}.MicroTime", f"{DEBEZIUM}.NanoTime", f"{DEBEZIUM}.Year", f"{DEBEZIUM}.ZonedTimestamp",
    "io.debezium.data.VariableScaleDecimal",
]  # fmt: skip
KINDS = ["int8", "int16", "int32", "int64", "float", "double", "boolean", "string", "bytes", "array", "map", "struct"]


def table(columns: dict[str, str], key: tuple[str, ...] = ("id",)) -> TableInfo:
    descriptor = new_descriptor(
        columns, primary_key=key, partition_keys=(), bucket_keys=(), buckets=1, options=None, comment=None,
        auto_increment=None,
    )  # fmt: skip
    return TableInfo(TablePath("fluss", "t"), 1, 1, descriptor)


def taken(
    info: TableInfo, texts: list[bytes | None], form: str = "debezium", *, flag: str | None = None
) -> tuple[list[Any], dict[int, str]]:
    """The rows that the table really takes, and the reasons of wrong messages by their offsets."""
    version = None if flag is None else VersionColumn.parse("version=kafka.offset")
    reading = MessageReading(form, "ms", flag, version)
    batch = read([Message(0, at, b'{"id": 1}', text) for at, text in enumerate(texts)], reading)
    rows: list[Any] = []
    for run in runs(batch, info, reading):
        kinds = run.rows.column(0).to_pylist()
        plain = run.rows.drop_columns(["_change_type"])
        stored = list(iter_record_batches(plain, info.schema, columns=run.columns))
        assert sum(part.num_rows for part in stored) == len(kinds)
        rows += zip(kinds, plain.to_pylist(), strict=True)
    return rows, {message.offset: reason for message, reason in batch.wrong}


def event(after: Any, before: Any = None, op: str = "c", fields: Any = None) -> bytes:
    payload = {"op": op, "before": before, "after": after}
    if fields is None:
        return json.dumps(payload).encode()
    return json.dumps({"schema": {"fields": [{"field": "after", "fields": fields}]}, "payload": payload}).encode()


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-(10**6), 10**6) | st.floats() | st.text(max_size=8)
    | st.sampled_from(
        ["1_000", "٣", "2024-01-01", "24:00:00", "23:59:59.9999", "-838:00:00", "2024-01-01T00:00:00Z", "AP8=", "1e39",
         "NaN", "1e999999999", 2**53 + 1, 2**24 + 1, 10**400, 86_400_000, "0x1", " 1", "1 ", "+1"]
    )
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "scale", "value"]), v),
    max_leaves=4,
)
DESCRIBED: Any = st.recursive(
    st.fixed_dictionaries(
        {}, optional={"type": st.sampled_from(KINDS) | SCALARS, "name": st.sampled_from(NAMES) | SCALARS,
                      "parameters": st.dictionaries(st.just("scale"), SCALARS) | SCALARS},
    ),
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(["array", "map", "struct"])},
        optional=dict.fromkeys(("items", "keys", "values"), inner | SCALARS) | {"fields": st.lists(inner) | SCALARS},
    ),
    max_leaves=3,
)  # fmt: skip


@settings(max_examples=examples(150))
@given(st.data())
def test_any_message_is_rows_or_wrong(data: st.DataObject) -> None:
    info = table(COLUMNS)
    texts: list[bytes | None] = []
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.dictionaries(st.sampled_from(list(COLUMNS)), VALUES, max_size=4))
        fields = data.draw(st.none() | SCALARS | st.just([{"field": n, **data.draw(DESCRIBED)} for n in row]))
        text = event(
            row | {"id": data.draw(st.integers(0, 9) | SCALARS)},
            data.draw(VALUES),
            data.draw(st.sampled_from("crudt")),
            fields,
        )
        texts.append(data.draw(st.just(text) | st.binary(max_size=20) | st.just(text[: len(text) // 2])))
    marked = table({**COLUMNS, "is_deleted": "BOOLEAN NOT NULL", "version": "BIGINT NOT NULL"})
    for form in FORMATS:
        rows, wrong = taken(info, texts, form)
        assert len(rows) + len(wrong) >= len(texts)
        rows, wrong = taken(marked, texts, form, flag="is_deleted")
        assert len(rows) + len(wrong) >= len(texts)
        assert "delete" not in [kind for kind, _ in rows]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000, b'{"op":' + b"[" * 900 + b"]" * 900 + b"}"])
def test_a_message_that_is_nested_deeply_is_wrong_and_the_next_is_read(form: str, deep: bytes) -> None:
    good = event({"id": 1}) if form == "debezium" else b'{"id": 1}'
    rows, wrong = taken(table({"id": "BIGINT NOT NULL", "s": "STRING"}), [deep, good], form)
    assert [row["id"] for _, row in rows if row["id"] is not None] == [1]
    assert list(wrong) == [0]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("DOUBLE", 2**53 + 1), ("FLOAT", 2**24 + 1), ("FLOAT", 10**39), ("FLOAT", "1e39"), ("DOUBLE", "1e999"),
        ("DOUBLE", "1_000"), ("BIGINT", "1_000"), ("BIGINT", "٣"), ("BIGINT", " 1"), ("DECIMAL(10, 2)", "1_000"),
        ("DECIMAL(10, 2)", "٣"), ("DECIMAL(10, 2)", "1e999999999"), ("DECIMAL(10, 2)", "NaN"), ("DOUBLE", "٣"),
        ("DATE", "2024-01-01T00:00:00"), ("DATE", "٢٠٢٤-01-01"), ("TIME(3)", 86_400_000), ("TIME(3)", -1),
        ("TIME(3)", "24:00:00"), ("TIME(3)", "25:61:00"), ("TIME(6)", "00:00:00.000001"),
        ("TIMESTAMP(3)", "٢٠٢٤-01-01 00:00"), ("CHAR(2)", "abc"), ("VARCHAR(2)", " äöü"),
        ("TIME(3)", "12:60:00"), ("TIME(3)", "12:00:75"), ("DOUBLE", "9007199254740993"), ("FLOAT", "16777217"),
        ("DECIMAL(5, 2)", {"scale": "٢", "value": "ZA=="}), ("DECIMAL(5, 2)", {"scale": 2.9, "value": "ZA=="}),
        ("DECIMAL(5, 2)", {"scale": True, "value": "ZA=="}), ("MAP<INT, INT>", {"1": 1, "+1": 2}),
        ("ARRAY<INT NOT NULL>", [1, None]), ("ROW<a INT, b INT NOT NULL>", {"a": 1}),
        ("ROW<a INT, b INT NOT NULL>", {"a": 1, "b": None}), ("MAP<STRING, INT NOT NULL>", {"a": None}),
        ("ARRAY<ROW<a ARRAY<DATE NOT NULL>>>", [{"a": [None]}]),
    ],
)  # fmt: skip
def test_a_value_that_would_change_is_wrong(type_: str, value: Any) -> None:
    info = table({"id": "BIGINT NOT NULL", "v": type_})
    rows, wrong = taken(info, [event({"id": 1}), event({"id": 2, "v": value}), event({"id": 3})])
    assert [row["id"] for _, row in rows] == [1, 3]
    assert wrong[1].startswith("'v' is no ")


LOGICAL = {
    "DATE": {f"{CONNECT}.Date", f"{DEBEZIUM}.Date"},
    "TIME(6)": {f"{CONNECT}.Time", f"{DEBEZIUM}.Time", f"{DEBEZIUM}.MicroTime", f"{DEBEZIUM}.NanoTime"},
    "TIMESTAMP(9)": {
        f"{CONNECT}.Timestamp", f"{DEBEZIUM}.Timestamp", f"{DEBEZIUM}.MicroTimestamp", f"{DEBEZIUM}.NanoTimestamp",
    },
    "INT": {None, f"{DEBEZIUM}.Year"}, "BIGINT": {None, f"{DEBEZIUM}.Year"}, "TINYINT": {None, f"{DEBEZIUM}.Year"},
    "DOUBLE": {None, f"{DEBEZIUM}.Year"}, "FLOAT": {None, f"{DEBEZIUM}.Year"},
    "DECIMAL(10, 2)": {None, f"{DEBEZIUM}.Year"}, "BOOLEAN": {None, f"{DEBEZIUM}.Year"},
    "STRING": set(), "BYTES": set(), "ARRAY<INT>": set(), "MAP<STRING, INT>": set(), "ROW<x INT>": set(),
}  # fmt: skip


@pytest.mark.parametrize("type_", LOGICAL)
def test_a_number_is_taken_only_for_what_the_schema_part_says_that_it_is(type_: str) -> None:
    """The column of the source may have become another: a time is no date, and a year no day since 1970."""
    info = table({"id": "BIGINT NOT NULL", "v": type_})
    for name in NAMES:
        if name in (f"{DEBEZIUM}.ZonedTimestamp", f"{CONNECT}.Decimal", "io.debezium.data.VariableScaleDecimal"):
            continue
        fields = [{"field": "v", "type": "int64", "name": name}]
        rows, wrong = taken(info, [event({"id": 1, "v": 0}, fields=fields), event({"id": 2, "v": None}, fields=fields)])
        assert (len(rows), 0 not in wrong) == ((2, True) if name in LOGICAL[type_] else (1, False)), name


def test_text_that_is_bytes_or_a_decimal_in_base64_is_no_text_and_no_number() -> None:
    text = base64.b64encode(b"abc").decode()
    for type_ in ("STRING", "DECIMAL(10, 2)", "DOUBLE", "BIGINT", "BOOLEAN", "DATE"):
        info = table({"id": "BIGINT NOT NULL", "v": type_})
        _, wrong = taken(info, [event({"id": 1, "v": text}, fields=[{"field": "v", "type": "bytes"}])])
        assert "the source's type is bytes" in wrong[0]


def test_an_update_that_changes_the_tables_key_deletes_the_old_row() -> None:
    """The source's key is id, so Debezium writes one event; the table's is (id, day)."""
    info = table({"id": "BIGINT NOT NULL", "day": "STRING NOT NULL", "v": "INT", "long": "STRING"}, ("id", "day"))
    old, new = {"id": 1, "day": "mon", "v": 1}, {"id": 1, "day": "tue", "v": 2}
    rows, wrong = taken(info, [event(new, old, "u"), event(new | {"v": 3}, new, "u"), event(new, {"id": 1}, "u")])
    assert wrong == {}
    assert [(kind, row["day"], row["v"]) for kind, row in rows] == [
        ("delete", "mon", None), ("insert", "tue", 2), ("update_after", "tue", 3), ("update_after", "tue", 2),
    ]  # fmt: skip
    unlogged = event(new | {"long": "__debezium_unavailable_value"}, old, "u")
    rows, wrong = taken(info, [unlogged, event(new | {"v": "x"}, old, "u"), event(new, None, "u")])
    assert [kind for kind, _ in rows] == ["update_after"]  # of a wrong message no row is left
    assert "REPLICA IDENTITY FULL" in wrong[0]
    assert "'v' is no INT" in wrong[1]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("STRING NOT NULL", "New York"), ("STRING NOT NULL", ""), ("STRING NOT NULL", "a/b"),
        ("STRING NOT NULL", "x" * 300), ("STRING", None), ("STRING NOT NULL", ".."),
    ],
)  # fmt: skip
def test_a_value_that_names_no_partition_is_wrong_and_the_others_are_read(type_: str, value: Any) -> None:
    descriptor = new_descriptor(
        {"id": "BIGINT NOT NULL", "day": type_, "hour": "INT NOT NULL"}, primary_key=(),
        partition_keys=("day", "hour"), bucket_keys=(), buckets=1, options=None, comment=None, auto_increment=None,
    )  # fmt: skip
    info = TableInfo(TablePath("fluss", "t"), 1, 1, descriptor)
    texts: list[bytes | None] = [
        json.dumps({"id": at, "day": day, "hour": 1}).encode() for at, day in enumerate(("mon", value, "tue"))
    ]
    rows: list[Any] = []
    reading = MessageReading("json")
    batch = read([Message(0, at, None, text) for at, text in enumerate(texts)], reading)
    for run in runs(batch, info, reading):
        rows += run.rows.to_pylist()
    assert [row["day"] for row in rows] == ["mon", "tue"]
    assert [message.offset for message, _ in batch.wrong] == [1]


@pytest.mark.parametrize(
    ("type_", "value", "field"),
    [
        ("ROW<a INT>", {"a": 1, "new": 2}, "v.new"), ("ROW<a ROW<b INT>>", {"a": {"b": 1, "c": 1}}, "v.a.c"),
        ("ARRAY<ROW<a INT>>", [{"a": 1}, {"b": 1}], "v.b"), ("MAP<STRING, ROW<a INT>>", {"k": {"b": 1}}, "v.b"),
        ("ROW<a INT>", {"a": 1}, None), ("ROW<a INT>", [1], None), ("ARRAY<INT>", {"a": 1}, None),
        ("MAP<STRING, INT>", {"a": 1}, None), ("ROW<a INT>", None, None),
    ],
)  # fmt: skip
def test_a_new_field_inside_of_a_value_is_found(type_: str, value: Any, field: str | None) -> None:
    info = table({"id": "BIGINT NOT NULL", "v": type_})
    batch = read([Message(0, 0, None, event({"id": 1, "v": value}))], MessageReading())
    assert batch.new_field(info) == field
