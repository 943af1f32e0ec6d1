"""`forebay takeover`: a standby takes over at once from a server that runs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import forebay
from forebay.base.errors import ForebayError
from forebay.cli.main import main
from forebay.inprocess import EmbeddedConnection
from forebay.server.config import server_config
from forebay.server.standby.standby import Standby
from tests.patience import PATIENCE, until


def serving(folder: Path, store: Path, lease: str) -> EmbeddedConnection:
    settings = {"store": str(store), "store.interval": "20 ms", "store.lease": lease}
    return forebay.embedded(folder, settings=settings, writer_delivery_timeout="2 s")


@pytest.fixture(params=["1 h", "0 s"])
def server(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbeddedConnection]:
    """A server that is idle, with a lease that does not end in this test, or with none."""
    monkeypatch.setattr("forebay.server.journal.server_journal._RENEWAL_SHARE", 0.2 / 3600)
    monkeypatch.setattr("forebay.server.journal.server_journal._IDLE_LOOK_SECONDS", 0.2)
    with serving(tmp_path / "old", tmp_path / "store", request.param) as running:
        running.create_table("fluss.kv", {"id": "BIGINT"}, primary_key="id").upsert([{"id": 1}])
        yield running


def test_a_standby_takes_over_at_once(
    server: EmbeddedConnection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    standby = Standby.of(server_config(tmp_path / "new", settings={"store": str(store)}))

    def take_over() -> EmbeddedConnection | None:
        return serving(tmp_path / "new", store, "1 h") if standby.wait() else None

    with ThreadPoolExecutor(1) as pool:
        new = pool.submit(take_over)
        try:
            until(lambda: standby.holder, "it follows")
            assert main(["takeover", str(store), "--timeout", str(PATIENCE)]) == 0
        finally:
            standby.stop()
        taken = new.result(PATIENCE)
    assert taken is not None
    with taken:
        assert f"{tmp_path / 'new'} on " in (said := capsys.readouterr().out)
        assert "has taken over after" in said
        assert not list((store / "takeover").iterdir())
        assert taken.table("fluss.kv").lookup(1).to_pylist() == [{"id": 1}]
    with pytest.raises(ForebayError):
        server.table("fluss.kv").upsert([{"id": 2}])


def test_without_another_server_it_says_that_nobody_serves(
    server: EmbeddedConnection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["takeover", str(tmp_path / "store"), "--timeout", "2"]) == 1
    said = capsys.readouterr().err
    assert "has ended (another server has asked for the store), and none has taken over in 2 s: start one" in said
    server.close()
    with serving(tmp_path / "old", tmp_path / "store", "1 h") as again:  # its own directory goes on
        assert again.table("fluss.kv").lookup(1).to_pylist() == [{"id": 1}]


def test_a_server_that_is_gone_is_not_asked_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    serving(tmp_path / "old", store, "1 h").close()
    assert main(["takeover", str(store), "--timeout", "0.2"]) == 1
    assert "has ended (the server was stopped), and none has taken over in 0.2 s" in capsys.readouterr().err
    newest = max((store / "journal").iterdir())
    newest.unlink()  # as if it had been killed before it could say so
    assert main(["takeover", str(store), "--timeout", "0.2"]) == 1
    said = capsys.readouterr().err
    assert "has not ended in 0.2 s; the request was taken back. If it does not run any more, a standby takes" in said
    assert not list((store / "takeover").iterdir())


def test_a_store_has_to_be_named_and_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["takeover"]) == 1
    assert "no store is given: forebay takeover s3://bucket/shop" in capsys.readouterr().err
    assert main(["takeover", str(tmp_path / "none")]) == 1
    assert "no server has written to the store" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
