"""What a server does is in the journal, in its order, whatever is cut and dropped meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import CorruptData, StorageFailure
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.server.journal.feed import FilePart, FileRemoval, JournalFeed
from forebay.server.journal.uploader import JournalUploader
from forebay.server.metadata_store import ChangingStatement
from forebay.store.directory import DirectoryStore
from forebay.store.journal import JournalCursor, JournalObject, JournalWriter, open_journal
from forebay.store.journal_format import (
    EpochBegan,
    FileWritten,
    JournalCheckpoint,
    LogCut,
    LogGrew,
    MetadataChanged,
    Removed,
    decode_statements,
)
from tests.fs.faulty_fs import FaultyFileSystem
from tests.log.log_batches import make_batch
from tests.server.journal.noted_server import Server, content_of


@dataclass
class Copy:
    """What a reader of the journal has, made as simply as can be."""

    logs: dict[TableBucket, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    statements: list[ChangingStatement] = field(default_factory=list)

    def follow(self, cursor: JournalCursor) -> None:
        while (found := cursor.next()) is not None:
            for each in found.index.entries:
                payload = found.payload(each)
                match each.entry:
                    case LogGrew(bucket, first, end):
                        assert first == self.end(bucket)
                        self.logs.setdefault(bucket, []).append((first, end, payload))
                    case LogCut(bucket, end):
                        self._cut(bucket, end)
                    case MetadataChanged():
                        self.statements += [
                            ChangingStatement(text, tuple(values)) for text, values in decode_statements(payload)
                        ]
                    case FileWritten(name, position):
                        self.files[name] = self.files.get(name, b"")[:position] + payload
                    case Removed(name):
                        self.files.pop(name, None)

    def end(self, bucket: TableBucket) -> int:
        parts = self.logs.get(bucket)
        return parts[-1][1] if parts else 0

    def _cut(self, bucket: TableBucket, end: int) -> None:
        log = LogTablet.open(FaultyFileSystem(random.Random(1)), "/copy")
        for _, _, payload in self.logs[bucket]:
            log.append_as_follower(payload)
        assert log.truncate_to(end) == end
        self.logs[bucket] = [(0, end, bytes(b"".join(Server._batches(log, 0, end))))]

    def content(self, bucket: TableBucket) -> bytes:
        return b"".join(payload for _, _, payload in self.logs.get(bucket, []))


class NoCheckpoints:
    """Checkpoints of a journal that has always the same one."""

    def prepare(self, number: int) -> None: ...

    def checkpoint(self, stored: int) -> JournalCheckpoint:
        return JournalCheckpoint(1, 1, 1)

    def anchor_stored(self, number: int, ends: object) -> None: ...


@pytest.fixture
def store() -> DirectoryStore:
    return DirectoryStore(FaultyFileSystem(random.Random(2)), "/store")


@pytest.fixture
def writer(store: DirectoryStore) -> JournalWriter:
    writer = JournalCursor(store, open_journal(store)).fence(EpochBegan("test", "test"), b"w" * 16)
    assert writer is not None
    return writer


def copy_of(store: DirectoryStore) -> Copy:
    copy = Copy()
    copy.follow(JournalCursor(store, open_journal(store)))
    return copy


def test_rows_are_in_the_journal_when_they_are_synced(store: DirectoryStore, writer: JournalWriter) -> None:
    server = Server()
    uploader = JournalUploader(server.feed, writer, server)
    log = server.open_log(1)
    log.append_as_leader(make_batch(3, b"synced"))
    log.sync()
    log.append_as_leader(make_batch(2, b"not synced"))
    assert uploader.upload()
    assert uploader.stored_end(TableBucket(1, 0)) == 3
    assert copy_of(store).content(TableBucket(1, 0)) == content_of(log, 3)
    assert not uploader.upload()
    log.sync()
    assert uploader.upload()
    assert copy_of(store).content(TableBucket(1, 0)) == content_of(log, 5)


def test_an_object_may_be_empty_to_renew_the_lease(writer: JournalWriter) -> None:
    uploader = JournalUploader(JournalFeed(), writer, Server())
    before = writer.number
    assert not uploader.upload()
    assert uploader.upload(even_if_empty=True)
    assert writer.number == before + 1


def test_whoever_waits_learns_that_its_notes_are_stored(writer: JournalWriter) -> None:
    server = Server()
    uploader = JournalUploader(server.feed, writer, server)
    log = server.open_log(1)
    log.append_as_leader(make_batch(1))
    log.sync()
    noted = server.feed.noted
    assert not uploader.wait(noted, timeout=0)
    uploader.upload()
    assert uploader.wait(noted, timeout=0)
    uploader.fail(StorageFailure("over"))
    assert uploader.wait(noted, timeout=0)
    with pytest.raises(StorageFailure, match="over"):
        uploader.wait(noted + 1)


def test_a_log_that_lost_what_the_journal_has_is_not_cut_there(store: DirectoryStore, writer: JournalWriter) -> None:
    server = Server()
    uploader = JournalUploader(server.feed, writer, server, {TableBucket(1, 0): 5})
    server.open_log(1)
    with pytest.raises(CorruptData, match="ends at offset 0, and the journal has its records up to 5"):
        uploader.upload()
    assert copy_of(store).logs == {}


def test_a_large_backlog_becomes_several_objects_in_order(store: DirectoryStore, writer: JournalWriter) -> None:
    server = Server()
    uploader = JournalUploader(server.feed, writer, server, object_bytes=1000)
    log = server.open_log(1)
    for _ in range(20):
        log.append_as_leader(make_batch(1, bytes(300)))
        log.sync()
    before = writer.number
    while uploader.upload():
        pass
    assert 5 <= writer.number - before <= 10
    assert copy_of(store).content(TableBucket(1, 0)) == content_of(log, 20)


def test_a_file_that_cannot_be_read_for_now_loses_no_note(
    store: DirectoryStore, writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    uploader = JournalUploader(server.feed, writer, server)
    statements = [ChangingStatement("INSERT", (each,)) for each in range(3)]
    server.files["stage"] = b"rows"
    for statement in statements:
        server.feed.metadata_committed([statement])
        server.feed.add(FilePart("stage", 0, 4))

    def fails(name: str, position: int, end: int) -> bytes | None:
        raise StorageFailure("too many open files")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(server, "file_part", fails)
            with pytest.raises(StorageFailure):
                uploader.upload()
            uploader.upload()
    while uploader.upload():
        pass
    copy = copy_of(store)
    assert copy.statements == statements
    assert copy.files == server.files
    assert uploader.stored_count == server.feed.noted


def test_an_anchor_is_as_old_as_what_waits_behind_it(
    store: DirectoryStore, writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes over says from when on rows may be missing by the time of the last object."""
    monkeypatch.setattr("forebay.store.journal.ANCHOR_EVERY", writer.number + 1)
    clock = ManualClock()
    feed = JournalFeed(clock)
    uploader = JournalUploader(feed, writer, Server(), clock=clock)
    uploader.checkpoints = NoCheckpoints()  # type: ignore[assignment]
    feed.metadata_committed([ChangingStatement("waits", ())])
    noted_ms = clock.now_ms()
    clock.advance(60)
    assert uploader.upload()
    anchor = JournalObject(store, writer.number)
    assert anchor.index.first_ms == noted_ms
    assert [type(each.entry) for each in anchor.index.entries] == [JournalCheckpoint]


