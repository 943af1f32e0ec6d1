"""A client that sends exactly the given bytes: one blocking socket, messages in and out, bad bytes if needed."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any

from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import APIS, ApiKey, ServerRole
from forebay.protocol.connection import ClientConnection, ResponseReceived, State
from forebay.protocol.handshake import ClientHandshake
from forebay.protocol.sasl import PlainClient
from tests.patience import PATIENCE


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


class RawClient:
    """One connection after its handshake, from the address `source`. `call` raises the server's error; `send_bytes`
    sends anything."""

    def __init__(
        self, where: str, credentials: PlainClient | None = None, timeout: float = PATIENCE, source: str = "127.0.0.1"
    ) -> None:
        self.socket = socket.create_connection(address(where), timeout, (source, 0))
        self.connection = ClientConnection()
        self._waiting: dict[int, ResponseReceived] = {}
        handshake = ClientHandshake(self.connection, "raw-test-client", "1", credentials=credentials)
        try:
            self._send(handshake.start())
            while not handshake.done:
                self._send(handshake.receive(self._next_response()))
        except BaseException:
            self.close()
            raise

    def _send(self, buffers: list[Any]) -> None:
        for buffer in buffers:
            self.socket.sendall(buffer)

    def _next_response(self) -> ResponseReceived:
        while True:
            event = self.connection.next_event()
            if isinstance(event, ResponseReceived):
                return event
            if event is not None:
                raise ConnectionError(repr(event))
            data = self.socket.recv(1 << 16)
            if data:
                self.connection.receive_data(data)
            elif self.connection.state is State.CLOSED:
                raise ConnectionError("the connection is closed")
            else:
                self.connection.receive_eof()

    def send(self, key: ApiKey, message: Any, version: int | None = None) -> int:
        """Send a request without waiting; return its id."""
        sent = self.connection.send_request(key, message, (), version)
        self._send(sent.buffers)
        return sent.request_id

    def receive(self, request_id: int) -> Any:
        """The answer to a request, whatever else comes before it. Raises the server's error."""
        while request_id not in self._waiting:
            response = self._next_response()
            self._waiting[response.request_id] = response
        response = self._waiting.pop(request_id)
        return response.parse(APIS[int(response.api.key)].response)

    def call(self, key: ApiKey, message: Any, version: int | None = None) -> Any:
        return self.receive(self.send(key, message, version))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_closed_by_peer(sock: socket.socket) -> bool:
    """Whether the other side closes the connection (waits for it)."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


__all__ = ["ApiKey", "PlainClient", "RawClient", "ServerRole", "address", "is_closed_by_peer", "pb"]
