"""Short requests of one round or iteration of the event loop, grouped by bucket, and their answers.

A *group* is the short requests for one bucket. Groups are served together (`ShortGroups.flush`), so that a bucket is
accessed once. Writes that wait for a write queue, and requests whose answers wait for the store, are open, and count as
memory, until they are answered.

All methods belong to the thread of the event loop.
"""
from cpython.bytes cimport PyBytes_GET_SIZE

from forebay.protocol._short cimport PRODUCE_LOG, ShortRequest, encode_written
from forebay.server.wire._answer_batch cimport AnswerBatch
from forebay.server.wire._peer cimport LOOK_UP, OPEN_BYTES, PUT, Peer, kind_of
from forebay.server.wire._transport cimport SocketTransport

from forebay.server.wire.states import ConnectionState, Reading

cdef enum:
    COLLECTED_MAX = 256           # collected short requests at which the groups are served
    COLLECTED_BYTES_MAX = 256 << 10 # bytes of collected records at which the groups are served

cdef int HELD = ConnectionState.HELD
cdef int READING_ON = Reading.ON


cdef inline Py_ssize_t memory_of(ShortRequest request):
    """The memory that an unanswered request counts as."""
    return OPEN_BYTES if request.records is None else OPEN_BYTES + PyBytes_GET_SIZE(request.records)


cdef class Group:
    """Short requests for one bucket.

    The replica stays open until `left` is 0: the group counts once while it is served, and once until its queued
    writes are written.
    """

    cdef readonly object replica
    cdef readonly bint has_kv
    cdef readonly list lookups
    cdef readonly list writes
    cdef readonly Py_ssize_t bytes  # of the records of writes
    cdef public int left

    def __init__(self, replica, bint has_kv):
        self.replica = replica
        self.has_kv = has_kv
        self.lookups = []
        self.writes = []
        self.bytes = 0
        self.left = 1


