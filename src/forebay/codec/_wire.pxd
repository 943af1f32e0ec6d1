# Reading and writing the primitive encodings of row formats, every read bounded. Little-endian machines only
# (checked when the package is imported).
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef inline const uint8_t* read_varint(const uint8_t* p, const uint8_t* end, uint64_t* out) noexcept nogil:
    """Unsigned LEB128 of up to 64 bits. The position behind it, or NULL where it is cut off or too long."""
    cdef uint64_t result
    cdef int shift
    if p < end and p[0] < 0x80:
        out[0] = p[0]
        return p + 1
    result = 0
    shift = 0
    while p < end and shift < 64:
        result |= (<uint64_t> (p[0] & 0x7F)) << shift
        if p[0] < 0x80:
            out[0] = result
            return p + 1
        p += 1
        shift += 7
    return NULL

cdef inline int write_varint(uint8_t* p, uint64_t value) noexcept nogil:
    """Unsigned LEB128; the number of bytes written (at most 10)."""
    cdef int size = 0
    while value >= 0x80:
        p[size] = <uint8_t> (value | 0x80)
        value >>= 7
        size += 1
    p[size] = <uint8_t> value
    return size + 1

cdef inline int varint_size(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size

cdef inline int32_t load_int32(const uint8_t* p) noexcept nogil:
    cdef int32_t value
    memcpy(&value, p, 4)
    return value

cdef inline int64_t load_int64(const uint8_t* p) noexcept nogil:
    cdef int64_t value
    memcpy(&value, p, 8)
    return value

cdef inline uint16_t load_uint16(const uint8_t* p) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, p, 2)
    return value

cdef inline void store_int32(uint8_t* p, int32_t value) noexcept nogil:
    memcpy(p, &value, 4)

cdef inline void store_int64(uint8_t* p, int64_t value) noexcept nogil:
    memcpy(p, &value, 8)
