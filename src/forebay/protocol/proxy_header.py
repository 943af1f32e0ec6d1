"""The header of the PROXY protocol, versions 1 and 2, by which a proxy names its client before the client's first byte.

`ProxyHeader` asks for the bytes that it needs and no more, so that what follows goes to the protocol behind it:
`room` is where the next bytes go, and `received` says how many there are.

Reference: https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

from forebay.base.errors import InvalidRequest

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_TEXT_BYTES_MAX = 107
_BODY_BYTES_MAX = 4096
"""The longest rest of a binary header: addresses, and what proxies add to them."""

_LOCAL, _PROXY = 0x20, 0x21
_FORMS = {0x11: (IPv4Address, struct.Struct(">4s4sHH")), 0x21: (IPv6Address, struct.Struct(">16s16sHH"))}
"""TCP over IPv4 and IPv6: source and destination address, and their ports."""


class ProxyHeader:
    """A header that arrives. `client` is the address and the port of the proxy's client; None if it names none."""

    def __init__(self) -> None:
        self.is_complete = False
        self.client: tuple[str, int] | None = None
        self._data = bytearray()
        self._room = bytearray(len(_SIGNATURE))

    def room(self) -> memoryview:
        """Where the next bytes go; never empty before the header is complete."""
        return memoryview(self._room)

    def received(self, count: int) -> None:
        """Take bytes that were put into `room`. Raises `InvalidRequest` if this is no header."""
        self._data += self._room[:count]
        if count < len(self._room):
            self._room = self._room[count:]
            return
        missing = self._missing()
        self.is_complete = not missing
        self._room = bytearray(missing)

    def _missing(self) -> int:
        """How many bytes are certainly missing; at 0 the header is read."""
        data = bytes(self._data)
        if data.startswith(_SIGNATURE):
            if len(data) < len(_SIGNATURE) + 4:
                return 4
            return self._read_binary(data)
        if not data.startswith(b"PROXY "):
            raise InvalidRequest("it does not begin with a header of the PROXY protocol")
        if not data.endswith(b"\r\n"):
            if len(data) >= _TEXT_BYTES_MAX:
                raise InvalidRequest(f"its header of the PROXY protocol does not end within {_TEXT_BYTES_MAX} bytes")
            return 1
        self._read_text(data)
        return 0

    def _read_text(self, data: bytes) -> None:
        words = data[:-2].decode("latin-1").split(" ")
        if words[1] == "UNKNOWN":
            return
        try:
            _, family, source, _, port, _ = words
            address = ip_address(source)
            if family != f"TCP{address.version}":
                raise ValueError
            self.client = str(address), _port(port)
        except ValueError as e:
            raise InvalidRequest(f"its header of the PROXY protocol is malformed: {data!r}") from e

    def _read_binary(self, data: bytes) -> int:
        command, form, length = struct.unpack_from(">BBH", data, len(_SIGNATURE))
        if command not in (_LOCAL, _PROXY) or length > _BODY_BYTES_MAX:
            raise InvalidRequest(f"its header of the PROXY protocol has command {command:#x} and {length:,} bytes")
        body = data[len(_SIGNATURE) + 4 :]
        if len(body) < length:
            return int(length) - len(body)
        if command == _PROXY and form in _FORMS:
            kind, layout = _FORMS[form]
            if length < layout.size:
                raise InvalidRequest(f"its header of the PROXY protocol has only {length} bytes of addresses")
            source, _, port, _ = layout.unpack_from(body)
            self.client = str(kind(source)), port
        return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > 0xFFFF:
        raise ValueError(text)
    return int(text)
