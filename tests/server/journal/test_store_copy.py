"""Copies of a store: as of now, as of a time, again and again, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import Conflict, InvalidRequest, StorageFailure
from forebay.cli.main import main
from forebay.store import journal as journal_module
from forebay.store.directory import DirectoryStore
from forebay.store.opening import open_store
from tests.server.journal.copies import Start, content, copied, fill, many_checkpoints, servers, stored, tier


@pytest.fixture(autouse=True)
def anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    many_checkpoints(monkeypatch)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with servers(tmp_path) as start:
        yield start


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


def test_a_copy_that_a_server_uses_is_refused_also_when_the_store_has_deleted_its_last_object(
    start: Start, tmp_path: Path
) -> None:
    conn = start("data", retention="0 s")
    for step in range(3):
        fill(conn, random.Random(step), step)
    stored(conn)
    copied(tmp_path, "target")
    start("taken", "target").close()
    taken = journal_module.newest_object(open_store(str(tmp_path / "target")))
    assert taken is not None
    number = taken.footer.identity.number
    for step in range(3, 40):
        fill(conn, random.Random(step), step)
        tier(conn)
        if not (tmp_path / "store" / journal_module.object_name(number)).exists():
            break
    assert not (tmp_path / "store" / journal_module.object_name(number)).exists()
    before = sorted((tmp_path / "target").rglob("*"))
    with pytest.raises(Conflict, match="has gone on as a store of its own: choose a new one"):
        copied(tmp_path, "target")
    assert sorted((tmp_path / "target").rglob("*")) == before


def test_a_copy_with_gaps_has_the_states_of_its_copies(start: Start, tmp_path: Path) -> None:
    """The store forgets faster than it is copied, so between two copies there is none of its instants."""
    rng = random.Random(5)
    conn = start("data", retention="0 s")
    states: list[tuple[int, dict[str, list[dict[str, Any]]]]] = []
    for step in range(36):
        fill(conn, rng, step)
        tier(conn)
        if step % 12 == 0:
            copied(tmp_path, "target")
            states.append((SYSTEM_CLOCK.now_ms(), content(conn)))
            SYSTEM_CLOCK.sleep(0.003)
    copied(tmp_path, "target")
    there = {int(path.name) for path in (tmp_path / "target" / "journal").iterdir()}
    assert not there >= set(range(min(there), max(there))), "there is a gap"
    for number, (at_ms, expected) in enumerate(states):
        copied(tmp_path, f"at {number}", at_ms + 1, source="target")
        with start(f"from {number}", f"at {number}") as restored:
            assert content(restored) == expected
    with pytest.raises(InvalidRequest, match="is younger than that time"):
        copied(tmp_path, "new", 1, source="target")


def test_what_an_interrupted_copy_has_brought_is_not_relied_upon(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start("data")
    fill(conn, random.Random(1), 0)
    tier(conn)
    copied(tmp_path, "target")
    for step in range(1, 4):
        fill(conn, random.Random(step), step)
        tier(conn)
    create, left = DirectoryStore.create, [4]

    def failing(store: DirectoryStore, name: str, data: Any) -> bool:
        if name.startswith("journal/"):
            left[0] -= 1
            if left[0] < 0:
                raise StorageFailure("the store is away")
        return create(store, name, data)

    before = set((tmp_path / "target" / "log").rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "create", failing)
        with pytest.raises(StorageFailure):
            copied(tmp_path, "target")
    brought = [path for path in (tmp_path / "target" / "log").rglob("*") if path not in before and path.is_file()]
    assert brought
    for path in brought:
        path.unlink()
    copied(tmp_path, "target")
    assert copied(tmp_path, "target").objects == 0
    with start("restored", "target") as restored:
        assert content(restored) == content(conn)


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
    assert "--at, --keep and -D are for copies of a store" in capsys.readouterr().err
    assert journal_module.newest_object(open_store(target)) is not None
