"""A server that has no file descriptor left: new clients hear at once, and those that are connected are served."""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path

import pytest

import forebay
from forebay.base.errors import Unavailable
from forebay.testing.server import ServerProcess
from tests.patience import PATIENCE
from tests.server.raw_client import address

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")


def test_without_descriptors_new_clients_are_refused_and_known_ones_are_served(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    try:
        with forebay.connect(server.bootstrap_servers) as conn:
            table = conn.create_table("fluss.t", {"id": "BIGINT", "x": "STRING"}, primary_key="id", buckets=1)
            table.upsert([{"id": 1, "x": "a"}])
            before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
            used = max(int(name) for name in os.listdir(f"/proc/{server.pid}/fd")) + 1
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used, before[1]))
            held = _fill(server.bootstrap_servers)
            with pytest.raises(Unavailable, match="no bootstrap server responds"):
                forebay.connect(server.bootstrap_servers)
            table.upsert([{"id": 1, "x": "b"}])
            assert table.lookup([1])["x"].to_pylist() == ["b"]
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
            for each in held:
                each.close()
            with forebay.connect(server.bootstrap_servers) as late:
                assert late.table("fluss.t").lookup([1])["x"].to_pylist() == ["b"]
    finally:
        server.kill()


def _fill(where: str) -> list[socket.socket]:
    """Connections that the server keeps, up to the first one that it refuses."""
    held = list[socket.socket]()
    while True:
        each = socket.create_connection(address(where), PATIENCE)
        each.settimeout(0.2)
        try:
            assert each.recv(1) == b""
        except TimeoutError:
            held.append(each)
            continue
        except ConnectionResetError:
            pass
        each.close()
        return held
