# The state of a connection as its short requests see it. See _peer.pyx.
from forebay.protocol._short cimport PRODUCE_LOG, PUT_KV
from forebay.server.wire._transport cimport SocketTransport

cdef enum:
    OPEN_BYTES = 8 << 10          # memory counted for each unanswered request in addition to its records

cdef enum:                        # kinds of short requests
    APPEND = 0
    PUT = 1
    LOOK_UP = 2

cdef inline int kind_of(int api_key) noexcept:
    return APPEND if api_key == PRODUCE_LOG else PUT if api_key == PUT_KV else LOOK_UP

cdef class Peer:
    cdef public bint is_plain     # whether all received bytes are served, so that a short request may follow
    cdef public bint is_unread    # whether the client does not read its responses
    cdef public int state, reading  # `ConnectionState` and `Reading` of forebay.server.wire.states
    cdef public Py_ssize_t open_bytes, open_bytes_max, open_requests_max
    cdef public dict open         # the APIs of unanswered requests, by request id
    cdef public double last_active  # seconds of the monotonic clock
    cdef SocketTransport transport  # None: asyncio's transport
    cdef int versions_min[3]      # by kind of request
    cdef int versions_max[3]
    cdef list short_apis

    cdef bint takes_version(self, int kind, int version) noexcept
    cdef bint is_connected(self) except -1
    cdef bint is_at_rest(self) noexcept
