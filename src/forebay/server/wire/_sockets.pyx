"""The server's sockets, and the groups of short requests that arrive on them.

Nouns: a *socket* is an accepted connection, and the transport of its protocol; a *peer* is the part of the protocol
that is known here. A *round* takes what has arrived on all sockets; a *group* is the short requests of a round that are
for one bucket. An asyncio transport costs 9 us of CPU for each request and its answer, of which the kernel needs 2.5,
and an iteration of the event loop costs as much again. So rounds are served where the loop waits for events
(`ServingLoop`), and an iteration only begins when something else is to be done.

Flow of a round (`Sockets.select`): one `epoll_wait`; one `recv` for each socket whose peer is at rest, without Python's
lock; short requests are read where they lie and collected in groups, and whatever else has come is given to the
protocol, as asyncio does; the groups are served (`ShortGroups.flush`); answers are sent, one `send` for each socket,
without Python's lock.

The rule: a socket behaves as asyncio's transport does, but for the short requests that its protocol never sees. These
are taken only while the protocol would start them at once: nothing else of it waits, and no limit is reached.

All methods belong to the thread of the event loop.
"""
import asyncio
import errno
import logging
import os
import selectors
import socket as socket_module
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, errno as c_errno
from libc.math cimport INFINITY, ceil
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from forebay.protocol._short cimport LOOKUP, PRODUCE_LOG, PUT_KV, ShortRequest, encode_written, read_frame
from forebay.server.wire._epoll cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, HAS_EPOLL, MSG_DONTWAIT, MSG_NOSIGNAL, epoll_change,
    epoll_take, epoll_watch, recv, send,
)

from forebay.server.wire.states import ConnectionState, Reading

cdef enum:
    SOCKETS_MAX = 64              # of a round: others have to wait for as long as they take
    SLOT_BYTES = 16 << 10         # that a round takes from each
    ROUNDS_MAX = 8                # before other callbacks of the loop have their turn
    TAKEN_MAX = 32                # short requests of one socket in a round
    COLLECTED_MAX = 256           # short requests before groups are served, and the bytes of their records
    COLLECTED_BYTES_MAX = 256 << 10
    ANSWER_BYTES_MAX = 1 << 20    # that wait for the end of a round
    UNLOCKED_BYTES_MIN = 16 << 10 # Python's lock is given up to send or receive so much
    HIGH_WATER = 64 << 10         # the protocol pauses with so much unsent, as with asyncio
    OPEN_BYTES = 8 << 10
    WAIT_MS_MAX = 1 << 30
    WATCH_NS = 40_000             # that a server looks for more before it sleeps
    WATCH_GAIN = 4                # so often in vain for each time that it has found something,
    WATCH_MAX = 64                # but not more often than this

cdef int SERVING = ConnectionState.SERVING, HELD = ConnectionState.HELD
cdef int READING_ON = Reading.ON, READING_ENDED = Reading.ENDED

AVAILABLE = bool(HAS_EPOLL)
"""Whether this system has what is needed here."""

OPEN_REQUEST_BYTES = OPEN_BYTES
"""The memory that any request without an answer counts as, beside its records."""

_LOGGER = logging.getLogger(__name__)

_LONE_SECONDS = 0.1
"""After this time in which no other socket has had anything to be served, a client is alone."""

_POLL_SECONDS = 5e-3
"""After this time other callbacks of the loop have their turn."""

_ACCEPTED_MAX = 100
_ACCEPT_PAUSE_SECONDS = 1.0
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


cdef inline int kind_of(int api_key) noexcept:
    return 0 if api_key == PRODUCE_LOG else 1 if api_key == PUT_KV else 2


