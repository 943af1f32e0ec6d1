# The type tree of a row as a flat table, which drives all row kernels. See _layout.pyx.
from libc.stdint cimport int32_t, uint8_t

cdef enum Kind:
    KIND_BOOLEAN = 0
    KIND_INT8 = 1
    KIND_INT16 = 2
    KIND_INT32 = 3
    KIND_TIME = 4
    KIND_INT64 = 5
    KIND_FLOAT = 6
    KIND_DOUBLE = 7
    KIND_STRING = 8
    KIND_CHAR = 9
    KIND_BYTES = 10
    KIND_BINARY = 11
    KIND_DECIMAL_COMPACT = 12
    KIND_DECIMAL = 13
    KIND_TIMESTAMP_COMPACT = 14
    KIND_TIMESTAMP = 15
    KIND_ARRAY = 16
    KIND_MAP = 17
    KIND_ROW = 18

cdef enum Format:
    FORMAT_COMPACTED = 0
    FORMAT_INDEXED = 1
    FORMAT_KEY = 2
    FORMAT_ALIGNED = 3

cdef struct Node:
    uint8_t kind
    uint8_t nullable
    uint8_t in_length_list   # indexed rows: does the field own a slot in the length list?
    uint8_t wanted           # decoding: is the column asked for, or only walked over?
    int32_t parameter        # length of BINARY and CHAR; ticks a second of TIME and TIMESTAMP
    int32_t child_count
    int32_t end              # index of the node behind this one's subtree
    int32_t length_list_size # ROW: how many children own a slot in the length list

cdef class RowLayout:
    cdef Node* nodes         # nodes[0] is the row itself
    cdef readonly int node_count
    cdef readonly int format
    cdef readonly int field_count
    cdef int _link(self, int index) except -1
