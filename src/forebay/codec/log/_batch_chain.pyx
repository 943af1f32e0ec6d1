"""The check that batches are consecutive: each begins where the one before it ends, with the next offset.

A batch's checksum does not cover its offset and length. Only its neighbours prove them, so a reader of a log checks all
batches that it returns.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t

from forebay.codec.log._batch_header cimport HEADER_BYTES, LENGTH_AT, LENGTH_OVERHEAD, MAGIC_AT, MAGIC_MAX
from forebay.codec._wire cimport load_int32, load_int64

cdef enum:
    DELTA_AT = 28              # 32 in magic 2
    COUNT_AT = 44              # 48 in magic 2


def consecutive_batches(const uint8_t[::1] data not None, int64_t offset, int64_t upper_offset):
    """Return how many bytes of `data` are consecutive whole batches, the first at `offset`, and the offset after them.

    The batches end before the first one that is incomplete, does not begin with the offset after its neighbour, or ends
    above `upper_offset`. `parse_header` raises the error that says which.
    """
    cdef int64_t position = 0, end = data.shape[0], size
    cdef int32_t delta, count
    cdef int magic, shift
    cdef const uint8_t* p
    while end - position >= HEADER_BYTES:
        p = &data[position]
        magic = p[MAGIC_AT]
        size = <int64_t> load_int32(p + LENGTH_AT) + LENGTH_OVERHEAD
        if magic > MAGIC_MAX or size < HEADER_BYTES + 4 * magic or size > end - position:
            break
        shift = 4 if magic == MAGIC_MAX else 0
        delta, count = load_int32(p + DELTA_AT + shift), load_int32(p + COUNT_AT + shift)
        if load_int64(p) != offset or count < 0 or delta != (count - 1 if count else 0):
            break
        if offset + delta + 1 > upper_offset:
            break
        offset += delta + 1
        position += size
    return position, offset
