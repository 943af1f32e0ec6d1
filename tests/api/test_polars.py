"""Polars and Forebay: frames of tables, scans and changes, and frames as data, schemas, keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import forebay
import forebay.paimon

FRAME = pl.DataFrame({"id": [1, 2, 3], "name": ["a", None, "c"], "amount": [0.5, 1.5, 2.5]})


@pytest.fixture(params=["live", "lake"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A primary-key table with the schema and the rows of `FRAME`."""
    if request.param == "live":
        with forebay.embedded(tmp_path / "data") as conn:
            made = conn.create_table("fluss.t", FRAME, primary_key="id")
            made.upsert(FRAME)
            yield made
    else:
        catalog = forebay.paimon.Catalog.open(str(tmp_path / "lake"))
        catalog.create_database("d")
        made = catalog.create_table("d.t", FRAME, primary_key="id")
        made.upsert(FRAME)
        yield made


def test_a_frame_of_a_table_a_scan_and_its_changes_has_their_columns_and_rows(table: Any) -> None:
    assert_frame_equal(pl.DataFrame(table).sort("id"), FRAME)
    assert_frame_equal(pl.DataFrame(table.scan(["id", "amount"], "amount > 1")).sort("id"), FRAME[1:].drop("name"))
    assert_frame_equal(table.scan().to_polars().sort("id"), FRAME)
    changes = pl.DataFrame(table.changes(stop="latest"))
    assert_frame_equal(changes.select("id", "name", "amount").sort("id"), FRAME)
    assert changes["_change_type"].to_list() == ["insert"] * 3


def test_a_frame_names_keys_to_look_up_and_to_delete(table: Any) -> None:
    found = pl.DataFrame(table.lookup(FRAME.select("id")[::-1]))
    assert_frame_equal(found, FRAME[::-1])
    table.delete(FRAME.select("id")[:2])
    assert_frame_equal(pl.DataFrame(table), FRAME[2:])


def test_a_frame_is_appended_to_a_log(tmp_path: Path) -> None:
    with forebay.embedded(tmp_path / "data") as conn:
        log = conn.create_table("fluss.log", FRAME)
        log.append(FRAME)
        with log.scan().reader() as rows:
            assert_frame_equal(pl.DataFrame(rows), FRAME)
