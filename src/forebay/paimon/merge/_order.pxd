# Comparable keys of rows, for the kernels of this package. See _order.pyx.
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

cdef struct Keys:
    const uint64_t* prefix
    const int64_t* offsets    # NULL: the prefix is the whole key
    const uint8_t* data

cdef class SortKey:
    cdef Keys raw
    cdef readonly Py_ssize_t count
    cdef readonly object prefix
    cdef readonly object offsets
    cdef readonly object data

cdef inline int compare_between(const Keys* left, int64_t a, const Keys* right, int64_t b) noexcept nogil:
    cdef int64_t size_a, size_b
    cdef int result
    if left.prefix[a] != right.prefix[b]:
        return -1 if left.prefix[a] < right.prefix[b] else 1
    if left.offsets == NULL or right.offsets == NULL:
        return 0
    size_a = left.offsets[a + 1] - left.offsets[a]
    size_b = right.offsets[b + 1] - right.offsets[b]
    result = memcmp(left.data + left.offsets[a], right.data + right.offsets[b], <size_t> min(size_a, size_b))
    if result != 0:
        return result
    return (size_a > size_b) - (size_a < size_b)

cdef inline int compare(const Keys* keys, int64_t a, int64_t b) noexcept nogil:
    return compare_between(keys, a, keys, b)
