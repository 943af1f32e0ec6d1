# The mapped segments of a log. See _segments.pyx.
from libc.stdint cimport int64_t, uint8_t, uint64_t

from forebay.kv.hlog._record cimport Record

cdef enum:
    GRANULE_BITS = 16         # segments are whole numbers of granules

cdef struct Segment:
    int64_t position          # of its first byte
    int64_t size              # of the mapping
    int64_t allocated         # bytes that have blocks
    int64_t used              # bytes of records, once it is sealed
    int64_t retired_at        # the end of the log when it was retired, or 0
    uint64_t sum              # of its records' hashes, each with its position
    uint8_t* memory

cdef struct Segments:
    Segment* table            # those from `first` on, below `count`, are mapped
    int first
    int count
    int capacity
    uint8_t** granules        # the memory of each granule of the log from `first_granule` on
    int64_t first_granule
    int64_t granule_capacity

cdef inline Record* record_at(const Segments* segments, int64_t position) noexcept nogil:
    cdef int64_t granule = (position >> GRANULE_BITS) - segments.first_granule
    return <Record*> (segments.granules[granule] + (position & ((1 << GRANULE_BITS) - 1)))

cdef inline Segment* first_segment(const Segments* segments) noexcept nogil:
    return &segments.table[segments.first]

cdef inline Segment* last_segment(const Segments* segments) noexcept nogil:
    """The segment that is written."""
    return &segments.table[segments.count - 1]

cdef int add_segment(
    Segments* segments, uint8_t* memory, int64_t position, int64_t size, int64_t allocated
) noexcept nogil
cdef int segment_at(const Segments* segments, int64_t position) noexcept nogil
cdef int64_t seal_last(Segments* segments, int64_t end) noexcept nogil
cdef void unmap_retired(Segments* segments, int64_t oldest) noexcept nogil
cdef void free_segments(Segments* segments) noexcept nogil
