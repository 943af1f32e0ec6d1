"""Logs that executors read without Python workers: what they read, what is left to Python, and servers that lie."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
import forebay.spark
from forebay.client.connection import Connection
from forebay.server.embedded import EmbeddedServer
from forebay.spark.reading import direct
from tests.every_run import every_run
from tests.spark.columnar_rows import COLUMNS, both, row_of
from tests.spark.liars import LIES
from tests.spark.plans import Sql, plan_of
from tests.spark.releases import SPARK
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark


@pytest.mark.one_in(3)
@pytest.mark.parametrize("compression", ["none", "lz4_frame", "zstd"])
def test_all_compressions_are_read(spark: Any, connection: Connection, database: str, compression: str) -> None:
    options = {"table.log.arrow.compression.type": compression}
    table = connection.create_table(f"{database}.t", COLUMNS, buckets=2, options=options)
    for start in range(0, 600, 200):
        table.append([row_of(i) for i in range(start, start + 200)])
    found = both(spark, f"SELECT * FROM forebay.{database}.t ORDER BY id", direct=True)
    assert [row[0] for row in found] == list(range(600))
    both(spark, f"SELECT part, id, text, flag FROM forebay.{database}.t ORDER BY id", direct=True)


def test_timestamps_of_all_digits_are_those_that_python_reads(
    spark: Any, connection: Connection, database: str
) -> None:
    kinds = [(kind, digits) for kind in ("TIMESTAMP", "TIMESTAMP_LTZ") for digits in (0, 3, 6, 9)]
    columns = {f"{kind.lower()}_{digits}": f"{kind}({digits})" for kind, digits in kinds}
    table = connection.create_table(f"{database}.t", {"id": "INT", **columns})
    units = {0: "s", 3: "ms", 6: "us", 9: "ns"}
    base = [-(10**9) - 1, -1, 0, 1, 1_700_000_000]
    arrays = [pa.array(range(len(base)), pa.int32())]
    for name in columns:
        digits = int(name[-1])
        values = [value * 10**digits + (value % 10**digits) for value in base[:-1]] + [None]
        arrays.append(pa.array(values, pa.timestamp(units[digits], "UTC" if "ltz" in name else None)))
    table.append(pa.table(arrays, names=["id", *columns]))
    both(spark, f"SELECT * FROM forebay.{database}.t ORDER BY id", direct=True)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        pytest.param(
            "TIME(3)",
            r"column 'x' is TIME\(3\)",
            marks=pytest.mark.skipif(SPARK < (4, 1), reason="Spark has TIME from 4.1 on"),
        ),
        ("BINARY(3)", r"column 'x' is BINARY\(3\)"),
        ("ARRAY<TIMESTAMP(3)>", r"column 'x' is ARRAY<TIMESTAMP\(3\)>"),
    ],
)
def test_columns_that_java_cannot_read_are_left_to_python(
    spark: Any, connection: Connection, database: str, declared: str, reason: str
) -> None:
    connection.create_table(f"{database}.t", {"id": "INT", "x": declared}).append([{"id": 1}])
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        whole, narrow = (spark.sql(f"SELECT {what} FROM forebay.{database}.t") for what in ("*", "id"))
        assert re.search(f"logs by Python: {reason}", plan_of(whole))
        assert "logs without Python" in plan_of(narrow)
        assert [tuple(row) for row in whole.collect()] == [(1, None)]
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")


def test_what_is_said_of_records_is_left_to_python(spark: Any, connection: Connection, database: str) -> None:
    make_table(connection, f"{database}.t").append(rows(0, 10))
    name = f"forebay.{database}.t"
    assert "logs by Python: metadata columns (offset)" in plan_of(spark.sql(f"SELECT id, _log_offset FROM {name}"))
    indexed = {"table.log.format": "indexed"}
    connection.create_table(f"{database}.i", {"id": "INT"}, options=indexed).append([{"id": 1}])
    frame = spark.table(f"forebay.{database}.i")
    assert "logs by Python: the log's format is" in plan_of(frame)
    assert frame.count() == 1


def test_batches_of_older_schemas_have_nulls(spark: Any, connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 1000))
    spark.sql(f"ALTER TABLE forebay.{database}.t ADD COLUMN extra STRING")
    table = connection.table(f"{database}.t")
    table.append([{"id": i, "extra": f"e{i}"} for i in range(1000, 1100)])
    found = both(spark, f"SELECT * FROM forebay.{database}.t ORDER BY id", direct=True)
    assert found[999:1001] == [(999, "n999", 499.5, None), (1000, None, None, "e1000")]
    assert both(spark, f"SELECT extra, id FROM forebay.{database}.t WHERE extra IS NOT NULL ORDER BY id", direct=True)


def test_tasks_begin_and_end_in_the_middle_of_batches(sql: Sql, connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", buckets=2, options={"table.statistics.columns": "*"})
    for start in range(0, 10_000, 1000):
        table.append(rows(start, start + 1000))
    assert sql("SELECT count(*) FROM {db}.t") == [(10_000,)]
    for most in (333, 1000, 100_000):
        where = f"{{db}}.t WITH ('scan.maxRecordsPerPartition' = '{most}')"
        assert sql(f"SELECT count(id), sum(id), max(name) FROM {where}") == [(10_000, 49_995_000, "n9999")]
        assert sql(f"SELECT sum(id), min(name) FROM {where} WHERE id BETWEEN 4990 AND 5009") == [(99_990, "n4990")]
    assert len(sql("SELECT name FROM {db}.t LIMIT 1500")) == 1500


def test_partitions_are_read(sql: Sql, spark: Any, connection: Connection, database: str) -> None:
    sql("CREATE TABLE {db}.t (id INT, day STRING) PARTITIONED BY (day) TBLPROPERTIES ('bucket.num' = '2')")
    sql("INSERT INTO {db}.t SELECT id, 'd' || id % 3 FROM range(300)")
    query = f"SELECT day, count(id), sum(id) FROM forebay.{database}.t WHERE day > 'd0' GROUP BY day ORDER BY day"
    assert both(spark, query, direct=True) == [("d1", 100, 14_950), ("d2", 100, 15_050)]


@pytest.mark.slow
def test_servers_that_ask_for_a_password_get_it(spark: Any, tmp_path: Path) -> None:
    settings = {"security.sasl.plain.credentials": "me:secret"}
    with EmbeddedServer(tmp_path / "data", sasl=True, settings=settings) as server:
        address = server.bootstrap_servers
        with forebay.connect(address, user="me", password="secret") as conn:
            conn.create_database("db")
            make_table(conn, "db.t").append(rows(0, 1000))
        session = spark.newSession()
        forebay.spark.attach(session, "safe", bootstrap_servers=address, user="me", password="secret")
        frame = session.sql("SELECT count(id), sum(id) FROM safe.db.t")
        assert "logs without Python" in plan_of(frame)
        assert "secret" not in plan_of(frame)
        assert [tuple(row) for row in frame.collect()] == [(1000, 499_500)]


# ---- servers that lie -----------------------------------------------------------------------------------------------


@pytest.fixture
def log(connection: Connection, database: str) -> str:
    """A table of 4000 rows in 8 batches of a bucket."""
    table = make_table(connection, f"{database}.t", buckets=1)
    for start in range(0, 4000, 500):
        table.append(rows(start, start + 500))
    return f"forebay.{database}.t"


EVERYTHING = (4000, 7_998_000, 4000)


def everything(spark: Any, log: str) -> tuple[Any, ...]:
    """What is in `log`, read by two tasks that begin in the middle."""
    where = f"{log} WITH ('scan.maxRecordsPerPartition' = '2222')"
    return tuple(spark.sql(f"SELECT count(id), sum(id), count(DISTINCT name, amount) FROM {where}").collect()[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lied", every_run(LIES, lambda name: name in ("closed", "half", "no message")))
def test_what_is_no_answer_is_left_to_python(spark: Any, log: str, lie: Any, lied: str) -> None:
    with lie(LIES[lied]) as liar:
        assert everything(spark, log) == EVERYTHING
    assert liar.answers > 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("most", every_run((1, 2, 3), lambda most: most == 2))
def test_a_server_that_goes_away_part_of_the_way_loses_and_repeats_no_row(
    spark: Any, log: str, lie: Any, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Answers have one batch or two; the JVM hands out the rows of some before Python reads the rest."""
    monkeypatch.setattr(direct, "_ANSWER_BYTES", 8000)
    answers: list[int] = []

    def answer_some(answer: bytearray) -> bytearray | None:
        answers.append(len(answer))
        return answer if len(answers) <= most else None

    with lie(answer_some):
        assert everything(spark, log) == EVERYTHING
    assert len(answers) > most


@pytest.mark.parametrize("seed", every_run(range(20), lambda seed: seed == 0))
def test_damaged_answers_never_give_wrong_rows_nor_end_the_jvm(spark: Any, log: str, lie: Any, seed: int) -> None:
    dice = random.Random(seed)

    def damage(answer: bytearray) -> bytearray:
        for _ in range(dice.randint(1, 3)):
            within = len(answer) if dice.random() < 0.5 else min(len(answer), 500)
            at = dice.randrange(5, within)
            if dice.random() < 0.5:
                answer[at] = dice.randrange(256)
            else:
                answer[at : at + 4] = struct.pack("<i", dice.choice([0, -1, 1, 2**31 - 1, -(2**31), 500, 2**20]))
        return answer

    with lie(damage) as liar:
        for _ in range(4):
            assert everything(spark, log) == EVERYTHING
    assert liar.answers > 4
