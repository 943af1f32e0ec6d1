"""Staged rows of a transaction that is decided and not written yet."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay.base.errors import CorruptData, OutcomeUnknown, StorageFailure
from forebay.server.embedded import EmbeddedServer
from forebay.server.transactions.stages import StagedBatch, StageFiles
from forebay.verify import verify_directory


@pytest.fixture
def decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a decided transaction, whose rows could not be read when they were to be written."""

    def fails(self: StageFiles, entry: StagedBatch) -> bytearray:
        raise StorageFailure("the disk is away")

    monkeypatch.setattr(StageFiles, "batch", fails)
    with (
        EmbeddedServer(tmp_path / "data") as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="100 ms") as connection,
    ):
        table = connection.create_table("fluss.log", {"n": "BIGINT"})
        tx = connection.transaction("job", 1).begin()
        tx.append(table, [{"n": 1}])
        with pytest.raises(OutcomeUnknown):
            tx.commit()
    monkeypatch.undo()
    return tmp_path / "data"


def stage_of(folder: Path) -> Path:
    [path] = folder.glob("transactions.staged/*/*.stage")
    return path


def test_whole_stages_are_counted_and_not_touched(decided: Path) -> None:
    before = stage_of(decided).stat().st_mtime_ns
    report = verify_directory(decided)
    assert report.is_clean
    assert report.counts["stages"] == 1
    assert stage_of(decided).stat().st_mtime_ns == before


def test_damaged_and_lost_stages_are_faults(decided: Path) -> None:
    path = stage_of(decided)
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    [fault] = verify_directory(decided).faults
    assert "of version 1 of application 'job', which is decided, is damaged" in fault.message
    with pytest.raises(CorruptData, match=rf"decided, is damaged: its rows are in {path}\. Restore"):
        EmbeddedServer(decided).start()
    path.unlink()
    [fault] = verify_directory(decided).faults
    assert "is lost" in fault.message
    with pytest.raises(CorruptData, match="decided, is lost"):
        EmbeddedServer(decided).start()
    path.write_bytes(data)
    with EmbeddedServer(decided) as server, forebay.connect(server.bootstrap_servers) as connection:
        assert connection.table("fluss.log").scan().to_arrow()["n"].to_pylist() == [1]
