"""The hash index of a log: where the newest record of each key lies.

It is a directory of bins (extendible hashing), so that it never grows in one long step. A slot is 0 (free), ~0
(erased), or 24 bits of the key's hash and a position in units of eight bytes from `origin` on, plus one. Keys are not
stored: a slot whose bits match leads to the record, which has the key. Because of the seed no client can choose keys
that collide.

The functions are called with the mutex of the log held (`_log.HashLog`).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

from forebay.codec._prefetch cimport forebay_prefetch
from forebay.kv.hlog._record cimport Record, key_of, key_size_of
from forebay.kv.hlog._segments cimport Segments, record_at

cdef enum:
    BIN_SLOTS_MIN = 64
    BIN_SLOTS_MAX = 8192
    DEPTH_MAX = 28
    BATCH = 32                # records that are fetched into the cache together

cdef uint64_t ERASED = ~(<uint64_t> 0)
cdef uint64_t PLACE_MASK = ((<uint64_t> 1) << PLACE_BITS) - 1


cdef int init_index(Index* index, uint64_t seed) noexcept nogil:
    """Make `index`, which is zeros, an empty index; -1 if there is no memory."""
    index.seed = seed
    index.bins = <Bin**> calloc(1, sizeof(Bin*))
    if index.bins == NULL:
        return -1
    index.bins[0] = new_bin(index, BIN_SLOTS_MIN, 0)
    return -1 if index.bins[0] == NULL else 0


cdef void free_index(Index* index) noexcept nogil:
    """Free the memory of an index, which may be incomplete."""
    cdef int64_t place = 0
    cdef int64_t step
    if index.bins == NULL:
        return
    while place < (<int64_t> 1) << index.depth:
        if index.bins[place] == NULL:
            break
        step = (<int64_t> 1) << (index.depth - index.bins[place].depth)
        free(index.bins[place].slots)
        free(index.bins[place])
        place += step
    free(index.bins)


cdef int64_t index_bytes(const Index* index) noexcept nogil:
    """Memory that the index takes."""
    return index.bin_bytes + ((<int64_t> 1) << index.depth) * sizeof(Bin*)


cdef uint64_t* find_slot(
    const Index* index, const Segments* segments, const uint8_t* key, Py_ssize_t size, uint64_t h, bint to_insert
) noexcept nogil:
    """The slot of the key; where it has none, NULL, or if `to_insert` the slot that it would get."""
    cdef Bin* b = bin_of(index, h)
    cdef uint32_t i = <uint32_t> h & b.mask
    cdef uint64_t tag = (h >> 16) << PLACE_BITS
    cdef uint64_t slot
    cdef uint64_t* erased = NULL
    cdef Record* r
    while True:
        slot = b.slots[i]
        if slot == 0:
            if not to_insert:
                return NULL
            return &b.slots[i] if erased == NULL else erased
        if slot == ERASED:
            if erased == NULL:
                erased = &b.slots[i]
        elif (slot ^ tag) <= PLACE_MASK:
            r = record_at(segments, position_in(index, slot))
            if key_size_of(r) == <uint32_t> size and memcmp(key_of(r), key, size) == 0:
                return &b.slots[i]
        i = (i + 1) & b.mask


cdef int reserve_slot(Index* index, const Segments* segments, uint64_t h) noexcept nogil:
    """Ensure that the bin of `h` has a free slot to spare; -1 if there is no memory."""
    cdef Bin* b = bin_of(index, h)
    while (b.used + 1) * 5 > (b.mask + 1) * 4:
        if grow_bin(index, segments, b, h) < 0:
            return -1
        b = bin_of(index, h)
    return 0


cdef void move_origin(Index* index, int64_t origin) noexcept nogil:
    """Count the positions in slots from `origin` on, at or before the first record, so that they fit."""
    cdef int64_t place = 0
    cdef uint64_t shift = <uint64_t> ((origin - index.origin) >> 3)
    cdef Bin* b
    cdef uint32_t i
    while place < (<int64_t> 1) << index.depth:
        b = index.bins[place]
        for i in range(b.mask + 1):
            if is_taken(b.slots[i]):
                b.slots[i] -= shift
        place += (<int64_t> 1) << (index.depth - b.depth)
    index.origin += <int64_t> (shift << 3)


cdef int expect_rows(Index* index, int64_t rows) noexcept nogil:
    """Make the empty index large enough for `rows` keys, so that it need not grow step by step; -1 without memory."""
    cdef int depth = 0
    cdef int64_t i
    cdef Bin** bins
    while depth < DEPTH_MAX and rows * 5 > ((<int64_t> BIN_SLOTS_MAX * 3) << depth):
        depth += 1
    if depth == 0:
        return 0
    bins = <Bin**> calloc((<int64_t> 1) << depth, sizeof(Bin*))
    if bins == NULL:
        return -1
    free(index.bins[0].slots)
    free(index.bins[0])
    free(index.bins)
    index.bins, index.depth, index.bin_bytes = bins, depth, 0
    for i in range((<int64_t> 1) << depth):
        bins[i] = new_bin(index, BIN_SLOTS_MAX, depth)
        if bins[i] == NULL:
            return -1
    return 0


cdef Bin* new_bin(Index* index, uint32_t slots, int depth) noexcept nogil:
    cdef Bin* made = <Bin*> calloc(1, sizeof(Bin))
    if made == NULL:
        return NULL
    made.slots = <uint64_t*> calloc(slots, sizeof(uint64_t))
    if made.slots == NULL:
        free(made)
        return NULL
    made.mask = slots - 1
    made.depth = depth
    index.bin_bytes += sizeof(Bin) + slots * sizeof(uint64_t)
    return made


cdef void move_slots(
    const Index* index, const Segments* segments, Bin* source, Bin* low, Bin* high, int bit
) noexcept nogil:
    """Move the slots of `source` into `low`, and those whose hash has `bit` set into `high` if that is not NULL."""
    cdef uint64_t hashes[BATCH]
    cdef uint64_t values[BATCH]
    cdef uint32_t i = 0
    cdef uint32_t place
    cdef int n, j
    cdef Record* r
    cdef Bin* target
    while i <= source.mask:
        n = 0
        while n < BATCH and i <= source.mask:
            if is_taken(source.slots[i]):
                values[n] = source.slots[i]
                forebay_prefetch(record_at(segments, position_in(index, values[n])))
                n += 1
            i += 1
        for j in range(n):
            r = record_at(segments, position_in(index, values[j]))
            hashes[j] = hash_key(index, key_of(r), key_size_of(r))
        for j in range(n):
            target = high if high != NULL and (hashes[j] >> bit) & 1 else low
            place = <uint32_t> hashes[j] & target.mask
            while target.slots[place]:
                place = (place + 1) & target.mask
            target.slots[place] = values[j]
            target.used += 1
            target.live += 1


cdef int grow_bin(Index* index, const Segments* segments, Bin* b, uint64_t h) noexcept nogil:
    """Replace the bin of `h`, which is nearly full, by a larger one or by two; -1 if there is no memory."""
    cdef Bin* low
    cdef Bin* high = NULL
    cdef Bin** grown
    cdef int64_t i, first, width
    cdef uint32_t slots = b.mask + 1
    cdef bint is_split = False
    if b.live * 4 > slots * 2:  # otherwise most of its slots are erased, and a new bin of the same size is enough
        if slots < BIN_SLOTS_MAX or b.depth >= DEPTH_MAX:
            slots *= 2
        else:
            is_split = True
    if is_split and b.depth == index.depth:
        grown = <Bin**> malloc(((<int64_t> 2) << index.depth) * sizeof(Bin*))
        if grown == NULL:
            return -1
        for i in range((<int64_t> 1) << index.depth):
            grown[2 * i] = grown[2 * i + 1] = index.bins[i]
        free(index.bins)
        index.bins = grown
        index.depth += 1
    low = new_bin(index, slots, b.depth + is_split)
    if low == NULL:
        return -1
    if is_split:
        high = new_bin(index, slots, b.depth + 1)
        if high == NULL:
            free(low.slots)
            free(low)
            return -1
    move_slots(index, segments, b, low, high, 63 - b.depth)
    width = (<int64_t> 1) << (index.depth - b.depth)
    first = (<int64_t> ((h >> 1) >> (63 - index.depth))) & ~(width - 1)
    for i in range(width):
        index.bins[first + i] = high if is_split and 2 * i >= width else low
    index.bin_bytes -= sizeof(Bin) + (b.mask + 1) * sizeof(uint64_t)
    free(b.slots)
    free(b)
    return 0
