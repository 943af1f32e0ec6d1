"""`forebay verify`: faults are found and named, offline and on a running server; damage never ends the process."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, NotFound, StorageFailure
from forebay.cli import verify as verify_command
from forebay.cli.main import main
from forebay.fs.local import LocalFileSystem
from forebay.kv.engine import EngineState
from forebay.kv.engines import ENGINE_PROPERTY
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.log.checkpoints import OffsetCheckpoint
from forebay.server.metadata_store import LocalDatabaseFile, MetadataStore
from forebay.testing.server import EmbeddedServer
from forebay.verify import Report, directory, verify_directory, verify_server

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
SETTINGS = {"log.segment.file-size": "2kb", "log.index.interval-size": "500b", "kv.checkpoint.records": "100"}


def fill(connection: forebay.Connection) -> None:
    connection.create_table("fluss.keys", SCHEMA, primary_key=["k"], buckets=1, options={ENGINE_PROPERTY: "lmdb"})
    connection.create_table("fluss.log", SCHEMA, buckets=1)
    for first in range(0, 1000, 100):
        rows = pa.table({"k": range(first, first + 100), "v": [f"value {i}" for i in range(first, first + 100)]})
        connection.table("fluss.keys").upsert(rows)
        connection.table("fluss.log").append(rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    with EmbeddedServer(folder, settings=SETTINGS) as server, forebay.connect(server.bootstrap_servers) as connection:
        fill(connection)
        server.server.context.replicas.checkpoint_grown(100)
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", "--sparse=always", str(made), str(tmp_path / "data")], check=True)
    return tmp_path / "data"


def one(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[0]


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 8
    path.write_bytes(data)


PLACES = {
    "a batch of a log": ("fluss/log-*/log-0/*0.log", 200),
    "an offset index": ("fluss/log-*/log-0/*.index", 2),
    "a time index": ("fluss/keys-*/log-0/*.timeindex", 1),
    "a writer snapshot": ("fluss/log-*/log-0/*.writer_snapshot", 20),
    "LMDB's file": ("fluss/keys-*/kv-0/db/data.mdb", 9000),
    "the trust file": ("fluss/keys-*/kv-0/trust", 1),
    "a checkpoint": ("fluss/keys-*/kv-0/checkpoint-*/data.mdb", 9000),
    "a checkpoint's checksums": ("fluss/keys-*/kv-0/checkpoint-*/checksums", 3),
    "the recovery points": ("recovery-points.checkpoint", 40),
    "the high watermarks": ("high-watermarks.checkpoint", 40),
    "the clean-shutdown marker": ("clean-shutdown", 3),
    "the metadata": ("metadata.sqlite", 4096 + 3),
}


@pytest.mark.parametrize("what", PLACES)
def test_a_flipped_bit_is_a_fault_that_names_the_file(data: Path, what: str) -> None:
    pattern, place = PLACES[what]
    path = one(data, pattern)
    flip(path, place)
    report = verify_directory(data)
    told = path.parent if "checkpoint-" in str(path.parent) or what == "the trust file" else path
    assert any(str(told) in str(finding) for finding in report.faults), report.findings
    assert report.faults[0].message


def test_a_missing_segment_and_a_missing_log_are_faults(data: Path) -> None:
    segments = sorted(data.glob("fluss/log-*/log-0/*.log"))
    assert len(segments) > 2
    segments[1].unlink()
    shutil.rmtree(one(data, "fluss/keys-*/log-0"))
    messages = " ".join(finding.message for finding in verify_directory(data).faults)
    assert "offsets 200 to 399 are lost" in messages
    assert "log-0 ends at offset 0, and was closed gracefully at offset 1000: offsets 0 to 999 are lost" in messages


def test_a_state_that_is_not_the_fold_of_its_changelog_is_a_fault_although_its_files_are_as_they_were_left(
    data: Path, tmp_path: Path
) -> None:
    """Wrong rows that the engine itself has written: the files are sound, and are not the changelog's."""
    kv = one(data, "fluss/keys-*/kv-0")
    engine = LmdbEngine(kv / "db")
    snapshot = engine.snapshot()
    state = snapshot.state
    snapshot.close()
    victim = engine.first(1)[0]
    engine.apply({b"no such key": victim}, EngineState(state.applied_offset, state.row_count + 1))
    engine.close()
    (kv / "trust").write_text("in use\nthe same\n")
    report = verify_directory(data, witnesses=lambda _: frozenset({"the same"}))
    (fault,) = report.faults
    assert fault.place == str(kv / "db")
    assert "the key 6e6f2073756368206b6579 is not in the changelog" in fault.message
    assert "it has 1001 rows, and the changelog amounts to 1000" in fault.message


