"""`forebay iceberg`: what it shows of a table, and its upkeep."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.cli.main import main
from forebay.lakes.iceberg_tables import new_catalog


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A lake with a table of six small files."""
    with closing(new_catalog({"warehouse": str(tmp_path)})) as catalog:
        catalog.create_namespace("db")
        rows = pa.table({"id": [1], "name": ["tea"]})
        table = catalog.create_table("db.t", rows.schema, properties={"owner": "ann"})
        for _ in range(6):
            table.append(rows)
    return str(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["iceberg", *words]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_a_table_is_described_and_maintained(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tables", "-w", lake, "-o", "csv") == "table\ndb.t\n"
    described = json.loads(run(capsys, "describe", "-w", lake, "db.t", "-o", "json"))
    assert (described["records"], described["files"], described["properties"]["owner"]) == (6, 6, "ann")
    assert "property owner" in run(capsys, "describe", "-w", lake, "db.t")
    assert len(run(capsys, "snapshots", "-w", lake, "db.t", "-o", "json").splitlines()) == 6
    assert "compacted db.t: snapshot" in run(capsys, "compact", "-w", lake, "db.t")
    assert run(capsys, "compact", "-w", lake, "db.t") == "nothing to compact in db.t\n"
    assert "files           1\n" in run(capsys, "describe", "-w", lake, "db.t")
    assert run(capsys, "expire", "-w", lake, "db.t", "--older-than", "0 s", "--keep", "1") == (
        "expired 6 snapshots of db.t\n"
    )
    assert len(run(capsys, "snapshots", "-w", lake, "db.t", "-o", "csv").splitlines()) == 2
    assert len(list(Path(lake).rglob("*.parquet"))) == 1


def test_orphans_are_listed_and_deleted_on_demand(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    orphan = next(Path(lake).rglob("*.parquet")).with_name("left-over.parquet")
    orphan.write_bytes(b"x")
    assert run(capsys, "orphans", "-w", lake, "db.t") == "(no orphans)\n"
    os.utime(orphan, (0, 0))
    assert "(1 file, not deleted: say --delete)" in run(capsys, "orphans", "-w", lake, "db.t")
    assert orphan.exists()
    assert "(1 file, deleted)" in run(capsys, "orphans", "-w", lake, "db.t", "--delete")
    assert not orphan.exists()


def test_what_is_missing_is_named(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "which lake?" in run(capsys, "tables", code=1)
    assert "db.nothing does not exist" in run(capsys, "describe", "-w", lake, "db.nothing", code=1)
    assert "--option 'x' is not KEY=VALUE" in run(capsys, "tables", "--option", "x", code=1)
