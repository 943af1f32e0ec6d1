"""A put in one piece: parse the records, find the old rows, merge, write the new ones, list the changelog.

It is what `parse_kv_records`, `MergePlan.merge` and `HashLog.put` do one after the other, without a Python object for a
row and without Python's lock. What it cannot do, and every record that would be refused, is left to these, so that
errors are made in one place.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pythread cimport PyThread_acquire_lock, PyThread_release_lock, WAIT_LOCK
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from forebay.codec._prefetch cimport forebay_prefetch
from forebay.codec.rows._slices cimport RowSlices
from forebay.codec._wire cimport load_int32, read_varint, store_int32
from forebay.kv.hlog._index cimport first_record, first_slot, hash_key, reserve_slot
from forebay.kv.hlog._log cimport HashLog
from forebay.kv.hlog._record cimport HEADER_BYTES, ROW, Record, TOMBSTONE
from forebay.kv._merge cimport (
    BUILDS, BUILT_BYTES_MAX, DELETE, INSERT, KEEPS, MergePlan, PREFIX, REMOVES, UPDATE_AFTER, UPDATE_BEFORE,
)

cdef enum:
    CHUNK = 32                 # records that are put with the mutex held
    CHUNK_BYTES_MAX = 65536
    BUILT_AT_ONCE = 1 << 20    # bytes of rows after which readers get a turn

cdef enum Outcome:
    DONE = 0
    NO_MEMORY = 1
    OTHER_WAY = 2
    NO_ROOM = 3
    NO_IDS = 4

cdef struct Put:
    const uint8_t* record
    const uint8_t* key
    const uint8_t* row
    uint64_t hash
    uint32_t key_size
    int32_t row_size          # -1: a delete

cdef struct Work:             # the records that are left, and the result of the others
    const uint8_t* place
    const uint8_t* end
    Py_ssize_t left
    int64_t room              # bytes that the log needs if it has NO_ROOM
    int64_t next_id
    int64_t last_id
    int64_t built             # bytes of rows that were made of others
    uint8_t* kinds
    Py_ssize_t made
    Py_ssize_t added


def put_records(HashLog log not None, data, Py_ssize_t start, Py_ssize_t count, MergePlan plan not None, sequence):
    """Put the `count` KvRecords in `data` from `start` to its end, rows of the plan's schema, into `log`.

    `sequence` has the ids of an auto-increment column. Returns (change types, RowSlices of the changelog's rows,
    RowSlices of its keys, rows added); or None if the records must be put in steps: records that are refused, empty
    keys, and old rows of other schemas. Then, and after an error, some are written already.
    """
    cdef const uint8_t[::1] view = data
    cdef Work work
    cdef RowSlices rows = RowSlices.__new__(RowSlices)
    cdef RowSlices keys = RowSlices.__new__(RowSlices)
    cdef bytes kinds
    cdef int outcome
    cdef int64_t first_id
    if start < 0 or start > view.shape[0] or count < 0 or count > (view.shape[0] - start) // 5:
        return None
    if plan.needs_python:
        return None
    kinds = PyBytes_FromStringAndSize(NULL, 2 * count)
    rows.owners.append(view)
    rows.owners.append(log)
    keys.owners.append(view)
    rows.reserve(2 * count)
    keys.reserve(2 * count)
    log.reserve_flights(count)
    if count == 0:
        return (b"", rows, keys, 0) if start == view.shape[0] else None
    work.place = &view[0] + start
    work.end = &view[0] + view.shape[0]
    work.left = count
    work.kinds = <uint8_t*> PyBytes_AS_STRING(kinds)
    work.room = work.built = work.made = work.added = work.next_id = 0
    work.last_id = -1
    if plan.auto_increment >= 0:
        work.next_id, work.last_id = sequence.next_id, min(sequence.last_id, sequence.id_max)
    first_id = work.next_id
    while work.left > 0:
        with nogil:
            outcome = put_until(log, plan, &work, rows, keys)
        if outcome == NO_ROOM:
            log.ensure(work.room)
        elif outcome == NO_IDS:
            sequence.next_id = work.next_id
            first_id = work.next_id = sequence.next()
            work.last_id = min(sequence.last_id, sequence.id_max)
        elif outcome == NO_MEMORY:
            raise MemoryError()
        elif outcome == OTHER_WAY:
            break
    if work.left > 0 or work.place != work.end:
        if plan.auto_increment >= 0:
            sequence.next_id = first_id
        return None
    if plan.auto_increment >= 0:
        sequence.next_id = work.next_id
    return kinds[:work.made], rows, keys, work.added


cdef int put_until(HashLog log, MergePlan plan, Work* work, RowSlices rows, RowSlices keys) noexcept nogil:
    """Put the records from `place` on, in chunks, until all are put or something is missing."""
    cdef Put puts[CHUNK]
    cdef const uint8_t* p
    cdef int n, done, outcome
    while work.left > 0:
        p = work.place
        n = 0
        work.room = 0
        while n < CHUNK and n < work.left and work.room < CHUNK_BYTES_MAX:
            p = parse(p, work.end, &puts[n])
            if p == NULL:
                return OTHER_WAY
            work.room += room_for(&puts[n], max(0, puts[n].row_size))
            n += 1
        if not log.has_room(work.room):
            return NO_ROOM
        done = 0
        outcome = put_some(log, plan, puts, n, &done, work, rows, keys)
        work.left -= done
        work.place = puts[done].record if done < n else p
        if outcome != DONE:
            return outcome
    return DONE


cdef inline int64_t room_for(const Put* put, int64_t row_bytes) noexcept nogil:
    return HEADER_BYTES + PREFIX + 8 + put.key_size + row_bytes


cdef const uint8_t* parse(const uint8_t* p, const uint8_t* end, Put* put) noexcept nogil:
    """Where the record at `p` ends; NULL if it is malformed, or its key is empty."""
    cdef uint64_t key_size
    cdef int64_t size
    put.record = p
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
    HashLog log, MergePlan plan, Put* puts, int n, int* done, Work* work, RowSlices rows, RowSlices keys
) noexcept nogil:
    """Put the first of `n` records, all unless something is missing or readers have waited for long."""
    cdef int i, decision
    cdef int outcome = DONE
    cdef int16_t id16 = <int16_t> plan.schema_id
    cdef int16_t old_id
    cdef uint8_t prefix[PREFIX]
    cdef uint64_t* slot
    cdef Record* old
    cdef const uint8_t* record
    cdef const uint8_t* old_row
    cdef const uint8_t* row
    cdef int32_t old_size
    cdef int64_t size
    cdef int64_t begun = work.built
    cdef Put* put
    memcpy(prefix + 4, &id16, 2)
    PyThread_acquire_lock(log.mutex, WAIT_LOCK)
    for i in range(n):
        puts[i].hash = hash_key(&log.index, puts[i].key, puts[i].key_size)
        forebay_prefetch(first_slot(&log.index, puts[i].hash))
    for i in range(n):
        record = first_record(&log.index, &log.segments, puts[i].hash)
        forebay_prefetch(record)
        forebay_prefetch(record + 64)
    for i in range(n):
        put = &puts[i]
        if reserve_slot(&log.index, &log.segments, put.hash) < 0:
            outcome = NO_MEMORY
            break
        old = log.newest(put.key, put.key_size, put.hash, &slot)
        old_row, old_size = NULL, 0
        if old != NULL:
            if old.value_size < PREFIX:
                outcome = OTHER_WAY
                break
            old_row = <const uint8_t*> old + HEADER_BYTES + put.key_size + PREFIX
            old_size = <int32_t> old.value_size - PREFIX
            memcpy(&old_id, old_row - 2, 2)
            if old_id != id16 and (plan.reads_content or put.row_size < 0):
                outcome = OTHER_WAY
                break
        elif plan.auto_increment >= 0 and put.row_size >= 0 and work.next_id > work.last_id:
            outcome = NO_IDS
            break
        decision = plan.decide(old_row, old_size, put.row, put.row_size, work.next_id)
        if decision > 0:
            outcome = OTHER_WAY
            break
        if decision == KEEPS:
            done[0] += 1
            continue
        row, size = put.row, put.row_size
        if decision == BUILDS:
            size = plan.built_bytes()
            if work.built + size > BUILT_BYTES_MAX:
                outcome = OTHER_WAY
                break
            if not log.has_room(room_for(put, size)):
                work.room = room_for(put, size) + CHUNK_BYTES_MAX
                outcome = NO_ROOM
                break
            plan.build(log.next_value(put.key_size) + PREFIX)
            work.built += size
            row = log.next_value(put.key_size) + PREFIX
            if old == NULL:
                work.next_id += plan.auto_increment >= 0
        elif not log.has_room(room_for(put, max(<int64_t> 0, size))):
            work.room = room_for(put, max(<int64_t> 0, size)) + CHUNK_BYTES_MAX
            outcome = NO_ROOM
            break
        if old != NULL and (plan.full_image or decision == REMOVES):
            work.kinds[work.made] = DELETE if decision == REMOVES else UPDATE_BEFORE
            work.made += 1
            rows.push(old_row, old_size)
            keys.push(put.key, <int32_t> put.key_size)
        if decision == REMOVES:
            work.added -= 1
            log.write(TOMBSTONE, put.hash, put.key, put.key_size, NULL, 0, NULL, 0, old, slot)
        else:
            work.kinds[work.made] = INSERT if old == NULL and plan.reads else UPDATE_AFTER
            work.made += 1
            work.added += old == NULL and plan.reads
            rows.push(row, <int32_t> size)
            keys.push(put.key, <int32_t> put.key_size)
            store_int32(prefix, <int32_t> (size + 2))
            log.write(ROW, put.hash, put.key, put.key_size, prefix, PREFIX, row, <uint32_t> size, old, slot)
        done[0] += 1
        if work.built - begun > BUILT_AT_ONCE:
            break
    PyThread_release_lock(log.mutex)
    return outcome
