"""Rows -> Arrow: one table-driven kernel for compacted and indexed rows of any schema, nested types included.

Input is hostile: every length, count and offset is checked against the bytes that are there. Nested values are
reached through offsets, which a liar could point at the same bytes again and again; a budget on the bytes visited
bounds the work to what honest rows can need.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from forebay.codec.arrow._arrow_c cimport ArrowArray
from forebay.codec.arrow._builders cimport (
    Builder, append_bytes, append_null, array_capsule, free_builders, grow_bytes, grow_rows, move_row_to_arrow,
    reserve_row, set_bit,
)
from forebay.codec.rows._layout cimport (
    FORMAT_ALIGNED, FORMAT_COMPACTED, FORMAT_INDEXED, FORMAT_KEY, KIND_ARRAY, KIND_BINARY, KIND_BOOLEAN, KIND_BYTES,
    KIND_CHAR, KIND_DECIMAL, KIND_DECIMAL_COMPACT, KIND_DOUBLE, KIND_FLOAT, KIND_INT8, KIND_INT16, KIND_INT32, KIND_INT64,
    KIND_MAP, KIND_ROW, KIND_STRING, KIND_TIME, KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT, Node, RowLayout,
)
from forebay.codec._prefetch cimport forebay_prefetch
from forebay.codec.rows._slices cimport RowSlices
from forebay.codec._wire cimport load_int32, load_int64, read_varint

from forebay.base.errors import CorruptData, ErrorCode

cdef enum:
    AHEAD = 8    # rows that are fetched into the cache before they are decoded
    SAMPLE = 64  # rows from which the bytes of texts are guessed

cdef enum Failure:
    FAILED_MEMORY = 1
    FAILED_TRUNCATED = 2
    FAILED_LENGTH = 3
    FAILED_NESTED = 4
    FAILED_DECIMAL = 5
    FAILED_TIMESTAMP = 6
    FAILED_BUDGET = 7
    FAILED_NULL_ROW = 8
    FAILED_TRAILING = 9

_REASONS = {
    FAILED_TRUNCATED: "it ends inside a field",
    FAILED_LENGTH: "a length points outside it",
    FAILED_NESTED: "a nested value is malformed",
    FAILED_DECIMAL: "a decimal has more than 38 digits' worth of bytes",
    FAILED_TIMESTAMP: "a timestamp does not fit into 64 bits at its precision",
    FAILED_BUDGET: "nested values overlap",
    FAILED_NULL_ROW: "there is no row",
    FAILED_TRAILING: "bytes follow its last field",
}

cdef struct Context:
    const Node* nodes
    Builder* builders
    int format
    int failure
    int64_t budget
    int64_t total_bytes       # of all rows
    int fields                # of the row itself that are looked at: those up to the last that is wanted


cdef inline const uint8_t* fail(Context* c, int failure) noexcept nogil:
    c.failure = failure
    return NULL


cdef inline int64_t floor_divide(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t q = a / b
    return q - 1 if (a % b != 0 and (a < 0) != (b < 0)) else q


# ---- one value into its column ---------------------------------------------------------------------------------------


cdef inline int put_int(Context* c, int index, int64_t value) noexcept nogil:
    """Append an integer-like value of node `index` at the node's Arrow width."""
    cdef const Node* node = &c.nodes[index]
    cdef Builder* b = &c.builders[index]
    if reserve_row(node, b) < 0:
        c.failure = FAILED_MEMORY
        return -1
    if node.kind == KIND_INT32:
        (<int32_t*> b.values)[b.length] = <int32_t> value
    elif node.kind == KIND_INT64:
        (<int64_t*> b.values)[b.length] = value
    elif node.kind == KIND_INT16:
        (<int16_t*> b.values)[b.length] = <int16_t> value
    elif node.kind == KIND_INT8:
        (<int8_t*> b.values)[b.length] = <int8_t> value
    elif node.kind == KIND_BOOLEAN:
        set_bit(b.values, b.length, value != 0)
    elif node.kind == KIND_TIME:  # milliseconds of the day, in the unit of the column
        if node.parameter <= 1000:
            (<int32_t*> b.values)[b.length] = <int32_t> (value / (1000 / node.parameter))
        else:
            (<int64_t*> b.values)[b.length] = value * (node.parameter / 1000)
    else:  # KIND_DECIMAL_COMPACT: sign-extend to 128 bits
        (<int64_t*> b.values)[2 * b.length] = value
        (<int64_t*> b.values)[2 * b.length + 1] = value >> 63
    b.length += 1
    return 0


