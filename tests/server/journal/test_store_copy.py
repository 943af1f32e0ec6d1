"""Copies of a store: as of now, as of a time, again and again, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import Conflict, InvalidRequest, StorageFailure
from forebay.cli.main import main
from forebay.inprocess import EmbeddedConnection
from forebay.server.journal.store_copy import StoreCopied, copy_store
from forebay.store import journal as journal_module
from forebay.store.directory import DirectoryStore
from forebay.store.opening import open_store
from tests.patience import PATIENCE

Start = Callable[..., EmbeddedConnection]
SMALL = {"log.segment.file-size": "2kb", "remote.log.task-interval-duration": "1 d", "kv.checkpoint.records": "20"}


@pytest.fixture(autouse=True)
def many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "ANCHOR_EVERY", 8)
    monkeypatch.setattr("forebay.server.journal.checkpoints._PREPARED_BEFORE", 4)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server in a data directory of this name, with the store of this name."""
    running: list[EmbeddedConnection] = []

    def started(name: str, store: str = "store", retention: str = "1 h") -> EmbeddedConnection:
        settings = {"store": str(tmp_path / store), "store.interval": "20 ms", "store.retention": retention, **SMALL}
        running.append(forebay.embedded(tmp_path / name, settings=settings))
        return running[-1]

    yield started
    for connection in running:
        connection.close()


def stored(conn: EmbeddedConnection) -> None:
    journal = conn.server.server._journal
    assert journal is not None
    assert journal.wait_until_stored(PATIENCE)


def tier(conn: EmbeddedConnection) -> None:
    """Log segments and state move to the store."""
    stored(conn)
    conn.server.server._tiering.run()  # type: ignore[union-attr]
    stored(conn)


def copied(tmp_path: Path, target: str, at_ms: int | None = None, source: str = "store") -> StoreCopied:
    return copy_store(open_store(str(tmp_path / source)), open_store(str(tmp_path / target)), at_ms)


