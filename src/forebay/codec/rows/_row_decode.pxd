# The field walk of _row_decode.pyx, for kernels that take rows apart without decoding them.
from libc.stdint cimport int32_t, uint8_t

from forebay.codec.rows._layout cimport Node

cdef struct Span:
    const uint8_t* data
    int32_t size              # -1: the field is null

cdef int row_spans(
    const Node* nodes, int row_format, const uint8_t* p, const uint8_t* end, Span* spans, int fields
) noexcept nogil
