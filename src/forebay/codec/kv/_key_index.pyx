"""The newest row of each key: a hash table from key bytes to a row number (see codec.key_index)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from forebay.codec._prefetch cimport forebay_prefetch

import numpy as np

# A slot is 0 (free), or the number of an entry, from 1 on, in its lower half, and the upper half of its key's hash:
# a missing key is recognised by the slots alone, without reading entries and keys, which are not in the cache.
cdef enum:
    BLOCK = 16


cdef inline uint64_t slot_of(uint64_t h, int64_t number) noexcept nogil:
    """The slot's value for the entry with this number, from 1 on, whose key has the hash `h`."""
    return ((h >> 32) << 32) | <uint64_t> number


cdef struct Entry:
    uint64_t hash
    int64_t start
    int64_t size
    int64_t row


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    value ^= value >> 32
    value *= <uint64_t> 0xD6E8FEB86659FD93
    value ^= value >> 32
    value *= <uint64_t> 0xD6E8FEB86659FD93
    return value ^ (value >> 32)


cdef inline uint64_t hash_bytes(const uint8_t* data, int64_t size) noexcept nogil:
    """Eight bytes at a time; the last block is filled up with zeros, and the size tells such keys apart."""
    cdef uint64_t h = <uint64_t> size * <uint64_t> 0x9E3779B97F4A7C15
    cdef uint64_t block
    cdef int64_t i = 0
    while i + 8 <= size:
        memcpy(&block, data + i, 8)
        h = mix(h ^ block)
        i += 8
    if i < size:
        block = 0
        memcpy(&block, data + i, size - i)
        h = mix(h ^ block)
    return h


