"""Checkpoints: a new machine reads the newest one and what follows, and the store forgets what is before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import forebay
from forebay import Table
from forebay.base.errors import StorageFailure
from forebay.inprocess import EmbeddedConnection
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.server.journal.server_journal import ServerJournal
from forebay.store import journal as journal_module
from forebay.store.journal import JournalCursor, JournalGone, newest_checkpoint, open_journal
from forebay.store.journal_format import EpochBegan
from forebay.store.opening import open_store
from tests.patience import PATIENCE, until

Start = Callable[..., EmbeddedConnection]
COLUMNS = {"id": "BIGINT", "v": "STRING"}
ANCHORS = 8


@pytest.fixture(autouse=True)
def many_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "ANCHOR_EVERY", ANCHORS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server whose store forgets at once, and whose segments are tiny and moved when it is told to."""
    running: list[EmbeddedConnection] = []

    def started(name: str, **more: str) -> EmbeddedConnection:
        settings = {
            "store": str(tmp_path / "store"),
            "store.interval": "10 ms",
            "store.retention": "0 ms",
            "store.segment-age": "0 ms",
            "log.segment.file-size": "2kb",
            "remote.log.task-interval-duration": "1 d",
            "remote.log.task-max-upload-segments": "1000",
        }
        running.append(forebay.embedded(tmp_path / name, settings=settings | more))
        return running[-1]

    yield started
    for connection in running:
        connection.close()


def journal_of(conn: EmbeddedConnection) -> ServerJournal:
    journal = conn.server.server._journal
    assert journal is not None
    return journal


def stored(conn: EmbeddedConnection) -> None:
    assert journal_of(conn).wait_until_stored(PATIENCE)


def tier(conn: EmbeddedConnection) -> None:
    stored(conn)
    tiering = conn.server.server._tiering
    assert tiering is not None
    tiering.run()


def objects(tmp_path: Path) -> set[int]:
    return {int(path.name) for path in (tmp_path / "store" / "journal").iterdir() if path.name.isdigit()}


def write(conn: EmbeddedConnection, table: Table, first: int, count: int) -> None:
    """Rows in many objects of the journal."""
    for value in range(first, first + count):
        rows = [{"id": value, "v": f"row {value} " * 10}]
        if table.info.has_primary_key:
            table.upsert(rows)
        else:
            table.append(rows)
        stored(conn)


