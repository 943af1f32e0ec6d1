"""Buckets of primary-key tables that executors read without Python workers, as a table snapshot has them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
import forebay.spark
from forebay.client.connection import Connection
from forebay.protocol.api import ApiKey, NegotiatedVersions
from forebay.server.embedded import EmbeddedServer
from forebay.spark.reading import direct
from tests.every_run import every_run
from tests.spark.columnar_rows import both
from tests.spark.liars import LIES
from tests.spark.plans import Sql, plan_of
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark

EVERYTHING = (4000, 7_998_000, 4000)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of some 100 rows."""
    monkeypatch.setattr(direct, "_PAGE_BYTES", 4 << 10)


@pytest.fixture
def table(connection: Connection, database: str, small_pages: None) -> str:
    """A table of 4000 rows in 2 buckets, which tasks read in many pages."""
    make_table(connection, f"{database}.t", ["id"], buckets=2).upsert(rows(0, 4000))
    return f"forebay.{database}.t"


def everything(spark: Any, table: str) -> tuple[Any, ...]:
    """What is in `table`."""
    frame = spark.sql(f"SELECT count(id), sum(id), count(DISTINCT name, amount) FROM {table}")
    assert "buckets without Python" in plan_of(frame)
    return tuple(frame.collect()[0])


@pytest.mark.parametrize("engine", ["hlog", "lmdb"])
def test_rows_are_read_page_by_page(
    spark: Any, connection: Connection, database: str, small_pages: None, engine: str
) -> None:
    make_table(connection, f"{database}.t", ["id"], buckets=3, options={"forebay.kv.engine": engine}).upsert(
        rows(0, 2000)
    )
    name = f"forebay.{database}.t"
    found = both(spark, f"SELECT * FROM {name} ORDER BY id", direct=True)
    assert [row[0] for row in found] == list(range(2000))
    for asked in (
        "SELECT amount, id FROM {} ORDER BY id",
        "SELECT sum(id), max(name) FROM {} WHERE id BETWEEN 700 AND 1700",
        "SELECT id FROM {} WHERE id > 5000",
        "SELECT count(name) FROM {} WHERE amount IS NULL OR name LIKE '%7'",
    ):
        both(spark, asked.format(name), direct=True)
    for compression in ("lz4", "zstd"):
        packed = f"{name} WITH ('client.scanner.kv.compression' = '{compression}')"
        assert both(spark, f"SELECT * FROM {packed} ORDER BY id", direct=True) == found
    frame = spark.sql(f"SELECT count(*) FROM {name}")
    assert "buckets without Python" in plan_of(frame)
    assert frame.collect()[0][0] == 2000


def test_limits_are_met(spark: Any, table: str) -> None:
    for limit in (0, 1, 7, 1500, 5000):
        frame = spark.sql(f"SELECT id, name FROM {table} LIMIT {limit}")
        found = [tuple(row) for row in frame.collect()]
        assert len(found) == min(limit, 4000)
        assert len(set(found)) == len(found)
        assert all(name == f"n{i}" for i, name in found)


def test_rows_of_older_schemas_have_nulls(spark: Any, connection: Connection, database: str) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 1000))
    old = spark.sql(f"SELECT * FROM forebay.{database}.t ORDER BY id")
    assert len(old.collect()) == 1000
    spark.sql(f"ALTER TABLE forebay.{database}.t ADD COLUMN extra STRING")
    changed = [{"id": i, "extra": f"e{i}"} for i in range(990, 1100)]
    connection.table(f"{database}.t").upsert(changed, missing="null")
    found = both(spark, f"SELECT * FROM forebay.{database}.t ORDER BY id", direct=True)
    assert found[989:991] == [(989, "n989", 494.5, None), (990, None, None, "e990")]
    assert (
        len(both(spark, f"SELECT extra FROM forebay.{database}.t WHERE extra IS NOT NULL ORDER BY 1", direct=True))
        == 110
    )