cdef inline int put_bits(Context* c, int index, const uint8_t* p, int width) noexcept nogil:
    """Append `width` bytes as they are (float, double)."""
    cdef Builder* b = &c.builders[index]
    if reserve_row(&c.nodes[index], b) < 0:
        c.failure = FAILED_MEMORY
        return -1
    memcpy(b.values + b.length * width, p, width)
    b.length += 1
    return 0


cdef int put_timestamp(Context* c, int index, int64_t millis, int64_t nanos) noexcept nogil:
    cdef const Node* node = &c.nodes[index]
    cdef Builder* b = &c.builders[index]
    cdef int64_t value, factor
    if reserve_row(node, b) < 0:
        c.failure = FAILED_MEMORY
        return -1
    if node.parameter == 1:
        value = floor_divide(millis, 1000)
    elif node.parameter == 1000:
        value = millis
    else:
        factor = node.parameter / 1000
        if millis > (<int64_t> 0x7FFFFFFFFFFFFFFF) / factor - 1 or millis < -((<int64_t> 0x7FFFFFFFFFFFFFFF) / factor):
            c.failure = FAILED_TIMESTAMP
            return -1
        value = millis * factor + nanos / (1000000000 / node.parameter)
    (<int64_t*> b.values)[b.length] = value
    b.length += 1
    return 0


cdef int put_decimal(Context* c, int index, const uint8_t* p, int64_t size) noexcept nogil:
    """Append a big-endian two's complement number as decimal128."""
    cdef Builder* b = &c.builders[index]
    cdef uint8_t* out
    cdef int64_t i
    if size < 1 or size > 16:
        c.failure = FAILED_DECIMAL
        return -1
    if reserve_row(&c.nodes[index], b) < 0:
        c.failure = FAILED_MEMORY
        return -1
    out = b.values + 16 * b.length
    memset(out, 0xFF if p[0] & 0x80 else 0, 16)
    for i in range(size):
        out[size - 1 - i] = p[i]
    b.length += 1
    return 0


cdef int put_binary(Context* c, int index, const uint8_t* p, int64_t size) noexcept nogil:
    """Append a value of CHAR, STRING, BYTES, or BINARY(n), which Arrow wants to be exactly n bytes long."""
    cdef const Node* node = &c.nodes[index]
    cdef Builder* b = &c.builders[index]
    if node.kind == KIND_BINARY:
        if size > node.parameter:
            c.failure = FAILED_LENGTH
            return -1
        if reserve_row(node, b) < 0:
            c.failure = FAILED_MEMORY
            return -1
        memcpy(b.values + b.length * node.parameter, p, size)
        memset(b.values + b.length * node.parameter + size, 0, node.parameter - size)
        b.length += 1
        return 0
    if append_bytes(node, b, p, size) < 0:
        c.failure = FAILED_MEMORY
        return -1
    return 0


