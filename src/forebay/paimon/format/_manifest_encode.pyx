"""Manifest entries, and entries of manifest lists, to Avro records by the schemas of `avro_schemas`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free

from forebay.paimon.format._buffer cimport Buffer, put_raw, reserve

from forebay.paimon.format.file_meta import EMPTY_ROW

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef bytes _EMPTY_ROW = EMPTY_ROW


cdef int put_long(Buffer* out, int64_t value) except -1:
    cdef uint64_t encoded = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    reserve(out, 10)
    while encoded > 0x7F:
        out.data[out.size] = <uint8_t> (encoded & 0x7F | 0x80)
        out.size += 1
        encoded >>= 7
    out.data[out.size] = <uint8_t> encoded
    out.size += 1
    return 0


cdef int put_bytes(Buffer* out, bytes data, bytes before=b"") except -1:
    """Bytes, with others in front of them."""
    if data is None:
        raise TypeError("there are no bytes")
    put_long(out, PyBytes_GET_SIZE(before) + PyBytes_GET_SIZE(data))
    put_raw(out, <const uint8_t*> PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before))
    return put_raw(out, <const uint8_t*> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef int put_text(Buffer* out, str text) except -1:
    cdef Py_ssize_t size
    cdef const char* data = PyUnicode_AsUTF8AndSize(text, &size)
    put_long(out, size)
    return put_raw(out, <const uint8_t*> data, size)


cdef int put_nullable_long(Buffer* out, object value) except -1:
    if value is None:
        return put_long(out, 0)
    put_long(out, 1)
    return put_long(out, value)


cdef int put_numbers(Buffer* out, object values, bint nullable) except -1:
    cdef Py_ssize_t count = len(values)
    if count:
        put_long(out, count)
        for value in values:
            if nullable:
                put_nullable_long(out, value)
            else:
                put_long(out, value)
    return put_long(out, 0)


cdef int put_texts(Buffer* out, object values) except -1:
    cdef Py_ssize_t count = len(values)
    if count:
        put_long(out, count)
        for value in values:
            put_text(out, value)
    return put_long(out, 0)


cdef int put_nullable_texts(Buffer* out, object values) except -1:
    if values is None:
        return put_long(out, 0)
    put_long(out, 1)
    return put_texts(out, values)


cdef int put_stats(Buffer* out, object stats) except -1:
    cdef tuple counts = stats.null_counts
    cdef bytes arity = len(counts).to_bytes(4, "big")
    put_bytes(out, stats.min_values, arity)
    put_bytes(out, stats.max_values, arity)
    put_long(out, 1)
    return put_numbers(out, counts, True)


cdef int put_file(Buffer* out, object f, bytes key_arity) except -1:
    # Keys of append tables are the row without fields, in tables with a primary key too (a file without rows).
    cdef bytes min_key = f.min_key
    cdef bytes arity = b"\0\0\0\0" if min_key == _EMPTY_ROW else key_arity
    put_text(out, f.file_name)
    put_long(out, f.file_size)
    put_long(out, f.row_count)
    put_bytes(out, min_key, arity)
    put_bytes(out, f.max_key, arity)
    put_stats(out, f.key_stats)
    put_stats(out, f.value_stats)
    put_long(out, f.min_sequence_number)
    put_long(out, f.max_sequence_number)
    put_long(out, f.schema_id)
    put_long(out, <int32_t> f.level)
    put_texts(out, f.extra_files)
    put_nullable_long(out, f.creation_time)
    put_nullable_long(out, f.delete_row_count)
    index = f.embedded_index
    put_long(out, index is not None)
    if index is not None:
        put_bytes(out, index)
    put_nullable_long(out, f.file_source)
    put_nullable_texts(out, f.value_stats_cols)
    path = f.external_path
    put_long(out, path is not None)
    if path is not None:
        put_text(out, path)
    put_nullable_long(out, f.first_row_id)
    put_nullable_texts(out, f.write_cols)
    sequences = f.write_cols_sequences
    put_long(out, sequences is not None)
    if sequences is not None:
        put_numbers(out, sequences, False)
    return 0


def encode_manifests(manifests, int64_t version, bytes partition_arity not None):
    """The Avro records of `manifests` by `avro_schemas.MANIFEST_FILE`, as `encode_entries` does it."""
    cdef Buffer out
    out.data, out.size, out.capacity = NULL, 0, 0
    try:
        for m in manifests:
            stats = m.partition_stats
            put_long(&out, version)
            put_text(&out, m.file_name)
            put_long(&out, m.file_size)
            put_long(&out, m.num_added_files)
            put_long(&out, m.num_deleted_files)
            put_bytes(&out, stats.min_values, partition_arity)
            put_bytes(&out, stats.max_values, partition_arity)
            put_long(&out, 1)
            put_numbers(&out, stats.null_counts, True)
            put_long(&out, m.schema_id)
            for border in (m.min_bucket, m.max_bucket, m.min_level, m.max_level, m.min_row_id, m.max_row_id):
                put_nullable_long(&out, border)
        return PyBytes_FromStringAndSize(<const char*> out.data, out.size)
    finally:
        free(out.data)


def encode_entries(entries, int64_t version, bytes partition_arity not None, bytes key_arity not None):
    """The Avro records of `entries` by `avro_schemas.MANIFEST_ENTRY`, one behind the other.

    The arities stand in front of partitions and keys. Raises `TypeError` and `OverflowError` for what does not fit.
    """
    cdef Buffer out
    out.data, out.size, out.capacity = NULL, 0, 0
    try:
        for e in entries:
            put_long(&out, version)
            put_long(&out, <int32_t> e.kind)
            put_bytes(&out, e.partition, partition_arity)
            put_long(&out, <int32_t> e.bucket)
            put_long(&out, <int32_t> e.total_buckets)
            put_file(&out, e.file, key_arity)
        return PyBytes_FromStringAndSize(<const char*> out.data, out.size)
    finally:
        free(out.data)