cdef class Peer:
    """The state of a connection, as the base class of its protocol. Short requests are taken while the connection is at
    rest, `open_bytes` is below its limit, and `open` has fewer requests than its limit."""

    cdef public bint is_plain     # whether all that has arrived is served, and short requests may be
    cdef public bint is_unread    # whether the peer does not read what was sent
    cdef public int state, reading  # `ConnectionState` and `Reading` of forebay.server.wire.states
    cdef public Py_ssize_t open_bytes, open_bytes_max, open_requests_max
    cdef public dict open         # requests without an answer, by id
    cdef public double last_active
    cdef Socket socket            # None: another kind of transport
    cdef int versions_min[3]
    cdef int versions_max[3]
    cdef list short_apis

    def __cinit__(self, *_, **__):
        cdef int i
        self.open = {}
        self.short_apis = [None, None, None]
        self.open_bytes_max = self.open_requests_max = 1
        for i in range(3):
            self.versions_max[i] = -1

    def offer_short(self, api, int version_min, int version_max):
        """Take short requests of an API, of these versions."""
        cdef int kind = kind_of(api.key)
        self.short_apis[kind] = api
        self.versions_min[kind] = version_min
        self.versions_max[kind] = version_max

    cdef bint is_connected(self) except -1:
        return self.is_open if self.socket is None else not self.socket.is_closed

    cdef bint is_at_rest(self) noexcept:
        return self.is_plain and self.state == SERVING and self.reading != READING_ENDED and not self.is_unread


# ---- groups ---------------------------------------------------------------------------------------------------------


cdef class Group:
    """Short requests for one bucket, whose replica stays open until `left` is 0: while the group is served, and until
    the last one of its writes that wait for a write queue is written."""

    cdef readonly object replica
    cdef readonly bint has_kv
    cdef readonly list lookups
    cdef readonly list writes
    cdef readonly Py_ssize_t bytes
    cdef public int left

    def __init__(self, replica, bint has_kv):
        self.replica = replica
        self.has_kv = has_kv
        self.lookups = []
        self.writes = []
        self.bytes = 0
        self.left = 1


