"""Changes of a source in any order and repeatedly, deletes too: the table ends as the source does."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import forebay
from forebay.base.errors import InvalidRequest
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.client.transaction import Transaction
from forebay.debezium.events import UNAVAILABLE
from forebay.debezium.marks import VersionColumn
from forebay.ingest.messages import Message, MessageReading, check_table, read, runs
from tests.every_run import examples

COLUMNS = {
    "id": "BIGINT", "day": "STRING", "v": "INT", "name": "STRING", "is_deleted": "BOOLEAN NOT NULL",
    "lsn": "BIGINT NOT NULL",
}  # fmt: skip
VERSIONED = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "lsn"}
LSN, OFFSET = VersionColumn.parse("lsn=source.lsn"), VersionColumn.parse("lsn=kafka.offset")
DEBEZIUM = MessageReading(deleted_column="is_deleted", version_column=LSN)


def table(connection: Connection, name: str, columns: Mapping[str, str] = COLUMNS, **options: str) -> Table:
    connection.drop_table(name, ignore_if_not_exists=True)
    return connection.create_table(
        name, dict(columns), primary_key=["id", "day"], buckets=2, options={**VERSIONED, **options}
    )


def written(table: Table, messages: Sequence[Message], reading: MessageReading) -> list[str]:
    """Write messages in a transaction, as a job does; the reasons of wrong ones."""
    check_table(table.info, reading)
    batch = read(messages, reading)
    with Transaction(table.connection) as tx:
        for run in runs(batch, table.info, reading):
            tx.write_changes(table, run.rows, run.columns)
    return [reason for _, reason in batch.wrong]


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


class Source:
    """A database with a table of few rows, its changes as messages, and its rows at the end.

    Its key is `id`, that of our table (id, day): Debezium sends one event for an update that changes the day.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rows: dict[int, dict[str, Any]] = {}
        self.events: list[Message] = []
        self.objects: list[Message] = []
        for lsn in range(1, self.chance.randrange(5, 40)):
            self._change(lsn)

    def _change(self, lsn: int) -> None:
        key, chance = self.chance.randrange(3), self.chance
        before = self.rows.get(key)
        after: dict[str, Any] | None = {
            "id": key, "day": chance.choice(["mon", "tue"]), "v": lsn, "name": chance.choice([None, "a", "b"]),
        }  # fmt: skip
        if before is not None and chance.random() < 0.4:
            after = None
        op = "c" if before is None else "d" if after is None else "u"
        # As the replica identity is: the whole row, or the key of our table alone.
        logged = before if before is None or chance.random() < 0.5 else {name: before[name] for name in ("id", "day")}
        event = {"op": op, "before": logged, "after": after, "source": {"lsn": lsn * 8}, "ts_ms": 1}
        self.events.append(Message(0, lsn, None, text(event)))
        if before is not None and (after is None or after["day"] != before["day"]):
            self._object(before, None)
        if after is not None:
            self._object(after, after)
        if after is None:
            del self.rows[key]
        else:
            self.rows[key] = after

    def _object(self, row: Mapping[str, Any], value: Any) -> None:
        key = text({"id": row["id"], "day": row["day"]})
        self.objects.append(Message(0, len(self.objects), key, None if value is None else text(value)))

    def batches(self, messages: Sequence[Message]) -> list[list[Message]]:
        """The messages in another order, some of them repeatedly, in batches."""
        found = [*messages, *self.chance.choices(messages, k=len(messages) // 3)]
        self.chance.shuffle(found)
        size = self.chance.choice([2, 7, len(found)])
        return [found[begin : begin + size] for begin in range(0, len(found), size)]


@pytest.fixture
def connection(forebay_server: Any) -> Iterator[Connection]:
    with forebay.connect(forebay_server.bootstrap_servers) as connection:
        yield connection


@pytest.mark.parametrize("form", ["debezium", "json"])
def test_any_order_of_batches_ends_in_the_state_of_the_source(connection: Connection, form: str) -> None:
    reading = DEBEZIUM if form == "debezium" else MessageReading("json", None, "is_deleted", OFFSET)
    for seed in range(examples(12)):
        source = Source(seed)
        target = table(connection, f"fluss.{form}")
        for batch in source.batches(source.events if form == "debezium" else source.objects):
            assert written(target, batch, reading) == []
        found = target.scan(["id", "day", "v", "name"], filter="NOT is_deleted").to_arrow().sort_by("id").to_pylist()
        assert found == [source.rows[key] for key in sorted(source.rows)], f"seed {seed}"


def event(op: str, lsn: Any = 8, *, before: Any = None, after: Any = None) -> bytes:
    source = {} if lsn is None else {"lsn": lsn}
    return text({"op": op, "before": before, "after": after, "source": source})


def rows_of(target: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = target.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["id"], row["day"]))


def test_a_deleted_row_has_its_old_values_as_far_as_the_database_logs_them(connection: Connection) -> None:
    target = table(connection, "fluss.t")
    key = {"id": 1, "day": "mon"}
    texts = [
        event("d", 16, before={**key, "v": 5, "name": UNAVAILABLE}),
        event("d", 8, before={**key, "v": 4}),
        event("u", 24, before={"id": 2, "day": "mon", "v": 1}, after={"id": 2, "day": "tue", "v": 2}),
    ]
    assert written(target, [Message(0, at, None, each) for at, each in enumerate(texts)], DEBEZIUM) == []
    assert rows_of(target) == [
        {**key, "v": 5, "name": None, "is_deleted": True, "lsn": 16},
        {"id": 2, "day": "mon", "v": 1, "name": None, "is_deleted": True, "lsn": 24},
        {"id": 2, "day": "tue", "v": 2, "name": None, "is_deleted": False, "lsn": 24},
    ]


def test_a_change_that_cannot_be_marked_is_wrong(connection: Connection) -> None:
    target = table(connection, "fluss.t", {**COLUMNS, "v": "INT NOT NULL"})
    key = {"id": 1, "day": "mon"}
    texts = [
        event("d", before=key), event("c", None, after={**key, "v": 1}), event("c", "x", after={**key, "v": 1}),
        event("c", after={**key, "v": 1, "lsn": 1}), event("u", after={**key, "v": 1, "name": UNAVAILABLE}),
        event("d", before={**key, "v": 0}),
    ]  # fmt: skip
    wrong = written(target, [Message(0, at, None, each) for at, each in enumerate(texts)], DEBEZIUM)
    assert [reason.partition(":")[0] for reason in wrong] == [
        "the deleted row lacks 'v', which is NOT NULL", "it has no source.lsn, which is the version of its row",
        "its row has a column 'lsn' already", "the database did not log 'name'", "'lsn' is no BIGINT NOT NULL",
    ]  # fmt: skip
    assert [row["is_deleted"] for row in rows_of(target)] == [True]


def test_a_delete_that_the_table_would_ignore_is_wrong(connection: Connection) -> None:
    key = {"id": 1, "day": "mon"}
    delete = [Message(0, 0, text(key), event("d", before=key))]
    tombstone = [Message(0, 0, text(key), None)]
    columns = {"id": "BIGINT", "day": "STRING", "v": "INT", "lsn": "BIGINT"}
    for engine in ("versioned", "first_row", "aggregation"):
        options = VERSIONED if engine == "versioned" else {"table.merge-engine": engine}
        connection.drop_table("fluss.t", ignore_if_not_exists=True)
        target = connection.create_table("fluss.t", columns, primary_key=["id", "day"], options=options)
        for messages, form in ((delete, "debezium"), (tombstone, "json")):
            [reason] = written(target, messages, MessageReading(form))
            assert f"merge engine '{engine}' ignores" in reason
            assert "--deleted-column" in reason
            assert written(target, messages, MessageReading(form, ignores_deletes=True)) == []
    connection.drop_table("fluss.t")
    refusing = {"table.delete.behavior": "disable"}
    target = connection.create_table("fluss.t", columns, primary_key=["id", "day"], options=refusing)
    assert "'table.delete.behavior' = 'disable'" in written(target, delete, MessageReading())[0]
    log = connection.create_table("fluss.log", columns)
    assert written(log, tombstone, MessageReading("json")) == ["it is a delete, and rows of a log table stay"]


def test_a_plain_delete_needs_a_version_and_rows_may_say_that_they_are_deleted(connection: Connection) -> None:
    """As Debezium's ExtractNewRecordState writes them, with `delete.tombstone.handling.mode` = rewrite."""
    target = table(connection, "fluss.t")
    row = {"id": 1, "day": "mon", "v": 1, "lsn": 5}
    reading = MessageReading("json", deleted_column="is_deleted")
    objects = [{**row, "is_deleted": "true"}, {**row, "lsn": 4, "is_deleted": "false"}, {**row, "day": "tue"}]
    messages = [Message(0, at, None, text(each)) for at, each in enumerate(objects)]
    [reason] = written(target, [*messages, Message(0, 3, text({"id": 1, "day": "wed"}), None)], reading)
    assert "without a version in column 'lsn'" in reason
    assert "--version-column lsn=kafka.offset" in reason
    assert [(row["day"], row["is_deleted"]) for row in rows_of(target)] == [("mon", True), ("tue", False)]


def test_a_time_may_be_the_version_in_its_own_unit(connection: Connection) -> None:
    target = table(connection, "fluss.t", {**COLUMNS, "lsn": "TIMESTAMP_LTZ(6)"})
    for name, value in (("ts_us", 1_500), ("ts_ms", 2)):
        version = VersionColumn.parse(f"lsn=source.{name}")
        value_text = text({"op": "c", "after": {"id": 1, "day": "mon"}, "source": {name: value}})
        reading = MessageReading("debezium", "s", "is_deleted", version)
        assert written(target, [Message(0, 0, None, value_text)], reading) == []
        assert rows_of(target)[0]["lsn"] == dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(
            microseconds=value * (1 if name == "ts_us" else 1000)
        )


def test_mysql_orders_by_file_position_and_row() -> None:
    def version(file: Any, position: Any, row: Any = 0) -> Any:
        return VersionColumn("v", "binlog").of({"source": {"file": file, "pos": position, "row": row}})

    places = [("mysql-bin.000009", 4), ("mysql-bin.000009", 5), ("mysql-bin.000009", 5, 2), ("mysql-bin.000010", 4)]
    versions = [version(*place) for place in [*places, ("b.524287", 2**32 - 1, 4095)]]
    assert versions == sorted(set(versions))
    assert versions[-1] == 2**63 - 1
    for place in (("b", 1), ("b.1", None), ("b.1", -1), ("b.524288", 1), ("b.1", 1, 4096), (None, True), ("b.٣", 1)):
        assert version(*place) is None
    assert VersionColumn("v", "binlog").of({}) is None


@pytest.mark.parametrize("wrong", ["lsn", "=source.lsn", "lsn=", "lsn=before.v", "lsn=source."])
def test_a_version_column_names_a_column_and_a_field(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match="is not COLUMN=FIELD"):
        VersionColumn.parse(wrong)


def test_a_table_that_cannot_have_the_columns_is_refused(connection: Connection) -> None:
    target = table(connection, "fluss.t").info
    first = connection.create_table(
        "fluss.f", COLUMNS, primary_key="id", options={"table.merge-engine": "first_row"}
    ).info
    log = connection.create_table("fluss.log", COLUMNS).info
    for info, reading, match in (
        (target, MessageReading(deleted_column="is_deletd", version_column=LSN), "no column 'is_deletd'; did you mean"),
        (target, MessageReading(deleted_column="name", version_column=LSN), "'name' .* is not BOOLEAN"),
        (target, MessageReading(deleted_column="is_deleted"), "--version-column lsn=source.lsn"),
        (target, MessageReading(version_column=VersionColumn("v", "ts_ms")), "versions in column 'lsn', not in 'v'"),
        (target, MessageReading("json", deleted_column="is_deleted", version_column=LSN), "no field 'source.lsn'"),
        (first, MessageReading(deleted_column="is_deleted", version_column=LSN), "keeps the first row"),
        (log, MessageReading("json", deleted_column="is_deleted"), "has no primary key"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=match):
            check_table(info, reading)
    check_table(target, DEBEZIUM)
    check_table(log, MessageReading("json"))
