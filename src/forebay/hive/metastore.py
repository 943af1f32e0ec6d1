"""Calls to a Hive Metastore over Thrift: pooled connections, failover between servers, translated errors.

The protocol's structs are declared in `metastore.thrift`, which the package thriftpy2 loads; `Metastore.new`
creates them. A read-only call is retried if its connection breaks. A call that changes something is not, because it may
have been executed.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import os
import socket
import threading
import weakref
import xml.etree.ElementTree
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import (
    AlreadyExists,
    ForebayError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)
from forebay.base.locations import location
from forebay.base.quantity import parse_bool, parse_duration_ms

_IDL = Path(__file__).with_name("metastore.thrift")
_DEFAULT_PORT = 9083
_CONNECT_MS = 20_000
_DEFAULT_SOCKET_TIMEOUT = "600 s"
_DEFAULT_POOL = "2"
_CONNECT_ROUNDS = 3
_ROUND_WAIT_SECONDS = 1.0

_NOT_SERVED = {
    "hive.metastore.sasl.enabled": "Kerberos (SASL)",
    "hive.metastore.use.SSL": "TLS",
}

_READS = frozenset(
    {"get_all_databases", "get_database", "get_all_tables", "get_table_req", "get_table_objects_by_name_req"}
    | {"check_lock", "heartbeat"}
)
"""Calls that can be retried: they change nothing, or are idempotent."""

_KINDS: dict[str, type[ForebayError]] = {
    "NoSuchObjectException": NotFound,
    "UnknownDBException": NotFound,
    "NoSuchLockException": NotFound,
    "AlreadyExistsException": AlreadyExists,
    "InvalidObjectException": InvalidRequest,
    "InvalidOperationException": InvalidRequest,
}
"""All others, most of all MetaException, are a `StorageFailure`: an internal error of the server."""


class _Address(NamedTuple):
    host: str
    port: int


@lru_cache(maxsize=1)
def _thrift() -> Any:
    """The thriftpy2 module and the classes generated from our declarations."""
    try:
        thriftpy2 = importlib.import_module("thriftpy2")
    except ImportError as e:
        raise UnsupportedOperation(
            "a Hive catalog needs the package thriftpy2: pip install 'forebay[paimon,hive]'"
        ) from e
    return thriftpy2.load(str(_IDL), module_name="forebay_hive_metastore_thrift")


def hive_options(options: Mapping[str, str]) -> dict[str, str]:
    """`options`, extended with `hive-site.xml` in the directory `hive-conf-dir`. Raises `InvalidRequest`."""
    folder = options.get("hive-conf-dir")
    if not folder:
        return dict(options)
    file = Path(location(folder, "option 'hive-conf-dir'")) / "hive-site.xml"
    try:
        root = xml.etree.ElementTree.fromstring(file.read_bytes())
    except (OSError, xml.etree.ElementTree.ParseError) as e:
        raise InvalidRequest(f"option 'hive-conf-dir' is {folder!r}, but {file} cannot be read: {e}") from e
    properties = ((p.findtext("name"), p.findtext("value")) for p in root.iter("property"))
    return {**{name.strip(): (value or "").strip() for name, value in properties if name}, **options}


def current_user() -> str:
    """The user name for the metastore, determined as in Hadoop."""
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


class Metastore:
    """A metastore of one or more servers. Thread-safe; can be pickled, and survives a fork, without connections."""

    def __init__(self, options: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> None:
        """Create a client without connecting.

        `options`: `uri` (`thrift://host:port`, several separated by commas), `client-pool-size`, and Hive's own. Raises
        `InvalidRequest`, and `UnsupportedOperation` for secured servers.
        """
        self._options, self._clock = dict(options), clock
        for option, reason in _NOT_SERVED.items():
            if parse_bool(options.get(option, "false")):
                raise UnsupportedOperation(f"option '{option}' is true; {reason} is not supported for a Hive Metastore")
        uris = options.get("uri") or options.get("hive.metastore.uris", "")
        self._addresses = [_address(uri.strip()) for uri in uris.split(",") if uri.strip()]
        if not self._addresses:
            raise InvalidRequest("a Hive catalog needs option 'uri', such as thrift://host:9083")
        self._timeout_ms = _seconds_or_duration_ms(
            options.get("hive.metastore.client.socket.timeout", _DEFAULT_SOCKET_TIMEOUT)
        )
        self._pool_size = int(options.get("client-pool-size", _DEFAULT_POOL))
        if self._pool_size < 1:
            raise InvalidRequest(f"option 'client-pool-size' is {self._pool_size}; it must be at least 1")
        self._begin()
        _thrift()

    def _begin(self) -> None:
        """Start without connections: these, and the pool's semaphore, belong to the process that created them."""
        self._slots = threading.BoundedSemaphore(self._pool_size)
        self._idle: list[Any] = []
        self._process = os.getpid()
        weakref.finalize(self, _close_all, self._idle)

    def __reduce__(self) -> tuple[Any, ...]:
        return Metastore, (self._options,)

    def __repr__(self) -> str:
        return "thrift://" + ",".join(f"{a.host}:{a.port}" for a in self._addresses)

    def new(self, struct: str, **members: Any) -> Any:
        """A new struct of the protocol."""
        return getattr(_thrift(), struct)(**members)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the server and return its response.

        If the server rejects the call, raises `NotFound`, `AlreadyExists`, `InvalidRequest` or `StorageFailure` with
        its message. Raises `Unavailable` if no server can be reached, `OutcomeUnknown` if the connection broke after
        the call may have taken effect.
        """
        if self._process != os.getpid():
            self._begin()
        with self._slots:
            for _ in range(1 + len(self._addresses)):
                client = self._take()
                try:
                    answer = getattr(client, method)(*arguments)
                except (OSError, EOFError, _transport_error()) as e:
                    _close(client)
                    failure = f"{self}: the connection broke during {method}: {e}"
                    if method not in _READS:
                        raise OutcomeUnknown(
                            f"{failure}. The metastore may have done it or not: look before you repeat it"
                        ) from e
                    continue
                except Exception as e:
                    self._give_back(client)
                    raise _translated(method, e) from e
                except BaseException:  # an abandoned response must not be mistaken for the next one
                    _close(client)
                    raise
                self._give_back(client)
                return answer
            raise Unavailable(failure)

    # -- connections --------------------------------------------------------------------------------------------------

    def _take(self) -> Any:
        """A connection that has just been checked."""
        while self._idle:
            try:
                client = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if _is_alive(client):
                return client
            _close(client)
        return self._connect()

    def _give_back(self, client: Any) -> None:
        self._idle.append(client)

    def _connect(self) -> Any:
        failures: list[str] = []
        for round_number in range(_CONNECT_ROUNDS):
            if round_number:
                self._clock.sleep(_ROUND_WAIT_SECONDS)
            failures.clear()
            for address in self._addresses:
                try:
                    return self._open(address)
                except (OSError, EOFError, _transport_error()) as e:
                    failures.append(f"{address.host}:{address.port}: {e}")
        raise Unavailable(f"no Hive Metastore can be reached: {'; '.join(failures)}")

    def _open(self, address: _Address) -> Any:
        """A new connection. It sends our user name, so that directories created by the server belong to us."""
        plain, transport, protocol = self._new_protocol(address)
        transport.open()
        client = importlib.import_module("thriftpy2.thrift").TClient(_thrift().ThriftHiveMetastore, protocol)
        client.forebay_socket = plain
        try:
            plain.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.sock.settimeout(self._timeout_ms / 1000)
            # A server that runs everything as its own user may reject the name; it still serves this client.
            with contextlib.suppress(_thrift().MetaException):
                client.set_ugi(current_user(), [])
        except BaseException:
            _close(client)
            raise
        return client

    def _new_protocol(self, address: _Address) -> tuple[Any, Any, Any]:
        """An unconnected socket, and the two protocol layers on it that the server's options require."""
        framed, compact = (
            parse_bool(self._options.get(f"hive.metastore.thrift.{reason}.enabled", "false"))
            for reason in ("framed.transport", "compact.protocol")
        )
        transports = importlib.import_module("thriftpy2.transport")
        protocols = importlib.import_module("thriftpy2.protocol")
        transport_factory = transports.TCyFramedTransportFactory if framed else transports.TCyBufferedTransportFactory
        protocol_factory = protocols.TCompactProtocolFactory if compact else protocols.TCyBinaryProtocolFactory
        plain = transports.TSocket(address.host, address.port, connect_timeout=_CONNECT_MS)
        transport = transport_factory().get_transport(plain)
        return plain, transport, protocol_factory().get_protocol(transport)


