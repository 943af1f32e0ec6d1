"""The check of one bucket's key-value state: its numbers, its checkpoints, and the fold of its changelog."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import CorruptData
from forebay.fs.local import LocalFileSystem
from forebay.kv.engine import EngineState
from forebay.kv.file_checksums import list_files
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.kv.lmdb.lmdb_file import DATA_FILE, LmdbFile
from forebay.kv.tablet import ChangelogCodec
from forebay.log.recovery import note_start
from forebay.metadata import types
from forebay.metadata.table import Column, TablePath
from forebay.testing.server import EmbeddedServer
from forebay.verify import Report, states, verify_directory
from tests.open_files import open_files

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
SETTINGS = {"log.segment.file-size": "2kb", "log.index.interval-size": "500b", "kv.checkpoint.records": "100"}
ROWS, BATCH = 1000, 100
ENGINES: dict[str, Callable[[Path], HlogEngine | LmdbEngine]] = {
    "hlog": HlogEngine,
    "lmdb": LmdbEngine,
}


@dataclass(frozen=True)
class Made:
    """A data directory, and the codec of its table."""

    folder: Path
    codec: ChangelogCodec


def make(folder: Path, engine: str) -> Made:
    settings = {**SETTINGS, "kv.engine": engine}
    with EmbeddedServer(folder, settings=settings) as server, forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.keys", SCHEMA, primary_key=["k"], buckets=1)
        for first in range(0, ROWS, BATCH):
            keys = range(first, first + BATCH)
            connection.table("fluss.keys").upsert(pa.table({"k": keys, "v": [f"value {i}" for i in keys]}))
        server.server.context.replicas.checkpoint_grown(100)
        connection.table("fluss.keys").alter(add_columns=[Column("later", types.int_())])
        table = server.server.context.catalog.table(TablePath("fluss", "keys"))
        return Made(folder, ChangelogCodec(table.info, table.schema_by_id))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("made") / "data", "lmdb")


@pytest.fixture
def data(made: Made, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", "--sparse=always", str(made.folder), str(tmp_path / "data")], check=True)
    return tmp_path / "data"


def kv_of(data: Path) -> Path:
    (found,) = data.glob("fluss/keys-*/kv-0")
    return found


def segments(data: Path) -> list[Path]:
    return sorted(data.glob("fluss/keys-*/log-0/*.log"))


@contextmanager
def rewritten(data: Path) -> Iterator[LmdbEngine]:
    """The state's engine; what is changed there is trusted afterwards by `checked`."""
    kv = kv_of(data)
    with closing(LmdbEngine(kv / "db")) as engine:
        yield engine
    (kv / "trust").write_text("in use\nthe same\n")


def checked(data: Path) -> Report:
    return verify_directory(data, witnesses=lambda _: frozenset({"the same"}))


def expire_beginning(data: Path) -> None:
    """Remove the oldest segments of the changelog, as retention does."""
    *expired, first = segments(data)[:3]
    note_start(LocalFileSystem(), str(first.parent), int(first.stem))
    for path in expired:
        path.unlink()


def test_a_changelog_without_its_beginning_is_folded_on_top_of_a_checkpoint(data: Path) -> None:
    expire_beginning(data)
    report = checked(data)
    assert report.findings == []
    assert report.counts["changes folded"] == 0  # the checkpoint was made at the end
    with rewritten(data) as engine:
        before = engine.state
        engine.apply({b"no such key": engine.first(1)[0]}, replace(before, row_count=ROWS + 1, digest=None))
    (fault,) = checked(data).faults
    assert "6e6f2073756368206b6579 is not in the changelog" in fault.message


