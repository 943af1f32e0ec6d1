# Many byte strings that lie anywhere in memory, as (address, size) pairs. See _slices.pyx.
from libc.stdint cimport int32_t, uint8_t

cdef class RowSlices:
    cdef const uint8_t** data
    cdef int32_t* sizes       # -1: null
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef list owners
    cdef int reserve(self, Py_ssize_t extra) except -1
    cdef inline void push(self, const uint8_t* data, int32_t size) noexcept nogil:
        self.data[self.count] = data
        self.sizes[self.count] = size
        self.count += 1
