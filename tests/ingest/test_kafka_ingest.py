"""`forebay ingest` and Spark read a real Kafka broker, into which Debezium writes what happens in a real PostgreSQL.

Processes are killed at random; the rows are then compared with those of the database, or with what was sent.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import NotFound
from forebay.cli.main import main
from forebay.testing.server import ServerProcess
from tests.ingest.change_source import Broker, Debezium, ExamUnavailable, postgresql, spark_kafka_jars
from tests.patience import until

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the package confluent-kafka")
pg8000 = pytest.importorskip("pg8000.native", reason="needs the package pg8000")

pytestmark = [pytest.mark.slow, pytest.mark.foreign, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        running = Broker(tmp_path_factory.mktemp("kafka") / "broker").__enter__()
    except ExamUnavailable as reason:
        pytest.skip(f"no Kafka here: {reason}")
    yield running
    running.__exit__(None, None, None)


@pytest.fixture(scope="module")
def topics(broker: Broker) -> Any:
    from tests.ingest.kafka_topics import Topics

    return Topics(broker.servers)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path / "data").start()
    yield running
    running.kill()


class Job:
    """A process that reads a topic; it is killed at random moments and started again."""

    def __init__(self, module: str, log: Path, *arguments: str) -> None:
        self._command, self.log = [sys.executable, "-m", module, *arguments], log

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen([*self._command, *more], stdout=log, stderr=log, start_new_session=True)

    def killed(self, rounds: int, chance: random.Random, seconds: tuple[float, float] = (1.5, 5)) -> None:
        for _ in range(rounds):
            process = self.start()
            time.sleep(chance.uniform(*seconds))
            self.kill(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process with those that it has started; it has to be running still."""
        assert process.poll() is None, self.log.read_text()[-3000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def writes_to(self, server: ServerProcess, table: str, process: subprocess.Popen[bytes]) -> None:
        """Wait until the process has written to the table, which others must change meanwhile."""
        before = records_of(server, table)

        def has_written() -> bool:
            assert process.poll() is None, self.log.read_text()[-3000:]
            return records_of(server, table) > before

        until(has_written, f"a write to {table}", pause_seconds=0.2)

    def to_the_end(self, option: str = "--until-end") -> None:
        assert self.start(option).wait(500) == 0, self.log.read_text()[-3000:]


def records_of(server: ServerProcess, table: str) -> int:
    """How many records the logs of a table have; 0 if there is no such table."""
    with forebay.connect(server.bootstrap_servers) as connection:
        try:
            return sum(connection.admin.list_offsets(table).values())
        except NotFound:
            return 0


def ingesting(server: ServerProcess, broker: Broker, table: str, topic: str, *arguments: str) -> Job:
    places = ("-b", server.bootstrap_servers, "--kafka", broker.servers, "--topic", topic)
    return Job("forebay", server.data_dir.parent / "ingest.log", "ingest", table, *places, *arguments)


def ingest(server: ServerProcess, broker: Broker, table: str, topic: str, *arguments: str) -> int:
    words = ["ingest", table, "-b", server.bootstrap_servers, "--kafka", broker.servers, "--topic", topic]
    return main([*words, "--until-end", "--linger", "0.1", *arguments])


# ---- PostgreSQL -> Debezium -> Kafka -> a live table ----------------------------------------------------------------

COLUMNS = {
    "id": "BIGINT NOT NULL", "customer": "STRING NOT NULL", "amount": "DECIMAL(10, 2)", "at": "TIMESTAMP(6)",
    "seen": "TIMESTAMP_LTZ(6)", "day": "DATE", "ok": "BOOLEAN NOT NULL", "raw": "BYTES", "tags": "ARRAY<STRING>",
    "doc": "STRING", "long": "STRING",
}  # fmt: skip
DDL = """CREATE TABLE orders (id bigint PRIMARY KEY, customer text NOT NULL, amount numeric(10, 2), at timestamp,
    seen timestamptz, day date, ok boolean NOT NULL, raw bytea, tags text[], doc text, long text)"""
INSERT = """INSERT INTO orders (id, customer, amount, at, seen, day, ok, raw, tags, doc, long) VALUES (:id::bigint,
    :customer::text, :amount, now()::timestamp, now(), current_date, :ok, :raw, ARRAY[:customer::text, 'x'], :doc,
    (SELECT string_agg(md5((:id::bigint * 1000 + i)::text), '') FROM generate_series(1, 120) i))
    ON CONFLICT (id) DO UPDATE SET customer = EXCLUDED.customer, amount = EXCLUDED.amount"""


class Shop:
    """A database with a table that changes as long as `changing` runs; large values are out of line (TOAST)."""

    def __init__(self, database: dict[str, Any], seed: int) -> None:
        port = database["database.port"]
        self.connection = pg8000.Connection("shop", host="127.0.0.1", port=port, database="postgres")
        self.connection.run(DDL)
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self._changing = concurrent.futures.ThreadPoolExecutor(1)
        self._changed: concurrent.futures.Future[None]
        self.changes = 0

    def change(self, statement: str, **values: Any) -> None:
        self.connection.run(statement, **values)
        self.changes += 1

    def _change(self) -> None:
        chance = self._chance
        while not self._ending.wait(0.002):
            key, kind = chance.randrange(400), chance.random()
            if kind < 0.4:
                amount = chance.randrange(-10_000, 10_000) / 100
                self.change(
                    INSERT, id=key, customer=f"c{chance.randrange(9)}", amount=amount, ok=key % 2 == 0,
                    raw=chance.randbytes(3), doc=chance.choice([None, "", '{"a": 1}', "Zoë\n"]),
                )  # fmt: skip
            elif kind < 0.8:
                self.change("UPDATE orders SET amount = amount + 1, doc = 'changed' WHERE id = :id", id=key)
            elif kind < 0.9:
                self.change("DELETE FROM orders WHERE id = :id", id=key)
            else:  # another key; with the large value, which a change of the key has to log
                moved = "UPDATE orders SET id = :to::bigint, long = 'moved' WHERE id = :id AND NOT EXISTS "
                other = chance.randrange(400)
                self.change(f"{moved} (SELECT FROM orders WHERE id = :to::bigint)", id=key, to=other)

    def __enter__(self) -> Shop:
        self._changed = self._changing.submit(self._change)
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._changing.shutdown()
        self._changed.result()

    def close(self) -> None:
        self.connection.close()

    def rows(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        columns = ", ".join(f'"{name}"' for name in names)
        return [plain(row) for row in self.connection.run(f"SELECT {columns} FROM orders ORDER BY id")]


def plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)


def rows_of(server: ServerProcess, table: str) -> list[tuple[Any, ...]]:
    with forebay.connect(server.bootstrap_servers) as connection:
        found = connection.table(table).scan().to_arrow().sort_by("id").to_pylist()
    return [plain(list(row.values())) for row in found]


def names_of(server: ServerProcess, table: str) -> list[str]:
    with forebay.connect(server.bootstrap_servers) as connection:
        return list(connection.table(table).arrow_schema.names)


def mark_arrives(shop: Shop, topic: str, broker: Broker) -> None:
    """Wait until Debezium has sent all changes: the last one is known by its key."""
    shop.change("INSERT INTO orders (id, customer, ok) VALUES (1000000, 'the last one', true)")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.servers, "group.id": "mark"})
    places = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in places])
    until(
        lambda: any(b'"the last one"' in (each.value() or b"") for each in consumer.consume(1000, 1)),
        "the last change, from Debezium",
    )
    consumer.close()


