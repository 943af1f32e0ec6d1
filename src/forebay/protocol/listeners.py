"""Listeners: the addresses a server listens on, the addresses it advertises, and how clients authenticate.

A server has one listener per name. A client sees the cluster through the listener it came in by: Metadata answers
with the advertised addresses of that name. Options and their syntax are Fluss's:

    bind.listeners                    CLIENT://0.0.0.0:9123, INTERNAL://127.0.0.1:9124
    advertised.listeners              CLIENT://db.example.org:9123         (default: as bound)
    security.protocol.map             CLIENT:SASL, INTERNAL:PLAINTEXT      (default: PLAINTEXT)
    security.sasl.enabled.mechanisms  PLAIN                                (needed where a listener uses SASL)
    internal.listener.name            INTERNAL

One rule is looser than Fluss's: there the internal listener (FLUSS if not named) must be among the bound ones. Forebay
has no traffic between servers to send there, so we demand it only of a name that was set. Some are stricter: a
listener needs a name and a host, ports are 0 to 65535, and what is wrong is found at start, not at the first login.

Source of the rules: Endpoint, AuthenticationFactory and SaslServerAuthenticator of Fluss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from forebay.base.arguments import did_you_mean
from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.protocol.credentials import jaas_listener, plain_credentials
from forebay.protocol.option_syntax import parse_list, parse_map
from forebay.protocol.sasl import (
    PLAIN,
    Authenticator,
    PlaintextAuthenticator,
    SaslAuthenticator,
    credential_verifier,
)

BIND_LISTENERS = "bind.listeners"
ADVERTISED_LISTENERS = "advertised.listeners"
PROTOCOL_MAP = "security.protocol.map"
INTERNAL_LISTENER_NAME = "internal.listener.name"
SASL_MECHANISMS = "security.sasl.enabled.mechanisms"

_ENDPOINT = re.compile(r"(?P<name>.*)://\[?(?P<host>[0-9a-zA-Z\-%._:]*)\]?:(?P<port>-?[0-9]+)")


class SecurityProtocol(Enum):
    """Whether clients of a listener have to authenticate."""

    PLAINTEXT = "PLAINTEXT"
    SASL = "SASL"


@dataclass(frozen=True, slots=True)
class Listener:
    """One address that a server listens on. Port 0 means one that the system chooses, when bound and advertised."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised_host: str
    advertised_port: int


@dataclass(frozen=True, slots=True)
class _Endpoint:
    name: str
    host: str
    port: int


def parse_listeners(
    settings: Mapping[str, str], default: SecurityProtocol = SecurityProtocol.PLAINTEXT
) -> tuple[Listener, ...]:
    """The listeners that `settings` define, in the order of `bind.listeners`.

    `default` is the protocol of listeners that `security.protocol.map` does not name.

    Raises `InvalidRequest` (CONFIG_EXCEPTION), which names the option, for settings that contradict themselves or
    cannot be read.
    """
    bound = _endpoints(settings.get(BIND_LISTENERS, ""), BIND_LISTENERS)
    if not bound:
        raise _invalid(BIND_LISTENERS, "it names no listener; write NAME://host:port")
    names = [endpoint.name for endpoint in bound]
    ports = [endpoint.port for endpoint in bound if endpoint.port != 0]
    if len(set(ports)) != len(ports):
        raise _invalid(BIND_LISTENERS, f"two listeners have the same port: {sorted(ports)}")
    internal = settings.get(INTERNAL_LISTENER_NAME)
    if internal is not None and internal not in names:
        raise _invalid(INTERNAL_LISTENER_NAME, f"'{internal}' is not one of the bound listeners {names}")
    advertised = {e.name: e for e in _endpoints(settings.get(ADVERTISED_LISTENERS, ""), ADVERTISED_LISTENERS)}
    for name in advertised:
        if name not in names:
            raise _invalid(ADVERTISED_LISTENERS, f"'{name}' is not one of the bound listeners {names}")
    protocols = _protocols(settings)
    listeners = []
    for endpoint in bound:
        advertisement = advertised.get(endpoint.name, endpoint)
        protocol = protocols.get(endpoint.name, default)
        listeners.append(
            Listener(endpoint.name, protocol, endpoint.host, endpoint.port, advertisement.host, advertisement.port)
        )
    return tuple(listeners)


