"""The sockets of a server, which are served where its event loop waits for events.

A *round* serves the bytes that have arrived on up to `CONNECTIONS_MAX` connections. An asyncio transport costs 9 us of
CPU for each request and its answer, of which the kernel needs 2.5, and an iteration of the event loop costs as much
again. So `Poller.select` serves rounds until the loop has something else to do.

Flow of a round: one `epoll_wait`; one `recv`, without Python's lock, for each connection at rest
(`forebay.server.wire._peer`); short requests are parsed in place and grouped (`forebay.server.wire._short_groups`), and
all other bytes are delivered to the protocol, as from an asyncio transport; the groups are served; the answers are sent
(`forebay.server.wire._answer_batch`).

All methods belong to the thread of the event loop.
"""
import asyncio
import errno
import logging
import os
import socket as socket_module

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno as c_errno
from libc.math cimport INFINITY, ceil
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

from forebay.protocol._short cimport ShortRequest, read_frame
from forebay.server.wire._answer_batch cimport AnswerBatch
from forebay.server.wire._epoll cimport (
    EPOLLIN, EPOLLOUT, HAS_EPOLL, MSG_DONTWAIT, epoll_take, epoll_watch, recv,
)
from forebay.server.wire._peer cimport Peer
from forebay.server.wire._short_groups cimport ShortGroups
from forebay.server.wire._transport cimport SocketTransport

cdef enum:
    CONNECTIONS_MAX = 64          # connections in a round; all others wait for its end
    SLOT_BYTES = 16 << 10         # bytes received from one connection in a round
    REQUESTS_MAX = 32             # short requests served for one connection in a round
    ROUNDS_MAX = 8                # consecutive rounds before other callbacks of the loop run
    WAIT_MS_MAX = 1 << 30         # milliseconds; `epoll_wait` takes a C int
    WATCH_NS = 40_000             # nanoseconds of polling before the thread sleeps
    WATCH_GAIN = 4                # empty polls that one successful poll pays for
    WATCH_MAX = 64                # maximum number of paid polls, and after this number of waits one poll is free

HAS_POLLER = bool(HAS_EPOLL)
"""Whether this system has epoll, which `Poller` requires."""

_LOGGER = logging.getLogger(__name__)

_LONE_SECONDS = 0.1
"""A client is alone after no other connection was served for this time."""

_ROUNDS_SECONDS = 5e-3
"""Other callbacks of the loop run after rounds of this total time."""

_ACCEPTED_MAX = 100
"""Connections accepted in one iteration of the loop, and the backlog of listening sockets."""

_ACCEPT_PAUSE_SECONDS = 1.0
"""How long a listening socket pauses after the process has run out of file descriptors or memory."""

_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def spare_descriptor():
    """Return a socket that is not connected; None if the process has no descriptor left."""
    try:
        return socket_module.socket()
    except OSError:
        return None


