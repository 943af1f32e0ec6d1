"""States of RocksDB are refused by the server, and converted by `forebay convert-state`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import CorruptData, StorageFailure, UnsupportedOperation
from forebay.cli.main import main
from forebay.fs.local import LocalFileSystem
from forebay.kv.engines import engine_in
from forebay.kv.rocksdb_state import is_rocksdb
from forebay.log.recovery import note_start
from forebay.testing.server import EmbeddedServer
from forebay.verify import convert_states, verify_directory
from tests.kv.rocksdb import rewrite_in_rocksdb

pytest.importorskip("rocksdict")

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
SETTINGS = {"log.segment.file-size": "2kb", "log.index.interval-size": "500b", "kv.engine": "lmdb"}
EARLIER, LATER = 600, 1000


def rows(start: int, stop: int) -> pa.Table:
    keys = range(start, stop)
    return pa.table({"k": keys, "v": [f"value {key}" for key in keys]})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped server with one bucket in RocksDB: its checkpoint is older than its state."""
    folder = tmp_path_factory.mktemp("written") / "data"
    with EmbeddedServer(folder, settings=SETTINGS) as server, forebay.connect(server.bootstrap_servers) as connection:
        table = connection.create_table("fluss.keys", SCHEMA, primary_key=["k"], buckets=1)
        for start in range(0, EARLIER, 100):
            table.upsert(rows(start, start + 100))
        server.server.context.replicas.checkpoint_grown(1)
        for start in range(EARLIER, LATER, 100):
            table.upsert(rows(start, start + 100))
    rewrite_in_rocksdb(kv_of(folder))
    return folder


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "data"))


def kv_of(data: Path) -> Path:
    (kv,) = data.glob("fluss/keys-*/kv-0")
    return kv


def rows_served(data: Path) -> pa.Table:
    """All rows that a server reads from the directory."""
    with EmbeddedServer(data, settings=SETTINGS) as server, forebay.connect(server.bootstrap_servers) as connection:
        return connection.table("fluss.keys").scan().to_arrow().sort_by("k").cast(rows(0, 1).schema)


def expire_beginning(data: Path, end: int) -> None:
    """Remove the segments of the changelog that end at or before the offset `end`, as retention does."""
    segments = sorted(data.glob("fluss/keys-*/log-0/*.log"))
    first = max(path for path in segments if int(path.stem) <= end)
    assert int(first.stem) > 0
    note_start(LocalFileSystem(), str(first.parent), int(first.stem))
    for path in segments[: segments.index(first)]:
        path.unlink()


def damage(folder: Path) -> None:
    (file,) = folder.glob("*.sst")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def test_the_server_refuses_a_directory_with_states_of_rocksdb_and_names_the_command(data: Path) -> None:
    before = {path: path.read_bytes() for path in kv_of(data).rglob("*") if path.is_file()}
    with pytest.raises(UnsupportedOperation, match="forebay convert-state --data-dir DIR") as refused:
        rows_served(data)
    assert str(kv_of(data)) in refused.value.message
    assert {path: path.read_bytes() for path in kv_of(data).rglob("*") if path.is_file()} == before


def test_verification_reports_a_state_of_rocksdb_as_a_fault(data: Path) -> None:
    (fault,) = verify_directory(data).faults
    assert fault.place == str(kv_of(data) / "db")
    assert "forebay convert-state" in fault.message


@pytest.mark.parametrize("engine", ["hlog", "lmdb"])
def test_a_converted_state_has_the_rows_and_the_position_that_it_had(data: Path, engine: str) -> None:
    expire_beginning(data, EARLIER)
    (converted,) = convert_states(data, engine=engine)
    assert (str(converted.table), converted.engine, converted.is_rebuilt) == ("fluss.keys", engine, False)
    kv = kv_of(data)
    assert sorted(path.name for path in kv.parent.glob("kv-*")) == ["kv-0"]
    (checkpoint,) = kv.glob("checkpoint-*")
    assert checkpoint.name.endswith(f"-{EARLIER:020d}")
    assert [engine_in(kv / "db"), engine_in(checkpoint)] == [engine, engine]
    report = verify_directory(data)
    assert report.findings == []
    assert report.counts["changes folded"] == LATER - EARLIER
    assert convert_states(data) == []
    assert rows_served(data) == rows(0, LATER)


def test_a_state_that_was_not_closed_is_restored_from_its_converted_checkpoint(data: Path) -> None:
    (kv_of(data) / "trust").write_text("in use\na machine that has restarted\n")
    expire_beginning(data, EARLIER)
    (converted,) = convert_states(data, witnesses=lambda _: frozenset({"another"}))
    assert converted.is_rebuilt
    assert not (kv_of(data) / "db").exists()
    assert rows_served(data) == rows(0, LATER)


