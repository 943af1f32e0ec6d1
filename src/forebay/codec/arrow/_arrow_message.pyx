"""Arrow IPC record batch messages, read and written without Arrow's own library.

Nouns: a *message* is what lies in the body of an ARROW log batch: marker FFFFFFFF, int32 metadata length, metadata (a
flatbuffer), buffers. Its metadata lists *nodes* (length and null count, one per column and per nested part, parents
first) and *buffers* (offset and length in the message's body). `MessageLayout` says which nodes and buffers the
columns of a table have.

Flow: `parse_message` reads the flatbuffer by hand, `check_body` proves that the nodes and buffers are those of the
layout and lie inside the body, `write_metadata` makes the flatbuffer of another message. Projection
(_arrow_project.pyx) and encoding (_arrow_encode.pyx) build on these.

Rule: the bytes come from a stranger. Every read is bounded; nothing is trusted that was not checked here.

Prior art: `FileLogProjection` of Apache Fluss; the flatbuffer tables are Message.fbs of Apache Arrow.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from forebay.codec._wire cimport load_int32, load_int64, load_uint16, store_int32, store_int64

from forebay.base.errors import CorruptData, ErrorCode

cdef extern from *:
    int __builtin_popcountll(unsigned long long) noexcept nogil

cdef enum:
    MARKER_BYTES = 8              # continuation marker and metadata length
    HEADER_TYPE_RECORD_BATCH = 3
    METADATA_VERSION_V4 = 3       # of other versions readers know nothing
    METADATA_VERSION_V5 = 4
    METADATA_BYTES_MAX = 1 << 28
    HEAD_BYTES = 72               # of our own metadata, up to what depends on compression

cdef int64_t INT64_LIMIT = <int64_t> 1 << 62

NODE_KINDS = {
    "FIXED": NODE_FIXED, "BOOLEAN": NODE_BOOLEAN, "VARIABLE": NODE_VARIABLE, "LIST": NODE_LIST, "STRUCT": NODE_STRUCT,
}
CODECS = {CODEC_NONE: None, CODEC_LZ4: "lz4", CODEC_ZSTD: "zstd"}

_TEXTS = {
    PROBLEM_SHORT: "it is cut off",
    PROBLEM_MARKER: "it does not begin with the marker of an Arrow message",
    PROBLEM_METADATA: "its metadata is malformed",
    PROBLEM_KIND: "it is not a record batch message",
    PROBLEM_CODEC: "its compression is neither LZ4_FRAME nor ZSTD",
    PROBLEM_BODY: "its body has {value} bytes, more than the batch holds",
    PROBLEM_ROWS: "it has {value} rows, not as many as the batch has records",
    PROBLEM_NODES: "it has {value} field nodes, not as many as the schema",
    PROBLEM_BUFFERS: "it has {value} buffers, not as many as the schema",
    PROBLEM_NODE_LENGTH: "a node has length {value}",
    PROBLEM_NULL_COUNT: "a node has null count {value}",
    PROBLEM_NOT_NULL: "{value} nulls, but the column is NOT NULL",
    PROBLEM_BUFFER_PLACE: "a buffer at {value} lies outside the body or is not aligned to 8 bytes",
    PROBLEM_BUFFER_SIZE: "a buffer has {value} bytes, too few for the rows",
    PROBLEM_OFFSETS: "the offsets of row {value} point outside the values",
    PROBLEM_COMPRESSED_SIZE: "a compressed buffer claims {value} bytes",
    PROBLEM_DECODED_SIZE: "its buffers hold {value} bytes when decompressed, more than the limit",
    PROBLEM_NULL_BITS: "the validity bits do not have {value} nulls, as the node says",
}


cdef class ByteView:
    """A Python object's bytes, held for as long as this object lives."""

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)
        self.data = <const uint8_t*> self.view.buf
        self.size = self.view.len

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef class MessageLayout:
    """The nodes of a list of columns: (kind name, nullable, width, child count), parents before children.

    `names` are the columns' names, for messages.
    """

    def __cinit__(self, nodes, tuple names):
        cdef int index = 0, column = 0, i
        self.names = names
        self.node_count = len(nodes)
        self.column_count = len(names)
        self.nodes = <LayoutNode*> calloc(max(1, self.node_count), sizeof(LayoutNode))
        if self.nodes == NULL:
            raise MemoryError()
        child_counts = [node[3] for node in nodes]
        for i, (kind, nullable, width, _) in enumerate(nodes):
            self.nodes[i].kind = NODE_KINDS[kind]
            self.nodes[i].nullable = nullable
            self.nodes[i].width = width
        while index < self.node_count:
            index = self._link(index, -1, column, child_counts)
            column += 1
        if column != self.column_count:
            raise ValueError(f"{self.column_count} names for {column} columns")
        self.buffer_count = 0
        for i in range(self.node_count):
            self.nodes[i].first_buffer = self.buffer_count
            self.buffer_count += buffers_of(self.nodes[i].kind)

    cdef int _link(self, int index, int parent, int column, list child_counts) except -1:
        """Set parent, column and end of the subtree at `index`; return its end."""
        cdef int child = index + 1
        if index >= self.node_count:
            raise ValueError("a layout's child counts exceed its nodes")
        self.nodes[index].parent = parent
        self.nodes[index].column = column
        for _ in range(child_counts[index]):
            child = self._link(child, index, column, child_counts)
        self.nodes[index].end = child
        return child

    def __dealloc__(self):
        free(self.nodes)

    def column_nodes(self):
        """The first node of each column."""
        return [i for i in range(self.node_count) if self.nodes[i].parent < 0]


