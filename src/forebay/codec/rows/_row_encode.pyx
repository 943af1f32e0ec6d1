"""Arrow -> rows: one table-driven kernel for compacted rows, indexed rows and compacted keys of any schema.

Arrays come in through the Arrow C data interface and must have exactly the storage schema of the layout (the Python
side checks it). The output is a Binary array, one value a row, written front to back into one growing buffer.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

from forebay.codec.arrow._arrow_c cimport ArrowArray
from forebay.codec.arrow._builders cimport (
    Builder, array_capsule, free_builders, get_bit, grow_bytes, grow_rows, move_to_arrow, set_bit,
)
from forebay.codec.rows._layout cimport (
    FORMAT_ALIGNED, FORMAT_INDEXED, FORMAT_KEY, KIND_ARRAY, KIND_BINARY, KIND_BOOLEAN, KIND_BYTES, KIND_CHAR,
    KIND_DECIMAL, KIND_DECIMAL_COMPACT, KIND_DOUBLE, KIND_FLOAT, KIND_INT8, KIND_INT16, KIND_INT32, KIND_INT64,
    KIND_MAP, KIND_ROW, KIND_STRING, KIND_TIME, KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT, Node, RowLayout,
)
from forebay.codec.rows._slices cimport RowSlices
from forebay.codec._wire cimport store_int32, store_int64, varint_size, write_varint

from forebay.base.errors import ErrorCode, InvalidRequest

cdef enum Failure:
    FAILED_MEMORY = 1
    FAILED_NULL_KEY = 2
    FAILED_CHAR_LENGTH = 3
    FAILED_TIMESTAMP = 4

_REASONS = {
    FAILED_NULL_KEY: "a key column is null",
    FAILED_CHAR_LENGTH: "a CHAR value has more bytes than its column's length, which indexed rows cannot hold",
    FAILED_TIMESTAMP: "a timestamp does not fit into 64-bit milliseconds",
}

cdef struct Context:
    const Node* nodes
    const ArrowArray** arrays  # by node index
    Builder* out
    int format
    int failure


cdef inline int ensure(Context* c, int64_t extra) noexcept nogil:
    if c.out.bytes_used + extra > c.out.bytes_capacity and grow_bytes(c.out, extra) < 0:
        c.failure = FAILED_MEMORY
        return -1
    return 0


cdef inline bint is_null(const ArrowArray* array, int64_t i) noexcept nogil:
    cdef const uint8_t* validity
    if array.null_count == 0:
        return False
    validity = <const uint8_t*> array.buffers[0]
    return validity != NULL and not get_bit(validity, array.offset + i)


cdef inline int64_t floor_divide(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t q = a / b
    return q - 1 if (a % b != 0 and (a < 0) != (b < 0)) else q


# ---- reading one value --------------------------------------------------------------------------------------------------


cdef inline int64_t int_value(const Node* node, const ArrowArray* array, int64_t i) noexcept nogil:
    """The value at `i` of an integer-like column, in the unit that rows store."""
    cdef const void* values = array.buffers[1]
    cdef int64_t at = array.offset + i
    cdef int64_t value
    if node.kind == KIND_INT32:
        return (<const int32_t*> values)[at]
    if node.kind == KIND_INT64:
        return (<const int64_t*> values)[at]
    if node.kind == KIND_BOOLEAN:
        return get_bit(<const uint8_t*> values, at)
    if node.kind == KIND_INT8:
        return (<const int8_t*> values)[at]
    if node.kind == KIND_INT16:
        return (<const int16_t*> values)[at]
    if node.kind == KIND_TIME:
        if node.parameter <= 1000:
            value = (<const int32_t*> values)[at]
            return value * (1000 / node.parameter)
        return (<const int64_t*> values)[at] / (node.parameter / 1000)
    return (<const int64_t*> values)[2 * at]  # KIND_DECIMAL_COMPACT: the low half holds it all


cdef inline int timestamp_value(
    Context* c, const Node* node, const ArrowArray* array, int64_t i, int64_t* nanos
) noexcept nogil:
    """Split a timestamp into milliseconds (left in nanos[0]) and nanoseconds of the millisecond (nanos[1])."""
    cdef int64_t value = (<const int64_t*> array.buffers[1])[array.offset + i]
    cdef int64_t ticks = node.parameter / 1000
    if node.parameter == 1:
        if value > <int64_t> 9223372036854775 or value < -<int64_t> 9223372036854775:
            c.failure = FAILED_TIMESTAMP
            return -1
        nanos[0] = value * 1000
        nanos[1] = 0
    else:
        nanos[0] = floor_divide(value, ticks)
        nanos[1] = (value - nanos[0] * ticks) * (1000000 / ticks)
    return 0


cdef inline const uint8_t* bytes_value(
    const Node* node, const ArrowArray* array, int64_t i, int64_t* size
) noexcept nogil:
    cdef const int32_t* offsets
    if node.kind == KIND_BINARY:
        size[0] = node.parameter
        return <const uint8_t*> array.buffers[1] + (array.offset + i) * node.parameter
    offsets = <const int32_t*> array.buffers[1] + array.offset + i
    size[0] = offsets[1] - offsets[0]
    return <const uint8_t*> array.buffers[2] + offsets[0]


cdef inline int decimal_bytes(const ArrowArray* array, int64_t i, uint8_t* out) noexcept nogil:
    """The shortest big-endian two's complement of a decimal128 into `out` (16 bytes); its length."""
    cdef const uint8_t* p = <const uint8_t*> array.buffers[1] + 16 * (array.offset + i)
    cdef int size = 16
    cdef int j
    while size > 1 and (
        (p[size - 1] == 0 and not p[size - 2] & 0x80) or (p[size - 1] == 0xFF and p[size - 2] & 0x80)
    ):
        size -= 1
    for j in range(size):
        out[j] = p[size - 1 - j]
    return size


