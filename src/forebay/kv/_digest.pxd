# The hash of a (key, value) pair, whose sum over all rows is the digest of a state. See _digest.pyx.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef inline uint64_t rotate_left(uint64_t value, int count) noexcept nogil:
    return (value << count) | (value >> (64 - count))

cdef inline uint64_t mix(uint64_t h, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word
    cdef Py_ssize_t i = 0
    while i + 8 <= size:
        memcpy(&word, data + i, 8)
        h = rotate_left(h + word * <uint64_t> 0xC2B2AE3D27D4EB4F, 31) * <uint64_t> 0x9E3779B185EBCA87
        i += 8
    word = 0
    if i < size:
        memcpy(&word, data + i, size - i)
    h = rotate_left(h + word * <uint64_t> 0xC2B2AE3D27D4EB4F, 31) * <uint64_t> 0x9E3779B185EBCA87
    return h ^ <uint64_t> size

cdef inline uint64_t hash_pair(
    const uint8_t* key, Py_ssize_t key_size, const uint8_t* value, Py_ssize_t value_size
) noexcept nogil:
    cdef uint64_t h = mix(mix(<uint64_t> 0x27D4EB2F165667C5, key, key_size), value, value_size)
    h = (h ^ (h >> 33)) * <uint64_t> 0xC2B2AE3D27D4EB4F
    h = (h ^ (h >> 29)) * <uint64_t> 0x165667B19E3779F9
    return h ^ (h >> 32)
