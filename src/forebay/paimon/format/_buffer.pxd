"""Bytes that grow. Who declares one sets it to NULL, 0, 0, and frees its data."""

from libc.stdint cimport uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy


cdef struct Buffer:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity


cdef inline int reserve(Buffer* buffer, Py_ssize_t extra) except -1:
    cdef Py_ssize_t capacity
    cdef uint8_t* data
    if buffer.size + extra > buffer.capacity:
        capacity = max(2 * buffer.capacity, buffer.size + extra, 256)
        data = <uint8_t*> realloc(buffer.data, capacity)
        if data == NULL:
            raise MemoryError
        buffer.data, buffer.capacity = data, capacity
    return 0


cdef inline int put_raw(Buffer* out, const uint8_t* data, Py_ssize_t size) except -1:
    reserve(out, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0
