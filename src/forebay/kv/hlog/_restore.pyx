"""Copies of a log for checkpoints, and the index and the counts of a log that is opened.

Bytes in files may be anything, so both check each record: its size, and the hash of a record that is part of the state.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pythread cimport PyThread_acquire_lock, PyThread_release_lock, WAIT_LOCK
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from forebay.codec._prefetch cimport forebay_prefetch
from forebay.kv.hlog._index cimport (
    erase_slot, expect_rows, find_slot, first_slot, hash_key, is_taken, position_in, reserve_slot, take_slot,
)
from forebay.kv.hlog._log cimport HashLog
from forebay.kv.hlog._record cimport (
    COMMIT, COMMIT_NUMBERS_BYTES, HEADER_BYTES, ROW, TOMBSTONE, Record, check_of, ends_segment, forebay_fold,
    forebay_load, key_of, key_size_of, kind_of, size_for, size_of, value_of,
)
from forebay.kv.hlog._segments cimport Segment, record_at, segment_at

cdef enum:
    CHUNK = 32                # records whose slots are fetched into the cache together

cdef enum Outcome:
    DONE = 0
    NO_MEMORY = 1
    DAMAGED = 2

cdef struct Queue:
    Record* records[CHUNK]
    int64_t places[CHUNK]
    uint64_t hashes[CHUNK]
    int count


def copy(HashLog log not None, int64_t snapshot, int64_t position, int64_t until, int64_t bytes_max):
    """Some bytes of the log from `position` on, in one segment, as they were at the snapshot, which must be open.

    Whole records, the first that are `bytes_max` bytes or more, or all before `until`; nothing follows a skip. Raises
    ValueError for a record that is damaged.
    """
    cdef Segment s
    cdef const Record* r
    cdef Record* copied
    cdef const uint8_t* source
    cdef uint8_t* out
    cdef int64_t size = 0
    cdef int64_t limit = until - position
    cdef int64_t bad = -1
    cdef int64_t p = 0
    cdef bytes made
    PyThread_acquire_lock(log.mutex, WAIT_LOCK)
    s = log.segments.table[segment_at(&log.segments, position)]
    PyThread_release_lock(log.mutex)
    source = s.memory + (position - s.position)
    while size < bytes_max and size + HEADER_BYTES <= limit:
        r = <const Record*> (source + size)
        if ends_segment(r):
            break
        if size_of(r) > limit - size:
            raise ValueError(f"the record at {position + size} is damaged")
        size += size_of(r)
    made = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*> PyBytes_AS_STRING(made)
    with nogil:
        memcpy(out, source, size)
        while p < size:
            copied = <Record*> (out + p)
            copied.dead_at = forebay_load(<const uint64_t*> (source + p))
            if copied.dead_at >= <uint64_t> snapshot:
                copied.dead_at = 0
            if size_of(copied) > size - p or (copied.dead_at == 0 and check_of(copied) != copied.hash):
                bad = position + p
                break
            p += size_of(copied)
    if bad >= 0:
        raise ValueError(f"the record at {bad} is damaged")
    return made


def load(HashLog log not None, int64_t start, int64_t end):
    """Rebuild the index from the segments that are mapped, whose content may be anything.

    Returns the bytes of the state. Raises ValueError, which says what is wrong.
    """
    cdef const Record* state = NULL
    cdef uint64_t digest
    cdef int64_t live
    cdef int outcome
    cdef int64_t place = start
    log.start = log.compacted = start
    log.visible = log.end = end
    log.index.origin = start
    if end == start:
        return b""
    if expect_rows(&log.index, rows_at_end(log)) < 0:
        raise MemoryError()
    with nogil:
        outcome = load_records(log, &place, end, &state)
    if outcome == NO_MEMORY:
        raise MemoryError()
    if outcome == DAMAGED:
        raise ValueError(f"the record at {place} is damaged")
    if state == NULL or place != end:
        raise ValueError(f"no commit ends at {end}")
    memcpy(&digest, value_of(state), 8)
    memcpy(&live, value_of(state) + 8, 8)
    if digest != log.live_digest or live != log.live_rows:
        raise ValueError(
            f"its {log.live_rows} rows have the digest {log.live_digest:x}, and {live} with {digest:x} were written"
        )
    return PyBytes_FromStringAndSize(
        <const char*> value_of(state) + COMMIT_NUMBERS_BYTES, state.value_size - COMMIT_NUMBERS_BYTES
    )


cdef int64_t rows_at_end(HashLog log) noexcept nogil:
    """The rows that the commit at the log's end counts, if it is sound; 0 otherwise. Only a guess."""
    cdef int64_t size, rows
    cdef const Record* r
    cdef int i = segment_at(&log.segments, log.end - 1)
    for size in range(size_for(0, COMMIT_NUMBERS_BYTES), size_for(0, COMMIT_NUMBERS_BYTES) + 128, 8):
        if log.segments.count == log.segments.first or log.end - size < log.segments.table[i].position:
            return 0
        r = record_at(&log.segments, log.end - size)
        if kind_of(r) == COMMIT and size_of(r) == size and check_of(r) == r.hash:
            memcpy(&rows, value_of(r) + 8, 8)
            return max(<int64_t> 0, min(rows, (log.end - log.start) // HEADER_BYTES))
    return 0


cdef int load_records(HashLog log, int64_t* place, int64_t end, const Record** state) noexcept nogil:
    """Index all records up to `end`. `place`: the record that is damaged; `state`: the commit that ends the log."""
    cdef Queue queue
    cdef int i
    cdef int64_t p = place[0]
    cdef int64_t stop, size
    cdef Segment* s
    cdef Record* r
    queue.count = 0
    for i in range(log.segments.first, log.segments.count):
        s = &log.segments.table[i]
        s.sum = 0
        if p != s.position:
            break
        stop = min(end, s.position + s.size)
        while stop - p >= HEADER_BYTES:
            r = <Record*> (s.memory + (p - s.position))
            if ends_segment(r):
                break
            size = size_of(r)
            place[0] = p
            if size > stop - p or (kind_of(r) == COMMIT) != (key_size_of(r) == 0):
                return DAMAGED
            s.sum += forebay_fold(r.hash, <uint64_t> p)
            if r.dead_at == 0 or r.dead_at >= <uint64_t> end:
                if check_of(r) != r.hash or (kind_of(r) == COMMIT and r.value_size < COMMIT_NUMBERS_BYTES):
                    return DAMAGED
                if r.dead_at:  # by a transaction that did not end
                    r.dead_at = 0
                if kind_of(r) == COMMIT:
                    state[0] = r if p + size == end else NULL
                elif enqueue(log, &queue, r, p) < 0:
                    return NO_MEMORY
            p += size
        s.used = p - s.position
        place[0] = p
        if p < end:
            p = s.position + s.size
    return NO_MEMORY if index_queued(log, &queue) < 0 else DONE


cdef inline int enqueue(HashLog log, Queue* queue, Record* r, int64_t place) noexcept nogil:
    """Begin to fetch the slot of a record, which is indexed with the others of the queue; -1 if there is no memory."""
    cdef int n = queue.count
    queue.records[n] = r
    queue.places[n] = place
    queue.hashes[n] = hash_key(&log.index, key_of(r), key_size_of(r))
    forebay_prefetch(first_slot(&log.index, queue.hashes[n]))
    queue.count += 1
    return index_queued(log, queue) if queue.count == CHUNK else 0


cdef int index_queued(HashLog log, Queue* queue) noexcept nogil:
    """Index the records of the queue, and empty it; -1 if there is no memory."""
    cdef int i
    cdef uint64_t h
    cdef uint64_t* slot
    cdef Record* old
    cdef Record* r
    for i in range(queue.count):
        h = queue.hashes[i]
        if reserve_slot(&log.index, &log.segments, h) < 0:
            return -1
        r = queue.records[i]
        slot = find_slot(&log.index, &log.segments, key_of(r), key_size_of(r), h, True)
        if is_taken(slot[0]):
            old = record_at(&log.segments, position_in(&log.index, slot[0]))
            old.dead_at = <uint64_t> queue.places[i]
            log.take_live(old)
            if kind_of(r) == TOMBSTONE:
                erase_slot(&log.index, slot, h)
        if kind_of(r) == ROW:
            log.add_live(r)
            take_slot(&log.index, slot, h, queue.places[i])
    queue.count = 0
    return 0