def test_partitions_are_read(sql: Sql, spark: Any, database: str) -> None:
    sql(
        "CREATE TABLE {db}.t (id INT NOT NULL, day STRING NOT NULL) PARTITIONED BY (day) "
        "TBLPROPERTIES ('primary.key' = 'id,day', 'bucket.num' = '2')"
    )
    sql("INSERT INTO {db}.t SELECT id, 'd' || id % 3 FROM range(300)")
    query = f"SELECT day, count(id), sum(id) FROM forebay.{database}.t WHERE day > 'd0' GROUP BY day ORDER BY day"
    assert both(spark, query, direct=True) == [("d1", 100, 14_950), ("d2", 100, 15_050)]


def test_a_query_sees_one_instant_while_others_write(
    spark: Any,
    connection: Connection,
    database: str,
    lie: Any,
    small_pages: None,
) -> None:
    """Between any two pages another writer changes all rows, adds some and deletes some."""
    written = make_table(connection, f"{database}.t", ["id"], buckets=2)
    written.upsert([{"id": i, "name": "before", "amount": 0.0} for i in range(2000)])
    turn = 0

    def write(answer: bytearray) -> bytearray:
        nonlocal turn
        turn += 1
        if turn % 2 == 0:
            written.upsert([{"id": i, "name": f"turn {turn}", "amount": 1.0} for i in range(turn, 2000 + turn)])
            written.delete([{"id": i} for i in range(turn)])
        return answer

    with lie(write):
        frame = spark.sql(f"SELECT count(id), sum(id), min(name), max(name) FROM forebay.{database}.t")
        assert tuple(frame.collect()[0]) == (2000, 1_999_000, "before", "before")
    assert turn > 8


@pytest.mark.slow
def test_servers_that_ask_for_a_password_get_it(spark: Any, tmp_path: Path) -> None:
    settings = {"security.sasl.plain.credentials": "me:secret"}
    with EmbeddedServer(tmp_path / "data", sasl=True, settings=settings) as server:
        address = server.bootstrap_servers
        with forebay.connect(address, user="me", password="secret") as conn:
            conn.create_database("db")
            make_table(conn, "db.t", ["id"]).upsert(rows(0, 1000))
        session = spark.newSession()
        forebay.spark.attach(session, "safe", bootstrap_servers=address, user="me", password="secret")
        frame = session.sql("SELECT count(id), sum(id) FROM safe.db.t")
        assert "buckets without Python" in plan_of(frame)
        assert "secret" not in plan_of(frame)
        assert [tuple(row) for row in frame.collect()] == [(1000, 499_500)]


# ---- what is left to Python -----------------------------------------------------------------------------------------


def test_servers_that_do_not_scan_in_arrow_are_read_by_python(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NegotiatedVersions, "scans_in_arrow", False)
    frame = spark.sql(f"SELECT count(id), sum(id) FROM {table}")
    assert "buckets by Python: the cluster does not scan in Arrow" in plan_of(frame)
    assert tuple(frame.collect()[0]) == EVERYTHING[:2]


