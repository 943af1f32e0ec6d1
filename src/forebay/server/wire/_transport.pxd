# The transport of an accepted connection. See _transport.pyx.
from libc.stdint cimport uint8_t

cdef class SocketTransport:
    cdef object loop
    cdef dict transports          # of the server, by file descriptor; holds this transport until its descriptor is closed
    cdef object protocol          # None once the end of the connection is scheduled
    cdef object address           # of the client
    cdef int epoll                # file descriptor
    cdef readonly int fd          # -1 once it is closed
    cdef unsigned int events      # that epoll watches for; 0: the socket is not registered
    cdef object buffers           # a deque of unsent memoryviews, or None
    cdef Py_ssize_t unsent, high_water  # bytes
    cdef bint is_paused, is_closed, is_writing_paused, ends_writing
    cdef bytes answer             # collected in the current round, or None

    cdef int start(self) except -1
    cdef int watch(self, unsigned int events) except -1
    cdef int serve_events(self, unsigned int events) except -1
    cdef int receive(self) except -1
    cdef int end_receive(self, ssize_t received, int error) except -1
    cdef int deliver(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int send_answer(self) except -1
    cdef bint is_usable_after(self, ssize_t sent, int error) except -1
    cdef int enqueue(self, data) except -1
    cdef int send_queued(self) except -1
    cdef int shut_down_writing(self) except -1
    cdef int force_close(self, error) except -1
    cdef int schedule_end(self, error) except -1
