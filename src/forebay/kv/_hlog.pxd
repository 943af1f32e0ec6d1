# The compiled part of the engine `hlog`, for the put in one piece. See _hlog.pyx.
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t

from forebay.codec.rows._slices cimport RowSlices

cdef enum:
    HEADER_BYTES = 24
    CHUNK = 32

cdef enum Kind:
    ROW = 0
    TOMBSTONE = 1
    COMMIT = 2
    SKIP = 3

cdef struct Record:
    uint64_t dead_at          # 0, or the position from which on the record is not part of the state
    uint64_t hash             # of the pair; of other kinds its complement
    uint32_t kind_and_key     # the kind in the upper two bits, the key's size below
    uint32_t value_size

cdef struct Segment:
    int64_t position          # of its first byte
    int64_t size              # of the mapping
    int64_t allocated         # bytes that have blocks
    int64_t used              # bytes of records, once it is sealed
    int64_t retired_at        # the end of the log when it was retired, or 0
    uint64_t sum              # of its records' hashes, each with its position
    uint8_t* memory

cdef struct Wanted:
    const uint8_t* key
    Py_ssize_t size
    const Record* row         # NULL if there is none

cdef struct Bin:
    uint64_t* slots
    uint32_t mask
    uint32_t used             # slots that are not free
    uint32_t live
    int depth

cdef class HashLog:
    cdef PyThread_type_lock mutex
    cdef uint8_t* head
    cdef uint64_t seed
    cdef Segment* segments
    cdef int first
    cdef int count
    cdef int capacity
    cdef uint8_t** granules
    cdef int64_t first_granule
    cdef int64_t granule_capacity
    cdef int64_t origin
    cdef public int64_t far   # positions in slots count from `origin` on, which moves when the end is so far away
    cdef Bin** bins
    cdef int depth
    cdef int64_t bin_bytes
    cdef readonly int64_t start
    cdef readonly int64_t visible
    cdef readonly int64_t end
    cdef readonly int64_t live_rows
    cdef readonly int64_t live_bytes
    cdef uint64_t live_digest
    cdef int64_t* flight_positions
    cdef int64_t* flight_before
    cdef Py_ssize_t flights
    cdef Py_ssize_t flight_capacity
    cdef int64_t compacted
    cdef int readers
    cdef int64_t* snapshots
    cdef int snapshot_count
    cdef int snapshot_capacity
    cdef public object make_room

    cdef inline Bin* bin_of(self, uint64_t h) noexcept nogil:
        return self.bins[(h >> 1) >> (63 - self.depth)]

    cdef inline uint64_t slot_value(self, uint64_t h, int64_t position) noexcept nogil:
        return ((h >> 16) << 40) | (<uint64_t> ((position - self.origin) >> 3) + 1)

    cdef inline int64_t position_in(self, uint64_t slot) noexcept nogil:
        return self.origin + ((<int64_t> (slot & (((<uint64_t> 1) << 40) - 1)) - 1) << 3)

    cdef inline void take_slot(self, uint64_t* slot, uint64_t h, int64_t position) noexcept nogil:
        # points `slot`, which `find` gave, to the record at `position`
        cdef Bin* b
        if slot[0] == 0 or slot[0] == ~(<uint64_t> 0):
            b = self.bin_of(h)
            b.used += slot[0] == 0
            b.live += 1
        slot[0] = self.slot_value(h, position)

    cdef inline void erase_slot(self, uint64_t* slot, uint64_t h) noexcept nogil:
        self.bin_of(h).live -= 1
        slot[0] = ~(<uint64_t> 0)

    cdef inline Record* at(self, int64_t position) noexcept nogil:
        return <Record*> (self.granules[(position >> 16) - self.first_granule] + (position & 0xFFFF))

    cdef int add_segment(self, uint8_t* memory, int64_t position, int64_t size, int64_t allocated) noexcept nogil
    cdef int segment_at(self, int64_t position) noexcept nogil
    cdef void free_retired(self) noexcept nogil
    cdef void seal(self) noexcept nogil
    cdef Bin* new_bin(self, uint32_t slots, int depth) noexcept nogil
    cdef uint64_t* find(self, const uint8_t* key, Py_ssize_t size, uint64_t h, bint to_insert) noexcept nogil
    cdef int fill(self, Bin* source, Bin* low, Bin* high, int bit) noexcept nogil
    cdef int grow(self, Bin* b, uint64_t h) noexcept nogil
    cdef int reserve_slot(self, uint64_t h) noexcept nogil
    cdef int move_origin(self) noexcept nogil
    cdef void begin_reading(self) noexcept nogil
    cdef void end_reading(self) noexcept nogil
    cdef int64_t before(self, int64_t position) noexcept nogil
    cdef const Record* seen(self, const uint8_t* key, Py_ssize_t size, uint64_t h, bint by_writer) noexcept nogil
    cdef void get_all(self, Wanted* all, Py_ssize_t n, bint by_writer) noexcept nogil
    cdef int64_t get_chunk(self, Wanted* all, Py_ssize_t n, bint by_writer) noexcept nogil
    cdef void find_rows(self, Wanted* all, Py_ssize_t n, bint by_writer) noexcept nogil
    cdef int64_t scan_some(
        self, int64_t snapshot, int64_t* position, char* out, int64_t* used, int64_t capacity, int64_t bytes_max,
        int64_t* rows, int64_t rows_max,
    ) noexcept nogil
    cdef bint rows_some(
        self, int64_t snapshot, int64_t* position, int64_t* used, int64_t bytes_max, int64_t rows_max, RowSlices rows,
        int16_t* ids, int64_t* failed,
    ) noexcept nogil
    cdef int64_t rows_at_end(self) noexcept nogil
    cdef int expect_rows(self, int64_t rows) except -1
    cdef int load_records(self, int64_t* place, int64_t end, const Record** state) noexcept nogil
    cdef int load_queue(self, Record** queue, const int64_t* places, const uint64_t* hashes, int n) noexcept nogil
    cdef uint64_t hash_key(self, const uint8_t* key, Py_ssize_t size) noexcept nogil
    cdef void prefetch_slot(self, uint64_t h) noexcept nogil
    cdef void prefetch_record(self, uint64_t h) noexcept nogil
    cdef Record* newest(self, const uint8_t* key, Py_ssize_t size, uint64_t h, uint64_t** slot) noexcept nogil
    cdef int reserve_flights(self, Py_ssize_t extra) except -1
    cdef int ensure(self, int64_t size) except -1
    cdef bint has_room(self, int64_t size) noexcept nogil
    cdef uint8_t* next_value(self, uint32_t key_size) noexcept nogil
    cdef int write(
        self, int kind, uint64_t h, const uint8_t* key, uint32_t key_size, const uint8_t* prefix, uint32_t prefix_size,
        const uint8_t* value, uint32_t value_size, Record* old, uint64_t* slot,
    ) noexcept nogil