# ---- BinaryArray ------------------------------------------------------------------------------------------------------


cdef inline int element_width(int kind) noexcept nogil:
    if kind in (KIND_BOOLEAN, KIND_INT8):
        return 1
    if kind == KIND_INT16:
        return 2
    if kind in (KIND_INT32, KIND_FLOAT, KIND_TIME):
        return 4
    return 8


cdef int append_padded(Context* c, const uint8_t* data, int64_t size) noexcept nogil:
    """Append `size` bytes and zero bytes up to a multiple of 8."""
    cdef int64_t padded = (size + 7) & ~7
    if ensure(c, padded) < 0:
        return -1
    if padded > 0:
        memset(c.out.values + c.out.bytes_used + padded - 8, 0, 8)
    memcpy(c.out.values + c.out.bytes_used, data, size)
    c.out.bytes_used += padded
    return 0


cdef int encode_element(Context* c, int element, int64_t i, int64_t base, int64_t slot) noexcept nogil:
    """Write element `i` (not null) into the slot at position `slot` of the output; the array begins at `base`."""
    cdef const Node* node = &c.nodes[element]
    cdef const ArrowArray* array = c.arrays[element]
    cdef int kind = node.kind
    cdef int width = element_width(kind)
    cdef int64_t value, size
    cdef int64_t split[2]
    cdef uint8_t scratch[16]
    cdef const uint8_t* data
    cdef int64_t start = c.out.bytes_used
    if kind in (KIND_BOOLEAN, KIND_INT8, KIND_INT16, KIND_INT32, KIND_TIME, KIND_INT64, KIND_DECIMAL_COMPACT):
        value = int_value(node, array, i)
        memcpy(c.out.values + slot, &value, width)
        return 0
    if kind in (KIND_FLOAT, KIND_DOUBLE):
        memcpy(c.out.values + slot, <const uint8_t*> array.buffers[1] + (array.offset + i) * width, width)
        return 0
    if kind in (KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT):
        if timestamp_value(c, node, array, i, split) < 0:
            return -1
        if kind == KIND_TIMESTAMP_COMPACT:
            store_int64(c.out.values + slot, split[0])
            return 0
        if append_padded(c, <const uint8_t*> &split[0], 8) < 0:
            return -1
        store_int64(c.out.values + slot, ((start - base) << 32) | split[1])
        return 0
    if kind in (KIND_STRING, KIND_CHAR, KIND_BYTES, KIND_BINARY):
        data = bytes_value(node, array, i, &size)
        if size <= 7:
            memcpy(c.out.values + slot, data, size)
            c.out.values[slot + 7] = <uint8_t> (0x80 | size)
            return 0
        if append_padded(c, data, size) < 0:
            return -1
    elif kind == KIND_DECIMAL:
        memset(scratch, 0, 16)
        size = decimal_bytes(array, i, scratch)
        if append_padded(c, scratch, 16) < 0:
            return -1
    else:
        if encode_nested(c, element, i) < 0:
            return -1
        size = c.out.bytes_used - start
        value = (8 - (size & 7)) & 7
        if ensure(c, value) < 0:
            return -1
        memset(c.out.values + c.out.bytes_used, 0, value)
        c.out.bytes_used += value
    store_int64(c.out.values + slot, ((start - base) << 32) | size)
    return 0


