"""One connection to one server: requests and responses, matched by id.

Nouns: a `Channel` is a socket that has passed the handshake; a `Call` is one request and, eventually, its response.

Rule: any thread may send; requests do not wait for the responses of earlier ones (pipelining); one reader thread per
channel receives the responses and completes the calls. A call always completes: with the response, or with an error
when the channel breaks. Each waiter sets its own time limit.

Flow: `Channel.open` connects, negotiates versions and authenticates in the caller's thread, then starts the reader.
`send` writes the frame and returns a `Call`; `call.result(seconds)` waits, `call.on_done(function)` calls back.

The protocol is implemented in forebay.protocol, without I/O; this module owns the socket, the locks and the thread.
Prior art: the network clients of Kafka and Fluss.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import (
    OF_SERVERS,
    AccessDenied,
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    Unavailable,
    error_name,
)
from forebay.base.retrying import NOTICE_SECONDS, WaitNotice, backoff
from forebay.client.counters import CallCounter
from forebay.client.settings import Address
from forebay.protocol.api import ApiKey, NegotiatedVersions, ServerRole
from forebay.protocol.connection import (
    ClientConnection,
    ConnectionClosed,
    ProtocolViolation,
    ResponseReceived,
    ServerFailed,
)
from forebay.protocol.handshake import ClientHandshake
from forebay.protocol.messages import Buffer, Message
from forebay.protocol.sasl import PlainClient

if TYPE_CHECKING:
    from forebay.base.tracing import Tracing

_LOGGER = logging.getLogger(__name__)

SOFTWARE = ("forebay", "0.1")
"""The name and version that this client sends to servers."""

_IOV_MAX = 512
"""The maximum number of buffers per system call (1024 on Linux)."""

_LOOK_SECONDS = 0.5
"""How often a waiting handshake checks whether its caller has given up."""

M = TypeVar("M", bound=Message)
Callback = Callable[["Call"], None]
Dial = Callable[[Address, float], socket.socket]
"""Opens a connection to an address within the given seconds. Raises `OSError`."""


class Call:
    """An in-flight request. Completed once, by the thread that removes it from its channel's table of calls."""

    __slots__ = (
        "_callback",
        "_done",
        "_error",
        "_notice",
        "_response",
        "api_key",
        "channel",
        "request_id",
        "seconds",
        "sent_at",
        "span",
    )

    def __init__(self, channel: Channel, api_key: ApiKey, sent_at: float, callback: Callback | None) -> None:
        self.channel = channel
        self.api_key = api_key
        self.request_id = -1
        self.sent_at = sent_at
        self.seconds = 0.0
        """From the request to its response, once that has arrived."""
        self.span: Any = None
        """The span of the request, if there is one."""
        self._callback = callback
        self._notice: WaitNotice | None = None
        self._response: ResponseReceived | None = None
        self._error: ForebayError | None = None
        # A lock is the cheapest primitive for a single wait: held until the call is done.
        self._done = threads.lock()
        self._done.acquire()

    @property
    def name(self) -> str:
        """How logs of client and server name the request: the client's end of the connection, and a number."""
        return f"{self.channel.local}/{self.request_id}"

    @property
    def done(self) -> bool:
        return self._response is not None or self._error is not None

    def complete(self, response: ResponseReceived | None, error: ForebayError | None) -> None:
        """Store the outcome, and notify waiters."""
        self._response, self._error = response, error
        if self.span is not None:
            self.channel.end_span(self, response.error if response is not None else error)
        self._done.release()
        if self._callback is not None:
            self._callback(self)

    def forget(self, error: ForebayError) -> None:
        """In a forked child: end the call without notifying waiters, because other locks may be held forever."""
        self._error, self._callback = error, None
        self._done = threads.lock()

    def response(self) -> ResponseReceived:
        """The response of a completed call. Raises the error of the channel, or the one that the server sent."""
        if self._error is not None:
            raise self._error
        if self._response is None:
            raise InternalError(f"the {self.api_key.name} call is not done")
        error = self._response.error
        if error is not None:
            raise self.named(error)
        return self._response

    def named(self, error: ForebayError) -> ForebayError:
        """The error that the response has, with the name of the request if the server may have logged more about it."""
        if not isinstance(error, OF_SERVERS):
            return error
        return type(error)(f"{error.message} (request {self.name})", error.code)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the call to complete; returns whether it has."""
        pause = min(max(seconds, 0), NOTICE_SECONDS)
        while not self._done.acquire(timeout=pause):
            seconds -= pause
            if seconds <= 0:
                return False
            pause = min(self.tell_if_late(), seconds)
        self._done.release()
        return True

    def tell_if_late(self, expected: float = 0.0) -> float:
        """The seconds until this should be called again. Logs a long wait.

        `expected` is how long the server may take as part of the request (a long poll).
        """
        if self._notice is None:
            left = self.sent_at + expected + NOTICE_SECONDS - self.channel.clock.monotonic()
            if left > 0:
                return left
            self._notice = WaitNotice(self.channel.clock, since=self.sent_at + expected)
        if not self._notice.seconds_left:
            self._notice.tell(f"{self.channel.address} has not responded to {self.api_key.name}")
        return max(self._notice.seconds_left, 0.001)

    def result(self, seconds: float) -> ResponseReceived:
        """The response, after waiting at most `seconds`. Raises `Unavailable` (REQUEST_TIME_OUT), or as `response`
        does.
        """
        if not self.wait(seconds):
            self.give_up(seconds)
            self._done.acquire()  # its outcome is on its way to us
            self._done.release()
        return self.response()

    def give_up(self, seconds: float) -> None:
        """Stop waiting after `seconds`. A channel on which nothing was received meanwhile is closed."""
        if not self.channel.abandon(self, ErrorCode.REQUEST_TIME_OUT) and not self.channel.forgotten:
            return  # its outcome is on its way to us
        error = Unavailable(
            f"{self.channel.address} did not respond to {self.api_key.name} within {seconds:g} s "
            f"('client.request-timeout'; request {self.name})",
            ErrorCode.REQUEST_TIME_OUT,
        )
        self.complete(None, error)
        if self.channel.last_received < self.sent_at:
            self.channel.close(error)


class Channel:
    """A connection to one server, after the handshake. Thread-safe. Open one with `Channel.open`."""

    def __init__(
        self,
        address: Address,
        sock: socket.socket,
        connection: ClientConnection,
        clock: Clock,
        name: str,
        slow_seconds: float | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.address = address
        self._tracing = tracing
        name_here = sock.getsockname()
        self.local = str(Address(*name_here[:2])) if isinstance(name_here, tuple) else str(name_here)
        """This end of the connection, as the server sees it unless something between them translates addresses."""
        self._slow_seconds = float("inf") if slow_seconds is None else slow_seconds
        self.last_received = clock.monotonic()
        self.clock = clock
        self._socket = sock
        self._connection = connection
        self._calls: dict[int, Call] = {}
        self.counters: dict[ApiKey, CallCounter] = {}
        self._state_lock = threads.lock()
        self._send_lock = threads.lock()
        self._closed: ForebayError | None = None
        self.forgotten = False
        """Whether this is the copy in a forked child, where no thread reads responses."""
        self._reader = threads.thread(self._read, name=f"forebay-reader-{name}")

    @classmethod
    def open(
        cls,
        address: Address,
        *,
        clock: Clock,
        connect_seconds: float,
        request_seconds: float,
        expected_role: ServerRole | None = None,
        credentials: tuple[str, str] | None = None,
        dial: Dial | None = None,
        slow_seconds: float | None = None,
        tracing: Tracing | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Channel:
        """Connect, negotiate, authenticate.

        Requests that take `slow_seconds` are logged, and have spans with `tracing`.
        `dial` opens the connection (default: TCP). A server that does not respond is waited for until `given_up`
        returns true, which is noticed within two seconds, or `connect_seconds` have passed; for the answer to the
        handshake, `request_seconds` if these are fewer. Raises `Unavailable` for a server that is unreachable or has
        another role than expected, `AccessDenied` for wrong credentials, and `InvalidRequest` if the address is not a
        Fluss server.
        """
        sock = _connect(address, connect_seconds, clock, dial or dial_tcp, given_up)
        try:
            connection = ClientConnection()
            plain = PlainClient(*credentials) if credentials is not None else None
            handshake = ClientHandshake(connection, *SOFTWARE, expected_role, plain)
            # Its messages are requests, too: a server that has no more descriptors answers none of them.
            seconds = min(connect_seconds, request_seconds)
            _shake_hands(sock, address, connection, handshake, clock, seconds, given_up)
            sock.settimeout(None)
            # A server that stops reading must not block a sender indefinitely.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(request_seconds))
            channel = cls(address, sock, connection, clock, str(address), slow_seconds, tracing)
        except BaseException:
            sock.close()
            raise
        channel._reader.start()
        return channel

    @property
    def versions(self) -> NegotiatedVersions:
        """The APIs that this server offers."""
        versions = self._connection.versions
        if versions is None:
            raise InternalError("a channel exists only after its handshake")
        return versions

    @property
    def closed(self) -> bool:
        return self._closed is not None

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their response."""
        return len(self._calls)

    def send(
        self,
        api_key: ApiKey,
        message: Message,
        payloads: Sequence[Buffer] = (),
        callback: Callback | None = None,
        api_version: int | None = None,
        traces: tuple[Any, ...] = (),
    ) -> Call:
        """Send a request; `payloads` fill the empty `records` fields of `message`, in order.

        `callback` is called once, when the call is done: by the reader thread, so it must be quick and not raise.
        Raises `UnsupportedOperation` if the server does not offer the API, and `Unavailable` on a broken channel;
        `callback` is not called then. `traces` are the contexts that the request works for (default: that of the
        thread), if there are spans.
        """
        call = Call(self, api_key, self.clock.monotonic(), callback)
        last_field = b"" if self._tracing is None else self._begin_span(self._tracing, call, traces)
        try:
            return self._send(call, message, payloads, api_version, last_field)
        except BaseException as e:
            if call.span is not None:
                self.end_span(call, e)
            if not isinstance(e, Exception) and self.abandon(call):
                # Interrupted, perhaps in the middle of a frame: what follows would not be understood.
                self.close(Unavailable(f"sending {api_key.name} to {self.address} was interrupted"))
            raise

    def _begin_span(self, tracing: Tracing, call: Call, traces: tuple[Any, ...]) -> bytes:
        """Begin the span of a request; return the field by which the server learns of it."""
        parent, *also = traces or (None,)
        method, address = call.api_key.fluss_name, self.address
        call.span = tracing.begin(
            f"fluss.{method}",
            parent,
            "CLIENT",
            also=tuple(also),
            rpc_system="fluss",
            rpc_method=method,
            server_address=address.host,
            server_port=address.port,
        )
        return tracing.field_of(call.span) if self.versions.has_additions else b""

    def end_span(self, call: Call, error: BaseException | None) -> None:
        """End the span of a call, once."""
        span, call.span = call.span, None
        if self._tracing is not None:
            span.set_attribute("forebay.request", call.name)
            self._tracing.end(span, error)

    def _send(
        self, call: Call, message: Message, payloads: Sequence[Buffer], api_version: int | None, last_field: bytes
    ) -> Call:
        api_key = call.api_key
        with self._send_lock:
            with self._state_lock:
                if self._closed is not None:
                    raise self._closed
                request_id, buffers = self._connection.send_request(api_key, message, payloads, api_version, last_field)
                call.request_id = request_id
                self._calls[request_id] = call
                counter = self.counters.get(api_key)
                if counter is None:
                    counter = self.counters[api_key] = CallCounter()
                counter.sent += 1
                counter.bytes_out += sum(map(len, buffers))
            try:
                _send_all(self._socket, buffers)
                return call
            except OSError as e:
                error = Unavailable(f"sending {api_key.name} to {self.address} failed: {_reason(e)}")
        still_ours = self.abandon(call, error.code)
        self.close(error)
        if still_ours:
            raise error
        return call  # the reader noticed first and completed the call with its own error

    def abandon(self, call: Call, error: int | None = None) -> bool:
        """Abandon a call: a late response is ignored. False if the call has completed already.

        The code `error` is counted as its outcome.
        """
        with self._state_lock:
            self._connection.abandon(call.request_id)
            is_ours = self._calls.pop(call.request_id, None) is not None
            if is_ours and error is not None:
                self.counters[call.api_key].failed(error)
            return is_ours

    def close(self, error: ForebayError | None = None) -> None:
        """Close the connection. In-flight calls fail with `error`. Idempotent."""
        with self._state_lock:
            if self._closed is not None:
                return
            self._closed = error or Unavailable(f"the connection to {self.address} was closed")
            calls = list(self._calls.values())
            self._calls.clear()
            for call in calls:
                self.counters[call.api_key].failed(self._closed.code)
        _shut_down(self._socket)
        for call in calls:
            call.complete(None, self._closed)

    def join(self, seconds: float) -> None:
        """Wait for the reader thread to end, after `close`."""
        if self._reader is not threads.current_thread():
            self._reader.join(seconds)

    def forget(self) -> None:
        """Drop the socket without notifying the server: after a fork it belongs to the parent process."""
        error = self._closed = Unavailable(f"the connection to {self.address} belongs to another process")
        self.forgotten = True
        # Threads of the parent may have held the locks when it forked; here they would never be released.
        self._state_lock, self._send_lock = threads.lock(), threads.lock()
        calls, self._calls = list(self._calls.values()), {}
        self._socket.close()
        for call in calls:
            call.forget(error)

    # ---- the reader thread ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._take_answers()
        except OSError as e:
            self.close(Unavailable(f"the connection to {self.address} broke: {_reason(e)}"))
        except BaseException as e:
            self.close(InternalError(f"the reader of {self.address} failed: {type(e).__name__}: {e}"))
            raise
        finally:
            self._socket.close()

    def _take_answers(self) -> None:
        connection, sock = self._connection, self._socket
        while True:
            with connection.get_buffer() as room:
                received = sock.recv_into(room)
            self.last_received = self.clock.monotonic()
            if received:
                connection.buffer_updated(received)
            else:
                connection.receive_eof()
            while True:
                with self._state_lock:
                    event, call = connection.next_event(), None
                    if isinstance(event, ResponseReceived):
                        call = self._calls.pop(event.request_id, None)
                        if call is not None and event.error is not None:
                            self.counters[call.api_key].failed(event.error.code)
                if event is None:
                    break
                if isinstance(event, ResponseReceived):
                    if call is not None:
                        counter = self.counters[call.api_key]
                        counter.bytes_in += len(event.body)
                        call.seconds = self.last_received - call.sent_at
                        counter.times.observe(call.seconds)
                        if call.seconds >= self._slow_seconds or _LOGGER.isEnabledFor(logging.DEBUG):
                            self._log(call, event.error)
                        call.complete(event, None)
                elif isinstance(event, ConnectionClosed | ProtocolViolation | ServerFailed):
                    self.close(Unavailable(f"{self.address}: {event.error.message}"))
                    return
            if self._closed is not None:
                return

    def _log(self, call: Call, error: ForebayError | None) -> None:
        is_slow = call.seconds >= self._slow_seconds and call.api_key is not ApiKey.FETCH_LOG  # which waits for records
        outcome = "" if error is None else f", {error_name(error.code)}"
        _LOGGER.log(
            logging.WARNING if is_slow else logging.DEBUG,
            "%srequest %s, %s to %s: %.1f ms%s",
            "slow " if is_slow else "",
            call.name,
            call.api_key.fluss_name,
            self.address,
            1000 * call.seconds,
            outcome,
            extra={"request": call.name, "api": call.api_key.fluss_name, "milliseconds": round(1000 * call.seconds, 3)},
        )


