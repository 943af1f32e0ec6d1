"""A new machine leaves out the rows that remote logs got by the end of the journal, and has all rows in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay import Table
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.codec.log.header import iter_headers
from forebay.fs.local import LocalFileSystem
from forebay.inprocess import EmbeddedConnection
from forebay.log.checkpoints import DataDirectory
from forebay.log.config import LogConfig
from forebay.log.remote import RemoteLogSegment
from forebay.log.tablet import LogTablet
from forebay.metadata.table import PhysicalTablePath, TableBucket, TablePath
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.journal.followed_metadata import FollowedMetadata
from forebay.server.journal.follower import JournalFollower
from forebay.server.metadata_store import LocalDatabaseFile
from forebay.store.directory import DirectoryStore
from forebay.store.journal import JournalObject, open_journal
from forebay.store.journal_ahead import ObjectsAhead
from forebay.store.objects import ObjectMissing
from tests.log.log_batches import make_batch
from tests.patience import PATIENCE

BUCKET = TableBucket(1, 0)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "store": str(tmp_path / "store"), "store.interval": "10 ms", "log.segment.file-size": "2kb",
        "remote.log.task-interval-duration": "1 d", "remote.log.task-max-upload-segments": "1000",
    }  # fmt: skip


@pytest.fixture
def primary(tmp_path: Path, settings: dict[str, str]) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path / "primary", settings=settings) as conn:
        yield conn


def fill(table: Table, first: int, count: int) -> None:
    for start in range(first, first + count, 10):
        table.append(pa.table({"id": range(start, start + 10), "v": [f"row {start} " * 3] * 10}))


def store_all(conn: EmbeddedConnection, *, tier: bool = False) -> None:
    server = conn.server.server
    assert server._journal is not None
    assert server._tiering is not None
    assert server._journal.wait_until_stored(PATIENCE)
    if tier:
        server._tiering.run()
        assert server._journal.wait_until_stored(PATIENCE)


def ids(table: Table) -> list[int]:
    return table.changes("earliest", "latest").to_arrow()["id"].to_pylist()


def log_of(conn: EmbeddedConnection, table: Table) -> LogTablet:
    with conn.server.server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
        return replica.log


def test_rows_of_remote_logs_are_left_out(
    tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    fill(table, 0, 400)
    store_all(primary, tier=True)
    fill(table, 400, 30)
    store_all(primary)
    copied = log_of(primary, table).copied_end
    assert copied > 300
    grown: list[int] = []
    grow = FollowedLogs.grow

    def noted(self: FollowedLogs, bucket: TableBucket, first: int, batches: memoryview, **more: bool) -> None:
        grown.append(list(iter_headers(batches))[-1][1].next_offset)
        grow(self, bucket, first, batches, **more)

    with monkeypatch.context() as patch:
        patch.setattr(FollowedLogs, "grow", noted)
        with forebay.embedded(tmp_path / "other", settings=settings) as other:
            there = other.table("fluss.log")
            assert log_of(other, there).local_start_offset == copied
            assert ids(there) == list(range(430))
            fill(there, 430, 10)
            assert ids(there) == list(range(440))
    assert min(grown) > copied, "rows were read that the remote log has"


def test_a_log_that_is_all_in_the_remote_log_goes_on(
    tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str]
) -> None:
    table = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    fill(table, 0, 100)
    log_of(primary, table).roll()
    store_all(primary, tier=True)
    assert log_of(primary, table).copied_end == 100
    with forebay.embedded(tmp_path / "other", settings=settings) as other:
        there = other.table("fluss.log")
        assert ids(there) == list(range(100))
        fill(there, 100, 10)
        assert ids(there) == list(range(110))
    with forebay.embedded(tmp_path / "third", settings=settings) as third:
        assert ids(third.table("fluss.log")) == list(range(110))


def test_who_dies_before_it_is_whole_begins_again(
    tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str]
) -> None:
    table = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    for turn in range(10):
        fill(table, turn * 40, 40)
        store_all(primary)
    store_all(primary, tier=True)
    fs, store = LocalFileSystem(), DirectoryStore(LocalFileSystem(), settings["store"])
    folder = tmp_path / "other"

    def follower() -> JournalFollower:
        with closing(DataDirectory.open(fs, str(folder))) as directory:
            return JournalFollower(fs, directory, store, open_journal(store))

    first = follower()
    for _ in range(4):
        first.follow_one()
    assert not first.is_whole
    first.close()
    second = follower()
    assert second.cursor.number == 0
    second.follow()
    assert second.is_whole
    second.close()
    third = follower()
    assert third.is_whole
    assert third.cursor.number == second.cursor.number > 0
    third.close()
    primary.close()
    folder.rename(tmp_path / "whole")
    with forebay.embedded(tmp_path / "new", settings=settings) as other:
        assert ids(other.table("fluss.log")) == list(range(400))


def batch(first: int, records: int, body: bytes = b"") -> bytes:
    return make_batch(records, body, base_offset=first)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FollowedLogs:
    """Logs of a follower whose remote log of `BUCKET` got everything below offset 12 later."""
    fs = LocalFileSystem()
    metadata = FollowedMetadata(fs, LocalDatabaseFile(str(tmp_path / "metadata.sqlite")))
    monkeypatch.setattr(metadata, "path", lambda _: PhysicalTablePath(TablePath("db", "t")))
    monkeypatch.setattr(FollowedLogs, "_writers_at", lambda *_: None)
    store = DirectoryStore(fs, str(tmp_path / "store"))
    with closing(DataDirectory.open(fs, str(tmp_path / "data"))) as directory:
        logs = FollowedLogs(fs, directory, metadata, store, LogConfig(), SYSTEM_CLOCK)
    logs.copied = {BUCKET: RemoteLogSegment("0" * 32, 0, 12, 0, 100)}
    return logs


def test_rows_that_were_cut_and_written_anew_are_those_of_the_last_time(logs: FollowedLogs) -> None:
    """The journal: rows 0 to 15, cut at 8, others from 8 to 13, of which the remote log has those below 12."""
    assert not logs.skip(BUCKET, 15)
    logs.grow(BUCKET, 0, memoryview(batch(0, 12) + batch(12, 3, b"cut")))
    assert logs.ends[BUCKET] == 15
    logs.cut(BUCKET, 8)
    assert logs.ends[BUCKET] == 12
    logs.grow(BUCKET, 8, memoryview(batch(8, 4) + batch(12, 1, b"last")))
    assert logs.ends[BUCKET] == 13
    log = logs.borrow(BUCKET)
    assert log is not None
    assert log.local_start_offset == 12
    assert b"last" in bytes(log.read(12, 1 << 20, 13).data)
    logs.give_back(BUCKET)
    logs.close()


def test_a_cut_before_the_log_began_changes_nothing(logs: FollowedLogs) -> None:
    assert logs.skip(BUCKET, 10)
    logs.cut(BUCKET, 8)
    logs.grow(BUCKET, 8, memoryview(batch(8, 4) + batch(12, 1, b"last")))
    logs.cut(BUCKET, 12)
    assert logs.ends[BUCKET] == 12
    logs.grow(BUCKET, 12, memoryview(batch(12, 2)))
    assert logs.ends[BUCKET] == 14
    logs.close()


def test_objects_ahead_are_those_of_the_store(primary: EmbeddedConnection, settings: dict[str, str]) -> None:
    table = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    for turn in range(30):
        fill(table, turn * 10, 10)
        store_all(primary)
    store = DirectoryStore(LocalFileSystem(), settings["store"])
    with closing(ObjectsAhead(store, 3, 20, lambda number, _: number % 2 == 0)) as ahead:
        assert [ahead.take(number).footer.identity.number for number in (3, 4, 6, 5, 9, 9, 20)] == [
            3,
            4,
            6,
            5,
            9,
            9,
            20,
        ]
        assert not ahead.has_more
        assert ahead.take(21).footer.identity.number == 21
    with closing(ObjectsAhead(store, 1, 20, lambda *_: True)) as ahead:
        for number, found in enumerate(ahead, 1):
            here = JournalObject(store, number)
            assert [found.payload(each) for each in found.index.entries] == [
                here.payload(each) for each in here.index.entries
            ]
    with closing(ObjectsAhead(store, 900, 905, lambda *_: True)) as ahead, pytest.raises(ObjectMissing):
        ahead.take(900)