cdef int encode_array(Context* c, int element, int64_t first, int64_t count) noexcept nogil:
    """Append the BinaryArray of elements [first, first + count) of node `element`."""
    cdef const ArrowArray* array = c.arrays[element]
    cdef int64_t base = c.out.bytes_used
    cdef int64_t header = 4 + ((count + 31) / 32) * 4
    cdef int width = element_width(c.nodes[element].kind)
    cdef int64_t fixed = (header + count * width + 7) & ~7
    cdef int64_t i
    if ensure(c, fixed) < 0:
        return -1
    memset(c.out.values + base, 0, fixed)
    store_int32(c.out.values + base, <int32_t> count)
    c.out.bytes_used += fixed
    for i in range(count):
        if is_null(array, first + i):
            set_bit(c.out.values + base + 4, i, True)
        elif encode_element(c, element, first + i, base, base + header + i * width) < 0:
            return -1
    return 0


cdef int encode_nested(Context* c, int index, int64_t i) noexcept nogil:
    """Append the ARRAY, MAP or ROW at `i` of node `index`, without a length."""
    cdef const Node* node = &c.nodes[index]
    cdef const ArrowArray* array = c.arrays[index]
    cdef const int32_t* offsets
    cdef int64_t first, count, start
    cdef int key = index + 1
    if node.kind == KIND_ROW:
        return encode_row(c, index, array.offset + i)
    offsets = <const int32_t*> array.buffers[1] + array.offset + i
    first = offsets[0]
    count = offsets[1] - first
    if node.kind == KIND_ARRAY:
        return encode_array(c, index + 1, first, count)
    start = c.out.bytes_used
    if ensure(c, 4) < 0:
        return -1
    c.out.bytes_used += 4
    first += array.children[0].offset  # the entries struct may carry an offset of its own
    if encode_array(c, key, first, count) < 0:
        return -1
    store_int32(c.out.values + start, <int32_t> (c.out.bytes_used - start - 4))
    return encode_array(c, c.nodes[key].end, first, count)


# ---- rows -------------------------------------------------------------------------------------------------------------


cdef int append_raw(Context* c, const void* data, int64_t size) noexcept nogil:
    if ensure(c, size) < 0:
        return -1
    memcpy(c.out.values + c.out.bytes_used, data, size)
    c.out.bytes_used += size
    return 0


cdef inline int append_varint(Context* c, uint64_t value) noexcept nogil:
    if ensure(c, 10) < 0:
        return -1
    c.out.bytes_used += write_varint(c.out.values + c.out.bytes_used, value)
    return 0


cdef int encode_compacted_field(Context* c, int index, int64_t i) noexcept nogil:
    cdef const Node* node = &c.nodes[index]
    cdef const ArrowArray* array = c.arrays[index]
    cdef int kind = node.kind
    cdef int64_t size, start
    cdef int64_t split[2]
    cdef uint8_t scratch[16]
    cdef const uint8_t* data
    cdef int64_t value
    cdef int moved
    if kind in (KIND_INT32, KIND_TIME):
        return append_varint(c, <uint32_t> int_value(node, array, i))
    if kind in (KIND_INT64, KIND_DECIMAL_COMPACT):
        return append_varint(c, <uint64_t> int_value(node, array, i))
    if kind in (KIND_BOOLEAN, KIND_INT8, KIND_INT16):
        value = int_value(node, array, i)
        return append_raw(c, &value, element_width(kind))
    if kind in (KIND_FLOAT, KIND_DOUBLE):
        size = element_width(kind)
        return append_raw(c, <const uint8_t*> array.buffers[1] + (array.offset + i) * size, size)
    if kind in (KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT):
        if timestamp_value(c, node, array, i, split) < 0 or append_varint(c, <uint64_t> split[0]) < 0:
            return -1
        return append_varint(c, <uint64_t> split[1]) if kind == KIND_TIMESTAMP else 0
    if kind in (KIND_STRING, KIND_CHAR, KIND_BYTES, KIND_BINARY):
        data = bytes_value(node, array, i, &size)
        return -1 if append_varint(c, <uint64_t> size) < 0 else append_raw(c, data, size)
    if kind == KIND_DECIMAL:
        size = decimal_bytes(array, i, scratch)
        return -1 if append_varint(c, <uint64_t> size) < 0 else append_raw(c, scratch, size)
    # nested: leave room for the longest length, then close the gap
    if ensure(c, 5) < 0:
        return -1
    start = c.out.bytes_used
    c.out.bytes_used += 5
    if encode_nested(c, index, i) < 0:
        return -1
    size = c.out.bytes_used - start - 5
    moved = varint_size(<uint64_t> size)
    memmove(c.out.values + start + moved, c.out.values + start + 5, size)
    write_varint(c.out.values + start, <uint64_t> size)
    c.out.bytes_used = start + moved + size
    return 0


