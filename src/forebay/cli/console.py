"""`forebay console`: a page in the browser that shows a server, its tables and their lakes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import closing, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS
from forebay.base.errors import AccessDenied, InvalidRequest, Unavailable, UnsupportedOperation
from forebay.base.http_names import is_loopback
from forebay.base.quantity import parse_duration_ms, parse_memory_bytes
from forebay.cli.connecting import add_place_arguments, lake_options_of, lakes_of, password_of
from forebay.cli.logs import add_log_arguments, configure_logs

if TYPE_CHECKING:
    from forebay.console.visitors import Visitors

PORT = 9130
_TOKEN_VARIABLE = "FOREBAY_CONSOLE_TOKEN"

_EPILOG = f"""The page shows a server and adds the lakes of -w and --lake to it; `forebay sql -w` and
`forebay flight -w` read lakes without a server. The page is for this machine, and changes nothing. It needs no other
host. It logs in to the server as --user; without that, and where the server asks for a login, each visitor logs in.
With --host other than loopback, or with --user, visitors need the token in the address that is printed;
${_TOKEN_VARIABLE} sets one that stays.

examples:
  forebay console -b 127.0.0.1:9123 --open
  forebay console -b 127.0.0.1:9123 -w /lake --port 0
  forebay console -b 10.0.0.5:9123 --host 0.0.0.0 --allow-host console.example.org"""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay console`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add_place_arguments(parser, server_required=True)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        metavar="PORT",
        help="the port to listen on; 0: a free port (default: %(default)s)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "--allow-changes", action="store_true", help="let visitors change tables, settings and lakes, and insert rows"
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a host name by which browsers reach the page, such as that of a proxy; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--query-memory", default="1GB", metavar="SIZE",
        help="maximum memory of a statement of the SQL page (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--query-timeout", default="1min", metavar="TIME",
        help="end a statement of the SQL page after this time (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)
    add_log_arguments(parser, "WARNING")


def run(options: argparse.Namespace) -> int:
    """Serve the console until stopped; return the exit code."""
    check_packages()
    from forebay.console.session import STATEMENTS_MAX, Console
    from forebay.console.visitors import Visitors
    from forebay.query.isolated import StatementLimits, StatementProcesses
    from forebay.query.tables import opened_lake

    configure_logs(options)
    server = options.bootstrap_servers
    warehouses = {name: opened_lake(where) for name, where in lakes_of(options).items()}
    lake = lake_options_of(options)
    memory, seconds = parse_memory_bytes(options.query_memory), parse_duration_ms(options.query_timeout) / 1000
    processes = StatementProcesses(StatementLimits(STATEMENTS_MAX, memory, seconds))

    def open_console(user: str | None, password: str | None) -> Console:
        return Console.open(
            server, user, password,
            warehouses=warehouses, lake_options=lake, allow_changes=options.allow_changes, processes=processes,
        )  # fmt: skip

    with closing(processes), closing(Visitors(SYSTEM_CLOCK, open=open_console)) as visitors:
        try:
            visitors.shared = open_console(options.user, password_of(options))
        except AccessDenied:
            if options.user is not None:
                raise
        with _listening(options.host, options.port) as listening:
            if find_spec("duckdb") is not None:
                processes.start()
            _serve_visitors(visitors, server, listening, options)
    return 0


def _serve_visitors(visitors: Visitors, server: str, listening: socket.socket, options: argparse.Namespace) -> None:
    """Say where the console is, and serve it until it is stopped."""
    from forebay.console.app import make_app
    from forebay.console.visitors import Doors

    if visitors.shared is not None and (options.user is not None or not is_loopback(options.host)):
        visitors.token = os.environ.get(_TOKEN_VARIABLE) or SYSTEM_IDS.token_hex()
    port = listening.getsockname()[1]
    doors = Doors.of(options.host, tuple(options.allow_host))
    app = make_app(visitors, doors, allow_changes=options.allow_changes, cookie=f"forebay-{port}")
    address = _address(options.host, port) + ("" if visitors.token is None else f"#token={visitors.token}")
    print(f"Forebay console of {server}: {address}\nStop it with Ctrl-C or SIGTERM.", flush=True)
    if options.open:
        import webbrowser

        webbrowser.open(address)
    _serve(app, listening, until_stdin_ends=options.until_stdin_ends)


def check_packages() -> None:
    """Raise `UnsupportedOperation` if what the console needs is not installed."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UnsupportedOperation("the console needs Starlette and Uvicorn: pip install 'forebay[console]'")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OverflowError as e:
        raise InvalidRequest(f"--port {port} is not between 0 and 65535") from e
    except OSError as e:
        raise Unavailable(f"cannot listen on {host}:{port}: {e.strerror or e}. Choose another --port, or 0") from e


def _address(host: str, port: int) -> str:
    public_host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://[{public_host}]:{port}/" if ":" in public_host else f"http://{public_host}:{port}/"


def _serve(app: Any, listening: socket.socket, *, until_stdin_ends: bool) -> None:
    from forebay.console.serving import make_server

    server = make_server(app)

    def stop() -> None:
        # What is under way may end within the second. Uvicorn logs an error and a traceback of each other request.
        logging.getLogger("uvicorn.error").addFilter(lambda _: False)
        server.should_exit = True

    def stop_with_stdin() -> None:
        sys.stdin.buffer.read()  # ends when the process that started this one does, however it ends
        stop()

    async def serve() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        # Uvicorn would raise a signal again once it has ended, which kills this process.
        setattr(server, "capture_signals", nullcontext)  # noqa: B010 - a method
        await server.serve(sockets=[listening])

    if until_stdin_ends:
        threads.thread(stop_with_stdin, name="forebay-console-parent").start()
    asyncio.run(serve())
