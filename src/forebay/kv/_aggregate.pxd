# What the merge engine `aggregation` makes of two values of a field. See _aggregate.pyx.
from libc.stdint cimport int32_t, uint8_t

from forebay.codec.rows._row_decode cimport Span

cdef struct Field:
    int function
    int kind
    bint nullable
    int precision             # of a DECIMAL
    int scale
    const uint8_t* delimiter
    int32_t delimiter_size
    uint8_t* result           # where a value that is neither of the two is built
    Py_ssize_t capacity

cdef class Aggregates:
    cdef Field* fields
    cdef int count
    cdef int row_format
    cdef bint must_succeed
    cdef bint wraps           # whole numbers keep their lowest bits
    cdef tuple names
    cdef object row_name      # the name of a key's row, for messages
    cdef list owners
    cdef object bitmaps       # pyroaring's class, if a column has bitmaps
    cdef int failed           # the position of the column at which `merge` failed
    cdef int merge(self, const Span* old, Span* new) noexcept nogil
    cdef int unite_all(self, const Span* old, Span* new, object key) except -1
    cdef int refuse(self, int failure, object key) except -1
    cdef int combine(self, int position, const Span* old, Span* new) noexcept nogil
    cdef int add_or_multiply(self, int position, const Span* old, Span* new) noexcept nogil
    cdef int whole(self, int position, const Span* old, Span* new) noexcept nogil
    cdef int decimal(self, int position, const Span* old, Span* new) noexcept nogil
    cdef int overflowed(self, int position, const Span* old, Span* new, bint is_error) noexcept nogil
    cdef int join(self, int position, const Span* old, Span* new) noexcept nogil
    cdef int unite(self, int position, const Span* old, Span* new, object key) except -1
