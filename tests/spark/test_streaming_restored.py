"""Streams without Spark whose server is restored from an older copy (docs/format/log_epochs.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import forebay
from forebay.base.errors import InvalidRequest
from tests.spark.streams import Offset, Stream
from tests.spark.tables import make_table, rows

pytest.importorskip("pyspark.sql.streaming.datasource", reason="comes with Spark 4.2")


def of_before(tmp_path: Path, *, primary_key: bool = False) -> tuple[Offset, Offset]:
    """A stream's offsets: at the end of the copied log, and at the end of what was written behind it."""
    data = tmp_path / "data"
    with forebay.embedded(data) as conn:
        conn.create_database("db")
        make_table(conn, "db.t", buckets=1, **({"primary_key": ["id"]} if primary_key else {}))
        write = conn.table("db.t").upsert if primary_key else conn.table("db.t").append
        write(rows(0, 10))
    shutil.copytree(data, tmp_path / "restored")
    with forebay.embedded(data) as conn:
        write = conn.table("db.t").upsert if primary_key else conn.table("db.t").append
        stream = Stream(conn, "db.t", scan_startup_mode="earliest")
        assert stream.ids() == list(range(10))
        at_copy = stream.offset
        write(rows(10, 20))
        full = Stream(conn, "db.t").start
        assert stream.ids() == list(range(10, 20))
        assert at_copy is not None
        assert stream.offset is not None
        return at_copy, full if primary_key else stream.offset


def test_a_checkpoint_from_behind_the_copy_is_refused_and_one_from_before_continues(tmp_path: Path) -> None:
    at_copy, behind = of_before(tmp_path)
    with forebay.embedded(tmp_path / "restored") as conn:
        stream = Stream(conn, "db.t")
        stream.offset = behind
        with pytest.raises(InvalidRequest, match="below offset 10 only"):  # also while the log is shorter
            stream.batch()
        conn.table("db.t").append(rows(100, 130))
        with pytest.raises(InvalidRequest, match="below offset 10 only"):
            stream.batch()
        stream.offset = at_copy
        assert stream.ids() == list(range(100, 130))
        # A batch that was planned before, and is run again: its end is not in this log.
        with pytest.raises(InvalidRequest, match="below offset 10 only"):
            stream.read(at_copy, behind)
        without = {key: value for key, value in behind.items() if key not in ("epoch", "epochs")}
        stream.offset = without  # of a release that knew no epochs
        assert stream.ids() == list(range(110, 130))


def test_the_rows_of_a_table_snapshot_from_before_are_not_rebuilt_of_other_changes(tmp_path: Path) -> None:
    _, full = of_before(tmp_path, primary_key=True)
    assert full["full"]["snapshot"]
    with forebay.embedded(tmp_path / "restored") as conn:
        conn.table("db.t").upsert(rows(100, 130))
        stream = Stream(conn, "db.t")
        stream.offset = full
        with pytest.raises(InvalidRequest, match="below offset 10 only"):
            stream.batch()
