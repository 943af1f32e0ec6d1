"""`forebay ingest` from the broker that librdkafka brings for tests: real messages over a socket, and no Java."""

from __future__ import annotations

import json
from typing import Any

import pytest

import forebay
from forebay.cli.main import main

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the package confluent-kafka")


class Topic:
    """A topic of one partition; the broker lives as long as its producer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._producer = confluent_kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
        [broker] = self._producer.list_topics(timeout=30).brokers.values()
        self.servers = f"{broker.host}:{broker.port}"

    def send(self, key: Any, *events: Any) -> None:
        for event in events:
            self._producer.produce(self.name, json.dumps(event), json.dumps(key), 0)
        assert self._producer.flush(60) == 0


@pytest.fixture
def topic() -> Topic:
    return Topic("orders")


COLUMNS = [
    {"field": "id", "type": "int64"}, {"field": "customer", "type": "string"},
    {"field": "amount", "type": "int32", "optional": True},
]  # fmt: skip


def event(op: str, lsn: int, *, before: Any = None, after: Any = None) -> dict[str, Any]:
    schema = {"type": "struct", "fields": [{"field": side, "fields": COLUMNS} for side in ("before", "after")]}
    return {"schema": schema, "payload": {"op": op, "before": before, "after": after, "source": {"lsn": lsn}}}


def ingest(servers: str, topic: Topic, *arguments: str) -> int:
    words = ["ingest", "fluss.orders", "-b", servers, "--kafka", topic.servers, "--topic", topic.name]
    return main([*words, "--until-end", "--linger", "0", *arguments])


def test_a_table_is_created_that_takes_late_changes_and_deletes(
    forebay_server: Any, topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = forebay_server.bootstrap_servers
    new, paid = {"id": 1, "customer": "ann", "amount": 5}, {"id": 1, "customer": "ann", "amount": 7}
    topic.send({"payload": {"id": 1}}, event("d", 30, before={"id": 1}), event("u", 20, before=new, after=paid))
    marked = ("--deleted-column", "is_deleted", "--version-column", "lsn=source.lsn")
    assert ingest(servers, topic, "--create", *marked) == 0
    topic.send({"payload": {"id": 1}}, event("c", 10, after=new))
    topic.send({"payload": {"id": 2}}, event("c", 40, after={**new, "id": 2}))
    assert ingest(servers, topic, *marked) == 0
    assert ingest(servers, topic, *marked, "--job", "again") == 0  # all of it once more, from the beginning
    capsys.readouterr()
    with forebay.connect(servers) as connection:
        table = connection.table("fluss.orders")
        assert {column.name: str(column.data_type) for column in table.schema.columns} == {
            "id": "BIGINT NOT NULL", "customer": "STRING", "amount": "INT", "is_deleted": "BOOLEAN NOT NULL",
            "lsn": "BIGINT NOT NULL",
        }  # fmt: skip
        assert table.info.descriptor.merge_engine == "versioned"
        assert table.scan().to_arrow().sort_by("id").to_pylist() == [
            {"id": 1, "customer": None, "amount": None, "is_deleted": True, "lsn": 30},
            {"id": 2, "customer": "ann", "amount": 5, "is_deleted": False, "lsn": 40},
        ]
    assert ingest(servers, topic, "--job", "plain", "--version-column", "lsn=source.lsn", "--new-columns", "fail") == 1
    assert "a table with the merge engine 'versioned' ignores" in capsys.readouterr().err


def test_a_new_field_inside_of_a_row_ends_the_job_unless_new_columns_are_ignored(
    forebay_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    servers, people = forebay_server.bootstrap_servers, Topic("people")
    with forebay.connect(servers) as connection:
        table = connection.create_table("fluss.orders", {"id": "INT", "home": "ROW<city STRING>"}, primary_key="id")
        people.send({"payload": {"id": 1}}, {"op": "c", "after": {"id": 1, "home": {"city": "Ulm", "zip": "89073"}}})
        assert ingest(servers, people) == 1
        assert "have the field 'home.zip', which the type of its column in" in capsys.readouterr().err
        assert ingest(servers, people, "--new-columns", "ignore") == 0
        assert table.scan().to_arrow().to_pylist() == [{"id": 1, "home": {"city": "Ulm"}}]
