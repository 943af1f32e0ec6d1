"""Column projection of ARROW log batches by surgery on their messages: nothing is decompressed or decoded.

A `Projector` belongs to one schema of a table and says where each node and buffer of the wanted columns lies in a
message of that schema. A column that the schema does not have yet comes out as nulls, because Fluss's clients pin
their schema when they project and cannot pad themselves (docs/format/log_batch.md).

Flow: pass 1 parses and measures the batches one after the other, until the byte budget is used up; pass 2, without
the GIL, writes header, change types, new metadata and the chosen buffers of each into one bytes object.

Rules: the header is the batch's own, with a new length and no statistics; the CRC is left as it is (stale, as in
Fluss: readers of projected data must not check it); a batch without records is passed on as it is.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from forebay.codec.arrow._arrow_message cimport (
    CODEC_NONE, PROBLEM_BUFFERS, PROBLEM_NODES, PROBLEM_NONE, PROBLEM_ROWS, ByteView, Finding, Message, MessageLayout,
    check_places, metadata_size, padded, parse_message, problem_text, write_metadata,
)
from forebay.codec.log._batch_header cimport LENGTH_AT, LENGTH_OVERHEAD, MAGIC_AT, MAGIC_MAX
from forebay.codec._wire cimport load_int32, load_int64, store_int32, store_int64

from forebay.base.errors import CorruptData, ErrorCode

cdef enum:
    APPEND_ONLY_FLAG = 1

# Where fields of a batch header lie, by magic (forebay.codec.log.log_batch).
cdef int* HEADER_SIZE = [48, 52, 56]
cdef int* SCHEMA_ID_OFFSET = [25, 25, 29]
cdef int* ATTRIBUTES_OFFSET = [27, 27, 31]
cdef int* RECORD_COUNT_OFFSET = [44, 44, 48]

cdef struct OutNode:
    int32_t source       # node of the batch's own message; -1: nulls
    uint8_t has_rows     # nulls: as many as the batch has rows, or (inside lists) none

cdef struct OutBuffer:
    int32_t source       # buffer of the batch's own message; -1: zeros
    uint8_t has_rows
    int64_t bits         # zeros: bits a row
    int32_t extra        # zeros: bytes on top

cdef struct Plan:
    OutNode* nodes
    OutBuffer* buffers
    int node_count
    int buffer_count
    int source_node_count
    int source_buffer_count

cdef struct Job:
    const uint8_t* batch
    int64_t batch_size
    int64_t out_size
    int64_t body_length
    int64_t change_types # bytes of the change-type vector
    int64_t body_start   # of the message, from the beginning of the batch
    int header_size
    bint has_message
    Message message
    const Plan* plan     # of a projector that the dict of projectors holds


cdef class Projector:
    """What to take from messages of one schema.

    `nodes` lists (source node or -1, has rows), `buffers` (source buffer or -1, has rows, bits a row, extra bytes),
    both in the order of the new message.
    """

    cdef Plan plan

    def __cinit__(self, MessageLayout layout, list nodes, list buffers):
        cdef int i
        cdef Plan* plan = &self.plan
        plan.source_node_count = layout.node_count
        plan.source_buffer_count = layout.buffer_count
        plan.node_count = len(nodes)
        plan.buffer_count = len(buffers)
        plan.nodes = <OutNode*> calloc(max(1, plan.node_count), sizeof(OutNode))
        plan.buffers = <OutBuffer*> calloc(max(1, plan.buffer_count), sizeof(OutBuffer))
        if plan.nodes == NULL or plan.buffers == NULL:
            raise MemoryError()
        for i, (source, has_rows) in enumerate(nodes):
            if not -1 <= source < layout.node_count:
                raise ValueError(f"there is no node {source}")
            plan.nodes[i].source = source
            plan.nodes[i].has_rows = has_rows
        for i, (source, has_rows, bits, extra) in enumerate(buffers):
            if not -1 <= source < layout.buffer_count or bits < 0 or extra < 0:
                raise ValueError(f"there is no buffer {source}")
            plan.buffers[i].source = source
            plan.buffers[i].has_rows = has_rows
            plan.buffers[i].bits = bits
            plan.buffers[i].extra = extra

    def __dealloc__(self):
        free(self.plan.nodes)
        free(self.plan.buffers)


cdef inline int64_t zeros_of(const OutBuffer* buffer, int64_t rows) noexcept nogil:
    """Bytes of a buffer of a column of nulls, before the length prefix that compressed messages have."""
    return (((rows if buffer.has_rows else 0) * buffer.bits + 7) >> 3) + buffer.extra


cdef inline int64_t out_length(const OutBuffer* buffer, const Message* message) noexcept nogil:
    cdef int64_t size
    if buffer.source >= 0:
        return load_int64(message.buffers + 16 * buffer.source + 8)
    size = zeros_of(buffer, message.rows)
    return size + 8 if size > 0 and message.codec != CODEC_NONE else size


cdef int measure(Job* job, Finding* finding) noexcept nogil:
    """Parse the job's message and fill in the sizes of what will be written. Returns a `Problem`."""
    cdef const Plan* plan = job.plan
    cdef int64_t records = load_int32(job.batch + RECORD_COUNT_OFFSET[job.batch[MAGIC_AT]])
    cdef int i
    job.body_length = 0
    job.out_size = job.header_size
    finding.node = -1
    finding.value = 0
    if job.body_start == job.batch_size and records == 0:
        job.has_message = False
        job.change_types = 0
        return PROBLEM_NONE
    job.has_message = True
    finding.problem = parse_message(job.batch + job.body_start, job.batch_size - job.body_start, &job.message)
    if finding.problem != PROBLEM_NONE:
        return finding.problem
    if job.message.rows != records:
        finding.value = job.message.rows
        finding.problem = PROBLEM_ROWS
    elif job.message.node_count != plan.source_node_count:
        finding.value = job.message.node_count
        finding.problem = PROBLEM_NODES
    elif job.message.buffer_count != plan.source_buffer_count:
        finding.value = job.message.buffer_count
        finding.problem = PROBLEM_BUFFERS
    else:
        check_places(&job.message, finding)
    if finding.problem != PROBLEM_NONE:
        return finding.problem
    for i in range(plan.buffer_count):
        job.body_length += padded(out_length(&plan.buffers[i], &job.message))
    job.out_size += job.change_types + job.body_length + metadata_size(
        plan.node_count, plan.buffer_count, job.message.codec
    )
    return PROBLEM_NONE


