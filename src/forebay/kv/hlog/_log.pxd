# The log of the engine `hlog`, for the kernels that write and read it. See _log.pyx.
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from forebay.kv.hlog._index cimport Index
from forebay.kv.hlog._record cimport Record, size_of
from forebay.kv.hlog._segments cimport Segments

cdef class HashLog:
    cdef PyThread_type_lock mutex
    cdef uint8_t* head
    cdef Segments segments
    cdef Index index
    cdef public int64_t far   # positions in slots count from `origin` on, which moves when the end is so far away
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

    cdef inline void add_live(self, const Record* row) noexcept nogil:
        # Counts a row that belongs to the newest state.
        self.live_rows += 1
        self.live_digest += row.hash
        self.live_bytes += size_of(row)

    cdef inline void take_live(self, const Record* row) noexcept nogil:
        # Counts a row no longer.
        self.live_rows -= 1
        self.live_digest -= row.hash
        self.live_bytes -= size_of(row)

    cdef void free_retired(self) noexcept nogil
    cdef void begin_reading(self) noexcept nogil
    cdef void end_reading(self) noexcept nogil
    cdef int64_t before(self, int64_t position) noexcept nogil
    cdef Record* newest(self, const uint8_t* key, Py_ssize_t size, uint64_t h, uint64_t** slot) noexcept nogil
    cdef int reserve_flights(self, Py_ssize_t extra) except -1
    cdef int ensure(self, int64_t size) except -1
    cdef bint has_room(self, int64_t size) noexcept nogil
    cdef uint8_t* next_value(self, uint32_t key_size) noexcept nogil
    cdef int write(
        self, int kind, uint64_t h, const uint8_t* key, uint32_t key_size, const uint8_t* prefix, uint32_t prefix_size,
        const uint8_t* value, uint32_t value_size, Record* old, uint64_t* slot,
    ) noexcept nogil
