"""A shutdown that cannot write its last files, or is interrupted by requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest

from forebay.base.errors import StorageFailure
from forebay.fs.local import LocalFileSystem
from forebay.server.config import ServerConfig
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import ForebayServer, Injected
from tests.patience import PATIENCE


class _FailingAtTheEnd(LocalFileSystem):
    failing = False

    def write_atomic(self, path, data):
        if self.failing:
            raise StorageFailure(f"cannot write {path}")
        super().write_atomic(path, data)


def test_a_stop_that_fails_gives_the_data_directory_back(tmp_path):
    fs = _FailingAtTheEnd()
    server = EmbeddedServer(tmp_path / "data", injected=Injected(fs=fs)).start()
    fs.failing = True
    with pytest.raises(StorageFailure, match="cannot write"):
        server.stop()
    fs.failing = False
    with EmbeddedServer(tmp_path / "data", injected=Injected(fs=fs)) as again:
        assert again.bootstrap_servers


def test_a_connection_that_comes_in_while_the_server_stops_is_refused(tmp_path, monkeypatch):
    server = EmbeddedServer(tmp_path / "data").start()
    drained, admitted = ForebayServer._drain, []

    async def drain_while_one_comes_in(self, connections):
        await drained(self, connections)
        admitted.append(connections.admit(object(), "127.0.0.1"))

    monkeypatch.setattr(ForebayServer, "_drain", drain_while_one_comes_in)
    server.stop()
    assert [error.message for error in admitted] == ["the server is shutting down"]


@pytest.mark.parametrize("iterations", range(6))
def test_a_connection_that_is_being_accepted_when_the_server_stops_is_closed(tmp_path, iterations):
    """asyncio's server forgets it, and leaves it open, if it is closed at the wrong iteration of the loop."""

    async def test():
        server = ForebayServer(ServerConfig(tmp_path / "data", coordinator_port=0, tablet_port=0))
        host, port = (await server.start()).bootstrap_servers.split(":")
        with socket.create_connection((host, int(port)), PATIENCE) as client:
            for _ in range(iterations):
                await asyncio.sleep(0)
            await server.stop()
            with contextlib.suppress(ConnectionResetError):
                client.recv(1000)  # a reason, or the end
                assert client.recv(1000) == b""

    asyncio.run(test())


def test_a_stopped_server_does_nothing_more_for_those_who_wait_for_memory(tmp_path):
    async def test():
        config = ServerConfig(
            tmp_path / "data", coordinator_port=0, tablet_port=0, settings={"server.connections.memory-wait": "50 ms"}
        )
        server = ForebayServer(config)
        await server.start()
        refused = []
        for pool in (server.connections.memory_pools.requests, server.connections.memory_pools.responses):
            pool.take(pool.limit)
            pool.wait(object(), 1, lambda: None, refused.append)
        await server.stop()
        await asyncio.sleep(0.1)
        assert not refused

    asyncio.run(test())


def test_upkeep_that_is_under_way_ends_before_the_buckets_are_closed(tmp_path, monkeypatch):
    """It would write older offsets over those of a graceful stop."""
    order: list[str] = []
    began, may_end = threading.Event(), threading.Event()

    def upkeep():
        began.set()
        assert may_end.wait(PATIENCE)
        order.append("upkeep")

    gather = asyncio.gather

    def waited_for(*tasks, **how):
        may_end.set()
        return gather(*tasks, **how)

    async def test():
        server = ForebayServer(ServerConfig(tmp_path / "data", coordinator_port=0, tablet_port=0))
        await server.start()
        server._every(0.0, upkeep)
        await asyncio.to_thread(began.wait)
        replicas = server.context.replicas
        close = replicas.close

        def closing():
            order.append("closed")
            may_end.set()
            return close()

        monkeypatch.setattr(replicas, "close", closing)
        monkeypatch.setattr(asyncio, "gather", waited_for)
        await server.stop()

    asyncio.run(test())
    assert order == ["upkeep", "closed"]