cdef class ShortGroups:
    """Collects short requests in groups. Subclasses serve the groups."""

    def __init__(self, loop, request_pool):
        """`request_pool`: memory for requests (`forebay.server.flow.memory_pool.MemoryPool`)."""
        self.loop = loop
        self.request_pool = request_pool
        self.groups = {}

    def may_begin(self):
        """Return whether short requests may be served at the moment."""
        raise NotImplementedError

    def may_begin_round(self):
        """Return whether the short requests of a round may be served ahead of all waiting requests."""
        raise NotImplementedError

    def begin_group(self, bucket):
        """Return a `Group` for a bucket whose replica is open, or None."""
        raise NotImplementedError

    def serve_groups(self, groups):
        """Serve all requests of the groups."""
        raise NotImplementedError

    # ---- collecting -------------------------------------------------------------------------------------------------

    cdef int begin_round(self, bint has_lone_client) except -1:
        """Collect the answers of a round. `has_lone_client`: no other client would wait for a long write."""
        self.is_batching, self.has_lone_client = True, has_lone_client
        return 0

    cdef int end_round(self) except -1:
        """Send the answers of the round."""
        self.is_batching = self.has_lone_client = False
        return self.batch.send_all()

    cpdef bint take(self, Peer peer, ShortRequest request) except -1:
        """Take the next request of a connection, to be served in this iteration of the event loop. Return False,
        without effect, if the request has to go to its handler."""
        cdef bint is_first
        if self.count >= COLLECTED_MAX or self.bytes >= COLLECTED_BYTES_MAX:
            self.flush()
        is_first = self.count == 0 and not self.is_batching  # a round has called `may_begin_round`
        if (is_first and not self.may_begin()) or not self.collect(peer, request):
            return False
        if is_first:
            self.loop.call_soon(self.flush)
        return True

    cdef bint collect(self, Peer peer, ShortRequest request) except -1:
        """Add a request to the group of its bucket, unless it has to go to its handler."""
        cdef int kind = kind_of(request.api_key)
        cdef Group group
        if not peer.takes_version(kind, request.api_version):
            return False
        if request.request_id in peer.open:
            return False
        group = self.groups.get(request.bucket)
        if group is None:
            group = self.begin_group(request.bucket)
            if group is None:
                return False
            self.groups[request.bucket] = group
        if kind == LOOK_UP:
            if not group.has_kv:
                return False
            group.lookups.append(request)
        else:
            if (request.acks != -1 and request.acks != 1) or group.has_kv != (kind == PUT):
                return False
            group.writes.append(request)
            group.bytes += PyBytes_GET_SIZE(request.records)
            self.bytes += PyBytes_GET_SIZE(request.records)
        request.client = peer
        self.count += 1
        return True

    cpdef flush(self):
        """Serve the collected requests."""
        cdef dict groups = self.groups
        if not groups:
            return
        self.groups = {}
        self.count = self.bytes = 0
        self.serve_groups(list(groups.values()))

    # ---- answers ----------------------------------------------------------------------------------------------------

    cpdef answer(self, ShortRequest request, bytes frame):
        """Send the frame that answers a request, at the end of the round if one is served."""
        cdef Peer peer = <Peer?> request.client
        cdef SocketTransport transport = peer.transport
        if transport is None or peer.is_unread:
            peer.send_frame(frame)
        elif self.is_batching:
            self.batch.add(transport, frame)
        else:
            transport.write(frame)
        if peer.state == HELD:
            peer.balance()

    def answer_all(self, list requests, list frames):
        """Send the frames that answer requests, together."""
        cdef Py_ssize_t i
        cdef bint is_batch = not self.is_batching and self.batch is not None and len(requests) > 1
        if is_batch:
            self.is_batching = True
        try:
            for i in range(len(requests)):
                self.answer(requests[i], frames[i])
        finally:
            if is_batch:
                self.is_batching = False
                self.batch.send_all()

    def answer_written(self, list requests, results):
        """Answer the writes that have succeeded with their offsets. Return the failed ones, with their results."""
        cdef ShortRequest request
        cdef Py_ssize_t i
        cdef list failures = [], written = [], frames = []
        for i, result in enumerate(results):
            request = requests[i]
            if isinstance(result, Exception) or result.error is not None:
                failures.append((request, result))
            else:
                written.append(request)
                frames.append(encode_written(
                    request, result.base_offset if request.api_key == PRODUCE_LOG else result.log_end_offset
                ))
        self.answer_all(written, frames)
        return failures

    # ---- requests that wait ------------------------------------------------------------------------------------------

    def open_waiting(self, list requests):
        """Register requests as unanswered, and count their memory until `release_waiting`.

        The id of each request was free when the request was taken. If its client has opened another request with that id
        since, the connection is closed, as for any id that is used twice, and the other request stays registered.
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
            size = memory_of(request)
            peer.open_bytes += size
            total += size
        self.request_pool.take(total)

    def close_waiting(self, list requests, set late):
        """Remove requests from the unanswered ones, except for those in `late`. Return the positions of those that
        were registered, which are to be answered."""
        cdef ShortRequest request
        cdef Py_ssize_t i
        cdef list unanswered = []
        for i, request in enumerate(requests):
            if late is not None and request in late:
                continue
            if (<Peer?> request.client).open.pop(request.request_id, requests) is not requests:
                unanswered.append(i)
        return unanswered

    def release_waiting(self, list requests):
        """Release the memory of requests, and resume connections that have waited for it."""
        cdef ShortRequest request
        cdef Peer peer
        cdef Py_ssize_t size, total = 0
        for request in requests:
            size = memory_of(request)
            (<Peer?> request.client).open_bytes -= size
            total += size
        self.request_pool.give(total)
        for request in requests:
            peer = request.client
            if peer.state == HELD or peer.reading != READING_ON:
                peer.balance()
