"""The first rounds of a client's connection: versions, then authentication.

    start()            ApiVersions       ->  what the server offers, and in which role
    receive(answer)    Authenticate      ->  (with credentials only) accepted, or error 46, or 51: retry() later
    receive(answer)    nothing more: done

The rule: a connection is used for other requests only when `done`, and a failed handshake means closing it.

A server that answers in another role than the one it was looked up for is the wrong process behind a right-looking
address, after a restart for instance. That is `Unavailable` with stale metadata: look up the servers again.
"""

from __future__ import annotations

from forebay.base.errors import Unavailable
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, NegotiatedVersions, ServerRole
from forebay.protocol.connection import ClientConnection, ResponseReceived, State
from forebay.protocol.messages import Buffer
from forebay.protocol.sasl import PlainClient


class ClientHandshake:
    """Leads `connection` to READY.

    `expected_role` is None for a bootstrap address, which may be of any server. Without `credentials` the server is
    not told who we are; a listener that wants to know answers the next request with error 46.
    """

    def __init__(
        self,
        connection: ClientConnection,
        software_name: str,
        software_version: str,
        expected_role: ServerRole | None = None,
        credentials: PlainClient | None = None,
    ) -> None:
        self._connection = connection
        self._software = (software_name, software_version)
        self._expected_role = expected_role
        self._credentials = credentials

    @property
    def done(self) -> bool:
        """Whether the connection is ready for use."""
        return self._connection.state is State.READY

    def start(self) -> list[Buffer]:
        """Return the bytes to send first."""
        name, version = self._software
        request = pb.ApiVersionsRequest(client_software_name=name, client_software_version=version)
        return self._connection.send_request(ApiKey.API_VERSIONS, request).buffers

    def receive(self, response: ResponseReceived) -> list[Buffer]:
        """Process the response to the last message. Returns what to send next, which is nothing once `done`.

        Raises the server's error, for instance `AccessDenied` for wrong credentials, `Unavailable` for a server in
        another role than expected, and `CorruptData` for an answer that cannot be read.
        """
        if response.api.key is ApiKey.API_VERSIONS:
            versions = NegotiatedVersions(response.parse(pb.ApiVersionsResponse))
            self._check_role(versions.role)
            self._connection.negotiated(versions)
            if self._credentials is not None:
                return self.retry()
        elif self._credentials is not None:
            self._credentials.receive(response.parse(pb.AuthenticateResponse))
        self._connection.authenticated()
        return []

    def retry(self) -> list[Buffer]:
        """Authenticate (again, some time after error RETRIABLE_AUTHENTICATE_EXCEPTION)."""
        if self._credentials is None:
            return []
        return self._connection.send_request(ApiKey.AUTHENTICATE, self._credentials.initial_request()).buffers

    def _check_role(self, role: ServerRole | None) -> None:
        if role is not None and self._expected_role not in (None, role):
            expected = "" if self._expected_role is None else self._expected_role.name.lower()
            raise Unavailable(f"a {expected} server was expected at this address, and a {role.name.lower()} answered")
