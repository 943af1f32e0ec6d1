"""Headers of the PROXY protocol, by their bytes."""

from __future__ import annotations

import socket
import struct

import pytest

from forebay.base.errors import InvalidRequest
from forebay.protocol.proxy_header import ProxyHeader

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
REST = b"the first frame"


def v2(command: int, form: int, body: bytes) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, form, len(body)) + body


V4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack(">HH", 4711, 9123)
V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(16) + struct.pack(">HH", 4712, 9123)

HEADERS = {
    "text, IPv4": (b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 9123\r\n", ("192.0.2.7", 4711)),
    "text, IPv6": (b"PROXY TCP6 2001:db8::7 ::1 4712 9123\r\n", ("2001:db8::7", 4712)),
    "text, unknown": (b"PROXY UNKNOWN\r\n", None),
    "text, unknown with addresses": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    "binary, IPv4": (v2(0x21, 0x11, V4), ("192.0.2.7", 4711)),
    "binary, IPv6": (v2(0x21, 0x21, V6), ("2001:db8::7", 4712)),
    "binary, with more": (v2(0x21, 0x11, V4 + b"\x04\0\x03abc"), ("192.0.2.7", 4711)),
    "binary, the proxy's own": (v2(0x20, 0x00, b""), None),
    "binary, a socket of the machine": (v2(0x21, 0x31, bytes(216)), None),
}

MALFORMED = {
    "a frame": b"\0\0\0\x20" + bytes(32),
    "no end": b"PROXY TCP4 " + b"1" * 120,
    "another family": b"PROXY TCP6 192.0.2.7 10.0.0.1 4711 9123\r\n",
    "no address": b"PROXY TCP4 localhost 10.0.0.1 4711 9123\r\n",
    "a port that cannot be": b"PROXY TCP4 192.0.2.7 10.0.0.1 70000 9123\r\n",
    "too few words": b"PROXY TCP4 192.0.2.7\r\n",
    "another version": v2(0x11, 0x11, V4),
    "a command that cannot be": v2(0x22, 0x11, V4),
    "too few addresses": v2(0x21, 0x11, V4[:8]),
    "too long": SIGNATURE + struct.pack(">BBH", 0x21, 0x11, 60_000) + bytes(100),
}


def feed(header: ProxyHeader, data: bytes, step: int) -> bytes:
    """Give a header its bytes, at most `step` at a time; return what is left."""
    while data and not header.is_complete:
        room = header.room()
        count = min(len(room), step, len(data))
        room[:count] = data[:count]
        header.received(count)
        data = data[count:]
    return data


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("name", HEADERS)
def test_a_header_names_the_client_and_takes_no_byte_too_many(name: str, step: int) -> None:
    data, client = HEADERS[name]
    header = ProxyHeader()
    assert feed(header, data + REST, step) == REST
    assert (header.is_complete, header.client) == (True, client)
    cut = ProxyHeader()
    assert feed(cut, data[:-1], step) == b""
    assert not cut.is_complete


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_header_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="PROXY protocol"):
        feed(ProxyHeader(), MALFORMED[name], 1000)