@pytest.mark.parametrize("where", ["is gone", "is damaged", "is damaged as it was written"])
def test_without_the_beginning_of_the_changelog_a_sound_checkpoint_is_needed(data: Path, where: str) -> None:
    (checkpoint,) = kv_of(data).glob("checkpoint-*")
    if where == "is gone":
        shutil.rmtree(checkpoint)
    else:
        content = bytearray((checkpoint / DATA_FILE).read_bytes())
        content[: 2 * 4096] = bytes(2 * 4096)  # both pages that say where all else is
        (checkpoint / DATA_FILE).write_bytes(content)
        if where == "is damaged as it was written":
            sums = checkpoint / "checksums"
            sums.unlink()
            sums.write_text(list_files(LocalFileSystem(), str(checkpoint)))
    damaged = [] if where == "is gone" else [str(checkpoint)]
    assert [finding.place for finding in checked(data).faults] == damaged
    expire_beginning(data)
    report = checked(data)
    assert [finding.place for finding in report.faults] == [*damaged, str(kv_of(data))]
    assert "has no sound checkpoint, and its log begins at" in report.faults[-1].message
    assert "should the state be lost, it cannot be rebuilt" in report.faults[-1].message


@pytest.mark.parametrize(("pattern", "place"), [("db/log-*", 9000), ("db/head", 18), ("checkpoint-*/log-*", 9000)])
def test_a_flipped_bit_in_a_file_of_hlog_is_a_fault(pattern: str, place: int, tmp_path: Path) -> None:
    kv = kv_of(data := make(tmp_path / "data", "hlog").folder)
    path = next(kv.glob(pattern))
    content = bytearray(path.read_bytes())
    content[place] ^= 8
    path.write_bytes(content)
    assert any(str(path.parent) in str(fault) for fault in checked(data).faults)
    (kv / "trust").write_text("in use\nthe same\n")
    if pattern.startswith("db"):  # what the engine finds itself
        assert "is damaged: " in " ".join(fault.message for fault in checked(data).faults)


@pytest.mark.parametrize("engine", ["hlog", "lmdb"])
def test_the_checkpoint_of_any_engine_is_the_beginning_of_a_fold(engine: str, tmp_path: Path) -> None:
    data = make(tmp_path / "data", engine).folder
    assert checked(data).findings == []
    expire_beginning(data)
    assert checked(data).findings == []
    kv = kv_of(data)
    (kv / "trust").write_text("in use\nthe same\n")
    with closing(ENGINES[engine](kv / "db")) as opened:
        opened.apply({b"no such key": opened.first(1)[0]}, replace(opened.state, row_count=ROWS + 1, digest=None))
    (fault,) = checked(data).faults
    assert "the key 6e6f2073756368206b6579 is not in the changelog" in fault.message


def test_a_state_is_compared_with_the_count_and_the_digest_of_its_rows(data: Path) -> None:
    kv = kv_of(data)
    (kv / "trust").write_text("in use\nthe same\n")
    with closing(LmdbEngine(kv / "db")) as opened:
        whole = opened.state
    assert (whole.row_count, whole.digest is None) == (ROWS, False)
    for wrong, words in (
        ({"row_count": -1}, None),
        ({"row_count": 0}, "it has 1000 rows and should have 0"),
        ({"row_count": ROWS - 1}, "it has 1000 rows and should have 999"),
        ({"digest": (whole.digest or 0) ^ 1}, "its rows have the digest"),
        ({"digest": None}, None),
        ({}, None),
    ):
        with closing(LmdbEngine(kv / "db")) as opened:
            opened.apply({}, replace(whole, **wrong))
        faults = checked(data).faults
        assert len(faults) == (words is not None), (wrong, faults)
        assert words is None or re.search(words, faults[0].message)


def test_the_same_row_in_other_bytes_is_no_difference_and_another_row_is(made: Made, data: Path) -> None:
    with closing(LmdbFile(LocalFileSystem(), str(kv_of(data) / "db"))) as file:
        file.check()
        (key, value), (_, other) = islice(file.items(), 2)
    (upgraded,) = made.codec.upgrade([value])
    assert upgraded != value
    for stored, faults in (
        (upgraded, []),
        (other, [f"the state is not the fold of its changelog: the key {key.hex()} has another row in the changelog"]),
    ):
        with rewritten(data) as engine:
            engine.apply({key: stored}, replace(engine.state, digest=None))
        assert [finding.message for finding in checked(data).faults] == faults


