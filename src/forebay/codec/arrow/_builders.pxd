# Growable Arrow columns in plain C memory: what the decoders fill. See _builders.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from forebay.codec.arrow._arrow_c cimport ArrowArray
from forebay.codec.rows._layout cimport KIND_BOOLEAN, Node

cdef struct Builder:
    int64_t length
    int64_t capacity          # rows for which validity, fixed values and offsets have room
    int64_t null_count
    uint8_t* validity         # NULL until the first null
    uint8_t* values           # fixed-width values, boolean bits, or bytes of variable-length values
    int64_t bytes_used        # variable-length values only
    int64_t bytes_capacity
    int32_t* offsets

cdef int value_width(const Node* node) noexcept nogil
cdef bint has_offsets(int kind) noexcept nogil
cdef int grow_rows(const Node* node, Builder* b, int64_t extra) noexcept nogil
cdef int grow_bytes(Builder* b, int64_t extra) noexcept nogil
cdef int mark_null(Builder* b) noexcept nogil
cdef int append_null(const Node* nodes, int index, Builder* builders) noexcept nogil
cdef void free_builders(Builder* builders, int count) noexcept nogil
cdef int move_to_arrow(const Node* nodes, int index, Builder* builders, ArrowArray* out) noexcept nogil
cdef int move_row_to_arrow(const Node* nodes, Builder* builders, int64_t rows, ArrowArray* out) noexcept nogil
cdef void release_array(ArrowArray* array) noexcept nogil
cdef object array_capsule(ArrowArray* array)

cdef inline int reserve_row(const Node* node, Builder* b) noexcept nogil:
    """Make room for one more row. 0, or -1 when memory is out."""
    if b.length < b.capacity:
        return 0
    return grow_rows(node, b, 1)

cdef inline int append_bytes(const Node* node, Builder* b, const uint8_t* data, int64_t size) noexcept nogil:
    """Append one variable-length value. 0, or -1 when memory or 31-bit offsets are out."""
    if reserve_row(node, b) < 0:
        return -1
    if b.bytes_used + size > b.bytes_capacity and grow_bytes(b, size) < 0:
        return -1
    if size > 0:
        memcpy(b.values + b.bytes_used, data, size)
    b.bytes_used += size
    b.length += 1
    b.offsets[b.length] = <int32_t> b.bytes_used
    return 0

cdef inline void set_bit(uint8_t* bits, int64_t position, bint value) noexcept nogil:
    if value:
        bits[position >> 3] |= <uint8_t> (1 << (position & 7))
    else:
        bits[position >> 3] &= <uint8_t> ~(1 << (position & 7))

cdef inline bint get_bit(const uint8_t* bits, int64_t position) noexcept nogil:
    return (bits[position >> 3] >> (position & 7)) & 1
