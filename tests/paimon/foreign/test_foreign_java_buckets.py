"""Bucket functions `mod` and `hive`: both sides use the same buckets, and find each other's rows."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.paimon.table import Table
from tests.paimon.bucket_cases import CASES, MANY, Case, buckets_by_id, columns_of, data_of, options_of
from tests.paimon.foreign.both_sides import agree
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaError, JavaTable, Plain, plain_rows
from tests.paimon.lake import new_catalog, planned_files, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", CASES)
def test_both_put_rows_into_the_same_buckets_and_find_them(tmp_path: Path, java_table: JavaTableOf, name: str) -> None:
    case = CASES[name]
    catalog = new_catalog(tmp_path)
    ours = catalog.create_table("db.ours", columns_of(case), options=options_of(case))
    theirs = catalog.create_table("db.theirs", columns_of(case), options=options_of(case))
    data = data_of(case)
    put(ours, data)
    java_table(catalog, "db.theirs").write(theirs.schema, data)
    expected = {i: bucket for i, (_, bucket) in enumerate(case.buckets)}
    assert buckets_by_id(theirs) == expected
    assert buckets_by_id(ours) == expected
    java = java_table(catalog, "db.ours")
    for i, plain in _findable(case, ours, data):
        key = reduce(lambda a, b: a & b, (col(f"k{n}") == v for n, v in enumerate(case.buckets[i][0])))
        assert i in theirs.scan(["id"], key).to_arrow().column("id").to_pylist()
        assert len(planned_files(theirs, key)) <= 1
        terms: list[Any] = [[f"k{n}", "=", v] for n, v in enumerate(plain)]
        asked = reduce(lambda a, b: ["and", a, b], terms)
        assert i in [row[0] for row in java.rows(filter=asked)]
        assert len(java.planned_files(filter=asked)) <= 1


def _findable(case: Case, table: Table, data: pa.Table) -> list[tuple[int, list[Plain]]]:
    """(id, plain key) of the rows that an equality finds: keys without nulls and without floating point."""
    plain = plain_rows(table.schema, data)
    return [
        (i, plain[i][1:])
        for i, (key, _) in enumerate(case.buckets)
        if not any(v is None or isinstance(v, float) for v in key)
    ]


@pytest.mark.parametrize("function", ["mod", "hive"])
def test_both_update_and_look_up_each_others_keys_before_and_after_rescaling(
    tmp_path: Path, java_table: JavaTableOf, function: str
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table(
        "db.t", {"k": types.bigint(), "v": types.int_()}, primary_key=["k"],
        options={"bucket": "7", "bucket-function.type": function},
    )  # fmt: skip
    java = java_table(catalog, "db.t")
    keys = [*range(-20, 20), 2**63 - 1, -(2**63), 2**31, -(2**31)]
    java.write(table.schema, _version(keys, 0))
    put(table, _version(keys[::2], 1))
    _both_find(table, java, keys)
    table = table.rescale(3)
    _both_find(table, java, keys)
    java.write(table.schema, _version(keys[::3], 2))
    put(table, _version(keys[::5], 3))
    _both_find(table, java, keys)


def _version(keys: list[int], v: int) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([v] * len(keys), pa.int32())})


def _both_find(table: Table, java: JavaTable, keys: list[int]) -> None:
    rows = agree(table, java)
    assert sorted(row[0] for row in rows) == sorted(keys)
    versions = dict(rows)
    with table.refresh().lookup_table() as lookup:
        assert lookup.lookup([{"k": k} for k in keys], missing="drop").to_pylist() == [
            {"k": k, "v": versions[k]} for k in keys
        ]
    assert java.ask("lookup", keys=[[k] for k in keys]) == [[k, versions[k]] for k in keys]


def test_java_takes_the_same_bucket_keys(tmp_path: Path, java_table: JavaTableOf) -> None:
    """Java makes the tables that we refuse, and refuses to write to them."""
    catalog = new_catalog(tmp_path)
    refused: list[tuple[Case, Any]] = [
        (Case("mod", 2, [types.smallint()], []), 1),
        (Case("mod", 2, [types.string()], []), "a"),
        (Case("hive", MANY, [types.timestamp(3)], []), 1_000_000),
    ]
    for i, (case, value) in enumerate(refused):
        java = java_table(catalog, f"db.t{i}")
        java.create(columns_of(case), options=options_of(case))
        with pytest.raises(JavaError, match=r"bucket key type must be INT or BIGINT|Unsupported type as bucket key"):
            java.ask("write", rows=[["+I", 1, value]])
