"""Arrow record batches -> the messages inside log batches, in one pass over the columns' own buffers.

pyarrow can write such a message too (`RecordBatch.serialize`, or a stream whose schema message is cut off), but not
behind a header of ours, not with a bound on tiny compressed buffers, and not without threads that cost more than they
save on small batches (measured in docs/format/log_batch.md).

Flow: walk the batch through the C data interface and note every *piece* (where a buffer's bytes come from, and how
they change: bits may have to be shifted, offsets rebased, because a column may be a slice); add up; write prefix,
metadata and body into one new bytearray. With compression the body is first laid out plain, then squeezed buffer by
buffer; a buffer that is tiny or does not shrink is stored as it is, which the format allows (length -1).
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport atoi, free, malloc
from libc.string cimport memcpy, memset, strncmp

import pyarrow as pa

from forebay.codec.arrow._arrow_c cimport ArrowArray
from forebay.codec.arrow._arrow_message cimport (
    CODEC_NONE, NODE_BOOLEAN, NODE_FIXED, NODE_LIST, NODE_STRUCT, NODE_VARIABLE, metadata_size, padded,
    write_metadata,
)
from forebay.codec.arrow._arrow_schema cimport FLAG_NULLABLE, ArrowSchema
from forebay.codec._wire cimport load_int32, store_int32, store_int64

from forebay.base.errors import ErrorCode, InvalidRequest

cdef extern from *:
    int __builtin_popcountll(unsigned long long) noexcept nogil

cdef enum:
    METADATA_VERSION_V5 = 4
    STORE_BYTES_MAX = 128      # compressing less costs 9 us (zstd) and saves nothing that matters

cdef enum PieceKind:
    PIECE_BYTES = 0
    PIECE_BITS = 1
    PIECE_OFFSETS = 2

cdef struct Piece:
    int kind
    const uint8_t* source
    int64_t first      # bits: the first one; offsets: the value to subtract
    int64_t count      # bits or offsets
    int64_t size       # bytes in the message

cdef struct Plan:
    int64_t* nodes     # pairs of length and null count
    Piece* pieces
    int node_count
    int piece_count
    const ArrowSchema* culprit
    int64_t culprit_nulls


cdef int count_nodes(const ArrowSchema* schema) noexcept nogil:
    cdef int total = 1
    cdef int64_t i
    for i in range(schema.n_children):
        total += count_nodes(schema.children[i])
    return total


cdef int shape_of(const ArrowSchema* schema, int64_t* width) noexcept nogil:
    """The node kind of a format string of the C data interface; -1 for types that log batches do not hold."""
    cdef const char* f = schema.format
    cdef char c = f[0]
    cdef const char* p
    width[0] = 0
    if schema.dictionary != NULL:
        return -1
    if f[1] == 0:
        if c == b"b":
            return NODE_BOOLEAN
        if c == b"u" or c == b"z":
            return NODE_VARIABLE
        width[0] = 1 if c == b"c" else 2 if c == b"s" else 4 if c == b"i" or c == b"f" else (
            8 if c == b"l" or c == b"g" else 0
        )
        return NODE_FIXED if width[0] else -1
    if c == b"w":
        width[0] = atoi(f + 2)
        return NODE_FIXED
    if c == b"d":
        p = f
        while p[0] != 0 and p[0] != b",":
            p += 1
        if p[0] == b",":
            p += 1
        while p[0] != 0 and p[0] != b",":
            p += 1
        width[0] = 16
        return NODE_FIXED if p[0] == 0 else -1  # a third number is another width than 128 bits
    if c == b"t":
        if strncmp(f, b"tdD", 4) == 0 or strncmp(f, b"tts", 4) == 0 or strncmp(f, b"ttm", 4) == 0:
            width[0] = 4
        elif strncmp(f, b"ttu", 4) == 0 or strncmp(f, b"ttn", 4) == 0 or f[1] == b"s":
            width[0] = 8
        return NODE_FIXED if width[0] else -1
    if c == b"+" and f[2] == 0:
        if f[1] == b"l" or f[1] == b"m":
            return NODE_LIST
        if f[1] == b"s":
            return NODE_STRUCT
    return -1


cdef int64_t count_set(const uint8_t* bits, int64_t first, int64_t count) noexcept nogil:
    """How many of the bits [first, first + count) are set."""
    cdef int64_t total = 0, i = first, end = first + count
    cdef uint64_t word
    while i < end and i & 7:
        total += (bits[i >> 3] >> (i & 7)) & 1
        i += 1
    while i + 64 <= end:
        memcpy(&word, bits + (i >> 3), 8)
        total += __builtin_popcountll(word)
        i += 64
    while i < end:
        total += (bits[i >> 3] >> (i & 7)) & 1
        i += 1
    return total


cdef inline void add_piece(Plan* plan, int kind, const uint8_t* source, int64_t first, int64_t count,
                           int64_t size) noexcept nogil:
    cdef Piece* piece = &plan.pieces[plan.piece_count]
    piece.kind = kind
    piece.source = source
    piece.first = first
    piece.count = count
    piece.size = size
    plan.piece_count += 1


cdef int collect(
    const ArrowSchema* schema, const ArrowArray* array, int64_t start, int64_t length, bint top, Plan* plan
) noexcept nogil:
    """Note node and pieces of rows [start, start + length) of `array`. -1 with `plan.culprit` for what cannot be."""
    cdef int64_t width, nulls = 0, first = 0, last = 0, i
    cdef int64_t at = array.offset + start
    cdef int kind = shape_of(schema, &width)
    cdef const uint8_t* validity
    cdef const uint8_t* offsets
    if kind < 0:
        plan.culprit = schema
        plan.culprit_nulls = -1
        return -1
    validity = <const uint8_t*> array.buffers[0]
    if validity != NULL and array.null_count != 0:
        nulls = length - count_set(validity, at, length)
    if nulls and top and not schema.flags & FLAG_NULLABLE:
        plan.culprit = schema
        plan.culprit_nulls = nulls
        return -1
    plan.nodes[2 * plan.node_count] = length
    plan.nodes[2 * plan.node_count + 1] = nulls
    plan.node_count += 1
    if nulls:
        add_piece(plan, PIECE_BITS, validity, at, length, (length + 7) >> 3)
    else:
        add_piece(plan, PIECE_BYTES, NULL, 0, 0, 0)
    if kind == NODE_FIXED:
        add_piece(plan, PIECE_BYTES, <const uint8_t*> array.buffers[1] + at * width, 0, 0, length * width)
    elif kind == NODE_BOOLEAN:
        add_piece(plan, PIECE_BITS, <const uint8_t*> array.buffers[1], at, length, (length + 7) >> 3)
    elif kind == NODE_STRUCT:
        for i in range(schema.n_children):
            if collect(schema.children[i], array.children[i], at, length, False, plan) < 0:
                return -1
    else:
        if length > 0:
            offsets = <const uint8_t*> array.buffers[1] + 4 * at
            first = load_int32(offsets)
            last = load_int32(offsets + 4 * length)
            add_piece(plan, PIECE_OFFSETS, offsets, first, length + 1, 4 * (length + 1))
        else:
            add_piece(plan, PIECE_OFFSETS, NULL, 0, 1, 4)
        if kind == NODE_VARIABLE:
            add_piece(plan, PIECE_BYTES, <const uint8_t*> array.buffers[2] + first, 0, 0, last - first)
        elif collect(schema.children[0], array.children[0], first, last - first, False, plan) < 0:
            return -1
    return 0


cdef void copy_bits(uint8_t* out, const uint8_t* bits, int64_t first, int64_t count) noexcept nogil:
    """Copy bits [first, first + count) to the beginning of `out`; the rest of the last byte becomes 0."""
    cdef int shift = first & 7
    cdef int64_t size = (count + 7) >> 3
    cdef int64_t i, last = (first + count - 1) >> 3
    cdef const uint8_t* source = bits + (first >> 3)
    if count == 0:
        return
    if shift == 0:
        memcpy(out, source, size)
    else:
        for i in range(size):
            out[i] = source[i] >> shift
            if (first >> 3) + i < last:
                out[i] |= <uint8_t> (source[i + 1] << (8 - shift))
    if count & 7:
        out[size - 1] &= <uint8_t> ((1 << (count & 7)) - 1)


cdef void write_piece(uint8_t* out, const Piece* piece) noexcept nogil:
    cdef int64_t i
    cdef int32_t base = <int32_t> piece.first
    if piece.kind == PIECE_BYTES:
        if piece.size > 0:
            memcpy(out, piece.source, piece.size)
    elif piece.kind == PIECE_BITS:
        copy_bits(out, piece.source, piece.first, piece.count)
    elif piece.source == NULL:
        memset(out, 0, piece.size)
    elif base == 0:
        memcpy(out, piece.source, piece.size)
    else:
        for i in range(piece.count):
            store_int32(out + 4 * i, load_int32(piece.source + 4 * i) - base)


cdef int64_t write_body(uint8_t* out, const Plan* plan, uint8_t* buffers) noexcept nogil:
    """Write all pieces, padded to 8 bytes, and (unless NULL) their places into the vector `buffers`."""
    cdef int64_t at = 0, size
    cdef int i
    for i in range(plan.piece_count):
        size = plan.pieces[i].size
        if buffers != NULL:
            store_int64(buffers + 16 * i, at)
            store_int64(buffers + 16 * i + 8, size)
        write_piece(out + at, &plan.pieces[i])
        if padded(size) > size:
            memset(out + at + size, 0, padded(size) - size)
        at += padded(size)
    return at


cdef object room(Py_ssize_t prefix_size, int64_t message_size):
    """A new bytearray for a prefix and a message, which together must be countable in 31 bits."""
    if prefix_size + message_size > INT32_MAX:
        raise InvalidRequest(
            f"a log batch of {prefix_size + message_size} bytes exceeds 2 GiB; write fewer rows at once",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    return PyByteArray_FromStringAndSize(NULL, prefix_size + message_size)


cdef object write_plain(const Plan* plan, int64_t rows, int64_t body_length, bytes prefix):
    cdef Py_ssize_t prefix_size = PyBytes_GET_SIZE(prefix)
    cdef object out = room(prefix_size, metadata_size(plan.node_count, plan.piece_count, CODEC_NONE) + body_length)
    cdef uint8_t* p = <uint8_t*> PyByteArray_AS_STRING(out)
    cdef uint8_t* nodes
    cdef uint8_t* buffers
    memcpy(p, PyBytes_AS_STRING(prefix), prefix_size)
    with nogil:
        p = write_metadata(
            p + prefix_size, rows, plan.node_count, plan.piece_count, body_length, CODEC_NONE, METADATA_VERSION_V5,
            &nodes, &buffers
        )
        memcpy(nodes, plan.nodes, 16 * plan.node_count)
        write_body(p, plan, buffers)
    return out


cdef object write_compressed(
    const Plan* plan, int64_t rows, int64_t body_length, bytes prefix, object codec, int codec_id
):
    cdef Py_ssize_t prefix_size = PyBytes_GET_SIZE(prefix)
    cdef int64_t metadata_bytes = metadata_size(plan.node_count, plan.piece_count, codec_id)
    cdef object scratch = pa.allocate_buffer(body_length)  # Arrow's pool keeps pages, which malloc gives back
    cdef uint8_t* plain = <uint8_t*> <size_t> scratch.address
    cdef object out = room(prefix_size, metadata_bytes + body_length + 16 * plan.piece_count)
    cdef uint8_t* body = <uint8_t*> PyByteArray_AS_STRING(out) + prefix_size + metadata_bytes
    cdef uint8_t* nodes
    cdef uint8_t* buffers
    cdef uint8_t* places = <uint8_t*> malloc(max(16, 16 * plan.piece_count))
    cdef int64_t at = 0, source = 0, size, stored
    cdef bytes squeezed
    cdef int i
    if places == NULL:
        raise MemoryError()
    try:
        with nogil:
            write_body(plain, plan, NULL)
        for i in range(plan.piece_count):
            size = plan.pieces[i].size
            stored = 0
            if size > 0:
                squeezed = None
                if size > STORE_BYTES_MAX:
                    squeezed = codec.compress(pa.foreign_buffer(<size_t> (plain + source), size, scratch), asbytes=True)
                if squeezed is None or len(squeezed) >= size:
                    store_int64(body + at, -1)
                    memcpy(body + at + 8, plain + source, size)
                    stored = 8 + size
                else:
                    store_int64(body + at, size)
                    memcpy(body + at + 8, PyBytes_AS_STRING(squeezed), PyBytes_GET_SIZE(squeezed))
                    stored = 8 + PyBytes_GET_SIZE(squeezed)
            store_int64(places + 16 * i, at)
            store_int64(places + 16 * i + 8, stored)
            memset(body + at + stored, 0, padded(stored) - stored)
            at += padded(stored)
            source += padded(size)
        write_metadata(
            body - metadata_bytes, rows, plan.node_count, plan.piece_count, at, codec_id, METADATA_VERSION_V5,
            &nodes, &buffers
        )
        memcpy(nodes, plan.nodes, 16 * plan.node_count)
        memcpy(buffers, places, 16 * plan.piece_count)
    finally:
        free(places)
    memcpy(PyByteArray_AS_STRING(out), PyBytes_AS_STRING(prefix), prefix_size)
    PyByteArray_Resize(out, prefix_size + metadata_bytes + at)
    return out


def encode_message(record_batch, bytes prefix, codec=None, int codec_id=CODEC_NONE):
    """A new bytearray: `prefix`, then the message of `record_batch`.

    `codec` is a `pa.Codec` for `codec_id` (`Codec`), or None. Raises `InvalidRequest` for a column of a type that log
    batches do not hold, for nulls in a column that is not nullable, and for more than 2 GiB.
    """
    schema_capsule, array_capsule = record_batch.__arrow_c_array__()
    cdef const ArrowSchema* schema = <const ArrowSchema*> PyCapsule_GetPointer(schema_capsule, "arrow_schema")
    cdef const ArrowArray* array = <const ArrowArray*> PyCapsule_GetPointer(array_capsule, "arrow_array")
    cdef int node_max = count_nodes(schema)
    cdef Plan plan
    cdef int64_t body_length = 0, i
    cdef int failed = 0
    plan.node_count = 0
    plan.piece_count = 0
    plan.nodes = <int64_t*> malloc(16 * node_max)
    plan.pieces = <Piece*> malloc(3 * node_max * sizeof(Piece))
    try:
        if plan.nodes == NULL or plan.pieces == NULL:
            raise MemoryError()
        with nogil:
            for i in range(schema.n_children):
                failed = collect(schema.children[i], array.children[i], array.offset, array.length, True, &plan)
                if failed:
                    break
            for i in range(plan.piece_count):
                body_length += padded(plan.pieces[i].size)
        if failed:
            raise refusal(&plan)
        if codec is None:
            return write_plain(&plan, array.length, body_length, prefix)
        return write_compressed(&plan, array.length, body_length, prefix, codec, codec_id)
    finally:
        free(plan.nodes)
        free(plan.pieces)


cdef object refusal(const Plan* plan):
    name = plan.culprit.name.decode(errors="replace") if plan.culprit.name != NULL else ""
    if plan.culprit_nulls >= 0:
        return InvalidRequest(f"column '{name}' is NOT NULL, but has {plan.culprit_nulls} nulls")
    return InvalidRequest(
        f"column '{name}' has Arrow format {plan.culprit.format.decode()!r}, which log batches do not hold; "
        "bring the data through forebay.codec.casting.batches"
    )
