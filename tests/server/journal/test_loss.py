"""What a lost machine may have acknowledged that the store lacks: told by the machine that takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import forebay
from forebay.fs.local import LocalFileSystem
from forebay.inprocess import EmbeddedConnection
from forebay.metadata.table import TableBucket
from forebay.server.journal.loss import StoreLoss, read_loss
from forebay.store.journal import JournalCursor, open_journal
from forebay.store.journal_format import EpochBegan
from forebay.store.opening import open_store
from forebay.verify import verify_directory
from tests.patience import PATIENCE

Start = Callable[..., EmbeddedConnection]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server on a directory, which goes on when another one takes over, until the test ends."""
    running: list[EmbeddedConnection] = []

    def started(name: str, durability: str = "local") -> EmbeddedConnection:
        settings = {"store": str(tmp_path / "store"), "store.durability": durability, "store.interval": "10 ms"}
        running.append(forebay.embedded(tmp_path / name, settings=settings))
        return running[-1]

    yield started
    for connection in running:
        connection.close()


def written(conn: EmbeddedConnection) -> tuple[TableBucket, TableBucket]:
    """Rows in two logs, which the store has."""
    log = conn.create_table("fluss.log", {"id": "BIGINT"})
    parts = conn.create_table("fluss.parts", {"id": "BIGINT", "day": "STRING"}, partition_keys="day")
    log.append([{"id": 1}, {"id": 2}])
    parts.append([{"id": 1, "day": "mon"}])
    journal = conn.server.server._journal
    assert journal is not None
    assert journal.wait_until_stored(PATIENCE)
    (partition,) = conn.server.server.context.catalog.table(parts.info.path).current.partitions_by_id
    return TableBucket(log.info.table_id, 0), TableBucket(parts.info.table_id, 0, partition)


def loss_of(folder: Path) -> StoreLoss | None:
    return read_loss(LocalFileSystem(), str(folder))


def test_the_next_machine_knows_from_when_on_and_where_rows_may_be_missing(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, parts = written(start("old"))
    conn = start("new")
    loss = loss_of(tmp_path / "new")
    assert loss is not None
    assert loss.ends == {log: 2, parts: 1}
    assert loss.holder.startswith(str(tmp_path / "old"))
    assert conn.server.server.context.clock.now_ms() - PATIENCE * 1000 < loss.since_ms
    assert f"what it acknowledged from {loss.since} on may be missing" in caplog.text
    conn.table("fluss.log").append([{"id": 3}])
    conn.close()
    report = verify_directory(tmp_path / "new")
    assert report.is_clean
    notes = {finding.place: finding.message for finding in report.findings}
    assert any(f"what it acknowledged from {loss.since} on may be missing" in note for note in notes.values())
    ends = {place: note for place, note in notes.items() if note.startswith("had its records")}
    assert sorted(ends.values()) == [f"had its records up to offset {end} in the store" for end in (1, 2)]
    assert any("/mon-" in place and "offset 1 " in note for place, note in ends.items()), ends


def test_nothing_is_missing_after_a_stop(start: Start, tmp_path: Path) -> None:
    old = start("old")
    written(old)
    old.close()
    start("new")
    assert loss_of(tmp_path / "new") is None


def test_nothing_is_missing_if_answers_waited_for_the_store(start: Start, tmp_path: Path) -> None:
    written(start("old", durability="store"))
    start("new")
    assert loss_of(tmp_path / "new") is None


def test_the_same_directory_has_lost_nothing(start: Start, tmp_path: Path) -> None:
    old = start("old")
    written(old)
    old.close()
    start("old")
    assert loss_of(tmp_path / "old") is None


def test_a_server_that_came_no_further_than_its_fence_hides_no_loss(start: Start, tmp_path: Path) -> None:
    log, parts = written(start("old"))
    store = open_store(str(tmp_path / "store"))
    cursor = JournalCursor(store, open_journal(store))
    writer = None
    while writer is None:
        while cursor.next() is not None:
            pass
        writer = cursor.fence(EpochBegan("crashed", "test"), b"c" * 16)
    start("new")
    loss = loss_of(tmp_path / "new")
    assert loss is not None
    assert loss.ends == {log: 2, parts: 1}
    assert loss.holder.startswith(str(tmp_path / "old"))
