"""Hashes of key bytes, the buckets that they choose (codec.rows), and checksums (codec.crc)."""

import sys

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import google_crc32c
import numpy as np

from forebay.codec.arrow._arrow_c cimport ArrowArray

cdef enum Function:
    FUNCTION_FLUSS = 0
    FUNCTION_PAIMON = 1
    FUNCTION_ICEBERG = 2
    FUNCTION_HUDI = 3


cdef object crc32c_of = google_crc32c.value
cdef Py_ssize_t CRC_VIEW_BYTES_MIN = 32 * 1024 if google_crc32c.implementation == "c" else sys.maxsize


def crc32c(buffer, Py_ssize_t start=0, end=None):
    """The CRC-32C of the bytes [`start`, `end`) of `buffer` as an unsigned 32-bit number.

    `buffer` is any C-contiguous buffer of bytes (`bytes`, `bytearray`, `memoryview`, `pyarrow.Buffer`). `start` and
    `end` count from its beginning; `end` None means its end. The bytes must not change during the call.
    """
    cdef Py_buffer view
    cdef Py_ssize_t stop
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        stop = view.len if end is None else min(<Py_ssize_t> end, view.len)
        start = min(max(start, 0), stop)
        if stop - start >= CRC_VIEW_BYTES_MIN:
            return int(crc32c_of(np.frombuffer(buffer, np.uint8, stop - start, start)))
        return int(crc32c_of(PyBytes_FromStringAndSize(<const char*> view.buf + start, stop - start)))
    finally:
        PyBuffer_Release(&view)


cdef inline uint32_t rotate_left(uint32_t value, int count) noexcept nogil:
    return (value << count) | (value >> (32 - count))


cdef inline uint32_t mix_block(uint32_t h, uint32_t k) noexcept nogil:
    k = rotate_left(k * <uint32_t> 0xCC9E2D51, 15) * <uint32_t> 0x1B873593
    return rotate_left(h ^ k, 13) * 5 + <uint32_t> 0xE6546B64


cdef inline uint32_t finalise(uint32_t h, uint32_t length) noexcept nogil:
    h ^= length
    h = (h ^ (h >> 16)) * <uint32_t> 0x85EBCA6B
    h = (h ^ (h >> 13)) * <uint32_t> 0xC2B2AE35
    return h ^ (h >> 16)


cdef uint32_t hash32(const uint8_t* data, int64_t size, uint32_t seed) noexcept nogil:
    """Fluss's murmur3: each of the 0 to 3 bytes behind the last block is sign-extended and mixed as a block."""
    cdef uint32_t h = seed
    cdef uint32_t block
    cdef int64_t i = 0
    while i + 4 <= size:
        memcpy(&block, data + i, 4)
        h = mix_block(h, block)
        i += 4
    while i < size:
        h = mix_block(h, <uint32_t> <int32_t> (<int8_t> data[i]))
        i += 1
    return finalise(h, <uint32_t> size)


cdef uint32_t murmur3_32(const uint8_t* data, int64_t size, uint32_t seed) noexcept nogil:
    """Standard murmur3 x86_32, which Iceberg uses."""
    cdef uint32_t h = seed
    cdef uint32_t block
    cdef uint32_t tail = 0
    cdef int64_t i = 0
    while i + 4 <= size:
        memcpy(&block, data + i, 4)
        h = mix_block(h, block)
        i += 4
    if i < size:
        memcpy(&tail, data + i, size - i)
        h ^= rotate_left(tail * <uint32_t> 0xCC9E2D51, 15) * <uint32_t> 0x1B873593
    return finalise(h, <uint32_t> size)


cdef int32_t bucket_of(int function, const uint8_t* data, int64_t size, int32_t count) noexcept nogil:
    cdef uint32_t h
    cdef int32_t signed_hash, remainder
    if function == FUNCTION_FLUSS:
        h = finalise(mix_block(0, hash32(data, size, 42)), 4)
        signed_hash = <int32_t> h
        if signed_hash < 0:
            signed_hash = 0 if h == <uint32_t> 0x80000000 else -signed_hash
        return signed_hash % count
    if function == FUNCTION_PAIMON:
        remainder = (<int32_t> hash32(data, size, 42)) % count  # C truncates towards zero, as Java does
        return -remainder if remainder < 0 else remainder
    if function == FUNCTION_ICEBERG:
        return <int32_t> (murmur3_32(data, size, 0) & 0x7FFFFFFF) % count
    if size < 4:
        return 0
    h = (<uint32_t> data[0] << 24) | (<uint32_t> data[1] << 16) | (<uint32_t> data[2] << 8) | data[3]
    return <int32_t> (h & 0x7FFFFFFF) % count


cdef ArrowArray* array_in(capsule, int64_t buffers, str what) except NULL:
    """The array of an `arrow_array` capsule, which has so many buffers."""
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(capsule, "arrow_array")
    if array.n_buffers != buffers:
        raise ValueError(what)
    return array


