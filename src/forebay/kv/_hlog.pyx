"""A hash index over an append-only log of records: the compiled part of the engine `hlog` (docs/format/hlog.md).

Terms: a *record* is a row, a tombstone (a key was deleted), a commit (the state that belongs to all before it), or a
skip (nothing follows in this segment). A *position* is a byte of the log, counted from its beginning for ever; a
*segment* is a file with a part of the log, mapped into memory. Records never change, but for `dead_at`: the position
of the record that superseded them. So a snapshot is a position P: a row before P is in it unless it was dead before P.

One thread writes: `put` and `delete` append beyond `visible`, where no reader looks, and `commit` makes all of it
visible at once; `rollback` takes a part back. Meanwhile the index has the new positions; a reader that finds one looks
up, in the list of these *flights*, which record it replaced. Any thread reads. The mutex guards index, flights and
tables of segments; the writer lets go of it after every few rows.

The index is a directory of bins (extendible hashing), so that it never grows in one long step. A slot is 0 (free), ~0
(erased), or 24 bits of the key's hash and a position in units of eight bytes from `origin` on, plus one.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, WAIT_LOCK,
)
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

from forebay.codec._prefetch cimport forebay_prefetch
from forebay.codec.rows._slices cimport RowSlices
from forebay.codec._wire cimport store_int32
from forebay.kv._digest cimport hash_pair

import numpy as np

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define forebay_store(address, value) __atomic_store_n(address, value, __ATOMIC_RELEASE)
    #define forebay_load(address) __atomic_load_n(address, __ATOMIC_ACQUIRE)
    #endif
    typedef unsigned __int128 forebay_uint128;
    static inline uint64_t forebay_fold(uint64_t a, uint64_t b) {
        forebay_uint128 product = (forebay_uint128) a * b;
        return (uint64_t) product ^ (uint64_t) (product >> 64);
    }
    """
    void forebay_store(uint64_t* address, uint64_t value) noexcept nogil
    uint64_t forebay_load(const uint64_t* address) noexcept nogil
    uint64_t forebay_fold(uint64_t a, uint64_t b) noexcept nogil

cdef enum:
    GRANULE_BITS = 16
    BIN_SLOTS_MIN = 64
    BIN_SLOTS_MAX = 8192
    DEPTH_MAX = 28
    KIND_SHIFT = 30
    HEAD_BYTES = 4096
    HEAD_START = 16
    HEAD_END = 24
    COMMIT_NUMBERS_BYTES = 16
    COMMIT_BYTES_MAX = 128
    VALUE_BATCH_HEADER_BYTES = 9  # length i32, magic i8, count i32
    STORED_PREFIX_BYTES = 6       # length i32, schema id i16
    SCAN_AHEAD_BYTES = 2048       # which are fetched into the cache before a scan comes to them

cdef uint32_t KEY_MASK = 0x3FFFFFFF
cdef uint64_t ERASED = ~(<uint64_t> 0)
cdef uint64_t PLACE_MASK = ((<uint64_t> 1) << 40) - 1
cdef int64_t GRANULE = 1 << GRANULE_BITS  # segments are whole numbers of it

FIRST_POSITION = GRANULE
"""Where a log begins: a position is never 0."""


cdef inline int kind_of(const Record* r) noexcept nogil:
    return r.kind_and_key >> KIND_SHIFT


cdef inline uint32_t key_size_of(const Record* r) noexcept nogil:
    return r.kind_and_key & KEY_MASK


cdef inline const uint8_t* key_of(const Record* r) noexcept nogil:
    return <const uint8_t*> r + HEADER_BYTES


cdef inline const uint8_t* value_of(const Record* r) noexcept nogil:
    return <const uint8_t*> r + HEADER_BYTES + key_size_of(r)


cdef inline int64_t size_for(int64_t key_size, int64_t value_size) noexcept nogil:
    return (HEADER_BYTES + key_size + value_size + 7) & ~7


cdef inline int64_t size_of(const Record* r) noexcept nogil:
    return size_for(key_size_of(r), r.value_size)


cdef inline bint ends_segment(const Record* r) noexcept nogil:
    """Whether no record follows: a skip, or bytes that were never written."""
    return kind_of(r) == SKIP or (r.hash == 0 and r.kind_and_key == 0 and r.value_size == 0)


cdef inline uint64_t check_of(const Record* r) noexcept nogil:
    cdef uint64_t h = hash_pair(key_of(r), key_size_of(r), value_of(r), r.value_size)
    return h if kind_of(r) == ROW else ~h


