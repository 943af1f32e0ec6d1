"""Helpers: both ends of a connection in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forebay.protocol.api import ApiKey, ServerRole, api_versions_response, offered
from forebay.protocol.connection import ClientConnection, Event, RequestReceived, ServerConnection
from forebay.protocol.handshake import ClientHandshake
from forebay.protocol.messages import Buffer

EVERYTHING = offered(ApiKey, ServerRole.TABLET) | offered(ApiKey, ServerRole.COORDINATOR)


def events_of(connection: ClientConnection | ServerConnection) -> list[Event]:
    """All events until more bytes are needed."""
    found = []
    while (event := connection.next_event()) is not None:
        found.append(event)
    return found


def deliver(buffers: Iterable[Buffer], connection: ClientConnection | ServerConnection) -> list[Event]:
    """Give `connection` the bytes; its events."""
    for buffer in buffers:
        connection.receive_data(buffer)
    return events_of(connection)


def deliver_one(buffers: Sequence[Buffer], connection: ClientConnection | ServerConnection) -> Event:
    (event,) = deliver(buffers, connection)
    return event


def ready_pair() -> tuple[ClientConnection, ServerConnection]:
    """A client and a server that have agreed on versions; the server offers everything."""
    client, server = ClientConnection(), ServerConnection(EVERYTHING)
    handshake = ClientHandshake(client, "test", "1")
    request = deliver_one(handshake.start(), server)
    assert isinstance(request, RequestReceived)
    answer = server.send_response(request.request_id, api_versions_response(EVERYTHING, ServerRole.TABLET))
    response = deliver_one(answer, client)
    assert handshake.receive(response) == []  # type: ignore[arg-type]
    assert handshake.done
    return client, server