# ---- flatbuffers ----------------------------------------------------------------------------------------------------

cdef struct Table:
    const uint8_t* data
    int64_t size       # of the whole flatbuffer
    int64_t at
    int64_t vtable
    int64_t vtable_size


cdef inline bint open_table(const uint8_t* data, int64_t size, int64_t at, Table* out) noexcept nogil:
    """The table at `at`; False where it or its vtable does not lie inside."""
    cdef int64_t vtable, vtable_size
    if at < 0 or at + 4 > size:
        return False
    vtable = at - load_int32(data + at)
    if vtable < 0 or vtable + 4 > size:
        return False
    vtable_size = load_uint16(data + vtable)
    if vtable_size < 4 or vtable + vtable_size > size:
        return False
    out.data = data
    out.size = size
    out.at = at
    out.vtable = vtable
    out.vtable_size = vtable_size
    return True


cdef inline int64_t field_at(const Table* table, int field, int width) noexcept nogil:
    """Where the value of a field lies; 0 when it is absent, -1 when it lies outside."""
    cdef int64_t slot = 4 + 2 * field
    cdef int64_t at
    if slot + 2 > table.vtable_size:
        return 0
    at = load_uint16(table.data + table.vtable + slot)
    if at == 0:
        return 0
    at += table.at
    return at if at + width <= table.size else -1


cdef inline int64_t follow(const Table* table, int field) noexcept nogil:
    """What an offset field points at; 0 when it is absent, -1 when it points outside."""
    cdef int64_t at = field_at(table, field, 4)
    cdef uint32_t relative
    if at <= 0:
        return at
    memcpy(&relative, table.data + at, 4)
    at += relative
    return at if at + 4 <= table.size else -1


cdef inline bint read_scalar(const Table* table, int field, int width, int64_t* out) noexcept nogil:
    """A signed number of `width` bytes; absent ones leave `out` alone."""
    cdef int64_t at = field_at(table, field, width)
    cdef int16_t half
    if at < 0:
        return False
    if at > 0:
        if width == 8:
            out[0] = load_int64(table.data + at)
        elif width == 2:
            memcpy(&half, table.data + at, 2)
            out[0] = half
        else:
            out[0] = <int8_t> table.data[at]
    return True


