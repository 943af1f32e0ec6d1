"""Small appends of many requests, checked and stamped together.

A *plain* request is one ARROW batch of appends in the table's latest schema, with rows and a right checksum: what
clients send. `read_plain` says of each request whether it is; all others take the steps that know why not, and make the
errors. `stamp_together` puts the plain ones of a group one after the other, as the log will have them.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from forebay.codec.arrow._arrow_message cimport (
    PROBLEM_NONE, Finding, Message, MessageLayout, check_body, parse_message
)
from forebay.codec.log._batch_header cimport HEADER_BYTES, LENGTH_AT, LENGTH_OVERHEAD, MAGIC_AT, MAGIC_MAX
from forebay.codec._wire cimport load_int32, load_int64, store_int32, store_int64

from forebay.codec.crc import crc32c

cdef enum:
    TIMESTAMP_AT = 13
    EPOCH_AT = 21              # magic 2
    CRC_AT = 21                # 25 in magic 2
    ATTRIBUTES_AT = 6          # from the checksum on
    DELTA_AT = 7
    WRITER_AT = 11
    SEQUENCE_AT = 19
    COUNT_AT = 23
    STATISTICS_AT = 27
    APPEND_ONLY = 1
    NO_WRITER = -1


cdef class PlainBatch:
    """The fields of a plain batch's header that an append needs, by the names of `LogBatchHeader`."""

    cdef readonly int64_t size_bytes, writer_id
    cdef readonly int magic, last_offset_delta, batch_sequence
    cdef readonly bint has_writer_id


def read_plain(list requests, MessageLayout layout, int schema_id, int64_t batch_bytes_max, int64_t decoded_bytes_max):
    """For each request, of `bytes`, its batch if it is plain, else None."""
    cdef list found = []
    for records in requests:
        found.append(_read(records, layout, schema_id, batch_bytes_max, decoded_bytes_max))
    return found


cdef PlainBatch _read(
    bytes records, MessageLayout layout, int schema_id, int64_t batch_bytes_max, int64_t decoded_bytes_max
):
    cdef const uint8_t* data = <const uint8_t*> PyBytes_AS_STRING(records)
    cdef int64_t size = PyBytes_GET_SIZE(records)
    cdef const uint8_t* checked
    cdef int64_t header_bytes, body_start
    cdef int32_t count, statistics = 0
    cdef int magic
    cdef int16_t schema
    cdef Message message
    cdef Finding finding
    cdef PlainBatch batch
    if size < HEADER_BYTES or size > batch_bytes_max or <int64_t> load_int32(data + LENGTH_AT) + LENGTH_OVERHEAD != size:
        return None
    magic = data[MAGIC_AT]
    header_bytes = HEADER_BYTES + 4 * magic
    if magic > MAGIC_MAX or size <= header_bytes:
        return None
    checked = data + CRC_AT + (4 if magic == 2 else 0)
    memcpy(&schema, checked + 4, 2)
    count = load_int32(checked + COUNT_AT)
    if magic:
        statistics = load_int32(checked + STATISTICS_AT)
    if schema != schema_id or not checked[ATTRIBUTES_AT] & APPEND_ONLY or count <= 0:
        return None
    if load_int32(checked + DELTA_AT) != count - 1 or statistics < 0 or statistics >= size - header_bytes:
        return None
    batch = PlainBatch.__new__(PlainBatch)
    batch.size_bytes, batch.magic, batch.last_offset_delta = size, magic, count - 1
    batch.writer_id, batch.batch_sequence = load_int64(checked + WRITER_AT), load_int32(checked + SEQUENCE_AT)
    batch.has_writer_id = batch.writer_id != NO_WRITER
    if batch.writer_id < NO_WRITER or batch.batch_sequence < -1:
        return None
    body_start = header_bytes + statistics
    if parse_message(data + body_start, size - body_start, &message) != PROBLEM_NONE:
        return None
    finding.problem = PROBLEM_NONE
    if check_body(layout, &message, count, decoded_bytes_max, &finding) != PROBLEM_NONE:
        return None
    if crc32c(records, checked + 4 - data) != <uint32_t> load_int32(checked):
        return None
    return batch


def stamp_together(
    list requests, list batches, int64_t base_offset, int64_t timestamp_ms, int32_t leader_epoch
):
    """The requests one after the other, with offsets from `base_offset` on; the place of each: (its offset, its
    distance from the beginning); and the offsets of each: (the first, the end). `batches` is what `read_plain` has found
    in them."""
    cdef int64_t total = 0, distance = 0
    cdef PlainBatch batch
    cdef list places = [], ranges = []
    cdef bytes records, data
    cdef uint8_t* p
    cdef Py_ssize_t i
    for batch in batches:
        total += batch.size_bytes
    data = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t*> PyBytes_AS_STRING(data)
    for i in range(len(batches)):
        batch, records = batches[i], requests[i]
        if PyBytes_GET_SIZE(records) != batch.size_bytes:
            raise ValueError("a batch belongs to another request")
        memcpy(p, PyBytes_AS_STRING(records), batch.size_bytes)
        store_int64(p, base_offset)
        store_int64(p + TIMESTAMP_AT, timestamp_ms)
        if batch.magic == 2:
            store_int32(p + EPOCH_AT, leader_epoch)
        places.append((base_offset, distance))
        p += batch.size_bytes
        distance += batch.size_bytes
        ranges.append((base_offset, base_offset + batch.last_offset_delta + 1))
        base_offset += batch.last_offset_delta + 1
    return data, places, ranges
