"""A server and a standby whose store is not mounted write nothing into the empty directory in its place."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

import forebay
from forebay.fs.local import LocalFileSystem
from forebay.server.standby import standby as standby_module
from forebay.server.standby.standby import Standby
from forebay.store.directory import DirectoryStore
from forebay.store.journal import JournalCursor, open_journal
from forebay.store.journal_format import EpochBegan
from tests.patience import PATIENCE, until


def test_an_empty_directory_in_the_place_of_the_store_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standby_module, "POLL_SECONDS", 0.01)
    mounted, away = tmp_path / "store", tmp_path / "away"
    store = DirectoryStore(LocalFileSystem(), str(mounted))
    cursor = JournalCursor(store, open_journal(store))
    assert cursor.fence(EpochBegan("the server", "test", lease_ms=500), b"w" * 16) is not None
    began = EpochBegan("the standby", "test", lease_ms=500)
    standby = Standby(LocalFileSystem(), str(tmp_path / "standby"), store, began)
    taken_over: list[bool] = []
    thread = threading.Thread(target=lambda: taken_over.append(standby.wait()))
    with caplog.at_level(logging.WARNING):
        thread.start()
        until(lambda: standby.holder == "the server", "the standby has read the journal")
        mounted.rename(away)
        mounted.mkdir()
        until(lambda: caplog.text.count("still mounted") > 100, "longer than its lease")
        assert standby.staleness_seconds > 0.5
    assert not list(mounted.iterdir())
    mounted.rmdir()
    away.rename(mounted)
    thread.join(PATIENCE)
    assert taken_over == [True]


@pytest.mark.parametrize("is_awaited", [False, True])
def test_the_running_server_does_not_go_on_in_an_empty_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_awaited: bool
) -> None:
    mounted, away = tmp_path / "store", tmp_path / "away"
    settings = {
        "store": str(mounted), "store.interval": "10 ms", "store.lease": "30 s",
        "store.durability": "store" if is_awaited else "local",
    }  # fmt: skip
    with forebay.embedded(tmp_path / "data", settings=settings) as conn:
        table = conn.create_table("fluss.log", {"id": "BIGINT"})
        table.append([{"id": 1}])
        journal = conn.server.server._journal
        assert journal is not None
        assert journal.wait_until_stored(PATIENCE)
        mounted.rename(away)
        mounted.mkdir()
        writer = threading.Thread(target=lambda: table.append([{"id": 2}]))
        writer.start()
        until(lambda: "still mounted" in caplog.text, "an object is refused")
        assert writer.is_alive() == is_awaited
        assert not list(mounted.iterdir())
        mounted.rmdir()
        away.rename(mounted)
        writer.join(PATIENCE)
        assert journal.wait_until_stored(PATIENCE)
        assert table.scan().to_arrow()["id"].to_pylist() == [1, 2]
    with forebay.embedded(tmp_path / "other", settings=settings) as conn:
        assert conn.table("fluss.log").scan().to_arrow()["id"].to_pylist() == [1, 2]