def test_a_live_table_has_the_rows_of_the_database_whatever_is_killed(
    tmp_path_factory: pytest.TempPathFactory, broker: Broker, topics: Any, server: ServerProcess
) -> None:
    """Inserts, updates with and without large values, deletes, changes of keys, a new column; kills of `forebay
    ingest`, the server and Kafka Connect, which then sends events again."""
    folder = tmp_path_factory.mktemp("source")
    chance = random.Random(7)
    topic = topics.create("shop.public.orders", 3)
    with postgresql() as database, contextlib.closing(Shop(database, seed=11)) as shop:
        for key in range(0, 400, 3):
            shop.change(INSERT, id=key, customer="first", amount=1.25, ok=True, raw=b"\0\xff", doc=None)
        with Debezium(folder / "connect", broker.servers, database, {"table.include.list": "public.orders"}) as source:
            job = ingesting(
                server, broker, "fluss.orders", topic, "--create", "--new-columns", "add", "--linger", "0.1"
            )
            with shop:
                job.killed(4, chance)
                source.program.end()
                source.start()
                job.killed(2, chance)
                running = job.start()
                job.writes_to(server, "fluss.orders", running)
                server.kill()
                time.sleep(1)
                server.start(keep_ports=True)
                job.writes_to(server, "fluss.orders", running)
                job.kill(running)
            shop.change("ALTER TABLE orders ADD COLUMN note text")
            shop.change("UPDATE orders SET note = 'n' || id WHERE id < 50")
            job.killed(2, chance)
            mark_arrives(shop, topic, broker)
        job.to_the_end()
        names = names_of(server, "fluss.orders")
        assert names == [*COLUMNS, "note"]
        assert rows_of(server, "fluss.orders") == shop.rows(names)
        assert shop.changes > 500
        described = {str(c) for c in described_columns(server, "fluss.orders")}
        assert described == {f"{name} {text}" for name, text in {**COLUMNS, "note": "STRING"}.items()}