cdef class Poller:
    """The listening sockets and the connections of a server, on one `forebay.server.wire.serving_loop.ServingLoop`."""

    cdef object loop
    cdef object monotonic         # the injected clock
    cdef object loop_time         # the clock of `timeout`: the system's, also if another one is injected
    cdef ShortGroups short
    cdef int epoll                # file descriptor of the loop's selector
    cdef public bint is_interrupted  # the loop has something else to do
    cdef dict transports          # by file descriptor
    cdef uint8_t* slots           # SLOT_BYTES for each connection of a round
    cdef set listening
    cdef object spare             # a socket whose descriptor is kept for refusals; None if there was none
    cdef unsigned int waits       # after rounds; one of WATCH_MAX polls without credit
    cdef int credit               # polls that earlier successful ones have paid for
    cdef int lone                 # the only file descriptor that was served since `lone_since`
    cdef double lone_since

    def __cinit__(self):
        self.slots = <uint8_t*> malloc(CONNECTIONS_MAX * SLOT_BYTES)
        if self.slots == NULL:
            raise MemoryError()

    def __init__(self, loop, clock, ShortGroups short):
        self.loop, self.loop_time = loop, loop.time
        self.monotonic = clock.monotonic
        self.short = short
        short.batch = AnswerBatch()
        self.transports = {}
        self.listening = set()
        self.spare = spare_descriptor()
        self.lone = -1
        self.epoll = loop.selector.fileno()
        loop.attach(self)

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return len(self.transports)

    # ---- listening --------------------------------------------------------------------------------------------------

    def listen(self, sock, factory):
        """Accept connections on a bound socket; `factory` returns the protocol of each connection."""
        sock.setblocking(False)
        sock.listen(_ACCEPTED_MAX)
        self.listening.add(sock)
        self.loop.add_reader(sock, self.accept, sock, factory)

    def accept(self, sock, factory):
        """Accept the waiting connections of a listening socket."""
        for _ in range(_ACCEPTED_MAX):
            try:
                connection, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _OUT_OF_FILES:
                    raise
                _LOGGER.error("cannot accept connections, and will try again: %s", e)
                self.refuse_waiting(sock)
                self.loop.remove_reader(sock)
                self.loop.call_later(_ACCEPT_PAUSE_SECONDS, self.resume_accepting, sock, factory)
                return
            self.begin(connection, address, factory)

    def refuse_waiting(self, sock):
        """Close the connections for which there is no descriptor, with one that is kept for this: else their clients,
        for whom the system has accepted them, would wait for an answer."""
        if self.spare is not None:
            self.spare.close()
        try:
            for _ in range(_ACCEPTED_MAX):
                sock.accept()[0].close()
        except OSError:  # that was all, or another thread has taken the descriptor
            pass
        self.spare = spare_descriptor()

    def resume_accepting(self, sock, factory):
        if sock in self.listening:
            self.loop.add_reader(sock, self.accept, sock, factory)

    @property
    def is_listening(self):
        return bool(self.listening)

    def stop_listening(self):
        """Close the listening sockets."""
        for sock in self.listening:
            self.loop.remove_reader(sock)
            sock.close()
        self.listening.clear()
        if self.spare is not None:
            self.spare.close()
            self.spare = None

    cdef int begin(self, connection, address, factory) except -1:
        """Serve an accepted connection."""
        cdef SocketTransport transport = SocketTransport.__new__(SocketTransport)
        cdef Peer peer
        try:
            connection.setblocking(False)
            connection.setsockopt(socket_module.IPPROTO_TCP, socket_module.TCP_NODELAY, 1)
        except OSError:  # the client has closed it already
            connection.close()
            return 0
        transport.loop, transport.epoll, transport.transports = self.loop, self.epoll, self.transports
        transport.address = address
        transport.fd = connection.detach()
        self.transports[transport.fd] = transport
        transport.protocol = peer = factory()
        peer.transport = transport
        return transport.start()

    async def close(self):
        """Close all connections immediately; unsent bytes are lost."""
        self.stop_listening()
        for each in list(self.transports.values()):
            each.abort()
        while self.transports:  # their protocols are notified in the next iteration
            await asyncio.sleep(0)
        self.loop.attach(None)

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def select(self, timeout):
        """Serve rounds until the loop has something else to do. Return the other file descriptors that are ready, with
        their epoll events. `timeout` is in seconds; None: no limit."""
        cdef int fds[CONNECTIONS_MAX]
        cdef unsigned int events[CONNECTIONS_MAX]
        cdef int n, served = 0, i, rounds = 0, wait_ms
        cdef double now, deadline = INFINITY, rounds_end = 0.0
        cdef list others = []
        self.is_interrupted = False
        if timeout is not None:
            deadline = self.loop_time() + timeout if timeout > 0 else 0.0
        while True:
            wait_ms = 0
            if not rounds and deadline > 0.0:
                wait_ms = -1
                if deadline < INFINITY:  # rounded up, because the loop would poll until a timer is due
                    wait_ms = max(0, min(<int> ceil((deadline - self.loop_time()) * 1e3), WAIT_MS_MAX))
            n = self.wait(fds, events, served > 0, wait_ms)
            if n < 0:
                PyErr_CheckSignals()
                return others
            served = 0
            for i in range(n):
                if fds[i] in self.transports:
                    fds[served], events[served] = fds[i], events[i]
                    served += 1
                else:
                    others.append((fds[i], events[i]))
            if served:
                try:
                    self.serve_round(fds, events, served)
                except Exception as e:
                    self.loop.call_exception_handler({"message": "serving a round failed", "exception": e})
            if served and rounds < ROUNDS_MAX:
                now = self.loop_time()
                if not rounds:
                    rounds_end = now + _ROUNDS_SECONDS
                rounds += 1
                if now < rounds_end:
                    continue
            rounds = 0
            if others or self.is_interrupted or deadline < INFINITY and self.loop_time() >= deadline:
                return others

    cdef int wait(self, int* fds, unsigned int* events, bint is_after_round, int wait_ms) except? -2:
        """Return the number of ready file descriptors, or -1 if a signal has arrived. Polls for a moment after a
        round, then sleeps up to `wait_ms` milliseconds; -1: no limit."""
        cdef int n = 0
        if is_after_round or not wait_ms:
            n = epoll_take(self.epoll, CONNECTIONS_MAX, 0, fds, events)
            if n == 0 and is_after_round and not self.is_interrupted and self.is_worth_watching():
                with nogil:
                    n = epoll_watch(self.epoll, CONNECTIONS_MAX, WATCH_NS, fds, events)
                self.credit = min(self.credit + WATCH_GAIN, WATCH_MAX) if n > 0 else max(self.credit - 1, 0)
        if n == 0 and wait_ms:
            with nogil:
                n = epoll_take(self.epoll, CONNECTIONS_MAX, wait_ms, fds, events)
        if n < 0 and c_errno != EINTR:
            raise OSError(c_errno, os.strerror(c_errno))
        return n

    cdef bint is_worth_watching(self) noexcept:
        """Return whether to poll for a moment before this thread sleeps.

        A client sends its next request a few microseconds after an answer, while a core that has begun to sleep needs
        tens of them to wake up. If clients share the machine and this thread sleeps immediately, the kernel also wakes
        them on this core, so that client and server never run in parallel. Polls fail where clients do other work
        between their requests; then only one of `WATCH_MAX` waits polls.
        """
        self.waits += 1
        return self.credit > 0 or self.waits % WATCH_MAX == 0

    cdef int serve_round(self, int* fds, unsigned int* events, int n) except -1:
        """Serve `n` connections that are ready."""
        cdef ssize_t received[CONNECTIONS_MAX]
        cdef int errors[CONNECTIONS_MAX]
        cdef bint at_rest[CONNECTIONS_MAX]
        cdef int i
        cdef double now
        cdef SocketTransport transport
        may_begin = self.short.may_begin_round()
        for i in range(n):
            transport = self.transports.get(fds[i])
            at_rest[i] = (
                may_begin and transport is not None and not transport.is_closed and transport.events & EPOLLIN
                and events[i] & ~EPOLLOUT and transport.buffers is None and (<Peer> transport.protocol).is_at_rest()
            )
        with nogil:
            for i in range(n):
                if at_rest[i]:
                    received[i] = recv(fds[i], self.slots + i * SLOT_BYTES, SLOT_BYTES, MSG_DONTWAIT)
                    errors[i] = c_errno
        now = self.monotonic()
        if n != 1 or fds[0] != self.lone:
            self.lone, self.lone_since = fds[0], now
        self.short.begin_round(now - self.lone_since >= _LONE_SECONDS)
        try:
            for i in range(n):
                transport = self.transports.get(fds[i])
                if transport is None or transport.protocol is None:
                    continue
                try:
                    if not at_rest[i] or transport.is_closed:
                        transport.serve_events(events[i])
                    elif received[i] > 0:
                        (<Peer> transport.protocol).last_active = now
                        self.serve_bytes(transport, self.slots + i * SLOT_BYTES, received[i])
                    else:
                        transport.end_receive(received[i], errors[i])
                except Exception as e:
                    self.fail(transport, e)
            self.short.flush()
        finally:
            self.short.end_round()
        return 0

    cdef int serve_bytes(self, SocketTransport transport, const uint8_t* data, Py_ssize_t size) except -1:
        """Take the short requests at the start of received bytes, and deliver the rest to the protocol."""
        cdef Peer peer = <Peer> transport.protocol
        cdef ShortRequest request
        cdef Py_ssize_t position = 0
        cdef int count = 0
        while position < size and count < REQUESTS_MAX and not transport.is_closed and self.may_take(peer, count):
            request = read_frame(data, position, size)
            if request is None or not self.short.take(peer, request):
                break
            count += 1
            position = request.end
        if position < size:
            if count:
                self.short.flush()  # the protocol may begin longer writes
            if not transport.is_closed:
                transport.deliver(data + position, size - position)
        return 0

    cdef bint may_take(self, Peer peer, int count) except -1:
        """Return whether a connection, of which `count` short requests are collected, may have another one."""
        return (
            peer.is_at_rest() and len(peer.open) + count < peer.open_requests_max
            and peer.open_bytes < peer.open_bytes_max
        )

    cdef int fail(self, SocketTransport transport, error) except -1:
        """Report a failure of the protocol to the loop, and close the connection."""
        self.loop.call_exception_handler({
            "message": f"a connection from {transport.address} failed", "exception": error,
            "protocol": transport.protocol,
        })
        return transport.force_close(error)
