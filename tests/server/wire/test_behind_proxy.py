"""A server behind a proxy that is named: whom it takes for the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.protocol.sasl import PlainClient
from forebay.server.embedded import EmbeddedServer
from tests.server.raw_client import ApiKey, RawClient, pb

PROXY, DIRECT = "127.0.0.9", "127.0.0.1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    settings = {
        "security.sasl.plain.credentials": "admin:secret",
        "server.proxy-protocol.trusted-addresses": "127.0.0.8/31, 192.0.2.0/24",
        "server.connections.max-per-address": "3",
    }
    with EmbeddedServer(tmp_path / "data", sasl=True, settings=settings) as running:
        yield running


class ProxiedClient(RawClient):
    """A client whose connection begins with a header."""

    def __init__(self, where: str, header: bytes, password: str = "secret", source: str = PROXY) -> None:
        self._header: bytes | None = header
        super().__init__(where, PlainClient("admin", password), source=source)

    def _send(self, buffers: list[bytes]) -> None:
        if self._header is not None:
            header, self._header = self._header, None
            buffers = [header + b"".join(bytes(each) for each in buffers)]
        super()._send(buffers)


def addresses(server: EmbeddedServer) -> set[str]:
    assert server.server is not None
    return {each.address for each in server.server.connections}


def from_client(number: int) -> bytes:
    return f"PROXY TCP4 192.0.2.{number} 10.0.0.1 {1000 + number} 9123\r\n".encode()


def test_clients_of_a_proxy_count_by_their_own_addresses(server: EmbeddedServer) -> None:
    clients = [ProxiedClient(server.bootstrap_servers, from_client(i)) for i in range(1, 6)]
    try:
        request = pb.DatabaseExistsRequest(database_name="fluss")
        assert all(client.call(ApiKey.DATABASE_EXISTS, request).exists for client in clients)
        assert {f"192.0.2.{i}" for i in range(1, 6)} <= addresses(server)
    finally:
        for client in clients:
            client.close()


def test_guesses_behind_a_proxy_do_not_keep_out_its_other_clients(server: EmbeddedServer) -> None:
    for _ in range(3):
        with pytest.raises(ForebayError) as refused:
            ProxiedClient(server.bootstrap_servers, from_client(1), "wrong")
        assert refused.value.code == ErrorCode.AUTHENTICATE_EXCEPTION
    with ProxiedClient(server.bootstrap_servers, from_client(2)) as client:
        assert client.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists


def test_a_header_of_another_client_is_refused_and_a_proxy_without_one_too(server: EmbeddedServer) -> None:
    with pytest.raises((ConnectionError, ForebayError)):
        ProxiedClient(server.bootstrap_servers, from_client(1), source=DIRECT)
    with pytest.raises((ConnectionError, ForebayError)):
        RawClient(server.bootstrap_servers, PlainClient("admin", "secret"), source=PROXY)
    with RawClient(server.bootstrap_servers, PlainClient("admin", "secret"), source=DIRECT) as client:
        assert client.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists


def test_a_proxy_that_is_no_address_is_refused_by_name(tmp_path: Path) -> None:
    settings = {"server.proxy-protocol.trusted-addresses": "proxy.example.org"}
    with pytest.raises(InvalidRequest, match=r"server\.proxy-protocol\.trusted-addresses.*proxy\.example\.org"):
        EmbeddedServer(tmp_path / "data", settings=settings).start()