def _address(uri: str) -> _Address:
    parts = urlsplit(uri)
    if parts.scheme != "thrift" or not parts.hostname:
        raise InvalidRequest(f"option 'uri' is {uri!r}; write thrift://host:9083")
    return _Address(parts.hostname, parts.port or _DEFAULT_PORT)


def _seconds_or_duration_ms(text: str) -> int:
    """The milliseconds of a Hive duration; a number without a unit is in seconds."""
    return int(text) * 1000 if text.strip().isdigit() else parse_duration_ms(text)


def _transport_error() -> Any:
    return importlib.import_module("thriftpy2.transport").TTransportException


def _translated(method: str, error: Exception) -> Exception:
    """An error response of the server as a Forebay error. Other errors are bugs of this client; they do not change."""
    thriftpy2 = importlib.import_module("thriftpy2.thrift")
    if isinstance(error, thriftpy2.TApplicationException):
        if error.type == thriftpy2.TApplicationException.UNKNOWN_METHOD:
            return UnsupportedOperation(f"the Hive Metastore has no {method}: it is older than Hive 2.3")
        return StorageFailure(f"Hive Metastore, {method}: {error}")
    if not isinstance(error, thriftpy2.TException):
        return error
    name = type(error).__name__
    message = getattr(error, "message", None) or str(error)
    return _KINDS.get(name, StorageFailure)(f"Hive Metastore, {method}: {name}: {message}")


def _is_alive(client: Any) -> bool:
    """Whether an idle connection is open and has no pending data."""
    connected = client.forebay_socket.sock
    timeout = connected.gettimeout()
    connected.setblocking(False)
    try:
        connected.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        connected.settimeout(timeout)
        return True
    except OSError:
        return False
    return False


def _close(client: Any) -> None:
    with contextlib.suppress(OSError):
        client.close()


def _close_all(clients: Sequence[Any]) -> None:
    for client in clients:
        _close(client)
