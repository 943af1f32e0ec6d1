"""Lookups by key in a log, as readers see it or as its writer does.

A reader that finds a record beyond `visible` follows the flights back to the record that it replaced
(`_log.HashLog.before`). Keys are looked up in chunks: all slots of a chunk are fetched into the cache, then all
records, then the keys are compared. The mutex is free between chunks. If a group is committed between two chunks, the
lookup begins again, so that all values are of one moment.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pythread cimport PyThread_acquire_lock, PyThread_release_lock, WAIT_LOCK
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from forebay.codec._prefetch cimport forebay_prefetch
from forebay.kv.hlog._index cimport find_slot, first_record, first_slot, hash_key, position_in
from forebay.kv.hlog._log cimport HashLog
from forebay.kv.hlog._record cimport TOMBSTONE, Record, kind_of, value_of
from forebay.kv.hlog._segments cimport record_at

cdef enum:
    CHUNK = 32
    ATTEMPTS = 3              # with the mutex free between chunks, before one attempt that holds it throughout

cdef struct Lookup:
    const uint8_t* key
    Py_ssize_t size
    const Record* row         # NULL if there is none


def get(HashLog log not None, keys, bint by_writer=False):
    """The value of each key as of one moment, None if there is none. `by_writer`: also what is not visible yet."""
    cdef list requested = list(keys)
    cdef Py_ssize_t n = len(requested)
    cdef Py_ssize_t i
    cdef list values = [None] * n
    cdef bytes key
    cdef Lookup* lookups = <Lookup*> malloc(n * sizeof(Lookup) + 1)
    if lookups == NULL:
        raise MemoryError()
    log.begin_reading()
    try:
        for i in range(n):
            key = requested[i]
            lookups[i].key, lookups[i].size = <const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        if n > CHUNK:
            with nogil:
                get_all(log, lookups, n, by_writer)
        else:
            get_chunk(log, lookups, n, by_writer)
        for i in range(n):
            if lookups[i].row != NULL:
                values[i] = PyBytes_FromStringAndSize(
                    <const char*> value_of(lookups[i].row), lookups[i].row.value_size
                )
    finally:
        free(lookups)
        log.end_reading()
    return values


cdef void get_all(HashLog log, Lookup* lookups, Py_ssize_t n, bint by_writer) noexcept nogil:
    """Look up many keys, with the mutex free between chunks."""
    cdef Py_ssize_t i
    cdef int attempt
    cdef int64_t visible
    for attempt in range(ATTEMPTS):
        visible = get_chunk(log, lookups, CHUNK, by_writer)
        i = CHUNK
        while i < n and get_chunk(log, lookups + i, min(<Py_ssize_t> CHUNK, n - i), by_writer) == visible:
            i += CHUNK
        if i >= n:
            return
    PyThread_acquire_lock(log.mutex, WAIT_LOCK)
    i = 0
    while i < n:
        find_rows(log, lookups + i, min(<Py_ssize_t> CHUNK, n - i), by_writer)
        i += CHUNK
    PyThread_release_lock(log.mutex)


cdef int64_t get_chunk(HashLog log, Lookup* lookups, Py_ssize_t n, bint by_writer) noexcept nogil:
    """Look up the keys of a chunk; return what was visible at that moment."""
    cdef int64_t visible
    PyThread_acquire_lock(log.mutex, WAIT_LOCK)
    find_rows(log, lookups, n, by_writer)
    visible = log.visible
    PyThread_release_lock(log.mutex)
    return visible


cdef void find_rows(HashLog log, Lookup* lookups, Py_ssize_t n, bint by_writer) noexcept nogil:
    """Look up the keys of a chunk. With the mutex held."""
    cdef Py_ssize_t i
    cdef uint64_t hashes[CHUNK]
    cdef const uint8_t* record
    for i in range(n):
        hashes[i] = hash_key(&log.index, lookups[i].key, lookups[i].size)
        forebay_prefetch(first_slot(&log.index, hashes[i]))
    if n > 1:
        for i in range(n):
            record = first_record(&log.index, &log.segments, hashes[i])
            forebay_prefetch(record)
            forebay_prefetch(record + 64)
    for i in range(n):
        lookups[i].row = seen(log, lookups[i].key, lookups[i].size, hashes[i], by_writer)


cdef const Record* seen(HashLog log, const uint8_t* key, Py_ssize_t size, uint64_t h, bint by_writer) noexcept nogil:
    """The row of the key that readers see (or the writer), or NULL. With the mutex held."""
    cdef uint64_t* slot = find_slot(&log.index, &log.segments, key, size, h, False)
    cdef int64_t position
    cdef const Record* r
    if slot == NULL:
        return NULL
    position = position_in(&log.index, slot[0])
    while not by_writer and position >= log.visible:
        position = log.before(position)
        if position == 0:
            return NULL
    r = record_at(&log.segments, position)
    if kind_of(r) == TOMBSTONE:
        return NULL
    return r
