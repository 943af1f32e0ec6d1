"""The states of a server connection, without sockets: the tables, and the stories that they tell."""

from __future__ import annotations

import pytest

from forebay.base.errors import ForebayError
from forebay.server.wire.states import (
    BLOCKED_STATES,
    HELD_STATES,
    READING_TRANSITIONS,
    TRANSITIONS,
    ConnectionEvent,
    ConnectionState,
    Reading,
    ReadingEvent,
    next_reading,
    next_state,
)


def after(*events: ConnectionEvent, state: ConnectionState = ConnectionState.SERVING) -> ConnectionState:
    for event in events:
        state = ConnectionState(next_state(state, event))
    return state


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([ConnectionEvent.TURN, ConnectionEvent.DONE], ConnectionState.SERVING),
        (
            [
                ConnectionEvent.TURN,
                ConnectionEvent.MORE,
                ConnectionEvent.JOIN,
                ConnectionEvent.TURN,
                ConnectionEvent.DONE,
            ],
            ConnectionState.SERVING,
        ),
        (
            [ConnectionEvent.JOIN, ConnectionEvent.BYTES, ConnectionEvent.TURN, ConnectionEvent.MORE],
            ConnectionState.QUEUED,
        ),
        ([ConnectionEvent.TURN, ConnectionEvent.HOLD, ConnectionEvent.DONE], ConnectionState.HELD),
        (
            [
                ConnectionEvent.TURN,
                ConnectionEvent.HOLD,
                ConnectionEvent.DONE,
                ConnectionEvent.BYTES,
                ConnectionEvent.JOIN,
            ],
            ConnectionState.QUEUED,
        ),
        (
            [ConnectionEvent.TURN, ConnectionEvent.BLOCK, ConnectionEvent.UNBLOCK, ConnectionEvent.DONE],
            ConnectionState.SERVING,
        ),
        ([ConnectionEvent.TURN, ConnectionEvent.BLOCK, ConnectionEvent.DONE], ConnectionState.SERVING_BLOCKED),
        (
            [ConnectionEvent.TURN, ConnectionEvent.BLOCK, ConnectionEvent.DONE, ConnectionEvent.UNBLOCK],
            ConnectionState.SERVING,
        ),
        (
            [
                ConnectionEvent.TURN,
                ConnectionEvent.BLOCK,
                ConnectionEvent.DONE,
                ConnectionEvent.BYTES,
                ConnectionEvent.UNBLOCK,
            ],
            ConnectionState.HELD,
        ),
        (
            [
                ConnectionEvent.TURN,
                ConnectionEvent.BLOCK,
                ConnectionEvent.HOLD,
                ConnectionEvent.DONE,
                ConnectionEvent.UNBLOCK,
                ConnectionEvent.JOIN,
            ],
            ConnectionState.QUEUED,
        ),
        (
            [
                ConnectionEvent.JOIN,
                ConnectionEvent.BLOCK,
                ConnectionEvent.TURN,
                ConnectionEvent.HOLD,
                ConnectionEvent.DONE,
            ],
            ConnectionState.HELD_BLOCKED,
        ),
        (
            [
                ConnectionEvent.JOIN,
                ConnectionEvent.STOP,
                ConnectionEvent.TURN,
                ConnectionEvent.HOLD,
                ConnectionEvent.DONE,
            ],
            ConnectionState.DRAINING,
        ),
        (
            [
                ConnectionEvent.TURN,
                ConnectionEvent.BLOCK,
                ConnectionEvent.DONE,
                ConnectionEvent.STOP,
                ConnectionEvent.BYTES,
                ConnectionEvent.UNBLOCK,
            ],
            ConnectionState.DRAINING,
        ),
        ([ConnectionEvent.REFUSE, ConnectionEvent.STOP, ConnectionEvent.CLOSE], ConnectionState.CLOSED),
        (
            [ConnectionEvent.JOIN, ConnectionEvent.CLOSE, ConnectionEvent.TURN, ConnectionEvent.DONE],
            ConnectionState.CLOSED,
        ),
    ],
)
def test_events_lead_to_states(events: list[ConnectionEvent], state: ConnectionState) -> None:
    assert after(*events) is state