cdef int put_nested(Context* c, int index, const uint8_t* p, int64_t size) noexcept nogil:
    """Append an ARRAY, MAP or ROW that lies in the `size` bytes at `p`."""
    cdef const Node* node = &c.nodes[index]
    cdef Builder* b = &c.builders[index]
    cdef int32_t key_bytes
    cdef int key
    c.budget -= size + 1
    if c.budget < 0:
        c.failure = FAILED_BUDGET
        return -1
    if reserve_row(node, b) < 0:
        c.failure = FAILED_MEMORY
        return -1
    if node.kind == KIND_ROW:
        if decode_row(c, index, p, p + size) < 0:
            return -1
        b.length += 1
        return 0
    if node.kind == KIND_ARRAY:
        if decode_array(c, index + 1, p, size) < 0:
            return -1
    else:
        key = index + 1
        if size < 4:
            c.failure = FAILED_NESTED
            return -1
        key_bytes = load_int32(p)
        if key_bytes < 0 or key_bytes > size - 4:
            c.failure = FAILED_NESTED
            return -1
        if decode_array(c, key, p + 4, key_bytes) < 0:
            return -1
        if decode_array(c, c.nodes[key].end, p + 4 + key_bytes, size - 4 - key_bytes) < 0:
            return -1
        # Arrow ends the process at the sight of a null key.
        if c.builders[key].null_count or c.builders[key].length != c.builders[c.nodes[key].end].length:
            c.failure = FAILED_NESTED
            return -1
    if c.builders[index + 1].length > 0x7FFFFFFF:
        c.failure = FAILED_MEMORY
        return -1
    b.length += 1
    b.offsets[b.length] = <int32_t> c.builders[index + 1].length
    return 0


# ---- BinaryArray ------------------------------------------------------------------------------------------------------


cdef inline int element_width(int kind) noexcept nogil:
    if kind in (KIND_BOOLEAN, KIND_INT8):
        return 1
    if kind == KIND_INT16:
        return 2
    if kind in (KIND_INT32, KIND_FLOAT, KIND_TIME):
        return 4
    return 8


cdef int decode_array(Context* c, int element, const uint8_t* base, int64_t size) noexcept nogil:
    """Append all elements of the BinaryArray in the `size` bytes at `base` to the column of node `element`."""
    cdef const Node* node = &c.nodes[element]
    cdef int kind = node.kind
    cdef int width = element_width(kind)
    cdef int64_t count, header, i
    cdef const uint8_t* slot
    if size < 4:
        c.failure = FAILED_NESTED
        return -1
    count = load_int32(base)
    header = 4 + ((count + 31) / 32) * 4
    if count < 0 or header + count * width > size:
        c.failure = FAILED_NESTED
        return -1
    for i in range(count):
        if (base[4 + (i >> 3)] >> (i & 7)) & 1:
            if append_null(c.nodes, element, c.builders) < 0:
                c.failure = FAILED_MEMORY
                return -1
            continue
        slot = base + header + i * width
        if decode_element(c, element, base, size, slot) < 0:
            return -1
    return 0


cdef int decode_element(
    Context* c, int element, const uint8_t* base, int64_t size, const uint8_t* slot
) noexcept nogil:
    cdef int kind = c.nodes[element].kind
    cdef uint64_t packed
    cdef int64_t offset, length
    if kind in (KIND_BOOLEAN, KIND_INT8):
        return put_int(c, element, <int8_t> slot[0])
    if kind == KIND_INT16:
        return put_int(c, element, <int16_t> (slot[0] | (slot[1] << 8)))
    if kind in (KIND_INT32, KIND_TIME):
        return put_int(c, element, load_int32(slot))
    if kind in (KIND_INT64, KIND_DECIMAL_COMPACT):
        return put_int(c, element, load_int64(slot))
    if kind == KIND_FLOAT:
        return put_bits(c, element, slot, 4)
    if kind == KIND_DOUBLE:
        return put_bits(c, element, slot, 8)
    if kind == KIND_TIMESTAMP_COMPACT:
        return put_timestamp(c, element, load_int64(slot), 0)
    packed = <uint64_t> load_int64(slot)
    offset = <int64_t> (packed >> 32)
    length = <int64_t> (packed & <uint64_t> 0xFFFFFFFF)
    if kind == KIND_TIMESTAMP:  # the slot holds where the milliseconds lie, and the nanoseconds themselves
        if offset + 8 > size or length > 999999:
            c.failure = FAILED_NESTED
            return -1
        return put_timestamp(c, element, load_int64(base + offset), length)
    if packed >> 63:  # up to seven bytes lie in the slot itself, behind a marked length
        length = (packed >> 56) & 0x7F
        if length > 7 or kind not in (KIND_STRING, KIND_CHAR, KIND_BYTES, KIND_BINARY):
            c.failure = FAILED_NESTED
            return -1
        return put_binary(c, element, slot, length)
    if offset + length > size:
        c.failure = FAILED_NESTED
        return -1
    if kind == KIND_DECIMAL:
        return put_decimal(c, element, base + offset, length)
    if kind in (KIND_ARRAY, KIND_MAP, KIND_ROW):
        return put_nested(c, element, base + offset, length)
    c.budget -= length
    if c.budget < 0:
        c.failure = FAILED_BUDGET
        return -1
    return put_binary(c, element, base + offset, length)


