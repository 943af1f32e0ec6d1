"""Scans of a snapshot of a log: its rows in the order of their positions, as a value batch, in place, or as pairs.

All of these walk over the records with `next_row`. A walk needs the mutex only to enter a segment: records before the
snapshot do not change, but for `dead_at`, which is loaded atomically. Segments stay mapped while a snapshot is open.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pythread cimport PyThread_acquire_lock, PyThread_release_lock, WAIT_LOCK
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from forebay.codec._prefetch cimport forebay_prefetch
from forebay.codec._wire cimport store_int32
from forebay.codec.rows._slices cimport RowSlices
from forebay.kv.hlog._log cimport HashLog
from forebay.kv.hlog._record cimport (
    HEADER_BYTES, ROW, Record, ends_segment, forebay_load, key_of, key_size_of, kind_of, size_of, value_of,
)
from forebay.kv.hlog._segments cimport Segment, segment_at

import numpy as np

cdef enum:
    VALUE_BATCH_HEADER_BYTES = 9  # length i32, magic i8, count i32
    STORED_PREFIX_BYTES = 6       # length i32, schema id i16
    AHEAD_BYTES = 2048            # of records that are fetched into the cache before a walk comes to them
    FIRST_BYTES_MAX = 1 << 20     # of the buffer for a value batch, before it grows

cdef struct Walk:
    int64_t snapshot
    int64_t position          # of the next record
    int64_t stop              # the segment that was entered has no record from here on; 0: none was entered
    int64_t next_segment      # where the segment after it begins
    int64_t segment           # where it begins
    const uint8_t* memory


cdef inline Walk walk_from(int64_t position, int64_t snapshot) noexcept nogil:
    cdef Walk walk
    walk.snapshot, walk.position = snapshot, position
    walk.stop = walk.next_segment = walk.segment = 0
    walk.memory = NULL
    return walk


cdef inline const Record* next_row(HashLog log, Walk* walk) noexcept nogil:
    """The next row of the snapshot, to whose position the walk goes; NULL at the end. `pass_row` goes behind it."""
    cdef Segment s
    cdef const Record* r
    cdef uint64_t dead_at
    while walk.position < walk.snapshot:
        if walk.position >= walk.stop:
            PyThread_acquire_lock(log.mutex, WAIT_LOCK)
            s = log.segments.table[segment_at(&log.segments, walk.position)]
            PyThread_release_lock(log.mutex)
            walk.segment, walk.next_segment, walk.memory = s.position, s.position + s.size, s.memory
            walk.stop = min(walk.snapshot, walk.next_segment - HEADER_BYTES + 1)
        while walk.position < walk.stop:
            r = <const Record*> (walk.memory + (walk.position - walk.segment))
            if ends_segment(r):
                break
            forebay_prefetch(<const uint8_t*> r + AHEAD_BYTES)
            if kind_of(r) == ROW:
                dead_at = forebay_load(&r.dead_at)
                if dead_at == 0 or dead_at >= <uint64_t> walk.snapshot:
                    return r
            walk.position += size_of(r)
        walk.position = walk.next_segment
    walk.position = walk.snapshot
    return NULL


cdef inline void pass_row(Walk* walk, const Record* row) noexcept nogil:
    walk.position += size_of(row)


def scan(HashLog log not None, int64_t snapshot, int64_t position, int64_t bytes_max, int64_t rows_max):
    """The values of a snapshot from `position` on: (value batch, rows, next position).

    Takes rows, at least one, until they hold `bytes_max` bytes or are `rows_max`; the last may exceed the bytes. The
    next position is that of the snapshot if no row is left.
    """
    cdef int64_t head = VALUE_BATCH_HEADER_BYTES
    cdef int64_t capacity = head + min(max(<int64_t> 0, bytes_max), <int64_t> FIRST_BYTES_MAX)
    cdef int64_t used = head
    cdef int64_t rows = 0
    cdef int64_t needed
    cdef Walk walk = walk_from(position, snapshot)
    cdef char* grown
    cdef char* out = <char*> malloc(capacity + 1)
    if out == NULL:
        raise MemoryError()
    log.begin_reading()
    try:
        while True:
            with nogil:
                needed = copy_values(log, &walk, out, &used, capacity, bytes_max + head, &rows, rows_max)
            if needed == 0:
                break
            capacity = max(needed, min(2 * capacity, head + bytes_max))
            grown = <char*> realloc(out, capacity)
            if grown == NULL:
                raise MemoryError()
            out = grown
        store_int32(<uint8_t*> out, <int32_t> (used - 4))
        out[4] = 0
        store_int32(<uint8_t*> out + 5, <int32_t> rows)
        return PyBytes_FromStringAndSize(out, used), rows, walk.position
    finally:
        free(out)
        log.end_reading()


cdef int64_t copy_values(
    HashLog log, Walk* place, char* out, int64_t* used, int64_t capacity, int64_t bytes_max, int64_t* rows,
    int64_t rows_max,
) noexcept nogil:
    """Copy values until `out` is full; return the capacity that the next one needs, or 0 at the end."""
    cdef Walk walk = place[0]
    cdef int64_t taken = used[0]
    cdef int64_t needed = 0
    cdef const Record* r
    while True:
        r = next_row(log, &walk)
        if r == NULL or rows[0] >= rows_max or (rows[0] and taken >= bytes_max):
            break
        if taken + r.value_size > capacity:
            needed = taken + r.value_size
            break
        memcpy(out + taken, value_of(r), r.value_size)
        taken += r.value_size
        rows[0] += 1
        pass_row(&walk, r)
    place[0], used[0] = walk, taken
    return needed


def rows(HashLog log not None, int64_t snapshot, int64_t position, int64_t bytes_max, int64_t rows_max):
    """The rows of a snapshot from `position` on, in place: (schema ids, rows, next position), as `scan`."""
    cdef RowSlices slices = RowSlices.__new__(RowSlices)
    cdef int64_t used = 0
    cdef int64_t failed = 0
    cdef bint is_full = True
    cdef Walk walk = walk_from(position, snapshot)
    cdef int16_t* ids = NULL
    cdef int16_t* grown
    cdef int16_t[::1] view
    slices.owners.append(Reading(log))
    try:
        while is_full:
            slices.reserve(1024)
            grown = <int16_t*> realloc(ids, slices.capacity * sizeof(int16_t))
            if grown == NULL:
                raise MemoryError()
            ids = grown
            with nogil:
                is_full = slice_rows(log, &walk, &used, bytes_max, rows_max, slices, ids, &failed)
        if failed:
            raise ValueError(f"the record at {failed} holds no stored value")
        schema_ids = np.empty(slices.count, np.int16)
        if slices.count:
            view = schema_ids
            memcpy(&view[0], ids, slices.count * sizeof(int16_t))
        return schema_ids, slices, walk.position
    finally:
        free(ids)


cdef bint slice_rows(
    HashLog log, Walk* place, int64_t* used, int64_t bytes_max, int64_t rows_max, RowSlices slices, int16_t* ids,
    int64_t* failed,
) noexcept nogil:
    """Add rows to `slices` until there is no room for more (True), or there are enough."""
    cdef Walk walk = place[0]
    cdef int64_t taken = used[0]
    cdef bint is_full = False
    cdef const Record* r
    cdef const uint8_t* value
    while True:
        r = next_row(log, &walk)
        if r == NULL or slices.count >= rows_max or (slices.count and taken >= bytes_max):
            break
        if slices.count == slices.capacity:
            is_full = True
            break
        if r.value_size < STORED_PREFIX_BYTES:
            failed[0] = walk.position
            break
        value = value_of(r)
        memcpy(&ids[slices.count], value + STORED_PREFIX_BYTES - 2, 2)
        slices.push(value + STORED_PREFIX_BYTES, <int32_t> r.value_size - STORED_PREFIX_BYTES)
        taken += r.value_size
        pass_row(&walk, r)
    place[0], used[0] = walk, taken
    return is_full


def items(HashLog log not None, int64_t snapshot, int64_t position, int64_t rows_max):
    """([(key, value)], next position) of at most `rows_max` rows of a snapshot, which must be open."""
    cdef Walk walk = walk_from(position, snapshot)
    cdef const Record* r
    cdef list pairs = []
    while len(pairs) < rows_max:
        r = next_row(log, &walk)
        if r == NULL:
            break
        pairs.append((
            PyBytes_FromStringAndSize(<const char*> key_of(r), key_size_of(r)),
            PyBytes_FromStringAndSize(<const char*> value_of(r), r.value_size),
        ))
        pass_row(&walk, r)
    return pairs, walk.position


@cython.no_gc_clear
cdef class Reading:
    """Keeps all segments mapped for as long as it lives."""
    cdef HashLog log

    def __cinit__(self, HashLog log not None):
        self.log = log
        log.begin_reading()

    def __dealloc__(self):
        self.log.end_reading()
