"""Password guesses: how they are slowed down, with a clock of the test; and by a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import AccessDenied, ErrorCode, ForebayError
from forebay.server import connections
from forebay.server.embedded import EmbeddedServer
from forebay.server.flow.login_throttle import (
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
    """A wrong password, looked at when it is its turn; the seconds that took."""
    seconds = logins.wait_seconds(address, user)
    clock.advance(seconds)
    logins.failed(address, user)
    return seconds


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


def test_guesses_at_once_take_turns_and_those_beyond_a_wait_are_refused(
    logins: LoginThrottle, clock: ManualClock
) -> None:
    for _ in range(_FREE_FAILURES + 5):
        guess(logins, clock)
    clock.advance(5.0)
    assert [logins.wait_seconds(HERE, "alice") for _ in range(3)] == pytest.approx([0.0, 5.0, 10.0])
    with pytest.raises(AccessDenied, match=r"too many logins from 192\.0\.2\.1, .* try again in 15 seconds") as refused:
        logins.wait_seconds(HERE, "alice")
    assert refused.value.code == ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION


def test_users_and_addresses_count_apart(logins: LoginThrottle, clock: ManualClock) -> None:
    for _ in range(_FREE_FAILURES + 2):
        guess(logins, clock)
    assert logins.wait_seconds(ELSEWHERE, "bob") == 0.0
    assert logins.wait_seconds(ELSEWHERE, "alice") > 0.0, "the same user from elsewhere"
    clock.advance(2.0)
    assert logins.wait_seconds(HERE, "bob") == 0.0
    assert logins.wait_seconds(HERE, "carol") > 0.0, "another user from the same address"


def test_guesses_of_others_do_not_keep_out_who_has_logged_in_before(logins: LoginThrottle, clock: ManualClock) -> None:
    assert logins.wait_seconds(HERE, "alice") == 0.0
    logins.succeeded(HERE, "alice")
    for i in range(100):
        guess(logins, clock, ELSEWHERE, "alice")
        guess(logins, clock, HERE, f"user {i}")
    assert logins.wait_seconds(HERE, "alice") == 0.0


def test_failures_are_forgotten_one_a_minute(logins: LoginThrottle, clock: ManualClock) -> None:
    for _ in range(_FREE_FAILURES + 1):
        guess(logins, clock)
    clock.advance(61.0)
    assert [guess(logins, clock) for _ in range(2)] == pytest.approx([0.0, 0.4])
    clock.advance(3600.0)
    assert [guess(logins, clock) for _ in range(_FREE_FAILURES + 1)] == pytest.approx([*[0.0] * _FREE_FAILURES, 0.2])


def test_what_is_remembered_is_bounded(logins: LoginThrottle) -> None:
    for i in range(_RECORDS_MAX + 100):
        address = f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}"
        logins.failed(address, f"user {i}")
        logins.succeeded(address, f"user {i}")
    assert len(logins._addresses) <= _RECORDS_MAX
    assert len(logins._registered) <= _RECORDS_MAX
    assert len(logins._users) <= _USER_SLOTS


def test_of_what_is_remembered_the_longest_unused_is_forgotten() -> None:
    remembered: _LruRecords[str] = _LruRecords(2)
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
        def wait_seconds(self, address: str, user: str) -> float:
            seen.append(("asked", address, user))
            return 0.0 if len(seen) < 3 else 0.05

        def failed(self, address: str, user: str) -> None:
            seen.append(("failed", address, user))

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
