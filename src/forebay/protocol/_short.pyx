"""Short requests, read from the wire's bytes without protobuf objects, and their answers.

A *short request* is a whole frame of at most `FRAME_BYTES_MAX` bytes that appends to, puts into or looks up keys in one
bucket, in the plain form that clients send: each field once, of its own type, and none that asks for something special.
Everything else is not short, and protobuf judges it. So nothing is refused here.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from forebay.codec._wire cimport read_varint, varint_size, write_varint

FRAME_BYTES_MAX = 32 * 1024
"""The longest frame of a short request, without its length field."""

KEYS_MAX = 256
"""The most keys of a short lookup."""

cdef enum:
    _FRAME_BYTES_MAX = 32 * 1024
    _KEYS_MAX = 256
    _HEADER_BYTES = 8
    _VARINT = 0
    _DELIMITED = 2
    _RESPONSE_HEADER_BYTES = 9


cdef class ShortRequest:
    """One of them. `bucket` is (table id, bucket, partition id or None), `end` the position behind the frame,
    `targets` the columns that a put names, `client` is for who serves it."""


cdef inline uint32_t _load_big(const uint8_t* p) noexcept nogil:
    return (<uint32_t> p[0] << 24) | (<uint32_t> p[1] << 16) | (<uint32_t> p[2] << 8) | p[3]


def decode(buffer, Py_ssize_t start, Py_ssize_t end):
    """The short request whose frame begins at `start` of `buffer` and ends at or before `end`; None if there is none."""
    cdef Py_buffer held
    PyObject_GetBuffer(buffer, &held, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= held.len:
            return None
        return read_frame(<const uint8_t*> held.buf, start, end)
    finally:
        PyBuffer_Release(&held)


cdef ShortRequest read_frame(const uint8_t* data, Py_ssize_t start, Py_ssize_t end):
    cdef const uint8_t* p = data + start
    cdef uint32_t length
    cdef int api_key
    cdef ShortRequest request
    if end - start < 4 + _HEADER_BYTES:
        return None
    length = _load_big(p)
    if length < _HEADER_BYTES or length > _FRAME_BYTES_MAX or length > end - start - 4:
        return None
    api_key = (p[4] << 8) | p[5]
    if api_key != PRODUCE_LOG and api_key != PUT_KV and api_key != LOOKUP:
        return None
    request = ShortRequest.__new__(ShortRequest)
    request.targets = ()
    request.api_key = api_key
    request.api_version = (p[6] << 8) | p[7]
    request.request_id = <int32_t> _load_big(p + 8)
    request.end = start + 4 + length
    p += 4 + _HEADER_BYTES
    return request if _message(p, data + request.end, request) else None


cdef bint _message(const uint8_t* p, const uint8_t* end, ShortRequest request) except -1:
    """Read the request's message; whether it is short."""
    cdef uint64_t tag, value
    cdef int64_t table_id = 0
    cdef bint is_lookup = request.api_key == LOOKUP
    cdef int table_field = 1 if is_lookup else 2
    cdef int buckets_field = 2 if is_lookup else (4 if request.api_key == PRODUCE_LOG else 5)
    cdef const uint8_t* bucket = NULL
    cdef const uint8_t* bucket_end = NULL
    cdef uint32_t seen = 0
    cdef int field
    while p < end:
        p = read_varint(p, end, &tag)
        if p == NULL or tag > 0x7F:
            return False
        field = <int> (tag >> 3)
        if seen >> field & 1:
            return False
        seen |= <uint32_t> 1 << field
        p = read_varint(p, end, &value)
        if p == NULL:
            return False
        if tag & 7 == _DELIMITED:
            if value > <uint64_t> (end - p):
                return False
            if field == buckets_field:
                bucket = p
                bucket_end = p + value
            elif field != 4 or is_lookup or not _targets(p, p + value, request):
                return False
            p += value
        elif tag & 7 != _VARINT:
            return False
        elif field == table_field:
            table_id = <int64_t> value
        elif is_lookup:
            return False  # keys that are missing shall be inserted
        elif field == 1:
            request.acks = <int32_t> value
        elif field == 3:
            request.timeout_ms = <int32_t> value
        elif request.api_key != PUT_KV or field != 6 or value:
            return False  # the default is the only mode of aggregation that is short
    if bucket == NULL or not seen >> table_field & 1:
        return False
    if not is_lookup and (not seen >> 1 & 1 or not seen >> 3 & 1):
        return False
    return _bucket(bucket, bucket_end, table_id, request)


