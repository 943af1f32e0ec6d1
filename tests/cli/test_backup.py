"""`forebay backup`: a copy that a server starts on, or none at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import forebay
from forebay.cli.main import main


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a stopped server, with a table of each kind."""
    with forebay.embedded(tmp_path / "data") as connection:
        connection.create_table("fluss.keyed", {"id": "BIGINT", "v": "STRING"}, primary_key="id").upsert(
            [{"id": i, "v": str(i)} for i in range(50)]
        )
        connection.create_table("fluss.log", {"id": "BIGINT"}).append([{"id": 7}])
    return tmp_path / "data"


def test_a_server_starts_on_the_copy(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "backups" / "monday"
    assert main(["backup", "--data-dir", str(data), str(target)]) == 0
    assert "no faults" in capsys.readouterr().out
    with forebay.embedded(target) as copy, forebay.embedded(data) as original:
        original.table("fluss.log").append([{"id": 8}])
        assert copy.table("fluss.keyed").scan().count() == 50
        assert copy.table("fluss.log").scan().to_arrow().to_pylist() == [{"id": 7}]
    assert main(["backup", "--data-dir", str(data), str(target)]) == 1
    assert "exists: choose a folder that does not" in capsys.readouterr().err


def test_a_running_server_is_copied_as_of_one_moment(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with forebay.embedded(data) as connection:
        keyed, log = connection.table("fluss.keyed"), connection.table("fluss.log")
        with connection.transaction("job", 1) as tx:
            tx.upsert(keyed, [{"id": 50, "v": "50"}])
            tx.append(log, [{"id": 8}])
        open_ = connection.transaction("open", 1).begin()
        open_.append(log, [{"id": 9}])
        connection.create_table("fluss.log", {"id": "BIGINT"}, ignore_if_exists=True)
        connection.create_table("fluss.dropped", {"id": "BIGINT"}).append([{"id": 1}])
        connection.drop_table("fluss.dropped")
        assert main(["backup", "--data-dir", str(data), str(tmp_path / "copy")]) == 0
        said = capsys.readouterr().out
        assert "while the server runs" in said
        assert "no faults" in said
        keyed.upsert([{"id": 60, "v": "60"}])
        open_.commit()
    with forebay.embedded(tmp_path / "copy") as copy:
        assert copy.table("fluss.keyed").scan().count() == 51
        assert copy.table("fluss.log").scan().to_arrow().to_pylist() == [{"id": 7}, {"id": 8}]
        assert copy.admin.committed_version("job") == 1
        assert copy.list_tables("fluss") == ["keyed", "log"]


def test_each_file_and_folder_of_a_copy_is_synced(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set()
    fsync = os.fsync

    def noticed(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noticed)
    assert main(["backup", "--data-dir", str(data), str(tmp_path / "copy")]) == 0
    copied = [path for path in data.rglob("*") if (tmp_path / "copy" / path.relative_to(data)).exists()]
    assert len(copied) > 10
    part = tmp_path / "copy.part"  # its name until it is whole
    assert {path.relative_to(data) for path in copied} <= {
        path.relative_to(part) for path in synced if path.is_relative_to(part)
    }


def test_what_is_no_data_directory_is_not_copied(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", "--data-dir", str(tmp_path / "none"), str(tmp_path / "copy")]) == 1
    assert "is not a data directory" in capsys.readouterr().err
    assert main(["backup", "--data-dir", str(data), str(data / "copy")]) == 1
    assert "inside of the data directory" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_a_damaged_directory_leaves_no_copy(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = next(path for path in sorted(data.rglob("*.log")) if path.stat().st_size > 100)
    damaged = bytearray(log.read_bytes())
    damaged[90] ^= 0xFF
    log.write_bytes(damaged)
    assert main(["backup", "--data-dir", str(data), str(tmp_path / "copy")]) == 1
    assert "the copy has faults, and was deleted" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
