"""Authentication: SASL/PLAIN and its absence, as state machines without I/O.

Nouns: an *authenticator* is the server's side for one connection, fed with Authenticate requests; `PlainClient` is the
client's side. A *principal* is who the client turned out to be.

The rule: a client that fails stays where it is and may try again; a client that succeeded stays authenticated, and what
it sends again changes nothing.

    server:  WAITING   --right name and password-->  COMPLETED
             WAITING   --anything else (error 46)-->  WAITING
             COMPLETED --any Authenticate for an enabled mechanism, answered with an empty response-->  COMPLETED
    client:  WAITING   --answer with no challenge, or an empty one-->  COMPLETED
             WAITING   --answer with a challenge (error 46)-->  WAITING

The surplus Authenticate in COMPLETED is real: Fluss's Java server puts an empty challenge into its last answer, clients
in Rust (pyfluss) take a challenge that is present for one more round, and so must be answered. Our server leaves
the challenge out, which ends the matter for every client.

A token is `authorization id NUL user NUL password` in UTF-8 (RFC 4616). The authorization id is empty or the user.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from forebay.base.errors import AccessDenied, ErrorCode, InvalidRequest
from forebay.protocol import fluss_pb2 as pb

PLAIN = "PLAIN"
"""The only SASL mechanism of Fluss."""

PLAINTEXT = "PLAINTEXT"
"""The security protocol of a listener without authentication."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a client, for access control."""

    name: str
    type: str = "User"


ANONYMOUS = Principal("ANONYMOUS")
"""A client of a listener without authentication."""

Verify = Callable[[str, str], bool]
"""A function (user, password) -> whether the password is right."""


class Authenticator(Protocol):
    """The server's side of authentication, for one connection."""

    @property
    def principal(self) -> Principal | None:
        """The identity of the client; None until it is authenticated."""
        ...

    def receive(self, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        """The response to one round. Raises `AccessDenied` (AUTHENTICATE_EXCEPTION), which changes nothing."""
        ...

    def claimed_user(self, request: pb.AuthenticateRequest) -> str | None:
        """The user whose password the round would be checked against; None if none will be."""
        ...


class PlaintextAuthenticator:
    """For listeners that do not authenticate: every client is ANONYMOUS from the start.

    A client that sends Authenticate all the same is answered, if it means the same protocol.
    """

    principal: Principal | None = ANONYMOUS

    def receive(self, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        """An empty response. Raises `AccessDenied` if the client wants another protocol than PLAINTEXT."""
        if request.protocol.upper() != PLAINTEXT:
            raise _denied(
                f"this listener does not authenticate, and the client asks for '{request.protocol}'. Use a SASL "
                "listener, or set client.security.protocol=PLAINTEXT"
            )
        return pb.AuthenticateResponse()

    def claimed_user(self, request: pb.AuthenticateRequest) -> str | None:
        """None: there are no passwords here."""
        return None


class SaslAuthenticator:
    """For SASL listeners. `mechanisms` are the enabled ones; `verify` knows the passwords."""

    def __init__(self, mechanisms: Collection[str], verify: Verify) -> None:
        self._mechanisms = tuple(mechanism.upper() for mechanism in mechanisms)
        self._verify = verify
        self._principal: Principal | None = None

    @property
    def principal(self) -> Principal | None:
        return self._principal

    def receive(self, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        """Evaluate one round; see the diagram in the module docstring."""
        if request.protocol.upper() not in self._mechanisms:
            raise _denied(
                f"the client asks for '{request.protocol}'; this listener accepts {', '.join(self._mechanisms)}"
            )
        if self._principal is None:
            self._principal = self._judge(request.token)
        return pb.AuthenticateResponse()

    def claimed_user(self, request: pb.AuthenticateRequest) -> str | None:
        """The user in the token; None if the client is authenticated already."""
        if self._principal is not None:
            return None
        parts = request.token.split(b"\0")
        return parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""

    def _judge(self, token: bytes) -> Principal:
        try:
            parts = token.decode("utf-8").split("\0")
        except UnicodeDecodeError as error:
            raise _denied("the SASL/PLAIN token is not valid UTF-8") from error
        if len(parts) != 3:
            raise _denied(f"the SASL/PLAIN token has {len(parts)} parts between NUL characters instead of 3")
        authorization_id, user, password = parts
        if not user or not password:
            raise _denied(f"the SASL/PLAIN token has no {'password' if user else 'user name'}")
        if not self._verify(user, password):
            raise _denied("the user name or the password is wrong")
        if authorization_id not in ("", user):
            raise _denied(f"user '{user}' may not act as '{authorization_id}'")
        return Principal(user)


class PlainClient:
    """The client's side of SASL/PLAIN. Raises `InvalidRequest` for a user or password that cannot be sent."""

    def __init__(self, user: str, password: str) -> None:
        for what, value in (("user name", user), ("password", password)):
            if not value or "\0" in value:
                raise InvalidRequest(f"the {what} for SASL/PLAIN is {'not usable: it has a NUL' if value else 'empty'}")
        self._token = f"\0{user}\0{password}".encode()
        self.completed = False

    def initial_request(self) -> pb.AuthenticateRequest:
        """The first message, to send again after a RETRIABLE_AUTHENTICATE_EXCEPTION response."""
        return pb.AuthenticateRequest(protocol=PLAIN, token=self._token)

    def receive(self, response: pb.AuthenticateResponse) -> None:
        """Process the server's response. Raises `AccessDenied` if it requires more than PLAIN provides."""
        if response.challenge:
            raise _denied("the server sent a SASL challenge, which PLAIN does not have")
        self.completed = True


def credential_verifier(credentials: Mapping[str, str]) -> Verify:
    """A `Verify` for a table of user -> password.

    It takes the same time whether the user exists or not and however much of the password is right.
    """
    digests = {user: _digest(password) for user, password in credentials.items()}
    no_user = _digest("")

    def verify(user: str, password: str) -> bool:
        expected = digests.get(user)
        same = hmac.compare_digest(_digest(password), no_user if expected is None else expected)
        return same and expected is not None

    return verify


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()


def _denied(text: str) -> AccessDenied:
    return AccessDenied(text, ErrorCode.AUTHENTICATE_EXCEPTION)
