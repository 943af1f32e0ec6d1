"""Servers that lie to executors: they change answers of the real one on their way."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

from forebay.protocol.api import ApiKey
from tests.patience import PATIENCE

Change = Callable[[bytearray], "bytearray | None"]
"""Changes the payload of an answer; None: the connection ends instead."""


class Liar:
    """A server between executors and the real one. `change` gets every answer to a fetch or a scan."""

    def __init__(self, port: int, change: Change) -> None:
        self._target, self._change = port, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.answers = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            while (request := self._frame(client)) is not None:
                server.sendall(struct.pack(">i", len(request)) + request)
                answer = self._frame(server)
                if answer is None:
                    return
                if struct.unpack_from(">h", request)[0] in (ApiKey.FETCH_LOG, ApiKey.SCAN_KV):
                    self.answers += 1
                    answer = self._change(answer)
                    if answer is None:
                        return
                try:
                    client.sendall(struct.pack(">i", len(answer)) + answer)
                except OSError:
                    return

    @staticmethod
    def _frame(peer: socket.socket) -> bytearray | None:
        found = bytearray()
        size = 4
        while len(found) < size:
            try:
                more = peer.recv(size - len(found))
            except OSError:
                return None
            if not more:
                return None
            found += more
            if len(found) == 4 == size:
                size += struct.unpack(">i", found)[0]
        return found[4:]

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)


LIES: dict[str, Change] = {
    "closed": lambda answer: None,
    "empty": lambda answer: answer[:5],
    "half": lambda answer: answer[: len(answer) // 2],
    "refused": lambda answer: bytearray(b"\x01") + answer[1:],
    "other": lambda answer: answer[:1] + b"\0\0\0\x77" + answer[5:],
    "no message": lambda answer: bytearray(answer.replace(b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe")),
    "long field": lambda answer: answer + b"\x0a\xff\xff\xff\xff\x0f",
    "nothing": lambda answer: bytearray(),
}