@pytest.mark.spark
def test_spark_streams_the_changes_of_the_database_into_a_live_table_whatever_is_killed(
    tmp_path: Path, broker: Broker, topics: Any, server: ServerProcess
) -> None:
    topic = topics.create("spark.public.orders", 2)
    columns = {name: text for name, text in COLUMNS.items() if name != "seen"}
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.orders", columns, primary_key="id", buckets=2)
    try:
        jars = [str(jar) for jar in spark_kafka_jars()]
    except ExamUnavailable as reason:
        pytest.skip(f"no Kafka source of Spark here: {reason}")
    schema = ", ".join(
        f"{name} {text.replace('TIMESTAMP(6)', 'TIMESTAMP_NTZ').replace('BYTES', 'BINARY')}"
        for name, text in columns.items()
    )
    places = (server.bootstrap_servers, broker.servers, topic, "fluss.orders", schema, str(tmp_path / "checkpoint"))
    job, chance = Job("tests.ingest.spark_driver", tmp_path / "spark.log", *places, *jars), random.Random(5)
    with postgresql() as database, contextlib.closing(Shop(database, seed=13)) as shop:
        shop.change("ALTER TABLE orders REPLICA IDENTITY FULL")  # else large values are missing from some events
        settings = {"table.include.list": "public.orders", "topic.prefix": "spark", "slot.name": "spark"}
        with Debezium(tmp_path / "connect", broker.servers, database, settings):
            with shop:
                for _ in range(3):
                    running = job.start()
                    job.writes_to(server, "fluss.orders", running)
                    time.sleep(chance.uniform(0, 10))
                    job.kill(running)
                running = job.start()
                job.writes_to(server, "fluss.orders", running)
                server.kill()
                server.start(keep_ports=True)
                job.writes_to(server, "fluss.orders", running)
                job.kill(running)
            mark_arrives(shop, topic, broker)
        job.to_the_end("--up-to-now")
        with forebay.connect(server.bootstrap_servers) as connection:
            found = connection.admin.transactions()
        assert any(each.version > 3 for each in found), found  # kills came between several micro-batches
        assert rows_of(server, "fluss.orders") == shop.rows(list(columns))


def described_columns(server: ServerProcess, table: str) -> list[str]:
    with forebay.connect(server.bootstrap_servers) as connection:
        return [f"{column.name} {column.data_type}" for column in connection.table(table).schema.columns]


# ---- exactly once ---------------------------------------------------------------------------------------------------


def test_each_message_is_in_a_log_table_once_whatever_is_killed(
    broker: Broker, topics: Any, server: ServerProcess
) -> None:
    topic, chance = topics.create("clicks", 3), random.Random(3)
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.clicks", {"n": "BIGINT", "page": "STRING"})
    more = ("--kafka-format", "json", "--linger", "0.05", "--batch-rows", "500")
    job = ingesting(server, broker, "fluss.clicks", topic, *more)
    count = 0

    def send(number: int) -> None:
        nonlocal count
        found = [(n % 3, None, json.dumps({"n": n, "page": f"/{n}"}).encode()) for n in range(count, count + number)]
        topics.send(topic, found)
        count += number

    for round_ in range(10):
        send(5_000)
        if round_ == 5:
            server.kill()
            server.start(keep_ports=True)
        job.killed(1, chance)
    send(100)
    job.to_the_end()
    with forebay.connect(server.bootstrap_servers) as connection:
        found = connection.table("fluss.clicks").scan().to_arrow()
        committed = connection.admin.committed_version("kafka/ingest/clicks")
    assert committed is not None
    assert committed > 20  # kills came between many transactions
    assert sorted(found.column("n").to_pylist()) == list(range(count))


