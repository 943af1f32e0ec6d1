"""One connection's share of the server's memory pools: a large incoming request, outgoing responses."""

from __future__ import annotations

import logging
from typing import Protocol

from forebay.base.ambient import Clock
from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.base.thread_rules import loop_only
from forebay.protocol.connection import ServerConnection
from forebay.server.flow.memory_pool import MemoryPool, MemoryPools

_LOGGER = logging.getLogger(__name__)

_STILL_SECONDS = 2.0
"""Seconds without a byte after which a connection counts as stalled."""


class Owner(Protocol):
    """The part of a connection that its memory accounting uses."""

    address: str
    last_active: float

    @property
    def unsent_bytes(self) -> int: ...

    def balance(self) -> None: ...

    def send_error(self, request_id: int, error: BaseException) -> int: ...

    def abort(self) -> None: ...


@loop_only
class ConnectionMemory:
    """A `Consumer` of the pools, for one connection. Bodies of unanswered requests are counted by the owner."""

    def __init__(self, owner: Owner, connection: ServerConnection, pools: MemoryPools, clock: Clock) -> None:
        self._owner = owner
        self._connection = connection
        self._clock = clock
        self.request_pool = pools.requests
        self.response_pool = pools.responses
        self.large_counted = 0
        self.open_control_bytes = 0
        """Memory of unanswered requests without records, which may be long polls."""
        self.is_starved = False
        """Whether a large request waits for memory."""
        self._wanted = 0
        self._unsent_counted = 0
        self._taken_at = clock.monotonic()

    @property
    def is_overfull(self) -> bool:
        """Whether the server has so many unanswered requests that small ones have to wait, too."""
        return self.request_pool.is_overfull

    def give_all(self) -> None:
        """Release everything: the connection is closed."""
        self._count_large(0)
        self._count_unsent(0)

    # ---- a large request --------------------------------------------------------------------------------------------

    def feed_large(self) -> None:
        """Count the current large request, and grow its buffer if it is full, or wait for memory."""
        connection = self._connection
        self._count_large(connection.large_bytes)
        wanted = connection.wanted_bytes
        if not wanted or self.is_starved:
            return
        if self.request_pool.try_take(wanted):
            self.large_counted += wanted
            connection.grow()
            return
        connection.go_in_small_steps()
        self._wanted = connection.wanted_bytes
        self.is_starved = True
        self.request_pool.wait(self, self._wanted, self._granted, self._refused)
        self._owner.balance()

    def _granted(self) -> None:
        self.large_counted += self._wanted
        self.is_starved = False
        self._connection.grow()
        self._owner.balance()

    def _refused(self, error: Unavailable) -> None:
        self.is_starved = False
        self._give_up_large(error)

    def _give_up_large(self, error: ForebayError) -> None:
        rejected = self._connection.give_up_large(error)
        self._count_large(0)
        if rejected is not None:
            self._owner.send_error(rejected.request_id, rejected.error)
        self._owner.balance()

    def _count_large(self, size: int) -> None:
        change, self.large_counted = size - self.large_counted, size
        if change > 0:
            self.request_pool.take(change)
        elif change:
            self.request_pool.give(-change)

    # ---- answers ----------------------------------------------------------------------------------------------------

    def count_unsent(self) -> None:
        """Count the responses that the peer has not read yet."""
        self._count_unsent(self._owner.unsent_bytes)

    def _count_unsent(self, size: int) -> None:
        change, self._unsent_counted = size - self._unsent_counted, size
        if change > 0:
            if change == size:
                self._taken_at = self._clock.monotonic()
            self.response_pool.take(change)
        elif change:
            self._taken_at = self._clock.monotonic()
            self.response_pool.give(-change)

    # ---- as a consumer of memory -------------------------------------------------------------------------------------

    def held_bytes(self, pool: MemoryPool) -> int:
        """See `forebay.server.flow.memory_pool.Consumer`."""
        if pool is self.request_pool:
            return self.large_counted + self.open_control_bytes
        self.count_unsent()
        return self._unsent_counted

    def stands_still(self, pool: MemoryPool) -> bool:
        """See `forebay.server.flow.memory_pool.Consumer`."""
        if pool is self.request_pool:
            return not self.is_starved and self._clock.monotonic() - self._owner.last_active > _STILL_SECONDS
        return self._clock.monotonic() - self._taken_at > _STILL_SECONDS

    def give_back(self, pool: MemoryPool, reason: str) -> None:
        """Drop the unfinished request, or close the connection to free responses or open requests."""
        if pool is self.request_pool and self.open_control_bytes > self.large_counted:
            _LOGGER.warning("closing a connection from %s with many open requests: %s", self._owner.address, reason)
            self._owner.abort()
            return
        if pool is self.request_pool:
            _LOGGER.warning("abandoning an unfinished request from %s: %s", self._owner.address, reason)
            if self.is_starved:
                self.is_starved = False
                pool.forget(self)
            self._give_up_large(Unavailable(f"{reason}; try again later", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION))
            return
        _LOGGER.warning(
            "closing a connection from %s that does not read its responses: %s", self._owner.address, reason
        )
        self._owner.abort()
        self._count_unsent(0)
