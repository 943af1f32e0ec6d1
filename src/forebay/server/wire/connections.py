"""All connections of a server: their limits, their turns, and the memory that their requests and responses share.

Nouns: the memory *budget* has two halves. The *receiving* half holds requests: buffers of large incoming ones, and
bodies of unanswered ones. The *answering* half holds large responses: reservations while one is built, and bytes that
the client has not read. The halves are separate so that requests waiting for memory can never prevent responses, whose
end frees it. Part of the answering half is reserved for short responses while they are built, so that a lookup never
waits behind large responses that other clients do not read.

The rule: memory is counted when it is taken. Callers that can wait ask first, in turn with all others; a caller that
cannot (a small request that has already arrived) is counted all the same, and then the connection waits before it takes
more.

Every wait is bounded. Once the first waiter has waited for `wait_seconds`, the largest consumers lose their memory
(`Consumer.give_back`), stalled ones first, until the waiter is served. If there is nothing to take, the waiters are
refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.base.ambient import Clock
from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.protocol.api import BULK_REQUESTS, Api, ServerRole, api_versions_response
from forebay.protocol.connection import ServerConnection
from forebay.protocol.messages import Buffer, Message
from forebay.server.config import ServerConfig
from forebay.server.counters import ServerCounters
from forebay.server.flow.logins import Logins
from forebay.server.wire._sockets import Peer

_LOGGER = logging.getLogger(__name__)

_SHORT_ANSWERS_SHARE = 8
"""The part of the answering half reserved for short responses, and the part of that which one of them may take."""
_GRACE_SECONDS = 0.05
_HELD_SHARE = 4
"""Consumers that together hold less than this part of a half did not exhaust it, and lose nothing."""

_STILL = 4
"""The factor by which a stalled consumer counts as larger."""


class Consumer(Protocol):
    """The part of a connection that the budget uses."""

    def held_bytes(self, half: Half) -> int:
        """Return how much of `half` it could be made to give back: unfinished requests, or unread responses."""
        ...

    def stands_still(self, half: Half) -> bool:
        """Return whether its peer has neither sent nor read anything recently."""
        ...

    def give_back(self, half: Half, reason: str) -> None:
        """Free what `held_bytes` returned."""
        ...


@dataclass(slots=True)
class _Waiting:
    """A waiter for memory: what to call when it is available, and when it is refused."""

    consumer: Consumer
    size: int
    granted: Callable[[], None]
    refused: Callable[[Unavailable], None]


class Half:
    """One half of the budget. All methods belong to the event loop's thread."""

    def __init__(self, name: str, limit: int, consumers: Callable[[], Iterable[Consumer]], wait_seconds: float) -> None:
        """`consumers` returns the current connections."""
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
        """Return whether uncounted requests exceed the limit so far that they have to wait, too."""
        return 4 * self.used >= 5 * self.limit

    @property
    def is_twice_full(self) -> bool:
        """Return whether everything has to wait."""
        return self.used >= 2 * self.limit

    @property
    def is_waited_for(self) -> bool:
        """Return whether there are waiters."""
        return bool(self._waiting)

    def try_take(self, size: int) -> bool:
        """Take memory if it is available and there are no waiters; return whether it was taken."""
        if self._waiting or (self.used and self.used + size > self.limit):
            return False
        self.used += size
        return True

    def take(self, size: int) -> None:
        """Count memory that is taken unconditionally."""
        self.used += size

    def give(self, size: int) -> None:
        """Release memory."""
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
        """Take memory as soon as it is available; then call `granted`, or else `refused`."""
        self._waiting.append(_Waiting(consumer, size, granted, refused))
        self._watch_out()

    async def reserve(self, consumer: Consumer, size: int) -> None:
        """Take memory, waiting if necessary. Raises `Unavailable` if none is available in bounded time."""
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
        """Remove a closed connection from the waiters."""
        self._held_up.pop(consumer, None)
        if self._waiting:
            self._waiting = deque(each for each in self._waiting if each.consumer is not consumer)

    def wait_for_relief(self, consumer: Consumer, go_on: Callable[[], None]) -> None:
        """Call `go_on` once the half is no longer overfull, which takes bounded time."""
        self._held_up[consumer] = go_on
        if self._relief is None:
            self._relief = asyncio.get_running_loop().call_later(self._wait_seconds, self._relieve_overfull)

    def _relieve_overfull(self) -> None:
        """Take memory from the largest consumer if the half is still overfull, and check again soon."""
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
        """Give available memory to the waiters in order. Return whether any of them got it."""
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
        """Limit the wait of the first waiter; `again` if another one was first before."""
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
        """Take memory from the largest consumers, or refuse the waiters: the first one has waited long enough."""
        self._watch = None
        if self._waiting and not self._grant():
            if not self._take_from_largest():
                self._refuse()
                return
            if self._waiting and not self._grant():
                # Its requests' reservations are released shortly; if that is not enough, the next one loses.
                self._watch_out(again=True, seconds=_GRACE_SECONDS)
                return
        self._watch_out(again=True)

    def _take_from_largest(self) -> bool:
        """Make the largest consumer lose its memory, stalled ones first. Return whether there is one whose loss
        helps."""
        holding = [(held, each) for each in list(self._consumers()) if (held := each.held_bytes(self))]
        if _HELD_SHARE * sum(held for held, _ in holding) < self.limit:
            return False  # it is used by work that ends without that, such as queued writes
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
            "%d requests wait for unavailable memory: %d of %d bytes for %s are used "
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
        """The maximum length of a short response."""

    def forget(self, consumer: Consumer) -> None:
        """Forget a closed connection."""
        self.receiving.forget(consumer)
        self.answering.forget(consumer)

    def close(self) -> None:
        self.receiving.close()
        self.answering.close()


