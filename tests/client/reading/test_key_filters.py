"""Filters that fix keys: how many requests find the rows, and of which buckets; and that they are the right rows."""

from __future__ import annotations

import datetime as dt
import pickle
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from forebay import col
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.reading import key_cursor, key_filter
from forebay.client.table import Table
from forebay.protocol.api import ApiKey
from tests.client.conftest import MakeTable, own_server

pytestmark = own_server

ROWS = 400


class Sent(Counter[str]):
    """The requests that were sent, by their API."""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    counted, send = Sent(), ClusterClient.send

    def counting(self: ClusterClient, node: Any, key: ApiKey, *rest: Any, **more: Any) -> Any:
        counted[key.name] += 1
        return send(self, node, key, *rest, **more)

    monkeypatch.setattr(ClusterClient, "send", counting)
    return counted


@pytest.fixture
def orders(make_table: MakeTable) -> Table:
    table = make_table({"id": "BIGINT NOT NULL", "item": "STRING", "x": "DOUBLE"}, primary_key="id", buckets=16)
    table.upsert([{"id": i, "item": f"item {i}", "x": i / 2} for i in range(ROWS)])
    return table


def ids(scan: Any) -> list[int]:
    return sorted(scan.to_arrow()["id"].to_pylist())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 7", [7]),
        ("7 = id", [7]),
        ("id IN (1, 2, 3) AND x > 0.6", [2, 3]),
        ("id = 7 OR id = 9", [7, 9]),
        ("id IN (1, NULL)", [1]),
        ("id IN (5, 5, 5, 1000000)", [5]),
        ("id = 7 AND item = 'item 8'", []),
        ("id = 3.0", [3]),
        ("id IN (1, 2) AND id IN (2, 3)", [2]),
        ("(id = 1 OR id = 2) AND (id = 2 OR item = 'item 1')", [1, 2]),
    ],
)
def test_a_filter_on_the_whole_key_is_one_lookup(orders: Table, sent: Sent, text: str, expected: list[int]) -> None:
    assert ids(orders.scan(filter=text)) == expected
    assert sent == {"LOOKUP": 1}


@pytest.mark.parametrize(
    "text", ["id = 7 AND id = 8", "id = NULL", "id = 1.5", "id = 3 AND id > 5", "id IN (NULL)", "id = 5 AND id <> 5"]
)
def test_a_filter_that_no_key_matches_sends_no_request(orders: Table, sent: Sent, text: str) -> None:
    scan = orders.scan(filter=text)
    assert (scan.to_arrow().num_rows, scan.count(), scan.head().num_rows, list(scan.plan())) == (0, 0, 0, [])
    assert "nothing, as no row can match" in scan.explain()
    with scan.reader() as rows:
        assert rows.read_all().schema == scan.schema
    assert not sent


def test_count_head_and_plan_use_the_keys(orders: Table, sent: Sent) -> None:
    scan = orders.scan(filter="id IN (1, 2, 3)", columns=["item"])
    assert scan.count() == 3
    assert scan.head(2).num_rows == 2
    assert sent == {"LOOKUP": 2}
    parts = scan.plan()
    assert sorted(row for part in parts for row in scan.read_split(part).read_all()["item"].to_pylist()) == [
        "item 1",
        "item 2",
        "item 3",
    ]
    assert f"lookup of 3 keys in {len(parts)} of 16 buckets" in scan.explain()
    assert len(parts) < 4
    assert "SCAN_KV" not in sent


def test_what_fixes_no_key_scans_all_buckets(orders: Table, sent: Sent) -> None:
    for text in ("id <> 5", "id > 390", "id = 5 OR item = 'item 6'", "item = 'item 5'"):
        assert len(orders.scan(filter=text).plan()) == 16
        assert "chosen" not in orders.scan(filter=text).explain()
    assert ids(orders.scan(filter="id = 5 OR item = 'item 6'")) == [5, 6]


def test_a_reader_knows_the_offset_of_rows_that_were_looked_up(orders: Table, sent: Sent) -> None:
    with orders.scan(filter="id IN (7, 8)").reader() as rows:
        assert rows.read_all().num_rows == 2
        offsets, remaining = rows.log_offsets, rows.remaining  # type: ignore[attr-defined]
    assert "SCAN_KV" not in sent
    assert remaining == []
    assert set(offsets) == set(orders.scan(filter="id IN (7, 8)").plan())
    orders.upsert([{"id": 7, "item": "changed", "x": 0.0}])
    later = orders.changes(dict(offsets), "latest", filter="id IN (7, 8)").to_arrow()
    assert later["_change_type"].to_pylist() == ["update_before", "update_after"]


