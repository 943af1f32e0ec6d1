"""Records of log batches in the row formats (INDEXED, COMPACTED), and change types.

A record is int32 length (of what follows it), one byte change type, and a row. The chain of lengths is walked once,
with every length checked against the bytes that are left.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

import pyarrow as pa

from forebay.codec.arrow._arrow_c cimport ArrowArray
from forebay.codec.arrow._arrow_message cimport ByteView
from forebay.codec._wire cimport load_int32, store_int32

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest

cdef enum:
    RECORD_OVERHEAD = 5      # length and change type
    CHANGE_TYPE_MAX = 4


cdef int64_t first_bad_change_type(const uint8_t* data, int64_t count) noexcept nogil:
    cdef int64_t i
    cdef uint8_t largest = 0
    for i in range(count):
        largest = max(largest, data[i])
    if largest <= CHANGE_TYPE_MAX:
        return -1
    for i in range(count):
        if data[i] > CHANGE_TYPE_MAX:
            return i
    return -1


def check_change_types(buffer, Py_ssize_t start, Py_ssize_t count):
    """Raise `CorruptData` unless each of the `count` bytes of `buffer` from `start` on is a change type."""
    cdef ByteView view = ByteView(buffer)
    cdef int64_t bad
    if start < 0 or count < 0 or count > view.size - start:
        raise _corrupt(f"{count} change types do not fit into {max(view.size - start, 0)} bytes")
    with nogil:
        bad = first_bad_change_type(view.data + start, count)
    if bad >= 0:
        raise _corrupt(f"record {bad} has change type {view.data[start + bad]}; 0 to {CHANGE_TYPE_MAX} exist")


cdef int walk(
    const uint8_t* p, const uint8_t* end, int64_t count, int32_t* offsets, uint8_t* rows, int64_t room, uint8_t* types,
    int64_t* bad
) noexcept nogil:
    """Split `count` records whose rows have `room` bytes in all.

    0; or, with the record in `bad`, 1: cut off, 2: length, 3: change type, 4: trailing bytes.
    """
    cdef int64_t i, size, used = 0
    offsets[0] = 0
    for i in range(count):
        bad[0] = i
        if end - p < RECORD_OVERHEAD:
            return 1
        size = load_int32(p)
        if size < 1 or size > end - p - 4 or size - 1 > room - used:  # each later record needs its overhead
            return 2
        if p[4] > CHANGE_TYPE_MAX:
            return 3
        types[i] = p[4]
        memcpy(rows + used, p + RECORD_OVERHEAD, size - 1)
        used += size - 1
        offsets[i + 1] = <int32_t> used
        p += 4 + size
    return 0 if p == end else 4


def split_records(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count):
    """The `count` records that fill `buffer` from `start` to `end`: (pa.BinaryArray of rows, pa.UInt8Array).

    The second array holds the change types. Raises `CorruptData` naming the first bad record.
    """
    cdef ByteView view = ByteView(buffer)
    cdef int failure
    cdef int64_t bad = 0, rows_size
    cdef const uint8_t* p
    if start < 0 or end > view.size or start > end:
        raise ValueError(f"[{start}, {end}) is not inside a buffer of {view.size} bytes")
    if count < 0 or count > (end - start) // RECORD_OVERHEAD or end - start > INT32_MAX:
        raise _corrupt(f"it claims {count} records in {end - start} bytes")
    rows_size = end - start - RECORD_OVERHEAD * count
    offsets_buffer = pa.allocate_buffer(4 * (count + 1))
    rows_buffer = pa.allocate_buffer(rows_size)
    types_buffer = pa.allocate_buffer(count)
    cdef int32_t* offsets = <int32_t*> <size_t> offsets_buffer.address
    cdef uint8_t* rows = <uint8_t*> <size_t> rows_buffer.address
    cdef uint8_t* types = <uint8_t*> <size_t> types_buffer.address
    p = view.data + start
    with nogil:
        failure = walk(p, view.data + end, count, offsets, rows, rows_size, types, &bad)
    if failure == 1:
        raise _corrupt(f"record {bad} is cut off")
    if failure == 2:
        raise _corrupt(f"record {bad} has an impossible length")
    if failure == 3:
        raise _corrupt(f"record {bad} has a change type above {CHANGE_TYPE_MAX}")
    if failure == 4:
        raise _corrupt("bytes follow its last record")
    return (
        pa.Array.from_buffers(pa.binary(), count, [None, offsets_buffer, rows_buffer], 0),
        pa.Array.from_buffers(pa.uint8(), count, [None, types_buffer], 0),
    )


def join_records(bytes prefix, rows, bytes change_types):
    """A new bytearray: `prefix`, then one record for each value of the pa.BinaryArray `rows`.

    `change_types` has one byte a row, or is None: all +A. Raises `InvalidRequest` for null rows and beyond 2 GiB.
    """
    schema_capsule, array_capsule = rows.__arrow_c_array__()
    cdef const ArrowArray* array = <const ArrowArray*> PyCapsule_GetPointer(array_capsule, "arrow_array")
    cdef int64_t count = array.length
    cdef const uint8_t* offsets
    cdef const uint8_t* data
    cdef const uint8_t* types = NULL
    cdef int64_t i, first = 0, last = 0, size, total
    cdef Py_ssize_t prefix_size = PyBytes_GET_SIZE(prefix)
    cdef uint8_t* p
    if not rows.type.equals(pa.binary()):
        raise InvalidRequest(f"encoded rows must be a Binary array, not {rows.type}")
    if rows.null_count:
        raise InvalidRequest(f"{rows.null_count} of {count} encoded rows are null; a log record always has a row")
    if change_types is not None:
        if PyBytes_GET_SIZE(change_types) != count:
            raise InvalidRequest(f"{len(change_types)} change types for {count} rows")
        types = <const uint8_t*> PyBytes_AS_STRING(change_types)
    offsets = <const uint8_t*> array.buffers[1] + 4 * array.offset
    data = <const uint8_t*> array.buffers[2]
    if count > 0:
        first = load_int32(offsets)
        last = load_int32(offsets + 4 * count)
    total = prefix_size + RECORD_OVERHEAD * count + last - first
    if total > INT32_MAX:
        raise InvalidRequest(
            f"a log batch of {total} bytes exceeds 2 GiB; write fewer rows at once",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    out = PyByteArray_FromStringAndSize(NULL, total)
    p = <uint8_t*> PyByteArray_AS_STRING(out)
    memcpy(p, PyBytes_AS_STRING(prefix), prefix_size)
    p += prefix_size
    with nogil:
        for i in range(count):
            first = load_int32(offsets + 4 * i)
            size = load_int32(offsets + 4 * i + 4) - first
            store_int32(p, <int32_t> (size + 1))
            p[4] = types[i] if types != NULL else 0
            memcpy(p + RECORD_OVERHEAD, data + first, size)
            p += RECORD_OVERHEAD + size
    return out


def _corrupt(reason):
    return CorruptData(f"the records of the log batch are malformed: {reason}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
