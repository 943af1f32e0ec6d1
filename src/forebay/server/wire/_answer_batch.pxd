# The answers of a round, one `send` for each connection. See _answer_batch.pyx.
from forebay.server.wire._transport cimport SocketTransport

cdef class AnswerBatch:
    cdef list transports          # with an answer to send
    cdef Py_ssize_t bytes

    cdef int add(self, SocketTransport transport, bytes frame) except -1
    cdef int send_all(self) except -1