cdef uint8_t* write_zeros(uint8_t* out, const OutBuffer* buffer, const Message* message, int64_t length) noexcept nogil:
    memset(out, 0, length)
    if length > 0 and message.codec != CODEC_NONE:
        store_int64(out, -1)  # stored as it is
    return out + length


cdef uint8_t* write_job(uint8_t* out, const Job* job) noexcept nogil:
    """Write the projected batch at `out`; return its end."""
    cdef const Plan* plan = job.plan
    cdef const Message* message = &job.message
    cdef uint8_t* nodes
    cdef uint8_t* buffers
    cdef int64_t at = 0, length, source
    cdef int i
    cdef int magic = job.batch[MAGIC_AT]
    memcpy(out, job.batch, job.header_size)
    store_int32(out + LENGTH_AT, <int32_t> (job.out_size - LENGTH_OVERHEAD))
    if magic >= 1:
        store_int32(out + job.header_size - 4, 0)  # no statistics
    out += job.header_size
    if not job.has_message:
        return out
    memcpy(out, job.batch + job.body_start - job.change_types, job.change_types)
    out = write_metadata(
        out + job.change_types, message.rows, plan.node_count, plan.buffer_count, job.body_length,
        message.codec, message.version, &nodes, &buffers
    )
    for i in range(plan.node_count):
        if plan.nodes[i].source >= 0:
            memcpy(nodes + 16 * i, message.nodes + 16 * plan.nodes[i].source, 16)
        else:
            length = message.rows if plan.nodes[i].has_rows else 0
            store_int64(nodes + 16 * i, length)
            store_int64(nodes + 16 * i + 8, length)
    for i in range(plan.buffer_count):
        length = out_length(&plan.buffers[i], message)
        store_int64(buffers + 16 * i, at)
        store_int64(buffers + 16 * i + 8, length)
        at += padded(length)
        if plan.buffers[i].source >= 0:
            source = load_int64(message.buffers + 16 * plan.buffers[i].source)
            memcpy(out, message.body + source, length)
            out += length
        else:
            out = write_zeros(out, &plan.buffers[i], message, length)
        memset(out, 0, padded(length) - length)
        out += padded(length) - length
    return out


