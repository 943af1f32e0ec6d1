"""The memory that one connection takes from the shared pools, and its release, without sockets."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.server.flow.connection_memory import _STILL_SECONDS, ConnectionMemory
from forebay.server.flow.memory_pool import MemoryPools
from tests.virtual_time import run

LIMIT = 1000
"""Bytes of the pool for requests."""


class Rejected(NamedTuple):
    request_id: int
    error: BaseException


class Connection:
    """A protocol connection on which a large request is arriving."""

    def __init__(self) -> None:
        self.large_bytes = 0
        self.wanted_bytes = 0
        self.small_steps = False
        self.rejected: Rejected | None = None
        self.given_up: list[ForebayError] = []

    def arrive(self, received: int, wanted: int) -> None:
        self.large_bytes, self.wanted_bytes = received, wanted

    def grow(self) -> None:
        self.large_bytes += self.wanted_bytes
        self.wanted_bytes = 0

    def go_in_small_steps(self) -> None:
        self.small_steps = True
        self.wanted_bytes = min(self.wanted_bytes, 50)

    def give_up_large(self, error: ForebayError) -> Rejected | None:
        self.given_up.append(error)
        self.large_bytes = self.wanted_bytes = 0
        return None if self.rejected is None else self.rejected._replace(error=error)


class Owner:
    address = "127.0.0.1:5"

    def __init__(self) -> None:
        self.last_active = 0.0
        self.unsent_bytes = 0
        self.balanced = 0
        self.sent: list[Rejected] = []
        self.aborted = False

    def balance(self) -> None:
        self.balanced += 1

    def send_error(self, request_id: int, error: BaseException) -> None:
        self.sent.append(Rejected(request_id, error))

    def abort(self) -> None:
        self.aborted = True


class Bench:
    def __init__(self, wait_seconds: float = 60) -> None:
        self.clock = ManualClock()
        self.memories: list[ConnectionMemory] = []
        self.memory_pools = MemoryPools(2 * LIMIT, lambda: self.memories, wait_seconds)

    def connect(self) -> tuple[Owner, Connection, ConnectionMemory]:
        owner, connection = Owner(), Connection()
        memory = ConnectionMemory(owner, connection, self.memory_pools, self.clock)  # type: ignore[arg-type]
        self.memories.append(memory)
        return owner, connection, memory


def test_a_large_request_grows_while_there_is_memory_and_waits_in_small_steps_when_there_is_none() -> None:
    async def test() -> None:
        bench = Bench()
        owner, connection, memory = bench.connect()
        connection.arrive(100, 200)
        memory.feed_large()
        assert (connection.large_bytes, memory.large_counted, bench.memory_pools.requests.used) == (300, 300, 300)
        assert not memory.is_starved
        bench.memory_pools.requests.take(600)
        connection.arrive(300, 200)
        memory.feed_large()
        assert (memory.is_starved, connection.small_steps, owner.balanced) == (True, True, 1)
        memory.feed_large()  # asks for nothing twice
        bench.memory_pools.requests.give(1)
        assert not memory.is_starved or bench.memory_pools.requests.used + 50 > LIMIT
        bench.memory_pools.requests.give(599)
        assert not memory.is_starved
        assert (connection.large_bytes, memory.large_counted, bench.memory_pools.requests.used) == (350, 350, 350)
        assert owner.balanced == 2
        connection.arrive(0, 0)
        memory.feed_large()
        assert (memory.large_counted, bench.memory_pools.requests.used) == (0, 0)
        bench.memory_pools.close()

    run(test)


def test_a_request_that_waited_in_vain_is_given_up_and_its_client_is_told() -> None:
    async def test() -> None:
        bench = Bench(wait_seconds=0.01)
        bench.memory_pools.requests.take(LIMIT)
        owner, connection, memory = bench.connect()
        connection.rejected = Rejected(7, Unavailable(""))
        connection.arrive(0, 100)
        memory.feed_large()
        assert memory.is_starved
        while not owner.sent:
            await asyncio.sleep(0.005)
        assert not memory.is_starved
        assert (len(connection.given_up), owner.sent[0].request_id) == (1, 7)
        error = owner.sent[0].error
        assert isinstance(error, Unavailable)
        assert error.code == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION
        assert owner.balanced == 2
        assert bench.memory_pools.requests.used == LIMIT
        bench.memory_pools.close()

    run(test)


def test_answers_are_counted_until_their_client_takes_them() -> None:
    bench = Bench()
    owner, _, memory = bench.connect()
    bench.clock.advance(100)
    assert memory.stands_still(bench.memory_pools.responses)
    owner.unsent_bytes = 500
    memory.count_unsent()
    assert bench.memory_pools.responses.used == 500
    assert not memory.stands_still(bench.memory_pools.responses)  # nothing stood before
    bench.clock.advance(100)
    owner.unsent_bytes = 600
    memory.count_unsent()
    assert memory.stands_still(bench.memory_pools.responses)  # more to take is no taking
    owner.unsent_bytes = 550
    assert memory.held_bytes(bench.memory_pools.responses) == 550
    assert not memory.stands_still(bench.memory_pools.responses)
    memory.give_all()
    assert bench.memory_pools.responses.used == 0


def test_a_connection_that_loses_memory_gives_up_its_request_or_is_closed() -> None:
    async def test() -> None:
        bench = Bench()
        requests, responses = bench.memory_pools.requests, bench.memory_pools.responses
        owner, connection, memory = bench.connect()
        connection.arrive(300, 0)
        memory.feed_large()
        assert memory.held_bytes(requests) == 300
        memory.give_back(requests, "no room")
        assert (owner.aborted, owner.sent, requests.used) == (False, [], 0)
        assert connection.given_up[0].message == "no room; try again later"

        requests.take(LIMIT)
        connection.arrive(0, 100)
        memory.feed_large()
        assert memory.is_starved
        memory.give_back(requests, "no room")
        assert not memory.is_starved
        assert not requests._waiting
        requests.give(LIMIT)

        memory.open_control_bytes = 400
        connection.arrive(399, 0)
        memory.feed_large()
        assert memory.held_bytes(requests) == 799
        memory.give_back(requests, "no room")
        assert owner.aborted

        other, _, talker = bench.connect()
        other.unsent_bytes = 500
        talker.count_unsent()
        talker.give_back(responses, "no room")
        assert (other.aborted, responses.used) == (True, 0)

    run(test)


@pytest.mark.parametrize("pool", ["requests", "responses"])
def test_a_connection_stands_still_after_some_seconds_and_not_at_them(pool: str) -> None:
    async def test() -> None:
        bench = Bench()
        _, _, memory = bench.connect()
        begun = bench.clock.monotonic()
        bench.clock.advance(_STILL_SECONDS)
        assert bench.clock.monotonic() - begun == _STILL_SECONDS
        assert not memory.stands_still(getattr(bench.memory_pools, pool))
        bench.clock.advance(0.5)
        assert memory.stands_still(getattr(bench.memory_pools, pool))
        bench.memory_pools.close()

    run(test)


def test_a_connection_with_a_request_stands_still_when_nothing_came_for_long() -> None:
    async def test() -> None:
        bench = Bench()
        owner, connection, memory = bench.connect()
        assert not memory.stands_still(bench.memory_pools.requests)
        bench.clock.advance(100)
        assert memory.stands_still(bench.memory_pools.requests)
        owner.last_active = bench.clock.monotonic()
        assert not memory.stands_still(bench.memory_pools.requests)
        bench.clock.advance(100)
        bench.memory_pools.requests.take(LIMIT)
        connection.arrive(0, 10)
        memory.feed_large()
        assert not memory.stands_still(bench.memory_pools.requests)  # it waits for the server
        bench.memory_pools.close()

    run(test)