# ---- rows -------------------------------------------------------------------------------------------------------------


cdef const uint8_t* decode_indexed_field(
    Context* c, int index, const uint8_t* p, const uint8_t* end, const uint8_t** lengths
) noexcept nogil:
    """Decode one non-null field of an indexed row; the position behind it, or NULL."""
    cdef const Node* node = &c.nodes[index]
    cdef int kind = node.kind
    cdef int64_t size
    cdef int status
    if node.in_length_list:
        size = load_int32(lengths[0])
        lengths[0] += 4
    elif kind in (KIND_CHAR, KIND_BINARY):
        size = node.parameter
    elif kind == KIND_TIMESTAMP:
        size = 12
    else:
        size = element_width(kind)
    if size < 0 or size > end - p:
        return fail(c, FAILED_LENGTH)
    if not node.wanted:
        return p + size
    if kind in (KIND_STRING, KIND_BYTES, KIND_BINARY):
        status = put_binary(c, index, p, size)
    elif kind == KIND_CHAR:  # CHAR(n) is padded with zero bytes
        while size > 0 and p[size - 1] == 0:
            size -= 1
        status = put_binary(c, index, p, size)
        size = node.parameter
    elif kind == KIND_DECIMAL:
        status = put_decimal(c, index, p, size)
    elif kind in (KIND_ARRAY, KIND_MAP, KIND_ROW):
        status = put_nested(c, index, p, size)
    elif kind == KIND_TIMESTAMP:
        status = put_timestamp(c, index, load_int64(p), load_int32(p + 8))
    else:
        status = decode_element(c, index, p, size, p)
    return NULL if status < 0 else p + size


cdef const uint8_t* decode_compacted_field(
    Context* c, int index, const uint8_t* p, const uint8_t* end
) noexcept nogil:
    """Decode one non-null field of a compacted row; the position behind it, or NULL."""
    cdef const Node* node = &c.nodes[index]
    cdef int kind = node.kind
    cdef uint64_t value, nanos
    cdef int status = 0
    cdef int width
    if kind in (KIND_BOOLEAN, KIND_INT8, KIND_INT16, KIND_FLOAT, KIND_DOUBLE):
        width = element_width(kind)
        if end - p < width:
            return fail(c, FAILED_TRUNCATED)
        if node.wanted and decode_element(c, index, p, width, p) < 0:
            return NULL
        return p + width
    p = read_varint(p, end, &value)
    if p == NULL:
        return fail(c, FAILED_TRUNCATED)
    if kind in (KIND_INT32, KIND_TIME):
        if node.wanted:
            status = put_int(c, index, <int32_t> value)
        return NULL if status < 0 else p
    if kind in (KIND_INT64, KIND_DECIMAL_COMPACT):
        if node.wanted:
            status = put_int(c, index, <int64_t> value)
        return NULL if status < 0 else p
    if kind in (KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT):
        nanos = 0
        if kind == KIND_TIMESTAMP:
            p = read_varint(p, end, &nanos)
            if p == NULL:
                return fail(c, FAILED_TRUNCATED)
        if nanos > 999999:
            return fail(c, FAILED_TIMESTAMP)
        if node.wanted:
            status = put_timestamp(c, index, <int64_t> value, <int64_t> nanos)
        return NULL if status < 0 else p
    if value > <uint64_t> (end - p):
        return fail(c, FAILED_LENGTH)
    if node.wanted:
        if kind in (KIND_STRING, KIND_CHAR, KIND_BYTES, KIND_BINARY):
            status = put_binary(c, index, p, <int64_t> value)
        elif kind == KIND_DECIMAL:
            status = put_decimal(c, index, p, <int64_t> value)
        else:
            status = put_nested(c, index, p, <int64_t> value)
    return NULL if status < 0 else p + value