cdef int encode_indexed_field(Context* c, int index, int64_t i, int64_t* length_slot) noexcept nogil:
    cdef const Node* node = &c.nodes[index]
    cdef const ArrowArray* array = c.arrays[index]
    cdef int kind = node.kind
    cdef int64_t start = c.out.bytes_used
    cdef int64_t size, value
    cdef int64_t split[2]
    cdef uint8_t scratch[16]
    cdef const uint8_t* data
    if kind in (KIND_STRING, KIND_BYTES, KIND_BINARY):
        data = bytes_value(node, array, i, &size)
        if append_raw(c, data, size) < 0:
            return -1
    elif kind == KIND_CHAR:
        data = bytes_value(node, array, i, &size)
        if size > node.parameter:
            c.failure = FAILED_CHAR_LENGTH
            return -1
        if ensure(c, node.parameter) < 0:
            return -1
        memcpy(c.out.values + start, data, size)
        memset(c.out.values + start + size, 0, node.parameter - size)
        c.out.bytes_used += node.parameter
    elif kind == KIND_DECIMAL:
        size = decimal_bytes(array, i, scratch)
        if append_raw(c, scratch, size) < 0:
            return -1
    elif kind in (KIND_ARRAY, KIND_MAP, KIND_ROW):
        if encode_nested(c, index, i) < 0:
            return -1
    elif kind in (KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT):
        if timestamp_value(c, node, array, i, split) < 0 or append_raw(c, &split[0], 8) < 0:
            return -1
        if kind == KIND_TIMESTAMP and append_raw(c, &split[1], 4) < 0:
            return -1
    elif kind in (KIND_FLOAT, KIND_DOUBLE):
        size = element_width(kind)
        if append_raw(c, <const uint8_t*> array.buffers[1] + (array.offset + i) * size, size) < 0:
            return -1
    else:
        value = int_value(node, array, i)
        if append_raw(c, &value, element_width(kind)) < 0:
            return -1
    if node.in_length_list:
        store_int32(c.out.values + length_slot[0], <int32_t> (c.out.bytes_used - start))
        length_slot[0] += 4
    return 0


cdef int encode_aligned_row(Context* c, int row, int64_t i) noexcept nogil:
    """Append a row of eight bytes a field: one byte of row kind, null bits, slots as in a BinaryArray, long values."""
    cdef int count = c.nodes[row].child_count
    cdef int64_t header = ((count + 63 + 8) / 64) * 8
    cdef int64_t start = c.out.bytes_used
    cdef int child = row + 1
    cdef int position
    if ensure(c, header + 8 * count) < 0:
        return -1
    memset(c.out.values + start, 0, header + 8 * count)
    c.out.bytes_used += header + 8 * count
    for position in range(count):
        if is_null(c.arrays[child], i):
            set_bit(c.out.values + start, 8 + position, True)
        elif encode_element(c, child, i, start, start + header + 8 * position) < 0:
            return -1
        child = c.nodes[child].end
    return 0


cdef int encode_row(Context* c, int row, int64_t i) noexcept nogil:
    """Append the row at `i`, counted from the start of the children, of node `row`."""
    cdef const Node* node = &c.nodes[row]
    cdef int64_t null_bytes = 0 if c.format == FORMAT_KEY else (node.child_count + 7) >> 3
    cdef int64_t header = null_bytes + (4 * node.length_list_size if c.format == FORMAT_INDEXED else 0)
    cdef int64_t start = c.out.bytes_used
    cdef int64_t length_slot = start + null_bytes
    cdef int child = row + 1
    cdef int position, status
    if c.format == FORMAT_ALIGNED:
        return encode_aligned_row(c, row, i)
    if ensure(c, header) < 0:
        return -1
    memset(c.out.values + start, 0, header)
    c.out.bytes_used += header
    for position in range(node.child_count):
        if is_null(c.arrays[child], i):
            if c.format == FORMAT_KEY:
                c.failure = FAILED_NULL_KEY
                return -1
            set_bit(c.out.values + start, position, True)
        else:
            if c.format == FORMAT_INDEXED:
                status = encode_indexed_field(c, child, i, &length_slot)
            else:
                status = encode_compacted_field(c, child, i)
            if status < 0:
                return -1
        child = c.nodes[child].end
    return 0