cdef class HashLog:
    """See the module. Methods that write, and those that map and free, are called by one thread at a time."""

    def __cinit__(self, int head, uint64_t seed):
        """`head`: a descriptor of the file of that name, of 4096 bytes. Not used after this returns."""
        self.mutex = PyThread_allocate_lock()
        self.seed = seed
        self.far = (<int64_t> 1) << 42
        self.bins = <Bin**> calloc(1, sizeof(Bin*))
        if self.mutex == NULL or self.bins == NULL:
            raise MemoryError()
        self.bins[0] = self.new_bin(BIN_SLOTS_MIN, 0)
        if self.bins[0] == NULL:
            raise MemoryError()
        cdef void* memory = mmap(NULL, HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, head, 0)
        if memory == MAP_FAILED:
            raise OSError("the file 'head' cannot be mapped")
        self.head = <uint8_t*> memory

    def __dealloc__(self):
        cdef int i
        cdef int64_t place, step
        for i in range(self.first, self.count):
            munmap(self.segments[i].memory, self.segments[i].size)
        if self.head != NULL:
            munmap(self.head, HEAD_BYTES)
        if self.bins != NULL:
            place = 0
            while place < (<int64_t> 1) << self.depth:
                if self.bins[place] == NULL:
                    break
                step = (<int64_t> 1) << (self.depth - self.bins[place].depth)
                free(self.bins[place].slots)
                free(self.bins[place])
                place += step
            free(self.bins)
        free(self.segments)
        free(self.granules)
        free(self.flight_positions)
        free(self.flight_before)
        free(self.snapshots)
        if self.mutex != NULL:
            PyThread_free_lock(self.mutex)

    # ---- segments ---------------------------------------------------------------------------------------------------

    def map_segment(self, int descriptor, int64_t position, int64_t size, int64_t allocated):
        """Add the file `descriptor` as the next part of the log; its first `allocated` bytes have blocks.

        A log that is being written goes on in it. Raises OSError if it cannot be mapped.
        """
        cdef Segment* last
        if position & (GRANULE - 1) or size & (GRANULE - 1) or size <= 0:
            raise ValueError(f"a segment of {size} bytes at {position}")
        if self.count > self.first:
            last = &self.segments[self.count - 1]
            if position != last.position + last.size:
                raise ValueError(f"a segment at {position} does not follow the one at {last.position}")
        cdef void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
        if memory == MAP_FAILED:
            raise OSError(
                f"{size} bytes of the log cannot be mapped into memory; the system may allow this process no more maps "
                "(vm.max_map_count)"
            )
        cdef bint failed = False
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        if self.end and self.count > self.first:
            self.seal()
        failed = self.add_segment(<uint8_t*> memory, position, size, allocated) < 0
        PyThread_release_lock(self.mutex)
        if failed:
            munmap(memory, size)
            raise MemoryError()

    cdef int add_segment(self, uint8_t* memory, int64_t position, int64_t size, int64_t allocated) noexcept nogil:
        """With the mutex held; -1 if there is no memory."""
        cdef Segment* last
        cdef void* grown
        cdef int64_t granule, needed, i
        if self.first > 64 and self.first * 2 > self.count:  # forget those that are gone
            memmove(self.segments, self.segments + self.first, (self.count - self.first) * sizeof(Segment))
            self.count -= self.first
            self.first = 0
        if self.count == self.capacity:
            grown = realloc(self.segments, (2 * self.capacity + 8) * sizeof(Segment))
            if grown == NULL:
                return -1
            self.segments = <Segment*> grown
            self.capacity = 2 * self.capacity + 8
        granule = position >> GRANULE_BITS
        if self.count == self.first:
            self.first_granule = granule
        else:
            i = (self.segments[self.first].position >> GRANULE_BITS) - self.first_granule
            if i > 64 and 2 * i > granule - self.first_granule:
                memmove(
                    self.granules, self.granules + i, (granule - self.first_granule - i) * sizeof(uint8_t*)
                )
                self.first_granule += i
        needed = granule - self.first_granule + (size >> GRANULE_BITS)
        if needed > self.granule_capacity:
            grown = realloc(self.granules, 2 * needed * sizeof(uint8_t*))
            if grown == NULL:
                return -1
            self.granules = <uint8_t**> grown
            self.granule_capacity = 2 * needed
        for i in range(size >> GRANULE_BITS):
            self.granules[granule - self.first_granule + i] = memory + (i << GRANULE_BITS)
        last = &self.segments[self.count]
        last.position, last.size, last.allocated, last.used = position, size, allocated, 0
        last.retired_at, last.sum, last.memory = 0, 0, memory
        self.count += 1
        return 0

    def begin(self):
        """Begin an empty log in the segment that is mapped."""
        self.start = self.visible = self.end = self.origin = self.compacted = self.segments[self.first].position
        forebay_store(<uint64_t*> (self.head + HEAD_START), <uint64_t> self.start)
        forebay_store(<uint64_t*> (self.head + HEAD_END), <uint64_t> self.end)

    @property
    def tail(self):
        """(position, bytes, allocated bytes) of the segment that is written."""
        cdef Segment* last = &self.segments[self.count - 1]
        return last.position, last.size, last.allocated

    def set_allocated(self, int64_t allocated):
        """Note that so many bytes of the segment that is written have blocks."""
        self.segments[self.count - 1].allocated = allocated

    cdef void seal(self) noexcept nogil:
        """End the segment that is written. The next one is mapped already."""
        cdef Segment* last = &self.segments[self.count - 1]
        cdef int64_t room = last.position + last.allocated - self.end
        if self.end >= last.position + last.size:
            return
        last.used = self.end - last.position
        if room >= HEADER_BYTES:  # what a rollback or a crash left must not be taken for records
            memset(self.at(self.end), 0, HEADER_BYTES)
            self.at(self.end).kind_and_key = (<uint32_t> SKIP) << KIND_SHIFT
        elif room > 0:
            memset(self.at(self.end), 0, room)
        self.end = last.position + last.size

    def segment_list(self, int64_t since, int64_t until):
        """[(position, bytes of the mapping, bytes of records, sum or None)] of the segments between two positions.

        The sum is None for the segment in which `until` lies: it is not complete.
        """
        cdef int i, n
        cdef Segment* s
        cdef Segment* copied
        cdef list found = []
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        n = self.count - self.first
        copied = <Segment*> malloc(n * sizeof(Segment) + 1)
        if copied != NULL:
            memcpy(copied, self.segments + self.first, n * sizeof(Segment))
        PyThread_release_lock(self.mutex)
        if copied == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                s = &copied[i]
                if s.position + s.size <= since or s.position >= until:
                    continue
                if s.position + s.size <= until:
                    found.append((s.position, s.size, s.used, s.sum))
                else:
                    found.append((s.position, s.size, until - s.position, None))
        finally:
            free(copied)
        return found

    cdef int segment_at(self, int64_t position) noexcept nogil:
        """The segment in which `position` lies."""
        cdef int low = self.first
        cdef int high = self.count - 1
        cdef int middle
        while low < high:
            middle = (low + high + 1) >> 1
            if self.segments[middle].position <= position:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def first_position(self):
        """Where the first segment begins that is still mapped: the files of those before it can be removed."""
        return self.segments[self.first].position

    cdef void free_retired(self) noexcept nogil:
        """Unmap retired segments that no reader can need any more. With the mutex held."""
        cdef Segment* s
        cdef int64_t oldest = self.visible
        cdef int i
        if self.readers:
            return
        for i in range(self.snapshot_count):
            oldest = min(oldest, self.snapshots[i])
        while self.first < self.count:
            s = &self.segments[self.first]
            if s.retired_at == 0 or s.retired_at > oldest:
                return
            munmap(s.memory, s.size)
            self.first += 1

    # ---- the index --------------------------------------------------------------------------------------------------

    cdef uint64_t hash_key(self, const uint8_t* key, Py_ssize_t size) noexcept nogil:
        cdef uint64_t h = self.seed ^ (<uint64_t> size * <uint64_t> 0x9E3779B97F4A7C15)
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
        return forebay_fold(h, self.seed | 1) ^ h

    cdef Bin* new_bin(self, uint32_t slots, int depth) noexcept nogil:
        cdef Bin* made = <Bin*> calloc(1, sizeof(Bin))
        if made == NULL:
            return NULL
        made.slots = <uint64_t*> calloc(slots, sizeof(uint64_t))
        if made.slots == NULL:
            free(made)
            return NULL
        made.mask = slots - 1
        made.depth = depth
        self.bin_bytes += sizeof(Bin) + slots * sizeof(uint64_t)
        return made

    cdef void prefetch_slot(self, uint64_t h) noexcept nogil:
        cdef Bin* b = self.bin_of(h)
        forebay_prefetch(&b.slots[h & b.mask])

    cdef void prefetch_record(self, uint64_t h) noexcept nogil:
        cdef Bin* b = self.bin_of(h)
        cdef uint64_t slot = b.slots[h & b.mask]
        cdef uint8_t* r
        if slot and slot != ERASED:
            r = <uint8_t*> self.at(self.position_in(slot))
            forebay_prefetch(r)
            forebay_prefetch(r + 64)

    cdef uint64_t* find(self, const uint8_t* key, Py_ssize_t size, uint64_t h, bint to_insert) noexcept nogil:
        """The slot of the key; where it has none, NULL, or if `to_insert` the slot that it would get."""
        cdef Bin* b = self.bin_of(h)
        cdef uint32_t i = <uint32_t> h & b.mask
        cdef uint64_t tag = (h >> 16) << 40
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
                r = self.at(self.position_in(slot))
                if key_size_of(r) == <uint32_t> size and memcmp(key_of(r), key, size) == 0:
                    return &b.slots[i]
            i = (i + 1) & b.mask

    cdef int fill(self, Bin* source, Bin* low, Bin* high, int bit) noexcept nogil:
        """Move the slots of `source` into `low`, and those whose hash has `bit` set into `high`."""
        cdef uint64_t hashes[CHUNK]
        cdef uint64_t values[CHUNK]
        cdef uint32_t i = 0
        cdef uint32_t place
        cdef int n, j
        cdef Record* r
        cdef Bin* target
        while i <= source.mask:
            n = 0
            while n < CHUNK and i <= source.mask:
                if source.slots[i] and source.slots[i] != ERASED:
                    values[n] = source.slots[i]
                    forebay_prefetch(self.at(self.position_in(values[n])))
                    n += 1
                i += 1
            for j in range(n):
                r = self.at(self.position_in(values[j]))
                hashes[j] = self.hash_key(key_of(r), key_size_of(r))
            for j in range(n):
                target = high if high != NULL and (hashes[j] >> bit) & 1 else low
                place = <uint32_t> hashes[j] & target.mask
                while target.slots[place]:
                    place = (place + 1) & target.mask
                target.slots[place] = values[j]
                target.used += 1
                target.live += 1
        return 0

    cdef int grow(self, Bin* b, uint64_t h) noexcept nogil:
        """Make the bin of `h`, which is nearly full, larger, or two of it; -1 if there is no memory."""
        cdef Bin* low
        cdef Bin* high = NULL
        cdef Bin** grown
        cdef int64_t i, first, width
        cdef uint32_t slots = b.mask + 1
        cdef bint is_split = False
        if b.live * 4 > slots * 2:  # otherwise most of what fills it is erased
            if slots < BIN_SLOTS_MAX or b.depth >= DEPTH_MAX:
                slots *= 2
            else:
                is_split = True
        if is_split and b.depth == self.depth:
            grown = <Bin**> malloc(((<int64_t> 2) << self.depth) * sizeof(Bin*))
            if grown == NULL:
                return -1
            for i in range((<int64_t> 1) << self.depth):
                grown[2 * i] = grown[2 * i + 1] = self.bins[i]
            free(self.bins)
            self.bins = grown
            self.depth += 1
        low = self.new_bin(slots, b.depth + is_split)
        if low == NULL:
            return -1
        if is_split:
            high = self.new_bin(slots, b.depth + 1)
            if high == NULL:
                free(low.slots)
                free(low)
                return -1
        self.fill(b, low, high, 63 - b.depth)
        width = (<int64_t> 1) << (self.depth - b.depth)
        first = (<int64_t> ((h >> 1) >> (63 - self.depth))) & ~(width - 1)
        for i in range(width):
            self.bins[first + i] = high if is_split and 2 * i >= width else low
        self.bin_bytes -= sizeof(Bin) + (b.mask + 1) * sizeof(uint64_t)
        free(b.slots)
        free(b)
        return 0

    cdef int reserve_slot(self, uint64_t h) noexcept nogil:
        """Ensure that the bin of `h` has a free slot to spare; -1 if there is no memory."""
        cdef Bin* b = self.bin_of(h)
        while (b.used + 1) * 5 > (b.mask + 1) * 4:
            if self.grow(b, h) < 0:
                return -1
            b = self.bin_of(h)
        return 0

    @property
    def index_bytes(self):
        """Memory that the index takes."""
        return self.bin_bytes + ((<int64_t> 1) << self.depth) * sizeof(Bin*)

    cdef int move_origin(self) noexcept nogil:
        """Count the positions in slots from the log's beginning on, so that they fit."""
        cdef int64_t place = 0
        cdef uint64_t shift = <uint64_t> ((self.segments[self.first].position - self.origin) >> 3)
        cdef Bin* b
        cdef uint32_t i
        while place < (<int64_t> 1) << self.depth:
            b = self.bins[place]
            for i in range(b.mask + 1):
                if b.slots[i] and b.slots[i] != ERASED:
                    b.slots[i] -= shift
            place += (<int64_t> 1) << (self.depth - b.depth)
        self.origin += <int64_t> (shift << 3)
        return 0

    # ---- writing ----------------------------------------------------------------------------------------------------

    cdef int reserve_flights(self, Py_ssize_t extra) except -1:
        cdef Py_ssize_t capacity
        cdef void* grown
        if self.flights + extra <= self.flight_capacity:
            return 0
        capacity = max(self.flights + extra, 2 * self.flight_capacity)
        cdef bint failed = True
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        grown = realloc(self.flight_positions, capacity * sizeof(int64_t))
        if grown != NULL:
            self.flight_positions = <int64_t*> grown
            grown = realloc(self.flight_before, capacity * sizeof(int64_t))
            if grown != NULL:
                self.flight_before = <int64_t*> grown
                self.flight_capacity = capacity
                failed = False
        PyThread_release_lock(self.mutex)
        if failed:
            raise MemoryError()
        return 0

    cdef bint has_room(self, int64_t size) noexcept nogil:
        """Whether a record of `size` bytes can be written at the end, and a commit after it."""
        cdef Segment* last = &self.segments[self.count - 1]
        return (
            last.position + last.allocated - self.end >= size + COMMIT_BYTES_MAX
            and self.end - self.origin <= self.far
        )

    cdef int ensure(self, int64_t size) except -1:
        """Ensure what `has_room` tells. Raises what `make_room` does."""
        cdef Segment* last = &self.segments[self.count - 1]
        if self.has_room(size):
            return 0
        if last.position + last.allocated - self.end < size + COMMIT_BYTES_MAX:
            self.make_room(size + COMMIT_BYTES_MAX)
        if self.end - self.origin > self.far:
            PyThread_acquire_lock(self.mutex, WAIT_LOCK)
            self.move_origin()
            PyThread_release_lock(self.mutex)
        if not self.has_room(size):
            raise AssertionError(f"there is no room for {size} bytes at {self.end} after it was made")
        return 0

    cdef uint8_t* next_value(self, uint32_t key_size) noexcept nogil:
        """Where the value of the next record will lie, if that has a key of `key_size` bytes and there is room."""
        return <uint8_t*> self.at(self.end) + HEADER_BYTES + key_size

    cdef Record* newest(self, const uint8_t* key, Py_ssize_t size, uint64_t h, uint64_t** slot) noexcept nogil:
        """The newest row of the key, as the writer sees it, or NULL; and its slot or the one it would get."""
        cdef Record* r
        slot[0] = self.find(key, size, h, True)
        if slot[0][0] == 0 or slot[0][0] == ERASED:
            return NULL
        r = self.at(self.position_in(slot[0][0]))
        return NULL if kind_of(r) == TOMBSTONE else r

    cdef int write(
        self, int kind, uint64_t h, const uint8_t* key, uint32_t key_size, const uint8_t* prefix, uint32_t prefix_size,
        const uint8_t* value, uint32_t value_size, Record* old, uint64_t* slot,
    ) noexcept nogil:
        """Append a record (there is room, in the log, the flights and the index) that supersedes `old`, if not NULL.

        The value is `prefix` and `value` together, which may lie there already (`next_value`). With the mutex held.
        `slot` is the key's.
        """
        cdef int64_t position = self.end
        cdef Record* r = self.at(position)
        cdef uint8_t* p = <uint8_t*> r + HEADER_BYTES
        cdef uint32_t whole = prefix_size + value_size
        cdef bint has_slot = slot[0] != 0 and slot[0] != ERASED
        r.dead_at = 0
        r.kind_and_key = (<uint32_t> kind << KIND_SHIFT) | key_size
        r.value_size = whole
        memcpy(p, key, key_size)
        memcpy(p + key_size, prefix, prefix_size)
        if value != p + key_size + prefix_size:
            memcpy(p + key_size + prefix_size, value, value_size)
        r.hash = check_of(r)
        self.segments[self.count - 1].sum += forebay_fold(r.hash, <uint64_t> position)
        self.flight_positions[self.flights] = position
        self.flight_before[self.flights] = self.position_in(slot[0]) if has_slot else 0
        self.flights += 1
        if old != NULL:
            old.dead_at = <uint64_t> position
            self.live_rows -= 1
            self.live_digest -= old.hash
            self.live_bytes -= size_of(old)
        if kind == ROW:
            self.live_rows += 1
            self.live_digest += r.hash
            self.live_bytes += size_of(r)
        self.take_slot(slot, h, position)
        self.end = position + size_for(key_size, whole)
        return 0

    def put(self, dict writes not None):
        """Append a row for each key and value, and a tombstone for each key with None that has a row.

        Nothing of it is visible before `commit`. Raises what `make_room` does; then a part is appended, see
        `rollback`.
        """
        cdef bytes key, value
        cdef uint64_t h
        cdef uint64_t* slot
        cdef Record* old
        cdef bint failed = False
        self.reserve_flights(len(writes))
        for key, value in writes.items():
            if PyBytes_GET_SIZE(key) == 0 or PyBytes_GET_SIZE(key) > KEY_MASK:
                raise ValueError(f"a key of {PyBytes_GET_SIZE(key)} bytes")
            self.ensure(size_for(PyBytes_GET_SIZE(key), 0 if value is None else PyBytes_GET_SIZE(value)))
            h = self.hash_key(<const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
            PyThread_acquire_lock(self.mutex, WAIT_LOCK)
            if self.reserve_slot(h) < 0:
                failed = True
            else:
                old = self.newest(<const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), h, &slot)
                if value is not None:
                    self.write(
                        ROW, h, <const uint8_t*> PyBytes_AS_STRING(key), <uint32_t> PyBytes_GET_SIZE(key), NULL, 0,
                        <const uint8_t*> PyBytes_AS_STRING(value), <uint32_t> PyBytes_GET_SIZE(value), old, slot,
                    )
                elif old != NULL:
                    self.write(
                        TOMBSTONE, h, <const uint8_t*> PyBytes_AS_STRING(key), <uint32_t> PyBytes_GET_SIZE(key), NULL,
                        0, NULL, 0, old, slot,
                    )
            PyThread_release_lock(self.mutex)
            if failed:
                raise MemoryError()

    @property
    def savepoint(self):
        """How much is written, for `rollback`."""
        return self.flights

    def rollback(self, Py_ssize_t savepoint):
        """Take back what was appended after this `savepoint`. The records stay, dead."""
        cdef Py_ssize_t i
        cdef int64_t position, before
        cdef Record* r
        cdef Record* old
        cdef uint64_t h
        cdef uint64_t* slot
        if self.flights == savepoint:
            return
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        with nogil:
            for i in range(self.flights - 1, savepoint - 1, -1):
                position, before = self.flight_positions[i], self.flight_before[i]
                r = self.at(position)
                h = self.hash_key(key_of(r), key_size_of(r))
                slot = self.find(key_of(r), key_size_of(r), h, False)
                if kind_of(r) == ROW:
                    self.live_rows -= 1
                    self.live_digest -= r.hash
                    self.live_bytes -= size_of(r)
                r.dead_at = <uint64_t> position
                if before == 0:
                    self.erase_slot(slot, h)
                    continue
                slot[0] = self.slot_value(h, before)
                old = self.at(before)
                if kind_of(old) == ROW:
                    old.dead_at = 0
                    self.live_rows += 1
                    self.live_digest += old.hash
                    self.live_bytes += size_of(old)
            self.flights = savepoint
            self.compacted = self.start  # what had been moved may be back
        PyThread_release_lock(self.mutex)

    def commit(self, bytes state not None):
        """Make all that was appended visible, with `state`. Raises what `make_room` does, and has no effect then.

        That happens only if nothing was appended before: room for a commit is kept.
        """
        cdef Py_ssize_t i
        cdef uint32_t size = COMMIT_NUMBERS_BYTES + <uint32_t> PyBytes_GET_SIZE(state)
        cdef Record* r
        cdef uint8_t* p
        cdef uint64_t h
        cdef uint64_t* slot
        cdef int retire
        if size_for(0, size) > COMMIT_BYTES_MAX:
            raise ValueError(f"a state of {PyBytes_GET_SIZE(state)} bytes")
        self.ensure(0)
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        r = self.at(self.end)
        p = <uint8_t*> r + HEADER_BYTES
        r.dead_at = 0
        r.kind_and_key = (<uint32_t> COMMIT) << KIND_SHIFT
        r.value_size = size
        memcpy(p, &self.live_digest, 8)
        memcpy(p + 8, &self.live_rows, 8)
        memcpy(p + COMMIT_NUMBERS_BYTES, PyBytes_AS_STRING(state), PyBytes_GET_SIZE(state))
        r.hash = check_of(r)
        self.segments[self.count - 1].sum += forebay_fold(r.hash, <uint64_t> self.end)
        self.end += size_for(0, size)
        forebay_store(<uint64_t*> (self.head + HEAD_END), <uint64_t> self.end)
        self.visible = self.end
        for i in range(self.flights):
            r = self.at(self.flight_positions[i])
            if kind_of(r) == TOMBSTONE and r.dead_at == 0:
                h = self.hash_key(key_of(r), key_size_of(r))
                slot = self.find(key_of(r), key_size_of(r), h, False)
                if slot != NULL and self.position_in(slot[0]) == self.flight_positions[i]:
                    self.erase_slot(slot, h)
        self.flights = 0
        retire = self.segment_at(self.compacted)
        if self.segments[retire].position > self.start:
            for i in range(self.first, retire):
                if self.segments[i].retired_at == 0:
                    self.segments[i].retired_at = self.visible
            self.start = self.segments[retire].position
            forebay_store(<uint64_t*> (self.head + HEAD_START), <uint64_t> self.start)
        self.free_retired()
        PyThread_release_lock(self.mutex)

    # ---- compaction -------------------------------------------------------------------------------------------------

    @property
    def pinned_bytes(self):
        """Bytes of segments that only open snapshots need."""
        return self.start - self.segments[self.first].position

    def compact(self, int64_t walk):
        """Move the living records among the next `walk` bytes of the log to its end; part of what `commit` makes
        visible. Returns whether there was anything to walk over. Raises what `make_room` does.
        """
        cdef int64_t until, size
        cdef Segment* s
        cdef Record* r
        cdef uint64_t h
        cdef uint64_t* slot
        cdef bint failed = False
        if self.compacted >= self.visible:
            return False
        s = &self.segments[self.segment_at(self.compacted)]
        if s.position + s.size > self.visible:  # the segment that is written, or one of this very transaction
            return False
        until = self.compacted + walk
        while self.compacted < until:
            if s.position + s.used <= self.compacted:
                self.compacted = s.position + s.size
                return True
            r = self.at(self.compacted)
            size = size_of(r)
            if kind_of(r) == ROW and r.dead_at == 0:
                self.reserve_flights(1)
                self.ensure(size)
                s = &self.segments[self.segment_at(self.compacted)]  # the table may have moved
                PyThread_acquire_lock(self.mutex, WAIT_LOCK)
                h = self.hash_key(key_of(r), key_size_of(r))
                slot = self.find(key_of(r), key_size_of(r), h, False)
                self.write(ROW, h, key_of(r), key_size_of(r), NULL, 0, value_of(r), r.value_size, r, slot)
                PyThread_release_lock(self.mutex)
            self.compacted += size
        return True

    # ---- reading ----------------------------------------------------------------------------------------------------

    cdef int64_t before(self, int64_t position) noexcept nogil:
        """What the record in flight at `position` replaced; 0 if there was nothing."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.flights - 1
        cdef Py_ssize_t middle
        while low <= high:
            middle = (low + high) >> 1
            if self.flight_positions[middle] == position:
                return self.flight_before[middle]
            if self.flight_positions[middle] < position:
                low = middle + 1
            else:
                high = middle - 1
        return 0

    cdef const Record* seen(self, const uint8_t* key, Py_ssize_t size, uint64_t h, bint by_writer) noexcept nogil:
        """The row of the key that readers see (or the writer), or NULL. With the mutex held."""
        cdef uint64_t* slot = self.find(key, size, h, False)
        cdef int64_t position
        cdef const Record* r
        if slot == NULL:
            return NULL
        position = self.position_in(slot[0])
        while not by_writer and position >= self.visible:
            position = self.before(position)
            if position == 0:
                return NULL
        r = self.at(position)
        return NULL if kind_of(r) == TOMBSTONE else r

    def get(self, keys, bint by_writer=False):
        """The value of each key as of one moment, None if there is none. `by_writer`: also what is not visible yet."""
        cdef Py_ssize_t n = len(keys)
        cdef Py_ssize_t i
        cdef list wanted = list(keys)
        cdef list found = [None] * n
        cdef bytes key
        cdef Wanted* all = <Wanted*> malloc(n * sizeof(Wanted) + 1)
        if all == NULL:
            raise MemoryError()
        self.begin_reading()
        try:
            for i in range(n):
                key = wanted[i]
                all[i].key, all[i].size = <const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            if n > CHUNK:
                with nogil:
                    self.get_all(all, n, by_writer)
            else:
                self.get_chunk(all, n, by_writer)
            for i in range(n):
                if all[i].row != NULL:
                    found[i] = PyBytes_FromStringAndSize(<const char*> value_of(all[i].row), all[i].row.value_size)
        finally:
            free(all)
            self.end_reading()
        return found

    cdef void get_all(self, Wanted* all, Py_ssize_t n, bint by_writer) noexcept nogil:
        """Find many keys, with the mutex free now and then; again if a group was committed meanwhile."""
        cdef Py_ssize_t i
        cdef int attempt
        cdef int64_t visible
        for attempt in range(3):
            visible = self.get_chunk(all, CHUNK, by_writer)
            i = CHUNK
            while i < n and self.get_chunk(all + i, min(<Py_ssize_t> CHUNK, n - i), by_writer) == visible:
                i += CHUNK
            if i >= n:
                return
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        self.find_rows(all, n, by_writer)
        PyThread_release_lock(self.mutex)

    cdef int64_t get_chunk(self, Wanted* all, Py_ssize_t n, bint by_writer) noexcept nogil:
        """Find some keys; what is visible meanwhile."""
        cdef int64_t visible
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        self.find_rows(all, n, by_writer)
        visible = self.visible
        PyThread_release_lock(self.mutex)
        return visible

    cdef void find_rows(self, Wanted* all, Py_ssize_t n, bint by_writer) noexcept nogil:
        cdef Py_ssize_t i = 0
        cdef Py_ssize_t j, stop
        cdef uint64_t hashes[CHUNK]
        while i < n:
            stop = min(<Py_ssize_t> CHUNK, n - i)
            for j in range(stop):
                hashes[j] = self.hash_key(all[i + j].key, all[i + j].size)
                self.prefetch_slot(hashes[j])
            if stop > 1:
                for j in range(stop):
                    self.prefetch_record(hashes[j])
            for j in range(stop):
                all[i + j].row = self.seen(all[i + j].key, all[i + j].size, hashes[j], by_writer)
            i += stop

    cdef void begin_reading(self) noexcept nogil:
        """Keep all segments mapped until `end_reading`."""
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        self.readers += 1
        PyThread_release_lock(self.mutex)

    cdef void end_reading(self) noexcept nogil:
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        self.readers -= 1
        self.free_retired()
        PyThread_release_lock(self.mutex)

    def take_snapshot(self):
        """(the log's beginning, the snapshot's position): release it by that position."""
        cdef int64_t start = 0
        cdef int64_t position = 0
        cdef void* grown
        cdef bint failed = False
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        if self.snapshot_count == self.snapshot_capacity:
            grown = realloc(self.snapshots, (2 * self.snapshot_capacity + 8) * sizeof(int64_t))
            if grown == NULL:
                failed = True
            else:
                self.snapshots = <int64_t*> grown
                self.snapshot_capacity = 2 * self.snapshot_capacity + 8
        if not failed:
            start, position = self.start, self.visible
            self.snapshots[self.snapshot_count] = position
            self.snapshot_count += 1
        PyThread_release_lock(self.mutex)
        if failed:
            raise MemoryError()
        return start, position

    def release_snapshot(self, int64_t position):
        """End a snapshot."""
        cdef int i
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        for i in range(self.snapshot_count):
            if self.snapshots[i] == position:
                self.snapshot_count -= 1
                self.snapshots[i] = self.snapshots[self.snapshot_count]
                break
        self.free_retired()
        PyThread_release_lock(self.mutex)

    def scan(self, int64_t snapshot, int64_t position, int64_t bytes_max, int64_t rows_max):
        """The values of a snapshot from `position` on: (value batch, rows, next position).

        Takes rows, one at least, until they hold `bytes_max` bytes or are `rows_max`; the last may exceed the bytes. The
        next position is that of the snapshot if nothing is left.
        """
        cdef int64_t head = VALUE_BATCH_HEADER_BYTES
        cdef int64_t capacity = head + max(<int64_t> 0, bytes_max)
        cdef int64_t used = head
        cdef int64_t rows = 0
        cdef int64_t needed
        cdef char* out
        cdef char* grown
        if capacity > head + (1 << 20):
            capacity = head + (1 << 20)
        out = <char*> malloc(capacity + 1)
        if out == NULL:
            raise MemoryError()
        self.begin_reading()
        try:
            while True:
                with nogil:
                    needed = self.scan_some(snapshot, &position, out, &used, capacity, bytes_max + head, &rows, rows_max)
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
            return PyBytes_FromStringAndSize(out, used), rows, position
        finally:
            free(out)
            self.end_reading()

    cdef int64_t scan_some(
        self, int64_t snapshot, int64_t* position, char* out, int64_t* used, int64_t capacity, int64_t bytes_max,
        int64_t* rows, int64_t rows_max,
    ) noexcept nogil:
        """Copy values until `out` is full; the capacity that the next one needs, or 0 at the end."""
        cdef int64_t p = position[0]
        cdef int64_t stop
        cdef Segment s
        cdef const Record* r
        cdef uint64_t dead_at
        while p < snapshot:
            PyThread_acquire_lock(self.mutex, WAIT_LOCK)
            s = self.segments[self.segment_at(p)]
            PyThread_release_lock(self.mutex)
            stop = min(snapshot, s.position + s.size - HEADER_BYTES + 1)
            while p < stop:
                r = <const Record*> (s.memory + (p - s.position))
                if ends_segment(r):
                    break
                if kind_of(r) == ROW:
                    dead_at = forebay_load(&r.dead_at)
                    if dead_at == 0 or dead_at >= <uint64_t> snapshot:
                        if rows[0] >= rows_max or (rows[0] and used[0] >= bytes_max):
                            position[0] = p
                            return 0
                        if used[0] + r.value_size > capacity:
                            position[0] = p
                            return used[0] + r.value_size
                        memcpy(out + used[0], value_of(r), r.value_size)
                        used[0] += r.value_size
                        rows[0] += 1
                p += size_of(r)
            if p < snapshot:
                p = s.position + s.size
        position[0] = snapshot
        return 0

    def rows(self, int64_t snapshot, int64_t position, int64_t bytes_max, int64_t rows_max):
        """The rows of a snapshot from `position` on, where they lie: (schema ids, rows, next position), as `scan`."""
        cdef RowSlices rows = RowSlices.__new__(RowSlices)
        cdef int64_t used = 0
        cdef int64_t failed = 0
        cdef bint is_full = True
        cdef int16_t* ids = NULL
        cdef int16_t* grown
        cdef int16_t[::1] view
        rows.owners.append(Reading(self))
        try:
            while is_full:
                rows.reserve(1024)
                grown = <int16_t*> realloc(ids, rows.capacity * sizeof(int16_t))
                if grown == NULL:
                    raise MemoryError()
                ids = grown
                with nogil:
                    is_full = self.rows_some(snapshot, &position, &used, bytes_max, rows_max, rows, ids, &failed)
            if failed:
                raise ValueError(f"the record at {failed} holds no stored value")
            found = np.empty(rows.count, np.int16)
            if rows.count:
                view = found
                memcpy(&view[0], ids, rows.count * sizeof(int16_t))
            return found, rows, position
        finally:
            free(ids)

    cdef bint rows_some(
        self, int64_t snapshot, int64_t* position, int64_t* used, int64_t bytes_max, int64_t rows_max, RowSlices rows,
        int16_t* ids, int64_t* failed,
    ) noexcept nogil:
        """Note rows until there is no room for more of them (True), or there need not be."""
        cdef int64_t p = position[0]
        cdef int64_t stop
        cdef Segment s
        cdef const Record* r
        cdef const uint8_t* value
        cdef uint64_t dead_at
        while p < snapshot:
            PyThread_acquire_lock(self.mutex, WAIT_LOCK)
            s = self.segments[self.segment_at(p)]
            PyThread_release_lock(self.mutex)
            stop = min(snapshot, s.position + s.size - HEADER_BYTES + 1)
            while p < stop:
                r = <const Record*> (s.memory + (p - s.position))
                if ends_segment(r):
                    break
                forebay_prefetch(<const uint8_t*> r + SCAN_AHEAD_BYTES)
                if kind_of(r) == ROW:
                    dead_at = forebay_load(&r.dead_at)
                    if dead_at == 0 or dead_at >= <uint64_t> snapshot:
                        position[0] = p
                        if rows.count >= rows_max or (rows.count and used[0] >= bytes_max):
                            return False
                        if rows.count == rows.capacity:
                            return True
                        value = value_of(r)
                        if r.value_size < STORED_PREFIX_BYTES:
                            failed[0] = p
                            return False
                        memcpy(&ids[rows.count], value + STORED_PREFIX_BYTES - 2, 2)
                        rows.push(value + STORED_PREFIX_BYTES, <int32_t> r.value_size - STORED_PREFIX_BYTES)
                        used[0] += r.value_size
                p += size_of(r)
            if p < snapshot:
                p = s.position + s.size
        position[0] = snapshot
        return False

    def items(self, int64_t snapshot, int64_t position, int64_t rows_max):
        """([(key, value)], the next position) of a snapshot, which must be open, some rows at once."""
        cdef Segment s
        cdef int64_t p = position
        cdef int64_t stop
        cdef const Record* r
        cdef list found = []
        while p < snapshot and len(found) < rows_max:
            PyThread_acquire_lock(self.mutex, WAIT_LOCK)
            s = self.segments[self.segment_at(p)]
            PyThread_release_lock(self.mutex)
            stop = min(snapshot, s.position + s.size - HEADER_BYTES + 1)
            while p < stop and len(found) < rows_max:
                r = <const Record*> (s.memory + (p - s.position))
                if ends_segment(r):
                    p = stop
                    break
                p += size_of(r)
                if kind_of(r) == ROW and (r.dead_at == 0 or r.dead_at >= <uint64_t> snapshot):
                    found.append((
                        PyBytes_FromStringAndSize(<const char*> key_of(r), key_size_of(r)),
                        PyBytes_FromStringAndSize(<const char*> value_of(r), r.value_size),
                    ))
            if p >= stop and p < snapshot:
                p = s.position + s.size
        return found, p

    def proof(self, int64_t position):
        """A number that tells a position of this log from one that was made up."""
        return forebay_fold(forebay_fold(<uint64_t> position ^ self.seed, <uint64_t> 0xA0761D6478BD642F), self.seed | 1)

    # ---- copies and opening -----------------------------------------------------------------------------------------

    def copy(self, int64_t snapshot, int64_t position, int64_t until, int64_t bytes_max):
        """Some bytes of the log from `position` on, in one segment, as they were at the snapshot, which must be open.

        Whole records, the first that are `bytes_max` bytes or more, or all before `until`; nothing follows a skip.
        Raises ValueError for a record that is damaged.
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
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        s = self.segments[self.segment_at(position)]
        PyThread_release_lock(self.mutex)
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

    def load(self, int64_t start, int64_t end):
        """Make the index again from the segments that are mapped, whose content may be anything.

        Returns the bytes of the state. Raises ValueError, which says what is wrong.
        """
        cdef const Record* state = NULL
        cdef uint64_t digest
        cdef int64_t live
        cdef int failure
        cdef int64_t place = start
        self.start = self.compacted = start
        self.visible = self.end = end
        self.origin = start
        if end != start:
            self.expect_rows(self.rows_at_end())
            with nogil:
                failure = self.load_records(&place, end, &state)
            if failure == 1:
                raise MemoryError()
            if failure == 2:
                raise ValueError(f"the record at {place} is damaged")
            if state == NULL or place != end:
                raise ValueError(f"no commit ends at {end}")
            memcpy(&digest, value_of(state), 8)
            memcpy(&live, value_of(state) + 8, 8)
            if digest != self.live_digest or live != self.live_rows:
                raise ValueError(
                    f"its {self.live_rows} rows have the digest {self.live_digest:x}, and {live} with {digest:x} were "
                    "written"
                )
            return PyBytes_FromStringAndSize(
                <const char*> value_of(state) + COMMIT_NUMBERS_BYTES, state.value_size - COMMIT_NUMBERS_BYTES
            )
        return b""

    cdef int64_t rows_at_end(self) noexcept nogil:
        """The rows that the commit at the log's end tells, if there is a sound one; 0 otherwise. Only a guess."""
        cdef int64_t size, rows
        cdef const Record* r
        cdef int i = self.segment_at(self.end - 1)
        for size in range(size_for(0, COMMIT_NUMBERS_BYTES), size_for(0, COMMIT_NUMBERS_BYTES) + 128, 8):
            if self.count == self.first or self.end - size < self.segments[i].position:
                return 0
            r = self.at(self.end - size)
            if kind_of(r) == COMMIT and size_of(r) == size and check_of(r) == r.hash:
                memcpy(&rows, value_of(r) + 8, 8)
                return max(<int64_t> 0, min(rows, (self.end - self.start) // HEADER_BYTES))
        return 0

    cdef int expect_rows(self, int64_t rows) except -1:
        """Make the empty index large enough for so many rows, so that it need not grow step by step."""
        cdef int depth = 0
        cdef int64_t i
        cdef Bin** bins
        while depth < DEPTH_MAX and rows * 5 > ((<int64_t> BIN_SLOTS_MAX * 3) << depth):
            depth += 1
        if depth == 0:
            return 0
        bins = <Bin**> calloc((<int64_t> 1) << depth, sizeof(Bin*))
        if bins == NULL:
            raise MemoryError()
        free(self.bins[0].slots)
        free(self.bins[0])
        free(self.bins)
        self.bins, self.depth, self.bin_bytes = bins, depth, 0
        for i in range((<int64_t> 1) << depth):
            bins[i] = self.new_bin(BIN_SLOTS_MAX, depth)
            if bins[i] == NULL:
                raise MemoryError()
        return 0

    cdef int load_records(self, int64_t* place, int64_t end, const Record** state) noexcept nogil:
        """0; 1 if there is no memory; 2 if the record at `place` is damaged. `state`: the commit that ends the log."""
        cdef Record* queue[CHUNK]
        cdef int64_t places[CHUNK]
        cdef uint64_t hashes[CHUNK]
        cdef int queued = 0
        cdef int i
        cdef int64_t p = place[0]
        cdef int64_t stop, size
        cdef Segment* s
        cdef Record* r
        for i in range(self.first, self.count):
            s = &self.segments[i]
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
                    return 2
                s.sum += forebay_fold(r.hash, <uint64_t> p)
                if r.dead_at == 0 or r.dead_at >= <uint64_t> end:
                    if check_of(r) != r.hash or (kind_of(r) == COMMIT and r.value_size < COMMIT_NUMBERS_BYTES):
                        return 2
                    if r.dead_at:  # by a transaction that did not end
                        r.dead_at = 0
                    if kind_of(r) == COMMIT:
                        state[0] = r if p + size == end else NULL
                    else:
                        hashes[queued] = self.hash_key(key_of(r), key_size_of(r))
                        queue[queued] = r
                        places[queued] = p
                        self.prefetch_slot(hashes[queued])
                        queued += 1
                        if queued == CHUNK:
                            if self.load_queue(queue, places, hashes, queued) < 0:
                                return 1
                            queued = 0
                p += size
            s.used = p - s.position
            place[0] = p
            if p < end:
                p = s.position + s.size
        if self.load_queue(queue, places, hashes, queued) < 0:
            return 1
        return 0

    cdef int load_queue(self, Record** queue, const int64_t* places, const uint64_t* hashes, int n) noexcept nogil:
        cdef int i
        cdef uint64_t* slot
        cdef Record* old
        cdef Record* r
        for i in range(n):
            if self.reserve_slot(hashes[i]) < 0:
                return -1
            r = queue[i]
            slot = self.find(key_of(r), key_size_of(r), hashes[i], True)
            if slot[0] != 0 and slot[0] != ERASED:
                old = self.at(self.position_in(slot[0]))
                old.dead_at = <uint64_t> places[i]
                self.live_rows -= 1
                self.live_digest -= old.hash
                self.live_bytes -= size_of(old)
                if kind_of(r) == TOMBSTONE:
                    self.erase_slot(slot, hashes[i])
            if kind_of(r) == ROW:
                self.live_rows += 1
                self.live_digest += r.hash
                self.live_bytes += size_of(r)
                self.take_slot(slot, hashes[i], places[i])
        return 0

    @property
    def digest(self):
        """The digest of all rows, those that are not visible yet included."""
        return self.live_digest


@cython.no_gc_clear
cdef class Reading:
    """Keeps all segments mapped for as long as it lives."""
    cdef HashLog log

    def __cinit__(self, HashLog log not None):
        self.log = log
        log.begin_reading()

    def __dealloc__(self):
        self.log.end_reading()
