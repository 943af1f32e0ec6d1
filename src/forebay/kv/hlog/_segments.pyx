"""The mapped segments of a log: a position of the log is a place in memory.

A *position* is a byte of the log, counted from its beginning for ever; a *segment* is a file with a part of the log,
mapped into memory. Segments follow each other. Each is a whole number of *granules*, whose addresses are in a table, so
that `record_at` is one table lookup. Segments whose records have all been superseded or moved are *retired*, and
unmapped when no reader can need them any more.

The functions are called with the mutex of the log held (`_log.HashLog`), except `record_at` by the one thread that
writes: a segment stays where it is mapped, but the tables may move.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset
from posix.mman cimport munmap

from forebay.kv.hlog._record cimport HEADER_BYTES, KIND_SHIFT, SKIP, Record

FIRST_POSITION = 1 << GRANULE_BITS
"""Where a log begins: a position is never 0."""

cdef enum:
    FORGOTTEN_MIN = 64        # entries of unmapped segments that a table may have


cdef int add_segment(
    Segments* segments, uint8_t* memory, int64_t position, int64_t size, int64_t allocated
) noexcept nogil:
    """Add the next segment, which is mapped at `memory`; -1 if there is no memory for the tables."""
    cdef Segment* last
    cdef void* grown
    cdef int64_t granule, needed, i
    if segments.first > FORGOTTEN_MIN and segments.first * 2 > segments.count:
        memmove(
            segments.table, segments.table + segments.first, (segments.count - segments.first) * sizeof(Segment)
        )
        segments.count -= segments.first
        segments.first = 0
    if segments.count == segments.capacity:
        grown = realloc(segments.table, (2 * segments.capacity + 8) * sizeof(Segment))
        if grown == NULL:
            return -1
        segments.table = <Segment*> grown
        segments.capacity = 2 * segments.capacity + 8
    granule = position >> GRANULE_BITS
    if segments.count == segments.first:
        segments.first_granule = granule
    else:
        i = (first_segment(segments).position >> GRANULE_BITS) - segments.first_granule
        if i > FORGOTTEN_MIN and 2 * i > granule - segments.first_granule:
            memmove(
                segments.granules, segments.granules + i, (granule - segments.first_granule - i) * sizeof(uint8_t*)
            )
            segments.first_granule += i
    needed = granule - segments.first_granule + (size >> GRANULE_BITS)
    if needed > segments.granule_capacity:
        grown = realloc(segments.granules, 2 * needed * sizeof(uint8_t*))
        if grown == NULL:
            return -1
        segments.granules = <uint8_t**> grown
        segments.granule_capacity = 2 * needed
    for i in range(size >> GRANULE_BITS):
        segments.granules[granule - segments.first_granule + i] = memory + (i << GRANULE_BITS)
    last = &segments.table[segments.count]
    last.position, last.size, last.allocated, last.used = position, size, allocated, 0
    last.retired_at, last.sum, last.memory = 0, 0, memory
    segments.count += 1
    return 0


cdef int segment_at(const Segments* segments, int64_t position) noexcept nogil:
    """The number of the segment in which `position` lies."""
    cdef int low = segments.first
    cdef int high = segments.count - 1
    cdef int middle
    while low < high:
        middle = (low + high + 1) >> 1
        if segments.table[middle].position <= position:
            low = middle
        else:
            high = middle - 1
    return low


cdef int64_t seal_last(Segments* segments, int64_t end) noexcept nogil:
    """End the last segment behind its records, at `end`; the position of the next segment, where the log continues."""
    cdef Segment* last = last_segment(segments)
    cdef int64_t room = last.position + last.allocated - end
    cdef Record* skip
    if end >= last.position + last.size:
        return end
    last.used = end - last.position
    skip = record_at(segments, end)
    if room >= HEADER_BYTES:  # bytes that a rollback or a crash left must not look like records
        memset(skip, 0, HEADER_BYTES)
        skip.kind_and_key = (<uint32_t> SKIP) << KIND_SHIFT
    elif room > 0:
        memset(skip, 0, room)
    return last.position + last.size


cdef void unmap_retired(Segments* segments, int64_t oldest) noexcept nogil:
    """Unmap the segments that were retired at or before `oldest`, the position of the oldest reader."""
    cdef Segment* segment
    while segments.first < segments.count:
        segment = first_segment(segments)
        if segment.retired_at == 0 or segment.retired_at > oldest:
            return
        munmap(segment.memory, segment.size)
        segments.first += 1


cdef void free_segments(Segments* segments) noexcept nogil:
    """Unmap everything and free the tables."""
    cdef int i
    for i in range(segments.first, segments.count):
        munmap(segments.table[i].memory, segments.table[i].size)
    free(segments.table)
    free(segments.granules)