cdef class ShortGroups:
    """Collects short requests. Subclasses serve the groups."""

    cdef dict groups
    cdef Py_ssize_t count, bytes
    cdef Sockets round            # set while one collects
    cdef Sockets sockets          # None: another kind of transport
    cdef readonly object loop, request_pool

    def __init__(self, loop, request_pool):
        """`request_pool`: memory for requests (`forebay.server.flow.memory_pool.MemoryPool`)."""
        self.loop = loop
        self.request_pool = request_pool
        self.groups = {}

    @property
    def has_lone_client(self):
        """Whether the round is of a client that is alone, and has been for a while: others would not wait for it."""
        return self.round is not None and self.round.is_lone

    def may_begin(self):
        """Whether short requests may be served at the moment."""
        raise NotImplementedError

    def may_begin_round(self):
        """Whether they may be before all that waits for its turn."""
        raise NotImplementedError

    def begin_group(self, bucket):
        """A `Group` for a bucket whose replica is open, or None."""
        raise NotImplementedError

    def serve_groups(self, groups):
        """Serve all requests of the groups."""
        raise NotImplementedError

    cpdef bint take(self, Peer peer, ShortRequest request) except -1:
        """Take the peer's next request, to be served in this iteration of the event loop; False, and nothing is done,
        if it is for its handler."""
        cdef bint is_first
        if self.count >= COLLECTED_MAX or self.bytes >= COLLECTED_BYTES_MAX:
            self.flush()
        is_first = self.count == 0 and self.round is None  # a round has asked
        if (is_first and not self.may_begin()) or not self.collect(peer, request):
            return False
        if is_first:
            self.loop.call_soon(self.flush)
        return True

    cdef bint collect(self, Peer peer, ShortRequest request) except -1:
        cdef int kind = kind_of(request.api_key)
        cdef Group group
        if not peer.versions_min[kind] <= request.api_version <= peer.versions_max[kind]:
            return False
        if request.request_id in peer.open:
            return False
        group = self.groups.get(request.bucket)
        if group is None:
            group = self.begin_group(request.bucket)
            if group is None:
                return False
            self.groups[request.bucket] = group
        if kind == 2:
            if not group.has_kv:
                return False
            group.lookups.append(request)
        else:
            if (request.acks != -1 and request.acks != 1) or group.has_kv != (kind == 1):
                return False
            group.writes.append(request)
            group.bytes += PyBytes_GET_SIZE(request.records)
            self.bytes += PyBytes_GET_SIZE(request.records)
        request.client = peer
        self.count += 1
        return True

    cpdef flush(self):
        """Serve what was collected."""
        cdef dict groups = self.groups
        if not groups:
            return
        self.groups = {}
        self.count = self.bytes = 0
        self.serve_groups(list(groups.values()))

    cpdef answer(self, ShortRequest request, bytes frame):
        """Send the frame that answers a request."""
        cdef Peer peer = <Peer?> request.client
        cdef Socket socket = peer.socket
        if socket is None or peer.is_unread:
            peer.send_frame(frame)
        elif self.round is None:
            socket.write(frame)
        else:
            if socket.answer is None:
                socket.answer = frame
                self.round.touched.append(socket)
            else:
                socket.answer += frame
            self.round.answer_bytes += PyBytes_GET_SIZE(frame)
            if self.round.answer_bytes >= ANSWER_BYTES_MAX:
                self.round.send_answers()
        if peer.state == HELD:
            peer.balance()

    def answer_written(self, list requests, results):
        """Answer the writes with their offsets, where these are no errors; return the others, with their results."""
        cdef ShortRequest request
        cdef Py_ssize_t i
        cdef list failed = []
        cdef bint is_round = self.round is None and self.sockets is not None and len(requests) > 1
        if is_round:
            self.round = self.sockets
        try:
            for i, result in enumerate(results):
                request = requests[i]
                if isinstance(result, Exception) or result.error is not None:
                    failed.append((request, result))
                else:
                    self.answer(request, encode_written(
                        request, result.base_offset if request.api_key == PRODUCE_LOG else result.log_end_offset
                    ))
        finally:
            if is_round:
                self.round = None
                self.sockets.send_answers()
        return failed

    # ---- writes that wait for a queue -------------------------------------------------------------------------------

    def open_waiting(self, list requests):
        """Open writes, and count their memory, until `release_waiting`.

        The id of each was free when it was taken. What its client has sent after it may have opened the id since, and
        must keep it: the connection ends, as it does for any id that is used twice.
        """
        cdef ShortRequest request
        cdef Peer peer
        cdef Py_ssize_t size, total = 0
        for request in requests:
            peer = request.client
            if peer.is_connected():
                if request.request_id in peer.open:
                    peer.end_reused(request.request_id)
                else:
                    peer.open[request.request_id] = peer.short_apis[kind_of(request.api_key)]
            size = PyBytes_GET_SIZE(request.records) + OPEN_BYTES
            peer.open_bytes += size
            total += size
        self.request_pool.take(total)

    def close_waiting(self, list requests, set late):
        """Close writes before they are answered, but for `late` ones; the places of those whose clients still want
        the answer."""
        cdef ShortRequest request
        cdef Py_ssize_t i
        cdef list wanted = []
        for i, request in enumerate(requests):
            if late is not None and request in late:
                continue
            if (<Peer?> request.client).open.pop(request.request_id, requests) is not requests:
                wanted.append(i)
        return wanted

    def release_waiting(self, list requests):
        """Release the memory of writes; clients that have waited for it are read from again."""
        cdef ShortRequest request
        cdef Peer peer
        cdef Py_ssize_t size, total = 0
        for request in requests:
            size = PyBytes_GET_SIZE(request.records) + OPEN_BYTES
            (<Peer?> request.client).open_bytes -= size
            total += size
        self.request_pool.give(total)
        for request in requests:
            peer = request.client
            if peer.state == HELD or peer.reading != READING_ON:
                peer.balance()


