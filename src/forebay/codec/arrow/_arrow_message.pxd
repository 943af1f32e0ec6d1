# Arrow IPC record batch messages inside log batches: shape of the columns, parsed view, bytes of new metadata.
# See _arrow_message.pyx.
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

cdef enum NodeKind:
    NODE_FIXED = 0       # validity, values of `width` bytes
    NODE_BOOLEAN = 1     # validity, values as bits
    NODE_VARIABLE = 2    # validity, offsets, bytes (Utf8, Binary)
    NODE_LIST = 3        # validity, offsets (List, Map)
    NODE_STRUCT = 4      # validity

cdef enum Codec:
    CODEC_NONE = -1
    CODEC_LZ4 = 0
    CODEC_ZSTD = 1

cdef enum Problem:
    PROBLEM_NONE = 0
    PROBLEM_SHORT = 1
    PROBLEM_MARKER = 2
    PROBLEM_METADATA = 3
    PROBLEM_KIND = 4
    PROBLEM_CODEC = 5
    PROBLEM_BODY = 6
    PROBLEM_ROWS = 7
    PROBLEM_NODES = 8
    PROBLEM_BUFFERS = 9
    PROBLEM_NODE_LENGTH = 10
    PROBLEM_NULL_COUNT = 11
    PROBLEM_NOT_NULL = 12
    PROBLEM_BUFFER_PLACE = 13
    PROBLEM_BUFFER_SIZE = 14
    PROBLEM_OFFSETS = 15
    PROBLEM_COMPRESSED_SIZE = 16
    PROBLEM_DECODED_SIZE = 17
    PROBLEM_NULL_BITS = 18

cdef struct LayoutNode:
    uint8_t kind
    uint8_t nullable
    int32_t width
    int32_t end            # index of the node behind this one's subtree
    int32_t parent         # -1: a column of the table
    int32_t first_buffer
    int32_t column         # the column of the table that the node belongs to

cdef struct Message:
    const uint8_t* nodes     # pairs of int64: length, null count
    const uint8_t* buffers   # pairs of int64: offset in the body, length
    const uint8_t* body
    int64_t node_count
    int64_t buffer_count
    int64_t rows
    int64_t body_length
    int64_t body_start       # from the beginning of the message
    int16_t version
    int8_t codec

cdef struct Finding:
    int problem
    int node                 # -1: none in particular
    int64_t value

cdef class ByteView:
    cdef Py_buffer view
    cdef const uint8_t* data
    cdef readonly Py_ssize_t size

cdef class MessageLayout:
    cdef LayoutNode* nodes
    cdef readonly int node_count
    cdef readonly int buffer_count
    cdef readonly int column_count
    cdef readonly tuple names
    cdef int _link(self, int index, int parent, int column, list child_counts) except -1

cdef int parse_message(const uint8_t* data, int64_t available, Message* out) noexcept nogil
cdef int check_body(
    MessageLayout layout, const Message* message, int64_t rows, int64_t decoded_bytes_max, Finding* finding
) noexcept nogil
cdef int check_places(const Message* message, Finding* finding) noexcept nogil
cdef int64_t metadata_size(int64_t node_count, int64_t buffer_count, int codec) noexcept nogil
cdef uint8_t* write_metadata(
    uint8_t* out, int64_t rows, int64_t node_count, int64_t buffer_count, int64_t body_length, int codec, int version,
    uint8_t** nodes, uint8_t** buffers
) noexcept nogil
cdef object problem_text(const Finding* finding)

cdef inline int buffers_of(int kind) noexcept nogil:
    return 3 if kind == NODE_VARIABLE else 1 if kind == NODE_STRUCT else 2

cdef inline int64_t padded(int64_t size) noexcept nogil:
    """`size` rounded up to the alignment of buffers."""
    return (size + 7) & ~<int64_t> 7
