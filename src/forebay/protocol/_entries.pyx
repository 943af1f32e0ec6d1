"""What protobuf would make of an encoded message, counted before it makes it.

Protobuf makes an object of each message in a message and of each element of a list, and an empty one takes two bytes on
the wire. A single value that is sent again takes no memory, but it takes time: it is counted, too. A *layout* says which
fields of which message types these are (`forebay.protocol.messages`).
"""
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from forebay.codec._wire cimport read_varint

cdef enum:
    _VARINT, _FIXED64, _DELIMITED, _GROUP, _END_GROUP, _FIXED32
    _DEPTH_MAX = 100           # readers of protobuf stop there

PLAIN, TEXT, TEXTS, BYTES_LIST, NUMBERS, NUMBERS_32, NUMBERS_64, MESSAGE = range(8)
"""Kinds of fields: a single number or byte string, a text, lists of texts, byte strings and numbers (as varints, in 4
or in 8 bytes). `MESSAGE + n` is a message, or messages, of type n. Fields that are not in a layout are counted."""

cdef enum:
    _TEXT = 1
    _TEXTS, _BYTES_LIST, _NUMBERS, _NUMBERS_32, _NUMBERS_64, _MESSAGE


ctypedef long long int64


cdef struct Walk:
    const int32_t* layout
    const int32_t* begins
    int64 count
    int64 count_max
    bint is_text_broken


cdef bint _is_utf8(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Whether the bytes are UTF-8, without surrogates."""
    cdef uint32_t code, minimum
    cdef int more
    while p < end:
        if p[0] < 0x80:
            p += 1
            continue
        if p[0] >= 0xF5 or p[0] < 0xC2:
            return False
        if p[0] < 0xE0:
            more, code, minimum = 1, p[0] & 0x1F, 0x80
        elif p[0] < 0xF0:
            more, code, minimum = 2, p[0] & 0x0F, 0x800
        else:
            more, code, minimum = 3, p[0] & 0x07, 0x10000
        if end - p <= more:
            return False
        p += 1
        while more:
            if p[0] & 0xC0 != 0x80:
                return False
            code = code << 6 | (p[0] & 0x3F)
            p += 1
            more -= 1
        if code < minimum or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            return False
    return True


cdef int32_t _kind(Walk* walk, int type_, uint64_t field) noexcept nogil:
    """The kind of a field; -1 if the type has no such field."""
    cdef const int32_t* at = walk.layout + walk.begins[type_]
    cdef const int32_t* end = walk.layout + walk.begins[type_ + 1]
    while at < end:
        if <uint64_t> at[0] == field:
            return at[1]
        at += 2
    return -1


cdef int64 _elements(int32_t kind, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """The number of elements of a packed list."""
    cdef int64 count = 0
    if kind == _NUMBERS_32:
        return (end - p) // 4
    if kind == _NUMBERS_64:
        return (end - p) // 8
    while p < end:
        count += p[0] < 0x80
        p += 1
    return count


cdef bint _walk(Walk* walk, int type_, const uint8_t* p, const uint8_t* end, int depth) noexcept nogil:
    """Count the entries of a message; whether to go on: it is whole, as far as it was read, and within the limit."""
    cdef uint64_t tag, length, bit
    cdef uint64_t seen = 0     # the fields that the message has had, by number modulo 64: no message has two of one bit
    cdef int32_t kind
    cdef int wire
    if depth > _DEPTH_MAX:
        return False
    while p < end:
        if walk.count > walk.count_max:
            return False
        p = read_varint(p, end, &tag)
        if p == NULL:
            return False
        wire = tag & 7
        kind = _kind(walk, type_, tag >> 3)
        if kind < 0 or (kind > _TEXT and wire != _DELIMITED):
            walk.count += 1
        elif kind <= _TEXT:
            bit = (<uint64_t> 1) << (tag >> 3 & 63)
            walk.count += (seen & bit) != 0
            seen |= bit
        if wire == _VARINT:
            p = read_varint(p, end, &length)
            if p == NULL:
                return False
        elif wire == _DELIMITED:
            p = read_varint(p, end, &length)
            if p == NULL or length > <uint64_t> (end - p):
                return False
            if kind >= _MESSAGE:
                walk.count += 1
                if not _walk(walk, kind - _MESSAGE, p, p + length, depth + 1):
                    return False
            elif kind >= _NUMBERS:
                walk.count += _elements(kind, p, p + length)
            elif kind >= _TEXTS:
                walk.count += 1
            if (kind == _TEXT or kind == _TEXTS) and not _is_utf8(p, p + length):
                walk.is_text_broken = True
            p += length
        elif wire == _FIXED64 or wire == _FIXED32:
            length = 8 if wire == _FIXED64 else 4
            if length > <uint64_t> (end - p):
                return False
            p += length
        elif wire > _FIXED32:
            return False
        # What is in a group, which no message here has, is counted as if it stood beside it.
    return True


def entries(const uint8_t[::1] data not None, const int32_t[::1] layout not None, const int32_t[::1] begins not None,
            int type_, int64 count_max):
    """Return how many entries a message has, and whether each of its texts is UTF-8.

    Counting stops behind `count_max`, and where the encoding is broken: protobuf goes no further there, either.
    `layout` holds pairs of field number and kind; those of type n begin at `begins[n]` and end at `begins[n + 1]`.
    """
    cdef Walk walk
    if not 0 <= type_ < begins.shape[0] - 1 or begins[begins.shape[0] - 1] > layout.shape[0]:
        raise IndexError(type_)
    walk.layout, walk.begins = &layout[0], &begins[0]
    walk.count, walk.count_max, walk.is_text_broken = 0, count_max, False
    if data.shape[0]:
        with nogil:
            _walk(&walk, type_, &data[0], &data[0] + data.shape[0], 1)
    return walk.count, not walk.is_text_broken
