"""Answers to short requests that are collected while a round is served.

The answers of one connection are joined, so each connection costs one `send`. All calls run without Python's lock.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport errno as c_errno

from forebay.server.wire._epoll cimport MSG_DONTWAIT, MSG_NOSIGNAL, send
from forebay.server.wire._transport cimport SocketTransport

cdef enum:
    CONNECTIONS_MAX = 64          # connections whose answers are sent without Python's lock; others are sent one by one
    BYTES_MAX = 1 << 20           # collected bytes at which a batch is sent before the end of its round


cdef class AnswerBatch:
    """The answers of the current round, by connection."""

    def __cinit__(self):
        self.transports = []

    cdef int add(self, SocketTransport transport, bytes frame) except -1:
        """Collect an answer. A batch that has become large is sent."""
        if transport.answer is None:
            transport.answer = frame
            self.transports.append(transport)
        else:
            transport.answer += frame
        self.bytes += PyBytes_GET_SIZE(frame)
        if self.bytes >= BYTES_MAX:
            self.send_all()
        return 0

    cdef int send_all(self) except -1:
        """Send the collected answers. Their connections queue the bytes that their sockets do not take."""
        cdef int fds[CONNECTIONS_MAX]
        cdef const char* data[CONNECTIONS_MAX]
        cdef Py_ssize_t sizes[CONNECTIONS_MAX]
        cdef ssize_t sent[CONNECTIONS_MAX]
        cdef int errors[CONNECTIONS_MAX]
        cdef int n = 0, i
        cdef SocketTransport transport
        cdef list sending = [], answers = [], transports = self.transports
        cdef bytes answer
        self.transports = []
        self.bytes = 0
        for transport in transports:
            if transport.answer is None:
                continue
            if n == CONNECTIONS_MAX or transport.is_closed or transport.buffers is not None:
                transport.send_answer()
                continue
            answer, transport.answer = transport.answer, None  # the list may name the transport twice
            fds[n], data[n], sizes[n] = transport.fd, PyBytes_AS_STRING(answer), PyBytes_GET_SIZE(answer)
            sending.append(transport)
            answers.append(answer)
            n += 1
        with nogil:
            for i in range(n):
                sent[i] = send(fds[i], data[i], sizes[i], MSG_NOSIGNAL | MSG_DONTWAIT)
                errors[i] = c_errno
        for i in range(n):
            transport = sending[i]
            if sent[i] != sizes[i] and transport.is_usable_after(sent[i], errors[i]):
                transport.enqueue(memoryview(answers[i])[max(sent[i], 0):])
        return 0
