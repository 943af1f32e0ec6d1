"""The transport of one accepted connection, on the server's own epoll.

It behaves as asyncio's transport does. In addition, the answers to short requests that are collected in a round
(`forebay.server.wire._answer_batch`) are sent ahead of all later writes.

All methods belong to the thread of the event loop.
"""
import logging
import os
import socket as socket_module
from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, errno as c_errno
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from forebay.server.wire._epoll cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, epoll_change, recv, send,
)

cdef enum:
    UNLOCKED_BYTES_MIN = 16 << 10 # buffers above this size are sent and received without Python's lock
    HIGH_WATER = 64 << 10         # unsent bytes above which the protocol is paused; asyncio's default

_LOGGER = logging.getLogger(__name__)


cdef class SocketTransport:
    """The transport of one accepted connection. Its public methods are those of `asyncio.Transport`."""

    def __cinit__(self):
        self.fd = -1
        self.high_water = HIGH_WATER

    cdef int start(self) except -1:
        """Connect the protocol, and read unless it has closed the connection."""
        self.protocol.connection_made(self)
        if not self.is_closed:
            self.watch(self.events | EPOLLIN)
        return 0

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

    cdef int watch(self, unsigned int events) except -1:
        """Register these events with epoll instead of the current ones."""
        cdef int operation
        if events == self.events or self.fd < 0:
            return 0
        operation = EPOLL_CTL_ADD if not self.events else EPOLL_CTL_MOD if events else EPOLL_CTL_DEL
        if epoll_change(self.epoll, operation, self.fd, events) < 0:
            raise OSError(c_errno, os.strerror(c_errno))
        self.events = events
        return 0

    cdef int serve_events(self, unsigned int events) except -1:
        """Send and receive as asyncio does."""
        if self.events & EPOLLOUT and events & ~EPOLLIN:
            self.send_queued()
        if self.events & EPOLLIN and events & ~EPOLLOUT and not self.is_closed:
            self.receive()
        return 0

    # ---- reading ----------------------------------------------------------------------------------------------------

    def pause_reading(self):
        if not self.is_closed and not self.is_paused:
            self.is_paused = True
            self.watch(self.events & ~EPOLLIN)

    def resume_reading(self):
        if not self.is_closed and self.is_paused:
            self.is_paused = False
            self.watch(self.events | EPOLLIN)

    cdef int receive(self) except -1:
        """Receive into the protocol's own buffer."""
        cdef Py_buffer view
        cdef ssize_t received
        buffer = self.protocol.get_buffer(-1)
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            if view.len <= UNLOCKED_BYTES_MIN:
                received = recv(self.fd, view.buf, view.len, MSG_DONTWAIT)
            else:
                with nogil:
                    received = recv(self.fd, view.buf, view.len, MSG_DONTWAIT)
        finally:
            PyBuffer_Release(&view)
        del buffer
        if received > 0:
            self.protocol.buffer_updated(received)
        else:
            self.end_receive(received, c_errno)
        return 0

    cdef int end_receive(self, ssize_t received, int error) except -1:
        """Handle a `recv` that returned no bytes: the end of the stream (0) or an error (-1)."""
        if received < 0:
            if error != EAGAIN and error != EINTR:
                self.force_close(OSError(error, os.strerror(error)))
        elif self.protocol.eof_received():
            self.pause_reading()
            self.is_paused = False  # the protocol has not asked for it
        else:
            self.close()
        return 0

    cdef int deliver(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Copy received bytes to the protocol, until it closes the connection."""
        cdef Py_buffer view
        cdef Py_ssize_t copied
        while size and not self.is_closed:
            buffer = self.protocol.get_buffer(-1)
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
            copied = min(view.len, size)
            memcpy(view.buf, data, copied)
            PyBuffer_Release(&view)
            del buffer
            self.protocol.buffer_updated(copied)
            data += copied
            size -= copied
        return 0

    # ---- writing ----------------------------------------------------------------------------------------------------

    def write(self, data):
        """Send bytes. The caller must not change them afterwards, because the unsent part is not copied."""
        cdef Py_buffer view
        cdef ssize_t sent
        cdef int error
        if self.is_closed:
            return
        if self.answer is not None:
            self.send_answer()
            if self.is_closed:
                return
        if self.buffers is None:
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            try:
                if view.len <= UNLOCKED_BYTES_MIN:
                    sent = send(self.fd, view.buf, view.len, MSG_NOSIGNAL | MSG_DONTWAIT)
                else:
                    with nogil:
                        sent = send(self.fd, view.buf, view.len, MSG_NOSIGNAL | MSG_DONTWAIT)
                error = c_errno
                if sent == view.len:
                    return
            finally:
                PyBuffer_Release(&view)
            if not self.is_usable_after(sent, error):
                return
            data = memoryview(data)[max(sent, 0):]
        self.enqueue(data)

    def writelines(self, parts):
        self.write(b"".join(parts))

    cdef int send_answer(self) except -1:
        """Send the collected answer ahead of all else."""
        answer, self.answer = self.answer, None
        self.write(answer)
        return 0

    cdef bint is_usable_after(self, ssize_t sent, int error) except -1:
        """Close the connection if `send` returned a permanent error. Returns whether it is still open."""
        if sent < 0 and error != EAGAIN and error != EINTR:
            self.force_close(OSError(error, os.strerror(error)))
            return False
        return True

    cdef int enqueue(self, data) except -1:
        """Queue bytes until the socket is writable."""
        if self.buffers is None:
            self.buffers = deque()
        self.buffers.append(memoryview(data))
        self.unsent += len(data)
        self.watch(self.events | EPOLLOUT)
        if self.unsent > self.high_water and not self.is_writing_paused:
            self.is_writing_paused = True
            self.protocol.pause_writing()
        return 0

    cdef int send_queued(self) except -1:
        """Send queued bytes until the socket takes no more."""
        cdef Py_buffer view
        cdef ssize_t sent
        cdef int error
        while self.buffers:
            first = self.buffers[0]
            PyObject_GetBuffer(first, &view, PyBUF_SIMPLE)
            with nogil:
                sent = send(self.fd, view.buf, view.len, MSG_NOSIGNAL | MSG_DONTWAIT)
            error = c_errno
            PyBuffer_Release(&view)
            if not self.is_usable_after(sent, error) or sent < 0:
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
                self.shut_down_writing()
            if self.is_closed:
                self.schedule_end(None)
        return 0

    def write_eof(self):
        """Send the end of the stream after all earlier writes."""
        if not self.ends_writing:
            self.ends_writing = True
            if self.buffers is None:
                self.shut_down_writing()

    cdef int shut_down_writing(self) except -1:
        sock = socket_module.socket(fileno=self.fd)
        try:
            sock.shutdown(socket_module.SHUT_WR)
        finally:
            sock.detach()
        return 0

    # ---- closing ----------------------------------------------------------------------------------------------------

    def close(self):
        """Close after all earlier writes are sent."""
        if self.is_closed:
            return
        if self.answer is not None:
            self.send_answer()
            if self.is_closed:
                return
        self.is_closed = True
        self.watch(self.events & ~EPOLLIN)
        if self.buffers is None:
            self.schedule_end(None)

    def abort(self):
        """Close immediately; unsent bytes are lost."""
        self.force_close(None)

    cdef int force_close(self, error) except -1:
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            _LOGGER.debug("a connection from %s failed: %s", self.address, error)
        self.is_closed = True
        self.buffers, self.unsent = None, 0
        self.schedule_end(error)
        return 0

    cdef int schedule_end(self, error) except -1:
        """Unregister the socket, and call `connection_lost` in the next iteration of the loop."""
        if self.fd >= 0 and self.protocol is not None:
            self.watch(0)
            protocol, self.protocol = self.protocol, None
            self.loop.call_soon(self.end, protocol, error)
        return 0

    def end(self, protocol, error):
        fd, self.fd = self.fd, -1
        self.transports.pop(fd, None)
        try:
            protocol.connection_lost(error)
        finally:
            os.close(fd)
