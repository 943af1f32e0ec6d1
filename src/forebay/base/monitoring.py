"""HTTP for those who watch a program: `/metrics` for Prometheus, `/healthz` and `/readyz` for what restarts and routes.

A port of its own, with threads of its own: a program that hangs can still say so. It only reads and has no login.

`/healthz` answers 200 while the program works: else it should be restarted. `/readyz` answers 200 while it also does
all that it is for; 503 names what is wrong, one line each.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from forebay.base import threads
from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.base.http_names import answers_to, name_of, own_names
from forebay.base.http_places import HttpPlaces

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client.registry import Collector

_LOGGER = logging.getLogger(__name__)

_AT_ONCE = 4
"""Requests that are answered at a time; further ones wait."""
_OPEN_MAX = 64
"""Open connections. The oldest one that has not sent its request makes room for the next one."""
_REQUEST_SECONDS = 5.0
"""How long a client may take for its whole request."""
_ANSWER_SECONDS = 30.0
"""How long it may then take to read the whole answer."""
_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_USED_UP_SECONDS = 0.2
"""The pause before a connection is accepted again when there were no more descriptors or memory for it."""
_TEXT = "text/plain; charset=utf-8"


class _Handler(WSGIRequestHandler):
    timeout = _ANSWER_SECONDS

    def get_environ(self) -> dict[str, Any]:
        assert isinstance(self.server, _Server)
        self.server.places.answer(self.connection)
        return super().get_environ()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        _LOGGER.debug("monitoring: " + format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which few answer at a time. Those that are late are cut off."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.places = HttpPlaces[socket.socket](_OPEN_MAX, _REQUEST_SECONDS, _ANSWER_SECONDS, _cut_off)
        super().__init__(*arguments, **named)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as e:
            if e.errno in _USED_UP:  # else the loop would try again at once, and for ever
                self.places.cut_off_stranger()
                threads.event().wait(_USED_UP_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        self.places.open(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.places.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off those that are late. The loop that accepts connections calls this twice a second."""
        self.places.cut_off_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOGGER.debug("monitoring: a client went away", exc_info=True)


def _cut_off(connection: socket.socket) -> None:
    """End a connection; its thread, which reads or writes, then finds it closed."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Monitoring:
    """The HTTP server of one program. `stop` blocks until none of its threads listens any more."""

    def __init__(
        self,
        metrics: Sequence[Collector],
        faults: Callable[[], list[str]],
        problems: Callable[[], list[str]],
        *,
        stop_seconds: float = 0.5,
    ) -> None:
        """`faults` are reasons to restart the program, `problems` those why it is not ready. Called in any thread.
        `stop_seconds`: so long `stop` may take."""
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app

        registry = CollectorRegistry()
        for each in metrics:
            registry.register(each)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        self._metrics = make_wsgi_app(registry)
        self._faults = faults
        self._problems = problems
        self._stop_seconds = stop_seconds
        self._places, self._free = threads.condition(), _AT_ONCE
        self._host, self._names = "", frozenset[str]()
        self._server: _Server | None = None
        self._thread: threads.Thread | None = None

    def start(self, host: str, ports: range, allowed_hosts: Iterable[str] = ()) -> tuple[str, int]:
        """Listen on the first of `ports` that is free; return the address. Raises `InvalidRequest` if none is.

        Requests may name the server by `host`, its own names, addresses, and `allowed_hosts`.
        """
        self._host, self._names = host, own_names(host) | {name.lower() for name in allowed_hosts}
        error: OSError | None = None
        for port in ports:
            try:
                server = make_server(host, port, self._answer, server_class=_Server, handler_class=_Handler)
            except OSError as e:
                error = e
                continue
            self._server = server
            self._thread = threads.thread(server.serve_forever, (self._stop_seconds,), name="forebay-monitoring")
            self._thread.start()
            return host, server.server_port
        reason = "no port is given" if error is None else error.strerror or str(error)
        raise InvalidRequest(
            f"metrics cannot be served on {host}, at port {_port_text(ports)}: {reason}. Choose a free port, or a "
            "range such as 9250-9260 (0 lets the system choose)",
            ErrorCode.CONFIG_EXCEPTION,
        ) from error

    def stop(self) -> None:
        """Stop listening. Answers under way are still sent."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            self._thread.join()
            server.server_close()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _answer(self, environment: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        with self._places:
            self._places.wait_for(lambda: self._free > 0)
            self._free -= 1
        try:
            return self._answer_one(environment, respond)
        finally:
            with self._places:
                self._free += 1
                self._places.notify_all()

    def _answer_one(self, environment: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        path, netloc = environment.get("PATH_INFO", "/"), environment.get("HTTP_HOST")
        if netloc is not None and not answers_to(name_of(netloc), self._names, self._host):
            what = f"this server does not answer to the name {netloc!r}: see metrics.reporter.prometheus.allowed-hosts"
            return _say(respond, "403 Forbidden", [what])
        if environment.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _say(respond, "405 Method Not Allowed", ["use GET"])
        if path == "/metrics":
            return self._metrics(environment, respond)  # type: ignore[no-any-return] # untyped there
        if path == "/healthz":
            return _say(respond, *_outcome(self._faults()))
        if path == "/readyz":
            return _say(respond, *_outcome(self._faults() or self._problems()))
        if path == "/":
            return _say(respond, "200 OK", ["/metrics", "/healthz", "/readyz"])
        return _say(respond, "404 Not Found", [f"there is no {path!r} here: see /metrics, /healthz and /readyz"])


def _port_text(ports: range) -> str:
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def _outcome(problems: list[str]) -> tuple[str, list[str]]:
    return ("503 Service Unavailable", problems) if problems else ("200 OK", ["ok"])


def _say(respond: StartResponse, status: str, lines: list[str]) -> Iterable[bytes]:
    body = "".join(line + "\n" for line in lines).encode()
    respond(status, [("Content-Type", _TEXT), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")])
    return [body]