@pytest.mark.parametrize("with_position", [False, True])
def test_a_bucket_that_changes_during_lookups_is_scanned(
    orders: Table, sent: Sent, monkeypatch: pytest.MonkeyPatch, with_position: bool
) -> None:
    ask = key_cursor.Lookups.ask

    def changed_meanwhile(self: Any, *rest: Any) -> Any:
        found = ask(self, *rest)
        orders.upsert([{"id": 0, "item": "changed", "x": 0.0}])
        return found

    monkeypatch.setattr(key_cursor.Lookups, "ask", changed_meanwhile)
    wanted = range(2 if with_position else ROWS)  # more keys than a server reads of a bucket at once
    scan = orders.scan(filter=col("id").is_in(wanted))
    with scan.reader() if with_position else scan._rows() as rows:
        found = rows.read_all()
    assert sorted(found["id"].to_pylist()) == list(wanted)
    assert found.filter(pa.compute.equal(found["id"], 0))["item"].to_pylist() == ["changed"]
    assert sent["SCAN_KV"] == 1


def test_more_keys_than_are_looked_up_choose_buckets(
    orders: Table, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_filter, "KEYS_MAX", 2)
    assert ids(orders.scan(filter="id IN (1, 2, 3)")) == [1, 2, 3]
    assert sent["LOOKUP"] == 0


def test_partitions_and_keys_of_partitioned_tables(make_table: MakeTable, sent: Sent) -> None:
    table = make_table(
        {"id": "BIGINT NOT NULL", "day": "DATE NOT NULL", "v": "INT"},
        primary_key=["id", "day"],
        partition_keys="day",
        buckets=4,
    )
    days = [dt.date(2026, 1, 1 + i) for i in range(5)]
    table.upsert([{"id": i, "day": day, "v": i} for i in range(20) for day in days])
    sent.clear()

    def check(text: str, rows: int, how: str) -> None:
        assert table.scan(filter=text).count() == rows
        assert how in table.scan(filter=text).explain()

    check("id = 7", 5, "lookup of 5 keys in 5 of 20 buckets")
    check("id = 7 AND day = '2026-01-03'", 1, "lookup of 1 key in 1 of 20 buckets")
    check("id = 7 AND day >= '2026-01-04'", 2, "lookup of 2 keys in 2 of 20 buckets")
    check("(id = 7 AND day = '2026-01-01') OR (id = 8 AND day = '2026-01-02')", 2, "lookup of 2 keys")
    check("id = 7 AND day = '2030-01-01'", 0, "nothing, as no row can match")
    assert "SCAN_KV" not in sent
    check("day >= '2026-01-04'", 40, "8 of 20 buckets")
    assert table.scan(filter="id = 7", partitions=["2026-01-02"]).to_arrow()["day"].to_pylist() == [days[1]]
    assert (
        table.scan(filter="id = 7", buckets=[0]).count() + table.scan(filter="id = 7", buckets=[1, 2, 3]).count() == 5
    )


def test_a_part_of_the_key_chooses_buckets(make_table: MakeTable, sent: Sent) -> None:
    table = make_table(
        {"user": "STRING NOT NULL", "n": "INT NOT NULL", "v": "INT"},
        primary_key=["user", "n"],
        bucket_keys="user",
        buckets=16,
    )
    table.upsert([{"user": f"u{u}", "n": n, "v": n} for u in range(30) for n in range(3)])
    sent.clear()
    assert table.scan(filter="user = 'u3' AND v > 0").count() == 2
    assert sent == {"SCAN_KV": 1}
    assert "1 of 16 buckets" in table.scan(filter="user = 'u3'").explain()
    assert table.scan(filter="user IN ('u3', 'u4') AND n = 1").count() == 2
    assert sent["LOOKUP"] == 1


def test_the_bucket_key_of_a_log_chooses_buckets(make_table: MakeTable, sent: Sent) -> None:
    log = make_table({"user": "STRING", "v": "INT"}, bucket_keys="user", buckets=8)
    log.append([{"user": f"u{i % 10}", "v": i} for i in range(100)])
    sent.clear()
    assert log.scan(filter="user = 'u3'").count() == 10
    assert len(log.scan(filter="user = 'u3'").plan()) == 1
    assert "1 of 8 buckets" in log.scan(filter="user = 'u3'").explain()
    assert log.scan(filter="user IS NULL").count() == 0
    assert log.scan(filter="user = 'u3' AND user = 'u4'").count() == 0
    with log.scan(filter="user = 'u3'").reader() as rows:
        assert rows.read_all().num_rows == 10
        assert len(rows.log_offsets) == 1


def test_a_cluster_without_log_ends_scans_for_readers_with_a_position(
    orders: Table, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cursor, "knows_log_ends", lambda *_: False)
    assert ids(orders.scan(filter=col("id").is_in(range(ROWS)))) == list(range(ROWS))
    assert sent == {"LOOKUP": 1}
    with orders.scan(filter="id = 7").reader() as rows:
        assert rows.read_all().num_rows == 1
        assert len(rows.log_offsets) == 1
    assert sent == {"LOOKUP": 1, "SCAN_KV": 1}


def test_scans_with_key_filters_pickle(orders: Table) -> None:
    scan = pickle.loads(pickle.dumps(orders.scan(filter=col("id") == 7)))
    assert ids(scan) == [7]