cdef inline const uint8_t* read_vector(const Table* table, int field, int64_t* count) noexcept nogil:
    """The 16-byte structs of a vector field; NULL when it is absent or lies outside."""
    cdef int64_t at = follow(table, field)
    cdef uint32_t length
    if at <= 0:
        return NULL
    memcpy(&length, table.data + at, 4)
    if <int64_t> length > (table.size - at - 4) // 16:
        return NULL
    count[0] = length
    return table.data + at + 4


cdef int parse_message(const uint8_t* data, int64_t available, Message* out) noexcept nogil:
    """Find nodes, buffers and body of the message at `data`. Returns a `Problem`.

    Afterwards the vectors of nodes and buffers and the body lie inside the `available` bytes; what they say is
    unchecked.
    """
    cdef Table message, batch, compression
    cdef int64_t metadata_length, at
    cdef int64_t version = 0, header_type = 0, codec = CODEC_LZ4, method = 0
    if available < MARKER_BYTES:
        return PROBLEM_SHORT
    if load_int32(data) != -1:
        return PROBLEM_MARKER
    metadata_length = load_int32(data + 4)
    if metadata_length < 8 or metadata_length > METADATA_BYTES_MAX or metadata_length % 8:
        return PROBLEM_METADATA
    if metadata_length > available - MARKER_BYTES:
        return PROBLEM_SHORT
    data += MARKER_BYTES
    at = <uint32_t> load_int32(data)
    if not open_table(data, metadata_length, at, &message):
        return PROBLEM_METADATA
    out.body_length = 0
    if not (
        read_scalar(&message, 0, 2, &version) and read_scalar(&message, 1, 1, &header_type)
        and read_scalar(&message, 3, 8, &out.body_length)
    ):
        return PROBLEM_METADATA
    if version != METADATA_VERSION_V4 and version != METADATA_VERSION_V5:
        return PROBLEM_METADATA
    if header_type != HEADER_TYPE_RECORD_BATCH:
        return PROBLEM_KIND
    if not open_table(data, metadata_length, follow(&message, 2), &batch):
        return PROBLEM_METADATA
    out.version = <int16_t> version
    out.rows = 0
    out.node_count = 0
    out.buffer_count = 0
    out.codec = CODEC_NONE
    out.nodes = read_vector(&batch, 1, &out.node_count)
    out.buffers = read_vector(&batch, 2, &out.buffer_count)
    if out.nodes == NULL or out.buffers == NULL or not read_scalar(&batch, 0, 8, &out.rows):
        return PROBLEM_METADATA
    if follow(&batch, 4) != 0:  # variadic buffer counts belong to view types, which log batches never hold
        return PROBLEM_METADATA
    at = follow(&batch, 3)
    if at != 0:
        if not (
            open_table(data, metadata_length, at, &compression)
            and read_scalar(&compression, 0, 1, &codec) and read_scalar(&compression, 1, 1, &method)
        ):
            return PROBLEM_METADATA
        if method != 0 or (codec != CODEC_LZ4 and codec != CODEC_ZSTD):
            return PROBLEM_CODEC
        out.codec = <int8_t> codec
    out.body_start = MARKER_BYTES + metadata_length
    if out.body_length < 0 or out.body_length > available - out.body_start:
        return PROBLEM_BODY
    out.body = data + metadata_length
    return PROBLEM_NONE


cdef int check_places(const Message* message, Finding* finding) noexcept nogil:
    """Whether every buffer lies inside the body, aligned to 8 bytes. Returns a `Problem`."""
    cdef int64_t i, offset, length
    for i in range(message.buffer_count):
        offset = load_int64(message.buffers + 16 * i)
        length = load_int64(message.buffers + 16 * i + 8)
        if offset < 0 or length < 0 or offset % 8 or offset > message.body_length or (
            length > message.body_length - offset
        ):
            finding.problem = PROBLEM_BUFFER_PLACE
            finding.node = -1
            finding.value = offset
            return PROBLEM_BUFFER_PLACE
    return PROBLEM_NONE