def ids(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def log_of(conn: EmbeddedConnection, table: Table) -> LogTablet:
    with conn.server.server.context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
        return replica.log


def forget(conn: EmbeddedConnection, tmp_path: Path, table: Table, last: int) -> int:
    """Write until the store has forgotten the objects up to `last`; return how many rows it took."""
    count, fences = 0, conn.server.server.context.store.journal_fences()
    while any(number <= last and number % ANCHORS for number in objects(tmp_path) - fences):
        assert count < 400, objects(tmp_path)
        write(conn, table, 10_000 + count, 1)
        tier(conn)
        count += 1
    return count


def test_a_new_machine_starts_from_a_checkpoint(start: Start, tmp_path: Path) -> None:
    old = start("old")
    log = old.create_table("fluss.log", COLUMNS)
    kv = old.create_table("fluss.kv", COLUMNS, primary_key="id")
    gone = old.create_table("fluss.gone", COLUMNS)
    write(old, gone, 0, 3)
    write(old, log, 0, 40)
    write(old, kv, 0, 40)
    old.drop_table("fluss.gone")
    tier(old)
    number = journal_of(old)._writer.number
    more = forget(old, tmp_path, log, number)
    write(old, kv, 40, 5)
    with old.transaction("app", 3) as tx:
        tx.upsert(kv, [{"id": 1000, "v": "committed"}])
    expected = [*range(40), *range(10_000, 10_000 + more)]
    assert ids(log) == expected
    stored(old)
    checkpoint = newest_checkpoint(open_store(str(tmp_path / "store")))
    assert checkpoint is not None
    assert checkpoint.first > number

    new = start("new")
    assert ids(new.table("fluss.log")) == expected
    assert ids(new.table("fluss.kv")) == [*range(45), 1000]
    assert new.list_tables("fluss") == ["kv", "log"]
    assert new.admin.committed_version("app") == 3
    assert log_of(new, new.table("fluss.log")).local_start_offset > 30
    write(new, new.table("fluss.log"), 50_000, 3)
    write(new, new.table("fluss.kv"), 45, 3)
    assert ids(new.table("fluss.log")) == [*expected, 50_000, 50_001, 50_002]
    tier(new)
    assert ids(start("newer").table("fluss.kv")) == [*range(48), 1000]


def test_a_log_that_nobody_writes_to_any_more_keeps_its_offsets(start: Start, tmp_path: Path) -> None:
    old = start("old")
    idle = old.create_table("fluss.idle", COLUMNS)
    busy = old.create_table("fluss.busy", COLUMNS)
    write(old, idle, 0, 7)
    tier(old)
    forget(old, tmp_path, busy, journal_of(old)._writer.number)
    new = start("new")
    table = new.table("fluss.idle")
    assert ids(table) == list(range(7))
    assert sum(batch.num_rows for batch in table.changes("earliest", "latest")) == 7
    write(new, table, 7, 1)
    log = log_of(new, table)
    assert (log.local_start_offset, log.log_end_offset) == (7, 8)
    assert ids(table) == list(range(8))


def test_a_server_that_was_away_for_long_is_refused(start: Start, tmp_path: Path) -> None:
    old = start("old")
    table = old.create_table("fluss.log", COLUMNS)
    store = open_store(str(tmp_path / "store"))
    cursor = JournalCursor(store, open_journal(store))
    written = 0
    while cursor.number < 5:  # behind it is an object that is no anchor, and does not stay
        if cursor.next() is None:
            write(old, table, written, 1)
            written += 1
    number = cursor.number
    forget(old, tmp_path, table, number + ANCHORS)
    with pytest.raises(JournalGone, match="Start with a new data directory"):
        cursor.next()
    with pytest.raises(JournalGone):
        cursor.fence(EpochBegan("late", "test"), bytes(16))
    assert number + 1 not in objects(tmp_path)
    write(old, table, written, 1)


def test_fences_and_anchors_stay(start: Start, tmp_path: Path) -> None:
    fences = []
    for round_ in range(3):
        conn = start("data")
        table = conn.create_table("fluss.log", COLUMNS, ignore_if_exists=True)
        fences = sorted(conn.server.server.context.store.journal_fences())
        write(conn, table, 100 * round_, 5)
        tier(conn)
        if round_ < 2:
            conn.close()
    forget(conn, tmp_path, table, journal_of(conn)._writer.number)
    left = objects(tmp_path)
    assert len(fences) == 3
    assert left >= {*fences, *range(ANCHORS, max(fences), ANCHORS)}


def test_a_new_machine_begins_at_the_checkpoint_before_if_the_newest_is_not_there(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start("old")
    table = old.create_table("fluss.log", COLUMNS)
    forget(old, tmp_path, table, 2 * ANCHORS)
    rows = ids(table)
    old.close()
    store = open_store(str(tmp_path / "store"))
    delete = type(store).delete

    def fails(*_: object) -> None:
        raise StorageFailure("the store is away")

    # A takeover whose fence is an anchor has no checkpoint there.
    starts = 0
    while ((count := max(objects(tmp_path))) + 1) % ANCHORS:
        assert starts < 10 * ANCHORS, count
        conn = start("old")
        # A start and a stop may take two objects, which alone would never lead to an odd number.
        write(conn, conn.table("fluss.log"), 20_000 + starts, starts % 2)
        rows = ids(conn.table("fluss.log"))
        conn.close()
        starts += 1
    monkeypatch.setattr(type(store), "delete", fails)
    conn = start("old")
    assert count + 1 in conn.server.server.context.store.journal_fences()
    conn.close()
    monkeypatch.setattr(type(store), "delete", delete)
    assert ids(start("new").table("fluss.log")) == rows


def test_the_uploads_go_on_where_deleting_fails(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.server.journal.server_journal._DELETION_SECONDS", 0.0)
    monkeypatch.setattr("forebay.server.journal.server_journal._RETRY_SECONDS", 1e6)  # no upload waits for it
    conn = start("data")
    table = conn.create_table("fluss.log", COLUMNS)
    store = journal_of(conn).store
    delete = type(store).delete
    attempts = 0

    def fails(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        raise StorageFailure("the store is away")

    monkeypatch.setattr(type(store), "delete", fails)
    for value in range(400):
        write(conn, table, value, 1)
        tiering = conn.server.server._tiering
        assert tiering is not None
        if attempts > 2:
            break
        with pytest.MonkeyPatch.context() as context:
            context.setattr(tiering, "_delete_doomed", lambda: None)
            tier(conn)
    assert attempts > 2
    monkeypatch.setattr(type(store), "delete", delete)
    until(lambda: 2 not in objects(tmp_path), "the store forgets")
