"""Record boundaries of KV record batches and value batches: one pass, no copy, every length checked."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

import numpy as np

from forebay.codec.arrow._arrow_c cimport ArrowArray
from forebay.codec.arrow._builders cimport get_bit
from forebay.codec.rows._slices cimport RowSlices
from forebay.codec._wire cimport load_int32, read_varint, store_int32, varint_size, write_varint

from forebay.base.errors import CorruptData, ErrorCode

cdef enum:
    VALUE_BATCH_HEADER_BYTES = 9  # length i32, magic i8, count i32

def parse_kv_records(data, Py_ssize_t start, Py_ssize_t count):
    """The `count` KvRecords in `data` from `start` to its end: (list of key bytes, RowSlices of rows; null = delete).

    Raises `CorruptData` unless the records fill the buffer exactly.
    """
    cdef RowSlices keys, rows
    cdef Py_ssize_t i
    keys, rows = slice_kv_records(data, start, count)
    return [PyBytes_FromStringAndSize(<const char*> keys.data[i], keys.sizes[i]) for i in range(keys.count)], rows


def slice_kv_records(data, Py_ssize_t start, Py_ssize_t count):
    """As `parse_kv_records`, with the keys as RowSlices, too: without a copy."""
    cdef const uint8_t[::1] view = data
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef const uint8_t* record_end
    cdef uint64_t key_size
    cdef int64_t size
    cdef Py_ssize_t i
    cdef RowSlices keys = RowSlices.__new__(RowSlices)
    cdef RowSlices rows = RowSlices.__new__(RowSlices)
    if start < 0 or start > view.shape[0] or count < 0 or count > (view.shape[0] - start) // 5:
        raise _corrupt(f"it claims {count} records in {view.shape[0] - start} bytes")
    keys.owners.append(view)
    keys.reserve(count)
    rows.owners.append(view)
    rows.reserve(count)
    if count == 0:
        if start != view.shape[0]:
            raise _corrupt(f"{view.shape[0] - start} bytes follow its last record")
        return keys, rows
    p = &view[0] + start
    end = &view[0] + view.shape[0]
    for i in range(count):
        if end - p < 4:
            raise _corrupt(f"record {i} is cut off")
        size = load_int32(p)
        p += 4
        if size < 1 or size > end - p:
            raise _corrupt(f"record {i} has length {size}, but {end - p} bytes are left")
        record_end = p + size
        p = read_varint(p, record_end, &key_size)
        if p == NULL or key_size > <uint64_t> (record_end - p):
            raise _corrupt(f"the key of record {i} is cut off")
        keys.push(p, <int32_t> key_size)
        p += key_size
        if p == record_end:
            rows.push(NULL, -1)
        else:
            rows.push(p, <int32_t> (record_end - p))
        p = record_end
    if p != end:
        raise _corrupt(f"{end - p} bytes follow its last record")
    return keys, rows


def kv_record_sizes(keys_capsule, rows_capsule):
    """Encoded size in bytes of the KvRecord of each (key, row) pair, as int64; both are Binary arrays."""
    cdef ArrowArray* keys = <ArrowArray*> PyCapsule_GetPointer(keys_capsule, "arrow_array")
    cdef ArrowArray* rows = <ArrowArray*> PyCapsule_GetPointer(rows_capsule, "arrow_array")
    cdef const int32_t* key_offsets = <const int32_t*> keys.buffers[1] + keys.offset
    cdef const int32_t* row_offsets = <const int32_t*> rows.buffers[1] + rows.offset
    cdef int64_t i, key_size
    if keys.length != rows.length:
        raise ValueError("as many keys as rows are needed")
    out = np.empty(keys.length, np.int64)
    cdef int64_t[::1] sizes = out
    with nogil:
        for i in range(keys.length):
            key_size = key_offsets[i + 1] - key_offsets[i]
            sizes[i] = 4 + varint_size(key_size) + key_size
            if not row_is_null(rows, i):
                sizes[i] += row_offsets[i + 1] - row_offsets[i]
    return out


cdef inline bint row_is_null(const ArrowArray* rows, int64_t i) noexcept nogil:
    cdef const uint8_t* validity = <const uint8_t*> rows.buffers[0]
    return validity != NULL and not get_bit(validity, rows.offset + i)


def write_kv_records(keys_capsule, rows_capsule, int64_t first, int64_t last, uint8_t[::1] out, int64_t position):
    """Write the KvRecords [first, last) of the Binary arrays into `out` at `position`; a null row is a delete.

    `out` must have the room that `kv_record_sizes` tells.
    """
    cdef ArrowArray* keys = <ArrowArray*> PyCapsule_GetPointer(keys_capsule, "arrow_array")
    cdef ArrowArray* rows = <ArrowArray*> PyCapsule_GetPointer(rows_capsule, "arrow_array")
    cdef const int32_t* key_offsets = <const int32_t*> keys.buffers[1] + keys.offset
    cdef const int32_t* row_offsets = <const int32_t*> rows.buffers[1] + rows.offset
    cdef const uint8_t* key_data = <const uint8_t*> keys.buffers[2]
    cdef const uint8_t* row_data = <const uint8_t*> rows.buffers[2]
    cdef int64_t i, key_size, row_size, total
    cdef uint8_t* p
    cdef uint8_t* end
    if first < 0 or last > keys.length or keys.length != rows.length or position > out.shape[0]:
        raise ValueError("the records do not exist")
    if first >= last:
        return
    p = &out[0] + position
    end = &out[0] + out.shape[0]
    for i in range(first, last):
        key_size = key_offsets[i + 1] - key_offsets[i]
        row_size = 0 if row_is_null(rows, i) else row_offsets[i + 1] - row_offsets[i]
        total = varint_size(key_size) + key_size + row_size
        if end - p < total + 4:
            raise ValueError("the output buffer is too small")
        store_int32(p, <int32_t> total)
        p += 4
        p += write_varint(p, key_size)
        memcpy(p, key_data + key_offsets[i], key_size)
        p += key_size
        memcpy(p, row_data + row_offsets[i], row_size)
        p += row_size


def parse_value_records(data, Py_ssize_t start, Py_ssize_t count):
    """The `count` records (int32 length, int16 schema id, row) in `data` from `start` to its end.

    Returns (int16 schema ids, RowSlices of rows). Raises `CorruptData` unless the records fill the buffer exactly.
    """
    cdef const uint8_t[::1] view = data
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int64_t size
    cdef Py_ssize_t i
    cdef RowSlices rows = RowSlices.__new__(RowSlices)
    if start < 0 or start > view.shape[0] or count < 0 or count > (view.shape[0] - start) // 6:
        raise _corrupt(f"it claims {count} records in {view.shape[0] - start} bytes")
    out = np.empty(count, np.int16)
    cdef int16_t[::1] schema_ids = out
    rows.owners.append(view)
    rows.reserve(count)
    if view.shape[0] == 0:
        return out, rows
    p = &view[0] + start
    end = &view[0] + view.shape[0]
    for i in range(count):
        if end - p < 6:
            raise _corrupt(f"record {i} is cut off")
        size = load_int32(p)
        if size < 2 or size > end - p - 4:
            raise _corrupt(f"record {i} has length {size}, but {end - p - 4} bytes are left")
        memcpy(&schema_ids[i], p + 4, 2)
        rows.push(p + 6, <int32_t> (size - 2))
        p += 4 + size
    if p != end:
        raise _corrupt(f"{end - p} bytes follow its last record")
    return out, rows


def join_value_batch(first, iterator, int64_t bytes_max, int64_t rows_max):
    """A value batch of `first` and values of `iterator`, until they hold `bytes_max` bytes or are `rows_max`.

    Returns (the batch, the number of its values, whether the iterator ended). The last value may exceed `bytes_max`;
    there is one at least. Each value is copied and let go before the next one is made, so that the next one finds its
    memory in the processor's cache: half the cost of keeping a list of them and joining that.
    """
    cdef Py_ssize_t capacity = VALUE_BATCH_HEADER_BYTES + max(bytes_max, 0) + 4096
    cdef Py_ssize_t used = VALUE_BATCH_HEADER_BYTES
    cdef int64_t rows = 0
    cdef bint ended = False
    cdef object value = first
    cdef object values = iter(iterator)
    cdef Py_ssize_t size
    cdef char* grown
    cdef char* out = <char*> malloc(capacity)
    if out == NULL:
        raise MemoryError()
    try:
        while True:
            if not isinstance(value, bytes):
                raise TypeError(f"a stored value is bytes, not {type(value).__name__}")
            size = PyBytes_GET_SIZE(value)
            if used + size > capacity:
                capacity = used + size
                grown = <char*> realloc(out, capacity)
                if grown == NULL:
                    raise MemoryError()
                out = grown
            memcpy(out + used, PyBytes_AS_STRING(value), size)
            used += size
            rows += 1
            if used - VALUE_BATCH_HEADER_BYTES >= bytes_max or rows >= rows_max:
                break
            value = next(values, None)
            if value is None:
                ended = True
                break
        store_int32(<uint8_t*> out, <int32_t> (used - 4))
        out[4] = 0
        store_int32(<uint8_t*> out + 5, <int32_t> rows)
        return PyBytes_FromStringAndSize(out, used), rows, ended
    finally:
        free(out)


def positions_of_other_schemas(list values, int schema_id):
    """Where in `values` (stored values or None) a value has another schema id than `schema_id`."""
    cdef list positions = []
    cdef Py_ssize_t i
    cdef object value
    cdef int16_t found
    for i in range(len(values)):
        value = values[i]
        if value is not None:
            if not isinstance(value, bytes) or PyBytes_GET_SIZE(value) < 6:
                raise _corrupt("a stored value is shorter than its length and schema id")
            memcpy(&found, PyBytes_AS_STRING(value) + 4, 2)
            if found != schema_id:
                positions.append(i)
    return positions


def _corrupt(reason):
    return CorruptData(f"the record batch is malformed: {reason}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