cdef class KeyTable:
    """Keys and their newest rows. Not thread-safe while rows are added; `contains` may run in many threads."""

    cdef Entry* entries
    cdef int64_t count
    cdef int64_t capacity
    cdef uint8_t* arena
    cdef int64_t arena_used
    cdef int64_t arena_size
    cdef uint64_t* slots
    cdef uint64_t slot_mask

    def __cinit__(self):
        self.capacity = 1024
        self.arena_size = 16384
        self.slot_mask = 2047
        self.entries = <Entry*> malloc(self.capacity * sizeof(Entry))
        self.arena = <uint8_t*> malloc(self.arena_size)
        self.slots = <uint64_t*> calloc(self.slot_mask + 1, sizeof(uint64_t))
        if not self.entries or not self.arena or not self.slots:
            raise MemoryError("no memory for a table of keys")

    def __dealloc__(self):
        free(self.entries)
        free(self.arena)
        free(self.slots)

    def __len__(self):
        return self.count

    @property
    def nbytes(self):
        """Bytes of memory that the table takes."""
        return self.capacity * sizeof(Entry) + self.arena_size + (self.slot_mask + 1) * sizeof(uint64_t)

    cdef int64_t find(self, const uint8_t* key, int64_t size, uint64_t h, uint64_t* slot) noexcept nogil:
        """The entry of a key, or -1, and the slot where it is or belongs."""
        cdef uint64_t at = h & self.slot_mask
        cdef uint64_t there
        cdef Entry* entry
        while True:
            there = self.slots[at]
            if there == 0:
                slot[0] = at
                return -1
            if (there ^ h) >> 32 == 0:
                entry = &self.entries[<int64_t> <uint32_t> there - 1]
                if entry.size == size and memcmp(self.arena + entry.start, key, size) == 0:
                    slot[0] = at
                    return <int64_t> <uint32_t> there - 1
            at = (at + 1) & self.slot_mask

    cdef bint grow_slots(self) noexcept nogil:
        cdef uint64_t mask = self.slot_mask * 2 + 1
        cdef uint64_t* slots = <uint64_t*> calloc(mask + 1, sizeof(uint64_t))
        cdef int64_t i
        cdef uint64_t at
        if not slots:
            return False
        for i in range(self.count):
            at = self.entries[i].hash & mask
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = slot_of(self.entries[i].hash, i + 1)
        free(self.slots)
        self.slots, self.slot_mask = slots, mask
        return True

    cdef bint make_room(self, int64_t size) noexcept nogil:
        """Room for one more entry with a key of `size` bytes."""
        cdef void* moved
        cdef int64_t wanted
        if self.count >= <int64_t> 0xFFFFFFFE:  # numbers in slots have 32 bits
            return False
        if self.count == self.capacity:
            moved = realloc(self.entries, 2 * self.capacity * sizeof(Entry))
            if not moved:
                return False
            self.entries = <Entry*> moved
            self.capacity *= 2
        if self.arena_used + size > self.arena_size:
            wanted = 2 * self.arena_size + size
            moved = realloc(self.arena, wanted)
            if not moved:
                return False
            self.arena = <uint8_t*> moved
            self.arena_size = wanted
        return <uint64_t> self.count * 2 <= self.slot_mask or self.grow_slots()

    cdef bint put(self, const uint8_t* key, int64_t size, int64_t row) noexcept nogil:
        cdef uint64_t h = hash_bytes(key, size)
        cdef uint64_t slot = 0
        cdef int64_t found = self.find(key, size, h, &slot)
        if found >= 0:
            self.entries[found].row = row
            return True
        if not self.make_room(size):
            return False
        self.find(key, size, h, &slot)
        memcpy(self.arena + self.arena_used, key, size)
        self.entries[self.count] = Entry(h, self.arena_used, size, row)
        self.arena_used += size
        self.count += 1
        self.slots[slot] = slot_of(h, self.count)
        return True

    def add(self, const int32_t[::1] offsets, const uint8_t[::1] data, int64_t first_row):
        """Rows `first_row`, `first_row` + 1, ... have the keys that lie in `data` between neighbouring offsets."""
        cdef int64_t n = offsets.shape[0] - 1
        cdef int64_t i
        cdef bint done = True
        cdef const uint8_t* keys = &data[0] if data.shape[0] else NULL
        with nogil:
            for i in range(n):
                done = self.put(keys + offsets[i], offsets[i + 1] - offsets[i], first_row + i)
                if not done:
                    break
        if not done:
            raise MemoryError("no memory for a table of keys")

    def contains(self, const int32_t[::1] offsets, const uint8_t[::1] data):
        """For each key, as a uint8, whether a row with it was added."""
        cdef int64_t n = offsets.shape[0] - 1
        cdef int64_t first = 0
        cdef int64_t last, i, size
        cdef uint64_t slot = 0
        cdef uint64_t[BLOCK] hashes
        cdef const uint8_t* keys = &data[0] if data.shape[0] else NULL
        result = np.empty(n, np.uint8)
        cdef uint8_t[::1] found = result
        with nogil:
            # Block by block, so that the memory fetches of a block's slots overlap.
            while first < n:
                last = min(first + BLOCK, n)
                for i in range(first, last):
                    hashes[i - first] = hash_bytes(keys + offsets[i], offsets[i + 1] - offsets[i])
                    forebay_prefetch(&self.slots[hashes[i - first] & self.slot_mask])
                for i in range(first, last):
                    size = offsets[i + 1] - offsets[i]
                    found[i] = self.find(keys + offsets[i], size, hashes[i - first], &slot) >= 0
                first = last
        return result

    def rows_of(self, const int32_t[::1] offsets, const uint8_t[::1] data):
        """For each key the number of its newest row, or -1."""
        cdef int64_t n = offsets.shape[0] - 1
        cdef int64_t i, size, found
        cdef uint64_t slot = 0
        cdef const uint8_t* keys = &data[0] if data.shape[0] else NULL
        result = np.empty(n, np.int64)
        cdef int64_t[::1] rows = result
        with nogil:
            for i in range(n):
                size = offsets[i + 1] - offsets[i]
                found = self.find(keys + offsets[i], size, hash_bytes(keys + offsets[i], size), &slot)
                rows[i] = self.entries[found].row if found >= 0 else -1
        return result

    def newest_rows(self):
        """The newest row of every key, in the order in which the keys first came."""
        result = np.empty(self.count, np.int64)
        cdef int64_t[::1] rows = result
        cdef int64_t i
        for i in range(self.count):
            rows[i] = self.entries[i].row
        return result
