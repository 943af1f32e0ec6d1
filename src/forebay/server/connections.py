"""All connections of a server: their limits, their fair queue, and their memory."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol

from forebay.base.ambient import Clock
from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.protocol.api import BULK_REQUESTS, Api, ServerRole, api_versions_response
from forebay.protocol.messages import Message
from forebay.server.config import TRUSTED_PROXIES, ServerConfig
from forebay.server.counters import ServerCounters
from forebay.server.flow.fair_queue import FairQueue
from forebay.server.flow.login_throttle import LoginThrottle
from forebay.server.flow.memory_pool import Consumer, MemoryPools

_LOGGER = logging.getLogger(__name__)

_SECONDS_BETWEEN_WARNINGS = 10.0
"""Minimum time between two warnings that connections are refused."""

_LATE_SHARE = 4
"""While memory is overfull, a connection may have this part (a quarter) of an equal share."""

FIRST_FRAME_BYTES_MAX = 16 * 1024
"""The longest frame of a client that has not authenticated, or has not sent a request yet."""


class ManagedConnection(Protocol):
    """The part of a connection that the set of all connections uses."""

    @property
    def memory(self) -> Consumer: ...

    address: str
    last_active: float
    opened: float

    @property
    def is_idle(self) -> bool: ...

    @property
    def is_stalled(self) -> bool: ...

    @property
    def is_known(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int: ...

    def description(self) -> ConnectionDescription: ...

    def stop_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ConnectionDescription:
    """A connection as shown to users.

    `user` is None without a login. `greeting` is the body of its client's ApiVersions request, unparsed; empty before
    it, or if it was long.
    """

    address: str
    user: str | None
    greeting: bytes
    role: ServerRole
    listener: str
    open_requests: int
    open_bytes: int
    unsent_bytes: int
    age_seconds: float
    idle_seconds: float


class Connections:
    """The admitted connections, by address, with their fair queue, memory and login throttle."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        config: ServerConfig,
        counters: ServerCounters | None = None,
    ) -> None:
        self.clock = clock
        self.counters = counters or ServerCounters()
        self.fair_queue = FairQueue(loop, clock)
        self.memory_pools = MemoryPools(
            config.connection_memory, self._consumers, config.seconds("server.connections.memory-wait")
        )
        self.login_throttle = LoginThrottle(clock)
        self.open_requests_max: int = config.value("netty.server.max-queued-requests")
        # A request has to fit into the pool of requests, whatever else is in it.
        self.frame_bytes_max: int = min(
            config.value("netty.server.max-request-size"), max(self.memory_pools.requests.limit, FIRST_FRAME_BYTES_MAX)
        )
        self._version_answers: dict[tuple[str, ServerRole], Message] = {}
        self.is_closing = False
        """Whether the server is stopping: incoming connections are refused."""
        self.refused: set[asyncio.Transport] = set()
        """Transports of clients that were refused, while these may still read the reason."""
        self._control_bytes_max: int = config.value("server.request.max-control-size")
        self._count_max: int = config.value("server.connections.max")
        self._count_max_per_address: int = config.value("server.connections.max-per-address")
        self._proxies: tuple[IPv4Network | IPv6Network, ...] = config.value(TRUSTED_PROXIES)
        self._all: dict[ManagedConnection, None] = {}
        """In the order in which they were admitted."""
        self._strangers: dict[ManagedConnection, None] = {}
        """Connections that had not identified themselves when last checked, oldest first."""
        self._by_address: Counter[str] = Counter()
        self._warned_at: float | None = None

    def __iter__(self) -> Iterator[ManagedConnection]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def version_answer(self, listener: str, role: ServerRole, offered: Mapping[int, Api]) -> Message:
        """Return the response to ApiVersions at a listener; built once."""
        answer = self._version_answers.get((listener, role))
        if answer is None:
            answer = self._version_answers[listener, role] = api_versions_response(offered, role)
        return answer

    @property
    def open_bytes_share(self) -> int:
        """Return the memory that each connection may have once memory for requests is overfull: part of an equal share.

        Latecomers' shares therefore do not fill it twice, and small requests never have to wait."""
        return self.memory_pools.requests.limit // (_LATE_SHARE * max(len(self._all), 1))

    def _consumers(self) -> Iterator[Consumer]:
        return (each.memory for each in self._all)

    def body_bytes_max(self, api_key: int) -> int:
        """Return the maximum length of a request's body, by its API."""
        return self.frame_bytes_max if api_key in BULK_REQUESTS else self._control_bytes_max

    def admit(self, connection: ManagedConnection, address: str) -> ForebayError | None:
        """Admit a new connection, or return the error to send it: too many connections, or the server is stopping."""
        if self.is_closing:
            return Unavailable("the server is shutting down", ErrorCode.NETWORK_EXCEPTION)
        what = self._full(address)
        if what is not None:
            return self._refusal(address, what)
        self._all[connection] = None
        self._strangers[connection] = None
        self._by_address[address] += 1
        return None

    def is_proxy(self, address: str) -> bool:
        """Whether connections from an address begin with a header that names the proxy's client."""
        if not self._proxies:
            return False
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:  # of a socket that has none
            return False
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._proxies)

    def readdress(self, connection: ManagedConnection, proxy: str) -> ForebayError | None:
        """Count an admitted connection of a proxy for its client, whose `address` is known now; or return the error to
        send it."""
        self.remove(connection, proxy)
        return self.admit(connection, connection.address)

    def _full(self, address: str) -> str | None:
        """What there is too much of for another connection of an address; None if there is room, or room was made."""
        # First: an address at its limit must not cost other clients their connections. Behind a proxy it is many
        # clients, so the oldest of its connections that never spoke makes room.
        if self._by_address[address] >= self._count_max_per_address and not self._close_stranger(address):
            return (
                f"{self._count_max_per_address} connections from {address}, the maximum for one address "
                "(server.connections.max-per-address)"
            )
        if len(self._all) >= self._count_max and not self._close_stranger():
            return f"{self._count_max} connections, its maximum (server.connections.max)"
        return None

    def _refusal(self, address: str, what: str) -> ForebayError:
        self.counters.refused_connections += 1
        now = self.clock.monotonic()
        if self._warned_at is None or now - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_at = now
            _LOGGER.warning(
                "refusing a connection from %s: the server has %s (%d refused)",
                address,
                what,
                self.counters.refused_connections,
            )
        return Unavailable(f"the server has {what}; close some, or retry later", ErrorCode.NETWORK_EXCEPTION)

    def _close_stranger(self, address: str | None = None) -> bool:
        """Make room by closing the oldest unidentified connection, of `address` if one is given; return whether there
        was one."""
        for oldest in list(self._strangers):
            if address is not None and oldest.address != address:
                continue
            del self._strangers[oldest]
            if not oldest.is_known:
                self.remove(oldest, oldest.address)
                oldest.close()
                return True
        return False

    def remove(self, connection: ManagedConnection, address: str) -> None:
        """Remove a closed connection; does nothing for one that was not admitted."""
        if connection not in self._all:
            return
        del self._all[connection]
        self._strangers.pop(connection, None)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self.memory_pools.forget(connection.memory)

    def close_idle(self, idle_seconds: float, unknown_seconds: float) -> None:
        """Close connections that neither send nor read for too long, and those that do not identify themselves."""
        now = self.clock.monotonic()
        for each in list(self._all):
            is_unknown = not each.is_known and each.opened < now - unknown_seconds
            if is_unknown or ((each.is_stalled or each.is_idle) and each.last_active < now - idle_seconds):
                each.close()
