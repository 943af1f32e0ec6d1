# Values of fields of compacted and indexed rows, whose spans `row_spans` has found and bounded.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from forebay.codec.rows._layout cimport (
    FORMAT_INDEXED, KIND_BOOLEAN, KIND_CHAR, KIND_INT8, KIND_INT16, KIND_INT32, KIND_TIME, KIND_TIMESTAMP,
)
from forebay.codec.rows._row_decode cimport Span
from forebay.codec._wire cimport load_int32, load_int64, read_varint, write_varint

cdef enum:
    INTEGER_BYTES_MAX = 10

cdef inline int64_t load_integer(int kind, int row_format, const Span* span) noexcept nogil:
    """The value of a whole number, a date, a time, or an instant of milliseconds; of a DECIMAL its unscaled value."""
    cdef uint64_t value = 0
    cdef int16_t small
    if kind == KIND_INT8 or kind == KIND_BOOLEAN:
        return <int8_t> span.data[0]
    if kind == KIND_INT16:
        memcpy(&small, span.data, 2)
        return small
    if row_format == FORMAT_INDEXED:
        return load_int32(span.data) if kind == KIND_INT32 or kind == KIND_TIME else load_int64(span.data)
    read_varint(span.data, span.data + span.size, &value)
    return <int32_t> value if kind == KIND_INT32 or kind == KIND_TIME else <int64_t> value

cdef inline void store_integer(int kind, int row_format, int64_t value, uint8_t* out, Span* span) noexcept nogil:
    """Make `span` the encoding of `value`, cut to the field's width; `out` has `INTEGER_BYTES_MAX` bytes."""
    span.data = out
    if kind == KIND_INT8:
        span.size = 1
    elif kind == KIND_INT16:
        span.size = 2
    elif row_format == FORMAT_INDEXED:
        span.size = 4 if kind == KIND_INT32 else 8
    elif kind == KIND_INT32:
        span.size = write_varint(out, <uint32_t> value)
        return
    else:
        span.size = write_varint(out, <uint64_t> value)
        return
    memcpy(out, &value, span.size)

cdef inline void load_instant(int kind, int row_format, const Span* span, int64_t* major, int32_t* minor) noexcept nogil:
    """The milliseconds of a timestamp and the nanoseconds beside them; of other kinds the number, and zero."""
    cdef uint64_t value = 0
    cdef const uint8_t* p
    minor[0] = 0
    if kind != KIND_TIMESTAMP:
        major[0] = load_integer(kind, row_format, span)
    elif row_format == FORMAT_INDEXED:
        major[0] = load_int64(span.data)
        minor[0] = load_int32(span.data + 8)
    else:
        p = read_varint(span.data, span.data + span.size, &value)
        major[0] = <int64_t> value
        read_varint(p, span.data + span.size, &value)
        minor[0] = <int32_t> value

cdef inline const uint8_t* content(int kind, int row_format, const Span* span, int32_t* size) noexcept nogil:
    """The bytes of a text, of bytes or of a DECIMAL of more than 18 digits, without their length or padding."""
    cdef uint64_t length = 0
    cdef const uint8_t* p
    if row_format != FORMAT_INDEXED:
        p = read_varint(span.data, span.data + span.size, &length)
        size[0] = <int32_t> length
        return p
    size[0] = span.size
    if kind == KIND_CHAR:  # padded with zero bytes
        while size[0] > 0 and span.data[size[0] - 1] == 0:
            size[0] -= 1
    return span.data
