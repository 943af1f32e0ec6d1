"""`forebay kv-engine`: a table's buckets move to another key-value engine while it is written and read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import InvalidRequest
from forebay.cli.main import main
from forebay.testing.server import EmbeddedServer
from tests.patience import until

SCHEMA = pa.schema(
    [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64(), nullable=False), ("v", pa.string())]
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "data") as started:
        yield started


def engines(server: EmbeddedServer) -> set[str]:
    return {replica.kv.engine.name for replica in server.server.context.replicas.replicas()}


def has_moved(server: EmbeddedServer, engine: str) -> bool:
    replicas = server.server.context.replicas
    replicas.close_offline()
    return len(replicas.replicas()) == 2 and engines(server) == {engine}


def rows(first: int, count: int, text: str) -> pa.Table:
    keys = range(first, first + count)
    return pa.table({"a": keys, "b": [key % 7 for key in keys], "v": [f"{text} {key}" for key in keys]}, SCHEMA)


def test_buckets_move_when_they_are_unused_and_lose_nothing(
    server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with forebay.connect(server.bootstrap_servers) as connection, ExitStack() as stack:
        connection.create_table("fluss.t", SCHEMA, primary_key=["a", "b"], buckets=2)
        table = connection.table("fluss.t")
        table.upsert(rows(0, 500, "old"))
        assert engines(server) == {"hlog"}
        stop = threading.Event()
        written = 500

        def write() -> None:
            nonlocal written
            while not stop.is_set():
                table.upsert(rows(written, 10, "new"))
                written += 10

        writer = threading.Thread(target=write)
        writer.start()
        stack.callback(writer.join)
        stack.callback(stop.set)
        for engine in ("lmdb", "hlog"):
            assert main(["kv-engine", "-b", server.bootstrap_servers, "--table", "fluss.t", engine]) == 0
            until(lambda: has_moved(server, engine), f"both buckets with {engine}")  # noqa: B023 - called here
        stack.close()
        found = table.scan().to_arrow().sort_by("a")
        assert found["a"].to_pylist() == list(range(written))
        assert found["v"].to_pylist() == [f"{'old' if key < 500 else 'new'} {key}" for key in range(written)]
    assert "fluss.t: its buckets move to the engine 'lmdb' soon" in capsys.readouterr().out


def test_an_engine_that_does_not_exist_or_cannot_hold_the_table_is_refused(server: EmbeddedServer) -> None:
    with forebay.connect(server.bootstrap_servers) as connection:
        with pytest.raises(InvalidRequest, match="'leveldb' is not a key-value engine: choose 'auto', 'hlog'"):
            connection.create_table("fluss.t", SCHEMA, primary_key=["a"], options={"forebay.kv.engine": "leveldb"})
        connection.create_table("fluss.t", SCHEMA, primary_key=["a", "b"], bucket_keys=["a"], buckets=1)
        table = connection.table("fluss.t")
        table.upsert(rows(0, 20, "x"))
        assert engines(server) == {"lmdb"}  # which can look up by 'a' alone
        with pytest.raises(InvalidRequest, match=r"the bucket key of this table \(a\) is the beginning"):
            table.alter(set={"forebay.kv.engine": "hlog"})
        table.alter(set={"forebay.kv.engine": "auto"})