def test_the_torn_end_of_a_log_is_a_fault_after_a_clean_end_and_a_note_after_a_crash(data: Path) -> None:
    last = sorted(data.glob("fluss/log-*/log-0/*.log"))[-1]
    last.write_bytes(last.read_bytes() + b"half a batch")
    assert [finding.place for finding in verify_directory(data).faults] == [str(last)]
    (data / "clean-shutdown").unlink()
    report = verify_directory(data)
    assert report.is_clean
    assert any(finding.place == str(last) and "server truncates" in finding.message for finding in report.findings)


def test_a_sound_directory_is_clean_and_says_how_much_was_checked(data: Path) -> None:
    report = verify_directory(data)
    assert report.findings == []
    several = {
        name: report.counts.pop(name) for name in ("batches", "log segments", "bytes of log", "writer snapshots")
    }
    assert report.counts == {
        "metadata files": 1,
        "offset checkpoints": 2,
        "files of log ends": 1,
        "buckets": 2,
        "key-value states": 1,
        "checkpoints": 1,
        "rows of state": 1000,
        "changes folded": 1000,
    }
    segments = list(data.glob("fluss/*/log-0/*.log"))
    assert several == {
        "batches": 20,
        "log segments": len(segments),
        "bytes of log": sum(path.stat().st_size for path in segments),
        "writer snapshots": len(list(data.glob("fluss/*/log-0/*.writer_snapshot"))),
    }


def test_a_log_that_ends_before_what_readers_have_seen_is_a_fault_after_a_clean_end_and_a_note_after_a_crash(
    data: Path,
) -> None:
    path = data / "high-watermarks.checkpoint"
    checkpoint = OffsetCheckpoint(LocalFileSystem(), str(path))
    offsets = checkpoint.read()
    assert sorted(offsets.values()) == [1000, 1000]
    checkpoint.write({bucket: offset + 1 for bucket, offset in offsets.items()})
    report = verify_directory(data)
    assert ["ends at offset 1000, and readers have seen it up to 1001" in f.message for f in report.faults] == [
        True
    ] * 2
    (data / "clean-shutdown").unlink()
    report = verify_directory(data)
    assert report.is_clean
    assert sum("readers have seen it up to 1001" in finding.message for finding in report.findings) == 2


def test_a_state_that_a_crash_may_have_cut_is_a_note_unless_the_page_cache_is_proved_to_have_stayed(data: Path) -> None:
    kv = one(data, "fluss/keys-*/kv-0")
    (kv / "trust").write_text("in use\nthe same\n")
    for witness, notes in (("the same", 0), ("another", 1)):
        report = verify_directory(data, witnesses=lambda _, witness=witness: frozenset({witness}))
        assert report.is_clean
        told = [f for f in report.findings if "may be incomplete" in f.message]
        assert [finding.place for finding in told] == [str(kv)] * notes
    (kv / "trust").unlink()
    report = verify_directory(data)
    assert report.is_clean
    assert any("is missing or not trusted" in finding.message for finding in report.findings)


def test_folders_that_belong_to_nothing_and_states_that_are_not_there_are_notes(data: Path) -> None:
    shutil.copytree(one(data, "fluss/log-*"), data / "fluss" / "stranger-99")
    shutil.rmtree(one(data, "fluss/keys-*/kv-0"))
    report = verify_directory(data)
    assert report.is_clean
    messages = [finding.message for finding in report.findings]
    assert len(messages) == 2
    assert "there is no key-value state: the server rebuilds it from the changelog" in messages[0]
    assert "the metadata knows no such table or partition" in messages[1]
    assert report.counts["buckets"] == 2


def test_folders_that_the_server_is_about_to_remove_are_not_checked(data: Path) -> None:
    with closing(MetadataStore(LocalDatabaseFile(str(data / "metadata.sqlite")), is_new=False)) as store:
        (table,) = [t.info for t in store.tables() if t.info.path.table == "log"]
        store.delete_table(table.table_id, str(one(data, "fluss/log-*").relative_to(data)))
    report = verify_directory(data)
    assert report.findings == []
    assert report.counts["buckets"] == 1


def test_metadata_that_cannot_be_read_is_a_fault_and_logs_are_checked_all_the_same(data: Path) -> None:
    journal = data / "metadata.sqlite-journal"
    journal.unlink(missing_ok=True)
    journal.mkdir()
    report = verify_directory(data)
    (fault,) = report.faults
    path = str(data / "metadata.sqlite")
    assert (fault.place, fault.message.startswith(f"{path} is damaged: IsADirectoryError")) == (path, True)
    assert report.counts["buckets"] == 2


