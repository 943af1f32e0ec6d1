"""A warehouse is the same folder for the driver, its workers and our engine, however it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import forebay.spark
from forebay.base.errors import InvalidRequest
from forebay.paimon import Catalog
from forebay.spark.lake_datasource import LakeAddress
from forebay.spark.server_setup import _located

VALUES = {
    "12:30": "12%3A30",
    "50%": "50%25",
    "../../../../outside": "..%2F..%2F..%2F..%2Foutside",
    "é/日本": "é%2F日本",
}


def test_spark_writes_and_reads_the_folder_that_was_said(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    place, values = tmp_path / "50%25 of my ü lake", list(VALUES)
    forebay.spark.attach(spark, "by_relative", warehouse=place.name)
    monkeypatch.chdir(tmp_path / "elsewhere")
    forebay.spark.attach(spark, "by_uri", warehouse=f"file:{place}")
    forebay.spark.attach(spark, "by_path", warehouse=place)
    spark.sql("CREATE DATABASE by_relative.db")
    spark.sql("CREATE TABLE by_relative.db.t (v INT, p STRING) PARTITIONED BY (p)")
    rows = ", ".join(f"({i}, '{value}')" for i, value in enumerate(values))
    spark.sql(f"INSERT INTO by_relative.db.t VALUES {rows}")
    spark.sql(f"INSERT INTO by_uri.db.t VALUES {rows}")
    assert {path.name for path in (place / "db.db/t").glob("p=*")} == {f"p={name}" for name in VALUES.values()}
    assert {path.name for path in tmp_path.iterdir()} == {place.name, "elsewhere"}
    assert not any((tmp_path / "elsewhere").iterdir())
    expected = sorted((i, value) for i, value in enumerate(values)) * 2
    for catalog in ("by_relative", "by_uri", "by_path"):
        found = spark.sql(f"SELECT v, p FROM {catalog}.db.t").collect()
        assert sorted(map(tuple, found)) == sorted(expected)
    for path in (f"file://{place}/db.db/t", f"{place}/db.db/t/"):
        found = spark.read.format("forebay-paimon").load(path).select("v", "p").collect()
        assert sorted(map(tuple, found)) == sorted(expected)
    assert Catalog.open(place).table("db.t").scan().count() == len(expected)


def test_an_address_is_absolute_before_it_reaches_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LakeAddress.of({"path": "lake/db.db/t$branch_b$files"}) == LakeAddress(
        f"{tmp_path}/lake/db.db/t", (), True, "b", "files"
    )
    assert LakeAddress.of({"table": "db.t", "catalog.warehouse": "file:///a%20b/"}) == LakeAddress(
        "db.t", (("warehouse", "/a%20b"),), False
    )
    with pytest.raises(InvalidRequest, match="on the host 'host'"):
        LakeAddress.of({"path": "file://host/lake/db.db/t"})


def test_settings_for_a_server_have_an_absolute_warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _located({"warehouse": "lake", "user": "u"}) == {"warehouse": f"{tmp_path}/lake", "user": "u"}
    rest = {"warehouse": "prod", "paimon.metastore": "rest"}
    assert _located(rest) == rest
