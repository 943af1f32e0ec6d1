"""The Fluss wire protocol in minimal form: frames and field-numbered protobuf over a blocking socket.

Deliberately independent of `forebay.protocol`: a mistake shared by a codec and its test would go unnoticed. Messages
have no names here. A request is a list of `(field number, value)` pairs, a response a dict from field number to the
list of raw values; callers know the meaning of the fields (reference, parts 1.4 and 1.5).

Values: `bool` and `int` become varints (negative ones take ten bytes), `str` and `bytes` length-delimited fields, a
list of pairs a nested message, `Packed` a packed list of varints.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

FRAME_SUCCESS, FRAME_ERROR, FRAME_FAILURE = 0, 1, 2

API_VERSIONS = 1000
CREATE_TABLE = 1005
GET_TABLE_INFO = 1007
GET_TABLE_SCHEMA = 1011
GET_METADATA = 1012
PRODUCE_LOG = 1014
FETCH_LOG = 1015
PUT_KV = 1016
LOOKUP = 1017
LIST_OFFSETS = 1021
GET_FILE_SYSTEM_SECURITY_TOKEN = 1025
INIT_WRITER = 1026
LIMIT_SCAN = 1033
PREFIX_LOOKUP = 1034
AUTHENTICATE = 1038
ALTER_TABLE = 1044
GET_TABLE_STATS = 1059
SCAN_KV = 1061

Fields = Sequence[tuple[int, Any]]
Message = dict[int, list[Any]]


class Packed(list[int]):
    """A packed repeated integer field."""


class Unanswered(Exception):
    """The peer closed the connection, or said nothing within the time allowed."""


class RawResponse(NamedTuple):
    """One answer: `error` is the code of an error frame, or None; `message` the decoded success body.

    `failure` tells a frame that ends the connection from one that answers a request; such a frame names no request.
    """

    request_id: int
    error: int | None
    message: Message
    error_message: str = ""
    failure: bool = False


def encode_varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(fields: Fields) -> bytes:
    """A protobuf message of the given fields; a None value leaves its field out."""
    out = bytearray()
    for number, value in fields:
        if value is None:
            continue
        if isinstance(value, (bool, int)):
            out += encode_varint(number << 3) + encode_varint(int(value))
            continue
        if isinstance(value, Packed):
            body = b"".join(map(encode_varint, value))
        elif isinstance(value, str):
            body = value.encode()
        elif isinstance(value, bytes):
            body = value
        else:
            body = encode(value)
        out += encode_varint(number << 3 | 2) + encode_varint(len(body)) + body
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def signed(value: int) -> int:
    """A varint as the signed 64-bit integer that it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def decode(data: bytes) -> Message:
    """Field number -> raw values in order: signed integers for varints, bytes for everything else."""
    message: Message = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        value: int | bytes
        if wire_type == 0:
            value, at = _varint(data, at)
            value = signed(value)
        elif wire_type == 2:
            length, at = _varint(data, at)
            value = data[at : at + length]
            at += length
        else:
            width = {1: 8, 5: 4}[wire_type]
            value = data[at : at + width]
            at += width
        message.setdefault(number, []).append(value)
    return message


def one(message: Message, number: int, default: Any = None) -> Any:
    """The last value of a field, as protobuf takes it for a singular one."""
    values = message.get(number)
    return values[-1] if values else default


def nested(message: Message, number: int) -> list[Message]:
    """All values of a message-typed field, decoded."""
    return [decode(value) for value in message.get(number, [])]


def frame(api_key: int, request_id: int, body: bytes, version: int = 0) -> bytes:
    """A request frame."""
    return struct.pack(">ihhi", 8 + len(body), api_key, version, request_id) + body


class RawConnection:
    """One TCP connection that sends request frames and reads answers in the order in which they come."""

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout)
        self._socket.settimeout(timeout)
        self._request_id = 0

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are, frames or not."""
        self._socket.sendall(data)

    def send(self, api_key: int, fields: Fields | bytes, version: int = 0) -> int:
        """Send one request and return its id."""
        self._request_id += 1
        body = fields if isinstance(fields, bytes) else encode(fields)
        self.send_bytes(frame(api_key, self._request_id, body, version))
        return self._request_id

    def receive(self) -> RawResponse:
        """The next answer; raises `Unanswered` when the connection ends or stays silent."""
        (length,) = struct.unpack(">i", self._read(4))
        data = self._read(length)
        if data[0] == FRAME_FAILURE:
            body = decode(data[1:])
            return RawResponse(-1, one(body, 1), {}, one(body, 2, b"").decode(), failure=True)
        (request_id,) = struct.unpack(">i", data[1:5])
        body = decode(data[5:])
        if data[0] == FRAME_ERROR:
            return RawResponse(request_id, one(body, 1), {}, one(body, 2, b"").decode())
        return RawResponse(request_id, None, body)

    def call(self, api_key: int, fields: Fields | bytes, version: int = 0) -> RawResponse:
        """Send one request and wait for its answer."""
        self.send(api_key, fields, version)
        return self.receive()

    def _read(self, count: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < count:
            try:
                chunk = self._socket.recv(count - len(chunks))
            except TimeoutError as silence:
                raise Unanswered("no answer") from silence
            except ConnectionError as reset:
                raise Unanswered("connection reset") from reset
            if not chunk:
                raise Unanswered("connection closed")
            chunks += chunk
        return bytes(chunks)


class ServerNodes(NamedTuple):
    """Who serves a cluster, as its Metadata answer says."""

    coordinator: str | None
    tablet_servers: dict[int, str]


def api_versions(connection: RawConnection) -> tuple[int | None, dict[int, tuple[int, int]]]:
    """The server's type and its (lowest, highest) version of each API."""
    answer = connection.call(API_VERSIONS, [(1, "forebay-exam"), (2, "1")]).message
    listed = nested(answer, 1)
    return one(answer, 2), {one(api, 1): (one(api, 2, 0), one(api, 3, 0)) for api in listed}


def server_nodes(connection: RawConnection) -> ServerNodes:
    """Coordinator and tablet servers of a cluster, by the listener on which `connection` came in."""
    answer = connection.call(GET_METADATA, [])
    if answer.error is not None:
        raise Unanswered(f"Metadata answered error {answer.error}")

    def address(node: Message) -> str:
        return f"{one(node, 2, b'').decode()}:{one(node, 3)}"

    coordinators = nested(answer.message, 1)
    return ServerNodes(
        address(coordinators[0]) if coordinators else None,
        {one(node, 1, 0): address(node) for node in nested(answer.message, 2)},
    )
