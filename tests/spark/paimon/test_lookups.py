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
from forebay.paimon import Catalog
from forebay.paimon.table import Table
from forebay.spark.paimon.lookups import shared_lookup


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
    customers.upsert([{"id": 1, "name": "bob"}])
    assert theirs.refresh()
    assert mine.lookup([{"id": 1}], missing="drop").to_pylist() == [{"name": "bob"}]


def test_other_columns_and_other_options_are_another_lookup(customers: Table) -> None:
    mine = shared_lookup(customers, ["name"])
    assert shared_lookup(customers, ["level"]) is not mine
    assert shared_lookup(customers) is not mine
    small = customers.with_options({"lookup.cache-max-memory-size": "1 kb"})
    assert shared_lookup(small, ["name"]) is not mine


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
from forebay.spark.paimon.lookups import shared_lookup
table = Catalog.open({str(tmp_path / "lake")!r}).table("shop.customers")
print(shared_lookup(table).lookup(1).num_rows, len(list(Path({str(place)!r}).rglob("*.arrow"))))
"""
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=280, check=True
    )
    assert done.stdout == "1 1\n"
    assert list(place.iterdir()) == []


def test_a_table_without_a_key_has_no_lookup(tmp_path: Path) -> None:
    catalog = Catalog.open(str(tmp_path / "lake"))
    catalog.create_database("shop")
    with pytest.raises(InvalidRequest, match="no primary key to look rows up by"):
        shared_lookup(catalog.create_table("shop.visits", {"id": pa.int64()}))
