# Short requests in C: see _short.pyx.
from libc.stdint cimport int64_t, uint8_t

cdef enum:
    PRODUCE_LOG = 1014
    PUT_KV = 1016
    LOOKUP = 1017

cdef class ShortRequest:
    cdef readonly int api_key, api_version, request_id, acks, timeout_ms
    cdef readonly Py_ssize_t end
    cdef readonly tuple bucket
    cdef readonly bytes records
    cdef readonly list keys
    cdef readonly tuple targets
    cdef public object client

cdef ShortRequest read_frame(const uint8_t* data, Py_ssize_t start, Py_ssize_t end)
cpdef bytes encode_written(ShortRequest request, int64_t offset)
cpdef bytes encode_values(ShortRequest request, list values, Py_ssize_t first=*, Py_ssize_t skipped=*)
