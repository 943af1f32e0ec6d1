"""Growable Arrow columns in plain C memory, handed to pyarrow through the C data interface without a copy.

A `Builder` stands for one node of a `RowLayout`. All functions run without the GIL and report 0, or -1 when memory
(or the 31-bit offset range of Utf8 and Binary) is exhausted. Memory comes from malloc, not from Arrow's pool: glibc
reuses it between batches, and growing needs no Python object (measured in docs/benchmarks.md).
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from forebay.codec.rows._layout cimport (
    KIND_ARRAY, KIND_BINARY, KIND_BYTES, KIND_CHAR, KIND_DECIMAL, KIND_DECIMAL_COMPACT, KIND_DOUBLE, KIND_FLOAT,
    KIND_INT8, KIND_INT16, KIND_INT32, KIND_INT64, KIND_MAP, KIND_ROW, KIND_STRING, KIND_TIME, KIND_TIMESTAMP,
    KIND_TIMESTAMP_COMPACT,
)

cdef enum:
    OFFSET_MAX = 0x7FFFFFFF


cdef bint has_offsets(int kind) noexcept nogil:
    return kind in (KIND_STRING, KIND_CHAR, KIND_BYTES, KIND_ARRAY, KIND_MAP)


cdef int value_width(const Node* node) noexcept nogil:
    """Bytes of one Arrow value; 0 for booleans (bits), variable-length and nested types."""
    cdef int kind = node.kind
    if kind == KIND_INT8:
        return 1
    if kind == KIND_INT16:
        return 2
    if kind in (KIND_INT32, KIND_FLOAT):
        return 4
    if kind == KIND_TIME:  # time32 holds seconds and milliseconds, time64 the finer units
        return 4 if node.parameter <= 1000 else 8
    if kind in (KIND_INT64, KIND_DOUBLE, KIND_TIMESTAMP_COMPACT, KIND_TIMESTAMP):
        return 8
    if kind in (KIND_DECIMAL_COMPACT, KIND_DECIMAL):
        return 16
    if kind == KIND_BINARY:
        return node.parameter
    return 0


cdef int grow_rows(const Node* node, Builder* b, int64_t extra) noexcept nogil:
    cdef int64_t wanted = b.length + extra
    cdef int64_t capacity = max(wanted, b.capacity * 2, 16)
    cdef int64_t old_bytes = (b.capacity + 7) >> 3
    cdef int64_t new_bytes
    cdef int width = value_width(node)
    cdef void* grown
    capacity = (capacity + 63) & ~63
    new_bytes = capacity >> 3
    if b.validity != NULL:
        grown = realloc(b.validity, new_bytes)
        if grown == NULL:
            return -1
        b.validity = <uint8_t*> grown
        memset(b.validity + old_bytes, 0xFF, new_bytes - old_bytes)
    if has_offsets(node.kind):
        grown = realloc(b.offsets, (capacity + 1) * sizeof(int32_t))
        if grown == NULL:
            return -1
        b.offsets = <int32_t*> grown
        b.offsets[0] = 0
    elif width > 0 or node.kind == KIND_BOOLEAN:
        if node.kind == KIND_BOOLEAN:
            grown = realloc(b.values, new_bytes)
        else:
            grown = realloc(b.values, capacity * width)
        if grown == NULL:
            return -1
        b.values = <uint8_t*> grown
        if node.kind == KIND_BOOLEAN:
            memset(b.values + old_bytes, 0, new_bytes - old_bytes)
    b.capacity = capacity
    return 0


cdef int grow_bytes(Builder* b, int64_t extra) noexcept nogil:
    cdef int64_t wanted = b.bytes_used + extra
    cdef int64_t capacity
    cdef void* grown
    if wanted > OFFSET_MAX:
        return -1
    capacity = max(wanted, b.bytes_capacity * 2, 256)
    grown = realloc(b.values, capacity)
    if grown == NULL:
        return -1
    b.values = <uint8_t*> grown
    b.bytes_capacity = capacity
    return 0


cdef int mark_null(Builder* b) noexcept nogil:
    """Clear the validity bit of the row at `b.length`, for which there is room."""
    cdef int64_t size
    if b.validity == NULL:
        size = (b.capacity + 7) >> 3
        b.validity = <uint8_t*> malloc(size)
        if b.validity == NULL:
            return -1
        memset(b.validity, 0xFF, size)
    set_bit(b.validity, b.length, False)
    b.null_count += 1
    return 0


cdef int append_null(const Node* nodes, int index, Builder* builders) noexcept nogil:
    """Append a null to the column of node `index`; a null struct carries a null in each child."""
    cdef const Node* node = &nodes[index]
    cdef Builder* b = &builders[index]
    cdef int child, width
    if reserve_row(node, b) < 0 or mark_null(b) < 0:
        return -1
    if has_offsets(node.kind):
        b.offsets[b.length + 1] = b.offsets[b.length]
    elif node.kind == KIND_ROW:
        child = index + 1
        while child < node.end:
            if append_null(nodes, child, builders) < 0:
                return -1
            child = nodes[child].end
    else:
        width = value_width(node)
        if width > 0:
            memset(b.values + b.length * width, 0, width)
    b.length += 1
    return 0


cdef void free_builders(Builder* builders, int count) noexcept nogil:
    """Free all memory that has not been moved to Arrow, and the array of builders itself."""
    cdef int i
    if builders == NULL:
        return
    for i in range(count):
        free(builders[i].validity)
        free(builders[i].values)
        free(builders[i].offsets)
    free(builders)


cdef void release_array(ArrowArray* array) noexcept nogil:
    """The release callback of arrays made here: every buffer, child and pointer block is malloc memory."""
    cdef int64_t i
    for i in range(array.n_buffers):
        free(<void*> array.buffers[i])
    free(array.buffers)
    for i in range(array.n_children):
        if array.children[i] != NULL:
            if array.children[i].release != NULL:
                array.children[i].release(array.children[i])
            free(array.children[i])
    free(array.children)
    array.release = NULL


cdef int _allocate(ArrowArray* out, int64_t length, int64_t null_count, int buffers, int children) noexcept nogil:
    cdef int i
    memset(out, 0, sizeof(ArrowArray))
    out.buffers = <const void**> calloc(max(1, buffers), sizeof(void*))
    out.children = <ArrowArray**> calloc(max(1, children), sizeof(ArrowArray*))
    if out.buffers == NULL or out.children == NULL:
        free(out.buffers)
        free(out.children)
        return -1
    out.length = length
    out.null_count = null_count
    out.n_buffers = buffers
    out.n_children = children
    out.release = release_array
    for i in range(children):
        out.children[i] = <ArrowArray*> calloc(1, sizeof(ArrowArray))
        if out.children[i] == NULL:
            release_array(out)
            return -1
    return 0


cdef int _fill_children(const Node* nodes, int first, Builder* builders, ArrowArray* out) noexcept nogil:
    cdef int child = first
    cdef int64_t i
    for i in range(out.n_children):
        if move_to_arrow(nodes, child, builders, out.children[i]) < 0:
            release_array(out)
            return -1
        child = nodes[child].end
    return 0


cdef int move_to_arrow(const Node* nodes, int index, Builder* builders, ArrowArray* out) noexcept nogil:
    """Move the columns of node `index` and below into `out`, which then owns their memory."""
    cdef const Node* node = &nodes[index]
    cdef Builder* b = &builders[index]
    cdef int kind = node.kind
    cdef int buffers = 1 if kind == KIND_ROW else 2 if kind in (KIND_ARRAY, KIND_MAP) or not has_offsets(kind) else 3
    cdef int children = 1 if kind in (KIND_ARRAY, KIND_MAP) else node.child_count
    if has_offsets(kind) and b.offsets == NULL and grow_rows(node, b, 1) < 0:
        return -1  # even an empty column has one offset
    if _allocate(out, b.length, b.null_count, buffers, children) < 0:
        return -1
    out.buffers[0] = b.validity
    b.validity = NULL
    if has_offsets(kind):
        out.buffers[1] = b.offsets
        b.offsets = NULL
        if buffers == 3:
            out.buffers[2] = b.values
            b.values = NULL
    elif buffers == 2:
        out.buffers[1] = b.values
        b.values = NULL
    if kind != KIND_MAP:
        return _fill_children(nodes, index + 1, builders, out)
    # a map's child is a struct "entries" of key and value
    if _allocate(out.children[0], builders[index + 1].length, 0, 1, 2) < 0:
        out.children[0].release = NULL
        release_array(out)
        return -1
    if _fill_children(nodes, index + 1, builders, out.children[0]) < 0:
        release_array(out)
        return -1
    return 0


cdef int move_row_to_arrow(const Node* nodes, Builder* builders, int64_t rows, ArrowArray* out) noexcept nogil:
    """Move the wanted columns of the root row into `out`, a struct of `rows` rows without validity."""
    cdef int child = 1
    cdef int wanted = 0
    cdef int position = 0
    while child < nodes[0].end:
        wanted += nodes[child].wanted
        child = nodes[child].end
    if _allocate(out, rows, 0, 1, wanted) < 0:
        return -1
    child = 1
    while child < nodes[0].end:
        if nodes[child].wanted:
            if move_to_arrow(nodes, child, builders, out.children[position]) < 0:
                release_array(out)
                return -1
            position += 1
        child = nodes[child].end
    return 0


cdef void _destroy_capsule(object capsule) noexcept:
    cdef ArrowArray* array
    if PyCapsule_IsValid(capsule, "arrow_array"):
        array = <ArrowArray*> PyCapsule_GetPointer(capsule, "arrow_array")
        if array.release != NULL:
            array.release(array)
        free(array)


cdef object array_capsule(ArrowArray* array):
    """Wrap a calloc'ed `array` for the Arrow PyCapsule interface; the capsule owns it from now on."""
    return PyCapsule_New(array, "arrow_array", _destroy_capsule)
