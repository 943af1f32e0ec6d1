"""SASL/PLAIN and listeners without it: which users are admitted, and that neither side can break the exchange."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import AccessDenied, ErrorCode, InvalidRequest
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.sasl import (
    ANONYMOUS,
    PlainClient,
    PlaintextAuthenticator,
    Principal,
    SaslAuthenticator,
    credential_verifier,
)

VERIFY = credential_verifier({"admin": "secret", "\u00fcser": "p\u00e4ss:w,\u00f6rd"})


def plain(token: bytes, protocol: str = "PLAIN") -> pb.AuthenticateRequest:
    return pb.AuthenticateRequest(protocol=protocol, token=token)


@pytest.mark.parametrize(("user", "password"), [("admin", "secret"), ("\u00fcser", "p\u00e4ss:w,\u00f6rd")])
def test_the_right_password_gets_in_and_the_client_knows(user: str, password: str) -> None:
    server, client = SaslAuthenticator(["PLAIN"], VERIFY), PlainClient(user, password)
    answer = server.receive(client.initial_request())
    assert not answer.HasField("challenge")
    client.receive(answer)
    assert client.completed
    assert server.principal == Principal(user, "User")


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"\0admin\0wrong", "wrong"),
        (b"\0admin\0secret ", "wrong"),
        (b"\0nobody\0secret", "wrong"),
        (b"\0ADMIN\0secret", "wrong"),
        (b"\0\0secret", "no user name"),
        (b"\0admin\0", "no password"),
        (b"root\0admin\0secret", "may not act as 'root'"),
        (b"admin\0secret", "2 parts"),
        (b"\0admin\0secret\0", "4 parts"),
        (b"", "1 parts"),
        (b"\0adm\xff\0secret", "UTF-8"),
    ],
)
def test_any_other_token_gets_error_46_and_may_be_followed_by_the_right_one(token: bytes, reason: str) -> None:
    server = SaslAuthenticator(["PLAIN"], VERIFY)
    with pytest.raises(AccessDenied, match=reason) as raised:
        server.receive(plain(token))
    assert raised.value.code == ErrorCode.AUTHENTICATE_EXCEPTION
    assert "secret" not in str(raised.value)
    assert server.principal is None
    server.receive(plain(b"\0admin\0secret"))
    assert server.principal == Principal("admin")


def test_a_user_who_is_not_known_has_no_password_at_all() -> None:
    assert VERIFY("admin", "secret")
    assert not VERIFY("admin", "")
    assert not VERIFY("nobody", "")


def test_the_user_may_be_named_as_authorization_id_too() -> None:
    server = SaslAuthenticator(["PLAIN"], VERIFY)
    server.receive(plain(b"admin\0admin\0secret"))
    assert server.principal == Principal("admin")


@pytest.mark.parametrize("surplus", [b"", b"\0nobody\0wrong", b"\xff"])
def test_a_surplus_authenticate_after_success_gets_an_empty_answer_and_changes_nothing(surplus: bytes) -> None:
    server = SaslAuthenticator(["PLAIN"], VERIFY)
    server.receive(plain(b"\0admin\0secret"))
    assert server.receive(plain(surplus)) == pb.AuthenticateResponse()
    assert server.principal == Principal("admin")


@pytest.mark.parametrize("protocol", ["GSSAPI", "SASL", "", "PLAINTEXT"])
def test_a_mechanism_that_is_not_enabled_gets_error_46_before_and_after_success(protocol: str) -> None:
    server = SaslAuthenticator(["PLAIN"], VERIFY)
    for _ in range(2):
        with pytest.raises(AccessDenied, match="PLAIN"):
            server.receive(plain(b"\0admin\0secret", protocol))
        server.receive(plain(b"\0admin\0secret"))


def test_mechanism_names_are_compared_without_case() -> None:
    server = SaslAuthenticator(["plain"], VERIFY)
    server.receive(plain(b"\0admin\0secret", "Plain"))
    assert server.principal is not None


def test_without_sasl_all_clients_are_anonymous_and_only_the_same_protocol_is_answered() -> None:
    server = PlaintextAuthenticator()
    assert server.principal == ANONYMOUS
    assert server.receive(plain(b"anything", "plaintext")) == pb.AuthenticateResponse()
    with pytest.raises(AccessDenied, match="'PLAIN'") as raised:
        server.receive(plain(b"\0admin\0secret"))
    assert raised.value.code == ErrorCode.AUTHENTICATE_EXCEPTION


@pytest.mark.parametrize("answer", [pb.AuthenticateResponse(), pb.AuthenticateResponse(challenge=b"")])
def test_our_client_is_done_with_no_challenge_and_with_the_empty_one_of_java_servers(
    answer: pb.AuthenticateResponse,
) -> None:
    client = PlainClient("admin", "secret")
    client.receive(answer)
    assert client.completed


def test_our_client_gives_up_on_a_challenge() -> None:
    client = PlainClient("admin", "secret")
    with pytest.raises(AccessDenied, match="challenge"):
        client.receive(pb.AuthenticateResponse(challenge=b"more"))
    assert not client.completed


@pytest.mark.parametrize(("user", "password"), [("", "p"), ("u", ""), ("u\0", "p"), ("u", "p\0q")])
def test_names_and_passwords_that_cannot_be_sent_are_refused_without_showing_them(user: str, password: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        PlainClient(user, password)
    assert "p\0q" not in str(raised.value)


@given(st.binary(max_size=40), st.text(max_size=8))
def test_random_tokens_are_refused_with_error_46_and_nothing_else(token: bytes, protocol: str) -> None:
    server = SaslAuthenticator(["PLAIN"], VERIFY)
    for name in (protocol, "PLAIN"):
        with pytest.raises(AccessDenied):
            server.receive(plain(token, name))
    assert server.principal is None


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"\0admin\0wrong", "admin"),
        (b"root\0nobody\0", "nobody"),
        (b"\0adm\xff\0secret", "adm\ufffd"),
        (b"admin\0secret", ""),
        (b"\0admin\0secret\0", ""),
        (b"", ""),
    ],
)
def test_guesses_count_for_the_user_in_the_token_until_the_client_has_logged_in(token: bytes, user: str) -> None:
    server = SaslAuthenticator(["PLAIN"], VERIFY)
    assert server.claimed_user(plain(token)) == user
    server.receive(plain(b"\0admin\0secret"))
    assert server.claimed_user(plain(token)) is None
    assert PlaintextAuthenticator().claimed_user(plain(token)) is None
