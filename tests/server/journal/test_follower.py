"""A data directory that repeats a journal is what the server's was, also if the follower dies at any time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forebay.base.errors import Conflict, CorruptData, StorageFailure
from forebay.fs.local import LocalFileSystem
from forebay.log.checkpoints import DataDirectory
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.table import Column, DatabaseInfo, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.server.journal.feed import FilePart
from forebay.server.journal.follower import JournalFollower
from forebay.server.journal.uploader import JournalUploader
from forebay.server.metadata_store import LocalDatabaseFile, MetadataStore
from forebay.store.directory import DirectoryStore
from forebay.store.journal import JournalCursor, JournalObject, open_journal
from forebay.store.journal_format import EpochBegan, IndexedEntry, JournalCheckpoint, LogGrew, MetadataImage
from tests.fs.faulty_fs import FaultyFileSystem
from tests.log.log_batches import make_batch
from tests.server.journal.noted_server import Server, content_of


class Primary(Server):
    """A server with a metadata store, whose logs belong to tables."""

    def __init__(self, folder: Path, store: DirectoryStore) -> None:
        super().__init__()
        self.metadata = MetadataStore(LocalDatabaseFile(str(folder / "metadata.sqlite")))
        writer = JournalCursor(store, open_journal(store)).fence(EpochBegan("primary", "test"), b"p" * 16)
        assert writer is not None
        writer.write([(MetadataImage(0), self.metadata.image())])
        self.metadata.tell(self.feed.metadata_committed)
        self.uploader = JournalUploader(self.feed, writer, self)
        self.by_table: dict[int, LogTablet] = {}

    def create_table(self, name: str) -> int:
        schema = Schema.of([Column("a", types.int_())])
        info = TableInfo(TablePath("db", name), -1, 1, TableDescriptor(schema, bucket_count=1))
        table_id = self.metadata.create_table(info).table_id
        self.by_table[table_id] = self.open_log(table_id)
        return table_id

    def drop_table(self, table_id: int) -> None:
        self.metadata.delete_table(table_id, f"db/t-{table_id}")
        del self.by_table[table_id], self.logs[TableBucket(table_id, 0)]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(LocalFileSystem(), str(tmp_path / "store"))


@pytest.fixture
def primary(tmp_path: Path, store: DirectoryStore) -> Iterator[Primary]:
    primary = Primary(tmp_path / "primary", store)
    yield primary
    primary.metadata.close()


def follower_in(folder: Path, store: DirectoryStore) -> JournalFollower:
    fs = LocalFileSystem()
    directory = DataDirectory.open(fs, str(folder))
    try:
        return JournalFollower(fs, directory, store, open_journal(store))
    finally:
        directory.close()


@pytest.fixture
def follow(tmp_path: Path, store: DirectoryStore) -> Callable[[], JournalFollower]:
    return lambda: follower_in(tmp_path / "copy", store)


def upload(primary: Primary) -> None:
    while primary.uploader.upload():
        pass


def dump(store: MetadataStore) -> list[str]:
    return sorted(line for line in store._connection.iterdump() if "journal-number" not in line)


def assert_same(primary: Primary, copy: Path) -> None:
    with closing(MetadataStore(LocalDatabaseFile(str(copy / "metadata.sqlite")), is_new=False)) as metadata:
        assert dump(metadata) == dump(primary.metadata)
        tables = {record.info.table_id: record.info.path.table for record in metadata.tables()}
    assert tables.keys() == primary.by_table.keys()
    fs = LocalFileSystem()
    directory = DataDirectory.open(fs, str(copy))
    assert directory.take_clean_shutdown()
    points = directory.recovery_points.read()
    directory.close()
    for table_id, log in primary.by_table.items():
        end = points.get(TableBucket(table_id, 0), 0)
        assert end == log.synced_offset
        folder = f"{copy}/db/{tables[table_id]}-{table_id}/log-0"
        copied = LogTablet.open(fs, folder, recovery_point=end, clean_shutdown=True)
        assert content_of(copied, end) == content_of(log, end)
        assert copied.writer_states() == log.writer_states()
        copied.close()
    for name, content in primary.files.items():
        assert (copy / name).read_bytes() == content
    assert primary.files or not list((copy / "stages").rglob("*"))


def test_a_copy_has_tables_rows_and_files(
    tmp_path: Path, primary: Primary, follow: Callable[[], JournalFollower]
) -> None:
    primary.metadata.put_database(DatabaseInfo("db", None, {}, 1, 1))
    log = primary.by_table[primary.create_table("t")]
    log.append_as_leader(make_batch(3, b"rows", writer_id=5, sequence=0))
    log.sync()
    primary.files["stages/1.stage"] = b"staged"
    primary.feed.add(FilePart("stages/1.stage", 0, 6))
    upload(primary)
    follower = follow()
    assert follower.follow() == 3
    follower.finish("taken over")
    assert_same(primary, tmp_path / "copy")
    assert (tmp_path / "copy" / "restored").read_text().endswith("taken over\n")


def test_a_directory_of_a_server_or_of_another_journal_is_not_taken(
    tmp_path: Path, primary: Primary, store: DirectoryStore, follow: Callable[[], JournalFollower]
) -> None:
    with pytest.raises(Conflict, match="is the data directory of a server"):
        follower_in(tmp_path / "primary", store)
    follow().close()
    other = DirectoryStore(LocalFileSystem(), str(tmp_path / "other"))
    with pytest.raises(Conflict, match="follows the journal of another store"):
        follower_in(tmp_path / "copy", other)


def test_a_damaged_metadata_file_of_a_copy_is_named(
    tmp_path: Path, primary: Primary, follow: Callable[[], JournalFollower]
) -> None:
    primary.metadata.put_database(DatabaseInfo("db", None, {}, 1, 1))
    upload(primary)
    follower = follow()
    follower.follow()
    (tmp_path / "copy" / "metadata.sqlite").write_bytes(b"no database" * 100)
    primary.metadata.put_producer_offsets("p", 5, b"\x00", 1)
    upload(primary)
    with pytest.raises(CorruptData, match=r"the metadata file .*/copy/metadata.sqlite is damaged"):
        follower.follow()


def test_an_object_that_cannot_be_read_is_repeated_and_not_left_out(
    tmp_path: Path, primary: Primary, follow: Callable[[], JournalFollower], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary.metadata.put_database(DatabaseInfo("db", None, {}, 1, 1))
    log = primary.by_table[primary.create_table("t")]
    log.append_as_leader(make_batch(3, b"rows"))
    log.sync()
    upload(primary)
    follower = follow()
    payload = JournalObject.payload

    def away(found: JournalObject, of: IndexedEntry) -> bytes:
        if isinstance(of.entry, LogGrew):
            raise StorageFailure("the store is away")
        return payload(found, of)

    with monkeypatch.context() as patch:
        patch.setattr(JournalObject, "payload", away)
        for _ in range(2):
            with pytest.raises(StorageFailure):
                follower.follow()
        follower.save()
    follower.follow()
    follower.finish("done")
    assert_same(primary, tmp_path / "copy")


def test_a_follower_that_goes_on_remembers_checkpoints_and_fences(
    primary: Primary, store: DirectoryStore, follow: Callable[[], JournalFollower]
) -> None:
    primary.uploader._writer.write([(JournalCheckpoint(image=2, needed_from=3, deleted_until=2), None)])
    cursor = JournalCursor(store, open_journal(store))
    while cursor.next() is not None:
        pass
    assert cursor.fence(EpochBegan("other", "test"), b"o" * 16) is not None
    follower = follow()
    follower.follow()
    follower.close()
    again = follow()
    assert (again.needed_from, again.deleted_until, again.fences) == (3, 2, [4])
    again.close()


def test_a_file_that_is_written_again_in_parts_is_whole_all_the_time(
    tmp_path: Path, primary: Primary, follow: Callable[[], JournalFollower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.server.journal.feed._PART_BYTES", 3)
    monkeypatch.setattr(primary.uploader, "_object_bytes", 3)  # an object for each part
    primary.files["stages/1/a"] = b"12345678"
    primary.feed.file_grew("stages/1/a", 0, 8)
    upload(primary)
    follower = follow()
    follower.follow()
    primary.feed.file_grew("stages/1/a", 0, 8)
    upload(primary)
    count = 0
    while follower.follow_one() is not None:
        assert (tmp_path / "copy" / "stages" / "1" / "a").read_bytes() == b"12345678"
        count += 1
    assert count == 3
    follower.close()


def test_files_and_folders_are_removed_where_they_are(tmp_path: Path, store: DirectoryStore) -> None:
    primary = Primary(tmp_path / "primary", store)
    fs = FaultyFileSystem(random.Random(1))
    for name in ("db/t-1/lake/a.offsets", "stages/1/a"):
        primary.files[name] = b"rows"
        primary.feed.file_grew(name, 0, 4)
    upload(primary)
    directory = DataDirectory.open(fs, "/copy")
    follower = JournalFollower(fs, directory, store, open_journal(store), database_file=LocalDatabaseFile)
    follower.follow()
    assert fs.exists("/copy/db/t-1/lake/a.offsets")
    for name in ("db/t-1/lake/a.offsets", "stages/1", "stages/2", "other/file"):
        primary.feed.file_removed(name)
    upload(primary)
    follower.follow()
    assert not fs.exists("/copy/db/t-1/lake/a.offsets")
    assert fs.exists("/copy/db/t-1/lake")
    assert fs.exists("/copy/stages")
    assert not fs.exists("/copy/stages/1")
    primary.metadata.close()


@pytest.mark.parametrize("seed", range(60))
def test_a_follower_that_dies_at_any_time_goes_on(
    tmp_path: Path, primary: Primary, follow: Callable[[], JournalFollower], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("forebay.server.journal.feed._PART_BYTES", 3)
    rng = random.Random(seed)
    follower, stage = follow(), "stages/0/a"
    primary.metadata.put_database(DatabaseInfo("db", None, {}, 1, 1))
    for step in range(80):
        tables = list(primary.by_table)
        table_id = rng.choice(tables) if tables else None
        match rng.randrange(10):
            case 0:
                primary.create_table(f"t{step}")
            case 1 if len(tables) > 2 and table_id is not None:
                primary.drop_table(table_id)
            case 2 | 3 | 4 | 5 if table_id is not None:
                log = primary.by_table[table_id]
                writer = rng.choice([-1, 7])
                sequence = log.last_sequence(7) + 1 if writer == 7 else -1
                log.append_as_leader(
                    make_batch(rng.randrange(4), rng.randbytes(40), writer_id=writer, sequence=sequence)
                )
                log.sync()
            case 6 if table_id is not None and primary.by_table[table_id].log_end_offset:
                log = primary.by_table[table_id]
                log.truncate_to(rng.randrange(log.log_end_offset))
            case 7:
                primary.metadata.put_producer_offsets(f"p{step % 3}", step + 5, b"\x00", step)
            case 8:
                before = primary.files.get(stage, b"")
                primary.files[stage] = before + b"%d" % step
                primary.feed.add(FilePart(stage, len(before), len(primary.files[stage])))
            case 9 if primary.files and rng.random() < 0.2:
                primary.files.clear()
                primary.feed.file_removed(stage.rpartition("/")[0])
                stage = f"stages/{step}/a"
            case 9 if primary.files and rng.random() < 0.2:  # as for a checkpoint
                primary.feed.file_grew(stage, 0, len(primary.files[stage]))
            case _:
                primary.uploader.upload()
                follower.follow_one()
                if rng.random() < 0.3:
                    follower.save()
                elif rng.random() < 0.4:
                    follower = follow()  # the one before has died
    upload(primary)
    follower.follow()
    follower.finish("done")
    assert_same(primary, tmp_path / "copy")
