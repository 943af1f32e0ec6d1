"""A put of whole rows in one piece: parse the records, find the old rows, write the new ones, list the changelog.

It is what `parse_kv_records`, `MergePlan.merge` and `HashLog.put` do one after the other, for tables whose puts replace
rows, without a Python object for a row and without Python's lock.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pythread cimport PyThread_acquire_lock, PyThread_release_lock, WAIT_LOCK
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from forebay.codec._slices cimport RowSlices
from forebay.codec._wire cimport load_int32, read_varint, store_int32
from forebay.kv._hlog cimport CHUNK, HEADER_BYTES, HashLog, ROW, Record, TOMBSTONE

cdef enum:
    PREFIX = 6  # length and schema id
    CHUNK_BYTES_MAX = 65536
    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4

cdef enum Outcome:
    DONE = 0
    NO_MEMORY = 1
    OTHER_WAY = 2
    NO_ROOM = 3

cdef struct Put:
    const uint8_t* key
    const uint8_t* row
    uint64_t hash
    uint32_t key_size
    int32_t row_size          # -1: a delete


def put_records(
    HashLog log not None, data, Py_ssize_t start, Py_ssize_t count, int schema_id, bint full_image,
    bint deletes_ignored,
):
    """Put the `count` KvRecords in `data` from `start` to its end, rows of `schema_id`, into `log`.

    `full_image`: whether the changelog has old rows, too; without, every put is an update. Returns (change types,
    RowSlices of the changelog's rows, RowSlices of its keys, rows added); or None if this way cannot be taken: for
    malformed records, empty keys, and old rows of other schemas. Then, and after an error, some are written already.
    """
    cdef const uint8_t[::1] view = data
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef RowSlices rows = RowSlices.__new__(RowSlices)
    cdef RowSlices keys = RowSlices.__new__(RowSlices)
    cdef bytes kinds
    cdef uint8_t* kind
    cdef Py_ssize_t made = 0
    cdef Py_ssize_t added = 0
    cdef Py_ssize_t left = count
    cdef int outcome
    cdef int64_t room = 0
    if start < 0 or start > view.shape[0] or count < 0 or count > (view.shape[0] - start) // 5:
        return None
    kinds = PyBytes_FromStringAndSize(NULL, 2 * count)
    kind = <uint8_t*> PyBytes_AS_STRING(kinds)
    rows.owners.append(view)
    rows.owners.append(log)
    keys.owners.append(view)
    rows.reserve(2 * count)
    keys.reserve(2 * count)
    log.reserve_flights(count)
    if count == 0:
        return (b"", rows, keys, 0) if start == view.shape[0] else None
    p = &view[0] + start
    end = &view[0] + view.shape[0]
    while left > 0:
        with nogil:
            outcome = put_until(
                log, &p, end, &left, &room, schema_id, full_image, deletes_ignored, kind, &made, &added, rows, keys,
            )
        if outcome == NO_ROOM:
            log.ensure(room)
        elif outcome == NO_MEMORY:
            raise MemoryError()
        elif outcome == OTHER_WAY:
            return None
    if p != end:
        return None
    return kinds[:made], rows, keys, added


cdef int put_until(
    HashLog log, const uint8_t** place, const uint8_t* end, Py_ssize_t* left, int64_t* room, int schema_id,
    bint full_image, bint deletes_ignored, uint8_t* kinds, Py_ssize_t* made, Py_ssize_t* added, RowSlices rows,
    RowSlices keys,
) noexcept nogil:
    """Put the records from `place` on, in chunks, until all are put or the log has no `room` for the next chunk."""
    cdef Put puts[CHUNK]
    cdef const uint8_t* p
    cdef int n, outcome
    while left[0] > 0:
        p = place[0]
        n = 0
        room[0] = 0
        while n < CHUNK and n < left[0] and room[0] < CHUNK_BYTES_MAX:
            p = parse(p, end, &puts[n])
            if p == NULL:
                return OTHER_WAY
            room[0] += HEADER_BYTES + PREFIX + 8 + puts[n].key_size + max(0, puts[n].row_size)
            n += 1
        if not log.has_room(room[0]):
            return NO_ROOM
        outcome = put_some(log, puts, n, schema_id, full_image, deletes_ignored, kinds, made, added, rows, keys)
        if outcome != DONE:
            return outcome
        left[0] -= n
        place[0] = p
    return DONE


cdef const uint8_t* parse(const uint8_t* p, const uint8_t* end, Put* put) noexcept nogil:
    """Where the record at `p` ends; NULL if it is malformed, or its key is empty."""
    cdef uint64_t key_size
    cdef int64_t size
    if end - p < 4:
        return NULL
    size = load_int32(p)
    p += 4
    if size < 1 or size > end - p:
        return NULL
    end = p + size
    p = read_varint(p, end, &key_size)
    if p == NULL or key_size == 0 or key_size > <uint64_t> (end - p):
        return NULL
    put.key = p
    put.key_size = <uint32_t> key_size
    put.row = p + key_size
    put.row_size = <int32_t> (end - put.row) if end > put.row else -1
    return end


cdef int put_some(
    HashLog log, Put* puts, int n, int schema_id, bint full_image, bint deletes_ignored, uint8_t* kinds,
    Py_ssize_t* made, Py_ssize_t* added, RowSlices rows, RowSlices keys,
) noexcept nogil:
    cdef int i
    cdef int outcome = DONE
    cdef Py_ssize_t m = made[0]
    cdef int16_t id16 = <int16_t> schema_id
    cdef int16_t old_id = id16
    cdef uint8_t prefix[PREFIX]
    cdef uint64_t* slot
    cdef Record* old
    cdef const uint8_t* old_row
    cdef Put* put
    memcpy(prefix + 4, &id16, 2)
    PyThread_acquire_lock(log.mutex, WAIT_LOCK)
    for i in range(n):
        puts[i].hash = log.hash_key(puts[i].key, puts[i].key_size)
        log.prefetch_slot(puts[i].hash)
    for i in range(n):
        log.prefetch_record(puts[i].hash)
    for i in range(n):
        put = &puts[i]
        if put.row_size < 0 and deletes_ignored:
            continue
        if log.reserve_slot(put.hash) < 0:
            outcome = NO_MEMORY
            break
        old = log.newest(put.key, put.key_size, put.hash, &slot)
        if old == NULL:
            if put.row_size < 0:
                continue
        else:
            if old.value_size < PREFIX:
                outcome = OTHER_WAY
                break
            old_row = <const uint8_t*> old + HEADER_BYTES + put.key_size + PREFIX
            memcpy(&old_id, old_row - 2, 2)
            if old_id != id16 and (full_image or put.row_size < 0):
                outcome = OTHER_WAY
                break
        if old != NULL and (full_image or put.row_size < 0):
            kinds[m] = UPDATE_BEFORE if put.row_size >= 0 else DELETE
            m += 1
            rows.push(old_row, <int32_t> (old.value_size - PREFIX))
            keys.push(put.key, <int32_t> put.key_size)
        if put.row_size < 0:
            added[0] -= 1
            log.write(TOMBSTONE, put.hash, put.key, put.key_size, NULL, 0, NULL, 0, old, slot)
            continue
        kinds[m] = INSERT if old == NULL and full_image else UPDATE_AFTER
        m += 1
        added[0] += old == NULL and full_image
        rows.push(put.row, put.row_size)
        keys.push(put.key, <int32_t> put.key_size)
        store_int32(prefix, put.row_size + 2)
        log.write(
            ROW, put.hash, put.key, put.key_size, prefix, PREFIX, put.row, <uint32_t> put.row_size, old, slot
        )
    PyThread_release_lock(log.mutex)
    made[0] = m
    return outcome