def check_named_listeners(listeners: Collection[Listener], settings: Mapping[str, str]) -> None:
    """Check that each listener that a security setting names is one of `listeners` and has the protocol it asks for.

    A name that no listener has would leave the intended listener without a password, or with other passwords.
    Raises `InvalidRequest` (CONFIG_EXCEPTION), which names the option.
    """
    names = [each.name for each in listeners]
    for name, protocol in _protocols(settings).items():
        found = [each.protocol for each in listeners if each.name == name]
        if not found:
            raise _invalid(PROTOCOL_MAP, f"'{name}' is not one of the listeners {names}{did_you_mean(name, names)}")
        if set(found) != {protocol}:
            raise _invalid(
                PROTOCOL_MAP,
                f"it asks for {protocol.value} at '{name}', and only '{BIND_LISTENERS}' or --sasl can give it that",
            )
    lower = [name.lower() for name in names]
    for key in settings:
        listener = jaas_listener(key)
        if listener is not None and listener not in lower:
            raise _invalid(key, f"'{listener}' is not one of the listeners {lower}{did_you_mean(listener, lower)}")


def authenticator_factory(listener: Listener, settings: Mapping[str, str]) -> Callable[[], Authenticator]:
    """Makes the authenticators of connections that come in by `listener`.

    Mechanisms and passwords are read now. Raises `InvalidRequest` (CONFIG_EXCEPTION) if they cannot be used.
    """
    if listener.protocol is SecurityProtocol.PLAINTEXT:
        return PlaintextAuthenticator
    mechanisms = [mechanism.upper() for mechanism in parse_list(settings.get(SASL_MECHANISMS, ""), SASL_MECHANISMS)]
    if not mechanisms:
        raise _invalid(
            SASL_MECHANISMS, f"listener '{listener.name}' uses SASL and no mechanism is enabled; set {PLAIN}"
        )
    unknown = [mechanism for mechanism in mechanisms if mechanism != PLAIN]
    if unknown:
        raise _invalid(SASL_MECHANISMS, f"there is no mechanism {', '.join(unknown)}; the only one is {PLAIN}")
    verify = credential_verifier(plain_credentials(settings, listener.name))
    return lambda: SaslAuthenticator(mechanisms, verify)


def _endpoints(text: str, key: str) -> list[_Endpoint]:
    if not text.strip():
        return []
    endpoints = [_endpoint(part.strip(), key) for part in text.split(",")]
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise _invalid(key, f"two listeners have the same name: {names}")
    return endpoints


def _endpoint(text: str, key: str) -> _Endpoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None or not match["name"] or not match["host"]:
        raise _invalid(key, f"'{text}' is not a listener; write NAME://host:port, an IPv6 address in [brackets]")
    port = int(match["port"])
    if not 0 <= port <= 65535:
        raise _invalid(key, f"the port of '{text}' is not between 0 and 65535")
    return _Endpoint(match["name"], match["host"], port)


def _protocols(settings: Mapping[str, str]) -> dict[str, SecurityProtocol]:
    protocols = {}
    for name, protocol in parse_map(settings.get(PROTOCOL_MAP, ""), PROTOCOL_MAP).items():
        try:
            protocols[name] = SecurityProtocol[protocol.upper()]
        except KeyError:
            names = ", ".join(SecurityProtocol.__members__)
            raise _invalid(PROTOCOL_MAP, f"listener '{name}' has protocol '{protocol}'; there are {names}") from None
    return protocols


def _invalid(key: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option '{key}' cannot be used: {reason}", ErrorCode.CONFIG_EXCEPTION)
