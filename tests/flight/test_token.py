"""The token of an endpoint that gives callers more than they have anyway."""

from __future__ import annotations

import argparse
import base64
from typing import Any

import pytest

from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS
from forebay.base.errors import AccessDenied
from forebay.cli.flight import _token
from forebay.flight.sessions import ClientSession, Expiring, Sessions
from forebay.query.run import SqlDatabase


def sessions(token: str | None) -> Sessions:
    kept = Expiring[ClientSession](SYSTEM_CLOCK, 60.0, 10, "sessions", "--sessions-max")
    return Sessions(SqlDatabase(None, {}), {}, None, kept, SYSTEM_IDS, token)


def basic(password: str) -> dict[str, list[Any]]:
    return {"authorization": ["Basic " + base64.b64encode(f"any:{password}".encode()).decode()]}


def test_callers_need_the_token_in_every_way_of_logging_in() -> None:
    guarded = sessions("secret")
    for headers in ({}, basic("guess"), basic(""), {"authorization": ["Bearer guess"]}, {"cookie": ["x=y"]}):
        with pytest.raises(AccessDenied):
            guarded.of_headers(headers)
    with pytest.raises(AccessDenied):
        guarded.of_headers({"authorization": ["Digest x"]})
    session, answer = guarded.of_headers(basic("secret"))
    assert guarded.of_headers({"authorization": [answer["authorization"]]})[0] is session
    guarded.of_headers({"authorization": ["Bearer secret"]})
    sessions(None).of_headers({})


@pytest.mark.parametrize(
    ("options", "needs_one"),
    [
        ({}, False),
        ({"user": "alice"}, True),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::1"}, False),
        ({"user": "alice", "host": "0.0.0.0", "sasl": True}, False),
        ({"user": "alice", "tls_client_ca": "ca.pem"}, False),
    ],
)
def test_a_token_is_needed_where_the_endpoint_gives_rights(
    options: dict[str, Any], needs_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = argparse.Namespace(**{"host": "127.0.0.1", "user": None, "sasl": False, "tls_client_ca": None, **options})
    monkeypatch.delenv("FOREBAY_FLIGHT_TOKEN", raising=False)
    first = _token(parsed)
    assert (first is not None) is needs_one
    if needs_one:
        assert first != _token(parsed)
        monkeypatch.setenv("FOREBAY_FLIGHT_TOKEN", "mine")
        assert _token(parsed) == "mine"
