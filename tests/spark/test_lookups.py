"""Lookup tables that the tasks of a worker share; Spark is not needed for it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.client.connection import Connection
from forebay.paimon import Catalog
from forebay.paimon.table import Table
from forebay.spark import lookups, shared_lookup
from tests.patience import PATIENCE


@pytest.fixture
def customers(tmp_path: Path) -> Table:
    catalog = Catalog.open(str(tmp_path / "lake"))
    catalog.create_database("shop")
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("level", pa.int64())])
    made = catalog.create_table("shop.customers", columns, primary_key=["id"], options={"bucket": "1"})
    made.upsert([{"id": 1, "name": "ann", "level": 3}])
    return made


def test_tasks_of_one_process_share_the_lookup_of_a_table(customers: Table) -> None:
    mine = shared_lookup(customers, ["name"])
    theirs = shared_lookup(pickle.loads(pickle.dumps(customers)), ["name"])
    assert theirs is mine
    assert theirs.lookup([{"id": 1}], missing="drop").to_pylist() == [{"name": "ann"}]
    customers.upsert([{"id": 1, "name": "bob"}], missing="null")
    assert theirs.refresh()
    assert mine.lookup([{"id": 1}], missing="drop").to_pylist() == [{"name": "bob"}]


def test_other_columns_and_other_options_are_another_lookup(customers: Table) -> None:
    mine = shared_lookup(customers, ["name"])
    assert shared_lookup(customers, ["level"]) is not mine
    assert shared_lookup(customers) is not mine
    small = customers.with_options({"lookup.cache-max-memory-size": "1 kb"})
    assert shared_lookup(small, ["name"]) is not mine


def test_a_lake_table_is_looked_at_as_often_as_is_asked(customers: Table) -> None:
    often, seldom = (shared_lookup(customers, ["name"], max_age=age) for age in ("0 s", "1 h"))
    assert [rows.lookup([1])["name"].to_pylist() for rows in (often, seldom)] == [["ann"], ["ann"]]
    customers.upsert([{"id": 1, "name": "bob"}], missing="null")
    assert [rows.lookup([1])["name"].to_pylist() for rows in (often, seldom)] == [["bob"], ["ann"]]


def test_a_live_table_is_looked_up_once_in_so_long_by_all_tasks(connection: Connection, database: str) -> None:
    table = connection.create_table(f"{database}.t", {"id": "INT", "name": "STRING"}, primary_key="id")
    table.upsert([{"id": 1, "name": "ann"}])
    mine = shared_lookup(table, ["name"], max_age="1 h")
    theirs = shared_lookup(pickle.loads(pickle.dumps(table)), ["name"], max_age="1 h")
    assert theirs is mine
    assert shared_lookup(table, ["name"]) is not mine
    assert mine.join([{"n": 5, "id": 1}])["name"].to_pylist() == ["ann"]
    table.upsert([{"id": 1, "name": "bob"}])
    assert theirs.join([{"n": 5, "id": 1}])["name"].to_pylist() == ["ann"]
    assert mine.refresh()
    assert theirs.join([{"n": 5, "id": 1}])["name"].to_pylist() == ["bob"]


def test_a_process_keeps_few_lookups(connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "LOOKUPS_MAX", 2)
    monkeypatch.setattr(lookups, "_lookups", {})
    table = connection.create_table(f"{database}.t", {"id": "INT", "name": "STRING"}, primary_key="id")
    table.upsert([{"id": 1, "name": "ann"}])
    first = shared_lookup(table, ["name"])
    assert first.lookup([1]).num_rows == 1
    for age in (1, 2):
        shared_lookup(table, ["name"], max_age=age)
    assert shared_lookup(table, ["name"]) is not first
    table.upsert([{"id": 1, "name": "bob"}])
    assert first.lookup([1])["name"].to_pylist() == ["bob"], "what it kept is dropped, and it works all the same"


def test_copies_are_kept_where_spark_cleans_up(
    customers: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{local},{tmp_path / 'second'}")
    assert shared_lookup(customers, ["name", "level"]).lookup([{"id": 1}], missing="drop").num_rows == 1
    assert [path.suffix for path in sorted(local.rglob("*.*"))] == [".arrow", ".index"]


def test_copies_are_deleted_when_the_process_ends(customers: Table, tmp_path: Path) -> None:
    place = tmp_path / "copies"
    place.mkdir()
    code = f"""
from pathlib import Path
from forebay.paimon import Catalog
from forebay.spark import shared_lookup
table = Catalog.open({str(tmp_path / "lake")!r}).table("shop.customers")
print(shared_lookup(table).lookup(1).num_rows, len(list(Path({str(place)!r}).rglob("*.arrow"))))
"""
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == "1 1\n"
    assert list(place.iterdir()) == []


def test_a_table_without_a_key_has_no_lookup(tmp_path: Path) -> None:
    catalog = Catalog.open(str(tmp_path / "lake"))
    catalog.create_database("shop")
    with pytest.raises(InvalidRequest, match="no primary key to look rows up by"):
        shared_lookup(catalog.create_table("shop.visits", {"id": pa.int64()}))
