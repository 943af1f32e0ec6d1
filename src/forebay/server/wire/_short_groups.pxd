# Short requests, grouped by bucket. See _short_groups.pyx.
from forebay.protocol._short cimport ShortRequest
from forebay.server.wire._answer_batch cimport AnswerBatch
from forebay.server.wire._peer cimport Peer

cdef class ShortGroups:
    cdef dict groups              # by bucket
    cdef Py_ssize_t count, bytes  # collected requests, and the bytes of their records
    cdef AnswerBatch batch        # None: asyncio's transports, which send each answer separately
    cdef bint is_batching         # answers are added to the batch
    cdef readonly bint has_lone_client
    cdef readonly object loop, request_pool

    cdef int begin_round(self, bint has_lone_client) except -1
    cdef int end_round(self) except -1
    cpdef bint take(self, Peer peer, ShortRequest request) except -1
    cdef bint collect(self, Peer peer, ShortRequest request) except -1
    cpdef flush(self)
    cpdef answer(self, ShortRequest request, bytes frame)
