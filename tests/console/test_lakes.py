"""Tiering and lake health of a console: what screens get, and what they may change."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound, Unavailable, UnsupportedOperation
from forebay.console import lakes
from forebay.console.session import Console
from forebay.lakes.iceberg_lake import IcebergLake
from forebay.paimon.catalog.catalog import Catalog
from forebay.protocol.api import ApiKey, NegotiatedVersions
from forebay.tiering.now import tier_table
from tests.console.lake_server import lake_console, rows, tiered_table
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with lake_console(tmp_path_factory.mktemp("lakes")) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(console: Console) -> None:
    """Answers of earlier tests are forgotten."""
    console._answers.clear()


def finished(console: Console, task_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        [task] = [task for task in console.tasks.all() if task.task_id == task_id]
        if task.is_over:
            return lakes.task_line(task)
        time.sleep(0.01)
    raise AssertionError("the task does not end")


@pytest.fixture
def empty_console(tmp_path: Path) -> Iterator[Console]:
    """A console of a server without tables of other tests."""
    with lake_console(tmp_path) as made:
        yield made


def test_tables_are_ordered_by_how_far_their_lakes_are_behind(empty_console: Console) -> None:
    console, conn = empty_console, empty_console.conn
    behind, up_to_date = tiered_table(conn, "fluss.behind"), tiered_table(conn, "fluss.fresh")
    tiered_table(conn, "fluss.unwritten")
    conn.create_table("fluss.no_lake", {"id": "BIGINT"}).append([{"id": 1}])
    up_to_date.upsert(rows(1, 2, 3))
    tier_table(conn, "fluss.fresh")
    behind.upsert(rows(*range(50)))
    found = lakes.tiering(console, limit=2)
    assert [item["table"] for item in found["items"]] == ["behind", "fresh"]
    assert (found["total"], found["next"], found["missing"]) == (3, "2", [])
    first, second = found["items"]
    assert (first["lag_records"], first["lake_snapshot"], first["state"], first["failures"]) == (
        50,
        None,
        "Scheduled",
        0,
    )
    assert first["lag_seconds"] > 0
    assert (second["lag_records"], second["lag_seconds"]) == (0, 0.0)
    assert found["summary"] == {
        "tables": 3, "tiering": 0, "waiting": 0, "failures": 0, "untiered": 50, "late": 0,
    }  # fmt: skip
    assert [item["table"] for item in lakes.tiering(console, sort="name", page_token="2", limit=2)["items"]] == [
        "unwritten"
    ]
    assert lakes.tiering(console, search="FRE")["total"] == 1
    with pytest.raises(InvalidRequest, match="sort='size' is none of behind, last, failures, name"):
        lakes.tiering(console, sort="size")


def test_a_cluster_that_tells_nothing_of_tiering_shows_its_lag(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered_table(console.conn, "fluss.foreign").upsert(rows(1, 2))
    monkeypatch.setattr(NegotiatedVersions, "offers", lambda self, key: key != ApiKey.DESCRIBE_SERVER)
    monkeypatch.setattr(lakes, "_all_tiering", _unsupported)
    found = lakes.tiering(console, search="foreign")
    [item] = found["items"]
    assert (item["lag_records"], item["state"], item["failures"], found["summary"]) == (2, None, None, None)
    assert found["missing"] == [lakes.NO_TIERING]


def _unsupported(_console: Console) -> Any:
    raise UnsupportedOperation("DESCRIBE_SERVER is not possible here")


def test_a_lake_table_has_files_by_size_level_and_partition(console: Console) -> None:
    catalog = console.warehouses["mine"]
    catalog.create_database("shop", ignore_if_exists=True)
    table = catalog.create_table(
        "shop.orders",
        pa.schema([("id", pa.int64()), ("day", pa.string())]),
        primary_key=["id", "day"],
        partition_keys="day",
        options={"bucket": "2", "write-only": "true"},
    )
    empty = lakes.lake(console, "shop", "orders", lake="mine")
    assert (empty["snapshot"], empty["files"], empty["partition_count"]) == (None, None, 0)
    assert lakes.lake_files(console, "shop", "orders", lake="mine")["items"] == []
    assert lakes.lake_compaction(console, "shop", "orders", lake="mine")["tasks"] == 0
    for i in range(3):
        table.upsert([{"id": n, "day": day} for n in range(40) for day in ("mon", "tue")[: 1 + i % 2]])
    console._answers.clear()
    found = lakes.lake(console, "shop", "orders", lake="mine")
    assert (found["format"], found["partition_keys"], found["partition_count"]) == ("paimon", ["day"], 2)
    assert found["snapshot"]["snapshot_id"] == "3"
    assert found["files"]["count"] == 8
    assert found["files"]["rows"] == 160
    assert sum(each["files"] for each in found["files"]["by_size"]) == 8
    assert sum(each["bytes"] for each in found["files"]["by_size"]) == found["files"]["bytes"]
    assert [(each["level"], each["files"]) for each in found["files"]["by_level"]] == [(0, 8)]
    assert [(each["partition"], each["buckets"], each["files"], each["rows"]) for each in found["partitions"]] == [
        ("day=mon", 2, 6, 120),
        ("day=tue", 2, 2, 40),
    ]
    assert lakes.lake_partitions(console, "shop", "orders", lake="mine", page_token="1")["items"] == [
        found["partitions"][1]
    ]

    seen = list[dict[str, Any]]()
    token = None
    while True:
        page = lakes.lake_files(console, "shop", "orders", lake="mine", sort="-size", page_token=token, limit=3)
        assert page["total"] == 8
        seen += page["items"]
        token = page["next"]
        if token is None:
            break
    assert [each["bytes"] for each in seen] == sorted((each["bytes"] for each in seen), reverse=True)
    assert len({each["path"] for each in seen}) == 8
    assert all(each["path"].startswith(f"{each['partition']}/bucket-{each['bucket']}/data-") for each in seen)
    assert all(each["created"] is not None for each in seen)
    assert lakes.lake_files(console, "shop", "orders", lake="mine", partition="day=tue")["total"] == 2
    with pytest.raises(InvalidRequest, match="no files in a partition 'day=wed'"):
        lakes.lake_files(console, "shop", "orders", lake="mine", partition="day=wed")
    with pytest.raises(InvalidRequest, match="cannot be sorted by 'colour'"):
        lakes.lake_files(console, "shop", "orders", lake="mine", sort="colour")

    plan = lakes.lake_compaction(console, "shop", "orders", lake="mine", full=True)
    assert (plan["tasks"], plan["files"], plan["rows"]) == (4, 8, 160)
    done = finished(console, lakes.compact(console, "shop", "orders", lake="mine", full=True)["task"]["task_id"])
    assert (done["state"], done["result"]) == ("done", {"snapshot_id": "4"})
    compacted = lakes.lake(console, "shop", "orders", lake="mine")
    assert (compacted["files"]["count"], compacted["files"]["rows"]) == (4, 80)
    history = lakes.lake_snapshots(console, "shop", "orders", lake="mine", limit=3)
    assert [(each["snapshot_id"], each["kind"]) for each in history["items"]] == [
        ("4", "COMPACT"), ("3", "APPEND"), ("2", "APPEND"),
    ]  # fmt: skip
    assert (history["total"], history["next"]) == (4, "3")


def test_tags_are_created_shown_and_deleted(console: Console) -> None:
    catalog = console.warehouses["mine"]
    catalog.create_database("shop", ignore_if_exists=True)
    table = catalog.create_table("shop.tagged", {"id": "BIGINT"}, options={"bucket": "-1"})
    table.append([{"id": 1}])
    table.append([{"id": 2}])
    where = ("shop", "tagged")
    lakes.create_tag(console, *where, lake="mine", name=" first ", snapshot_id="1")
    lakes.create_tag(console, *where, lake="mine", name="now", retain="30 d")
    found = lakes.lake_tags(console, *where, lake="mine")
    assert [(t["name"], t["snapshot_id"], t["rows"], t["retained_seconds"]) for t in found["items"]] == [
        ("first", "1", 1, None),
        ("now", "2", 2, 30 * 86_400),
    ]
    assert [each["tags"] for each in lakes.lake_snapshots(console, *where, lake="mine")["items"]] == [
        ["now"],
        ["first"],
    ]
    with pytest.raises(AlreadyExists):
        lakes.create_tag(console, *where, lake="mine", name="now")
    with pytest.raises(InvalidRequest, match="'one' is not the number of a snapshot"):
        lakes.create_tag(console, *where, lake="mine", name="x", snapshot_id="one")
    with pytest.raises(InvalidRequest, match="needs a name"):
        lakes.create_tag(console, *where, lake="mine", name="  ")
    lakes.delete_tag(console, *where, lake="mine", name="first")
    assert lakes.lake_tags(console, *where, lake="mine")["total"] == 1
    with pytest.raises(NotFound):
        lakes.delete_tag(console, *where, lake="mine", name="first")


def test_orphans_are_searched_in_the_background_and_stay(console: Console) -> None:
    catalog = console.warehouses["mine"]
    catalog.create_database("shop", ignore_if_exists=True)
    table = catalog.create_table("shop.littered", {"id": "BIGINT"}, options={"bucket": "-1"})
    table.append([{"id": 1}])
    where = ("shop", "littered")
    assert lakes.lake_orphans(console, *where, lake="mine") == {"task": None}
    orphan = table.context.paths.root + "/bucket-0/data-of-a-crashed-writer.parquet"
    table.context.io.write(orphan, b"rubbish")
    os.utime(orphan, (1e9, 1e9))  # the search may begin in the same millisecond
    task = lakes.find_orphans(console, *where, lake="mine", older_than="0 s")["task"]
    done = finished(console, task["task_id"])
    assert done["result"] == {
        "files": 1, "bytes": 7, "paths": ["bucket-0/data-of-a-crashed-writer.parquet"], "older_than": "0 s",
    }  # fmt: skip
    assert lakes.lake_orphans(console, *where, lake="mine")["task"] == done
    assert table.context.io.exists(orphan)
    with pytest.raises(InvalidRequest):
        lakes.find_orphans(console, *where, lake="mine", older_than="yesterday")
    with pytest.raises(InvalidRequest, match="is too long a time"):
        lakes.find_orphans(console, *where, lake="mine", older_than="99999999999999 d")


def test_live_tables_have_their_own_lake(console: Console) -> None:
    tiered_table(console.conn, "fluss.tiered").upsert(rows(1, 2, 3))
    console.conn.create_table("fluss.plain", {"id": "BIGINT"})
    with pytest.raises(InvalidRequest, match=r"table fluss\.plain has no lake"):
        lakes.lake(console, "fluss", "plain")
    with pytest.raises(NotFound):
        lakes.lake(console, "fluss", "absent")
    with pytest.raises(NotFound, match="no lake 'other'; there are mine"):
        lakes.lake(console, "fluss", "tiered", lake="other")
    assert lakes.lake(console, "fluss", "tiered")["snapshot"] is None
    tier_table(console.conn, "fluss.tiered")
    console._answers.clear()
    assert lakes.lake(console, "fluss", "tiered")["files"]["rows"] == 3
    found = lakes.lakes(console, search="tiered")
    assert found["items"] == [{"lake": None, "database": "fluss", "table": "tiered"}]
    assert {each["lake"] for each in lakes.lakes(console)["items"]} >= {None, "mine"}


def test_a_lake_table_that_others_have_rolled_back_is_shown_with_what_to_do(console: Console) -> None:
    table = tiered_table(console.conn, "fluss.undone")
    for ids in ([1, 2], [3]):
        table.upsert(rows(*ids))
        tier_table(console.conn, table.path)
    assert lakes.lake(console, "fluss", "undone")["warnings"] == []
    options = console.conn.admin.table_info(table.path).lake_options()
    Catalog.open(options).table("fluss.undone").rollback_to(1)
    console._answers.clear()
    said, remedy = lakes.lake(console, "fluss", "undone")["warnings"]
    assert said == "fluss.undone: rolled back; the cluster knows lake snapshot 2, the lake has 1"
    assert "the next round brings the rows into the lake again" in remedy


def test_a_lake_that_cannot_be_listed_hides_no_other(console: Console) -> None:
    class Broken:
        def list_tables(self) -> Any:
            raise Unavailable("the catalog did not answer")

    mine = console.warehouses
    console.warehouses = {"broken": Broken(), **mine}
    try:
        found = lakes.lakes(console)
    finally:
        console.warehouses = mine
    assert found["missing"] == ["lake 'broken' cannot be listed: the catalog did not answer"]
    assert found["total"] > 0


def test_a_table_dropped_meanwhile_is_not_found(console: Console) -> None:
    catalog = console.warehouses["mine"]
    catalog.create_database("shop", ignore_if_exists=True)
    catalog.create_table("shop.gone", {"id": "BIGINT"}).append([{"id": 1}])
    assert lakes.lake(console, "shop", "gone", lake="mine")["files"]["rows"] == 1
    catalog.drop_table("shop.gone")
    console._answers.clear()
    with pytest.raises(NotFound):
        lakes.lake(console, "shop", "gone", lake="mine")


def test_many_files_make_no_objects_but_those_of_the_page(console: Console) -> None:
    from forebay.lakes.paimon_health import PaimonHealth

    catalog: Catalog = console.warehouses["mine"]
    catalog.create_database("shop", ignore_if_exists=True)
    table = catalog.create_table("shop.many", {"id": "BIGINT"}, options={"bucket": "-1"})
    for i in range(5):
        table.append([{"id": i}])
    health = PaimonHealth(table)
    files = health.files()
    assert files is not None
    made = list[int]()
    describe = files.describe
    object.__setattr__(files, "describe", lambda positions: (made.append(len(positions)), describe(positions))[1])
    assert len(files.by_size()) > 0
    assert len(files.by_partition()) == 1
    assert made == []
    assert len(files.describe(files.page(1, 2))) == 2
    assert made == [2]


@pytest.mark.slow
def test_iceberg_tables_have_the_same(console: Console, tmp_path: Any) -> None:
    pytest.importorskip("pyiceberg")
    from forebay.lakes.iceberg_tables import opened

    lake = IcebergLake({"warehouse": str(tmp_path / "ice")})
    console.warehouses = {**console.warehouses, "ice": lake}
    data = pa.table({"id": pa.array(range(100), pa.int64()), "day": ["mon", "tue"] * 50})
    with opened(lake.options) as catalog:
        catalog.create_namespace("shop")
        table = catalog.create_table("shop.orders", data.schema)
        with table.update_spec() as spec:
            spec.add_identity("day")
        for _ in range(6):
            table.append(data)
    where = ("shop", "orders")
    found = lakes.lake(console, *where, lake="ice")
    assert (found["format"], found["partition_keys"]) == ("iceberg", ["day"])
    assert (found["files"]["count"], found["files"]["rows"], found["files"]["by_level"]) == (12, 600, [])
    assert [(p["partition"], p["files"]) for p in found["partitions"]] == [("day=mon", 6), ("day=tue", 6)]
    assert len(lakes.lake_files(console, *where, lake="ice", limit=5)["items"]) == 5
    history = lakes.lake_snapshots(console, *where, lake="ice")
    assert history["total"] == 6
    first = history["items"][-1]
    assert (first["kind"], first["rows"], first["added_rows"]) == ("append", 100, 100)
    lakes.create_tag(console, *where, lake="ice", name="start", snapshot_id=first["snapshot_id"], retain="30 d")
    [tag] = lakes.lake_tags(console, *where, lake="ice")["items"]
    assert (tag["name"], tag["snapshot_id"], tag["rows"]) == ("start", first["snapshot_id"], 100)
    with pytest.raises(AlreadyExists):
        lakes.create_tag(console, *where, lake="ice", name="start")
    with pytest.raises(NotFound):
        lakes.create_tag(console, *where, lake="ice", name="x", snapshot_id="17")
    lakes.delete_tag(console, *where, lake="ice", name="start")
    with pytest.raises(NotFound):
        lakes.delete_tag(console, *where, lake="ice", name="start")
    plan = lakes.lake_compaction(console, *where, lake="ice")
    assert (plan["tasks"], plan["files"], plan["rows"]) == (2, 12, 600)
    done = finished(console, lakes.compact(console, *where, lake="ice")["task"]["task_id"])
    assert done["state"] == "done", done
    assert lakes.lake(console, *where, lake="ice")["files"]["count"] == 2
    task = lakes.find_orphans(console, *where, lake="ice", older_than="0 s")["task"]
    assert finished(console, task["task_id"])["result"]["files"] == 0
    with pytest.raises(NotFound):
        lakes.lake(console, "shop", "absent", lake="ice")
