"""The append-only log of the engine `hlog`: groups of writes, what readers see of them, and cleaning.

A log is mapped segments (`_segments`), records in them (`_record`), and an index of the newest record of each key
(`_index`). A snapshot is a position P: a row before P is in it unless it was dead before P.

One thread writes: `put` and `delete` append beyond `visible`, where no reader looks, and `commit` makes all of it
visible at once; `rollback` takes a part back. Until then the index has the new positions; a reader that finds one looks
up, in the list of these *flights*, which record it replaced.

Cleaning: `compact` moves the living records of the oldest segments to the end, as a part of the group that is written;
`commit` then retires the segments that it has passed.

Any thread reads (`_lookup`, `_scan`). The mutex guards index, flights and tables of segments; the writer releases it
after every few rows. Opening and copying a log is in `_restore`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, WAIT_LOCK,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

from forebay.kv.hlog._index cimport (
    erase_slot, find_slot, free_index, hash_key, index_bytes, init_index, is_taken, move_origin, position_in,
    reserve_slot, slot_value, take_slot,
)
from forebay.kv.hlog._record cimport (
    COMMIT, COMMIT_NUMBERS_BYTES, HEADER_BYTES, KEY_MASK, KIND_SHIFT, ROW, TOMBSTONE, Record, check_of, forebay_fold,
    forebay_store, key_of, key_size_of, kind_of, size_for, size_of, value_of,
)
from forebay.kv.hlog._segments cimport (
    GRANULE_BITS, Segment, add_segment, first_segment, free_segments, last_segment, record_at, seal_last, segment_at,
    unmap_retired,
)

cdef enum:
    HEAD_BYTES = 4096
    HEAD_START = 16
    HEAD_END = 24
    COMMIT_BYTES_MAX = 128


cdef class HashLog:
    """See the module. Methods that write, and those that map and free, are called by one thread at a time."""

    def __cinit__(self, int head, uint64_t seed):
        """`head`: a descriptor of the file of that name, of 4096 bytes. Not used after this returns."""
        self.mutex = PyThread_allocate_lock()
        self.far = (<int64_t> 1) << 42
        if self.mutex == NULL or init_index(&self.index, seed) < 0:
            raise MemoryError()
        cdef void* memory = mmap(NULL, HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, head, 0)
        if memory == MAP_FAILED:
            raise OSError("the file 'head' cannot be mapped")
        self.head = <uint8_t*> memory

    def __dealloc__(self):
        free_segments(&self.segments)
        if self.head != NULL:
            munmap(self.head, HEAD_BYTES)
        free_index(&self.index)
        free(self.flight_positions)
        free(self.flight_before)
        free(self.snapshots)
        if self.mutex != NULL:
            PyThread_free_lock(self.mutex)

    # ---- segments ---------------------------------------------------------------------------------------------------

    def map_segment(self, int descriptor, int64_t position, int64_t size, int64_t allocated):
        """Add the file `descriptor` as the next part of the log; its first `allocated` bytes have blocks.

        A log that is being written continues in it. Raises OSError if it cannot be mapped.
        """
        cdef Segment* last
        cdef int64_t inside = (1 << GRANULE_BITS) - 1
        if position & inside or size & inside or size <= 0:
            raise ValueError(f"a segment of {size} bytes at {position}")
        if self.segments.count > self.segments.first:
            last = last_segment(&self.segments)
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
        if self.end and self.segments.count > self.segments.first:
            self.end = seal_last(&self.segments, self.end)
        failed = add_segment(&self.segments, <uint8_t*> memory, position, size, allocated) < 0
        PyThread_release_lock(self.mutex)
        if failed:
            munmap(memory, size)
            raise MemoryError()

    def begin(self):
        """Begin an empty log in the segment that is mapped."""
        self.start = self.visible = self.end = self.compacted = first_segment(&self.segments).position
        self.index.origin = self.start
        forebay_store(<uint64_t*> (self.head + HEAD_START), <uint64_t> self.start)
        forebay_store(<uint64_t*> (self.head + HEAD_END), <uint64_t> self.end)

    @property
    def tail(self):
        """(position, bytes, allocated bytes) of the segment that is written."""
        cdef Segment* last = last_segment(&self.segments)
        return last.position, last.size, last.allocated

    def set_allocated(self, int64_t allocated):
        """Note that the first `allocated` bytes of the segment that is written have blocks."""
        last_segment(&self.segments).allocated = allocated

    def segment_list(self, int64_t since, int64_t until):
        """[(position, bytes of the mapping, bytes of records, sum or None)] of the segments between two positions.

        The sum is None for the segment in which `until` lies: it is not complete.
        """
        cdef int i, n
        cdef Segment* s
        cdef Segment* copied
        cdef list found = []
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        n = self.segments.count - self.segments.first
        copied = <Segment*> malloc(n * sizeof(Segment) + 1)
        if copied != NULL:
            memcpy(copied, first_segment(&self.segments), n * sizeof(Segment))
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

    @property
    def first_position(self):
        """Where the first segment begins that is still mapped: the files of those before it can be removed."""
        return first_segment(&self.segments).position

    cdef void free_retired(self) noexcept nogil:
        """Unmap retired segments that no reader can need any more. With the mutex held."""
        cdef int64_t oldest = self.visible
        cdef int i
        if self.readers:
            return
        for i in range(self.snapshot_count):
            oldest = min(oldest, self.snapshots[i])
        unmap_retired(&self.segments, oldest)

    @property
    def index_bytes(self):
        """Memory that the index takes."""
        return index_bytes(&self.index)

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
        cdef Segment* last = last_segment(&self.segments)
        return (
            last.position + last.allocated - self.end >= size + COMMIT_BYTES_MAX
            and self.end - self.index.origin <= self.far
        )

    cdef int ensure(self, int64_t size) except -1:
        """Ensure that `has_room` holds. Raises what `make_room` does."""
        cdef Segment* last = last_segment(&self.segments)
        if self.has_room(size):
            return 0
        if last.position + last.allocated - self.end < size + COMMIT_BYTES_MAX:
            self.make_room(size + COMMIT_BYTES_MAX)
        if self.end - self.index.origin > self.far:
            PyThread_acquire_lock(self.mutex, WAIT_LOCK)
            move_origin(&self.index, first_segment(&self.segments).position)
            PyThread_release_lock(self.mutex)
        if not self.has_room(size):
            raise AssertionError(f"there is no room for {size} bytes at {self.end} after it was made")
        return 0

    cdef uint8_t* next_value(self, uint32_t key_size) noexcept nogil:
        """Where the value of the next record will lie, if that has a key of `key_size` bytes and there is room."""
        return <uint8_t*> record_at(&self.segments, self.end) + HEADER_BYTES + key_size

    cdef Record* newest(self, const uint8_t* key, Py_ssize_t size, uint64_t h, uint64_t** slot) noexcept nogil:
        """The newest row of the key, as the writer sees it, or NULL; and its slot or the one it would get."""
        cdef Record* r
        slot[0] = find_slot(&self.index, &self.segments, key, size, h, True)
        if not is_taken(slot[0][0]):
            return NULL
        r = record_at(&self.segments, position_in(&self.index, slot[0][0]))
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
        cdef Record* r = record_at(&self.segments, position)
        cdef uint8_t* p = <uint8_t*> r + HEADER_BYTES
        cdef uint32_t whole = prefix_size + value_size
        r.dead_at = 0
        r.kind_and_key = (<uint32_t> kind << KIND_SHIFT) | key_size
        r.value_size = whole
        memcpy(p, key, key_size)
        memcpy(p + key_size, prefix, prefix_size)
        if value != p + key_size + prefix_size:
            memcpy(p + key_size + prefix_size, value, value_size)
        r.hash = check_of(r)
        last_segment(&self.segments).sum += forebay_fold(r.hash, <uint64_t> position)
        self.flight_positions[self.flights] = position
        self.flight_before[self.flights] = position_in(&self.index, slot[0]) if is_taken(slot[0]) else 0
        self.flights += 1
        if old != NULL:
            old.dead_at = <uint64_t> position
            self.take_live(old)
        if kind == ROW:
            self.add_live(r)
        take_slot(&self.index, slot, h, position)
        self.end = position + size_for(key_size, whole)
        return 0

    def put(self, dict writes not None):
        """Append a row for each key and value, and a tombstone for each key with None that has a row.

        Nothing of it is visible before `commit`. Raises what `make_room` does; then a part is appended, see
        `rollback`.
        """
        cdef bytes key, value
        cdef const uint8_t* data
        cdef Py_ssize_t size
        cdef uint64_t h
        cdef uint64_t* slot
        cdef Record* old
        cdef bint failed = False
        self.reserve_flights(len(writes))
        for key, value in writes.items():
            data, size = <const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            if size == 0 or size > KEY_MASK:
                raise ValueError(f"a key of {size} bytes")
            self.ensure(size_for(size, 0 if value is None else PyBytes_GET_SIZE(value)))
            h = hash_key(&self.index, data, size)
            PyThread_acquire_lock(self.mutex, WAIT_LOCK)
            if reserve_slot(&self.index, &self.segments, h) < 0:
                failed = True
            else:
                old = self.newest(data, size, h, &slot)
                if value is not None:
                    self.write(
                        ROW, h, data, <uint32_t> size, NULL, 0,
                        <const uint8_t*> PyBytes_AS_STRING(value), <uint32_t> PyBytes_GET_SIZE(value), old, slot,
                    )
                elif old != NULL:
                    self.write(TOMBSTONE, h, data, <uint32_t> size, NULL, 0, NULL, 0, old, slot)
            PyThread_release_lock(self.mutex)
            if failed:
                raise MemoryError()

    @property
    def savepoint(self):
        """The number of records in flight, for `rollback`."""
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
                r = record_at(&self.segments, position)
                h = hash_key(&self.index, key_of(r), key_size_of(r))
                slot = find_slot(&self.index, &self.segments, key_of(r), key_size_of(r), h, False)
                if kind_of(r) == ROW:
                    self.take_live(r)
                r.dead_at = <uint64_t> position
                if before == 0:
                    erase_slot(&self.index, slot, h)
                    continue
                slot[0] = slot_value(&self.index, h, before)
                old = record_at(&self.segments, before)
                if kind_of(old) == ROW:
                    old.dead_at = 0
                    self.add_live(old)
            self.flights = savepoint
            self.compacted = self.start  # records that had been moved may be back
        PyThread_release_lock(self.mutex)

    def commit(self, bytes state not None):
        """Make all that was appended visible, with `state`. Raises what `make_room` does, and has no effect then.

        That happens only if nothing was appended before: room for a commit is reserved with each record.
        """
        cdef uint32_t size = COMMIT_NUMBERS_BYTES + <uint32_t> PyBytes_GET_SIZE(state)
        cdef Record* r
        cdef uint8_t* p
        if size_for(0, size) > COMMIT_BYTES_MAX:
            raise ValueError(f"a state of {PyBytes_GET_SIZE(state)} bytes")
        self.ensure(0)
        PyThread_acquire_lock(self.mutex, WAIT_LOCK)
        r = record_at(&self.segments, self.end)
        p = <uint8_t*> r + HEADER_BYTES
        r.dead_at = 0
        r.kind_and_key = (<uint32_t> COMMIT) << KIND_SHIFT
        r.value_size = size
        memcpy(p, &self.live_digest, 8)
        memcpy(p + 8, &self.live_rows, 8)
        memcpy(p + COMMIT_NUMBERS_BYTES, PyBytes_AS_STRING(state), PyBytes_GET_SIZE(state))
        r.hash = check_of(r)
        last_segment(&self.segments).sum += forebay_fold(r.hash, <uint64_t> self.end)
        self.end += size_for(0, size)
        forebay_store(<uint64_t*> (self.head + HEAD_END), <uint64_t> self.end)
        self.visible = self.end
        forget_tombstones(self)
        self.flights = 0
        retire_compacted(self)
        self.free_retired()
        PyThread_release_lock(self.mutex)

    # ---- cleaning ---------------------------------------------------------------------------------------------------

    @property
    def pinned_bytes(self):
        """Bytes of segments that only open snapshots need."""
        return self.start - first_segment(&self.segments).position

    def compact(self, int64_t walk):
        """Move the living records among the next `walk` bytes of the log to its end, as a part of the group.

        Returns whether there were records to examine. Raises what `make_room` does.
        """
        cdef int64_t until, size
        cdef Segment* s
        cdef Record* r
        cdef uint64_t h
        cdef uint64_t* slot
        if self.compacted >= self.visible:
            return False
        s = &self.segments.table[segment_at(&self.segments, self.compacted)]
        if s.position + s.size > self.visible:  # the segment that is written, or one of this very group
            return False
        until = self.compacted + walk
        while self.compacted < until:
            if s.position + s.used <= self.compacted:
                self.compacted = s.position + s.size
                return True
            r = record_at(&self.segments, self.compacted)
            size = size_of(r)
            if kind_of(r) == ROW and r.dead_at == 0:
                self.reserve_flights(1)
                self.ensure(size)
                s = &self.segments.table[segment_at(&self.segments, self.compacted)]  # the table may have moved
                PyThread_acquire_lock(self.mutex, WAIT_LOCK)
                h = hash_key(&self.index, key_of(r), key_size_of(r))
                slot = find_slot(&self.index, &self.segments, key_of(r), key_size_of(r), h, False)
                self.write(ROW, h, key_of(r), key_size_of(r), NULL, 0, value_of(r), r.value_size, r, slot)
                PyThread_release_lock(self.mutex)
            self.compacted += size
        return True

    # ---- readers ----------------------------------------------------------------------------------------------------

    cdef int64_t before(self, int64_t position) noexcept nogil:
        """Where the record lies that the one in flight at `position` replaced; 0 if it replaced none."""
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

    def proof(self, int64_t position):
        """A number that distinguishes a position of this log from one that was made up."""
        cdef uint64_t seed = self.index.seed
        return forebay_fold(forebay_fold(<uint64_t> position ^ seed, <uint64_t> 0xA0761D6478BD642F), seed | 1)

    @property
    def digest(self):
        """The digest of all rows, those that are not visible yet included."""
        return self.live_digest


cdef void forget_tombstones(HashLog log) noexcept nogil:
    """Erase the slots of tombstones in flight: no reader needs the record before them any more."""
    cdef Py_ssize_t i
    cdef Record* r
    cdef uint64_t h
    cdef uint64_t* slot
    for i in range(log.flights):
        r = record_at(&log.segments, log.flight_positions[i])
        if kind_of(r) == TOMBSTONE and r.dead_at == 0:
            h = hash_key(&log.index, key_of(r), key_size_of(r))
            slot = find_slot(&log.index, &log.segments, key_of(r), key_size_of(r), h, False)
            if slot != NULL and position_in(&log.index, slot[0]) == log.flight_positions[i]:
                erase_slot(&log.index, slot, h)


cdef void retire_compacted(HashLog log) noexcept nogil:
    """Retire the segments whose records were all moved or superseded: the log begins after them."""
    cdef int retired = segment_at(&log.segments, log.compacted)
    cdef int64_t start = log.segments.table[retired].position
    cdef int i
    if start <= log.start:
        return
    for i in range(log.segments.first, retired):
        if log.segments.table[i].retired_at == 0:
            log.segments.table[i].retired_at = log.visible
    log.start = start
    forebay_store(<uint64_t*> (log.head + HEAD_START), <uint64_t> start)