_SECONDS_BETWEEN_WARNINGS = 10.0

_LATE_SHARE = 4

FIRST_FRAME_BYTES_MAX = 16 * 1024
"""The longest frame of a client that has not authenticated, or has not sent a request yet."""


class Admitted(Protocol):
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
    """The admitted connections, by address, with their turns, memory and logins."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        config: ServerConfig,
        counters: ServerCounters | None = None,
    ) -> None:
        self.clock = clock
        self.counters = counters or ServerCounters()
        self.turns = RoundRobin(loop, clock)
        self.budget = MemoryBudget(
            config.connection_memory, self._consumers, config.seconds("server.connections.memory-wait")
        )
        self.logins = Logins(clock)
        self.open_requests_max: int = config.value("netty.server.max-queued-requests")
        # A request has to fit into its half of the budget, whatever else is in it.
        self.frame_bytes_max: int = min(
            config.value("netty.server.max-request-size"), max(self.budget.receiving.limit, FIRST_FRAME_BYTES_MAX)
        )
        self._version_answers: dict[tuple[str, ServerRole], Message] = {}
        self.is_closing = False
        """Whether the server is stopping: incoming connections are refused."""
        self.refused: set[asyncio.Transport] = set()
        """Transports of clients that were refused, while these may still read the reason."""
        self._control_bytes_max: int = config.value("server.request.max-control-size")
        self._count_max: int = config.value("server.connections.max")
        self._count_max_per_address: int = config.value("server.connections.max-per-address")
        self._all: dict[Admitted, None] = {}
        """In the order in which they were admitted."""
        self._strangers: dict[Admitted, None] = {}
        """Connections that had not identified themselves when last checked, oldest first."""
        self._by_address: Counter[str] = Counter()
        self._warned_at: float | None = None

    def __iter__(self) -> Iterator[Admitted]:
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
        return self.budget.receiving.limit // (_LATE_SHARE * max(len(self._all), 1))

    def _consumers(self) -> Iterator[Consumer]:
        return (each.memory for each in self._all)

    def body_bytes_max(self, api_key: int) -> int:
        """Return the maximum length of a request's body, by its API."""
        return self.frame_bytes_max if api_key in BULK_REQUESTS else self._control_bytes_max

    def admit(self, connection: Admitted, address: str) -> ForebayError | None:
        """Admit a new connection, or return the error to send it: too many connections, or the server is stopping."""
        if self.is_closing:
            return Unavailable("the server is shutting down", ErrorCode.NETWORK_EXCEPTION)
        # First: an address at its limit must not cost other clients their connections.
        if self._by_address[address] >= self._count_max_per_address:
            what = (
                f"{self._count_max_per_address} connections from {address}, the maximum for one address "
                "(server.connections.max-per-address)"
            )
        elif len(self._all) >= self._count_max and not self._close_stranger():
            what = f"{self._count_max} connections, its maximum (server.connections.max)"
        else:
            self._all[connection] = None
            self._strangers[connection] = None
            self._by_address[address] += 1
            return None
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

    def _close_stranger(self) -> bool:
        """Make room by closing the oldest unidentified connection; return whether there was one."""
        for oldest in list(self._strangers):
            del self._strangers[oldest]
            if not oldest.is_known:
                self.remove(oldest, oldest.address)
                oldest.close()
                return True
        return False

    def remove(self, connection: Admitted, address: str) -> None:
        """Remove a closed connection; does nothing for one that was not admitted."""
        if connection not in self._all:
            return
        del self._all[connection]
        self._strangers.pop(connection, None)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self.budget.forget(connection.memory)

    def close_idle(self, idle_seconds: float, unknown_seconds: float) -> None:
        """Close connections that neither send nor read for too long, and those that do not identify themselves."""
        now = self.clock.monotonic()
        for each in list(self._all):
            is_unknown = not each.is_known and each.opened < now - unknown_seconds
            if is_unknown or ((each.is_stalled or each.is_idle) and each.last_active < now - idle_seconds):
                each.close()


