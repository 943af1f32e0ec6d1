"""The memory that requests and answers of all connections may take together.

Nouns: the *budget* has two halves. From the *receiving* half comes memory for requests: buffers of large ones that are
on their way in, and bodies of those that are not answered. From the *answering* half comes memory for large answers:
what is reserved while one is made, and what waits until its client takes it. The halves are apart so that requests that
wait for memory can never keep answers from being made, whose end frees it. A part of the answering half is kept for
short answers while they are made, so that a lookup never waits behind large answers that their clients do not take.

The rule: memory is counted when it is taken. Whoever can wait asks first, in turn with all others; whoever cannot (a
small request that is there already) is counted all the same, and then the connection waits before it takes more.

Nothing waits for ever. Once the first in turn has waited for `wait_seconds`, the largest consumers lose what they hold
(`Consumer.give_back`), those that stand still before others, until it is served. Where there is nothing to take, those
who wait are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forebay.base.errors import ErrorCode, Unavailable

_LOGGER = logging.getLogger(__name__)

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_MEMINFO = "/proc/meminfo"
_UNKNOWN_MACHINE_BYTES = 2 << 30
_DEFAULT_SHARE = 8
_SHORT_ANSWERS_SHARE = 8
"""The part of the answering half that is kept for short answers, and the part of that which one of them may take."""
_GRACE_SECONDS = 0.05
_HELD_SHARE = 4
"""Consumers that hold less than this part of a half together are not why it is used up, and lose nothing."""

_STILL = 4
"""How much larger a consumer counts that stands still."""
_DEFAULT_BYTES_MIN, _DEFAULT_BYTES_MAX = 128 << 20, 1 << 30


class Consumer(Protocol):
    """A connection, as the budget sees it."""

    def held_bytes(self, half: Half) -> int:
        """How much of `half` it could be made to give back: unfinished requests, or answers that are not taken."""
        ...

    def stands_still(self, half: Half) -> bool:
        """Whether its peer has neither sent nor taken anything of late."""
        ...

    def give_back(self, half: Half, reason: str) -> None:
        """Free what `held_bytes` told."""
        ...


@dataclass(slots=True)
class _Waiting:
    """Somebody who waits for memory: what to call when it is there, and when it will not be."""

    consumer: Consumer
    size: int
    granted: Callable[[], None]
    refused: Callable[[Unavailable], None]


class Half:
    """One half of the budget. All methods belong to the event loop's thread."""

    def __init__(self, name: str, limit: int, consumers: Callable[[], Iterable[Consumer]], wait_seconds: float) -> None:
        """`consumers` gives all connections, as they are now."""
        self.name = name
        self.limit = limit
        self.used = 0
        self._consumers = consumers
        self._wait_seconds = wait_seconds
        self._waiting: deque[_Waiting] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._held_up: dict[Consumer, Callable[[], None]] = {}
        self._relief: asyncio.TimerHandle | None = None

    @property
    def is_overfull(self) -> bool:
        """Whether what was counted without asking is so much more than the limit that it has to wait, too."""
        return 4 * self.used >= 5 * self.limit

    @property
    def is_twice_full(self) -> bool:
        """Whether everything has to wait."""
        return self.used >= 2 * self.limit

    @property
    def is_waited_for(self) -> bool:
        """Whether there is less than what is asked for."""
        return bool(self._waiting)

    def try_take(self, size: int) -> bool:
        """Take memory if it is there and nobody waits for it."""
        if self._waiting or (self.used and self.used + size > self.limit):
            return False
        self.used += size
        return True

    def take(self, size: int) -> None:
        """Count memory that is taken in any case."""
        self.used += size

    def give(self, size: int) -> None:
        """Give memory back."""
        self.used -= size
        if self._waiting and self._grant():
            self._watch_out(again=True)
        if self._held_up and not self.is_overfull:
            held_up, self._held_up = self._held_up, {}
            for go_on in held_up.values():
                asyncio.get_running_loop().call_soon(go_on)

    def wait(
        self, consumer: Consumer, size: int, granted: Callable[[], None], refused: Callable[[Unavailable], None]
    ) -> None:
        """Take memory as soon as it is there; then `granted` is called, or else `refused`."""
        self._waiting.append(_Waiting(consumer, size, granted, refused))
        self._watch_out()

    async def reserve(self, consumer: Consumer, size: int) -> None:
        """Take memory, and wait for it if need be. Raises `Unavailable` if it cannot be had in bounded time."""
        if self.try_take(size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken = False

        def granted() -> None:
            nonlocal taken
            taken = True
            if not future.done():
                future.set_result(None)

        def refused(error: Unavailable) -> None:
            if not future.done():
                future.set_exception(error)

        self.wait(consumer, size, granted, refused)
        try:
            await future
        except asyncio.CancelledError:
            if taken:
                self.give(size)
            else:
                self._waiting = deque(each for each in self._waiting if each.granted is not granted)
            raise

    def forget(self, consumer: Consumer) -> None:
        """A connection is gone: it waits no more."""
        self._held_up.pop(consumer, None)
        if self._waiting:
            self._waiting = deque(each for each in self._waiting if each.consumer is not consumer)

    def wait_for_relief(self, consumer: Consumer, go_on: Callable[[], None]) -> None:
        """Call `go_on` once the half is no longer overfull, which it will be in bounded time."""
        self._held_up[consumer] = go_on
        if self._relief is None:
            self._relief = asyncio.get_running_loop().call_later(self._wait_seconds, self._relieve_overfull)

    def _relieve_overfull(self) -> None:
        """Take memory from the largest consumer if the half is still overfull, and look again soon."""
        self._relief = None
        if self.is_overfull and self._take_from_largest():
            self._relief = asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._relieve_overfull)

    def close(self) -> None:
        for timer in (self._watch, self._relief):
            if timer is not None:
                timer.cancel()
        self._watch = self._relief = None

    # ---- those who wait ---------------------------------------------------------------------------------------------

    def _grant(self) -> bool:
        """Give what there is to those who wait, the first ones first. Returns whether any of them got it."""
        any_granted = False
        while self._waiting:
            first = self._waiting[0]
            if self.used and self.used + first.size > self.limit:
                break
            self._waiting.popleft()
            self.used += first.size
            any_granted = True
            first.granted()
        return any_granted

    def _watch_out(self, again: bool = False, seconds: float | None = None) -> None:
        """See to it that who is first now waits no longer than the limit; `again` if another one was first before."""
        if self._watch is not None:
            if not again:
                return
            self._watch.cancel()
            self._watch = None
        if self._waiting:
            self._watch = asyncio.get_running_loop().call_later(
                self._wait_seconds if seconds is None else seconds, self._relieve
            )

    def _relieve(self) -> None:
        """The first one has waited long enough: take memory from the largest consumers, or refuse those who wait."""
        self._watch = None
        if self._waiting and not self._grant():
            if not self._take_from_largest():
                self._refuse()
                return
            if self._waiting and not self._grant():
                # What its requests have reserved comes back in a moment; if that is not enough, the next one loses.
                self._watch_out(again=True, seconds=_GRACE_SECONDS)
                return
        self._watch_out(again=True)

    def _take_from_largest(self) -> bool:
        """Let the largest consumer lose what it holds, those that stand still first. Returns whether there is one whose
        loss helps."""
        holding = [(held, each) for each in list(self._consumers()) if (held := each.held_bytes(self))]
        if _HELD_SHARE * sum(held for held, _ in holding) < self.limit:
            return False  # it is used by what ends without that, such as writes in a queue
        held, victim = max(holding, key=lambda each: each[0] * (_STILL if each[1].stands_still(self) else 1))
        victim.give_back(
            self,
            f"the server has {self.limit} bytes for {self.name} of all connections, and they are used up; this "
            f"connection held {held} of them (server.connections.memory, docs/server.md)",
        )
        return True

    def _refuse(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        _LOGGER.warning(
            "%d requests wait for memory that cannot be had: %d of %d bytes for %s are used "
            "(server.connections.memory)", len(waiting), self.used, self.limit, self.name
        )  # fmt: skip
        for each in waiting:
            each.refused(
                Unavailable(
                    f"the server's memory for {self.name} of all connections is used up ({self.limit} bytes, "
                    "server.connections.memory); try again later",
                    ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
                )
            )


class MemoryBudget:
    """Both halves."""

    def __init__(self, limit: int, consumers: Callable[[], Iterable[Consumer]], wait_seconds: float) -> None:
        self.limit = limit
        self.receiving = Half("requests", limit // 2, consumers, wait_seconds)
        short = limit // 2 // _SHORT_ANSWERS_SHARE
        self.answering = Half("answers", limit // 2 - short, consumers, wait_seconds)
        self.short_answers = Half("short answers", short, consumers, wait_seconds)
        self.short_answer_bytes = short // _SHORT_ANSWERS_SHARE
        """The longest answer that is short."""

    def forget(self, consumer: Consumer) -> None:
        """A connection is gone."""
        self.receiving.forget(consumer)
        self.answering.forget(consumer)

    def close(self) -> None:
        self.receiving.close()
        self.answering.close()


def default_budget() -> int:
    """An eighth of the memory that this process may use, and between 128 MB and 1 GB."""
    return min(max(machine_memory() // _DEFAULT_SHARE, _DEFAULT_BYTES_MIN), _DEFAULT_BYTES_MAX)


def machine_memory() -> int:
    """The machine's memory in bytes, or less where a control group (a container) allows less."""
    found = [size for path in _CGROUP_LIMITS if (size := _number(path)) is not None]
    try:
        for line in Path(_MEMINFO).read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    return min(found, default=_UNKNOWN_MACHINE_BYTES)


def _number(path: str) -> int | None:
    """The number in a file of the kernel's; None if there is no file, or no limit ("max") in it."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
