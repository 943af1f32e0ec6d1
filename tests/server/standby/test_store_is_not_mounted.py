"""A standby whose store is not there does not become the writer of what is in its place."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

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
        until(lambda: caplog.text.count("no takeover for now") > 1, "the lease ends twice")
    assert not list(mounted.iterdir())
    mounted.rmdir()
    away.rename(mounted)
    thread.join(PATIENCE)
    assert taken_over == [True]