# Turns: connections with many pending requests are served in rotation, and leave time for all others.
#
# A connection serves a few requests when their bytes arrive. If more are pending, or others are already waiting for
# their turn, it goes to the end of a queue, and the queues are processed for a few milliseconds in each round of the
# event loop. So in each round new connections are accepted, bytes are read and responses sent, whatever a client
# pipelines.
#
# There are two queues: connections with something new, and connections that have had a turn since and are not done.
# The first goes before the second, but not always. So a client that sends one request at a time waits for others like
# it, and not for a turn of each that has sent hundreds. (Prior art: the new and old flows of fq_codel, RFC 8290.)

REQUESTS_PER_TURN = 8
"""Requests of one connection that are started before others have their turn; only one for a new connection, so that the
last one to arrive waits for one request of each connection before it, and not for eight."""

NEW_IN_A_ROW = 8
"""After this many turns of new connections it is the turn of a waiting old one."""

_ROUND_SECONDS = 0.005
_ROUND_TURNS = 64
"""A round ends after this many turns even if the clock stands still, as in a simulation."""


class ReadyConnection(Protocol):
    """The part of a connection that the queue uses."""

    def take_turn(self, requests_max: int) -> bool:
        """Serve a few requests. Return whether more are pending."""
        ...


class RoundRobin:
    """The queues of connections that wait for their turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._new: deque[ReadyConnection] = deque()
        self._old: deque[ReadyConnection] = deque()
        self._new_in_a_row = 0

    @property
    def is_idle(self) -> bool:
        """Whether no connection waits."""
        return not self._new and not self._old

    def join(self, connection: ReadyConnection, *, is_new: bool = True) -> None:
        """Put a connection at the end of a queue. It must not be in one already."""
        if self.is_idle:
            self._loop.call_soon(self._round)
        (self._new if is_new else self._old).append(connection)

    def _round(self) -> None:
        deadline = self._clock.monotonic() + _ROUND_SECONDS
        for _ in range(_ROUND_TURNS):
            queue = self._next_queue()
            more = queue[0].take_turn(1 if queue is self._new else REQUESTS_PER_TURN)
            # It stays in the queue while it is served, so that later arrivals wait behind it.
            connection = queue.popleft()
            if more:
                self._old.append(connection)
            if self.is_idle:
                return
            if self._clock.monotonic() >= deadline:
                break
        self._loop.call_soon(self._round)

    def _next_queue(self) -> deque[ReadyConnection]:
        if self._new and not (self._old and self._new_in_a_row >= NEW_IN_A_ROW):
            self._new_in_a_row += 1
            return self._new
        self._new_in_a_row = 0
        return self._old or self._new


# One connection's share of the server's memory budget: a large incoming request, outgoing responses.

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


class ConnectionMemory:
    """A `Consumer` of the budget, for one connection. Bodies of unanswered requests are counted by the owner."""

    def __init__(self, owner: Owner, connection: ServerConnection, budget: MemoryBudget, clock: Clock) -> None:
        self._owner = owner
        self._connection = connection
        self._clock = clock
        self.receiving = budget.receiving
        self.answering = budget.answering
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
        return self.receiving.is_overfull

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
        if self.receiving.try_take(wanted):
            self.large_counted += wanted
            connection.grow()
            return
        connection.go_in_small_steps()
        self._wanted = connection.wanted_bytes
        self.is_starved = True
        self.receiving.wait(self, self._wanted, self._granted, self._refused)
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
            self.receiving.take(change)
        elif change:
            self.receiving.give(-change)

    # ---- answers ----------------------------------------------------------------------------------------------------

    def count_unsent(self) -> None:
        """Count the responses that the peer has not read yet."""
        self._count_unsent(self._owner.unsent_bytes)

    def _count_unsent(self, size: int) -> None:
        change, self._unsent_counted = size - self._unsent_counted, size
        if change > 0:
            if change == size:
                self._taken_at = self._clock.monotonic()
            self.answering.take(change)
        elif change:
            self._taken_at = self._clock.monotonic()
            self.answering.give(-change)

    # ---- the budget's side ------------------------------------------------------------------------------------------

    def held_bytes(self, half: Half) -> int:
        """See `forebay.server.wire.connections.Consumer`."""
        if half is self.receiving:
            return self.large_counted + self.open_control_bytes
        self.count_unsent()
        return self._unsent_counted

    def stands_still(self, half: Half) -> bool:
        """See `forebay.server.wire.connections.Consumer`."""
        if half is self.receiving:
            return not self.is_starved and self._clock.monotonic() - self._owner.last_active > _STILL_SECONDS
        return self._clock.monotonic() - self._taken_at > _STILL_SECONDS

    def give_back(self, half: Half, reason: str) -> None:
        """Drop the unfinished request, or close the connection to free responses or open requests."""
        if half is self.receiving and self.open_control_bytes > self.large_counted:
            _LOGGER.warning("closing a connection from %s with many open requests: %s", self._owner.address, reason)
            self._owner.abort()
            return
        if half is self.receiving:
            _LOGGER.warning("abandoning an unfinished request from %s: %s", self._owner.address, reason)
            if self.is_starved:
                self.is_starved = False
                half.forget(self)
            self._give_up_large(Unavailable(f"{reason}; try again later", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION))
            return
        _LOGGER.warning(
            "closing a connection from %s that does not read its responses: %s", self._owner.address, reason
        )
        self._owner.abort()
        self._count_unsent(0)


# Responses of one connection on their way out.
#
# A transport copies what the peer does not read immediately, and asyncio joins the buffers of a frame first. So large
# responses are handed over in slices, the next one when the peer has read the previous one, and waiting responses are
# not copied. This also keeps a fast peer from monopolising the event loop.

_SLICE_BYTES = 256 << 10
_ROUND_BYTES = 2 << 20
"""Bytes handed over in one round of the event loop."""


class Outgoing:
    """The queue of frames to send. Belongs to the event loop's thread."""

    def __init__(self, changed: Callable[[], None], peer: Peer | None = None) -> None:
        """`changed` is called when more was handed over than the transport asked for; `peer` notes whether what was
        sent is unread."""
        self._peer = peer
        self.transport: asyncio.Transport | None = None
        """Set by the owner of the connection. Without it, or while it closes, nothing is sent."""
        self._waiting: deque[Buffer] = deque()
        self._waiting_bytes = 0
        self._unsent_before = 0
        self._is_paused = False
        self._changed = changed
        self._next_round: asyncio.Handle | None = None
        self.drained = asyncio.Event()
        """Set while the peer reads fast enough, and nothing waits."""
        self._note_drained(True)

    def _note_drained(self, is_drained: bool) -> None:
        if self._peer is not None:
            self._peer.is_unread = not is_drained
        (self.drained.set if is_drained else self.drained.clear)()

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes the peer has not read yet."""
        return 0 if self.transport is None else self._waiting_bytes + self.transport.get_write_buffer_size()

    def has_stalled(self) -> bool:
        """Return whether the peer has read nothing since the last call although data waits for it."""
        before, self._unsent_before = self._unsent_before, self.unsent_bytes
        return not self.drained.is_set() and self._unsent_before >= before > 0

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue a frame. Its buffers must not change from now on."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        size = sum(map(len, buffers))
        if size <= _SLICE_BYTES and not self._waiting:
            _write(transport, buffers)
            return
        self._waiting.extend(buffers)
        self._waiting_bytes += size
        if self._next_round is None:
            self._send_some()

    def pause(self) -> None:
        """Pause: the transport's buffer is full."""
        self._is_paused = True
        self._note_drained(False)

    def resume(self) -> None:
        """Resume: the transport accepts more."""
        self._is_paused = False
        self._send_some()

    def clear(self) -> None:
        """Drop the queue: the connection is closed."""
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._next_round is not None:
            self._next_round.cancel()

    def _send_some(self) -> None:
        self._next_round, sent, transport = None, 0, self.transport
        assert transport is not None
        while self._waiting and not self._is_paused and sent < _ROUND_BYTES and not transport.is_closing():
            sent += self._send_slice(transport)
        if self._waiting:
            self._note_drained(False)
            if not self._is_paused:
                self._next_round = asyncio.get_running_loop().call_soon(self._go_on)
        elif not self._is_paused:
            self._note_drained(True)

    def _go_on(self) -> None:
        self._send_some()
        self._changed()

    def _send_slice(self, transport: asyncio.Transport) -> int:
        """Hand over a part of a large buffer, or small ones together. Return their length."""
        parts, size = list[Buffer](), 0
        while self._waiting and (left := _SLICE_BYTES - size) > 0:
            first = self._waiting[0]
            if len(first) <= left:
                parts.append(self._waiting.popleft())
                size += len(first)
            elif parts:
                break
            else:
                rest = memoryview(first)
                parts.append(rest[:left])
                self._waiting[0] = rest[left:]
                size = left
        self._waiting_bytes -= size
        _write(transport, parts)
        return size


def _write(transport: asyncio.Transport, parts: Sequence[Buffer]) -> None:
    """Hand over a slice. `writelines` would not do: in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 it asks for no pause,
    so that a peer that does not read takes all memory (CVE-2024-12254)."""
    transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
