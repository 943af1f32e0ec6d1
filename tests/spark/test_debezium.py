"""Change events of Debezium as changes of tables: with and without their schema part, right ones and wrong ones."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import InvalidRequest
from forebay.client.connection import Connection
from forebay.debezium.events import UNAVAILABLE
from forebay.spark.debezium import from_debezium
from tests import debezium_events

pytestmark = pytest.mark.spark

SCHEMA = (
    "id BIGINT NOT NULL, name STRING, day DATE, at TIMESTAMP_NTZ, amount DECIMAL(18,2), raw BINARY, ok BOOLEAN, "
    "tags ARRAY<STRING>, spots MAP<STRING, STRUCT<x: INT, y: DECIMAL(38,18)>>"
)
ROW = {
    "id": 1, "name": "a", "day": 19_000, "at": 1_700_000_000_123, "amount": "12.34", "raw": "aGk=", "ok": True,
    "tags": ["x", "y"], "spots": {"a": {"x": 1, "y": "12345678901234567890.012345678901234567"}},
}  # fmt: skip
READ = {
    "id": 1, "name": "a", "day": dt.date(2022, 1, 8), "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000),
    "amount": Decimal("12.34"), "raw": b"hi", "ok": True, "tags": ["x", "y"],
    "spots": {"a": (1, Decimal("12345678901234567890.012345678901234567"))},
}  # fmt: skip
TYPES = {
    "type": "struct",
    "fields": [
        {"field": "before", "type": "struct", "fields": []},
        {
            "field": "after",
            "type": "struct",
            "fields": [
                {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
                {
                    "field": "amount",
                    "type": "bytes",
                    "name": "org.apache.kafka.connect.data.Decimal",
                    "parameters": {"scale": "2"},
                },
            ],
        },
    ],
}


def as_bytes(unscaled: int) -> str:
    return base64.b64encode(unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)).decode()


def events(spark: Any, *found: Any) -> Any:
    texts = [(each if each is None or isinstance(each, str) else json.dumps(each),) for each in found]
    return spark.createDataFrame(texts, "value STRING")


def read(frame: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def test_events_are_changes_with_the_values_that_the_database_has(spark: Any) -> None:
    frame = events(
        spark,
        {"op": "c", "before": None, "after": ROW},
        {"op": "u", "before": ROW, "after": {**ROW, "amount": -3.5, "at": "2024-01-01T00:00:00", "day": "2024-01-02"}},
        {"op": "d", "before": {"id": 1}, "after": None},
        None,
        {"op": "r", "after": {"id": 2}},
    )
    made = from_debezium(frame, SCHEMA)
    assert made.columns == ["_change_type", *READ]
    changed = {**READ, "amount": Decimal("-3.50"), "at": dt.datetime(2024, 1, 1), "day": dt.date(2024, 1, 2)}
    nothing: list[Any] = [None] * (len(READ) - 1)
    assert read(made) == [
        ("insert", *READ.values()),
        ("update_after", *changed.values()),
        ("delete", 1, *nothing),
        ("insert", 2, *nothing),
    ]


def test_events_are_the_rows_that_every_decoder_finds(spark: Any) -> None:
    texts = [(at, debezium_events.text_of(event)) for at, (event, _) in enumerate(debezium_events.EVENTS)]
    frame = spark.createDataFrame(texts, "at INT, value STRING").coalesce(1)
    changes = from_debezium(frame.drop("at"), debezium_events.SPARK_COLUMNS, wrong="drop")
    assert [row.asDict() for row in changes.collect()] == debezium_events.rows()
    only = from_debezium(frame, debezium_events.SPARK_COLUMNS, wrong="only")
    wrong = [(row["at"], row["_error"]) for row in only.collect()]
    assert debezium_events.begins(wrong) == debezium_events.reasons()


def test_a_row_is_whole_so_an_update_that_the_database_did_not_log_is_wrong(spark: Any) -> None:
    frame = events(spark, *(event for event, _ in debezium_events.UNLOGGED)).coalesce(1)
    wrong = [row["_error"] for row in from_debezium(frame, debezium_events.SPARK_COLUMNS, wrong="only").collect()]
    assert [text.partition(":")[0] for text in wrong] == [
        f"the database did not log '{name}'" for _, name in debezium_events.UNLOGGED
    ]


def test_the_schema_part_says_how_times_and_decimals_are_written(spark: Any) -> None:
    unscaled = [0, 5, -5, 1234, -1234, 10**18 - 1, -(10**18) + 1, 127, 128, -128, 255]
    rows = [{**ROW, "id": i, "at": 1_700_000_000_123_456, "amount": as_bytes(n)} for i, n in enumerate(unscaled)]
    found = [{"schema": TYPES, "payload": {"op": "c", "after": row}} for row in rows]
    made = from_debezium(events(spark, *found), SCHEMA)
    expected = {**READ, "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123_456)}
    assert read(made) == [
        ("insert", *{**expected, "id": i, "amount": Decimal(n).scaleb(-2)}.values()) for i, n in enumerate(unscaled)
    ]


WRONG = {
    "its op is t": {"op": "t"},
    "its value is not JSON": "garbage",
    "its op is missing": {"id": 1},
    "it has no row": {"op": "c", "before": ROW, "after": None},
    "'id' is missing": {"op": "c", "after": {"name": "x"}},
    "'day' is no DATE": {"op": "c", "after": {**ROW, "day": "tomorrow"}},
    "'amount' is no DECIMAL(18, 2)": {"op": "c", "after": {**ROW, "amount": "much"}},
    "'ok' is no BOOLEAN": {"op": "c", "after": {**ROW, "ok": "perhaps"}},
    "'tags' is no ARRAY<STRING>": {"op": "c", "after": {**ROW, "tags": 5}},
    "'spots' is no MAP<STRING": {
        "op": "c",
        "after": {**ROW, "spots": {"a": {"x": "?"}}},
    },
}


def test_wrong_events_go_where_the_user_says(spark: Any) -> None:
    frame = events(spark, {"op": "c", "after": ROW}, *WRONG.values())
    assert read(from_debezium(frame, SCHEMA, wrong="drop")) == [("insert", *READ.values())]
    only = from_debezium(frame, SCHEMA, wrong="only")
    assert only.columns == ["_error", "value"]
    texts = [each if isinstance(each, str) else json.dumps(each) for each in WRONG.values()]
    found = read(only)
    assert [text for _, text in found] == texts
    assert [error.startswith(begin) for begin, (error, _) in zip(WRONG, found, strict=True)] == [True] * len(WRONG)
    with pytest.raises(Exception, match=r"no change event of Debezium: (its op|its value|it has no|'\w+' is)"):
        read(from_debezium(frame, SCHEMA))
    with pytest.raises(InvalidRequest, match="wrong='skip' is none of 'fail', 'drop', 'only'"):
        from_debezium(frame, SCHEMA, wrong="skip")
    with pytest.raises(InvalidRequest, match="no column 'payload', only value"):
        from_debezium(frame, SCHEMA, column="payload")


def test_a_column_beside_the_events_orders_them_deletes_too(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    schema = "id BIGINT NOT NULL, name STRING"
    table = connection.create_table(
        f"{database}.t", {"id": "BIGINT", "name": "STRING", "lsn": "BIGINT"}, primary_key="id"
    )
    row = {"id": 1, "name": "a"}
    rows = [
        {"op": "d", "before": row, "after": None, "source": {"lsn": 3}},
        {"op": "u", "before": row, "after": {**row, "name": "b"}, "source": {"lsn": 2}},
        {"op": "c", "before": None, "after": {"id": 2, "name": "c"}, "source": {"lsn": 4}},
        {"op": "c", "before": None, "after": row, "source": {"lsn": 1}},
    ]
    events(spark, *rows).coalesce(1).write.text(str(tmp_path / "in"))
    lines = spark.readStream.text(str(tmp_path / "in"))
    given = lines.selectExpr("value", "get_json_object(value, '$.source.lsn')::bigint AS lsn")
    changes = from_debezium(given, schema, keep="lsn")
    assert changes.columns == ["_change_type", "id", "name", "lsn"]
    writer = changes.writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.option("write.sequence.field", "lsn").toTable(f"forebay.{table.path}").awaitTermination()
    assert table.scan().to_arrow().to_pylist() == [{"id": 2, "name": "c", "lsn": 4}]
    for keep in ("nope", "name"):
        with pytest.raises(InvalidRequest, match=f"keep='{keep}' is not a column of the data alone"):
            from_debezium(given, schema, keep=keep)


def test_a_stream_of_events_ends_in_a_live_table_and_counts_the_wrong_ones(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    import forebay.spark

    table = connection.create_table(f"{database}.orders", {"id": "BIGINT", "state": "STRING"}, primary_key="id")
    rows = [
        {"op": "c", "after": {"id": 1, "state": "new"}},
        {"op": "c", "after": {"id": 2, "state": "new"}},
        {"op": "u", "after": {"id": 1, "state": "paid"}},
        {"op": "t"},
        {"op": "d", "before": {"id": 2, "state": "new"}},
    ]
    events(spark, *rows).coalesce(1).write.text(str(tmp_path / "in"))
    changes = forebay.spark.from_debezium(
        spark.readStream.text(str(tmp_path / "in")), "id BIGINT NOT NULL, state STRING", wrong="drop"
    )
    writer = changes.writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.toTable(f"forebay.{table.path}")
    query.awaitTermination()
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "state": "paid"}]
    assert sum(progress.observedMetrics["forebay_debezium"].wrong for progress in query.recentProgress) == 1


def change(op: str, lsn: int, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn}}


def test_late_changes_and_deletes_end_in_the_state_of_the_source(
    spark: Any, connection: Connection, database: str
) -> None:
    """Batches in another order, one of them twice; an update moves row 3 to another key of the table."""
    options = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "lsn"}
    columns = {"id": "BIGINT", "day": "STRING", "v": "INT", "is_deleted": "BOOLEAN NOT NULL", "lsn": "BIGINT NOT NULL"}
    table = connection.create_table(f"{database}.t", columns, primary_key=["id", "day"], options=options)
    row = {"id": 1, "day": "mon", "v": 1}
    batches = [
        [change("d", 40, {"id": 1, "day": "mon"}), change("u", 41, {**row, "id": 3}, {"id": 3, "day": "tue", "v": 9})],
        [change("u", 20, row, {**row, "v": 2}), change("c", 30, None, {**row, "id": 2})],
        [change("c", 10, None, row), change("c", 11, None, {**row, "id": 3})],
    ]
    for batch in [*batches, batches[1]]:
        rows = from_debezium(
            events(spark, *batch), "id BIGINT NOT NULL, day STRING NOT NULL, v INT", key=["id", "day"],
            deleted_column="is_deleted", version_column="lsn=source.lsn",
        )  # fmt: skip
        assert rows.columns == list(columns)
        rows.writeTo(f"forebay.{table.path}").append()
    assert sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist()) == [
        (1, "mon", None, True, 40), (2, "mon", 1, False, 30), (3, "mon", 1, True, 41), (3, "tue", 9, False, 41),
    ]  # fmt: skip


def test_events_that_cannot_be_marked_are_wrong(spark: Any) -> None:
    row = {"id": 1, "name": "a"}
    found = [{"op": "c", "after": row}, change("d", 1, {"id": 1}), change("c", 2, None, {**row, "lsn": 1})]
    frame = events(spark, *found, change("d", 3, {"id": 1, "name": UNAVAILABLE})).coalesce(1)
    added = {"deleted_column": "is_deleted", "version_column": "lsn=source.lsn"}
    wrong = from_debezium(frame, "id BIGINT NOT NULL, name STRING NOT NULL", wrong="only", **added)
    assert [row["_error"].partition(":")[0] for row in wrong.collect()] == [
        "it has no source.lsn, which is the version of its row", "the deleted row lacks 'name', which is NOT NULL",
        "its row has a column 'lsn' already", "the deleted row lacks 'name', which is NOT NULL",
    ]  # fmt: skip
    for more, match in (
        ({"key": "nope"}, "key='nope' is not a column"), ({"deleted_column": "NAME"}, "'NAME' cannot be added"),
        ({"version_column": "v=kafka.offset"}, "keep='offset'"), ({"version_column": "v"}, "not COLUMN=FIELD"),
        ({"keep": "value", "deleted_column": "value"}, "keep='value' is not a column of the data alone"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=match):
            from_debezium(frame, "id BIGINT, name STRING", **more)


def test_a_delete_that_the_table_would_ignore_ends_the_stream(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    options = {"table.merge-engine": "first_row"}
    table = connection.create_table(f"{database}.t", {"id": "BIGINT"}, primary_key="id", options=options)
    events(spark, change("c", 1, None, {"id": 1}), change("d", 2, {"id": 1})).coalesce(1).write.text(
        str(tmp_path / "in")
    )
    changes = from_debezium(spark.readStream.text(str(tmp_path / "in")), "id BIGINT NOT NULL")
    writer = changes.writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=r"'first_row' ignores deletes. .*deleted_column"):
        writer.toTable(f"forebay.{table.path}").awaitTermination()
    assert table.scan().count() == 0