cdef int decode_aligned_row(Context* c, int row, const uint8_t* base, int64_t size) noexcept nogil:
    """Append the fields of a row of eight bytes a field to the columns below node `row`."""
    cdef int count = c.nodes[row].child_count
    cdef int64_t header = ((count + 63 + 8) / 64) * 8
    cdef int child = row + 1
    cdef int position, status
    if size < header + 8 * count:
        c.failure = FAILED_TRUNCATED
        return -1
    for position in range(count):
        if c.nodes[child].wanted:
            if (base[(8 + position) >> 3] >> (position & 7)) & 1:
                status = append_null(c.nodes, child, c.builders)
                if status < 0:
                    c.failure = FAILED_MEMORY
            else:
                status = decode_element(c, child, base, size, base + header + 8 * position)
            if status < 0:
                return -1
        child = c.nodes[child].end
    return 0


cdef int decode_row(Context* c, int row, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Append the fields of the row in [p, end) to the columns below node `row`."""
    cdef const Node* node = &c.nodes[row]
    cdef int64_t null_bytes = 0 if c.format == FORMAT_KEY else (node.child_count + 7) >> 3
    cdef const uint8_t* nulls = p
    cdef const uint8_t* lengths = p + null_bytes
    cdef int fields = c.fields if row == 0 else node.child_count
    cdef int child = row + 1
    cdef int position
    if c.format == FORMAT_ALIGNED:
        return decode_aligned_row(c, row, p, end - p)
    if end - p < null_bytes + (4 * node.length_list_size if c.format == FORMAT_INDEXED else 0):
        c.failure = FAILED_TRUNCATED
        return -1
    p = lengths + (4 * node.length_list_size if c.format == FORMAT_INDEXED else 0)
    for position in range(fields):
        if null_bytes and (nulls[position >> 3] >> (position & 7)) & 1:
            if c.nodes[child].wanted and append_null(c.nodes, child, c.builders) < 0:
                c.failure = FAILED_MEMORY
                return -1
        else:
            if c.format == FORMAT_INDEXED:
                p = decode_indexed_field(c, child, p, end, &lengths)
            else:
                p = decode_compacted_field(c, child, p, end)
            if p == NULL:
                return -1
        child = c.nodes[child].end
    if fields == node.child_count and p != end:
        c.failure = FAILED_TRAILING
        return -1
    return 0


cdef int row_spans(
    const Node* nodes, int row_format, const uint8_t* p, const uint8_t* end, Span* spans, int fields
) noexcept nogil:
    """Where each of the first `fields` fields of a compacted or indexed row lies. 0, or -1 for a malformed row.

    What follows these fields is not looked at.

    `nodes` must want no column (`wanted` 0 throughout), so that fields are walked over and nothing is decoded.
    """
    cdef Context c
    cdef int64_t null_bytes = (nodes[0].child_count + 7) >> 3
    cdef int64_t header = null_bytes + (4 * nodes[0].length_list_size if row_format == FORMAT_INDEXED else 0)
    cdef const uint8_t* nulls = p
    cdef const uint8_t* lengths = p + null_bytes
    cdef const uint8_t* start
    cdef int child = 1
    cdef int position
    memset(&c, 0, sizeof(Context))
    c.nodes = nodes
    c.format = row_format
    if end - p < header:
        return -1
    p += header
    for position in range(fields):
        spans[position].data = p
        if (nulls[position >> 3] >> (position & 7)) & 1:
            spans[position].size = -1
        else:
            start = p
            if row_format == FORMAT_INDEXED:
                p = decode_indexed_field(&c, child, p, end, &lengths)
            else:
                p = decode_compacted_field(&c, child, p, end)
            if p == NULL:
                return -1
            spans[position].size = <int32_t> (p - start)
        child = nodes[child].end
    return 0 if p == end or fields < nodes[0].child_count else -1


# ---- rows of a table, compacted ----------------------------------------------------------------------------------------
#
# Nearly all rows are of this format, and most of their fields are numbers that are not wanted, or that go into a column as
# they are. So what to do with each field is decided once for all rows. Where a number is only walked over, neither NULL
# nor its length makes a branch: the processor would often guess wrong.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define forebay_low_zeros(word) __builtin_ctzll(word)
    #else
    static int forebay_low_zeros(unsigned long long word) {
        int found = 0;
        while (!(word >> found & 1)) { found++; }
        return found;
    }
    #endif
    #define LAST_BYTES 0x8080808080808080ULL
    """
    const uint64_t LAST_BYTES  # the bit that every byte of a number but its last one has
    int forebay_low_zeros(unsigned long long word) noexcept nogil

cdef enum:
    STEP_OTHER = 0         # `decode_compacted_field`
    STEP_SKIP_FIXED = 1
    STEP_SKIP_NUMBER = 2
    STEP_SKIP_BYTES = 3
    STEP_INT32 = 4
    STEP_INT64 = 5
    STEP_FIXED = 6         # bytes as they are
    STEP_TEXT = 7

cdef struct Step:
    int action
    int width
    int child              # its node
    Builder* builder


cdef void plan_steps(Context* c, Step* steps) noexcept nogil:
    """What to do with the first `c.fields` fields of each row."""
    cdef int child = 1
    cdef int position, kind
    cdef Step* step
    cdef bint wanted
    for position in range(c.fields):
        step = &steps[position]
        kind = c.nodes[child].kind
        wanted = c.nodes[child].wanted
        step.child = child
        step.builder = &c.builders[child]
        step.width = element_width(kind)
        step.action = STEP_OTHER
        if kind in (KIND_FLOAT, KIND_DOUBLE) or (not wanted and kind in (KIND_BOOLEAN, KIND_INT8, KIND_INT16)):
            step.action = STEP_FIXED if wanted else STEP_SKIP_FIXED
        elif kind == KIND_INT32:
            step.action = STEP_INT32 if wanted else STEP_SKIP_NUMBER
        elif kind == KIND_INT64:
            step.action = STEP_INT64 if wanted else STEP_SKIP_NUMBER
        elif kind in (KIND_STRING, KIND_CHAR, KIND_BYTES):
            step.action = STEP_TEXT if wanted else STEP_SKIP_BYTES
        elif not wanted and kind in (KIND_TIME, KIND_DECIMAL_COMPACT, KIND_TIMESTAMP_COMPACT):
            step.action = STEP_SKIP_NUMBER
        elif not wanted and kind in (KIND_BINARY, KIND_DECIMAL, KIND_ARRAY, KIND_MAP, KIND_ROW):
            step.action = STEP_SKIP_BYTES
        child = c.nodes[child].end


cdef inline const uint8_t* read_number(const uint8_t* p, const uint8_t* end, uint64_t* out) noexcept nogil:
    """As `read_varint`, without a branch for each byte of a number of up to eight, unless the row ends right behind."""
    cdef uint64_t word, last
    if end - p < 8:
        return read_varint(p, end, out)
    word = <uint64_t> load_int64(p)
    last = ~word & LAST_BYTES
    if last == 0:
        return read_varint(p, end, out)
    word &= last ^ (last - 1)  # of the bytes behind the number, nothing is left
    word = (word & 0x007F007F007F007FULL) | ((word & 0x7F007F007F007F00ULL) >> 1)
    word = (word & 0x00003FFF00003FFFULL) | ((word & 0x3FFF00003FFF0000ULL) >> 2)
    out[0] = (word & 0x000000000FFFFFFFULL) | ((word & 0x0FFFFFFF00000000ULL) >> 4)
    return p + (forebay_low_zeros(last) >> 3) + 1


cdef int decode_by_steps(Context* c, const Step* steps, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Append the fields of the compacted row in [p, end) to their columns, for which there is room."""
    cdef int64_t null_bytes = (c.nodes[0].child_count + 7) >> 3
    cdef const uint8_t* nulls = p
    cdef const Step* step
    cdef Builder* b
    cdef uint64_t value = 0, last
    cdef int position
    cdef int64_t is_there
    if end - p < null_bytes:
        c.failure = FAILED_TRUNCATED
        return -1
    p += null_bytes
    for position in range(c.fields):
        step = &steps[position]
        b = step.builder
        is_there = 1 - ((nulls[position >> 3] >> (position & 7)) & 1)
        if step.action == STEP_SKIP_FIXED:
            p += step.width & -is_there
            if p > end:
                c.failure = FAILED_TRUNCATED
                return -1
            continue
        if step.action == STEP_SKIP_NUMBER and end - p >= 8:
            last = ~(<uint64_t> load_int64(p)) & LAST_BYTES
            if last:
                p += ((forebay_low_zeros(last) >> 3) + 1) & -is_there
                continue
        if not is_there:
            if c.nodes[step.child].wanted and append_null(c.nodes, step.child, c.builders) < 0:
                c.failure = FAILED_MEMORY
                return -1
            continue
        if step.action == STEP_OTHER:
            p = decode_compacted_field(c, step.child, p, end)
            if p == NULL:
                return -1
        elif step.action == STEP_FIXED:
            if end - p < step.width:
                c.failure = FAILED_TRUNCATED
                return -1
            if step.width == 8:
                memcpy(b.values + 8 * b.length, p, 8)
            else:
                memcpy(b.values + 4 * b.length, p, 4)
            b.length += 1
            p += step.width
        else:
            p = read_number(p, end, &value)
            if p == NULL:
                c.failure = FAILED_TRUNCATED
                return -1
            if step.action == STEP_INT32:
                (<int32_t*> b.values)[b.length] = <int32_t> value
                b.length += 1
            elif step.action == STEP_INT64:
                (<int64_t*> b.values)[b.length] = <int64_t> value
                b.length += 1
            elif step.action in (STEP_SKIP_BYTES, STEP_TEXT):
                if value > <uint64_t> (end - p):
                    c.failure = FAILED_LENGTH
                    return -1
                if step.action == STEP_TEXT and append_bytes(&c.nodes[step.child], b, p, <int64_t> value) < 0:
                    c.failure = FAILED_MEMORY
                    return -1
                p += value
    if c.fields == c.nodes[0].child_count and p != end:
        c.failure = FAILED_TRAILING
        return -1
    return 0


cdef int expect_bytes(Context* c, int64_t rows) noexcept nogil:
    """Make room for the texts of all rows as the first `SAMPLE` ones let expect: growing step by step copies them."""
    cdef Builder* b
    cdef int child = 1
    cdef int64_t more
    while child < c.nodes[0].end:
        b = &c.builders[child]
        if c.nodes[child].wanted and c.nodes[child].kind in (KIND_STRING, KIND_CHAR, KIND_BYTES):
            more = min(b.bytes_used * (rows - SAMPLE) / SAMPLE * 9 / 8, c.total_bytes)
            more = min(more, <int64_t> 0x7FFFFFFF - b.bytes_used)
            if b.bytes_used + more > b.bytes_capacity and grow_bytes(b, more) < 0:
                return -1
        child = c.nodes[child].end
    return 0


cdef int64_t decode_all(Context* c, RowSlices rows, Step* steps) noexcept nogil:
    """Decode every row; the number of the row that failed, or -1. `steps` have room for the fields of compacted rows."""
    cdef Py_ssize_t i
    cdef int status
    cdef int child = 1
    cdef int position = 0
    c.fields = 0
    while child < c.nodes[0].end:
        position += 1
        if c.nodes[child].wanted:
            c.fields = position
            if grow_rows(&c.nodes[child], &c.builders[child], rows.count) < 0:
                c.failure = FAILED_MEMORY
                return 0
        child = c.nodes[child].end
    if c.format == FORMAT_COMPACTED:
        plan_steps(c, steps)
    for i in range(rows.count):
        if i == SAMPLE and expect_bytes(c, rows.count) < 0:
            c.failure = FAILED_MEMORY
            return i
        if i + AHEAD < rows.count:  # old rows of a changelog lie anywhere in the key-value state
            forebay_prefetch(rows.data[i + AHEAD])
            forebay_prefetch(rows.data[i + AHEAD] + 64)
        if rows.sizes[i] < 0:
            c.failure = FAILED_NULL_ROW
            return i
        if c.format == FORMAT_COMPACTED:
            status = decode_by_steps(c, steps, rows.data[i], rows.data[i] + rows.sizes[i])
        else:
            status = decode_row(c, 0, rows.data[i], rows.data[i] + rows.sizes[i])
        if status < 0:
            return i
    return -1


def decode(RowLayout layout, RowSlices rows not None):
    """Decode `rows` to one Arrow struct array, as an `arrow_array` capsule whose children are the wanted columns.

    Raises `CorruptData` naming the first malformed row. Fields behind the last one that is wanted are not looked at.
    """
    cdef Context c
    cdef int64_t failed
    cdef ArrowArray* out
    cdef Step* steps = <Step*> malloc(max(1, layout.field_count) * sizeof(Step))
    c.nodes = layout.nodes
    c.format = layout.format
    c.failure = 0
    c.total_bytes = rows.total_bytes
    c.budget = (c.total_bytes + 64 * rows.count + 64) * (layout.node_count + 1)
    c.builders = <Builder*> calloc(layout.node_count, sizeof(Builder))
    out = <ArrowArray*> calloc(1, sizeof(ArrowArray))
    if c.builders == NULL or out == NULL or steps == NULL:
        free(c.builders)
        free(out)
        free(steps)
        raise MemoryError()
    with nogil:
        failed = decode_all(&c, rows, steps)
        free(steps)
        if failed < 0 and move_row_to_arrow(layout.nodes, c.builders, rows.count, out) < 0:
            c.failure = FAILED_MEMORY
            failed = 0
        free_builders(c.builders, layout.node_count)
    if failed >= 0:
        free(out)
        if c.failure == FAILED_MEMORY:
            raise MemoryError("decoding rows: out of memory, or a column above 2 GiB")
        raise CorruptData(f"row {failed} is malformed: {_REASONS[c.failure]}", ErrorCode.CORRUPT_RECORD_EXCEPTION)
    return array_capsule(out)


cdef bint is_ascii(const uint8_t* data, int64_t size) noexcept nogil:
    cdef uint64_t word
    cdef uint64_t found = 0
    cdef int64_t i = 0
    while i + 8 <= size:
        memcpy(&word, data + i, 8)
        found |= word
        i += 8
    while i < size:
        found |= data[i]
        i += 1
    return not found & <uint64_t> 0x8080808080808080


cdef bint all_below(const ArrowArray* array, int digits) noexcept nogil:
    """Whether all decimals of an array, of 64 bits at most, have so many digits."""
    cdef const int64_t* values = <const int64_t*> array.buffers[1]
    cdef int64_t limit = 1
    cdef int64_t i
    for i in range(digits):
        limit *= 10
    for i in range(array.length):
        if values[2 * i] >= limit or values[2 * i] <= -limit:
            return False
    return True


def is_plainly_sound(RowLayout layout, array_capsule_in, tuple required not None):
    """Whether an array that `decode` has made, of all columns, needs no further proof.

    That is so if it has values in all `required` columns, no text but ASCII, no decimal with more digits than its
    column, and no types whose values would have to be looked at one by one. Other arrays may be sound all the same.
    """
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(array_capsule_in, "arrow_array")
    cdef const ArrowArray* column
    cdef const int32_t* offsets
    cdef const Node* node
    cdef int child = 1
    cdef Py_ssize_t position
    cdef bint sound = array.n_children == layout.field_count
    for position in required:
        if not 0 <= position < array.n_children or array.children[position].null_count != 0:
            return False
    if not sound:
        return False
    with nogil:
        for position in range(array.n_children):
            column = array.children[position]
            node = &layout.nodes[child]
            if node.kind in (KIND_STRING, KIND_CHAR):
                offsets = <const int32_t*> column.buffers[1]
                sound = is_ascii(<const uint8_t*> column.buffers[2], offsets[column.length])
            elif node.kind == KIND_DECIMAL_COMPACT:
                sound = all_below(column, node.parameter)
            else:
                sound = node.kind not in (KIND_TIME, KIND_DECIMAL, KIND_ARRAY, KIND_MAP, KIND_ROW)
            if not sound:
                break
            child = node.end
    return sound