def content(conn: EmbeddedConnection) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables, and all changes."""
    found = {}
    for name in sorted(table for database in conn.list_databases() for table in conn.list_tables(database)):
        table = conn.table(name if "." in name else f"fluss.{name}")
        rows = table.scan().to_arrow().to_pylist()
        found[name] = sorted(rows, key=lambda row: sorted(map(str, row.items())))
        changes = table.changes("earliest", "latest").to_arrow().drop_columns(["_commit_timestamp"]).to_pylist()
        found[f"{name} changes"] = sorted(changes, key=lambda row: (row["__bucket"], row["_log_offset"]))
    return found


def fill(conn: EmbeddedConnection, rng: random.Random, step: int) -> None:
    """Some writes of every kind."""
    if step == 0:
        conn.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=2)
        conn.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    kv, log = conn.table("fluss.kv"), conn.table("fluss.log")
    for _ in range(rng.randint(1, 4)):
        kv.upsert([{"id": rng.randrange(50), "v": f"{step} " * 20} for _ in range(10)])
        log.append([{"id": step, "v": "x" * 200} for _ in range(10)])
    with conn.transaction("job", step) as tx:
        tx.upsert("fluss.kv", [{"id": 1000, "v": str(step)}])
        tx.append("fluss.log", [{"id": 1000, "v": str(step)}])
    if step % 4 == 3:
        conn.create_table(f"fluss.t{step}", {"id": "BIGINT"}).append([{"id": step}])
    if step % 8 == 7:
        conn.drop_table(f"fluss.t{step - 4}")


def test_a_store_is_copied_as_of_any_instant_and_again(start: Start, tmp_path: Path) -> None:
    rng = random.Random(7)
    conn = start("data")
    states: list[tuple[int, dict[str, list[dict[str, Any]]]]] = []
    sizes = []
    for step in range(16):
        fill(conn, rng, step)
        tier(conn) if step % 3 == 2 else stored(conn)
        if step % 2:
            sizes.append(copied(tmp_path, "again").objects)
        states.append((SYSTEM_CLOCK.now_ms(), content(conn)))
        SYSTEM_CLOCK.sleep(0.003)
    objects = len([each for each in (tmp_path / "store").rglob("*") if each.is_file()])
    assert sum(sizes) < 1.5 * objects, "what was there was copied again"
    with start("from again", "again") as restored:
        assert content(restored) == states[-1][1]
    for number in (0, 5, 10, 15):
        at_ms, expected = states[number]
        found = copied(tmp_path, f"at {number}", at_ms)
        assert found.at_ms <= at_ms
        with start(f"from {number}", f"at {number}") as restored:
            assert content(restored) == expected
            restored.table("fluss.kv").upsert([{"id": 1, "v": "it goes on"}])
    assert content(conn) == states[-1][1]


def test_an_object_that_was_not_yet_created_is_in_the_next_copy(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start("data")
    for step in range(3):
        fill(conn, random.Random(2), step)
    upload, copies = DirectoryStore.upload, []

    def copying(store: DirectoryStore, name: str, parts: Any) -> None:
        if store.location == str(tmp_path / "store") and not copies:
            copies.append(name)
            stored(conn)  # that it is doomed
            copied(tmp_path, "target")
            assert not (tmp_path / "target" / name).exists()
        upload(store, name, parts)

    monkeypatch.setattr(DirectoryStore, "upload", copying)
    tier(conn)
    assert copies
    copied(tmp_path, "target")
    segments = [path.relative_to(tmp_path / "store") for path in (tmp_path / "store" / "log").rglob("*.log")]
    assert segments
    assert all((tmp_path / "target" / path).exists() for path in segments)
    with start("restored", "target") as restored:
        assert content(restored) == content(conn)


def test_a_time_that_is_longer_ago_than_the_retention_is_refused(start: Start, tmp_path: Path) -> None:
    conn = start("data", retention="0 s")
    fill(conn, random.Random(2), 0)
    stored(conn)
    at_ms = SYSTEM_CLOCK.now_ms()
    SYSTEM_CLOCK.sleep(0.003)
    journal = conn.server.server._journal
    assert journal is not None
    for step in range(1, 20):
        fill(conn, random.Random(2), step)
        tier(conn)
    assert not (tmp_path / "store" / journal_module.object_name(4)).exists()
    with pytest.raises(StorageFailure, match=r"it was deleted, as the store keeps .* longer than the time goes back"):
        copied(tmp_path, "target", at_ms)
    assert not (tmp_path / "target").exists()


def test_what_is_no_earlier_copy_is_refused(start: Start, tmp_path: Path) -> None:
    conn = start("data")
    fill(conn, random.Random(1), 0)
    stored(conn)
    at_ms = SYSTEM_CLOCK.now_ms()
    copied(tmp_path, "early")
    SYSTEM_CLOCK.sleep(0.003)
    fill(conn, random.Random(1), 1)
    stored(conn)
    copied(tmp_path, "late")
    with pytest.raises(Conflict, match=r"has more than .* had at that time, object \d+"):
        copied(tmp_path, "late", at_ms)
    start("taken", "early").close()
    for number in range(2, 6):
        fill(conn, random.Random(1), number)
    stored(conn)
    with pytest.raises(Conflict, match="has gone on as a store of its own: choose a new one"):
        copied(tmp_path, "early")
    start("other", "another").close()
    with pytest.raises(Conflict, match="is not a copy of"):
        copied(tmp_path, "another")
    with pytest.raises(InvalidRequest, match="no server has written to the store"):
        copied(tmp_path, "new", source="nothing")
    with pytest.raises(InvalidRequest, match="is younger than that time"):
        copied(tmp_path, "new", 1)
    assert not (tmp_path / "new").exists()


def test_a_copy_that_was_interrupted_goes_on(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = start("data")
    for step in range(5):
        fill(conn, random.Random(3), step)
    tier(conn)
    create, left = DirectoryStore.create, [0]

    def failing(store: DirectoryStore, *arguments: Any) -> bool:
        left[0] -= 1
        if left[0] < 0:
            raise StorageFailure("the store is away")
        return create(store, *arguments)

    for attempt in range(0, 1000, 5):
        left[0] = attempt
        with monkeypatch.context() as patch:
            patch.setattr(DirectoryStore, "create", failing)
            try:
                copied(tmp_path, "target")
            except StorageFailure:
                continue
        break
    assert attempt > 0
    with start("restored", "target") as restored:
        assert content(restored) == content(conn)


def test_a_directory_that_is_ahead_of_a_copy_is_not_its_server(start: Start, tmp_path: Path) -> None:
    conn = start("data")
    fill(conn, random.Random(1), 0)
    stored(conn)
    copied(tmp_path, "target")
    fill(conn, random.Random(1), 1)
    conn.close()
    with pytest.raises(Conflict, match=r"has not the object \d+ of the journal .*Start with a new data directory"):
        start("data", "target")


def test_the_command_says_what_it_copied(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conn = start("data")
    fill(conn, random.Random(1), 0)
    stored(conn)
    store, target = str(tmp_path / "store"), str(tmp_path / "target")
    assert main(["backup", "--store", store, target]) == 0
    assert f"to {target}, which is as of 2" in capsys.readouterr().out
    assert main(["backup", "--store", store, "--at", "2020-01-01", str(tmp_path / "new")]) == 1
    assert "is younger than that time" in capsys.readouterr().err
    assert main(["backup", "--data-dir", str(tmp_path / "data"), "--at", "2020-01-01", str(tmp_path / "new")]) == 1
    assert "--at and -D are for copies of a store" in capsys.readouterr().err
    assert journal_module.newest_object(open_store(target)) is not None
