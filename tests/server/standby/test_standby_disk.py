"""A standby keeps on its disk what it needs to take over, and not all that it has repeated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.inprocess import EmbeddedConnection
from forebay.server.config import server_config
from forebay.server.standby import standby as standby_module
from forebay.server.standby.standby import Standby
from tests.patience import PATIENCE, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "POLL_SECONDS", 0.01)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "store": str(tmp_path / "store"),
        "store.interval": "10 ms",
        "store.lease": "1 h",
        "log.segment.file-size": "2kb",
        "remote.log.task-interval-duration": "1 d",
        "remote.log.task-max-upload-segments": "1000",
    }


@contextmanager
def standing_by(folder: Path, settings: dict[str, str]) -> Iterator[threading.Thread]:
    settings = {**settings, "remote.log.task-interval-duration": "1 ms"}
    standby = Standby.of(server_config(folder, settings=settings))
    thread = threading.Thread(target=standby.wait)
    thread.start()
    try:
        yield thread
    finally:
        standby.stop()
        thread.join(PATIENCE)


def tier(conn: EmbeddedConnection) -> None:
    server = conn.server.server
    assert server._journal is not None
    assert server._tiering is not None
    server.context.replicas.checkpoint_grown(1)
    assert server._journal.wait_until_stored(PATIENCE)
    server._tiering.run()
    assert server._journal.wait_until_stored(PATIENCE)


def rows(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + 20), "v": [f"row {first} " * 20] * 20})


def segments(folder: Path) -> int:
    return len(list(folder.rglob("*.log")))


def test_segments_that_the_store_has_are_deleted_and_read_from_there_after_a_takeover(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with forebay.embedded(tmp_path / "primary", settings=settings) as conn:
        log = conn.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
        kv = conn.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
        for number in range(20):
            log.append(rows(number * 20))
            kv.upsert(rows(number * 7))
        folder = tmp_path / "standby"
        with standing_by(folder, settings) as thread:
            until(lambda: segments(folder) == segments(tmp_path / "primary") > 10, "the standby has all segments")
            tier(conn)
            log.append(rows(400))
            kv.upsert(rows(500))
            until(lambda: segments(folder) <= 5, "the standby has the newest segments")
            expected = log.scan().to_arrow().sort_by("id"), kv.scan().to_arrow().sort_by("id")
            conn.close()
            thread.join(PATIENCE)
    with forebay.embedded(folder, settings=settings) as conn:
        log, kv = conn.table("fluss.log"), conn.table("fluss.kv")
        assert (log.scan().to_arrow().sort_by("id"), kv.scan().to_arrow().sort_by("id")) == expected
        kv.upsert(rows(0))
        log.append(rows(420))
        assert log.scan().to_arrow().num_rows == 440


def test_a_standby_that_is_started_again_goes_on_behind_deleted_segments(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with forebay.embedded(tmp_path / "primary", settings=settings) as conn:
        log = conn.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
        folder = tmp_path / "standby"
        for number in range(4):
            with standing_by(folder, settings):
                for _ in range(5):
                    log.append(rows(number * 20))
                tier(conn)
                log.append(rows(number * 20))
                until(lambda: segments(folder) <= 3, "the standby has the newest segments")
        with standing_by(folder, settings) as thread:
            conn.close()
            thread.join(PATIENCE)
    with forebay.embedded(folder, settings=settings) as conn:
        assert conn.table("fluss.log").scan().to_arrow().num_rows == 4 * 6 * 20


def test_folders_of_dropped_tables_and_partitions_are_removed(tmp_path: Path, settings: dict[str, str]) -> None:
    with forebay.embedded(tmp_path / "primary", settings=settings) as conn:
        log = conn.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
        parts = conn.create_table("fluss.parts", {"day": "STRING", "v": "BIGINT"}, partition_keys="day")
        log.append(rows(0))
        for day in ("mon", "tue"):
            parts.append([{"day": day, "v": 1}])
        folder = tmp_path / "standby"
        with standing_by(folder, settings) as thread:
            until(lambda: segments(folder) == 3, "the standby has all logs")
            conn.drop_table("fluss.log")
            parts.drop_partition({"day": "mon"})
            parts.append([{"day": "tue", "v": 2}])
            until(lambda: segments(folder) == 1, "the standby has the log of the partition that is left")
            assert not list((folder / "fluss").glob("log-*"))
            conn.close()
            thread.join(PATIENCE)
    with forebay.embedded(folder, settings=settings) as conn:
        assert conn.list_tables("fluss") == ["parts"]
        assert sorted(conn.table("fluss.parts").scan().to_arrow()["v"].to_pylist()) == [1, 2]