def test_a_bucket_that_cannot_be_read_does_not_end_the_check_of_the_others(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, folder = directory.check_log, one(data, "fluss/keys-*/log-0")

    def failing(fs: LocalFileSystem, path: str, *others: Any) -> Any:
        if path == str(folder):
            raise StorageFailure(f"{path}: Input/output error")
        return check(fs, path, *others)

    monkeypatch.setattr(directory, "check_log", failing)
    report = verify_directory(data)
    assert [(f.place, f.message) for f in report.faults] == [(str(folder), f"{folder}: Input/output error")]
    assert report.counts["buckets"] == 2


def test_damage_in_front_of_sound_batches_is_a_fault_also_after_a_crash(data: Path) -> None:
    """No crash tears that, though the server would cut the log there."""
    for name in ("clean-shutdown", "recovery-points.checkpoint"):
        (data / name).unlink()
    path = one(data, "fluss/log-*/log-0/*0.log")
    flip(path, 200)
    assert [finding.place for finding in verify_directory(data).faults] == [str(path)]


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_anywhere_is_reported_and_raises_nothing(data: Path, seed: int) -> None:
    rng = random.Random(seed)
    paths = [path for path in sorted(data.rglob("*")) if path.is_file() and path.stat().st_size]
    for path in rng.sample(paths, len(paths) // 2):
        content = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 20)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.randrange(1, len(content) + 1)] if rng.random() < 0.2 else content)
    assert verify_directory(data).faults


def test_what_is_no_data_directory_or_in_use_is_not_verified(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not a data directory"):
        verify_directory(tmp_path)
    with EmbeddedServer(tmp_path / "data"), pytest.raises(Conflict, match="a server uses the data directory"):
        verify_directory(tmp_path / "data")


# ---- a running server -----------------------------------------------------------------------------------------------


@pytest.fixture
def running(data: Path) -> Iterator[tuple[EmbeddedServer, forebay.Connection]]:
    with EmbeddedServer(data, settings=SETTINGS) as server, forebay.connect(server.bootstrap_servers) as connection:
        yield server, connection


def test_a_running_server_is_verified(running: tuple[EmbeddedServer, forebay.Connection]) -> None:
    report = verify_server(running[1])
    assert report.findings == []
    assert report.counts == {"tables": 2, "buckets": 2, "records": 2000, "rows": 1000, "lookups": 1000}


def test_rows_of_a_running_server_that_are_not_the_changelog_s_are_a_fault(
    running: tuple[EmbeddedServer, forebay.Connection],
) -> None:
    server, connection = running
    connection.table("fluss.keys").lookup([{"k": 1}])  # opens the bucket
    (replica,) = [r for r in server.server.context.replicas.replicas() if r.has_kv]
    engine = replica.kv.engine
    engine.apply({b"another": engine.first(1)[0]}, engine.state)
    (fault,) = verify_server(connection, ["fluss.keys"]).faults
    assert "the full scan at offset 1000 has 1,001 rows" in fault.message


def test_damage_that_a_running_server_meets_is_a_fault_of_its_bucket(data: Path) -> None:
    flip(one(data, "fluss/log-*/log-0/*0.log"), 200)
    with (
        EmbeddedServer(data, settings=SETTINGS) as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="300 ms") as connection,
    ):
        report = verify_server(connection)
    assert [finding.place.split()[0] for finding in report.faults] == ["fluss.log"]
    assert report.counts["rows"] == 1000


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["verify", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_the_command_s_exit_code_tells_clean_from_faults_from_not_verified(
    data: Path, command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, _ = command("--data-dir", str(data))
    assert (code, out.strip().endswith("no faults, no notes")) == (0, True)
    path = one(data, "fluss/log-*/log-0/*0.log")
    flip(path, 200)
    code, out, err = command("--data-dir", str(data))
    assert code == 1
    assert f"FAULT {path} is damaged at byte 0, where offset 0 should begin" in out
    assert "Traceback" not in err
    code, _, err = command("--data-dir", str(tmp_path / "missing"))
    assert (code, "not verified" in err) == (2, True)
    code, _, err = command("-b", "127.0.0.1:1", "--data-dir", str(data), "--table", "a.b")
    assert code == 2


def test_the_command_verifies_a_running_server_or_some_of_its_tables(
    running: tuple[EmbeddedServer, forebay.Connection], command: Callable[..., tuple[int, str, str]]
) -> None:
    where = running[0].bootstrap_servers
    code, out, err = command("-b", where)
    assert (code, out.count("2 tables"), err) == (0, 1, "")
    code, out, _ = command("-b", where, "--table", "fluss.log")
    assert (code, "1 tables" in out) == (0, True)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_command_tells_after_two_seconds_what_it_is_at_and_then_each_second(
    data: Path,
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(verify_command, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)

    def verify(_: object, *, on_step: Callable[[str, int, int], None], **_options: object) -> Report:
        for done in range(6):
            on_step("rows", 1000 * done, 4000 if done > 3 else 0)
            clock.advance(0.75)
        return Report()

    monkeypatch.setattr(verify_command, "verify_directory", verify)
    _, _, err = command("--data-dir", str(data))
    lines = ["rows: 3,000", "rows: 5,000 of 4,000 (125 %)"]
    shown = "".join(f"\r{line}\033[K" for line in lines) + "\r\033[K"
    assert err == (shown if terminal else "".join(f"{line}\n" for line in lines))
