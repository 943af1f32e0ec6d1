"""Which connections are accepted, which are replaced by others, and which are closed, without sockets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, ForebayError
from forebay.protocol.api import ApiKey, ServerRole, offered
from forebay.server import connections as module
from forebay.server.config import ServerConfig
from forebay.server.connections import Connections


class Peer:
    """A connection, as others see it."""

    def __init__(self, address: str = "a", *, known: bool = False, idle: bool = True, stalled: bool = False) -> None:
        self.address, self.is_known, self.is_idle, self.is_stalled = address, known, idle, stalled
        self.last_active = self.opened = 0.0
        self.unsent_bytes = 0
        self.closes = 0
        self.memory = self

    def close(self) -> None:
        self.closes += 1


class Door:
    def __init__(self, **settings: str) -> None:
        self.clock = ManualClock()
        named = {f"server.connections.{key.replace('__', '-')}": value for key, value in settings.items()}
        self.connections = Connections(None, self.clock, ServerConfig(Path("data"), settings=named))  # type: ignore[arg-type]
        self.connections._control_bytes_max = 77

    def admit(self, peer: Peer) -> ForebayError | None:
        return self.connections.admit(peer, peer.address)  # type: ignore[arg-type]

    def close_idle(self, idle: float, unknown: float) -> None:
        self.connections.close_idle(idle, unknown)


def test_the_oldest_strangers_make_room_and_are_counted_no_more() -> None:
    door = Door(max="3", max__per__address="3")
    known, first, second = Peer(known=True), Peer(), Peer()
    for each in (known, first, second):
        assert door.admit(each) is None
    third, fourth = Peer("b"), Peer("b")
    assert door.admit(third) is None
    assert (first.closes, second.closes, len(door.connections)) == (1, 0, 3)
    assert set(door.connections) == {known, second, third}
    third.is_known = True
    assert door.admit(fourth) is None
    assert (second.closes, known.closes, len(door.connections)) == (1, 0, 3)
    fourth.is_known = True
    refused = door.admit(Peer("c"))
    assert refused is not None
    assert "3 connections, its maximum (server.connections.max)" in refused.message
    assert refused.code == ErrorCode.NETWORK_EXCEPTION
    assert (known.closes, third.closes, fourth.closes, len(door.connections)) == (0, 0, 0, 3)


def test_an_address_with_all_its_connections_takes_no_room_from_others() -> None:
    door = Door(max="3", max__per__address="2")
    stranger = Peer("b")
    mine = [Peer(known=True), Peer(known=True)]
    for each in (stranger, *mine):
        assert door.admit(each) is None
    refused = door.admit(Peer())
    assert refused is not None
    assert "2 connections from a, the maximum for one address" in refused.message
    assert (stranger.closes, len(door.connections)) == (0, 3)
    for each in (mine[0], mine[0], Peer()):  # one that is gone already, and one that never was
        door.connections.remove(each, each.address)  # type: ignore[arg-type]
    assert len(door.connections) == 2
    assert door.admit(Peer(known=True)) is None
    assert door.admit(Peer()) is not None


def test_idle_connections_of_an_address_that_never_spoke_make_room_for_a_new_one_of_it() -> None:
    door = Door(max="5", max__per__address="3")
    elsewhere, known, first, second = Peer("b"), Peer(known=True), Peer(), Peer()
    for each in (elsewhere, known, first, second):
        assert door.admit(each) is None
    for closed in (first, second):
        assert door.admit(Peer()) is None
        assert closed.closes == 1
    assert (elsewhere.closes, known.closes, len(door.connections)) == (0, 0, 4)


def test_of_an_address_without_connections_nothing_is_kept() -> None:
    door = Door()
    peers = [Peer("a"), Peer("a"), Peer("b")]
    for each in peers:
        door.admit(each)
    forgotten: list[object] = []
    door.connections.memory_pools.forget = forgotten.append  # type: ignore[method-assign,assignment]
    for each in peers[:2]:
        door.connections.remove(each, each.address)  # type: ignore[arg-type]
    assert forgotten == peers[:2]
    assert (dict(door.connections._by_address), list(door.connections._strangers)) == ({"b": 1}, [peers[2]])


def test_refusals_are_logged_now_and_then_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    door = Door(max="1")
    door.admit(Peer(known=True))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            door.admit(Peer())
        door.clock.advance(module._SECONDS_BETWEEN_WARNINGS)
        door.admit(Peer())
        door.admit(Peer())
    assert [record.getMessage()[-11:] for record in caplog.records] == ["(1 refused)", "(4 refused)"]


@pytest.mark.parametrize(
    ("peer", "active", "closed"),
    [
        ({"known": True}, 5.0, True),
        ({"known": True}, 6.0, False),
        ({"known": True, "idle": False}, 0.0, False),
        ({"known": True, "idle": False, "stalled": True}, 5.0, True),
        ({"known": True, "idle": False, "stalled": True}, 6.0, False),
        ({"known": False, "idle": False}, 6.0, False),
        ({"known": False}, 6.0, False),
    ],
)
def test_those_are_closed_that_do_or_take_nothing_for_longer_than_they_may(
    peer: dict[str, bool], active: float, closed: bool
) -> None:
    door, each = Door(), Peer(**peer)
    door.admit(each)
    door.clock.advance(10)
    each.last_active, each.opened = door.clock.monotonic() - 10 + active, door.clock.monotonic()
    door.close_idle(4.0, 100.0)
    assert bool(each.closes) is closed


@pytest.mark.parametrize(("known", "age", "closed"), [(False, 3.0, True), (False, 2.0, False), (True, 3.0, False)])
def test_those_are_closed_that_do_not_say_in_time_who_they_are(known: bool, age: float, closed: bool) -> None:
    door, each = Door(), Peer(known=known, idle=False)
    door.admit(each)
    each.opened = each.last_active = door.clock.monotonic()
    door.clock.advance(age)
    door.close_idle(100.0, 2.0)
    assert bool(each.closes) is closed


def test_what_a_listener_offers_is_put_together_once_for_each_role() -> None:
    connections = Door().connections
    apis = {role: offered((ApiKey.API_VERSIONS, ApiKey.PUT_KV, ApiKey.CREATE_TABLE), role) for role in ServerRole}
    answers: dict[Any, Any] = {role: connections.version_answer("A", role, apis[role]) for role in ServerRole}
    assert answers[ServerRole.TABLET] != answers[ServerRole.COORDINATOR]
    for role in ServerRole:
        assert connections.version_answer("A", role, {}) is answers[role]
        assert connections.version_answer("B", role, {}) is not answers[role]


def test_requests_with_records_may_be_longer_than_others() -> None:
    connections = Door().connections
    assert connections.body_bytes_max(ApiKey.PUT_KV) == connections.frame_bytes_max > 77
    assert connections.body_bytes_max(ApiKey.CREATE_TABLE) == 77
