"""A TCP proxy between client and server that loses, delays, cuts and answers frames as a test requires.

It listens in front of both roles of a server and rewrites the addresses in Metadata responses, so that a client which
bootstraps through it never connects to the server directly. A test sets `on_request` and `on_response`: functions that
receive each frame and decide what happens to it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import APIS, ApiKey
from forebay.protocol.messages import Message
from tests.patience import PATIENCE


@dataclass(frozen=True)
class Action:
    """What becomes of a frame; after `delay` seconds."""

    kind: str
    delay: float = 0.0
    message: Message | None = None


PASS = Action("pass")
DROP = Action("drop")
"""The frame is lost; the connection stays."""
CLOSE = Action("close")
"""The frame is lost, and the connection with it."""
CUT = Action("cut")
"""Half of the frame arrives, then the connection ends."""


def delayed(seconds: float) -> Action:
    return Action("pass", seconds)


def answered(message: Message) -> Action:
    """The client gets this answer; a request that is answered so does not reach the server."""
    return Action("answer", message=message)


@dataclass
class Frame:
    """A request or an answer. `message()` parses it."""

    key: ApiKey
    request_id: int
    body: bytes
    is_request: bool
    number: int
    """How many frames of this API and direction came before."""

    def message(self) -> Any:
        api = APIS[self.key]
        message = (api.request if self.is_request else api.response)()
        message.ParseFromString(self.body)
        return message


Rule = Callable[[Frame], Action]


def only(key: ApiKey, *actions: Action) -> Rule:
    """The first frames of an API meet these actions, everything else passes."""

    def rule(frame: Frame) -> Action:
        return actions[frame.number] if frame.key is key and frame.number < len(actions) else PASS

    return rule


@dataclass
class Proxy:
    """A running proxy. Use it as a context manager."""

    bootstrap: str
    on_request: Rule = field(default=lambda _: PASS)
    on_response: Rule = field(default=lambda _: PASS)

    def __post_init__(self) -> None:
        self._ports: dict[int, int] = {}
        self._listeners: list[socket.socket] = []
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, bool], int] = {}
        self._closed = False
        self.seen: list[tuple[ApiKey, bool]] = []

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._ports[int(self.bootstrap.rpartition(':')[2])]}"

    def __enter__(self) -> Proxy:
        self._front(int(self.bootstrap.rpartition(":")[2]))
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with self._lock:
            sockets = [*self._sockets, *self._listeners]
        for each in sockets:
            _end(each)
        for thread in self._threads:
            thread.join(PATIENCE)
        for each in sockets:
            each.close()

    def count(self, key: ApiKey, is_request: bool = True) -> int:
        return self._counts.get((int(key), is_request), 0)

    def break_all(self) -> None:
        """End all connections that are open now."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _end(each)

    # ---- plumbing ---------------------------------------------------------------------------------------------------

    def _front(self, server_port: int) -> int:
        """The port that stands for a port of the server."""
        with self._lock:
            if server_port not in self._ports:
                listener = socket.create_server(("127.0.0.1", 0))
                self._listeners.append(listener)
                self._ports[server_port] = listener.getsockname()[1]
                self._start(self._accept, listener, server_port)
            return self._ports[server_port]

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket, server_port: int) -> None:
        while not self._closed:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", server_port))
            except OSError:
                if self._closed:
                    return
                _end(client)
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.update((client, server))
            link = _Link(self, client, server)
            self._start(link.pump, True)
            self._start(link.pump, False)

    def forget(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets.difference_update(sockets)

    def judge(self, key: ApiKey, request_id: int, body: bytes, is_request: bool) -> Action:
        with self._lock:
            number = self._counts.get((int(key), is_request), 0)
            self._counts[int(key), is_request] = number + 1
            self.seen.append((key, is_request))
        rule = self.on_request if is_request else self.on_response
        return rule(Frame(key, request_id, body, is_request, number))

    def readdressed(self, body: bytes) -> bytes:
        message = pb.MetadataResponse()
        message.ParseFromString(body)  # type: ignore[no-untyped-call]
        nodes = list(message.tablet_servers)
        if message.HasField("coordinator_server"):
            nodes.append(message.coordinator_server)
        for node in nodes:
            node.port = self._front(node.port)
        return bytes(message.SerializeToString())


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._keys: dict[int, ApiKey] = {}
        self._to_client = threading.Lock()

    def pump(self, is_request: bool) -> None:
        source, sink = (self._client, self._server) if is_request else (self._server, self._client)
        try:
            while (frame := _read_frame(source)) is not None:
                if not self._carry(frame, sink, is_request):
                    break
        except OSError:
            return
        finally:
            _end(self._client)
            _end(self._server)
            self._proxy.forget(source)
            source.close()

    def _carry(self, frame: bytes, sink: socket.socket, is_request: bool) -> bool:
        if is_request:
            key_number, _, request_id = struct.unpack_from(">hhi", frame)
            key, body = ApiKey(key_number), frame[8:]
            self._keys[request_id] = key
        else:
            kind, request_id = struct.unpack_from(">bi", frame)
            key, body = self._keys.pop(request_id), frame[5:]
            if key is ApiKey.GET_METADATA and kind == 0:
                frame = frame[:5] + self._proxy.readdressed(body)
        action = self._proxy.judge(key, request_id, body, is_request)
        if action.delay:
            time.sleep(action.delay)
        if action.kind == "drop":
            return True
        if action.kind == "close":
            return False
        if action.kind == "answer" and action.message is not None:
            answer = struct.pack(">bi", 0, request_id) + action.message.SerializeToString()
            with self._to_client:
                self._client.sendall(struct.pack(">i", len(answer)) + answer)
            return True
        data = struct.pack(">i", len(frame)) + frame
        if action.kind == "cut":
            sink.sendall(data[: len(data) // 2])
            return False
        with self._to_client:
            sink.sendall(data)
        return True


def _read_frame(source: socket.socket) -> bytes | None:
    head = _read(source, 4)
    return None if head is None else _read(source, struct.unpack(">i", head)[0])


def _read(source: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _end(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