# ---- metadata of our own --------------------------------------------------------------------------------------------


cdef int64_t metadata_size(int64_t node_count, int64_t buffer_count, int codec) noexcept nogil:
    """Bytes of marker, length and metadata that `write_metadata` makes; a multiple of 8."""
    return MARKER_BYTES + HEAD_BYTES + (8 if codec == CODEC_NONE else 24) + 16 * (node_count + buffer_count) + 8


cdef inline void store_uint16(uint8_t* p, uint16_t value) noexcept nogil:
    memcpy(p, &value, 2)


cdef uint8_t* write_metadata(
    uint8_t* out, int64_t rows, int64_t node_count, int64_t buffer_count, int64_t body_length, int codec, int version,
    uint8_t** nodes, uint8_t** buffers
) noexcept nogil:
    """Write marker, length and metadata at `out`; the caller fills the vectors at `nodes` and `buffers`.

    Returns the first byte behind it. `out` has the room that `metadata_size` tells. Tables lie before what they point
    at, and every number at a multiple of its own size, which flatbuffer verifiers demand.
    """
    cdef int64_t size = metadata_size(node_count, buffer_count, codec)
    cdef int64_t node_vector, buffer_vector
    cdef uint8_t* p = out + MARKER_BYTES
    memset(out, 0, size - 16 * (node_count + buffer_count) - 8)
    store_int32(out, -1)
    store_int32(out + 4, <int32_t> (size - MARKER_BYTES))
    store_int32(p, 16)                      # root: the Message table at 16
    store_uint16(p + 4, 12)                 # vtable of Message: its size, the table's size, then where fields lie
    store_uint16(p + 6, 20)
    store_uint16(p + 8, 16)                 # version
    store_uint16(p + 10, 18)                # header type
    store_uint16(p + 12, 4)                 # header
    store_uint16(p + 14, 8)                 # body length
    store_int32(p + 16, 12)                 # Message: vtable at 16 - 12
    store_int32(p + 20, 28)                 # header: RecordBatch table at 48
    store_int64(p + 24, body_length)
    store_uint16(p + 32, <uint16_t> version)
    p[34] = HEADER_TYPE_RECORD_BATCH
    store_uint16(p + 36, 12)                # vtable of RecordBatch
    store_uint16(p + 38, 24)
    store_uint16(p + 40, 8)                 # length
    store_uint16(p + 42, 4)                 # nodes
    store_uint16(p + 44, 16)                # buffers
    store_uint16(p + 46, 0 if codec == CODEC_NONE else 20)
    store_int32(p + 48, 12)                 # RecordBatch: vtable at 48 - 12
    store_int64(p + 56, rows)
    if codec == CODEC_NONE:
        node_vector = HEAD_BYTES + 4
    else:
        store_uint16(p + 72, 8)             # vtable of BodyCompression
        store_uint16(p + 74, 8)
        store_uint16(p + 76, 4)             # codec
        store_uint16(p + 78, 5)             # method
        store_int32(p + 80, 8)              # BodyCompression: vtable at 80 - 8
        p[84] = <uint8_t> codec
        store_int32(p + 68, 80 - 68)
        node_vector = HEAD_BYTES + 20
    buffer_vector = node_vector + 4 + 16 * node_count + 4
    store_int32(p + 52, <int32_t> (node_vector - 52))
    store_int32(p + 64, <int32_t> (buffer_vector - 64))
    store_int32(p + node_vector, <int32_t> node_count)
    store_int32(p + buffer_vector - 4, 0)
    store_int32(p + buffer_vector, <int32_t> buffer_count)
    nodes[0] = p + node_vector + 4
    buffers[0] = p + buffer_vector + 4
    return out + size


# ---- is a body what the schema says? --------------------------------------------------------------------------------


cdef inline int report(Finding* finding, int problem, int node, int64_t value) noexcept nogil:
    finding.problem = problem
    finding.node = node
    finding.value = value
    return problem


