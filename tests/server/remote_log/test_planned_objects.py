"""An object is created in the store only when the journal knows that it is to be deleted unless it is listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import StorageFailure
from forebay.inprocess import EmbeddedConnection
from forebay.metadata.table import TableBucket
from forebay.server.journal.server_journal import ServerJournal
from forebay.server.metadata_store import METADATA_FILE, LocalDatabaseFile, MetadataStore
from forebay.server.remote_log.planned_objects import PlannedObjects
from forebay.store.directory import DirectoryStore

pytest.importorskip("rocksdict")


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[EmbeddedConnection]:
    """A server whose journal gets nothing for an hour, unless the server waits for it."""
    settings = {
        "store": str(tmp_path / "store"),
        "store.client-access": "direct",
        "store.interval": "1 h",
        "log.segment.file-size": "2kb",
        "remote.log.task-interval-duration": "1 d",
    }
    with forebay.embedded(tmp_path / "data", settings=settings) as connection:
        yield connection


def test_no_object_is_created_that_a_new_machine_would_not_know_of(
    conn: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = conn.server.server
    journal, tiering = server._journal, server._tiering
    assert journal is not None
    assert journal._uploader is not None
    assert tiering is not None
    uploader, noted_at, created = journal._uploader, dict[str, int](), list[str]()
    doom_objects, upload = MetadataStore.doom_objects, DirectoryStore.upload

    def dooms(store: MetadataStore, doomed: Mapping[str, int]) -> None:
        doom_objects(store, doomed)
        noted_at.update(dict.fromkeys(doomed, journal.feed.noted))

    def uploads(store: DirectoryStore, name: str, parts: Any) -> None:
        assert uploader.stored_count >= noted_at[name], name
        created.append(name)
        upload(store, name, parts)

    monkeypatch.setattr(MetadataStore, "doom_objects", dooms)
    monkeypatch.setattr(DirectoryStore, "upload", uploads)
    options = {"forebay.kv.snapshot-files": "rocksdb"}
    table = conn.create_table("fluss.kv", {"id": "BIGINT"}, primary_key="id", buckets=1, options=options)
    for first in range(0, 2000, 200):
        table.upsert(pa.table({"id": range(first, first + 200)}))
    with server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
        replica.checkpoint_if_grown(1)
    tiering.run()
    assert {name.split("/")[0] for name in created} == {"log", "kv"}
    assert any("/rocksdb/" in name for name in created)
    assert any("/shared/" in name for name in created)


def test_while_the_journal_is_behind_nothing_is_created(
    conn: EmbeddedConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = conn.create_table("fluss.log", {"id": "BIGINT"}, buckets=1)
    for first in range(0, 2000, 200):
        table.append(pa.table({"id": range(first, first + 200)}))
    tiering = conn.server.server._tiering
    assert tiering is not None
    with monkeypatch.context() as patch:
        patch.setattr(ServerJournal, "wait_until_stored", lambda *_: False)
        tiering.run()
    assert "no object is created in the store, because the journal there is behind" in caplog.text
    assert not (tmp_path / "store" / "log").exists()
    tiering.run()
    assert (tmp_path / "store" / "log").exists()


def test_what_is_planned_is_due_after_a_day(tmp_path: Path) -> None:
    metadata = MetadataStore(LocalDatabaseFile(str(tmp_path / METADATA_FILE)))
    clock, waits = ManualClock(now_ms=1000), list[int]()

    def wait(is_stored: bool) -> bool:
        waits.append(len(metadata.doomed_objects(1 << 60, 10)))
        return is_stored

    planned = PlannedObjects(metadata, clock, lambda: wait(True))
    planned.plan([])
    assert waits == []
    planned.plan(["a", "b"])
    assert waits == [2]
    with pytest.raises(StorageFailure, match="the journal there is behind"):
        PlannedObjects(metadata, clock, lambda: wait(False)).plan(["c"])
    day_ms = 24 * 3600 * 1000
    assert metadata.doomed_objects(1000 + day_ms - 1, 10) == []
    assert sorted(metadata.doomed_objects(1000 + day_ms, 10)) == ["a", "b", "c"]
    metadata.close()
