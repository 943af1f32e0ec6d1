"""The states of a server connection, without sockets: the table, and the stories that it tells."""

from __future__ import annotations

import pytest

from forebay.base.errors import ForebayError
from forebay.server.wire.states import BLOCKED_STATES, HELD_STATES, TRANSITIONS, Event, State, next_state


def after(*events: Event, state: State = State.SERVING) -> State:
    for event in events:
        state = State(next_state(state, event))
    return state


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([Event.TURN, Event.DONE], State.SERVING),
        ([Event.TURN, Event.MORE, Event.JOIN, Event.TURN, Event.DONE], State.SERVING),
        ([Event.JOIN, Event.BYTES, Event.TURN, Event.MORE], State.QUEUED),
        ([Event.TURN, Event.HOLD, Event.DONE], State.HELD),
        ([Event.TURN, Event.HOLD, Event.DONE, Event.BYTES, Event.JOIN], State.QUEUED),
        ([Event.TURN, Event.BLOCK, Event.UNBLOCK, Event.DONE], State.SERVING),
        ([Event.TURN, Event.BLOCK, Event.DONE], State.SERVING_BLOCKED),
        ([Event.TURN, Event.BLOCK, Event.DONE, Event.UNBLOCK], State.SERVING),
        ([Event.TURN, Event.BLOCK, Event.DONE, Event.BYTES, Event.UNBLOCK], State.HELD),
        ([Event.TURN, Event.BLOCK, Event.HOLD, Event.DONE, Event.UNBLOCK, Event.JOIN], State.QUEUED),
        ([Event.JOIN, Event.BLOCK, Event.TURN, Event.HOLD, Event.DONE], State.HELD_BLOCKED),
        ([Event.JOIN, Event.STOP, Event.TURN, Event.HOLD, Event.DONE], State.DRAINING),
        ([Event.TURN, Event.BLOCK, Event.DONE, Event.STOP, Event.BYTES, Event.UNBLOCK], State.DRAINING),
        ([Event.REFUSE, Event.STOP, Event.CLOSE], State.CLOSED),
        ([Event.JOIN, Event.CLOSE, Event.TURN, Event.DONE], State.CLOSED),
    ],
)
def test_events_lead_to_states(events: list[Event], state: State) -> None:
    assert after(*events) is state


def test_a_blocked_connection_differs_from_its_twin_only_in_what_arrives_while_it_serves() -> None:
    for state in (State.SERVING, State.QUEUED, State.STARTING, State.HELD):
        blocked = TRANSITIONS[state, Event.BLOCK]
        assert blocked in BLOCKED_STATES
        assert TRANSITIONS[blocked, Event.UNBLOCK] is state
        assert (state in HELD_STATES) is (blocked in HELD_STATES)
    assert (State.SERVING, Event.BYTES) not in TRANSITIONS  # they are parsed
    assert TRANSITIONS[State.SERVING_BLOCKED, Event.BYTES] is State.HELD_BLOCKED


def test_no_event_leads_out_of_the_end_and_only_the_end_follows_draining() -> None:
    assert {after(event, state=State.CLOSED) for event in Event} == {State.CLOSED}
    assert {after(event, state=State.DRAINING) for event in Event} == {State.DRAINING, State.CLOSED}
    assert {after(event, state=State.REFUSED) for event in (Event.STOP, Event.CLOSE)} == {State.REFUSED, State.CLOSED}


def test_each_state_can_be_reached_and_can_end() -> None:
    reached, new = {State.SERVING}, {State.SERVING}
    while new:
        new = {then for (state, _), then in TRANSITIONS.items() if state in new} - reached
        reached |= new
    assert reached == set(State)
    assert all(after(Event.CLOSE, state=state) is State.CLOSED for state in State)


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.SERVING, Event.UNBLOCK),
        (State.SERVING_BLOCKED, Event.BLOCK),
        (State.HELD, Event.TURN),
        (State.STARTING, Event.TURN),
        (State.REFUSED, Event.TURN),
    ],
)
def test_an_event_that_cannot_follow_is_a_bug(state: State, event: Event) -> None:
    with pytest.raises(ForebayError, match=f"event {event.name} cannot follow in connection state {state.name}"):
        next_state(state, event)