cdef int64_t count_bits(const uint8_t* bits, int64_t length) noexcept nogil:
    """How many of the first `length` bits are set."""
    cdef int64_t count = 0, i
    cdef uint64_t word
    cdef int64_t words = length // 64
    for i in range(words):
        memcpy(&word, bits + 8 * i, 8)
        count += __builtin_popcountll(word)
    for i in range(64 * words, length):
        count += (bits[i >> 3] >> (i & 7)) & 1
    return count


cdef int64_t first_bad_offset(const uint8_t* data, int64_t length, int64_t values) noexcept nogil:
    """The first of `length` rows whose offsets decrease or exceed `values`; -1 when all are well."""
    cdef int64_t i
    cdef int32_t falling = 0
    # One pass without branches, which the compiler vectorises; a second one, to name the row, only after a failure.
    # Offsets that are not negative cannot differ by more than 31 bits. The data may lie at any address.
    for i in range(length):
        falling |= <int32_t> (<uint32_t> load_int32(data + 4 * i + 4) - <uint32_t> load_int32(data + 4 * i))
        falling |= load_int32(data + 4 * i)
    falling |= load_int32(data + 4 * length)
    if falling >= 0 and load_int32(data + 4 * length) <= values:
        return -1
    for i in range(length):
        if load_int32(data + 4 * i) < 0 or load_int32(data + 4 * i + 4) < load_int32(data + 4 * i) or (
            load_int32(data + 4 * i + 4) > values
        ):
            return i
    return length


cdef int64_t stored_size(const Message* message, int64_t index, Finding* finding, int node) noexcept nogil:
    """Bytes of a buffer once decompressed; -1 with a finding when its claim is impossible."""
    cdef int64_t length = load_int64(message.buffers + 16 * index + 8)
    cdef int64_t claimed
    if message.codec == CODEC_NONE or length == 0:
        return length
    if length < 8:
        report(finding, PROBLEM_BUFFER_SIZE, node, length)
        return -1
    claimed = load_int64(message.body + load_int64(message.buffers + 16 * index))
    if claimed == -1:  # stored as it is
        return length - 8
    if claimed < 0 or (claimed > 0 and length == 8):
        report(finding, PROBLEM_COMPRESSED_SIZE, node, claimed)
        return -1
    return claimed


cdef int check_node(
    MessageLayout layout, const Message* message, int index, bint deep, int64_t* total, Finding* finding
) noexcept nogil:
    """Check one node and its buffers; children have longer checks of their own. Returns a `Problem`."""
    cdef const LayoutNode* node = &layout.nodes[index]
    cdef int64_t length = load_int64(message.nodes + 16 * index)
    cdef int64_t nulls = load_int64(message.nodes + 16 * index + 8)
    cdef int64_t sizes[3]
    cdef int64_t values, bad
    cdef const uint8_t* data
    cdef int i
    if length < 0 or length > INT32_MAX:
        return report(finding, PROBLEM_NODE_LENGTH, index, length)
    if node.parent < 0:
        if length != message.rows:
            return report(finding, PROBLEM_NODE_LENGTH, index, length)
        if nulls and not node.nullable:
            return report(finding, PROBLEM_NOT_NULL, index, nulls)
    elif layout.nodes[node.parent].kind == NODE_STRUCT:
        if length != load_int64(message.nodes + 16 * node.parent):
            return report(finding, PROBLEM_NODE_LENGTH, index, length)
    if nulls < 0 or nulls > length:
        return report(finding, PROBLEM_NULL_COUNT, index, nulls)
    for i in range(buffers_of(node.kind)):
        sizes[i] = stored_size(message, node.first_buffer + i, finding, index)
        if sizes[i] < 0:
            return finding.problem
        if sizes[i] > INT64_LIMIT - total[0]:
            return report(finding, PROBLEM_DECODED_SIZE, index, sizes[i])
        total[0] += sizes[i]
    if (nulls or sizes[0]) and sizes[0] < ((length + 7) >> 3):
        return report(finding, PROBLEM_BUFFER_SIZE, index, sizes[0])
    if node.kind == NODE_FIXED and sizes[1] < length * node.width:
        return report(finding, PROBLEM_BUFFER_SIZE, index, sizes[1])
    if node.kind == NODE_BOOLEAN and sizes[1] < ((length + 7) >> 3):
        return report(finding, PROBLEM_BUFFER_SIZE, index, sizes[1])
    if (node.kind == NODE_VARIABLE or node.kind == NODE_LIST) and length > 0 and sizes[1] < 4 * (length + 1):
        return report(finding, PROBLEM_BUFFER_SIZE, index, sizes[1])
    if not deep:
        return PROBLEM_NONE
    if sizes[0]:
        data = message.body + load_int64(message.buffers + 16 * node.first_buffer)
        if length - count_bits(data, length) != nulls:
            return report(finding, PROBLEM_NULL_BITS, index, nulls)
    if length > 0 and (node.kind == NODE_VARIABLE or node.kind == NODE_LIST):
        data = message.body + load_int64(message.buffers + 16 * (node.first_buffer + 1))
        values = sizes[2] if node.kind == NODE_VARIABLE else load_int64(message.nodes + 16 * (index + 1))
        bad = first_bad_offset(data, length, values)
        if bad >= 0:
            return report(finding, PROBLEM_OFFSETS, index, bad)
    return PROBLEM_NONE