cdef int bind_arrays(Context* c, int index, const ArrowArray* array) except -1:
    """Note which Arrow array belongs to which node, and that the trees have the same shape."""
    cdef const Node* node = &c.nodes[index]
    cdef int child = index + 1
    cdef int expected = 1 if node.kind in (KIND_ARRAY, KIND_MAP) else node.child_count
    cdef int position
    if array.n_children != expected or array.dictionary != NULL:
        raise ValueError("the Arrow data does not have the shape of the layout")
    c.arrays[index] = array
    if node.kind == KIND_MAP:
        array = array.children[0]
        if array.n_children != 2:
            raise ValueError("the Arrow data does not have the shape of the layout")
    for position in range(node.child_count):
        bind_arrays(c, child, array.children[position])
        child = c.nodes[child].end
    return 0


def encode(RowLayout layout, array_capsule_in):
    """Encode the rows of an Arrow struct array (an `arrow_array` capsule) to an `arrow_array` capsule of Binary.

    Raises `InvalidRequest` naming the first row that cannot be encoded.
    """
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(array_capsule_in, "arrow_array")
    cdef Context c
    cdef Node bytes_node
    cdef int64_t failed = -1
    cdef int64_t i
    cdef ArrowArray* out
    memset(&bytes_node, 0, sizeof(Node))
    bytes_node.kind = KIND_BYTES
    bytes_node.end = 1
    c.nodes = layout.nodes
    c.format = layout.format
    c.failure = 0
    c.arrays = <const ArrowArray**> calloc(layout.node_count, sizeof(ArrowArray*))
    c.out = <Builder*> calloc(1, sizeof(Builder))
    out = <ArrowArray*> calloc(1, sizeof(ArrowArray))
    try:
        if c.arrays == NULL or c.out == NULL or out == NULL:
            raise MemoryError()
        bind_arrays(&c, 0, array)
    except BaseException:
        free(c.arrays)
        free(c.out)
        free(out)
        raise
    with nogil:
        if grow_rows(&bytes_node, c.out, array.length) < 0:
            c.failure = FAILED_MEMORY
            failed = 0
        else:
            for i in range(array.length):
                if encode_row(&c, 0, array.offset + i) < 0:
                    failed = i
                    break
                c.out.length += 1
                c.out.offsets[c.out.length] = <int32_t> c.out.bytes_used
        if failed < 0 and move_to_arrow(&bytes_node, 0, c.out, out) < 0:
            c.failure = FAILED_MEMORY
            failed = 0
        free_builders(c.out, 1)
        free(c.arrays)
    if failed >= 0:
        free(out)
        if c.failure == FAILED_MEMORY:
            raise MemoryError("encoding rows: out of memory, or more than 2 GiB of rows in one batch")
        raise InvalidRequest(f"row {failed} cannot be stored: {_REASONS[c.failure]}", ErrorCode.INVALID_TABLE_EXCEPTION)
    return array_capsule(out)


def encodes_to(RowLayout layout, array_capsule_in, tuple positions not None, RowSlices expected not None):
    """Whether the columns at `positions` of an Arrow struct array encode, row by row, to exactly the bytes `expected`.

    False also if a row cannot be encoded; `encode` says why.
    """
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(array_capsule_in, "arrow_array")
    cdef Context c
    cdef Builder out
    cdef int child = 1
    cdef Py_ssize_t position
    cdef int64_t i = 0
    if len(positions) != layout.field_count or array.length != expected.count:
        return False
    memset(&out, 0, sizeof(Builder))
    c.nodes = layout.nodes
    c.format = layout.format
    c.failure = 0
    c.out = &out
    c.arrays = <const ArrowArray**> calloc(layout.node_count, sizeof(ArrowArray*))
    if c.arrays == NULL:
        raise MemoryError()
    try:
        for position in positions:
            if not 0 <= position < array.n_children:
                raise ValueError(f"there is no column {position}")
            bind_arrays(&c, child, array.children[position])
            child = layout.nodes[child].end
        with nogil:
            while i < array.length:
                out.bytes_used = 0
                if encode_row(&c, 0, array.offset + i) < 0:
                    break
                if out.bytes_used != expected.sizes[i] or memcmp(out.values, expected.data[i], out.bytes_used) != 0:
                    break
                i += 1
    finally:
        free(out.values)
        free(c.arrays)
    return i == array.length