cdef int frame(const uint8_t* data, int64_t available, Job* job) noexcept nogil:
    """Find the batch at `data`: 1 when it is there, 0 when the end of the data cuts it off, -1 when it is corrupt."""
    cdef int64_t length, statistics = 0, change_types
    cdef int magic
    if available < LENGTH_OVERHEAD + 1:
        return 0
    length = load_int32(data + LENGTH_AT)
    magic = data[MAGIC_AT]
    if magic > MAGIC_MAX or length < HEADER_SIZE[magic] - LENGTH_OVERHEAD:
        return -1
    if length > available - LENGTH_OVERHEAD:
        return 0
    job.batch = data
    job.batch_size = length + LENGTH_OVERHEAD
    job.header_size = HEADER_SIZE[magic]
    if magic >= 1:
        statistics = load_int32(data + job.header_size - 4)
        if statistics < 0 or statistics > job.batch_size - job.header_size:
            return -1
    change_types = 0 if data[ATTRIBUTES_OFFSET[magic]] & APPEND_ONLY_FLAG else load_int32(
        data + RECORD_COUNT_OFFSET[magic]
    )
    if change_types < 0 or change_types > job.batch_size - job.header_size - statistics:
        return -1
    job.change_types = change_types
    job.body_start = job.header_size + statistics + change_types
    return 1


cdef inline int schema_id_of(const Job* job) noexcept nogil:
    cdef int16_t schema_id
    memcpy(&schema_id, job.batch + SCHEMA_ID_OFFSET[job.batch[MAGIC_AT]], 2)
    return schema_id


cdef class _Jobs:
    """A growing array of jobs."""

    cdef Job* jobs
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.jobs)

    cdef Job* next(self) except NULL:
        """Room for one more job; it counts once `count` is raised."""
        cdef void* grown
        if self.count == self.capacity:
            grown = realloc(self.jobs, max(16, 2 * self.capacity) * sizeof(Job))
            if grown == NULL:
                raise MemoryError()
            self.jobs = <Job*> grown
            self.capacity = max(16, 2 * self.capacity)
        return &self.jobs[self.count]


def project_batches(
    buffer, Py_ssize_t start, Py_ssize_t end, projector_of, positions, int64_t bytes_max, bint take_first
):
    """Project the batches in `buffer` between `start` and `end`.

    `projector_of(schema id)` gives the `Projector` for a schema and is asked once a schema id; `positions` (ascending
    int64 array, or None: all) chooses batches. Stops before the batch that would take the output beyond `bytes_max`,
    except that with `take_first` the first one always fits. A batch that `end` cuts off is left out.

    Returns (bytes, number of batches, position of the first batch not taken). Raises `CorruptData`.
    """
    cdef ByteView view = ByteView(buffer)
    cdef const int64_t[::1] chosen = None if positions is None else positions
    cdef bint walk = positions is None
    cdef dict projectors = {}
    cdef Projector projector = None
    cdef _Jobs jobs = _Jobs.__new__(_Jobs)
    cdef Job* job
    cdef Finding finding
    cdef int64_t total = 0
    cdef Py_ssize_t at = start, index = 0, i
    cdef int found, schema_id = 0, last_schema_id = 0
    cdef uint8_t* out
    if start < 0 or end > view.size or start > end:
        raise ValueError(f"[{start}, {end}) is not inside a buffer of {view.size} bytes")
    while True:
        if walk:
            if at >= end:
                break
        else:
            if index == chosen.shape[0]:
                break
            if chosen[index] < at or chosen[index] >= end:
                raise ValueError(f"position {chosen[index]} is not ascending inside [{start}, {end})")
            at = chosen[index]
            index += 1
        job = jobs.next()
        found = frame(view.data + at, end - at, job)
        if found < 0:
            raise CorruptData(f"log batch at byte {at}: its header is malformed", ErrorCode.CORRUPT_RECORD_EXCEPTION)
        if found == 0:
            break
        schema_id = schema_id_of(job)
        if projector is None or schema_id != last_schema_id:
            projector = projectors.get(schema_id)
            if projector is None:
                projector = projector_of(schema_id)
                projectors[schema_id] = projector
            last_schema_id = schema_id
        job.plan = &projector.plan
        if measure(job, &finding) != PROBLEM_NONE:
            raise CorruptData(
                f"log batch at byte {at}: its Arrow message is malformed: {problem_text(&finding)}",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )
        if job.out_size > INT32_MAX or (total + job.out_size > bytes_max and not (take_first and jobs.count == 0)):
            break
        total += job.out_size
        jobs.count += 1
        at += job.batch_size
    result = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t*> PyBytes_AS_STRING(result)
    with nogil:
        for i in range(jobs.count):
            out = write_job(out, &jobs.jobs[i])
    return result, jobs.count, at