def buckets(array_capsule, int function, int32_t count):
    """The bucket of each value of a Binary array without nulls (an `arrow_array` capsule), as int32."""
    cdef ArrowArray* array = array_in(array_capsule, 3, "buckets need a binary array")
    if count < 1:
        raise ValueError(f"buckets need a positive count, not {count}")
    out = np.empty(array.length, np.int32)
    cdef int32_t[::1] view = out
    cdef const int32_t* offsets = <const int32_t*> array.buffers[1] + array.offset
    cdef const uint8_t* data = <const uint8_t*> array.buffers[2]
    cdef int64_t i
    with nogil:
        for i in range(array.length):
            view[i] = bucket_of(function, data + offsets[i], offsets[i + 1] - offsets[i], count)
    return out


def byte_polynomials(array_capsule):
    """Java's `31 * h + b` over the signed bytes of each value of a Binary or String array, as int32.

    The array is an `arrow_array` capsule. What a null gives is undefined.
    """
    cdef ArrowArray* array = array_in(array_capsule, 3, "hashes of bytes need a binary array")
    out = np.empty(array.length, np.uint32)
    cdef uint32_t[::1] view = out
    cdef const int32_t* offsets = <const int32_t*> array.buffers[1] + array.offset
    cdef const uint8_t* data = <const uint8_t*> array.buffers[2]
    cdef uint32_t h
    cdef int64_t i, at
    with nogil:
        for i in range(array.length):
            h = 0
            for at in range(offsets[i], offsets[i + 1]):
                h = h * 31 + <uint32_t> <int32_t> (<int8_t> data[at])
            view[i] = h
    return out.view(np.int32)


cdef uint32_t decimal_hash(const uint32_t* words, uint32_t scale) noexcept nogil:
    """`BigDecimal.hashCode` of a 128-bit number of `scale` digits behind the point, without zeros at its end."""
    cdef uint32_t limbs[4]
    cdef uint32_t quotient[4]
    cdef bint negative = words[3] >> 31
    cdef uint64_t carry = 1, rest
    cdef uint32_t h = 0
    cdef int i
    for i in range(4):
        limbs[i] = words[i]
        if negative:
            carry += <uint32_t> ~words[i]
            limbs[i] = <uint32_t> carry
            carry >>= 32
    if not (limbs[0] | limbs[1] | limbs[2] | limbs[3]):
        return 0  # zero has no scale: the loop below would take all its digits away
    while scale:
        rest = 0
        for i in range(3, -1, -1):
            rest = (rest << 32) | limbs[i]
            quotient[i] = <uint32_t> (rest // 10)
            rest = rest % 10
        if rest:
            break
        limbs = quotient
        scale -= 1
    for i in range(3, -1, -1):
        h = h * 31 + limbs[i]
    return 31 * (0 - h if negative else h) + scale


def decimal_hashes(array_capsule, uint32_t scale):
    """`BigDecimal.hashCode` of each value of a Decimal128 array, without zeros at its end, as int32.

    The array is an `arrow_array` capsule. What a null gives is undefined.
    """
    cdef ArrowArray* array = array_in(array_capsule, 2, "hashes of decimals need a decimal array")
    out = np.empty(array.length, np.uint32)
    cdef uint32_t[::1] view = out
    cdef const uint32_t* words = <const uint32_t*> array.buffers[1] + 4 * array.offset
    cdef int64_t i
    with nogil:
        for i in range(array.length):
            view[i] = decimal_hash(words + 4 * i, scale)
    return out.view(np.int32)


cdef uint64_t hash64(const uint8_t* data, int64_t size) noexcept nogil:
    """A hash for checksums: FNV-1a over words of 8 bytes, each mixed; not for keys that an enemy chooses."""
    cdef uint64_t h = <uint64_t> 0xCBF29CE484222325 ^ <uint64_t> size
    cdef uint64_t word
    cdef int64_t i = 0
    while i < size:
        word = 0
        memcpy(&word, data + i, 8 if size - i >= 8 else size - i)
        h = (h ^ word) * <uint64_t> 0x9E3779B97F4A7C15
        h ^= h >> 32
        i += 8
    h = (h ^ (h >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * <uint64_t> 0x94D049BB133111EB
    return h ^ (h >> 31)


def checksums(array_capsule, uint64_t first):
    """(sum, ordered sum) of the 64-bit hashes of a Binary array's values (an `arrow_array` capsule), without nulls.

    The sum is the same in any order. In the ordered one the value at place i counts 2 * (first + i) + 1 times.
    """
    cdef ArrowArray* array = array_in(array_capsule, 3, "checksums need a binary array")
    cdef const int32_t* offsets = <const int32_t*> array.buffers[1] + array.offset
    cdef const uint8_t* data = <const uint8_t*> array.buffers[2]
    cdef uint64_t plain = 0
    cdef uint64_t ordered = 0
    cdef uint64_t h
    cdef int64_t i
    with nogil:
        for i in range(array.length):
            h = hash64(data + offsets[i], offsets[i + 1] - offsets[i])
            plain += h
            ordered += h * (2 * (first + <uint64_t> i) + 1)
    return plain, ordered


def fluss_hash32(const uint8_t[::1] data, uint32_t seed):
    """Fluss's byte hash, as an unsigned number (for tests and tools)."""
    return hash32(&data[0] if data.shape[0] else NULL, data.shape[0], seed)


def iceberg_hash32(const uint8_t[::1] data):
    """Standard murmur3_32 with seed 0, as an unsigned number (for tests and tools)."""
    return murmur3_32(&data[0] if data.shape[0] else NULL, data.shape[0], 0)
