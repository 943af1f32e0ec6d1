# Records of the log: their layout, and inline access to it (docs/format/hlog.md).
#
# A record is a row, a tombstone (a key was deleted), a commit (the state that belongs to all records before it), or a
# skip (no record follows in this segment). Records never change, except for `dead_at`, the position of the record that
# superseded them: readers load it atomically.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from forebay.kv._digest cimport hash_pair

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
    HEADER_BYTES = 24
    KIND_SHIFT = 30
    KEY_MASK = 0x3FFFFFFF
    COMMIT_NUMBERS_BYTES = 16  # of a commit's value: digest and count of the rows; the state follows

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

cdef inline int kind_of(const Record* r) noexcept nogil:
    return r.kind_and_key >> KIND_SHIFT

cdef inline uint32_t key_size_of(const Record* r) noexcept nogil:
    return r.kind_and_key & <uint32_t> KEY_MASK

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
    """The hash that a sound record holds."""
    cdef uint64_t h = hash_pair(key_of(r), key_size_of(r), value_of(r), r.value_size)
    return h if kind_of(r) == ROW else ~h
