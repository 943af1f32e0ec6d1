# What a put makes of the row that is there, for the put in one piece. See _merge.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t

from forebay.codec.rows._layout cimport Node, RowLayout
from forebay.codec.rows._row_decode cimport Span
from forebay.kv._aggregate cimport Aggregates

cdef enum:
    PREFIX = 6  # of a stored value: length and schema id
    ID_BYTES = 10
    BUILT_BYTES_MAX = 1 << 30  # of the rows that one put makes of others

cdef enum ChangeKind:
    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4

cdef enum Decision:           # above zero: what `refuse` takes
    KEEPS = 0                 # nothing changes
    REMOVES = -1
    REPLACES = -2             # the put's row is the new one
    BUILDS = -3               # `build` makes the new one

cdef class MergePlan:
    cdef RowLayout layout
    cdef int schema_id
    cdef int field_count
    cdef bint full_image
    cdef bint reads           # whether puts depend on whether there is a row
    cdef bint reads_content   # whether they depend on what is in it
    cdef bint deletes_ignored
    cdef bint deletes_disabled
    cdef bint partial
    cdef bint keys_only
    cdef bytes target_mask
    cdef bytes key_mask
    cdef const uint8_t* targets
    cdef const uint8_t* key_columns
    cdef int auto_increment
    cdef bint has_narrow_ids
    cdef int engine
    cdef int version
    cdef const Node* version_node
    cdef Aggregates aggregates
    cdef Span* old_spans
    cdef Span* new_spans
    cdef uint8_t id_bytes[ID_BYTES]

    cdef int decide(
        self, const uint8_t* old, Py_ssize_t old_size, const uint8_t* row, Py_ssize_t size, int64_t next_id
    ) noexcept nogil
    cdef int64_t built_bytes(self) noexcept nogil
    cdef void build(self, uint8_t* out) noexcept nogil
    cdef int walk(self, const uint8_t* row, Py_ssize_t size, Span* spans, int fields) noexcept nogil
    cdef void load_version(self, const Span* span, int64_t* major, int32_t* minor) noexcept nogil
    cdef int compare_versions(
        self, const uint8_t* old, Py_ssize_t old_size, const uint8_t* row, Py_ssize_t size
    ) noexcept nogil
    cdef int clear(self, const uint8_t* old, Py_ssize_t old_size) noexcept nogil
    cdef void set_id(self, int64_t next_id) noexcept nogil
    cdef int refuse(self, int outcome, object key) except -1
    cdef bytes built_value(self, object key)