def test_a_state_that_was_not_closed_is_converted_if_the_system_has_all_that_was_written(data: Path) -> None:
    (kv_of(data) / "trust").write_text("in use\nthe same\n")
    (converted,) = convert_states(data, witnesses=lambda _: frozenset({"the same"}))
    assert not converted.is_rebuilt
    assert rows_served(data) == rows(0, LATER)


def test_a_damaged_state_is_rebuilt_from_its_checkpoint(data: Path) -> None:
    kv = kv_of(data)
    damage(kv / "db")
    (kv / "trust").write_text("in use\nthe same\n")
    (converted,) = convert_states(data, witnesses=lambda _: frozenset({"the same"}))
    assert converted.is_rebuilt
    assert rows_served(data) == rows(0, LATER)


def test_a_state_that_nothing_can_rebuild_is_left_unchanged(data: Path) -> None:
    kv = kv_of(data)
    for folder in (kv / "db", *kv.glob("checkpoint-*")):
        damage(folder)
    assert [state.is_rebuilt for state in convert_states(shutil.copytree(data, data.with_name("whole log")))] == [True]
    assert rows_served(data.with_name("whole log")) == rows(0, LATER)
    expire_beginning(data, EARLIER)
    with pytest.raises(CorruptData, match=f"neither it nor a checkpoint is sound.*{EARLIER - 100}|begins at offset"):
        convert_states(data)
    assert sorted(path.name for path in kv.parent.glob("kv-*")) == ["kv-0"]
    assert is_rocksdb(kv / "db")


def test_a_checkpoint_of_rocksdb_beside_a_state_of_another_engine_is_converted(data: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(data, tmp_path / "other"))
    convert_states(other, engine="hlog")
    shutil.rmtree(kv_of(data) / "db")
    shutil.copytree(kv_of(other) / "db", kv_of(data) / "db")
    shutil.copy(kv_of(other) / "trust", kv_of(data) / "trust")
    (converted,) = convert_states(data, engine="lmdb")
    assert not converted.is_rebuilt
    kv = kv_of(data)
    assert [engine_in(folder) for folder in (kv / "db", *kv.glob("checkpoint-*"))] == ["hlog", "lmdb"]
    assert verify_directory(data).findings == []
    assert rows_served(data) == rows(0, LATER)


@pytest.mark.parametrize("step", range(1, 4))
def test_a_conversion_that_is_interrupted_is_finished_by_the_next(
    data: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps: the bucket's folder gets another name, the replacement gets its name, the first folder is removed."""
    rename, remove_tree, steps = LocalFileSystem.rename, LocalFileSystem.remove_tree, [0]

    def is_the_last(path: str) -> bool:
        steps[0] += path.endswith(("/kv-0", ".rocksdb"))
        return steps[0] >= step

    def stop_renaming(fs: LocalFileSystem, source: str, target: str) -> None:
        if is_the_last(target):
            raise StorageFailure("the machine stops")
        rename(fs, source, target)

    def stop_removing(fs: LocalFileSystem, path: str) -> None:
        if is_the_last(path):
            raise StorageFailure("the machine stops")
        remove_tree(fs, path)

    expire_beginning(data, EARLIER)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "rename", stop_renaming)
        patch.setattr(LocalFileSystem, "remove_tree", stop_removing)
        with pytest.raises(StorageFailure, match="the machine stops"):
            convert_states(data)
    with pytest.raises(UnsupportedOperation, match="forebay convert-state"):
        rows_served(data)
    convert_states(data)
    (parent,) = data.glob("fluss/keys-*")
    assert sorted(path.name for path in parent.glob("kv-*")) == ["kv-0"]
    assert verify_directory(data).findings == []
    assert rows_served(data) == rows(0, LATER)


def test_the_command_prints_each_converted_state(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert-state", "--data-dir", str(data), "--engine", "lmdb"]) == 0
    assert "table fluss.keys, bucket" in (out := capsys.readouterr().out)
    assert "converted to 'lmdb'\n1 states were converted\n" in out
    assert main(["convert-state", "--data-dir", str(data), "-o", "json"]) == 0
    assert capsys.readouterr().out.strip() in ("", "[]")


def test_without_the_library_the_command_says_what_to_install(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert main(["convert-state", "--data-dir", str(data)]) == 1
    assert "pip install rocksdict" in capsys.readouterr().err
    assert is_rocksdb(kv_of(data) / "db")
