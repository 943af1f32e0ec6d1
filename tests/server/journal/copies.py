"""Servers with stores, whose content is compared with that of servers on copies of the stores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.inprocess import EmbeddedConnection
from forebay.server.journal.store_copy import StoreCopied, copy_store
from forebay.store import journal as journal_module
from forebay.store.opening import open_store
from tests.patience import PATIENCE

Start = Callable[..., EmbeddedConnection]
SMALL = {"log.segment.file-size": "2kb", "remote.log.task-interval-duration": "1 d", "kv.checkpoint.records": "20"}


def many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every eighth object of a journal is an anchor."""
    monkeypatch.setattr(journal_module, "ANCHOR_EVERY", 8)
    monkeypatch.setattr("forebay.server.journal.checkpoints._PREPARED_BEFORE", 4)


@contextmanager
def servers(tmp_path: Path) -> Iterator[Start]:
    """Starts a server in a data directory of this name, with the store of this name."""
    running: list[EmbeddedConnection] = []

    def started(name: str, store: str = "store", retention: str = "1 h") -> EmbeddedConnection:
        settings = {"store": str(tmp_path / store), "store.interval": "20 ms", "store.retention": retention, **SMALL}
        running.append(forebay.embedded(tmp_path / name, settings=settings))
        return running[-1]

    try:
        yield started
    finally:
        for connection in running:
            connection.close()


def stored(conn: EmbeddedConnection) -> None:
    """Wait until the store has everything."""
    journal = conn.server.server._journal
    assert journal is not None
    assert journal.wait_until_stored(PATIENCE)


def tier(conn: EmbeddedConnection) -> None:
    """Log segments and state move to the store."""
    stored(conn)
    conn.server.server._tiering.run()  # type: ignore[union-attr]
    stored(conn)


def copied(tmp_path: Path, target: str, at_ms: int | None = None, source: str = "store") -> StoreCopied:
    """Copy the store of this name."""
    return copy_store(open_store(str(tmp_path / source)), open_store(str(tmp_path / target)), at_ms)


def content(conn: EmbeddedConnection) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables, and all changes."""
    found = {}
    for name in sorted(table for database in conn.list_databases() for table in conn.list_tables(database)):
        table = conn.table(name if "." in name else f"fluss.{name}")
        rows = table.scan().to_arrow().to_pylist()
        found[name] = sorted(rows, key=lambda row: sorted(map(str, row.items())))
        changes = table.changes("earliest", "latest").to_arrow().drop_columns(["_commit_timestamp"]).to_pylist()
        found[f"{name} changes"] = sorted(changes, key=lambda row: (row["__bucket"], row["_log_offset"]))
    return found


def fill(conn: EmbeddedConnection, rng: random.Random, step: int) -> None:
    """Some writes of every kind."""
    if step == 0:
        conn.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=2)
        conn.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    kv, log = conn.table("fluss.kv"), conn.table("fluss.log")
    for _ in range(rng.randint(1, 4)):
        kv.upsert([{"id": rng.randrange(50), "v": f"{step} " * 20} for _ in range(10)])
        log.append([{"id": step, "v": "x" * 200} for _ in range(10)])
    with conn.transaction("job", step) as tx:
        tx.upsert("fluss.kv", [{"id": 1000, "v": str(step)}])
        tx.append("fluss.log", [{"id": 1000, "v": str(step)}])
    if step % 4 == 3:
        conn.create_table(f"fluss.t{step}", {"id": "BIGINT"}).append([{"id": step}])
    if step % 8 == 7:
        conn.drop_table(f"fluss.t{step - 4}")