def test_a_state_beside_a_log_that_ends_before_it_is_a_fault_unless_a_crash_may_have_cut_the_log(data: Path) -> None:
    last = segments(data)[-1]
    last.write_bytes(b"")
    end = int(last.stem)
    text = f"the state is at changelog offset {ROWS}, and the log ends at {end}: the server rebuilds it"
    (data / "recovery-points.checkpoint").unlink()
    (data / "high-watermarks.checkpoint").unlink()
    (data / "ends-of-logs-0").unlink()
    for clean in (True, False):
        if not clean:
            (data / "clean-shutdown").unlink()
        told = [f for f in checked(data).findings if f.message == text]
        assert [finding.is_fault for finding in told] == [False]


def test_a_state_that_the_log_has_not_begun_at_or_was_not_closed_at_is_a_fault(data: Path) -> None:
    for offset in (ROWS - 1, ROWS, 1):
        if offset == 1:
            expire_beginning(data)
        with rewritten(data) as engine:
            engine.apply({}, replace(engine.state, applied_offset=offset))
        start = int(segments(data)[0].stem)
        expected = {
            ROWS - 1: [f"the state is at {ROWS - 1}, and the log was closed at {ROWS}"],
            1: [f"the state is at 1, and the log begins at {start}"],
        }.get(offset, [])
        told = [f for f in checked(data).faults if f.message.startswith("the state is at ")]
        assert [(f.place, f.message) for f in told] == [(str(kv_of(data) / "db"), text) for text in expected]


def test_changes_that_cannot_be_folded_are_a_fault_of_the_log(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> None:
        raise CorruptData("a change without a key")

    monkeypatch.setattr(ChangelogCodec, "replay", damaged)
    log = str(segments(data)[0].parent)
    assert [(f.place, f.message) for f in checked(data).faults] == [(log, "a change without a key")]


def test_a_state_is_not_measured_by_a_damaged_log(data: Path) -> None:
    first = segments(data)[0]
    content = bytearray(first.read_bytes())
    content[200] ^= 8
    first.write_bytes(content)
    assert [finding.place for finding in checked(data).faults] == [str(first)]


def test_changes_are_folded_some_at_a_time(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Counting(LmdbEngine):
        def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
            sizes.append(len(writes))
            super().apply(writes, state)

    monkeypatch.setattr(states, "LmdbEngine", Counting)
    monkeypatch.setattr(states, "_FOLD_ROWS", 3 * BATCH)
    assert checked(data).findings == []
    assert sizes == [300, 300, 300, 100]


def test_no_file_stays_open_whatever_is_found(data: Path) -> None:
    checked(data)
    assert not open_files(data)
    path = kv_of(data) / "db" / DATA_FILE
    content = bytearray(path.read_bytes())
    content[9000] ^= 8
    path.write_bytes(content)
    assert checked(data).faults
    assert not open_files(data)


class _Breaking(HlogEngine):
    """An engine of which some rows can be read, and then no more."""

    reads = 0
    opened: ClassVar[list[LmdbEngine | HlogEngine]] = []

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.opened.append(self)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        yield from islice(super().items(), 1)
        if not self.reads:
            raise CorruptData("the rest is damaged")
        type(self).reads -= 1


@pytest.mark.parametrize("reads", [0, 1])
def test_engines_are_closed_when_a_state_cannot_be_read_to_its_end(
    reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[LmdbEngine | HlogEngine] = []

    class Noted(LmdbEngine):
        def __init__(self, directory: Path) -> None:
            super().__init__(directory)
            opened.append(self)

    monkeypatch.setattr(_Breaking, "reads", reads)
    monkeypatch.setattr(_Breaking, "opened", opened)
    monkeypatch.setattr(states, "HlogEngine", _Breaking)
    monkeypatch.setattr(states, "LmdbEngine", Noted)
    checkpoint = tmp_path / "checkpoint-5"
    with closing(HlogEngine(checkpoint)) as engine:
        engine.apply({b"a": b"1", b"b": b"2"}, EngineState(5, 2))
    log: Any = SimpleNamespace(start=5)
    check = states.StateCheck(LocalFileSystem(), str(tmp_path), log, None, tmp_path, Report(), lambda *_: None)
    with pytest.raises(CorruptData, match="the rest is damaged"):
        check.begin_fold(tmp_path / "fold", str(checkpoint), 5)
    assert [each for each in opened if not each._closed] == []
    assert [type(each) for each in opened] == [_Breaking, Noted][: reads + 1]
