"""Password guesses: how they are slowed down, with a clock of the test; and by a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import AccessDenied, ErrorCode, ForebayError
from forebay.server import connections
from forebay.server.embedded import EmbeddedServer
from forebay.server.flow.login_throttle import (
    _DEBT_MAX,
    _FREE_FAILURES,
    _RECORDS_MAX,
    _USER_SLOTS,
    LoginThrottle,
    _LruRecords,
    network_of,
)
from tests.server.raw_client import ApiKey, PlainClient, RawClient, pb

HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def logins(clock: ManualClock) -> LoginThrottle:
    return LoginThrottle(clock)


def guess(logins: LoginThrottle, clock: ManualClock, address: str = HERE, user: str = "alice") -> float:
    """A wrong password of a client that waits for its answer; the seconds that took."""
    logins.check(address, user)
    seconds = logins.failed(address, user)
    clock.advance(seconds)
    return seconds


def flood(logins: LoginThrottle, address: str = HERE, user: str = "alice") -> int:
    """Wrong passwords of a client that waits for no answer, up to the first one that is not checked; their number."""
    for count in range(100_000):
        try:
            logins.check(address, user)
        except AccessDenied:
            return count
        logins.failed(address, user)
    raise AssertionError("there is no bound")


def test_the_first_mistakes_cost_nothing_and_further_ones_more_and_more(
    logins: LoginThrottle, clock: ManualClock
) -> None:
    waits = [guess(logins, clock) for _ in range(_FREE_FAILURES + 8)]
    assert waits == pytest.approx([*[0.0] * _FREE_FAILURES, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_a_thousand_guesses_take_more_than_an_hour(logins: LoginThrottle, clock: ManualClock) -> None:
    began = clock.monotonic()
    for _ in range(1000):
        guess(logins, clock)
    assert clock.monotonic() - began > 3600


def test_the_right_password_is_checked_whatever_was_guessed_before(logins: LoginThrottle, clock: ManualClock) -> None:
    for _ in range(1000):
        guess(logins, clock)
        logins.check(HERE, "alice")
        logins.check(HERE, "bob")


def test_guesses_at_once_are_bounded(logins: LoginThrottle, clock: ManualClock) -> None:
    assert flood(logins) < 50
    with pytest.raises(
        AccessDenied, match=r"too many logins from 192\.0\.2\.1, .* try again in \d+ seconds"
    ) as refused:
        logins.check(HERE, "alice")
    assert refused.value.code == ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION
    for user, address in (("bob", HERE), ("alice", ELSEWHERE)):
        logins.check(address, user)
    began, count = clock.monotonic(), 0
    while clock.monotonic() - began < 3600:
        clock.advance(1.0)
        count += flood(logins)
    assert count < 1000, "an hour of guesses that do not wait"
    clock.advance(_DEBT_MAX)
    logins.check(HERE, "alice")


def test_guesses_of_many_names_and_from_many_addresses_are_bounded(logins: LoginThrottle, clock: ManualClock) -> None:
    names = [flood(logins, HERE, f"user {i}") for i in range(100)]
    assert names[-1] == 0
    assert sum(names) < 500
    logins.check(ELSEWHERE, "user 1")
    addresses = [flood(logins, f"198.51.100.{i}", "carol") for i in range(100)]
    assert addresses[-1] == 0
    assert sum(addresses) < 500


def test_guesses_of_others_do_not_keep_out_who_has_logged_in_before(logins: LoginThrottle, clock: ManualClock) -> None:
    logins.check(HERE, "alice")
    logins.succeeded(HERE, "alice")
    for i in range(100):
        flood(logins, ELSEWHERE, "alice")
        flood(logins, HERE, f"user {i}")
    logins.check(HERE, "alice")
    assert logins.failed(HERE, "alice") == 0.0


def test_failures_are_forgotten_one_a_minute(logins: LoginThrottle, clock: ManualClock) -> None:
    for _ in range(_FREE_FAILURES + 1):
        guess(logins, clock)
    clock.advance(61.0)
    assert [guess(logins, clock) for _ in range(2)] == pytest.approx([0.2, 0.4])
    clock.advance(3600.0)
    assert [guess(logins, clock) for _ in range(_FREE_FAILURES + 1)] == pytest.approx([*[0.0] * _FREE_FAILURES, 0.2])


def test_what_is_remembered_is_bounded(logins: LoginThrottle) -> None:
    for i in range(_RECORDS_MAX + 100):
        address = f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}"
        logins.failed(address, f"user {i}")
        logins.succeeded(address, f"user {i}")
    assert len(logins._addresses) <= _RECORDS_MAX
    assert len(logins._registered) <= _RECORDS_MAX
    assert len(logins._pairs) <= _RECORDS_MAX
    assert len(logins._users) <= _USER_SLOTS


def test_of_what_is_remembered_the_longest_unused_is_forgotten() -> None:
    remembered: _LruRecords[str] = _LruRecords(2, 1.0)
    first, second = remembered.get("a"), remembered.get("b")
    assert (remembered.get("b") is second, remembered.get("a") is first, len(remembered)) == (True, True, 2)
    remembered.get("c")
    assert [name in remembered for name in "abc"] == [True, False, True]
    assert remembered.get("a") is first


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a name", "a name"),
    ],
)
def test_an_address_is_one_network(address: str, network: str) -> None:
    assert network_of(address) == network


def test_a_server_asks_before_it_looks_at_a_password_and_tells_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str, str]] = []

    class Watched(LoginThrottle):
        def check(self, address: str, user: str) -> None:
            seen.append(("asked", address, user))

        def failed(self, address: str, user: str) -> float:
            seen.append(("failed", address, user))
            return 0.05

        def succeeded(self, address: str, user: str) -> None:
            seen.append(("succeeded", address, user))

    monkeypatch.setattr(connections, "LoginThrottle", Watched)
    settings = {"security.sasl.plain.credentials": "admin:secret"}
    with EmbeddedServer(tmp_path / "data", sasl=True, settings=settings) as server:
        with pytest.raises(ForebayError) as refused:
            RawClient(server.bootstrap_servers, PlainClient("admin", "wrong"))
        assert refused.value.code == ErrorCode.AUTHENTICATE_EXCEPTION
        with RawClient(server.bootstrap_servers, PlainClient("admin", "secret")) as client:
            assert client.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists
    address = "127.0.0.1"
    assert seen[:2] == [("asked", address, "admin"), ("failed", address, "admin")]
    assert seen[2:] == [("asked", address, "admin"), ("succeeded", address, "admin")]
