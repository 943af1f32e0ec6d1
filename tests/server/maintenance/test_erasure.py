"""Erasing rows: what docs/how-to/erase.md does leaves nothing of a deleted row in the files of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.client.table import Table
from forebay.server.maintenance.retention import LogRetention
from forebay.server.server import Injected
from tests.server.running import Bench, running

SECRETS = (b"ann@example.org", b"ann@old.example.org", b"bob@example.org")
COLUMNS = {"id": "BIGINT", "mail": "STRING"}
OPTIONS = {"table.log.ttl": "1 d", "table.log.arrow.compression.type": "NONE"}
DAY = 86_400


def found(directory: Path) -> dict[bytes, list[str]]:
    """The files that have each secret."""
    files = [(str(path.relative_to(directory)), path.read_bytes()) for path in directory.rglob("*") if path.is_file()]
    return {secret: [name for name, data in files if secret in data] for secret in SECRETS}


def row(number: int, mail: str) -> dict[str, object]:
    return {"id": number, "mail": mail}


def expire(bench: Bench, clock: ManualClock) -> int:
    context = bench.server.server.context
    return LogRetention(context.replicas, context.catalog, context.lake.snapshots, clock).run()


def written(connection: forebay.Connection) -> Table:
    table = connection.create_table("fluss.people", COLUMNS, primary_key="id", options=OPTIONS)
    table.upsert([row(1, "ann@old.example.org"), row(2, "kept@example.org"), row(3, "bob@example.org")])
    table.upsert([row(1, "ann@example.org")])
    return table


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_deleted_row_is_in_no_file_after_the_time_to_live(tmp_path: Path, has_checkpoint: bool) -> None:
    clock = ManualClock()
    with (
        running(tmp_path, Injected(clock=clock)) as bench,
        forebay.connect(bench.server.bootstrap_servers) as connection,
    ):
        table = written(connection)
        table.delete([1])
        with connection.transaction() as tx:
            tx.delete(table, [3])
        replicas = bench.server.server.context.replicas
        if has_checkpoint:
            replicas.checkpoint_grown(records_min=1)
        assert all(found(tmp_path).values())
        clock.advance(DAY - 1)
        assert expire(bench, clock) == 0
        clock.advance(2)
        assert expire(bench, clock) == 1
        assert not any(found(tmp_path).values())
        assert table.scan().to_arrow().to_pylist() == [row(2, "kept@example.org")]
        assert expire(bench, clock) == 0
    with (
        running(tmp_path, Injected(clock=clock)) as bench,
        forebay.connect(bench.server.bootstrap_servers) as connection,
    ):
        table = connection.table("fluss.people")
        assert table.lookup([1, 2]).column("mail").to_pylist() == [None, "kept@example.org"]
        table.upsert([row(4, "new@example.org")])
        assert table.scan().count() == 2
    assert not any(found(tmp_path).values())


def test_a_shorter_time_to_live_removes_deleted_rows_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        running(tmp_path, Injected(clock=clock)) as bench,
        forebay.connect(bench.server.bootstrap_servers) as connection,
    ):
        table = written(connection)
        table.delete([1, 3])
        table.alter(set={"table.log.ttl": "1 s"})
        clock.advance(2)
        assert expire(bench, clock) == 1
        table.alter(set={"table.log.ttl": "1 d"})
        assert not any(found(tmp_path).values())


def test_rows_of_a_log_table_are_in_no_file_after_the_time_to_live(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        running(tmp_path, Injected(clock=clock)) as bench,
        forebay.connect(bench.server.bootstrap_servers) as connection,
    ):
        table = connection.create_table("fluss.visits", COLUMNS, options=OPTIONS)
        table.append([row(n, secret.decode()) for n, secret in enumerate(SECRETS)])
        assert all(found(tmp_path).values())
        clock.advance(DAY + 1)
        assert expire(bench, clock) == 1
        assert table.scan().count() == 0
        assert not any(found(tmp_path).values())