# ---- sockets --------------------------------------------------------------------------------------------------------


cdef class Socket:
    """The transport of one accepted connection. Its methods are those of asyncio's."""

    cdef Sockets sockets
    cdef object protocol          # None: `connection_lost` was called
    cdef Peer peer
    cdef object address
    cdef readonly int fd          # -1 once it is closed
    cdef unsigned int events      # that epoll watches for; 0: it does not know the socket
    cdef object buffers           # a deque of what is not sent yet, or None
    cdef Py_ssize_t unsent, high_water
    cdef bint is_paused, is_closed, is_writing_paused, ends_writing
    cdef bytes answer             # of the round

    def get_extra_info(self, name, default=None):
        return self.address if name == "peername" else default

    def is_closing(self):
        return self.is_closed

    def get_write_buffer_size(self):
        return self.unsent

    def set_write_buffer_limits(self, Py_ssize_t high):
        self.high_water = high

    def can_write_eof(self):
        return True

    # ---- reading ----------------------------------------------------------------------------------------------------

    def pause_reading(self):
        if not self.is_closed and not self.is_paused:
            self.is_paused = True
            self.watch(self.events & ~EPOLLIN)

    def resume_reading(self):
        if not self.is_closed and self.is_paused:
            self.is_paused = False
            self.watch(self.events | EPOLLIN)

    cdef int watch(self, unsigned int events) except -1:
        cdef int operation
        if events == self.events or self.fd < 0:
            return 0
        operation = EPOLL_CTL_ADD if not self.events else EPOLL_CTL_MOD if events else EPOLL_CTL_DEL
        if epoll_change(self.sockets.epoll, operation, self.fd, events) < 0:
            raise OSError(c_errno, os.strerror(c_errno))
        self.events = events
        return 0

    cdef int receive(self) except -1:
        """Receive into the protocol's own buffer."""
        cdef Py_buffer held
        cdef ssize_t received
        room = self.protocol.get_buffer(-1)
        PyObject_GetBuffer(room, &held, PyBUF_WRITABLE)
        try:
            if held.len <= UNLOCKED_BYTES_MIN:
                received = recv(self.fd, held.buf, held.len, MSG_DONTWAIT)
            else:
                with nogil:
                    received = recv(self.fd, held.buf, held.len, MSG_DONTWAIT)
        finally:
            PyBuffer_Release(&held)
        del room
        if received > 0:
            self.protocol.buffer_updated(received)
        else:
            self.received_nothing(received, c_errno)
        return 0

    cdef int received_nothing(self, ssize_t received, int error) except -1:
        if received < 0:
            if error != EAGAIN and error != EINTR:
                self.lose(OSError(error, os.strerror(error)))
        elif self.protocol.eof_received():
            self.pause_reading()
            self.is_paused = False  # the protocol has not asked for it
        else:
            self.close()
        return 0

    cdef int give(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Hand bytes that have been received to the protocol."""
        cdef Py_buffer held
        cdef Py_ssize_t taken
        while size and not self.is_closed:
            room = self.protocol.get_buffer(-1)
            PyObject_GetBuffer(room, &held, PyBUF_WRITABLE)
            taken = min(held.len, size)
            memcpy(held.buf, data, taken)
            PyBuffer_Release(&held)
            del room
            self.protocol.buffer_updated(taken)
            data += taken
            size -= taken
        return 0

    # ---- writing ----------------------------------------------------------------------------------------------------

    def write(self, data):
        """Send bytes, which must not change from now on."""
        cdef Py_buffer held
        cdef ssize_t sent
        cdef int error
        if self.is_closed:
            return
        if self.answer is not None:
            self.sockets.send_answer(self)
            if self.is_closed:
                return
        if self.buffers is None:
            PyObject_GetBuffer(data, &held, PyBUF_SIMPLE)
            try:
                if held.len <= UNLOCKED_BYTES_MIN:
                    sent = send(self.fd, held.buf, held.len, MSG_NOSIGNAL | MSG_DONTWAIT)
                else:
                    with nogil:
                        sent = send(self.fd, held.buf, held.len, MSG_NOSIGNAL | MSG_DONTWAIT)
                error = c_errno
                if sent == held.len:
                    return
            finally:
                PyBuffer_Release(&held)
            if not self.has_sent(sent, error):
                return
            data = memoryview(data)[max(sent, 0):]
        self.keep(data)

    def writelines(self, parts):
        self.write(b"".join(parts))

    cdef bint has_sent(self, ssize_t sent, int error) except -1:
        """Whether the socket can go on after `send` has returned `sent`."""
        if sent < 0 and error != EAGAIN and error != EINTR:
            self.lose(OSError(error, os.strerror(error)))
            return False
        return True

    cdef int keep(self, data) except -1:
        """Keep what cannot be sent yet."""
        if self.buffers is None:
            self.buffers = deque()
        self.buffers.append(memoryview(data))
        self.unsent += len(data)
        self.watch(self.events | EPOLLOUT)
        if self.unsent > self.high_water and not self.is_writing_paused:
            self.is_writing_paused = True
            self.protocol.pause_writing()
        return 0

    cdef int send_kept(self) except -1:
        cdef Py_buffer held
        cdef ssize_t sent
        cdef int error
        while self.buffers:
            first = self.buffers[0]
            PyObject_GetBuffer(first, &held, PyBUF_SIMPLE)
            with nogil:
                sent = send(self.fd, held.buf, held.len, MSG_NOSIGNAL | MSG_DONTWAIT)
            error = c_errno
            PyBuffer_Release(&held)
            if not self.has_sent(sent, error) or sent < 0:
                return 0
            self.unsent -= sent
            if sent < len(first):
                self.buffers[0] = first[sent:]
                break
            self.buffers.popleft()
        if not self.buffers:
            self.buffers = None
            self.watch(self.events & ~EPOLLOUT)
        if self.is_writing_paused and self.unsent <= self.high_water // 4:
            self.is_writing_paused = False
            self.protocol.resume_writing()
        if self.buffers is None:
            if self.ends_writing:
                self.shut_down()
            if self.is_closed:
                self.end(None)
        return 0

    def write_eof(self):
        """Send the end of the stream after all that is written."""
        if not self.ends_writing:
            self.ends_writing = True
            if self.buffers is None:
                self.shut_down()

    cdef int shut_down(self) except -1:
        peer = socket_module.socket(fileno=self.fd)
        try:
            peer.shutdown(socket_module.SHUT_WR)
        finally:
            peer.detach()
        return 0

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self):
        """Close once all that is written is sent."""
        if self.is_closed:
            return
        if self.answer is not None:
            self.sockets.send_answer(self)
            if self.is_closed:
                return
        self.is_closed = True
        self.watch(self.events & ~EPOLLIN)
        if self.buffers is None:
            self.end(None)

    def abort(self):
        """Close at once."""
        self.lose(None)

    cdef int lose(self, error) except -1:
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            _LOGGER.debug("a connection from %s failed: %s", self.address, error)
        self.is_closed = True
        self.buffers, self.unsent = None, 0
        self.end(error)
        return 0

    cdef int end(self, error) except -1:
        """Let the protocol know, in the next iteration of the loop; epoll forgets the socket."""
        if self.fd >= 0 and self.protocol is not None:
            self.watch(0)
            self.peer.is_plain = False
            protocol, self.protocol = self.protocol, None
            self.sockets.loop.call_soon(self.finish, protocol, error)
        return 0

    def finish(self, protocol, error):
        fd, self.fd = self.fd, -1
        self.sockets.all.pop(fd, None)
        self.peer.socket = None
        self.peer = None
        try:
            protocol.connection_lost(error)
        finally:
            os.close(fd)


class _Selector(getattr(selectors, "EpollSelector", selectors.DefaultSelector)):
    """Serves sockets while it waits for other events."""

    sockets = None

    def select(self, timeout=None):
        sockets = self.sockets
        if sockets is None:
            return super().select(timeout)
        found = []
        keys = self.get_map()
        for fd, events in sockets.select(timeout):
            key = keys.get(fd)
            if key is not None:
                mask = (selectors.EVENT_READ if events & ~EPOLLOUT else 0) | (
                    selectors.EVENT_WRITE if events & ~EPOLLIN else 0
                )
                found.append((key, mask & key.events))
        return found


class ServingLoop(asyncio.SelectorEventLoop):
    """An event loop for `Sockets`; where these are not available, it is like any other."""

    def __init__(self):
        self.selector = _Selector()
        super().__init__(self.selector)

    def call_soon(self, callback, *args, context=None):
        self.end_select()
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        self.end_select()
        return super().call_at(when, callback, *args, context=context)

    def stop(self):
        self.end_select()
        super().stop()

    def end_select(self):
        """Begin an iteration of the loop after the round that is being served, if one is."""
        if self.selector.sockets is not None:
            self.selector.sockets.is_wanted = True


cdef class Sockets:
    """All sockets of a server, and the listening ones, on one `ServingLoop`."""

    cdef object loop, selector
    cdef object monotonic
    cdef object loop_time         # the clock of `timeout`, which is the machine's whatever clock is injected
    cdef ShortGroups short
    cdef int epoll                # the selector's
    cdef public bint is_wanted    # by the loop, which has something else to do
    cdef dict all                 # by file descriptor
    cdef list touched             # sockets with an answer of the round
    cdef Py_ssize_t answer_bytes
    cdef uint8_t* slots
    cdef set listening
    cdef unsigned int asked       # whether it is worth watching
    cdef int credit               # how often this may still be in vain
    cdef int lone                 # the only file descriptor that was served since then
    cdef double lone_since
    cdef bint is_lone             # long enough

    def __cinit__(self):
        self.slots = <uint8_t*> malloc(SOCKETS_MAX * SLOT_BYTES)
        if self.slots == NULL:
            raise MemoryError()

    def __init__(self, loop, clock, ShortGroups short):
        self.loop, self.loop_time = loop, loop.time
        self.monotonic = clock.monotonic
        self.short = short
        short.sockets = self
        self.all = {}
        self.touched = []
        self.listening = set()
        self.lone = -1
        self.selector = loop.selector
        self.epoll = self.selector.fileno()
        self.selector.sockets = self

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return len(self.all)

    # ---- listening --------------------------------------------------------------------------------------------------

    def listen(self, sock, factory):
        """Accept connections on a bound socket; `factory` returns the protocol of each."""
        sock.setblocking(False)
        sock.listen(_ACCEPTED_MAX)
        self.listening.add(sock)
        self.loop.add_reader(sock, self.accept, sock, factory)

    def accept(self, sock, factory):
        for _ in range(_ACCEPTED_MAX):
            try:
                accepted, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _OUT_OF_FILES:
                    raise
                _LOGGER.error("cannot accept connections, and will try again: %s", e)
                self.loop.remove_reader(sock)
                self.loop.call_later(_ACCEPT_PAUSE_SECONDS, self.accept_again, sock, factory)
                return
            self.begin(accepted, address, factory)

    def accept_again(self, sock, factory):
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

    cdef int begin(self, accepted, address, factory) except -1:
        cdef Socket socket = Socket.__new__(Socket)
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket_module.IPPROTO_TCP, socket_module.TCP_NODELAY, 1)
        except OSError:  # it is gone already
            accepted.close()
            return 0
        socket.sockets, socket.high_water = self, HIGH_WATER
        socket.address = address
        socket.fd = accepted.detach()
        self.all[socket.fd] = socket
        socket.protocol = socket.peer = factory()
        socket.peer.socket = socket
        socket.protocol.connection_made(socket)
        if not socket.is_closed:
            socket.watch(socket.events | EPOLLIN)
        return 0

    async def close(self):
        """Close all sockets at once."""
        self.stop_listening()
        for each in list(self.all.values()):
            each.abort()
        while self.all:  # protocols learn of it in the next iteration
            await asyncio.sleep(0)
        self.selector.sockets = None

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def select(self, timeout):
        """Serve what arrives until the loop has something else to do; the other events that have come meanwhile, as
        `selectors.BaseSelector.select` returns them. `timeout` in seconds; None: without a limit."""
        cdef int fds[SOCKETS_MAX]
        cdef unsigned int events[SOCKETS_MAX]
        cdef int n, served = 0, i, rounds = 0, wait_ms
        cdef double now, deadline = INFINITY, busy_until = 0.0
        cdef list others = []
        self.is_wanted = False
        if timeout is not None:
            deadline = self.loop_time() + timeout if timeout > 0 else 0.0
        while True:
            wait_ms = 0
            if not rounds and deadline > 0.0:
                wait_ms = -1
                if deadline < INFINITY:  # rounded up: a timer that is not due yet would be asked for again and again
                    wait_ms = max(0, min(<int> ceil((deadline - self.loop_time()) * 1e3), WAIT_MS_MAX))
            n = 0
            if served or not wait_ms:
                n = epoll_take(self.epoll, SOCKETS_MAX, 0, fds, events)
                if n == 0 and served and not self.is_wanted and self.is_worth_watching():
                    with nogil:
                        n = epoll_watch(self.epoll, SOCKETS_MAX, WATCH_NS, fds, events)
                    self.credit = min(self.credit + WATCH_GAIN, WATCH_MAX) if n > 0 else max(self.credit - 1, 0)
            if n == 0 and wait_ms:
                with nogil:
                    n = epoll_take(self.epoll, SOCKETS_MAX, wait_ms, fds, events)
            if n < 0:
                if c_errno != EINTR:
                    raise OSError(c_errno, os.strerror(c_errno))
                PyErr_CheckSignals()
                return others
            served = 0
            for i in range(n):
                if fds[i] in self.all:
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
                    busy_until = now + _POLL_SECONDS
                rounds += 1
                if now < busy_until:
                    continue
            rounds = 0
            if others or self.is_wanted or deadline < INFINITY and self.loop_time() >= deadline:
                return others

    cdef bint is_worth_watching(self) noexcept:
        """Whether to look for more for a moment before this thread sleeps.

        A client whose answer has come needs a few microseconds for its next request, and waking a core that has begun
        to sleep takes tens of them. On a machine that the clients share, the kernel also wakes them on this core if
        this thread sleeps at once: then both never run at the same time. It is in vain where clients do something else
        between their requests; then it is tried once in a while.
        """
        self.asked += 1
        return self.credit > 0 or self.asked % WATCH_MAX == 0

    cdef int serve_round(self, int* fds, unsigned int* events, int n) except -1:
        cdef ssize_t received[SOCKETS_MAX]
        cdef int errors[SOCKETS_MAX]
        cdef bint at_rest[SOCKETS_MAX]
        cdef int i
        cdef double now
        cdef Socket socket
        may_begin = self.short.may_begin_round()
        for i in range(n):
            socket = self.all.get(fds[i])
            at_rest[i] = (
                may_begin and socket is not None and not socket.is_closed and socket.events & EPOLLIN
                and events[i] & ~EPOLLOUT and socket.buffers is None and socket.peer.is_at_rest()
            )
        with nogil:
            for i in range(n):
                if at_rest[i]:
                    received[i] = recv(fds[i], self.slots + i * SLOT_BYTES, SLOT_BYTES, MSG_DONTWAIT)
                    errors[i] = c_errno
        now = self.monotonic()
        if n != 1 or fds[0] != self.lone:
            self.lone, self.lone_since = fds[0], now
        self.is_lone = now - self.lone_since >= _LONE_SECONDS
        self.short.round = self
        try:
            for i in range(n):
                socket = self.all.get(fds[i])
                if socket is None or socket.protocol is None:
                    continue
                try:
                    if at_rest[i] and not socket.is_closed:
                        if received[i] > 0:
                            socket.peer.last_active = now
                            self.take(socket, self.slots + i * SLOT_BYTES, received[i])
                        else:
                            socket.received_nothing(received[i], errors[i])
                    else:
                        self.happened(socket, events[i])
                except Exception as e:
                    self.failed(socket, e)
            self.short.flush()
        finally:
            self.short.round = None
            self.send_answers()
        return 0

    cdef int happened(self, Socket socket, unsigned int events) except -1:
        """Send and receive as asyncio does."""
        if socket.events & EPOLLOUT and events & ~EPOLLIN:
            socket.send_kept()
        if socket.events & EPOLLIN and events & ~EPOLLOUT and not socket.is_closed:
            socket.receive()
        return 0

    cdef int take(self, Socket socket, const uint8_t* data, Py_ssize_t size) except -1:
        """Take the short requests that have arrived; what begins otherwise is given to the protocol."""
        cdef Peer peer = socket.peer
        cdef ShortRequest request
        cdef Py_ssize_t position = 0
        cdef int taken = 0
        while position < size and taken < TAKEN_MAX and self.may_take(peer, taken):
            request = read_frame(data, position, size)
            if request is None or not self.short.take(peer, request):
                break
            taken += 1
            position = request.end
        if position < size:
            if taken:
                self.short.flush()  # the protocol may begin longer writes
            if not socket.is_closed:
                socket.give(data + position, size - position)
        return 0

    cdef bint may_take(self, Peer peer, int taken) except -1:
        return (
            peer.is_at_rest() and len(peer.open) + taken < peer.open_requests_max
            and peer.open_bytes < peer.open_bytes_max
        )

    cdef int failed(self, Socket socket, error) except -1:
        self.loop.call_exception_handler({
            "message": f"a connection from {socket.address} failed", "exception": error, "protocol": socket.protocol,
        })
        socket.lose(error)
        return 0

    cdef int send_answer(self, Socket socket) except -1:
        """Send the answer of the round ahead of all else."""
        answer, socket.answer = socket.answer, None
        socket.write(answer)
        return 0

    cdef int send_answers(self) except -1:
        """Send the answers of the round, most of which go out at once."""
        cdef int fds[SOCKETS_MAX]
        cdef const char* data[SOCKETS_MAX]
        cdef Py_ssize_t sizes[SOCKETS_MAX]
        cdef ssize_t sent[SOCKETS_MAX]
        cdef int errors[SOCKETS_MAX]
        cdef int n = 0, i
        cdef Socket socket
        cdef list sockets = [], answers = [], touched = self.touched
        cdef bytes answer
        self.touched = []
        self.answer_bytes = 0
        for socket in touched:
            if socket.answer is None:
                continue
            if n == SOCKETS_MAX or socket.is_closed or socket.buffers is not None:
                self.send_answer(socket)
                continue
            answer, socket.answer = socket.answer, None  # it may be among the touched ones again
            fds[n], data[n], sizes[n] = socket.fd, PyBytes_AS_STRING(answer), PyBytes_GET_SIZE(answer)
            sockets.append(socket)
            answers.append(answer)
            n += 1
        with nogil:
            for i in range(n):
                sent[i] = send(fds[i], data[i], sizes[i], MSG_NOSIGNAL | MSG_DONTWAIT)
                errors[i] = c_errno
        for i in range(n):
            socket = sockets[i]
            if sent[i] != sizes[i] and socket.has_sent(sent[i], errors[i]):
                socket.keep(memoryview(answers[i])[max(sent[i], 0):])
        return 0
