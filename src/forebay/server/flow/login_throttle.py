"""The throttle of logins, which slows down the guessing of passwords.

A password is checked at once. The right one is answered at once, whatever was guessed before. Wrong ones are counted by
source address, by user name and by both: the first few are answered at once, too, because people mistype, and each
further one after a delay that grows to `_DELAY_MAX` seconds.

A guesser who does not wait for answers is bounded as well: if wrong passwords come much faster than one after the
other, logins of that user from that address are refused unchecked, with an error that says when to retry. Many more are
checked of all users of an address, and of one user from all addresses. No account is ever locked: failures are
forgotten after a while.

A user who has logged in from an address before is counted separately there. So guesses from other addresses, or of
other names from the same address, cannot lock the user out.

Memory is bounded. Addresses and pairs of address and user are limited in number, and the least recently used ones are
dropped; users share a fixed number of slots. IPv6 addresses count by their first 64 bits.

Threads: all methods belong to the event loop's thread.
"""

from __future__ import annotations

import ipaddress
import math
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
"""Seconds until a wrong password is answered: at first, and at most. They double with each failure."""

_PAIR_SHARE = 0.75
"""The time that each wrong password of one user from one address takes of the guesses, as a part of its delay: less
than all of it, so that who waits for each answer is never refused."""

_SHARED_SHARE = _PAIR_SHARE / 8
"""The same of all users of an address, or of one user from all addresses."""

_DEBT_MAX = 120.0
"""Logins are refused unchecked while the guesses before them have taken more seconds than have passed since."""

_FORGIVEN_SECONDS = 60.0
"""Seconds after which one failure is forgotten."""

_RECORDS_MAX = 10_000
"""Maximum number of remembered addresses, and of remembered pairs of address and user."""

_USER_SLOTS = 4096
"""User names share this many counters, by a hash."""

Key = TypeVar("Key", bound=Hashable)


class _Record:
    """Failed logins of one address, user or pair, each of which takes `share` of its delay."""

    __slots__ = ("failures", "forgiven_at", "paid_at", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self.failures = 0
        self.forgiven_at = 0.0
        self.paid_at = 0.0
        """When all guesses will have taken their time."""

    def forgive(self, now: float) -> None:
        if self.failures and now > self.forgiven_at:
            forgotten = int((now - self.forgiven_at) // _FORGIVEN_SECONDS)
            self.failures = max(0, self.failures - forgotten)
            self.forgiven_at += forgotten * _FORGIVEN_SECONDS

    def fail(self, now: float) -> None:
        if not self.failures:
            self.forgiven_at = now
        self.failures += 1
        self.paid_at = max(self.paid_at, now) + self.delay * self.share

    @property
    def delay(self) -> float:
        """Return how long a wrong password is not answered."""
        over = self.failures - _FREE_FAILURES - 1
        return 0.0 if over < 0 else backoff(over + 1, _DELAY_FIRST, _DELAY_MAX)


class _LruRecords(Generic[Key]):
    """Records by key; the least recently used one is dropped when there are too many."""

    def __init__(self, count_max: int, share: float) -> None:
        self._records: OrderedDict[Key, _Record] = OrderedDict()
        self._count_max, self._share = count_max, share

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: Key) -> bool:
        return key in self._records

    def get(self, key: Key) -> _Record:
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = _Record(self._share)
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
        self._addresses: _LruRecords[str] = _LruRecords(_RECORDS_MAX, _SHARED_SHARE)
        self._users: _LruRecords[int] = _LruRecords(_USER_SLOTS, _SHARED_SHARE)
        self._pairs: _LruRecords[tuple[str, str]] = _LruRecords(_RECORDS_MAX, _PAIR_SHARE)
        self._registered: _LruRecords[tuple[str, str]] = _LruRecords(_RECORDS_MAX, _PAIR_SHARE)

    def check(self, address: str, user: str) -> None:
        """Raise `AccessDenied` (RETRIABLE_AUTHENTICATE_EXCEPTION) if too much was guessed to check a password now."""
        now = self._clock.monotonic()
        seconds = max(record.paid_at for record in self._records(address, user)) - now - _DEBT_MAX
        if seconds > 0:
            raise AccessDenied(
                f"too many logins from {address}, or for user '{user}', have failed; try again in "
                f"{math.ceil(seconds)} seconds",
                ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION,
            )

    def failed(self, address: str, user: str) -> float:
        """Record a login with a wrong password; return how many seconds later it is to be answered."""
        now = self._clock.monotonic()
        records = self._records(address, user)
        for record in records:
            record.forgive(now)
            record.fail(now)
        return max(record.delay for record in records)

    def succeeded(self, address: str, user: str) -> None:
        """Record a login with the right password: from now on the user is counted separately at the address."""
        self._registered.get((network_of(address), user))

    def _records(self, address: str, user: str) -> tuple[_Record, ...]:
        network = network_of(address)
        if (network, user) in self._registered:
            return (self._registered.get((network, user)),)
        slot = zlib.crc32(user.encode("utf-8", "replace")) % _USER_SLOTS
        return self._addresses.get(network), self._users.get(slot), self._pairs.get((network, user))


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