def test_two_processes_with_one_job_do_not_double_messages(broker: Broker, topics: Any, server: ServerProcess) -> None:
    topic = topics.create("twice", 2)
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.twice", {"n": "BIGINT"})
    more = ("--kafka-format", "json", "--batch-rows", "50", "--linger", "0.01")
    job = ingesting(server, broker, "fluss.twice", topic, *more)
    topics.send(topic, [(n % 2, None, b'{"n": %d}' % n) for n in range(20_000)])
    running = [job.start("--until-end") for _ in range(3)]
    codes = sorted(process.wait(300) for process in running)
    while codes != [0] and 0 not in codes:  # each may have stopped because of another one
        codes = [job.start("--until-end").wait(300)]
    with forebay.connect(server.bootstrap_servers) as connection:
        found = connection.table("fluss.twice").scan().to_arrow()
    assert sorted(found.column("n").to_pylist()) == list(range(20_000))


# ---- what does not fit ----------------------------------------------------------------------------------------------


def test_wrong_messages_end_the_job_or_go_to_a_table_of_their_own(
    broker: Broker, topics: Any, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topics.create("mixed")
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.mixed", {"id": "BIGINT", "v": "INT"}, primary_key="id")
    right = [b'{"id": 1, "v": 1}', b'{"id": 2, "v": 2}', b'{"id": 1, "v": 3}']
    wrong = [b"no json", b'{"id": 3, "v": "four"}', b"[]", b'{"v": 1}']
    topics.send(topic, [(0, None, value) for value in [*right, *wrong]])
    topics.send(topic, [(0, b'{"id": 2}', None)])
    assert ingest(server, broker, "fluss.mixed", topic, "--kafka-format", "json") == 1
    said = capsys.readouterr().err
    assert "message 3 of partition 0 of topic mixed: its value is not JSON" in said
    assert "--wrong TABLE" in said
    assert rows_of_mixed(server) == []  # nothing of the transaction
    assert ingest(server, broker, "fluss.mixed", topic, "--kafka-format", "json", "--wrong", "fluss.wrong") == 0
    assert rows_of_mixed(server) == [{"id": 1, "v": 3}]
    with forebay.connect(server.bootstrap_servers) as connection:
        found = connection.table("fluss.wrong").scan().to_arrow().to_pylist()
    assert sorted(row["message_value"] for row in found) == sorted(wrong)
    assert {row["message_offset"] for row in found} == {3, 4, 5, 6}
    topics.send(topic, [(0, None, b'{"id": 5, "v": 5, "w": 1}')])
    assert ingest(server, broker, "fluss.mixed", topic, "--kafka-format", "json") == 1
    assert "have the column 'w', which table fluss.mixed lacks" in capsys.readouterr().err
    assert ingest(server, broker, "fluss.mixed", topic, "--kafka-format", "json", "--new-columns", "ignore") == 0
    assert rows_of_mixed(server) == [{"id": 1, "v": 3}, {"id": 5, "v": 5}]


def rows_of_mixed(server: ServerProcess) -> list[dict[str, Any]]:
    with forebay.connect(server.bootstrap_servers) as connection:
        return connection.table("fluss.mixed").scan().to_arrow().sort_by("id").to_pylist()


def test_messages_that_kafka_has_deleted_before_they_were_read_are_an_error(
    broker: Broker, topics: Any, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topics.create("short")
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.short", {"n": "BIGINT"})
    topics.send(topic, [(0, None, b'{"n": %d}' % n) for n in range(10)])
    assert ingest(server, broker, "fluss.short", topic, "--kafka-format", "json") == 0
    topics.send(topic, [(0, None, b'{"n": %d}' % n) for n in range(10, 20)])
    topics.delete_before(topic, 0, 15)
    assert ingest(server, broker, "fluss.short", topic, "--kafka-format", "json") == 1
    assert "partition 0 of topic short does not have offset 10 any more" in capsys.readouterr().err
    assert ingest(server, broker, "fluss.short", "nowhere") == 1
    assert "has no topic nowhere" in capsys.readouterr().err


def test_partitions_that_are_added_to_a_topic_are_read_from_their_beginning(
    broker: Broker, topics: Any, server: ServerProcess
) -> None:
    topic = topics.create("growing")
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.growing", {"n": "BIGINT"})
        topics.send(topic, [(0, None, b'{"n": 1}')])
        arguments = ("--kafka-format", "json", "--start", "latest")
        assert ingest(server, broker, "fluss.growing", topic, *arguments) == 0
        assert connection.table("fluss.growing").scan().count() == 0
        topics.grow(topic, 2)
        topics.send(topic, [(0, None, b'{"n": 2}'), (1, None, b'{"n": 3}')])
        assert ingest(server, broker, "fluss.growing", topic, *arguments) == 0
        found = connection.table("fluss.growing").scan().to_arrow()
        assert sorted(found.column("n").to_pylist()) == [2, 3]
