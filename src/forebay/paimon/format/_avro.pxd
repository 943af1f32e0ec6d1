from libc.stdint cimport int32_t, int64_t, uint8_t


cdef struct Node:
    int32_t kind
    int32_t first
    int32_t count
    int32_t slot
    int64_t size
    bint empty


cdef struct Cursor:
    const uint8_t* base
    int64_t at
    int64_t end


cdef class Program:
    cdef Node* nodes
    cdef int32_t* children
    cdef int32_t node_count, root
    cdef readonly Py_ssize_t slots
    cdef object required
    cdef object items


cdef class Records:
    cdef readonly bytes body
    cdef readonly Py_ssize_t count
    cdef readonly object values, sizes
    cdef Program program
    cdef int64_t[:, ::1] v
    cdef int32_t[:, ::1] s

    cdef const uint8_t* address(self)
    cdef bytes raw(self, Py_ssize_t row, Py_ssize_t slot)
    cdef object text(self, Py_ssize_t row, Py_ssize_t slot)
    cdef object number(self, Py_ssize_t row, Py_ssize_t slot)
    cdef object items_at(self, Py_ssize_t row, Py_ssize_t slot, bint texts)