# ---- sockets --------------------------------------------------------------------------------------------------------


def dial_tcp(address: Address, seconds: float) -> socket.socket:
    """A connected TCP socket. Raises `OSError`."""
    return socket.create_connection((address.host, address.port), timeout=seconds)


def _connect(
    address: Address, seconds: float, clock: Clock, dial: Dial, given_up: Callable[[], bool] = lambda: False
) -> socket.socket:
    notice = WaitNotice(clock, since=clock.monotonic())
    deadline = clock.monotonic() + seconds
    while True:
        left = deadline - clock.monotonic()
        pause = min(NOTICE_SECONDS, left)
        try:
            sock = dial(address, max(pause, 0.001))
            break
        except OSError as e:
            if not isinstance(e, TimeoutError) or pause >= left or given_up():
                raise Unavailable(f"cannot connect to {address}: {_reason(e)}") from e
            notice.tell(f"connecting to {address}; giving up after {seconds:g} s ('client.connect-timeout')")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def _shake_hands(
    sock: socket.socket,
    address: Address,
    connection: ClientConnection,
    handshake: ClientHandshake,
    clock: Clock,
    seconds: float,
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    deadline = clock.monotonic() + seconds
    retries = 0
    try:
        _send_all(sock, handshake.start())
        while not handshake.done:
            try:
                buffers = handshake.receive(_next_response(sock, address, connection, clock, deadline, given_up))
            except AccessDenied as e:
                retries += 1
                pause = backoff(retries, 0.1, 5.0)
                is_late = clock.monotonic() + pause >= deadline or given_up()
                if e.code != ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION or is_late:
                    raise
                clock.sleep(pause)
                buffers = handshake.retry()
            _send_all(sock, buffers)
    except OSError as e:
        raise Unavailable(f"the handshake with {address} failed: {_reason(e)}") from e
    except Unavailable as e:
        raise Unavailable(f"the handshake with {address} failed: {e.message}", e.code) from e


def _next_response(
    sock: socket.socket,
    address: Address,
    connection: ClientConnection,
    clock: Clock,
    deadline: float,
    given_up: Callable[[], bool],
) -> ResponseReceived:
    notice = WaitNotice(clock, since=clock.monotonic())
    while True:
        event = connection.next_event()
        if isinstance(event, ResponseReceived):
            return event
        if isinstance(event, ProtocolViolation):
            raise InvalidRequest(
                f"{address} is not a Fluss server: {event.error.message}. Give the address of a Fluss "
                "coordinator or tablet server (forebay prints its own when it starts)"
            )
        if isinstance(event, ConnectionClosed | ServerFailed):
            raise Unavailable(event.error.message)
        left = deadline - clock.monotonic()
        sock.settimeout(max(min(left, _LOOK_SECONDS), 0.001))
        try:
            with connection.get_buffer() as room:
                received = sock.recv_into(room)
        except TimeoutError:
            if left <= _LOOK_SECONDS or given_up():
                raise
            notice.tell(f"{address} accepted the connection but has not responded; is it a Fluss server?")
            continue
        if received:
            connection.buffer_updated(received)
        else:
            connection.receive_eof()


def _send_all(sock: socket.socket, buffers: Sequence[Buffer]) -> None:
    if len(buffers) == 1:
        sock.sendall(buffers[0])
        return
    pending = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while pending:
        sent = sock.sendmsg(pending[:_IOV_MAX])
        count = 0
        while count < len(pending) and sent >= pending[count].nbytes:
            sent -= pending[count].nbytes
            count += 1
        del pending[:count]
        if sent:
            pending[0] = pending[0][sent:]


def _shut_down(sock: socket.socket) -> None:
    """Wake the reader, which then closes the socket."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # no longer connected: the reader has noticed already


def _timeval(seconds: float) -> bytes:
    whole = int(min(seconds, 1 << 30))
    return struct.pack("@ll", whole, int((seconds - whole) * 1_000_000) if seconds < 1 << 30 else 0)


def _reason(error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return "the server does not read"
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error) or type(error).__name__
