"""Requests of many small parts, of every kind that the server takes: its memory, and how long others wait.

Each request fills its largest body with one list of one message, as small as its elements can be: empty messages,
numbers, texts, fields that do not exist, lists in the last element of lists, JSON of nothing but brackets.

    python -m tests.reliability.request_shapes                              (about 10 minutes)
    python -m tests.reliability.request_shapes --only METADATA --bytes 400000
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.protocol.api import APIS, ApiKey, ServerRole
from forebay.protocol.frames import RESPONSE_HEADER_BYTES, FrameDecoder, FrameType, encode_request
from forebay.protocol.messages import parse
from forebay.testing.server import ServerProcess
from tests.reliability.hostile_clients import BUDGET_BYTES, OVERHEAD_BYTES, WAIT_MAX_SECONDS
from tests.reliability.hostile_clients import _watched as watched
from tests.server.raw_client import RawClient, pb
from tests.server.running import KV_COLUMNS, Bench, kv_key, kv_records

BODY_BYTES = (4 << 20) - 64
_DEPTH_MAX = 5
_REQUEST_ID = 10_000


@dataclass(frozen=True)
class Shape:
    """A request: its API, what its body is made of, and the body."""

    api: ApiKey
    name: str
    body: bytes


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _filled(element: bytes, size: int) -> bytes:
    return element * (size // len(element))


def _lists(descriptor: Any, message: Any, depth: int = 1) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The path of fields to each list below a message type, through single messages and lists of them."""
    for field in descriptor.fields:
        is_list = hasattr(getattr(message, field.name), "append")
        if is_list:
            yield field.name, (field,)
        if field.message_type is not None and depth < _DEPTH_MAX:
            inner = getattr(message, field.name).add() if is_list else getattr(message, field.name)
            for name, path in _lists(field.message_type, inner, depth + 1):
                yield f"{field.name}.{name}", (field, *path)


def _required(message: Any) -> bytes:
    """The single fields of a message, so that the server gets as far as it can with it."""
    body = b""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None and not hasattr(getattr(message, field.name), "append"):
            is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
            body += varint(field.number << 3 | 2) + b"\x01x" if is_text else varint(field.number << 3) + b"\x01"
    return body


def _around(path: tuple[Any, ...], content: bytes) -> bytes:
    """Content of the innermost message, in the messages of `path`."""
    for field in reversed(path):
        content = varint(field.number << 3 | 2) + varint(len(content)) + content
    return content


def shapes(api: ApiKey, size: int) -> Iterator[Shape]:
    """Each shape of requests of one API, with bodies of about `size` bytes."""
    message_class = APIS[api].request
    start = _required(message_class())
    for name, path in _lists(message_class.DESCRIPTOR, message_class()):
        field, tag = path[-1], varint(path[-1].number << 3 | 2)
        elements = {"empty": tag + b"\0"}
        if field.message_type is not None:
            content = _required(_instance(message_class, path))
            elements["whole"] = tag + varint(len(content)) + content
            elements["unknown fields"] = _filled(b"\xf8\x3f\x00", 96)
        elif field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
            elements = {"numbers": varint(field.number << 3) + b"\1"}
            yield Shape(api, f"{name}: packed", start + _around(path, bytes(size)))
        for kind, element in elements.items():
            yield Shape(api, f"{name}: {kind}", start + _around(path[:-1], _filled(element, size)))
    for field in message_class.DESCRIPTOR.fields:
        if field.type == field.TYPE_BYTES and field.name.endswith("json"):
            for text in (b"[],", b'{"a":[', b"1,", b'"":{},'):
                document = b'{"properties":[' + _filled(text, size)
                yield Shape(api, f"{field.name}: {text.decode()}", start + _around((field,), document))
    yield Shape(api, "unknown fields", start + _filled(b"\xf8\x3f\x00", size))


def _instance(message_class: Any, path: tuple[Any, ...]) -> Any:
    message = message_class()
    for field in path:
        value = getattr(message, field.name)
        message = value.add() if hasattr(value, "append") else value
    return message


def all_shapes(size: int) -> list[Shape]:
    """The shapes of all APIs; those of requests with records are as long as the others."""
    own = {ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE}
    return [shape for key in APIS if (api := ApiKey(key)) not in own for shape in shapes(api, size)]


