"""Copies of a store that forget what only earlier copies needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import CorruptData, StorageFailure
from forebay.cli.main import main
from forebay.server.journal.copy_records import CopiesForgotten, forget_copies
from forebay.server.journal.store_instant import instant_of
from forebay.store.directory import DirectoryStore
from forebay.store.journal import newest_object, object_name
from forebay.store.opening import open_store
from tests.server.journal.copies import Start, content, copied, fill, many_checkpoints, servers, stored, tier


@pytest.fixture(autouse=True)
def anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    many_checkpoints(monkeypatch)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with servers(tmp_path) as start:
        yield start


def forgotten(tmp_path: Path, until_ms: int, target: str = "target") -> CopiesForgotten | None:
    return forget_copies(open_store(str(tmp_path / target)), until_ms)


def objects(tmp_path: Path, target: str = "target") -> set[str]:
    folder = tmp_path / target
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def needed(tmp_path: Path, target: str = "target") -> set[str]:
    """What the newest instant of a copy needs, beside the journal."""
    store = open_store(str(tmp_path / target))
    newest = newest_object(store)
    assert newest is not None
    instant = instant_of(store, newest)
    return {*instant.named, *instant.doomed}


def test_a_copy_keeps_what_instants_need_since_the_last_one_that_is_old_enough(start: Start, tmp_path: Path) -> None:
    """Copies are made more often than the store forgets, so each instant in between can be restored as well."""
    rng = random.Random(11)
    conn = start("data")
    states: list[tuple[int, dict[str, list[dict[str, Any]]]]] = []
    copies: list[int] = []
    sizes = []
    for step in range(24):
        fill(conn, rng, step)
        tier(conn) if step % 2 else stored(conn)
        states.append((SYSTEM_CLOCK.now_ms(), content(conn)))
        if step % 3 == 2:
            copies.append(copied(tmp_path, "target").at_ms)
        if step % 6 == 5:
            before = objects(tmp_path)
            result = forgotten(tmp_path, copies[-2])
            assert result is not None
            assert result.since_ms == copies[-2]
            sizes.append(len(before) - len(objects(tmp_path)))
        SYSTEM_CLOCK.sleep(0.003)
    assert sum(sizes) > 10
    since = copies[-2]
    for number, (at_ms, expected) in enumerate(states):
        if at_ms >= since and at_ms <= copies[-1]:
            copied(tmp_path, f"at {number}", at_ms, source="target")
            with start(f"from {number}", f"at {number}") as restored:
                assert content(restored) == expected
    with start("from target", "target") as restored:
        assert content(restored) == states[-1][1]
        restored.table("fluss.kv").upsert([{"id": 1, "v": "it goes on"}])


def test_nothing_stays_that_no_instant_needs(start: Start, tmp_path: Path) -> None:
    conn = start("data", retention="0 s")
    for step in range(20):
        fill(conn, random.Random(step), step)
        tier(conn)
        copied(tmp_path, "target")
    for database_table in ("fluss.kv", "fluss.log"):
        conn.drop_table(database_table)
    tier(conn)
    tier(conn)
    copied(tmp_path, "target")
    assert forgotten(tmp_path, SYSTEM_CLOCK.now_ms()) is not None
    beside_journal = {name for name in objects(tmp_path) if not name.startswith(("journal/", "copies/", "store.json"))}
    assert beside_journal <= needed(tmp_path)
    assert len([name for name in objects(tmp_path) if name.startswith("copies/")]) == 1
    again = forgotten(tmp_path, SYSTEM_CLOCK.now_ms())
    assert again is not None
    assert again.objects == 0


def test_a_copy_that_is_young_forgets_nothing(start: Start, tmp_path: Path) -> None:
    conn = start("data")
    assert forgotten(tmp_path, SYSTEM_CLOCK.now_ms()) is None
    fill(conn, random.Random(1), 0)
    stored(conn)
    made = copied(tmp_path, "target")
    before = objects(tmp_path)
    assert forgotten(tmp_path, made.at_ms - 1) is None
    assert objects(tmp_path) == before


def test_a_copy_that_was_interrupted_is_not_one_that_stays(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start("data", retention="0 s")
    fill(conn, random.Random(1), 0)
    tier(conn)
    whole = copied(tmp_path, "target").at_ms
    expected = content(conn)
    SYSTEM_CLOCK.sleep(0.003)
    for step in range(1, 4):
        fill(conn, random.Random(step), step)
        tier(conn)

    def failing(store: DirectoryStore, name: str, parts: Any) -> None:
        raise StorageFailure("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "upload", failing)
        with pytest.raises(StorageFailure):
            copied(tmp_path, "target")
    interrupted = SYSTEM_CLOCK.now_ms()
    SYSTEM_CLOCK.sleep(0.003)
    conn.drop_table("fluss.kv")
    tier(conn)
    tier(conn)
    copied(tmp_path, "target")
    result = forgotten(tmp_path, interrupted)
    assert result is not None
    assert result.since_ms == whole
    copied(tmp_path, "then", whole, source="target")
    with start("from then", "then") as restored:
        assert content(restored) == expected


def test_what_was_interrupted_goes_on(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = start("data", retention="0 s")
    for step in range(12):
        fill(conn, random.Random(step), step)
        tier(conn)
        copied(tmp_path, "target")
    monkeypatch.setattr("forebay.server.journal.copy_records._DELETED_AT_ONCE", 3)
    left = [0]

    def failing(name: str) -> None:
        whole = getattr(DirectoryStore, name)

        def call(store: DirectoryStore, *arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise StorageFailure("the store is away")
            return whole(store, *arguments)

        monkeypatch.setattr(DirectoryStore, name, call)

    failing("create")
    failing("delete")
    attempts = 0
    while True:
        left[0] = attempts
        attempts += 1
        try:
            assert forgotten(tmp_path, SYSTEM_CLOCK.now_ms()) is not None
        except StorageFailure:
            continue
        break
    assert attempts > 3
    left[0] = 1 << 30
    assert {name for name in objects(tmp_path) if name.startswith("log/")} <= needed(tmp_path)
    fill(conn, random.Random(99), 12)
    tier(conn)
    copied(tmp_path, "target")
    with start("restored", "target") as restored:
        assert content(restored) == content(conn)


def test_a_record_that_is_damaged_is_named(start: Start, tmp_path: Path) -> None:
    conn = start("data")
    fill(conn, random.Random(1), 0)
    stored(conn)
    copied(tmp_path, "target")
    (record,) = (tmp_path / "target" / "copies").iterdir()
    record.write_bytes(b'{"number": 1}')
    with pytest.raises(CorruptData, match=rf"copies/{record.name} does not describe a copy"):
        forgotten(tmp_path, SYSTEM_CLOCK.now_ms())


def test_the_command_says_what_it_keeps(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conn = start("data", retention="0 s")
    store, target = str(tmp_path / "store"), str(tmp_path / "target")
    command = ["backup", "--store", store, "--keep"]
    for step in range(12):
        fill(conn, random.Random(step), step)
        tier(conn) if step else stored(conn)  # so that the first objects of the journal are there at first
        assert main([*command, "1 d", target]) == 0
    assert "the copy is too young to forget anything" in capsys.readouterr().out
    assert (tmp_path / "target" / object_name(2)).exists()
    assert main([*command, "0 s", target]) == 0
    assert "deleted" in (out := capsys.readouterr().out)
    assert "the copy is as of 2" in out
    assert not (tmp_path / "target" / object_name(2)).exists()
    assert main(["backup", "--data-dir", str(tmp_path / "data"), "--keep", "1 d", str(tmp_path / "new")]) == 1
    assert "--at, --keep and -D are for copies of a store" in capsys.readouterr().err
