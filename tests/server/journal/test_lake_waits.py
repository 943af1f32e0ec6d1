"""A lake is never ahead of the store: what a takeover loses under `local` is not in the lake either."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay.base.errors import Unavailable
from forebay.tiering.now import tier_table
from forebay.unionread.planning import readable_snapshot


def test_a_round_waits_until_the_store_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "store": str(tmp_path / "store"),
        "store.interval": "20 ms",
        "datalake.format": "paimon",
        "datalake.paimon.warehouse": str(tmp_path / "lake"),
    }
    with forebay.embedded(tmp_path / "data", settings=settings, retry_timeout="1 s") as conn:
        options = {"table.datalake.enabled": True}
        table = conn.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id", options=options)
        table.upsert([{"id": 1, "v": "stored"}])
        tier_table(conn, "fluss.kv")
        first = readable_snapshot(table)
        assert first is not None
        with monkeypatch.context() as away:
            away.setattr("forebay.server.handlers.lake._STORE_SECONDS", 0.05)
            away.setattr("forebay.server.journal.uploader.JournalUploader.upload", lambda *_args, **_more: False)
            table.upsert([{"id": 2, "v": "not stored"}])
            with pytest.raises(Unavailable, match="does not have the newest records yet"):
                tier_table(conn, "fluss.kv")
            assert readable_snapshot(table) == first
            assert conn.table("fluss.kv").scan(source="union").count() == 2
        tier_table(conn, "fluss.kv")
        assert readable_snapshot(table) != first