@dataclass(frozen=True)
class Outcome:
    """What one shape cost: bytes of memory of the server, and the longest wait of another client."""

    shape: Shape
    answer: str
    memory_bytes: int
    wait_seconds: float


def _send(where: str, shape: Shape) -> str:
    """Send the request; what came of it, in short."""
    with RawClient(where) as client:
        try:
            client.send_bytes(b"".join(map(bytes, encode_request(shape.api, 0, _REQUEST_ID, [shape.body]))))
            decoder = FrameDecoder(RESPONSE_HEADER_BYTES, 1)
            while (frame := decoder.next_frame()) is None:
                data = client.socket.recv(1 << 16)
                if not data:
                    return "closed"
                decoder.receive_data(data)
        except ConnectionError as e:
            return f"closed: {e}"
    kind, request_id = struct.unpack(">bi", frame.header)
    assert request_id == _REQUEST_ID
    if kind == FrameType.SUCCESS:
        return f"answered by {len(frame.body)} bytes"
    return f"refused: {parse(pb.ErrorResponse, bytes(frame.body)).error_message[:90]}"


class Honest(threading.Thread):
    """A client that puts a row and looks it up, again and again."""

    def __init__(self, bench: Bench, table_id: int) -> None:
        super().__init__()
        self._bench, self._table_id = bench, table_id
        self._is_over = threading.Event()
        self.longest = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._is_over.wait(0.005):
                began = time.monotonic()
                answer = self._bench.put(self._table_id, kv_records([{"id": 1, "name": "honest"}]))
                assert not answer.error_code, answer
                assert self._bench.lookup(self._table_id, [kv_key(1)]).values[0].HasField("values")
                self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as e:  # noqa: BLE001 - `end` raises it
            self.error = e

    def take_longest(self) -> float:
        longest, self.longest = self.longest, 0.0
        return longest

    def end(self) -> None:
        self._is_over.set()
        self.join()
        if self.error is not None:
            raise self.error


def run(folder: Path, picked: list[Shape], tell: Callable[[Outcome], object] = id) -> list[Outcome]:
    """Send each shape to one server, which must serve an honest client beside it and stop gracefully."""
    outcomes = []
    settings = {"server.connections.memory": f"{BUDGET_BYTES}b"}
    with ServerProcess(folder / "data", settings=settings) as server:
        places = {ServerRole.COORDINATOR: server.bootstrap_servers, ServerRole.TABLET: server.ready["tablet.servers"]}
        bench = Bench(places[ServerRole.COORDINATOR], places[ServerRole.TABLET])
        honest = Honest(bench, bench.create("honest", KV_COLUMNS, ["id"]))
        honest.start()
        try:
            for shape in picked:
                role = sorted(APIS[shape.api].roles, key=lambda role: role.name)[0]
                honest.take_longest()
                with watched(server.pid) as most:
                    answer = _send(places[role], shape)
                    time.sleep(0.05)
                outcomes.append(Outcome(shape, answer, most[0], honest.take_longest()))
                tell(outcomes[-1])
        finally:
            honest.end()
            bench.close()
        assert server.stop() == 0
    return outcomes


def is_too_dear(outcome: Outcome) -> bool:
    """Whether the request took more memory than the budget, or made another client wait for long."""
    return outcome.memory_bytes > BUDGET_BYTES + OVERHEAD_BYTES or outcome.wait_seconds > WAIT_MAX_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests of many small parts: memory, waiting time of others.")
    parser.add_argument("--only", help="an API, such as GET_METADATA")
    parser.add_argument("--bytes", type=int, default=BODY_BYTES, help="length of a body (default: about 4 MiB)")
    options = parser.parse_args()
    picked = [shape for shape in all_shapes(options.bytes) if options.only in (None, shape.api.name)]

    def tell(outcome: Outcome) -> None:
        shape = outcome.shape
        print(
            f"{shape.api.name:28} {shape.name:50} {outcome.memory_bytes / 1e6:7.0f} MB "
            f"{outcome.wait_seconds * 1000:7.0f} ms  {outcome.answer}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        outcomes = run(Path(folder), picked, tell)
    bad = sum(map(is_too_dear, outcomes))
    print(f"{bad} of {len(outcomes)} requests cost more memory than the budget, or a wait of {WAIT_MAX_SECONDS:g} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
