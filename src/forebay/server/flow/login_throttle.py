"""The throttle of logins, which slows down the guessing of passwords.

Failed logins are counted by source address and by user name. The first few have no effect, because people mistype. Each
further login from that address, or for that user, is checked only after a delay that grows to `_DELAY_MAX` seconds. A
login that would have to wait too long is refused with an error that says when to retry. No account is ever locked:
failures are forgotten after a while.

A user who has logged in from an address before is counted separately there. So guesses from other addresses, or of
other names from the same address, cannot lock the user out.

Memory is bounded. Addresses and registered pairs are limited in number, and the least recently used ones are dropped;
users share a fixed number of slots. IPv6 addresses count by their first 64 bits.

Threads: all methods belong to the event loop's thread.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from forebay.base.ambient import Clock
from forebay.base.errors import AccessDenied, ErrorCode
from forebay.base.retrying import backoff
from forebay.base.thread_rules import loop_only

_FREE_FAILURES = 3
"""Failures without a delay."""

_DELAY_FIRST = 0.2
_DELAY_MAX = 5.0
"""Seconds until the next login is checked: at first, and at most. They double with each failure."""

_WAIT_MAX = 10.0
"""A login that would have to wait for more seconds is refused."""

_FORGIVEN_SECONDS = 60.0
"""Seconds after which one failure is forgotten."""

_RECORDS_MAX = 10_000
"""Maximum number of remembered addresses, and of remembered pairs of address and user."""

_USER_SLOTS = 4096
"""User names share this many counters, by a hash."""

Key = TypeVar("Key", bound=Hashable)


class _Record:
    """Failed logins of one address, user or pair."""

    __slots__ = ("failures", "forgiven_at", "free_at")

    def __init__(self) -> None:
        self.failures = 0
        self.forgiven_at = 0.0
        self.free_at = 0.0

    def forgive(self, now: float) -> None:
        if self.failures and now > self.forgiven_at:
            forgotten = int((now - self.forgiven_at) // _FORGIVEN_SECONDS)
            self.failures = max(0, self.failures - forgotten)
            self.forgiven_at += forgotten * _FORGIVEN_SECONDS

    def fail(self, now: float) -> None:
        if not self.failures:
            self.forgiven_at = now
        self.failures += 1
        self.free_at = max(self.free_at, now + self.delay)

    @property
    def delay(self) -> float:
        """Return how long after this login the next one is checked."""
        over = self.failures - _FREE_FAILURES
        return 0.0 if over < 0 else backoff(over + 1, _DELAY_FIRST, _DELAY_MAX)


class _LruRecords(Generic[Key]):
    """Records by key; the least recently used one is dropped when there are too many."""

    def __init__(self, count_max: int) -> None:
        self._records: OrderedDict[Key, _Record] = OrderedDict()
        self._count_max = count_max

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: Key) -> bool:
        return key in self._records

    def get(self, key: Key) -> _Record:
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = _Record()
            if len(self._records) > self._count_max:
                self._records.popitem(last=False)
        else:
            self._records.move_to_end(key)
        return record


@loop_only
class LoginThrottle:
    """The failed logins of a server, for all listeners."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._addresses: _LruRecords[str] = _LruRecords(_RECORDS_MAX)
        self._registered: _LruRecords[tuple[str, str]] = _LruRecords(_RECORDS_MAX)
        self._users: _LruRecords[int] = _LruRecords(_USER_SLOTS)

    def wait_seconds(self, address: str, user: str) -> float:
        """Return how long to wait before this login is checked, and count it.

        Raises `AccessDenied` (RETRIABLE_AUTHENTICATE_EXCEPTION) if that is too long.
        """
        now = self._clock.monotonic()
        records = self._records(address, user)
        start = now
        for record in records:
            record.forgive(now)
            start = max(start, record.free_at)
        if start - now > _WAIT_MAX:
            raise AccessDenied(
                f"too many logins from {address}, or for user '{user}', have failed; try again in "
                f"{start - now:.0f} seconds",
                ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION,
            )
        for record in records:
            record.free_at = max(record.free_at, start + record.delay)
        return start - now

    def failed(self, address: str, user: str) -> None:
        """Record a login with a wrong password."""
        now = self._clock.monotonic()
        for record in self._records(address, user):
            record.fail(now)

    def succeeded(self, address: str, user: str) -> None:
        """Record a login with the right password: from now on the user is counted separately at the address."""
        self._registered.get((network_of(address), user))

    def _records(self, address: str, user: str) -> tuple[_Record, ...]:
        network = network_of(address)
        if (network, user) in self._registered:
            return (self._registered.get((network, user)),)
        return self._addresses.get(network), self._users.get(zlib.crc32(user.encode("utf-8", "replace")) % _USER_SLOTS)


def network_of(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the first 64 bits of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 6:
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped is not None else str(ipaddress.ip_network((int(parsed), 64), strict=False))
    return str(parsed)
