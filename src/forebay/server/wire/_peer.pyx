"""The state of a connection that decides whether its short requests are served at once.

A connection is *at rest* while its protocol would start a request at once: no earlier bytes are pending, the client
reads its responses, and neither the connection nor its stream has ended. Short requests are taken only from connections
at rest whose unanswered requests are below their limits.
"""
from forebay.server.wire.states import ConnectionState, Reading

cdef int SERVING = ConnectionState.SERVING
cdef int READING_ENDED = Reading.ENDED

OPEN_REQUEST_BYTES = OPEN_BYTES
"""Memory counted for each unanswered request in addition to its records, in bytes."""


cdef class Peer:
    """The state of a connection, as the base class of its protocol."""

    def __cinit__(self, *_, **__):
        cdef int i
        self.open = {}
        self.short_apis = [None, None, None]
        self.open_bytes_max = self.open_requests_max = 1
        for i in range(3):
            self.versions_max[i] = -1

    def offer_short(self, api, int version_min, int version_max):
        """Accept short requests of these versions of an API."""
        cdef int kind = kind_of(api.key)
        self.short_apis[kind] = api
        self.versions_min[kind] = version_min
        self.versions_max[kind] = version_max

    cdef bint takes_version(self, int kind, int version) noexcept:
        return self.versions_min[kind] <= version <= self.versions_max[kind]

    cdef bint is_connected(self) except -1:
        return self.is_open if self.transport is None else not self.transport.is_closed

    cdef bint is_at_rest(self) noexcept:
        return self.is_plain and self.state == SERVING and self.reading != READING_ENDED and not self.is_unread
