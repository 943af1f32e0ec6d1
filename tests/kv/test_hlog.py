"""The engine `hlog`: compaction, snapshots under it, checkpoints that link, ends that are torn, damage, threads."""

from __future__ import annotations

import os
import random
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.base.errors import CorruptData, InvalidRequest, StorageFailure
from forebay.fs.interface import DiskFull
from forebay.kv import _digest
from forebay.kv.engine import EngineState
from forebay.kv.hlog._segments import FIRST_POSITION
from forebay.kv.hlog.hlog_engine import HEAD_FILE, SEGMENTS_FILE, HlogEngine, HlogWrites

GARBAGE = 32 << 10
"""Bytes of superseded records from which on these small logs are compacted."""


def opened(directory: Path) -> HlogEngine:
    return HlogEngine(directory, garbage_min=GARBAGE)


def log_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir() if file.name.startswith("log-"))


def rows_of(engine: HlogEngine) -> dict[bytes, bytes]:
    return dict(engine.items())


class Model:
    """An engine and the rows that it should have; every step goes to both."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.rows: dict[bytes, bytes] = {}
        self.offset = 0
        self.copies = 0
        self.directory = folder / "db"
        self.engine = opened(self.directory)
        self.snapshots: list[tuple[object, dict[bytes, bytes], EngineState]] = []
        self.checkpoint: tuple[Path, dict[bytes, bytes], EngineState] | None = None
        self.linked = 0

    def writes(self) -> dict[bytes, bytes | None]:
        rng = self.rng
        made: dict[bytes, bytes | None] = {}
        for _ in range(rng.choice((0, 1, 3, 40, 150))):
            key = b"%d" % rng.randrange(400)
            size = rng.choice((0, 5, 80, 600, 600, 3000))
            made[key * rng.choice((1, 1, 30))] = None if rng.random() < 0.25 else rng.randbytes(size)
        return made

    def group(self) -> None:
        """Some puts, some of which are taken back; the group is applied, or abandoned, or ends with a kill."""
        after = dict(self.rows)
        group = self.engine.begin(False)
        for _ in range(self.rng.randint(1, 4)):
            writes = self.writes()
            before = group.get(list(writes))
            assert [before[key] for key in writes] == [after.get(key) for key in writes]
            group.put(writes)
            if self.rng.random() < 0.2:
                group.take_back()
                continue
            for key, value in writes.items():
                if value is None:
                    after.pop(key, None)
                else:
                    after[key] = value
            if self.rng.random() < 0.1:  # while it is under way, others see the rows from before it
                self.check()
        end = self.rng.random()
        if end < 0.1:
            group.abandon()
        elif end < 0.2:
            self._reopen(self.directory, group)
        else:
            self.offset += 1
            group.apply(EngineState(self.offset, len(after)))
            self.rows = after

    def snapshot(self) -> None:
        self.snapshots.append((self.engine.snapshot(), dict(self.rows), self.engine.state))

    def end_snapshot(self) -> None:
        if not self.snapshots:
            return
        snapshot, rows, state = self.snapshots.pop(self.rng.randrange(len(self.snapshots)))
        assert snapshot.state == state  # type: ignore[attr-defined]
        assert dict(snapshot.items()) == rows  # type: ignore[attr-defined]
        found, after = 0, None
        while True:
            page = snapshot.page(after, self.rng.choice((0, 500, 1 << 20)), self.rng.choice((1, 7, 1 << 30)))  # type: ignore[attr-defined]
            found += page.rows
            if not page.has_more:
                break
            after = page.position
        assert found == len(rows)
        snapshot.close()  # type: ignore[attr-defined]

    def take_checkpoint(self) -> None:
        if not self.offset:
            return  # a log without a commit has nothing to copy, and gets no checkpoint
        self.copies += 1
        made = self.folder / f"checkpoint-{self.copies}"
        before = None if self.checkpoint is None else self.checkpoint[0]
        self.engine.checkpoint(made, before)
        self.linked += sum(file.stat().st_nlink > 1 for file in made.iterdir())
        if before is not None:
            shutil.rmtree(before)
        self.checkpoint = made, dict(self.rows), self.engine.state

    def clean(self) -> None:
        self.engine.clean()
        assert self.engine._log.live_bytes + 100_000 > self.engine._log.end - self.engine._log.start
        self.check()

    def kill(self) -> None:
        """The process dies, at whatever point: what it stored is in the page cache."""
        self._reopen(self.directory)

    def lose_files(self) -> None:
        """The files go, and those of the newest checkpoint come in their place."""
        if self.checkpoint is not None:
            source, rows, state = self.checkpoint
            self.rows, self.offset = dict(rows), state.applied_offset
            self._reopen(source)
            assert self.engine.state == state

    def _reopen(self, source: Path, under_way: HlogWrites | None = None) -> None:
        self.copies += 1
        copied = self.folder / f"db-{self.copies}"
        shutil.copytree(source, copied)
        if under_way is not None:
            under_way.abandon()  # in the files that stay behind
        self._end()
        self.directory, self.engine = copied, opened(copied)
        self.check()

    def close(self) -> None:
        self._end()
        self.engine = opened(self.directory)
        self.check()

    def _end(self) -> None:
        self.snapshots.clear()
        self.engine.close()

    def check(self) -> None:
        assert rows_of(self.engine) == self.rows
        keys = [b"%d" % i for i in range(400)]
        assert self.engine.multi_get(keys) == [self.rows.get(key) for key in keys]
        assert self.engine.state.applied_offset == self.offset

    def run(self, steps: int) -> None:
        actions = [self.group, self.snapshot, self.end_snapshot, self.take_checkpoint, self.kill, self.lose_files,
                   self.close, self.clean]  # fmt: skip
        for _ in range(steps):
            self.rng.choices(actions, (20, 2, 2, 1, 1, 0.5, 1, 1))[0]()
        self.check()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_rows_are_those_of_the_groups_that_were_applied(seed: int, tmp_path: Path) -> None:
    model = Model(tmp_path, seed)
    model.run(150)
    digest = _digest.of_pairs(list(model.rows), list(model.rows.values()))
    assert model.engine._log.digest == digest
    assert model.engine._log.live_rows == len(model.rows)
    model.engine.close()


def test_the_seeds_reach_compaction_and_links(tmp_path: Path) -> None:
    model = Model(tmp_path, 3)
    model.run(250)
    assert model.engine._log.start > FIRST_POSITION
    for step in (model.take_checkpoint, model.group, model.take_checkpoint, model.lose_files, model.take_checkpoint):
        step()
    assert model.linked > 0


def test_superseded_rows_are_cleared_away_and_the_log_stays_bounded(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    rows = {b"%05d" % i: bytes(500) for i in range(1000)}
    engine.apply(rows, EngineState(1, 1000))
    live = engine._log.live_bytes
    largest = 0
    for turn in range(300):
        changed = {b"%05d" % (turn * 37 % 1000 + i): bytes([turn % 256]) * 500 for i in range(30)}
        engine.apply(changed, EngineState(turn + 2, 1000))
        rows.update(changed)
        largest = max(largest, log_bytes(tmp_path / "db"))
    assert largest < 3 * live
    assert rows_of(engine) == rows
    engine.close()
    assert rows_of(opened(tmp_path / "db")) == rows


def test_a_log_of_deletes_alone_becomes_small(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    engine.apply({b"%05d" % i: bytes(500) for i in range(2000)}, EngineState(1, 2000))
    for i in range(0, 2000, 20):
        engine.apply({b"%05d" % j: None for j in range(i, i + 20)}, EngineState(i + 2, 2000 - i - 20))
    for i in range(40):
        engine.apply({b"one": b"%d" % i}, EngineState(3000 + i, 1))
    assert rows_of(engine) == {b"one": b"39"}
    assert log_bytes(tmp_path / "db") < 400 << 10
    engine.close()


def all_bytes(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


@pytest.mark.parametrize("rows", [0, 3, 2_000])
def test_a_cleaned_log_has_nothing_of_rows_that_were_deleted_or_replaced(rows: int, tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    others: dict[bytes, bytes | None] = {b"%d" % n: b"value %d" % n * 5 for n in range(rows)}
    engine.apply({**others, b"ann": b"secret of ann", b"bob": b"secret of bob"}, EngineState(1))
    engine.apply({b"ann": None, b"bob": b"changed"}, EngineState(2))
    assert b"secret" in all_bytes(tmp_path / "db")
    assert engine.clean()
    assert not engine.clean(), "there is nothing left to do"
    engine.checkpoint(tmp_path / "copy")
    assert rows_of(engine) == {**others, b"bob": b"changed"}
    engine.close()
    for name in ("db", "copy"):
        assert b"secret" not in all_bytes(tmp_path / name)
        assert b"ann" not in all_bytes(tmp_path / name)
        again = opened(tmp_path / name)
        assert (rows_of(again), again.state) == ({**others, b"bob": b"changed"}, EngineState(2))
        again.close()


def test_a_log_is_cleaned_while_a_snapshot_is_read_and_its_files_go_with_the_snapshot(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    engine.apply({b"ann": b"secret"}, EngineState(1))
    snapshot = engine.snapshot()
    engine.apply({b"ann": None, b"bob": b"b"}, EngineState(2))
    assert engine.clean()
    assert dict(snapshot.items()) == {b"ann": b"secret"}
    snapshot.close()
    assert b"secret" not in all_bytes(tmp_path / "db")
    assert rows_of(engine) == {b"bob": b"b"}
    engine.close()


def test_an_open_snapshot_keeps_its_segments_and_closing_it_removes_them(tmp_path: Path) -> None:
    directory = tmp_path / "db"
    engine = opened(directory)
    rows = {b"%05d" % i: bytes(500) for i in range(500)}
    engine.apply(rows, EngineState(1, 500))
    snapshot = engine.snapshot()
    for turn in range(60):
        engine.apply({b"%05d" % i: bytes([turn]) * 500 for i in range(100)}, EngineState(turn + 2, 500))
    assert engine._log.pinned_bytes > 0
    assert dict(snapshot.items()) == rows
    before = len(list(directory.iterdir()))
    snapshot.close()
    assert engine._log.pinned_bytes == 0
    assert len(list(directory.iterdir())) < before
    engine.close()


def test_a_checkpoint_links_what_the_one_before_has_and_copies_the_rest(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    rows = {b"%06d" % i: bytes(300) for i in range(3000)}
    engine.apply(rows, EngineState(1, 3000))
    engine.checkpoint(tmp_path / "one")
    engine.apply({b"%06d" % i: b"new" for i in range(100)}, EngineState(2, 3000))
    rows.update({b"%06d" % i: b"new" for i in range(100)})
    engine.checkpoint(tmp_path / "two", tmp_path / "one")
    linked = [file.name for file in (tmp_path / "two").iterdir() if file.stat().st_nlink == 2]
    assert len(linked) == len((tmp_path / "one" / SEGMENTS_FILE).read_text().splitlines()) > 3
    shutil.copytree(tmp_path / "two", tmp_path / "copy")
    assert rows_of(opened(tmp_path / "copy")) == rows
    # A file of the checkpoint before that has changed since is not linked.
    damaged = tmp_path / "two" / linked[0]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    engine.checkpoint(tmp_path / "three", tmp_path / "two")
    assert (tmp_path / "three" / linked[0]).stat().st_nlink == 1
    shutil.copytree(tmp_path / "three", tmp_path / "again")
    assert rows_of(opened(tmp_path / "again")) == rows
    engine.close()


def test_a_checkpoint_of_a_damaged_row_fails(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    engine.apply({b"key": b"a value that nobody else has"}, EngineState(1, 1))
    (segment,) = (file for file in (tmp_path / "db").iterdir() if file.name.startswith("log-"))
    content = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(content.index(b"nobody"))
        file.write(b"Nobody")
    with pytest.raises(CorruptData, match=r"the record at \d+ is damaged"):
        engine.checkpoint(tmp_path / "one")
    engine.close()


def flipped(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 30))):
        place = rng.randrange(len(damaged))
        damaged[place] = rng.randrange(256) if rng.random() < 0.5 else damaged[place] ^ (1 << rng.randrange(8))
    return bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.1 else damaged)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(4))
def test_files_of_any_content_are_damaged_or_hold_the_rows_that_were_written(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    model = Model(tmp_path, seed)
    for _ in range(30):
        model.group()
    model.engine.close()
    sound = {file.name: file.read_bytes() for file in model.directory.iterdir()}
    outcomes = {"damaged": 0, "the same": 0}
    for number in range(150):
        directory = tmp_path / "fuzzed" / str(number)
        directory.mkdir(parents=True)
        chosen = rng.choice(sorted(sound))
        for name, content in sound.items():
            (directory / name).write_bytes(flipped(content, rng) if name == chosen else content)
        if rng.random() < 0.1:
            (directory / chosen).unlink()
        try:
            engine = opened(directory)
        except CorruptData:
            outcomes["damaged"] += 1
            continue
        # What nobody reads may be anything: rows that are dead, space that is not used, an earlier end of the log.
        if engine.state.applied_offset == model.offset:
            assert rows_of(engine) == model.rows
            outcomes["the same"] += 1
        engine.close()
        shutil.rmtree(directory)
    assert outcomes["damaged"] > 30
    assert outcomes["the same"] > 5


def test_an_end_that_was_not_committed_is_not_there(tmp_path: Path) -> None:
    directory = tmp_path / "db"
    engine = opened(directory)
    engine.apply({b"a": b"1", b"b": b"2"}, EngineState(1, 2))
    group = engine.begin(False)
    group.put({b"a": b"x", b"b": None, **{b"%d" % i: bytes(5000) for i in range(60)}})
    shutil.copytree(directory, tmp_path / "killed")
    group.abandon()
    killed = opened(tmp_path / "killed")
    assert rows_of(killed) == {b"a": b"1", b"b": b"2"}
    killed.apply({b"c": b"3"}, EngineState(2, 3))
    killed.close()
    assert rows_of(opened(tmp_path / "killed")) == {b"a": b"1", b"b": b"2", b"c": b"3"}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (HEAD_FILE, None, "'head' is missing"),
        (HEAD_FILE, b"", "'head' has 0 bytes"),
        (HEAD_FILE, bytes(4096), "'head' begins with 0000"),
        (HEAD_FILE, struct.pack("<8sIIqq", b"FBYhlog\n", 2, 0, 65536, 65536).ljust(4096, b"\0"), "'head' begins with"),
        (HEAD_FILE, struct.pack("<8sIIqq", b"FBYhlog\n", 1, 0, 65536, 99992).ljust(4096, b"\0"), "no commit ends at"),
        (HEAD_FILE, struct.pack("<8sIIqq", b"FBYhlog\n", 1, 0, 65536, 999992).ljust(4096, b"\0"), "its segments end"),
        ("log-00000000000000065536.64k", None, "segments end at 65536"),
        ("log-00000000000000327680.64k", b"", None),
    ],
)
def test_a_folder_that_is_not_whole_is_damaged(
    name: str, content: bytes | None, reason: str | None, tmp_path: Path
) -> None:
    engine = opened(tmp_path / "db")
    engine.apply({b"a": b"1"}, EngineState(1, 1))
    engine.close()
    if content is None:
        (tmp_path / "db" / name).unlink()
    else:
        (tmp_path / "db" / name).write_bytes(content)
    if reason is None:  # a segment behind the end is one of a transaction that did not end
        assert rows_of(opened(tmp_path / "db")) == {b"a": b"1"}
        assert not (tmp_path / "db" / name).exists()
        return
    with pytest.raises(CorruptData, match=reason):
        opened(tmp_path / "db")


@pytest.mark.parametrize(
    "position",
    [b"", b"\0", bytes(16), struct.pack("<qQ", 65536, 0), struct.pack("<qQ", 65600, 1 << 40), b"\xff" * 16],
)
def test_a_position_that_no_page_told_is_refused(position: bytes, tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    engine.apply({b"%d" % i: bytes(100) for i in range(100)}, EngineState(1, 100))
    snapshot = engine.snapshot()
    with pytest.raises(InvalidRequest, match="no position"):
        snapshot.page(position, 1 << 20, 100)
    snapshot.close()
    engine.close()


def test_a_full_disk_refuses_a_group_before_it_has_an_effect(tmp_path: Path) -> None:
    kept_free = [0]
    engine = HlogEngine(tmp_path / "db", kept_free=lambda: kept_free[0])
    engine.apply({b"a": b"1"}, EngineState(1, 1))
    kept_free[0] = 1 << 60
    group = engine.begin(False)
    with pytest.raises(DiskFull, match=r"[\d.]+ [KMGT]?i?B free"):
        group.put({b"a": b"2", b"b": bytes(1 << 20)})
    assert group.get([b"a", b"b"]) == {b"a": b"1", b"b": None}
    group.abandon()
    kept_free[0] = 0
    engine.apply({b"a": b"3", b"b": bytes(1 << 20)}, EngineState(2, 2))
    engine.close()
    assert rows_of(opened(tmp_path / "db")) == {b"a": b"3", b"b": bytes(1 << 20)}


def test_a_row_larger_than_any_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    large = os.urandom(1 << 20) * 70
    engine.apply({b"a": b"1", b"large": large, b"b": b"2"}, EngineState(1, 3))
    assert engine.multi_get([b"large", b"b"]) == [large, b"2"]
    engine.checkpoint(tmp_path / "one")
    engine.close()
    assert rows_of(opened(tmp_path / "one")) == {b"a": b"1", b"large": large, b"b": b"2"}


def test_a_closed_engine_says_so_and_its_snapshots_can_still_be_read(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    engine.apply({b"a": b"1"}, EngineState(1, 1))
    snapshot = engine.snapshot()
    engine.close()
    engine.close()
    assert engine.state == EngineState(1, 1)
    calls: list[Callable[[], object]] = [
        lambda: engine.multi_get([b"a"]), engine.snapshot, lambda: engine.begin(False), lambda: engine.first(1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StorageFailure, match="is closed"):
            call()
    assert list(snapshot.values()) == [b"1"]
    snapshot.close()


def test_closing_waits_for_the_group_that_is_under_way(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    group = engine.begin(False)
    closing = threading.Thread(target=engine.close)
    closing.start()
    group.put({b"%d" % i: bytes(3000) for i in range(100)})  # into files that are not cut meanwhile
    closing.join(0.05)
    assert closing.is_alive()
    group.apply(EngineState(1, 100))
    closing.join()
    assert len(rows_of(opened(tmp_path / "db"))) == 100


def test_readers_see_whole_groups_while_they_are_written_and_compacted(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    keys = [b"%04d" % i for i in range(300)]
    engine.apply(dict.fromkeys(keys, bytes(200)), EngineState(0, 300))
    failures: list[str] = []
    stop = threading.Event()

    def read(how: str) -> None:
        while not stop.is_set():
            if how == "keys":
                found = set(engine.multi_get(keys))
            else:
                snapshot = engine.snapshot()
                after, values = None, []
                while True:
                    page = snapshot.page(after, 9000, 1 << 30)
                    values.append(page.records[9:])
                    if not page.has_more:
                        break
                    after = page.position
                snapshot.close()
                joined = b"".join(values)
                found = {joined[i : i + 200] for i in range(0, len(joined), 200)}
                if len(joined) != 300 * 200:
                    failures.append(f"{len(joined)} bytes")
            if len(found) != 1:
                failures.append(f"{how}: {len(found)} versions at once")

    threads = [threading.Thread(target=read, args=(how,)) for how in ("keys", "keys", "pages", "pages")]
    for thread in threads:
        thread.start()
    for turn in range(1, 400):
        engine.apply(dict.fromkeys(keys, bytes([turn % 256]) * 200), EngineState(turn, 300))
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert engine._log.start > FIRST_POSITION
    engine.close()


def test_a_log_goes_on_beyond_the_positions_that_a_slot_can_hold(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    engine._log.far = 400_000
    rows: dict[bytes, bytes] = {}
    for turn in range(400):
        changed = {b"%03d" % (turn * 13 % 200 + i): b"%d" % turn * 100 for i in range(20)}
        engine.apply(changed, EngineState(turn + 1, 0))
        rows.update(changed)
    assert engine._log.start - FIRST_POSITION > 2 * engine._log.far
    assert rows_of(engine) == rows
    assert engine.multi_get(list(rows)) == list(rows.values())
    engine.close()


def test_the_index_grows_with_the_keys_and_its_size_is_told(tmp_path: Path) -> None:
    engine = opened(tmp_path / "db")
    for i in range(20):
        engine.apply({b"%08d" % (i * 10_000 + j): b"" for j in range(10_000)}, EngineState(i + 1, 0))
    assert 10 <= engine.index_bytes / 200_000 <= 20
    keys = [b"%08d" % i for i in range(0, 200_100, 7)]
    assert engine.multi_get(keys) == [b"" if int(key) < 200_000 else None for key in keys]
    engine.close()
