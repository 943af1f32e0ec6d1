"""The journal: a chain of objects with one writer at a time, whatever the store does with its requests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

from forebay.base.ambient import SYSTEM_IDS, SeededIds
from forebay.base.errors import CorruptData, ErrorCode, StorageFailure, UnsupportedOperation
from forebay.metadata.table import TableBucket
from forebay.store import journal as journal_module
from forebay.store.directory import DirectoryStore
from forebay.store.journal import (
    Fenced,
    JournalCursor,
    JournalGone,
    JournalObject,
    JournalWriter,
    anchor_from,
    is_anchor,
    newest_checkpoint,
    object_name,
    open_journal,
)
from forebay.store.journal_format import EpochBegan, FileWritten, JournalCheckpoint, LogGrew, MetadataImage
from forebay.store.objects import ObjectEntry, ObjectStore
from tests.fs.faulty_fs import FaultyFileSystem

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUCKET = TableBucket(1, 0)


class UnreliableStore:
    """A store whose creations fail: before or after they happen, or they happen later, when nobody expects them."""

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self._store, self._rng = store, rng
        self.location = store.location
        self.late: list[tuple[str, bytes]] = []
        self.fails = 0.5

    def create(self, name: str, data: Buffer) -> bool:
        if self._rng.random() >= self.fails:
            return self._store.create(name, data)
        match self._rng.choice(["before", "after", "later"]):
            case "after":
                self._store.create(name, data)
            case "later":
                self.late.append((name, bytes(data)))
        raise StorageFailure(f"no answer to the creation of {name}")

    def deliver_late(self) -> None:
        """Let a request that was under way arrive."""
        if self.late:
            self._store.create(*self.late.pop(self._rng.randrange(len(self.late))))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return self._store.read(name, start, end)

    def upload(self, name: str, parts: Iterable[Buffer]) -> None:
        self._store.upload(name, parts)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        return self._store.list(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        self._store.delete(names)


@pytest.fixture
def store() -> DirectoryStore:
    return DirectoryStore(FaultyFileSystem(random.Random(1)), "/store")


@pytest.fixture
def cursor(store: DirectoryStore) -> JournalCursor:
    return JournalCursor(store, open_journal(store))


def new_writer_id() -> bytes:
    return bytes.fromhex(SYSTEM_IDS.token_hex())


def writer_of(cursor: JournalCursor, holder: str = "a") -> JournalWriter:
    writer = cursor.fence(EpochBegan(holder, "test"), new_writer_id())
    assert writer is not None
    return writer


def entries_of(cursor: JournalCursor) -> list[tuple[object, bytes]]:
    result: list[tuple[object, bytes]] = []
    while (found := cursor.next()) is not None:
        result += [(each.entry, found.payload(each)) for each in found.index.entries]
    return result


def test_an_empty_payload_is_told_from_the_one_behind_it(store: ObjectStore) -> None:
    writer = writer_of(JournalCursor(store, open_journal(store)))
    number = writer.write(
        [(FileWritten("empty", 0), b""), (FileWritten("full", 0), b"rows"), (FileWritten("", 0), b"")]
    )
    found = JournalObject(store, number)
    for _ in range(2):
        assert [found.payload(each) for each in found.index.entries] == [b"", b"rows", b""]
        found.load(lambda _: True)


def test_a_store_is_made_once_and_recognized(store: DirectoryStore) -> None:
    assert open_journal(store, ids=SeededIds(1)) == open_journal(store, ids=SeededIds(2))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"{}", CorruptData),
        (b"\xff", CorruptData),
        (b'{"format": 1, "store": "x"}', CorruptData),
        (b'{"format": 2, "store": "00"}', UnsupportedOperation),
    ],
)
def test_a_store_of_others_is_refused(store: DirectoryStore, content: bytes, error: type) -> None:
    store.create("store.json", content)
    with pytest.raises(error, match="/store"):
        open_journal(store)


def test_what_a_writer_writes_is_read_in_order(store: DirectoryStore, cursor: JournalCursor) -> None:
    reader = JournalCursor(store, cursor.store_id)
    writer = writer_of(cursor, "host 7")
    assert writer.write([(LogGrew(BUCKET, 0, 2), b"two"), (LogGrew(BUCKET, 2, 3), b"one")]) == 2
    assert writer.write([]) == 3
    assert entries_of(reader) == [
        (EpochBegan("host 7", "test"), b""), (LogGrew(BUCKET, 0, 2), b"two"), (LogGrew(BUCKET, 2, 3), b"one"),
    ]  # fmt: skip
    assert (reader.number, reader.epoch) == (3, 1)
    assert reader.next() is None
    writer.write([(LogGrew(BUCKET, 3, 4), b"more")])
    assert [payload for _, payload in entries_of(reader)] == [b"more"]


def test_an_index_of_any_size_is_read(store: DirectoryStore, cursor: JournalCursor) -> None:
    rng = random.Random(1)
    entries = [(LogGrew(TableBucket(rng.getrandbits(60), 0), 0, rng.getrandbits(60)), b"") for _ in range(20_000)]
    writer_of(cursor).write(entries)
    assert len(JournalObject(store, 2).index.entries) == 20_000


def test_whoever_fences_is_the_writer_and_the_one_before_learns_it(
    store: DirectoryStore, cursor: JournalCursor
) -> None:
    first = writer_of(cursor)
    first.write([(LogGrew(BUCKET, 0, 1), b"1")])
    standby = JournalCursor(store, cursor.store_id)
    assert standby.fence(EpochBegan("b", "too early"), new_writer_id()) is None  # it has not read what there is
    entries_of(standby)
    second = writer_of(standby, "b")
    assert (first.epoch, second.epoch) == (1, 2)
    with pytest.raises(Fenced, match="another server has taken over") as raised:
        first.write([(LogGrew(BUCKET, 1, 2), b"lost")])
    assert raised.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    second.write([(LogGrew(BUCKET, 1, 2), b"2")])
    assert [payload for _, payload in entries_of(JournalCursor(store, cursor.store_id))] == [b"", b"1", b"", b"2"]


def test_a_reader_goes_on_where_it_was(store: DirectoryStore, cursor: JournalCursor) -> None:
    writer = writer_of(cursor)
    for number in range(3):
        writer.write([(LogGrew(BUCKET, number, number + 1), b"%d" % number)])
    reader = JournalCursor(store, cursor.store_id)
    reader.next()
    reader.next()
    again = JournalCursor(store, cursor.store_id, reader.number, reader.seal, reader.epoch)
    assert [payload for _, payload in entries_of(again)] == [b"1", b"2"]


def _replaced(files: FaultyFileSystem, number: int, data: bytes) -> None:
    files.write_atomic(f"/store/{object_name(number)}", data)


@pytest.mark.parametrize(
    "other",
    [
        lambda store: store.read(object_name(2)),
        lambda store: store.read(object_name(3))[:-1],
        lambda store: b"",
    ],
    ids=["another number", "cut off", "empty"],
)
def test_an_object_that_does_not_follow_is_refused(other: Callable[[ObjectStore], bytes]) -> None:
    files = FaultyFileSystem(random.Random(1))
    store = DirectoryStore(files, "/store")
    cursor = JournalCursor(store, open_journal(store))
    writer = writer_of(cursor)
    for number in range(3):
        writer.write([(LogGrew(BUCKET, number, number + 1), b"")])
    _replaced(files, 3, other(store))
    reader = JournalCursor(store, cursor.store_id)
    assert reader.next() is not None
    assert reader.next() is not None
    with pytest.raises(CorruptData, match=r"journal/0*3"):
        reader.next()
    assert reader.number == 2


def test_an_object_of_another_history_is_refused(store: DirectoryStore, cursor: JournalCursor) -> None:
    files = FaultyFileSystem(random.Random(2))
    other = DirectoryStore(files, "/store")
    other.create("store.json", store.read("store.json"))
    writer_of(JournalCursor(other, cursor.store_id)).write([])
    writer_of(cursor).write([])
    _replaced(files, 1, store.read(object_name(1)))
    reader = JournalCursor(other, cursor.store_id)
    reader.next()
    with pytest.raises(CorruptData, match="does not follow the object before"):
        reader.next()


def test_a_writer_writes_nothing_behind_an_object_that_is_unknown(store: DirectoryStore) -> None:
    unreliable = UnreliableStore(store, random.Random(3))
    unreliable.fails = 0
    writer = writer_of(JournalCursor(unreliable, open_journal(unreliable)))
    unreliable.fails = 1
    with pytest.raises(StorageFailure, match="no answer"):
        writer.write([(LogGrew(BUCKET, 0, 1), b"1")])
    with pytest.raises(StorageFailure, match="is still unknown"):
        writer.write([(LogGrew(BUCKET, 1, 2), b"2")])
    unreliable.fails = 0
    assert writer.retry() == 2
    assert writer.write([(LogGrew(BUCKET, 1, 2), b"2")]) == 3


@pytest.mark.parametrize("seed", range(300))
def test_what_was_acknowledged_is_there_once_whatever_the_store_does(seed: int) -> None:
    """Servers take over from each other at random, and go on writing until they notice; requests arrive late."""
    rng = random.Random(seed)
    store = UnreliableStore(DirectoryStore(FaultyFileSystem(rng), "/store"), rng)
    store.fails = 0
    store_id = open_journal(store)
    store.fails = rng.choice([0, 0.1, 0.5])
    writers: list[tuple[int, JournalWriter]] = []
    acknowledged: list[bytes] = []
    written: set[bytes] = set()
    pending: dict[int, bytes] = {}
    counts: dict[int, int] = {}
    for step in range(60):
        if rng.random() < 0.2:
            store.deliver_late()
        if not writers or rng.random() < 0.1:
            cursor = JournalCursor(store, store_id)
            entries_of(cursor)
            try:
                writer = cursor.fence(EpochBegan(str(step), "random"), bytes.fromhex(SeededIds(step).token_hex()))
            except StorageFailure:
                continue
            if writer is not None:
                writers.append((step, writer))
            continue
        me, writer = rng.choice(writers)
        try:
            if me in pending:
                writer.retry()
            else:
                counts[me] = counts.get(me, -1) + 1
                pending[me] = b"%d-%d" % (me, counts[me])
                written.add(pending[me])
                writer.write([(LogGrew(BUCKET, 0, 1), pending[me])])
        except Fenced:
            writers.remove((me, writer))
        except StorageFailure:
            continue
        else:
            acknowledged.append(pending.pop(me))
    while store.late:
        store.deliver_late()
    found = [payload for _, payload in entries_of(JournalCursor(store, store_id)) if payload]
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found) <= written
    for me in counts:
        of_writer = [each for each in found if each.startswith(b"%d-" % me)]
        assert of_writer == [b"%d-%d" % (me, number) for number in range(len(of_writer))]


# ---- objects that are deleted ---------------------------------------------------------------------------------------


class Follower:
    """Knows what the journal has, as a server does: from the newest checkpoint, whose image has all that is before."""

    def __init__(self, store: ObjectStore, store_id: bytes) -> None:
        self.known: list[str] = []
        self.fences: list[int] = []
        checkpoint = newest_checkpoint(store)
        if checkpoint is None:
            self.cursor = JournalCursor(store, store_id)
            return
        image = JournalObject(store, checkpoint.image)
        self.cursor = JournalCursor.behind(image, store, store_id)
        self._see(image)

    def follow(self) -> None:
        while (found := self.cursor.next()) is not None:
            self._see(found)

    def _see(self, found: JournalObject) -> None:
        for each in found.index.entries:
            match each.entry:
                case EpochBegan():
                    self.fences.append(found.footer.identity.number)
                case MetadataImage():
                    self.known, self.fences = json.loads(found.payload(each))
                case LogGrew():
                    self.known.append(found.payload(each).decode())
                case _:
                    pass


class Server:
    """Writes to the journal, also images and checkpoints, and deletes what is before them."""

    def __init__(self, name: int, follower: Follower, writer: JournalWriter) -> None:
        self.name, self.writer = name, writer
        self.known, self.fences = list(follower.known), [*follower.fences, writer.number]
        self.count = 0
        self.image: int | None = None
        self.deletable = 0
        self._pending: tuple[str, str | None, int | None] | None = None

    def write(self) -> str | None:
        """Write the next object; return the row that it acknowledges then, if any."""
        if self._pending is not None:
            self.writer.retry()
        elif self.writer.is_anchor_next:
            image, number = self.image, self.writer.number
            self._pending = ("checkpoint", None, image)
            self.writer.write([] if image is None else [(JournalCheckpoint(image, min(image, number), 1), None)])
        elif (self.writer.number + 2) % journal_module.ANCHOR_EVERY == 0:
            self._pending = ("image", None, self.writer.number + 1)
            self.writer.write([(MetadataImage(0), json.dumps([self.known, self.fences]).encode())])
        else:
            row = f"{self.name}-{self.count}"
            self.count += 1
            self._pending = ("row", row, None)
            self.writer.write([(LogGrew(BUCKET, 0, 1), row.encode())])
        (kind, row_done, image), self._pending = self._pending, None
        if kind == "image":
            self.image = image
        elif kind == "checkpoint" and image is not None:
            self.deletable = image
        elif row_done is not None:
            self.known.append(row_done)
        return row_done

    def delete(self, store: ObjectStore) -> None:
        store.delete(object_name(n) for n in range(1, self.deletable) if not is_anchor(n) and n not in self.fences)


@pytest.mark.parametrize("seed", range(300))
def test_nothing_is_lost_or_written_twice_where_old_objects_are_deleted(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers and followers stop anywhere, and go on when others have deleted what they were about to read or write."""
    rng = random.Random(seed)
    monkeypatch.setattr(journal_module, "ANCHOR_EVERY", rng.choice([4, 5, 8]))
    store = UnreliableStore(DirectoryStore(FaultyFileSystem(rng), "/store"), rng)
    store.fails = 0
    store_id = open_journal(store)
    store.fails = rng.choice([0, 0.1, 0.4])
    servers: list[Server] = []
    followers = [Follower(store, store_id)]
    acknowledged: list[str] = []
    for step in range(200):
        if rng.random() < 0.1:
            store.deliver_late()
        choice = rng.random()
        if not servers or choice < 0.06:
            follower = rng.choice(followers) if rng.random() < 0.5 else Follower(store, store_id)
            try:
                follower.follow()
                own = bytes.fromhex(SeededIds(step).token_hex())
                writer = follower.cursor.fence(EpochBegan(str(step), "random"), own)
            except JournalGone:
                followers = [each for each in followers if each is not follower]
            except StorageFailure:
                pass
            else:
                if writer is not None:
                    servers.append(Server(step, follower, writer))
                    followers = [each for each in followers if each is not follower]
            followers = followers or [Follower(store, store_id)]
            continue
        if choice < 0.12:
            followers.append(Follower(store, store_id))
            continue
        server = rng.choice(servers) if rng.random() < 0.3 else servers[-1]
        if choice < 0.2:
            server.delete(store)
            continue
        try:
            row = server.write()
        except Fenced:
            servers.remove(server)
        except StorageFailure:
            continue
        else:
            acknowledged += [] if row is None else [row]
    while store.late:
        store.deliver_late()
    last = Follower(store, store_id)
    last.follow()
    assert len(last.known) == len(set(last.known))
    assert set(acknowledged) <= set(last.known)
    for name in {row.split("-")[0] for row in last.known}:
        of_server = [row for row in last.known if row.startswith(f"{name}-")]
        assert of_server == [f"{name}-{number}" for number in range(len(of_server))]


def test_the_newest_checkpoint_is_found_among_any_number_of_anchors(
    store: DirectoryStore, cursor: JournalCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "ANCHOR_EVERY", 2)
    writer = writer_of(cursor)
    assert newest_checkpoint(store) is None
    for number in range(2, 80):
        assert writer.write([(JournalCheckpoint(number, number, 1), None)] if is_anchor(number) else []) == number
        expected = number if is_anchor(number) else number - 1
        assert newest_checkpoint(store) == JournalCheckpoint(expected, expected, 1)
    assert (anchor_from(1), anchor_from(2), anchor_from(3)) == (2, 2, 4)
