"""The first rounds of a connection, both ends in memory."""

from __future__ import annotations

import pytest

from forebay.base.errors import AccessDenied, CorruptData, ErrorCode, ForebayError, Unavailable, error_from_wire
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerRole, api_versions_response, offered
from forebay.protocol.connection import ClientConnection, RequestReceived, ResponseReceived, ServerConnection, State
from forebay.protocol.handshake import ClientHandshake
from forebay.protocol.messages import Buffer, error_to_wire
from forebay.protocol.sasl import Authenticator, PlainClient, PlaintextAuthenticator, SaslAuthenticator
from tests.protocol.pairs import EVERYTHING, deliver_one


class Server:
    """Answers the handshake as a server does. `challenge` makes it behave as Fluss's Java server."""

    def __init__(self, authenticator: Authenticator, role: ServerRole, challenge: bool = False) -> None:
        self.authenticator, self.role, self.challenge = authenticator, role, challenge
        self.connection = ServerConnection(EVERYTHING, authenticate=authenticator.principal is None)

    def answer(self, request: list[Buffer]) -> list[Buffer]:
        event = deliver_one(request, self.connection)
        assert isinstance(event, RequestReceived)
        if event.api.key is ApiKey.API_VERSIONS:
            return self.connection.send_response(event.request_id, api_versions_response(EVERYTHING, self.role))
        try:
            response = self.authenticator.receive(event.parse(pb.AuthenticateRequest))
        except ForebayError as error:
            return self.connection.send_error(event.request_id, *error_to_wire(error))
        if self.connection.state is State.AUTHENTICATING:
            self.connection.authenticated()
            if self.challenge:
                response.challenge = b""
        return self.connection.send_response(event.request_id, response)


def shake_hands(client: ClientConnection, handshake: ClientHandshake, server: Server) -> int:
    """Run the handshake to its end; the number of rounds."""
    rounds, request = 0, handshake.start()
    while request:
        rounds += 1
        response = deliver_one(server.answer(request), client)
        assert isinstance(response, ResponseReceived)
        request = handshake.receive(response)
    assert handshake.done
    return rounds


def sasl() -> SaslAuthenticator:
    return SaslAuthenticator(["PLAIN"], lambda user, password: (user, password) == ("admin", "secret"))


def test_without_credentials_versions_are_all_there_is_to_agree_on() -> None:
    client = ClientConnection()
    server = Server(PlaintextAuthenticator(), ServerRole.COORDINATOR)
    assert shake_hands(client, ClientHandshake(client, "forebay", "0.1.0"), server) == 1
    assert client.versions is not None
    assert client.versions.role is ServerRole.COORDINATOR
    assert client.versions.version(ApiKey.PUT_KV) == 3


@pytest.mark.parametrize("challenge", [False, True])
def test_with_credentials_one_round_follows_for_our_servers_and_for_java_ones(challenge: bool) -> None:
    client = ClientConnection()
    server = Server(sasl(), ServerRole.TABLET, challenge)
    handshake = ClientHandshake(client, "forebay", "0.1.0", ServerRole.TABLET, PlainClient("admin", "secret"))
    assert shake_hands(client, handshake, server) == 2
    assert server.connection.state is State.READY


def test_wrong_credentials_fail_the_handshake_with_error_46() -> None:
    client = ClientConnection()
    handshake = ClientHandshake(client, "forebay", "0.1.0", None, PlainClient("admin", "wrong"))
    with pytest.raises(AccessDenied) as raised:
        shake_hands(client, handshake, Server(sasl(), ServerRole.TABLET))
    assert raised.value.code == ErrorCode.AUTHENTICATE_EXCEPTION
    assert not handshake.done


def test_authentication_can_be_tried_again_after_a_retriable_error() -> None:
    client, server = ClientConnection(), Server(sasl(), ServerRole.TABLET)
    handshake = ClientHandshake(client, "forebay", "0.1.0", None, PlainClient("admin", "secret"))
    response = deliver_one(server.answer(handshake.start()), client)
    assert isinstance(response, ResponseReceived)
    token = deliver_one(handshake.receive(response), server.connection)
    assert isinstance(token, RequestReceived)
    busy = server.connection.send_error(token.request_id, ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION, "busy")
    failed = deliver_one(busy, client)
    assert isinstance(failed, ResponseReceived)
    with pytest.raises(AccessDenied) as raised:
        handshake.receive(failed)
    assert raised.value.code == ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION
    accepted = deliver_one(server.answer(handshake.retry()), client)
    assert isinstance(accepted, ResponseReceived)
    assert handshake.receive(accepted) == []
    assert handshake.done


@pytest.mark.parametrize("role", list(ServerRole))
def test_a_server_in_another_role_than_expected_is_unavailable_and_metadata_are_stale(role: ServerRole) -> None:
    client = ClientConnection()
    other = next(r for r in ServerRole if r is not role)
    with pytest.raises(Unavailable, match=f"a {role.name.lower()} server was expected") as raised:
        shake_hands(client, ClientHandshake(client, "forebay", "1", role), Server(PlaintextAuthenticator(), other))
    assert raised.value.retriable
    assert raised.value.stale_metadata


@pytest.mark.parametrize("role", [None, *ServerRole])
def test_a_server_that_does_not_tell_its_role_is_taken_as_expected(role: ServerRole | None) -> None:
    client = ClientConnection()
    handshake = ClientHandshake(client, "forebay", "0.1.0", role)
    server = ServerConnection(offered({ApiKey.API_VERSIONS}, ServerRole.TABLET))
    request = deliver_one(handshake.start(), server)
    assert isinstance(request, RequestReceived)
    answer = server.send_response(request.request_id, pb.ApiVersionsResponse())
    response = deliver_one(answer, client)
    assert isinstance(response, ResponseReceived)
    handshake.receive(response)
    assert handshake.done


def test_an_answer_that_cannot_be_read_fails_the_handshake() -> None:
    client, server = ClientConnection(), ServerConnection(EVERYTHING)
    handshake = ClientHandshake(client, "forebay", "0.1.0")
    request = deliver_one(handshake.start(), server)
    assert isinstance(request, RequestReceived)
    broken = ResponseReceived(request.request_id, request.api, 0, b"\xff")
    with pytest.raises(CorruptData):
        handshake.receive(broken)
    refused = ResponseReceived(request.request_id, request.api, 0, b"", error_from_wire(-1, "boom"))
    with pytest.raises(ForebayError, match="boom"):
        handshake.receive(refused)
    assert not handshake.done