cdef bint _targets(const uint8_t* p, const uint8_t* end, ShortRequest request) except -1:
    """Read the packed positions of the columns that a put writes."""
    cdef uint64_t value
    cdef list found = []
    while p < end:
        p = read_varint(p, end, &value)
        if p == NULL:
            return False
        found.append(<int32_t> value)
    request.targets = tuple(found)
    return True


cdef bint _bucket(const uint8_t* p, const uint8_t* end, int64_t table_id, ShortRequest request) except -1:
    cdef uint64_t tag, value
    cdef bint is_lookup = request.api_key == LOOKUP
    cdef uint32_t seen = 0
    cdef int field
    cdef object partition = None
    cdef int32_t number = 0
    cdef list keys = []
    while p < end:
        p = read_varint(p, end, &tag)
        if p == NULL or tag > 0x7F:
            return False
        field = <int> (tag >> 3)
        if seen >> field & 1 and not (is_lookup and field == 3):
            return False
        seen |= <uint32_t> 1 << field
        p = read_varint(p, end, &value)
        if p == NULL:
            return False
        if tag & 7 == _DELIMITED:
            if field != 3 or value > <uint64_t> (end - p):
                return False
            if is_lookup:
                if len(keys) == _KEYS_MAX:
                    return False
                keys.append(PyBytes_FromStringAndSize(<const char*> p, <Py_ssize_t> value))
            else:
                request.records = PyBytes_FromStringAndSize(<const char*> p, <Py_ssize_t> value)
            p += value
        elif tag & 7 != _VARINT:
            return False
        elif field == 1:
            partition = <int64_t> value
        elif field == 2:
            number = <int32_t> value
        elif field != 5:  # the number of buckets that the client knew
            return False
    if not seen >> 2 & 1 or not (is_lookup or seen >> 3 & 1):
        return False
    request.bucket = (table_id, number, partition)
    request.keys = keys
    return True


# ---- answers: one bucket with its number, its partition and what was found or written -------------------------------


cdef inline uint8_t* _store_big(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t> (value >> 24)
    p[1] = <uint8_t> (value >> 16)
    p[2] = <uint8_t> (value >> 8)
    p[3] = <uint8_t> value
    return p + 4


cdef Py_ssize_t _place_bytes(tuple bucket) except -1:
    """The length of the bucket's number and partition."""
    cdef Py_ssize_t size = 1 + varint_size(<uint64_t> <int64_t> <int32_t> bucket[1])
    if bucket[2] is not None:
        size += 1 + varint_size(<uint64_t> <int64_t> bucket[2])
    return size


cdef bytes _begin(ShortRequest request, Py_ssize_t inner, uint8_t** at):
    """A frame for an answer with `inner` bytes of one bucket, written up to the bucket's number."""
    cdef tuple bucket = request.bucket
    cdef Py_ssize_t body = 1 + varint_size(<uint64_t> inner) + inner
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, _RESPONSE_HEADER_BYTES + body)
    cdef uint8_t* p = <uint8_t*> PyBytes_AS_STRING(frame)
    p = _store_big(p, <uint32_t> (_RESPONSE_HEADER_BYTES - 4 + body))
    p[0] = 0
    p = _store_big(p + 1, <uint32_t> request.request_id)
    p[0] = 1 << 3 | _DELIMITED
    p += 1
    p += write_varint(p, <uint64_t> inner)
    if bucket[2] is not None:
        p[0] = 1 << 3
        p += 1
        p += write_varint(p, <uint64_t> <int64_t> bucket[2])
    p[0] = 2 << 3
    p += 1
    p += write_varint(p, <uint64_t> <int64_t> <int32_t> bucket[1])
    at[0] = p
    return frame


