"""The states of a server connection, as two tables. No sockets and no clock; `RpcProtocol` reports events and acts.

Nouns: a `ConnectionState` says which requests of the connection may start. A `Reading` says whether its bytes are read.
A `ConnectionEvent` changes the state by the table `TRANSITIONS`; one that the table does not have is a bug and raises.
A `ReadingEvent` changes the reading by the table `READING_TRANSITIONS`; one that the table does not have changes
nothing.

    SERVING  ──TURN──> STARTING    bytes have arrived, and no other connection waits
    SERVING  ──JOIN──> QUEUED      bytes have arrived, and other connections wait already
    QUEUED   ──TURN──> STARTING
    STARTING ──DONE──> SERVING     all requests that have arrived are started
    STARTING ──MORE──> QUEUED      others have their turn before the next requests start
    STARTING ──HOLD──> HELD        too much is in flight, or the peer does not read
    HELD     ──JOIN──> QUEUED      enough is answered

Each of these four has a twin for a *blocked* connection: one of its requests must end its first step before the next
one may start (`BLOCK`, `UNBLOCK`). Bytes that arrive while nothing else is pending hold a blocked connection, because
their requests have to be started later.

`STOP` leads from any of these to DRAINING, where requests in flight are answered and no others start. REFUSED is a
connection that was not admitted and gets the reason. CLOSED is the end.

    ON          ──PAUSE──────> PAUSED    too much is in flight or pending, or the peer does not read
    PAUSED      ──RESUME─────> ON
    ON, PAUSED  ──FALL_BEHIND> BEHIND    bytes have arrived while earlier requests wait for their turn
    BEHIND      ──CATCH_UP───> PAUSED    all requests that have arrived are started
    any         ──END────────> ENDED     the client sends nothing more
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from forebay.base.errors import check


class ConnectionState(enum.IntEnum):
    """Which requests of a connection may start."""

    SERVING = 0
    """Requests start as they arrive; none is pending."""
    QUEUED = 1
    """It waits for its turn in the fair queue."""
    STARTING = 2
    """It has its turn."""
    HELD = 3
    """Requests may be pending, and none may start: too much is in flight, or the peer does not read."""
    SERVING_BLOCKED = 4
    QUEUED_BLOCKED = 5
    STARTING_BLOCKED = 6
    HELD_BLOCKED = 7
    DRAINING = 8
    """Requests in flight are answered, and no others start."""
    REFUSED = 9
    """It was not admitted; the client may read the reason."""
    CLOSED = 10


class Reading(enum.IntEnum):
    """Whether the bytes of a connection are read."""

    ON = 0
    PAUSED = 1
    """Paused until requests may start."""
    BEHIND = 2
    """Paused until pending requests are started: more bytes arrived while they waited for their turn."""
    ENDED = 3
    """The client sends nothing more."""


class ConnectionEvent(enum.IntEnum):
    """An event of a connection."""

    JOIN = 0
    """It joins the fair queue."""
    TURN = 1
    """Its turn begins."""
    DONE = 2
    """Its turn ends, and no request is left that may start."""
    MORE = 3
    """Its turn ends, and it keeps its place in the fair queue."""
    HOLD = 4
    """A pending request may not start."""
    BLOCK = 5
    """A request must end its first step before the next one may start."""
    UNBLOCK = 6
    BYTES = 7
    """Bytes arrived that are not parsed now."""
    STOP = 8
    """The server accepts no more requests."""
    REFUSE = 9
    CLOSE = 10


class ReadingEvent(enum.IntEnum):
    """An event that changes whether the bytes of a connection are read."""

    PAUSE = 0
    RESUME = 1
    FALL_BEHIND = 2
    CATCH_UP = 3
    END = 4


_BLOCKED = {
    ConnectionState.SERVING: ConnectionState.SERVING_BLOCKED,
    ConnectionState.QUEUED: ConnectionState.QUEUED_BLOCKED,
    ConnectionState.STARTING: ConnectionState.STARTING_BLOCKED,
    ConnectionState.HELD: ConnectionState.HELD_BLOCKED,
}
"""The blocked twin of each state."""

_TURNS: Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (ConnectionState.SERVING, ConnectionEvent.JOIN): ConnectionState.QUEUED,
    (ConnectionState.SERVING, ConnectionEvent.TURN): ConnectionState.STARTING,
    (ConnectionState.QUEUED, ConnectionEvent.JOIN): ConnectionState.QUEUED,  # a turn of its own has ended with MORE
    (ConnectionState.QUEUED, ConnectionEvent.TURN): ConnectionState.STARTING,
    (ConnectionState.QUEUED, ConnectionEvent.BYTES): ConnectionState.QUEUED,
    (ConnectionState.STARTING, ConnectionEvent.DONE): ConnectionState.SERVING,
    (ConnectionState.STARTING, ConnectionEvent.MORE): ConnectionState.QUEUED,
    (ConnectionState.STARTING, ConnectionEvent.HOLD): ConnectionState.HELD,
    (ConnectionState.HELD, ConnectionEvent.JOIN): ConnectionState.QUEUED,
    (ConnectionState.HELD, ConnectionEvent.DONE): ConnectionState.HELD,  # the end of the turn in which it was held
    (ConnectionState.HELD, ConnectionEvent.BYTES): ConnectionState.HELD,
}

TRANSITIONS: Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    **_TURNS,
    **{(_BLOCKED[state], event): _BLOCKED[then] for (state, event), then in _TURNS.items()},
    **{(state, ConnectionEvent.BLOCK): blocked for state, blocked in _BLOCKED.items()},
    **{(blocked, ConnectionEvent.UNBLOCK): state for state, blocked in _BLOCKED.items()},
    (ConnectionState.SERVING_BLOCKED, ConnectionEvent.BYTES): ConnectionState.HELD_BLOCKED,
    **{(state, ConnectionEvent.STOP): ConnectionState.DRAINING for pair in _BLOCKED.items() for state in pair},
    (ConnectionState.SERVING, ConnectionEvent.REFUSE): ConnectionState.REFUSED,
    **{(state, ConnectionEvent.CLOSE): ConnectionState.CLOSED for state in ConnectionState},
    # A turn, or the first step of a request, may end after the connection has stopped or is closed.
    **{
        (ConnectionState.DRAINING, event): ConnectionState.DRAINING
        for event in ConnectionEvent
        if event is not ConnectionEvent.CLOSE
    },
    **{(ConnectionState.CLOSED, event): ConnectionState.CLOSED for event in ConnectionEvent},
    (ConnectionState.REFUSED, ConnectionEvent.STOP): ConnectionState.REFUSED,
}

READING_TRANSITIONS: Mapping[tuple[Reading, ReadingEvent], Reading] = {
    (Reading.ON, ReadingEvent.PAUSE): Reading.PAUSED,
    (Reading.PAUSED, ReadingEvent.RESUME): Reading.ON,
    (Reading.ON, ReadingEvent.FALL_BEHIND): Reading.BEHIND,
    (Reading.PAUSED, ReadingEvent.FALL_BEHIND): Reading.BEHIND,
    (Reading.BEHIND, ReadingEvent.CATCH_UP): Reading.PAUSED,
    **{(reading, ReadingEvent.END): Reading.ENDED for reading in Reading},
}

BLOCKED_STATES: frozenset[int] = frozenset(_BLOCKED.values())
"""A request must end its first step before the next one may start."""

HELD_STATES: frozenset[int] = frozenset({ConnectionState.HELD, ConnectionState.HELD_BLOCKED})
"""Pending requests wait until less is in flight."""

_NONE = -1
_NEXT = tuple(
    tuple(int(TRANSITIONS.get((state, event), _NONE)) for event in ConnectionEvent) for state in ConnectionState
)
"""`TRANSITIONS` as integers, which compiled code compares."""
_NEXT_READING = tuple(
    tuple(int(READING_TRANSITIONS.get((reading, event), reading)) for event in ReadingEvent) for reading in Reading
)


def next_state(state: int, event: ConnectionEvent) -> int:
    """Return the `ConnectionState` that follows `state` by `event`. Raises a bug's error if the table has none."""
    then = _NEXT[state][event]
    if then == _NONE:
        check(False, f"event {event.name} cannot follow in connection state {ConnectionState(state).name}")
    return then


def next_reading(reading: int, event: ReadingEvent) -> int:
    """Return the `Reading` that follows `reading` by `event`; the same one if the table has none."""
    return _NEXT_READING[reading][event]