cdef int check_body(
    MessageLayout layout, const Message* message, int64_t rows, int64_t decoded_bytes_max, Finding* finding
) noexcept nogil:
    """Whether `message` holds `rows` rows of the columns of `layout`. Returns a `Problem`.

    Contents (validity bits, offsets) are checked too where they are not compressed.
    """
    cdef int64_t total = 0
    cdef int i
    if message.rows != rows:
        return report(finding, PROBLEM_ROWS, -1, message.rows)
    if message.node_count != layout.node_count:
        return report(finding, PROBLEM_NODES, -1, message.node_count)
    if message.buffer_count != layout.buffer_count:
        return report(finding, PROBLEM_BUFFERS, -1, message.buffer_count)
    if check_places(message, finding) != PROBLEM_NONE:
        return finding.problem
    for i in range(layout.node_count):
        if check_node(layout, message, i, message.codec == CODEC_NONE, &total, finding) != PROBLEM_NONE:
            return finding.problem
    if total > decoded_bytes_max:
        return report(finding, PROBLEM_DECODED_SIZE, -1, total)
    return PROBLEM_NONE


cdef object problem_text(const Finding* finding):
    return _TEXTS[finding.problem].format(value=finding.value)


def check_message(
    MessageLayout layout, buffer, Py_ssize_t start, Py_ssize_t end, int64_t rows, int64_t decoded_bytes_max
):
    """Check that the message in `buffer` from `start` on, before `end`, holds `rows` rows of the layout's columns.

    Returns (codec, body_start, size): the `Codec`, and the bytes before the body and of the whole message.
    Raises `CorruptData` naming the column where there is one.
    """
    cdef ByteView view = ByteView(buffer)
    cdef Message message
    cdef Finding finding
    if start < 0 or end > view.size or start > end:
        raise ValueError(f"[{start}, {end}) is not inside a buffer of {view.size} bytes")
    finding.node = -1
    finding.value = 0
    with nogil:
        finding.problem = parse_message(view.data + start, end - start, &message)
        if finding.problem == PROBLEM_NONE:
            finding.problem = check_body(layout, &message, rows, decoded_bytes_max, &finding)
        elif finding.problem == PROBLEM_BODY:
            finding.value = message.body_length
    if finding.problem != PROBLEM_NONE:
        where = "" if finding.node < 0 else f"column '{layout.names[layout.nodes[finding.node].column]}': "
        raise CorruptData(f"the Arrow message is malformed: {where}{problem_text(&finding)}",
                          ErrorCode.CORRUPT_RECORD_EXCEPTION)
    return message.codec, message.body_start, message.body_start + message.body_length
