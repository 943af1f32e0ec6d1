"""`forebay backup`: a copy that a server starts on, or none at all."""

from __future__ import annotations

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


def test_a_running_server_is_not_copied(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with forebay.embedded(data):
        assert main(["backup", "--data-dir", str(data), str(tmp_path / "copy")]) == 1
    assert "a server uses the data directory" in capsys.readouterr().err
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
