"""What scans did, in Spark's UI: as Spark's status store has it, from which the SQL tab and its REST API are made."""

from __future__ import annotations

import re
from typing import Any

import pytest

from forebay.client.connection import Connection
from forebay.spark.jvm import scan_metrics
from forebay.spark.reading import direct
from tests.spark.liars import LIES
from tests.spark.scan_metrics import shown
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark

REQUESTS, BYTES, WAIT = "requests to the servers", "bytes from the servers", "time waiting for the servers"
DIRECT, LEFT = "logs and buckets read without Python", "logs and buckets left to Python workers"
ROWS = "number of output rows"


def bytes_of(text: str) -> float:
    """The number of "1.5 KiB", or the sum in what Spark shows of several tasks."""
    number, unit = re.search(r"([\d.]+) ([KM]?i?B)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]


def test_buckets_that_executors_read(
    spark: Any, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(connection, f"{database}.t", ["id"], buckets=2).upsert(rows(0, 4000))
    found = shown(spark, f"SELECT * FROM forebay.{database}.t")
    assert (found[DIRECT], found[LEFT], found[ROWS], found[REQUESTS]) == (["2"], ["0"], ["4,000"], ["2"])
    assert 4000 * 16 < bytes_of(found[BYTES][0]) < 4000 * 40
    assert re.fullmatch(r"\d+ ms|\d+\.\d s", found[WAIT][0].partition(" (at most ")[0])
    monkeypatch.setattr(direct, "_PAGE_BYTES", 4 << 10)
    narrow = shown(spark, f"SELECT id FROM forebay.{database}.t")
    assert int(narrow[REQUESTS][0]) > 5
    assert bytes_of(narrow[BYTES][0]) < bytes_of(found[BYTES][0]) / 2
    empty = shown(spark, f"SELECT id FROM forebay.{database}.t WHERE id > 5000")
    assert (empty[DIRECT], empty[ROWS]) == (["2"], ["0"])


def test_logs_that_executors_read(spark: Any, connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", buckets=3)
    for start in range(0, 3000, 100):
        table.append(rows(start, start + 100))
    found = shown(spark, f"SELECT * FROM forebay.{database}.t")
    assert (found[DIRECT], found[LEFT], found[ROWS]) == (["3"], ["0"], ["3,000"])
    assert int(found[REQUESTS][0]) >= 3


def test_what_is_left_to_python_is_counted(spark: Any, connection: Connection, database: str, lie: Any) -> None:
    make_table(connection, f"{database}.t", ["id"], buckets=2).upsert(rows(0, 4000))
    with lie(LIES["no message"]):
        found = shown(spark, f"SELECT * FROM forebay.{database}.t")
    assert (found[DIRECT], found[LEFT], found[ROWS]) == (["0"], ["2"], ["4,000"])
    assert bytes_of(found["data returned from Python workers"][0]) > 4000 * 16
    by_python = shown(spark, f"SELECT id, _log_offset FROM forebay.{database}.`t$changelog`")
    assert by_python.get(DIRECT, ["0"]) == ["0"]
    assert by_python[ROWS] == ["4,000"]


def test_without_classes_of_ours_there_are_bytes(
    spark: Any, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 4000))
    monkeypatch.setattr(scan_metrics, "named_driver_class", lambda jvm, name: None)
    monkeypatch.setattr(scan_metrics, "_metrics", scan_metrics._metrics.__wrapped__)
    found = shown(spark, f"SELECT * FROM forebay.{database}.t")
    assert bytes_of(found[BYTES][0]) > 4000 * 16
    assert REQUESTS not in found