def test_a_blocked_connection_differs_from_its_twin_only_in_what_arrives_while_it_serves() -> None:
    for state in (ConnectionState.SERVING, ConnectionState.QUEUED, ConnectionState.STARTING, ConnectionState.HELD):
        blocked = TRANSITIONS[state, ConnectionEvent.BLOCK]
        assert blocked in BLOCKED_STATES
        assert TRANSITIONS[blocked, ConnectionEvent.UNBLOCK] is state
        assert (state in HELD_STATES) is (blocked in HELD_STATES)
    assert (ConnectionState.SERVING, ConnectionEvent.BYTES) not in TRANSITIONS  # they are parsed
    assert TRANSITIONS[ConnectionState.SERVING_BLOCKED, ConnectionEvent.BYTES] is ConnectionState.HELD_BLOCKED


def test_no_event_leads_out_of_the_end_and_only_the_end_follows_draining() -> None:
    assert {after(event, state=ConnectionState.CLOSED) for event in ConnectionEvent} == {ConnectionState.CLOSED}
    assert {after(event, state=ConnectionState.DRAINING) for event in ConnectionEvent} == {
        ConnectionState.DRAINING,
        ConnectionState.CLOSED,
    }
    assert {after(event, state=ConnectionState.REFUSED) for event in (ConnectionEvent.STOP, ConnectionEvent.CLOSE)} == {
        ConnectionState.REFUSED,
        ConnectionState.CLOSED,
    }


def test_each_state_can_be_reached_and_can_end() -> None:
    reached, new = {ConnectionState.SERVING}, {ConnectionState.SERVING}
    while new:
        new = {then for (state, _), then in TRANSITIONS.items() if state in new} - reached
        reached |= new
    assert reached == set(ConnectionState)
    assert all(after(ConnectionEvent.CLOSE, state=state) is ConnectionState.CLOSED for state in ConnectionState)


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (ConnectionState.SERVING, ConnectionEvent.UNBLOCK),
        (ConnectionState.SERVING_BLOCKED, ConnectionEvent.BLOCK),
        (ConnectionState.HELD, ConnectionEvent.TURN),
        (ConnectionState.STARTING, ConnectionEvent.TURN),
        (ConnectionState.REFUSED, ConnectionEvent.TURN),
    ],
)
def test_an_event_that_cannot_follow_is_a_bug(state: ConnectionState, event: ConnectionEvent) -> None:
    with pytest.raises(ForebayError, match=f"event {event.name} cannot follow in connection state {state.name}"):
        next_state(state, event)


@pytest.mark.parametrize(
    ("events", "reading"),
    [
        ([ReadingEvent.PAUSE, ReadingEvent.RESUME], Reading.ON),
        ([ReadingEvent.FALL_BEHIND, ReadingEvent.RESUME], Reading.BEHIND),
        ([ReadingEvent.PAUSE, ReadingEvent.FALL_BEHIND, ReadingEvent.PAUSE], Reading.BEHIND),
        ([ReadingEvent.FALL_BEHIND, ReadingEvent.CATCH_UP], Reading.PAUSED),
        ([ReadingEvent.FALL_BEHIND, ReadingEvent.CATCH_UP, ReadingEvent.RESUME], Reading.ON),
        ([ReadingEvent.CATCH_UP], Reading.ON),
        ([ReadingEvent.PAUSE, ReadingEvent.CATCH_UP], Reading.PAUSED),
    ],
)
def test_events_lead_to_readings(events: list[ReadingEvent], reading: Reading) -> None:
    current = int(Reading.ON)
    for event in events:
        current = next_reading(current, event)
    assert Reading(current) is reading


def test_no_event_leads_out_of_the_end_of_a_stream_and_each_reading_can_end() -> None:
    assert {next_reading(Reading.ENDED, event) for event in ReadingEvent} == {Reading.ENDED}
    assert {next_reading(reading, ReadingEvent.END) for reading in Reading} == {Reading.ENDED}
    assert all(
        next_reading(reading, event) == READING_TRANSITIONS.get((reading, event), reading)
        for reading in Reading
        for event in ReadingEvent
    )
