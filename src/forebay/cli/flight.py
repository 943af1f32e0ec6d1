"""`forebay flight`: an Arrow Flight SQL endpoint over live tables and lakes, until it is stopped."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from forebay.base.ambient import SYSTEM_IDS
from forebay.base.errors import InvalidRequest
from forebay.base.http_names import is_loopback
from forebay.base.quantity import parse_duration_ms, parse_memory_bytes
from forebay.cli.connecting import add_place_arguments, lake_options_of, lakes_of, place_of
from forebay.cli.jobs import waiting_for_no_server
from forebay.cli.logs import add_log_arguments, configure_logs
from forebay.cli.settings import setting

_LOGGER = logging.getLogger(__name__)

_TOKEN_VARIABLE = "FOREBAY_FLIGHT_TOKEN"

_EPILOG = f"""Clients connect to grpc://HOST:PORT (docs/flight-sql.md). With --user, or with --host other than
loopback, they need the token that is printed, as their password; ${_TOKEN_VARIABLE} sets one that stays. --sasl and
--tls-client-ca take its place.

examples:
  forebay flight -b 127.0.0.1:9123
  forebay flight -b 127.0.0.1:9123 -w /lake --allow-changes
  forebay flight -b server:9123 --sasl --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem

Exit codes: 0 stopped, 1 an error (the message says why), 2 wrong usage, 130 interrupted."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay flight`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=int,
        default=31337,
        metavar="PORT",
        help="port to listen on; 0: a free port (default: %(default)s)",
    )
    parser.add_argument(
        "--sasl",
        action="store_true",
        help="require user and password of the server, which queries then run as; else all run as --user",
    )
    parser.add_argument("--allow-changes", action="store_true", help="allow INSERT and ingestion, not only reading")
    parser.add_argument("--tls-certificate", metavar="FILE", help="serve TLS with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key (PEM)")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="accept only clients with a certificate of this CA (PEM)"
    )
    parser.add_argument(
        "--queries-max",
        type=int,
        default=8,
        metavar="N",
        help="maximum number of concurrent statements (default: %(default)s)",
    )
    parser.add_argument(
        "--query-timeout", default="1h", metavar="TIME", help="stop a statement after this time (default: %(default)s)"
    )
    parser.add_argument(
        "--query-memory", default="1GB", metavar="SIZE",
        help="maximum memory of a statement, which spills to $TMPDIR beyond it (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--handles-max", type=int, default=10_000, metavar="N",
        help="maximum number of prepared statements and unread queries (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--handle-timeout",
        default="15min",
        metavar="TIME",
        help="close prepared statements and queries that are unused for this time (default: %(default)s)",
    )
    parser.add_argument(
        "--sessions-max", type=int, default=1_000, metavar="N", help="maximum number of sessions (default: %(default)s)"
    )
    parser.add_argument(
        "--session-timeout",
        default="8h",
        metavar="TIME",
        help="end sessions that are unused for this time (default: %(default)s)",
    )
    parser.add_argument(
        "--ready-file", metavar="FILE", help="write the address to this file once the endpoint is ready"
    )
    add_place_arguments(parser)
    add_log_arguments(parser, "INFO")


def run(options: argparse.Namespace) -> int:
    """Serve SQL by Arrow Flight until stopped; return the exit code."""
    from forebay.flight.server import FlightSqlServer
    from forebay.flight.statements import Limits

    configure_logs(options, limits_lines=True)
    limits = Limits(
        queries_max=_positive("--queries-max", options.queries_max),
        query_seconds=parse_duration_ms(options.query_timeout) / 1000,
        query_memory_bytes=parse_memory_bytes(options.query_memory),
        handles_max=_positive("--handles-max", options.handles_max),
        handle_seconds=parse_duration_ms(options.handle_timeout) / 1000,
        sessions_max=_positive("--sessions-max", options.sessions_max),
        session_seconds=parse_duration_ms(options.session_timeout) / 1000,
    )
    tls, token = _tls(options), _token(options)
    if tls is None and not is_loopback(options.host):
        _LOGGER.warning("other machines reach this endpoint without TLS: passwords and rows cross the network in clear")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.set())
    with ExitStack() as stack:
        connect, connection = None, None
        if options.sasl:
            connect, lakes = _connector(options), lakes_of(options)
        else:
            connection, lakes = stack.enter_context(place_of(options))
        if connection is not None:
            stack.enter_context(waiting_for_no_server(connection, stopping))
        server = FlightSqlServer(
            connection,
            lakes,
            host=options.host,
            port=options.port,
            connect=connect,
            allow_changes=options.allow_changes,
            tls=tls,
            limits=limits,
            token=token,
        )
        stack.callback(server.stop)
        print(_welcome(server, options, token), flush=True)
        if options.ready_file is not None:
            temporary = Path(options.ready_file + ".tmp")
            try:
                temporary.write_text(server.location)
                temporary.replace(options.ready_file)
            except OSError as e:
                raise InvalidRequest(f"--ready-file {options.ready_file} cannot be written: {e.strerror}") from e
        while not stopping.wait(1.0):  # a wait without a time is not interrupted by signals
            pass
        _LOGGER.info("stopping")
    return 0


def _token(options: argparse.Namespace) -> str | None:
    """What callers have to give, where the endpoint would give them more than they have anyway; None if nothing."""
    if options.sasl or options.tls_client_ca is not None:
        return None
    if options.user is None and is_loopback(options.host):
        return None
    return os.environ.get(_TOKEN_VARIABLE) or SYSTEM_IDS.token_hex()


def _positive(option: str, value: int) -> int:
    if value < 1:
        raise InvalidRequest(f"{option} is {value}: it must be at least 1")
    return value


def _connector(options: argparse.Namespace) -> Any:
    """Return a function that connects as a user."""
    from forebay.client.connection import connect

    servers = options.bootstrap_servers or setting("bootstrap-servers")
    lake = lake_options_of(options)
    return lambda user, password: connect(servers, user, password, lake_options=lake)


def _tls(options: argparse.Namespace) -> Any:
    from forebay.flight.server import Tls

    if (options.tls_certificate is None) != (options.tls_key is None):
        raise InvalidRequest("--tls-certificate and --tls-key belong together: give both")
    if options.tls_certificate is None:
        if options.tls_client_ca is not None:
            raise InvalidRequest("--tls-client-ca needs --tls-certificate and --tls-key")
        return None
    ca = None if options.tls_client_ca is None else _read(options.tls_client_ca)
    return Tls(_read(options.tls_certificate), _read(options.tls_key), ca)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise InvalidRequest(f"{path} cannot be read: {os.strerror(e.errno or 0)}") from e


def _welcome(server: Any, options: argparse.Namespace, token: str | None) -> str:
    uri = server.location
    host, tls = uri.partition("://")[2], uri.startswith("grpc+tls")
    lines = [
        f"Arrow Flight SQL at {uri}{'' if options.allow_changes else ', read only'}",
        f"  ADBC        adbc_driver_flightsql.dbapi.connect('{uri}')",
        f"  JDBC        jdbc:arrow-flight-sql://{host}/?useEncryption={str(tls).lower()}",
        f"  SQLAlchemy  forebay://{host}/{'?tls=true' if tls else ''}",
        *([] if token is None else [f"  Log in with any user, and this token as the password: {token}"]),
        "Stop it with Ctrl-C or SIGTERM.",
    ]
    return "\n".join(lines)
