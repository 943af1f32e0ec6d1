"""The metadata file after a kill and damage: every acknowledged commit is in it, or the damage is reported."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forebay.base.errors import Conflict, CorruptData, LimitExceeded, StorageFailure
from forebay.codec.crc import crc32c
from forebay.metadata.table import DatabaseInfo, TableBucket
from forebay.server import metadata_store
from forebay.server.metadata_store import (
    ChangingStatement,
    LocalDatabaseFile,
    MetadataStore,
    OffsetsFile,
    StoredCommit,
    StoredEpoch,
    StoredLakeSnapshot,
    StoredTransaction,
)
from tests.noted_databases import NotedDatabases

NAMES = [f"database{number}" for number in range(20)]


def stored(path: Path) -> list[str]:
    store = MetadataStore(LocalDatabaseFile(str(path)), is_new=False)
    try:
        return sorted(info.name for info in store.databases())
    finally:
        store.close()


def test_a_flipped_bit_in_any_file_of_a_killed_server_takes_no_commit_away_in_silence(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    store = MetadataStore(LocalDatabaseFile(str(folder / "metadata.sqlite")))
    for name in NAMES:
        store.put_database(DatabaseInfo(name, None, {}, 1, 1))
    rng = random.Random(7)
    files = [path for path in sorted(folder.iterdir()) if path.stat().st_size]
    told = 0
    for trial in range(60):
        copy = tmp_path / f"{trial}"
        shutil.copytree(folder, copy)
        damaged = copy / rng.choice(files).name
        content = bytearray(damaged.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        damaged.write_bytes(content)
        try:
            assert stored(copy / "metadata.sqlite") == sorted(NAMES), f"trial {trial}, {damaged.name}"
        except (CorruptData, StorageFailure):
            told += 1
    store.close()
    assert 0 < told < 60


def test_damage_that_sqlite_quotes_is_reported_with_the_file(tmp_path: Path) -> None:
    """SQLite names the table whose definition it cannot read. Where that name is damaged, its error is no text."""
    path = tmp_path / "metadata.sqlite"
    MetadataStore(LocalDatabaseFile(str(path))).close()
    whole = path.read_bytes()
    reported = 0
    for name in (b"CREATE TABLE databases", b"CREATE TABLE doomed_folders", b"CREATE TABLE schemas"):
        for flipped in range(len(name)):
            at = whole.index(name) + flipped
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
            with pytest.raises(CorruptData, match=r"metadata\.sqlite is damaged") as raised:
                MetadataStore(LocalDatabaseFile(str(path)), is_new=False).check_rows()
            reported += isinstance(raised.value.__cause__, UnicodeDecodeError)
    assert reported


def test_a_store_of_a_newer_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    MetadataStore(LocalDatabaseFile(str(path))).close()
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute("UPDATE settings SET value = '999' WHERE key = 'format-version'")
        sql.execute("DROP TABLE log_epochs")
    before = path.read_bytes()
    with pytest.raises(StorageFailure, match="has metadata of format 999, this version of Forebay knows format"):
        MetadataStore(LocalDatabaseFile(str(path)), is_new=False)
    assert path.read_bytes() == before


def test_a_store_of_an_older_version_gets_the_number_that_keeps_the_older_version_out(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    for older in metadata_store._OLDER_VERSIONS:
        MetadataStore(LocalDatabaseFile(str(path))).close()
        with closing(sqlite3.connect(path)) as sql, sql:
            sql.execute("UPDATE settings SET value = ? WHERE key = 'format-version'", (older,))
        MetadataStore(LocalDatabaseFile(str(path)), is_new=False).close()
        with closing(sqlite3.connect(path)) as sql:
            stored_version = sql.execute("SELECT value FROM settings WHERE key = 'format-version'").fetchone()
        assert stored_version == (str(metadata_store.FORMAT_VERSION),)


def test_a_change_of_what_is_on_disk_has_a_new_format_number() -> None:
    """If this fails: raise FORMAT_VERSION, add the last one to _OLDER_VERSIONS, and put the new digest here."""
    digest = crc32c(" ".join(metadata_store._TABLES.split()).encode())
    assert (metadata_store.FORMAT_VERSION, digest) == (5, 2349272702)


def test_a_check_of_all_rows_finds_one_that_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(MetadataStore(LocalDatabaseFile(str(path)))) as store:
        store.put_database(DatabaseInfo("good", None, {}, 1, 1))
        store.put_database(DatabaseInfo("bad", None, {}, 1, 1))
        store.check_rows()
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute("UPDATE databases SET created_ms = 2 WHERE name = 'bad'")
    with (
        closing(MetadataStore(LocalDatabaseFile(str(path)), is_new=False)) as store,
        pytest.raises(CorruptData, match=r"a row does not have its checksum: .'bad'"),
    ):
        store.check_rows()


def rows_of(database: sqlite3.Connection) -> list[str]:
    return sorted(database.iterdump())


def test_changes_that_are_repeated_on_an_image_give_the_same_store(tmp_path: Path) -> None:
    changes: list[ChangingStatement] = []
    with closing(MetadataStore(LocalDatabaseFile(str(tmp_path / "metadata.sqlite")))) as store:
        store.put_database(DatabaseInfo("before", None, {}, 1, 1))
        copy = sqlite3.connect(":memory:")
        copy.deserialize(store.image())
        store.tell(changes.extend)
        store.put_database(DatabaseInfo("db", "a comment", {"a": "b"}, 1, 1))
        store.delete_database("before")
        store.take("writer", 5)
        store.put_place("here")
        bucket = TableBucket(3, 1, 8)
        store.begin_log_epoch(StoredEpoch(1, "e", 5, "why", False, 0, 0), {"table": 1000}, keep=9)
        store.put_log_epoch_starts([(bucket, 1, 77)])
        offsets = OffsetsFile("a/b", 3)
        store.put_lake_snapshots(
            3, [StoredLakeSnapshot(1, 1, offsets, None), StoredLakeSnapshot(2, 1, offsets, offsets)]
        )
        commits = [StoredCommit(3, 0, 5, 1, "app", 2, "me", "INSERT", 10)] * 3
        store.put_transaction(StoredTransaction(1, "app", 2, 1, 9, 4, ("x", "y")), [6], commits)
        with pytest.raises(Conflict):
            store.put_transaction(StoredTransaction(2, "app", 2, 1, 9, 4, ("z",)))
        store.put_producer_offsets("p", 10, b"\x00\xff", 5)
        store.put_producer_offsets("p", 12, b"later", 5)
        assert store.expire_producer_offsets(11) == 1
        assert store.commits(3)[-1].number == 3
        for statement, values in changes:
            copy.execute(statement, values)
        copy.commit()
        assert rows_of(copy) == rows_of(store._connection)
    copy.close()


def test_a_transaction_that_changes_nothing_or_fails_is_not_told(tmp_path: Path) -> None:
    changes: list[ChangingStatement] = []
    with closing(MetadataStore(LocalDatabaseFile(str(tmp_path / "metadata.sqlite")))) as store:
        store.tell(changes.extend)
        with contextlib.suppress(ZeroDivisionError), store.transaction() as sql:
            sql.execute("DELETE FROM databases")
            raise ZeroDivisionError
        with store.transaction() as sql:
            sql.execute("SELECT 1").fetchall()
    assert changes == []


@pytest.mark.parametrize(
    ("found", "put"), [(b"CREATE TABLE tables", b"CREATE TABLEmounts."), (b"SQLite format", b"SQLite-format")]
)
def test_a_file_that_sqlite_cannot_open_is_told_as_damaged(tmp_path: Path, found: bytes, put: bytes) -> None:
    path = tmp_path / "metadata.sqlite"
    MetadataStore(LocalDatabaseFile(str(path))).close()
    content = path.read_bytes()
    assert content.count(found) == 1
    path.write_bytes(content.replace(found, put))
    with pytest.raises(CorruptData, match=f"the metadata file {path} is damaged: .* Restore it from a copy"):
        stored(path)


def test_the_journal_is_cut_at_the_end_of_each_commit_and_synced(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(MetadataStore(LocalDatabaseFile(str(path)))) as store:
        store.put_database(DatabaseInfo("db", None, {}, 1, 1))
        journal = path.with_name(path.name + "-journal")
        assert (journal.exists(), journal.stat().st_size) == (True, 0)
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_file_of_another_format_is_left_to_the_version_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    MetadataStore(LocalDatabaseFile(str(path))).close()
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute("UPDATE settings SET value = '99' WHERE key = 'format-version'")
    with pytest.raises(StorageFailure, match="metadata of format 99, this version of Forebay knows format"):
        MetadataStore(LocalDatabaseFile(str(path)))


def test_a_store_that_cannot_be_opened_leaves_no_connection(tmp_path: Path) -> None:
    path, opened = tmp_path / "metadata.sqlite", NotedDatabases()
    path.write_bytes(b"no database at all")
    with pytest.raises(CorruptData):
        MetadataStore(opened(str(path)))
    path.unlink()
    MetadataStore(opened(str(path))).close()
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute("UPDATE settings SET value = '99' WHERE key = 'format-version'")
    with pytest.raises(StorageFailure):
        MetadataStore(opened(str(path)))
    assert (len(opened.all), opened.left_open()) == (3, 0)


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_that_is_missing_or_empty_is_recreated_only_for_a_new_server(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "folder" / "metadata.sqlite"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    with pytest.raises(CorruptData, match="it is missing or empty, and a server has used the folder before"):
        MetadataStore(LocalDatabaseFile(str(path)), is_new=False)
    MetadataStore(LocalDatabaseFile(str(path))).close()
    assert stored(path) == []


def test_a_closed_store_reads_and_writes_nothing(tmp_path: Path) -> None:
    store = MetadataStore(LocalDatabaseFile(str(tmp_path / "metadata.sqlite")))
    store.close()
    with pytest.raises(CorruptData, match="closed"):
        store.databases()
    with pytest.raises(StorageFailure, match="closed"):
        store.put_database(DatabaseInfo("db", None, {}, 1, 1))


def test_offsets_of_producers_may_take_as_many_bytes_as_are_kept_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_store, "PRODUCER_BYTES_MAX", 10)
    with closing(MetadataStore(LocalDatabaseFile(str(tmp_path / "metadata.sqlite")))) as store:
        assert store.put_producer_offsets("a", 5, bytes(6), 0)
        with pytest.raises(
            LimitExceeded, match=r"'b' \(5 bytes\) are not kept: there are those of 1 producers already, 6"
        ):
            store.put_producer_offsets("b", 5, bytes(5), 0)
        assert store.put_producer_offsets("b", 5, bytes(4), 0)
        assert not store.put_producer_offsets("b", 9, b"", 4)
        assert store.producer_offsets("b", 4) == (5, bytes(4))
        assert store.producer_offsets("b", 5) is None
        assert store.put_producer_offsets("b", 9, bytes(10), 5)