def test_a_note_of_many_rows_becomes_several_objects(store: DirectoryStore, writer: JournalWriter) -> None:
    """A log is opened that grew while the store was away."""
    server = Server()
    log = server.open_log(1)
    for _ in range(20):
        log.append_as_leader(make_batch(1, bytes(300)))
    log.sync()
    log.close()
    server.feed = JournalFeed()
    statements = [ChangingStatement("BEFORE", ()), ChangingStatement("AFTER", ())]
    server.feed.metadata_committed(statements[:1])
    log = server.open_log(1)
    server.feed.metadata_committed(statements[1:])
    uploader = JournalUploader(server.feed, writer, server, object_bytes=1000)
    noted, ends = server.feed.noted, [0]
    while not uploader.wait(noted, timeout=0):
        assert uploader.upload()
        copy = copy_of(store)
        ends.append(copy.end(TableBucket(1, 0)))
        assert ends[-1] - ends[-2] <= 8, "an object has few of the rows"
        assert len(copy.statements) == 1 or ends[-1] == 20
    assert len(ends) > 4
    assert copy.statements == statements
    assert copy.content(TableBucket(1, 0)) == content_of(log, 20)


@pytest.mark.parametrize("seed", range(100))
def test_the_journal_has_a_prefix_of_what_happened_at_any_time(
    store: DirectoryStore, writer: JournalWriter, seed: int
) -> None:
    rng = random.Random(seed)
    server = Server()
    uploader = JournalUploader(server.feed, writer, server, object_bytes=rng.choice([1, 500, 1 << 20]))
    copy, cursor = Copy(), JournalCursor(store, open_journal(store))
    statements: list[ChangingStatement] = []
    logs = {number: server.open_log(number) for number in range(3)}
    for step in range(150):
        number = rng.randrange(3)
        log = logs[number]
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                for _ in range(rng.randrange(1, 4)):
                    log.append_as_leader(make_batch(rng.randrange(1, 4), rng.randbytes(rng.randrange(300))))
                log.sync()
            case 4:
                if log.log_end_offset:
                    log.truncate_to(rng.randrange(log.log_end_offset))
            case 5:
                log.close()
                logs[number] = server.open_log(number)
            case 6:
                change = ChangingStatement("INSERT", (step,))
                statements.append(change)
                server.feed.metadata_committed([change])
            case 7:
                name, more = f"stage-{number}", rng.randbytes(50)
                before = server.files.get(name, b"")
                server.files[name] = before + more
                server.feed.add(FilePart(name, len(before), len(before) + 50))
            case 8:
                if server.files.pop(f"stage-{number}", None) is not None:
                    server.feed.add(FileRemoval(f"stage-{number}"))
            case 9:
                for _ in range(rng.randrange(4)):
                    uploader.upload()
                copy.follow(cursor)
                assert copy.statements == statements[: len(copy.statements)]
    while uploader.upload():
        pass
    copy.follow(cursor)
    assert copy.statements == statements
    assert copy.files == server.files
    for number, log in logs.items():
        assert copy.content(TableBucket(number, 0)) == content_of(log, log.synced_offset)
    assert uploader.stored_count == server.feed.noted
