# The hash index of a log. See _index.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from forebay.kv.hlog._record cimport forebay_fold
from forebay.kv.hlog._segments cimport Segments, record_at

cdef enum:
    PLACE_BITS = 40           # of a slot; the other 24 bits are of the key's hash

cdef struct Bin:
    uint64_t* slots
    uint32_t mask
    uint32_t used             # slots that are not free
    uint32_t live
    int depth

cdef struct Index:
    uint64_t seed
    Bin** bins                # 2 ** depth pointers; a bin whose own depth is less has several of them
    int depth
    int64_t bin_bytes
    int64_t origin            # positions in slots count from here on

cdef inline uint64_t hash_key(const Index* index, const uint8_t* key, Py_ssize_t size) noexcept nogil:
    cdef uint64_t h = index.seed ^ (<uint64_t> size * <uint64_t> 0x9E3779B97F4A7C15)
    cdef uint64_t word
    cdef uint32_t first, last
    while size > 8:
        memcpy(&word, key, 8)
        h = forebay_fold(h ^ word, <uint64_t> 0xA0761D6478BD642F)
        key += 8
        size -= 8
    if size == 8:
        memcpy(&word, key, 8)
    elif size >= 4:
        memcpy(&first, key, 4)
        memcpy(&last, key + size - 4, 4)
        word = (<uint64_t> first << 32) | last
    else:
        word = 0
        memcpy(&word, key, size)
    h = forebay_fold(h ^ word, <uint64_t> 0xE7037ED1A0B428DB)
    return forebay_fold(h, index.seed | 1) ^ h

cdef inline bint is_taken(uint64_t slot) noexcept nogil:
    """Whether a slot holds the position of a record."""
    return slot != 0 and slot != ~(<uint64_t> 0)

cdef inline Bin* bin_of(const Index* index, uint64_t h) noexcept nogil:
    return index.bins[(h >> 1) >> (63 - index.depth)]

cdef inline uint64_t slot_value(const Index* index, uint64_t h, int64_t position) noexcept nogil:
    return ((h >> 16) << PLACE_BITS) | (<uint64_t> ((position - index.origin) >> 3) + 1)

cdef inline int64_t position_in(const Index* index, uint64_t slot) noexcept nogil:
    return index.origin + ((<int64_t> (slot & (((<uint64_t> 1) << PLACE_BITS) - 1)) - 1) << 3)

cdef inline void take_slot(Index* index, uint64_t* slot, uint64_t h, int64_t position) noexcept nogil:
    """Point a slot, which `find_slot` returned, to the record at `position`."""
    cdef Bin* b
    if not is_taken(slot[0]):
        b = bin_of(index, h)
        b.used += slot[0] == 0
        b.live += 1
    slot[0] = slot_value(index, h, position)

cdef inline void erase_slot(Index* index, uint64_t* slot, uint64_t h) noexcept nogil:
    bin_of(index, h).live -= 1
    slot[0] = ~(<uint64_t> 0)

# The caller fetches what these two return into the cache: GCC would take a function that only does that for one without
# effects, and remove it.

cdef inline const uint64_t* first_slot(const Index* index, uint64_t h) noexcept nogil:
    """The slot at which the search for a key begins."""
    cdef Bin* b = bin_of(index, h)
    return &b.slots[h & b.mask]

cdef inline const uint8_t* first_record(const Index* index, const Segments* segments, uint64_t h) noexcept nogil:
    """The record with which a key is compared first, if that slot is taken; anything otherwise."""
    cdef uint64_t slot = first_slot(index, h)[0]
    if is_taken(slot):
        return <const uint8_t*> record_at(segments, position_in(index, slot))
    return <const uint8_t*> index.bins

cdef int init_index(Index* index, uint64_t seed) noexcept nogil
cdef void free_index(Index* index) noexcept nogil
cdef int64_t index_bytes(const Index* index) noexcept nogil
cdef uint64_t* find_slot(
    const Index* index, const Segments* segments, const uint8_t* key, Py_ssize_t size, uint64_t h, bint to_insert
) noexcept nogil
cdef int reserve_slot(Index* index, const Segments* segments, uint64_t h) noexcept nogil
cdef void move_origin(Index* index, int64_t origin) noexcept nogil
cdef int expect_rows(Index* index, int64_t rows) noexcept nogil