cpdef bytes encode_written(ShortRequest request, int64_t offset):
    """The frame that answers an append with its base offset, or a put with the log's end offset."""
    cdef uint8_t* p
    cdef bytes frame = _begin(request, _place_bytes(request.bucket) + 1 + varint_size(<uint64_t> offset), &p)
    p[0] = 5 << 3
    write_varint(p + 1, <uint64_t> offset)
    return frame


cpdef bytes encode_values(ShortRequest request, list values, Py_ssize_t first=0, Py_ssize_t skipped=0):
    """The frame that answers a lookup: for each of its keys one of `values`, from the `first` one on; None where there
    is none. The first `skipped` bytes of each value are left out."""
    cdef Py_ssize_t inner = _place_bytes(request.bucket), size, i
    cdef object value
    cdef bytes frame
    cdef uint8_t* p
    cdef Py_ssize_t end = first + len(request.keys)
    if first < 0 or end > len(values):
        raise ValueError(f"{len(values)} values, but {len(request.keys)} keys from {first} on")
    for i in range(first, end):
        value = values[i]
        if value is None:
            inner += 2
            continue
        size = len(<bytes?> value) - skipped
        if size < 0:
            raise ValueError(f"a value of {skipped + size} bytes, of which {skipped} are skipped")
        size += 1 + varint_size(<uint64_t> size)
        inner += 1 + varint_size(<uint64_t> size) + size
    frame = _begin(request, inner, &p)
    for i in range(first, end):
        value = values[i]
        p[0] = 5 << 3 | _DELIMITED
        p += 1
        if value is None:
            p[0] = 0
            p += 1
            continue
        size = PyBytes_GET_SIZE(value) - skipped
        p += write_varint(p, <uint64_t> (1 + varint_size(<uint64_t> size) + size))
        p[0] = 1 << 3 | _DELIMITED
        p += 1
        p += write_varint(p, <uint64_t> size)
        memcpy(p, PyBytes_AS_STRING(value) + skipped, size)
        p += size
    return frame


# ---- answers, read by clients ---------------------------------------------------------------------------------------


def decode_values(buffer):
    """What a LookupResponse says of one bucket: its number, its partition id or None, and one value, or None, for each
    key. None if the response says anything else: an error, or several buckets; protobuf judges it then."""
    cdef Py_buffer held
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef uint64_t size
    PyObject_GetBuffer(buffer, &held, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*> held.buf
        end = p + held.len
        if p == end or p[0] != (1 << 3 | _DELIMITED):
            return None
        p = read_varint(p + 1, end, &size)
        if p == NULL or size != <uint64_t> (end - p):
            return None
        return _values_of(p, end)
    finally:
        PyBuffer_Release(&held)


cdef tuple _values_of(const uint8_t* p, const uint8_t* end):
    cdef uint64_t value, size
    cdef uint32_t seen = 0
    cdef uint8_t tag
    cdef object partition = None
    cdef int32_t number = 0
    cdef list values = []
    while p < end:
        tag = p[0]
        p = read_varint(p + 1, end, &value)
        if p == NULL:
            return None
        if tag == (5 << 3 | _DELIMITED):
            if value > <uint64_t> (end - p):
                return None
            if value == 0:
                values.append(None)
                continue
            if p[0] != (1 << 3 | _DELIMITED):
                return None
            p = read_varint(p + 1, end, &size)
            if p == NULL or size + 1 + varint_size(size) != value or size > <uint64_t> (end - p):
                return None
            values.append(PyBytes_FromStringAndSize(<const char*> p, <Py_ssize_t> size))
            p += size
        elif tag == 1 << 3 and not seen & 1:
            partition = <int64_t> value
            seen |= 1
        elif tag == 2 << 3 and not seen & 2:
            number = <int32_t> value
            seen |= 2
        else:
            return None
    return (number, partition, values) if seen & 2 else None
