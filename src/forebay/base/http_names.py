"""Names in the Host header of HTTP requests, by which a server knows whether it is meant.

A page that makes its own name resolve to this machine (DNS rebinding) sends that name. So a server answers to names
that it knows, and to addresses, if it listens elsewhere than on loopback.
"""

from __future__ import annotations

import ipaddress
import re
import socket

_LOOPBACK_NAMES = ("localhost", "localhost.localdomain")
_NETLOC = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/?#@\s]+))(?::[0-9]{1,5})?", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_names(host: str) -> frozenset[str]:
    """The names of a server that listens on `host`, in lower case."""
    names = {host.lower(), *_LOOPBACK_NAMES}
    if is_loopback(host):
        return frozenset({*names, "127.0.0.1", "::1"})
    own = socket.gethostname().lower()
    return frozenset({*names, own, own.partition(".")[0], socket.getfqdn().lower()})


def name_of(netloc: str) -> str:
    """The name or address in a Host header, in lower case and without the port; "" if the header is malformed."""
    match = _NETLOC.fullmatch(netloc)
    if match is None:
        return ""
    if match["v6"] is not None:
        return match["v6"].lower() if is_address(match["v6"]) else ""
    return match["name"].lower()


def is_address(name: str) -> bool:
    """Whether `name` is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def answers_to(name: str, names: frozenset[str], host: str) -> bool:
    """Whether a server with `names`, which listens on `host`, is meant by `name`."""
    return name in names or (is_address(name) and not is_loopback(host))