def test_a_cluster_without_table_snapshots_is_read_by_python(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = NegotiatedVersions.offers
    monkeypatch.setattr(
        NegotiatedVersions, "offers", lambda self, key: key < ApiKey.OPEN_TABLE_SNAPSHOT and offers(self, key)
    )
    monkeypatch.setattr(NegotiatedVersions, "scans_in_arrow", False)
    frame = spark.sql(f"SELECT count(id), sum(id) FROM {table}")
    assert "buckets by Python: the cluster does not scan in Arrow" in plan_of(frame)
    assert tuple(frame.collect()[0]) == EVERYTHING[:2]


def test_what_java_cannot_read_is_left_to_python(spark: Any, connection: Connection, database: str) -> None:
    columns = {"id": "INT NOT NULL", "x": "BINARY(3)"}
    connection.create_table(f"{database}.t", columns, primary_key="id").upsert([{"id": 1, "x": b"abc"}])
    name = f"forebay.{database}.t"
    assert "buckets by Python: column 'x' is BINARY(3)" in plan_of(spark.table(name))
    assert "buckets by Python: metadata columns (bucket)" in plan_of(spark.sql(f"SELECT id, __bucket FROM {name}"))
    assert "buckets by Python: read.direct is false" in plan_of(spark.read.option("read.direct", "false").table(name))
    assert "Python" not in plan_of(spark.sql(f"SELECT * FROM {name} WHERE id = 1"))
    for query in (f"SELECT * FROM {name}", f"SELECT * FROM {name} WHERE id = 1"):
        assert [tuple(row) for row in spark.sql(query).collect()] == [(1, bytearray(b"abc"))]
    assert [tuple(row) for row in spark.sql(f"SELECT id, __bucket FROM {name}").collect()] == [(1, 0)]


# ---- servers that lie -----------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lied", every_run(LIES, lambda name: name in ("half", "no message")))
def test_what_is_no_answer_is_left_to_python(spark: Any, table: str, lie: Any, lied: str) -> None:
    with lie(LIES[lied]) as liar:
        assert everything(spark, table) == EVERYTHING
    assert liar.answers > 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("most", every_run((1, 2, 7), lambda most: most == 2))
def test_a_server_that_goes_away_part_of_the_way_loses_and_repeats_no_row(
    spark: Any,
    table: str,
    lie: Any,
    most: int,
) -> None:
    answers: list[int] = []

    def answer_some(answer: bytearray) -> bytearray | None:
        answers.append(len(answer))
        return answer if len(answers) <= most else None

    with lie(answer_some):
        assert everything(spark, table) == EVERYTHING
    assert len(answers) > most


@pytest.mark.parametrize("seed", every_run(range(20), lambda seed: seed == 0))
def test_damaged_answers_never_end_the_jvm(
    spark: Any,
    table: str,
    lie: Any,
    seed: int,
) -> None:
    """Values have no checksum, nor have those of other scans and lookups; so what comes may be wrong, but is rows."""
    dice = random.Random(seed)

    def damage(answer: bytearray) -> bytearray:
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(5, len(answer) if dice.random() < 0.5 else min(len(answer), 500))
            if dice.random() < 0.5:
                answer[at] = dice.randrange(256)
            else:
                answer[at : at + 4] = struct.pack("<i", dice.choice([0, -1, 1, 2**31 - 1, -(2**31), 500, 2**20]))
        return answer

    with lie(damage) as liar:
        for _ in range(3):
            everything(spark, table)
    assert liar.answers > 3
    assert everything(spark, table) == EVERYTHING


def test_pages_that_lead_nowhere_are_left_to_python(spark: Any, table: str, lie: Any) -> None:
    """A page without its position, and one without its number of rows."""

    def forget(tag: int) -> Callable[[bytearray], bytearray]:
        return lambda answer: bytearray(answer.replace(_varint(tag), _varint(tag + 800), 1))

    for field, kind in ((20000, 2), (20001, 0)):
        with lie(forget(field << 3 | kind)) as liar:
            assert everything(spark, table) == EVERYTHING
        assert liar.answers > 0


def _varint(tag: int) -> bytes:
    return bytes([tag & 127 | 128, tag >> 7 & 127 | 128, tag >> 14])


def test_a_snapshot_that_has_ended_is_made_again_from_the_changelog(
    spark: Any,
    table: str,
    lie: Any,
    server: EmbeddedServer,
) -> None:
    def end(answer: bytearray) -> None:
        """No page comes, and the workers, who ask for it, too, find no snapshot."""
        snapshots = server.server.context.table_snapshots
        for handle in snapshots.describe():
            snapshots.release(handle.snapshot_id)

    with lie(end) as liar:
        assert everything(spark, table) == EVERYTHING
    assert liar.answers > 0
