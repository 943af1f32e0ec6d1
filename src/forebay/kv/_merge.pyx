"""What a batch of puts and deletes does to a key-value state: new values, and the changelog in order.

One pass over the batch. `state` holds the stored value of every key that the batch may need to know; `touched`
collects what the batch changes and is consulted first, so that a key that repeats within a batch sees its own earlier
change. Nothing outside `touched` is modified: a batch that fails on its last record has had no effect.

The merge engine decides what a put makes of the row that is there: replaces it (the default), keeps it (`first_row`,
or `versioned` if its version is greater), or combines the two field by field (`aggregation`). A put that keeps the old
row leaves no changelog record.

A stored value is `length i32 | schema id i16 | row`; all rows here are of the latest schema.

`decide` and `build` need no Python: the put in one piece (`forebay.kv.hlog._put`) calls them, too.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from forebay.codec.rows._layout cimport (
    FORMAT_INDEXED, KIND_INT32, KIND_INT64, KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT, RowLayout,
)
from forebay.codec.rows._row_decode cimport Span, row_spans
from forebay.codec.rows._slices cimport RowSlices
from forebay.codec._wire cimport store_int32, write_varint
from forebay.kv._aggregate cimport Aggregates
from forebay.kv._fields cimport load_instant

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest

cdef enum Engine:
    REPLACE = 0
    FIRST_ROW = 1
    VERSIONED = 2
    AGGREGATION = 3

cdef enum Refusal:            # beside those of aggregate functions, which are smaller
    MALFORMED = 100
    DELETES_DISABLED = 101
    TOO_LARGE = 102
    OLDER = 103               # no refusal: the version of the put's row is below that of the row that is there

_ENGINES = {None: REPLACE, "first_row": FIRST_ROW, "versioned": VERSIONED, "aggregation": AGGREGATION}

cdef int64_t INT64_MIN = -(<int64_t> 0x7FFFFFFFFFFFFFFF) - 1
cdef int32_t INT32_MIN = -(<int32_t> 0x7FFFFFFF) - 1

cdef object MISSING = object()


cdef inline void store_prefix(uint8_t* out, int schema_id, Py_ssize_t size) noexcept nogil:
    cdef int16_t id16 = <int16_t> schema_id
    store_int32(out, <int32_t> (size + 2))
    memcpy(out + 4, &id16, 2)


cdef inline bytes pack_value(int schema_id, const uint8_t* row, Py_ssize_t size):
    cdef bytes value = PyBytes_FromStringAndSize(NULL, PREFIX + size)
    cdef uint8_t* out = <uint8_t*> PyBytes_AS_STRING(value)
    store_prefix(out, schema_id, size)
    memcpy(out + PREFIX, row, size)
    return value


cdef int child_of(RowLayout layout, int position):
    """The node of the column at `position`."""
    cdef int child = 1
    cdef int _
    for _ in range(position):
        child = layout.nodes[child].end
    return child


cdef class MergePlan:
    """How one table merges: layout for taking rows apart, delete behaviour, image, and what is special about a write.

    `target_mask` has a byte for each column, 1 for those that a partial update writes (None: all of them);
    `key_mask` marks the primary key. `auto_increment` is the position of the auto-increment column, or -1. `engine` is
    the merge engine, None for the default; `version` is the position of the version column of `versioned`, `aggregates`
    are the functions of `aggregation`, which keep the old values of columns that a partial update leaves out.
    """

    def __cinit__(
        self, RowLayout layout, int schema_id, bint full_image, str delete_behavior, bytes key_mask,
        bytes target_mask, int auto_increment, str engine=None, int version=-1, Aggregates aggregates=None,
    ):
        self.layout = layout
        self.schema_id = schema_id
        self.field_count = layout.field_count
        self.full_image = full_image
        self.deletes_ignored = delete_behavior == "ignore"
        self.deletes_disabled = delete_behavior == "disable"
        self.partial = target_mask is not None
        self.target_mask = target_mask
        self.key_mask = key_mask
        self.key_columns = <const uint8_t*> PyBytes_AS_STRING(key_mask)
        if self.partial:
            self.targets = <const uint8_t*> PyBytes_AS_STRING(target_mask)
        self.keys_only = target_mask == key_mask
        self.auto_increment = auto_increment
        if len(key_mask) != self.field_count or (target_mask is not None and len(target_mask) != self.field_count):
            raise ValueError("masks need a byte for each column")
        self.engine = _ENGINES[engine]
        self.version = version
        if (self.engine == VERSIONED) != (0 <= version < self.field_count):
            raise ValueError("the engine 'versioned' has a version column, and no other has")
        if self.engine in (FIRST_ROW, VERSIONED) and self.partial:
            raise ValueError("this engine merges whole rows")
        self.aggregates = aggregates
        if (self.engine == AGGREGATION) != (aggregates is not None):
            raise ValueError("the engine 'aggregation' has functions, and no other has")
        self.version_node = &layout.nodes[child_of(layout, max(0, version))]
        if auto_increment >= 0 and not self.partial:
            raise ValueError("rows are written without their auto-increment column")
        self.reads = full_image or self.partial or self.engine != REPLACE
        self.reads_content = self.reads and self.engine != FIRST_ROW
        if auto_increment >= 0:
            self.has_narrow_ids = layout.nodes[child_of(layout, auto_increment)].kind == KIND_INT32
        if version >= 0 and self.version_node.kind not in (
            KIND_INT32, KIND_INT64, KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT
        ):
            raise ValueError("the version column's type has no versions")
        self.old_spans = <Span*> calloc(max(1, self.field_count), sizeof(Span))
        self.new_spans = <Span*> calloc(max(1, self.field_count), sizeof(Span))
        if self.old_spans == NULL or self.new_spans == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.old_spans)
        free(self.new_spans)

    @property
    def reads_old_values(self):
        """Whether puts depend on the value that is there (only a whole-row put under the WAL image does not)."""
        return self.reads

    @property
    def takes_whole_rows(self):
        """Whether the rows of puts are written as they are, or dropped: nothing is made of old values."""
        return self.engine != AGGREGATION and not self.partial and not self.deletes_disabled

    @property
    def needs_python(self):
        """Whether `decide` does not do all: bitmaps are united by a package."""
        return self.aggregates is not None and self.aggregates.bitmaps is not None

    cdef int walk(self, const uint8_t* row, Py_ssize_t size, Span* spans, int fields) noexcept nogil:
        """Where the first `fields` fields of a row lie; all of its bytes are looked at if these are all. 0, or -1."""
        return row_spans(self.layout.nodes, self.layout.format, row, row + size, spans, fields)

    cdef int decide(
        self, const uint8_t* old, Py_ssize_t old_size, const uint8_t* row, Py_ssize_t size, int64_t next_id
    ) noexcept nogil:
        """What a put of `row` (a delete: `size` is negative) makes of the row `old` (NULL: there is none).

        `next_id` is the auto-increment id of a new row. Above zero the put is refused.
        """
        cdef int i, outcome
        if size < 0:
            if self.deletes_ignored:
                return KEEPS
            if self.deletes_disabled:
                return DELETES_DISABLED
            if old == NULL:
                return KEEPS
            return self.clear(old, old_size) if self.partial else REMOVES
        if old != NULL:
            if self.engine == FIRST_ROW:
                return KEEPS
            if self.engine == VERSIONED:
                outcome = self.compare_versions(old, old_size, row, size)
                if outcome != 0:
                    return KEEPS if outcome == OLDER else outcome
            elif self.engine == REPLACE and self.keys_only:
                return KEEPS
        if not self.partial and (old == NULL or self.engine != AGGREGATION):
            return REPLACES
        if self.walk(row, size, self.new_spans, self.field_count) < 0:
            return MALFORMED
        if old != NULL and self.walk(old, old_size, self.old_spans, self.field_count) < 0:
            return MALFORMED
        if old != NULL and self.engine == AGGREGATION:
            outcome = self.aggregates.merge(self.old_spans, self.new_spans)
            return BUILDS if outcome == 0 else outcome
        for i in range(self.field_count):
            if not self.targets[i]:
                if old == NULL:
                    self.new_spans[i].size = -1
                else:
                    self.new_spans[i] = self.old_spans[i]
        if old == NULL and self.auto_increment >= 0:
            self.set_id(next_id)
        return BUILDS

    cdef void load_version(self, const Span* span, int64_t* major, int32_t* minor) noexcept nogil:
        """The version in a field: an integer, or milliseconds and the nanoseconds beside them. Null is the least."""
        cdef int kind = self.version_node.kind
        if span.size >= 0:
            load_instant(kind, self.layout.format, span, major, minor)
        else:
            major[0] = INT32_MIN if kind == KIND_INT32 else INT64_MIN
            minor[0] = 0

    cdef int compare_versions(
        self, const uint8_t* old, Py_ssize_t old_size, const uint8_t* row, Py_ssize_t size
    ) noexcept nogil:
        """`OLDER` if the version of `row` is below that of `old`, else 0; or `MALFORMED`.

        A row that is dropped is looked at as a whole here, because its bytes are not looked at later.
        """
        cdef int64_t old_major, new_major
        cdef int32_t old_minor, new_minor
        if self.walk(old, old_size, self.old_spans, self.version + 1) < 0:
            return MALFORMED
        if self.walk(row, size, self.new_spans, self.version + 1) < 0:
            return MALFORMED
        self.load_version(&self.old_spans[self.version], &old_major, &old_minor)
        self.load_version(&self.new_spans[self.version], &new_major, &new_minor)
        if new_major > old_major or (new_major == old_major and new_minor >= old_minor):
            return 0
        return OLDER if self.walk(row, size, self.new_spans, self.field_count) == 0 else MALFORMED

    cdef int clear(self, const uint8_t* old, Py_ssize_t old_size) noexcept nogil:
        """The old row with its target columns null (but for the key), or no row when nothing else is left."""
        cdef int i
        cdef bint rest = False
        if self.walk(old, old_size, self.new_spans, self.field_count) < 0:
            return MALFORMED
        for i in range(self.field_count):
            if not self.targets[i] and self.new_spans[i].size >= 0:
                rest = True
            if self.targets[i] and not self.key_columns[i]:
                self.new_spans[i].size = -1
        return BUILDS if rest else REMOVES

    cdef void set_id(self, int64_t next_id) noexcept nogil:
        """Set the auto-increment column of the row that is built."""
        cdef Span* span = &self.new_spans[self.auto_increment]
        span.data = self.id_bytes
        if self.layout.format == FORMAT_INDEXED:
            memcpy(self.id_bytes, &next_id, 8)
            span.size = 4 if self.has_narrow_ids else 8
        else:
            span.size = write_varint(
                self.id_bytes, <uint32_t> next_id if self.has_narrow_ids else <uint64_t> next_id
            )

    cdef int64_t built_bytes(self) noexcept nogil:
        """The size of the row that `decide` has put together."""
        cdef int64_t size = (self.field_count + 7) >> 3
        cdef int i
        if self.layout.format == FORMAT_INDEXED:
            size += 4 * self.layout.nodes[0].length_list_size
        for i in range(self.field_count):
            size += max(0, self.new_spans[i].size)
        return size

    cdef void build(self, uint8_t* row) noexcept nogil:
        """Write that row to `row`, which has room for its `built_bytes`."""
        cdef bint indexed = self.layout.format == FORMAT_INDEXED
        cdef int null_bytes = (self.field_count + 7) >> 3
        cdef int header = null_bytes + (4 * self.layout.nodes[0].length_list_size if indexed else 0)
        cdef uint8_t* lengths = row + null_bytes
        cdef uint8_t* body = row + header
        cdef const Span* span
        cdef const uint8_t* run = NULL
        cdef Py_ssize_t run_size = 0
        cdef int i
        cdef int child = 1
        memset(row, 0, header)
        for i in range(self.field_count):
            span = &self.new_spans[i]
            if span.size < 0:
                row[i >> 3] |= <uint8_t> (1 << (i & 7))
            else:
                if indexed and self.layout.nodes[child].in_length_list:
                    store_int32(lengths, span.size)
                    lengths += 4
                if span.data != run + run_size:  # fields that lie one after the other are copied together
                    memcpy(body, run, run_size)
                    body += run_size
                    run, run_size = span.data, 0
                run_size += span.size
            child = self.layout.nodes[child].end
        memcpy(body, run, run_size)

    cdef int refuse(self, int outcome, object key) except -1:
        """Raise the error for a put into the row of `key` that `decide` has refused."""
        if outcome == MALFORMED:
            raise CorruptData("a row does not match the table's schema", ErrorCode.CORRUPT_RECORD_EXCEPTION)
        if outcome == DELETES_DISABLED:
            raise InvalidRequest(
                "the table forbids deletes ('table.delete.behavior' is 'disable')",
                ErrorCode.DELETION_DISABLED_EXCEPTION,
            )
        if outcome == TOO_LARGE:
            raise InvalidRequest(
                f"the rows that this put makes of those that are there would have more than {BUILT_BYTES_MAX} bytes: "
                "put fewer rows at a time",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        return self.aggregates.refuse(outcome, key)

    cdef bytes built_value(self, object key):
        """The stored value of the row that `decide` has put together."""
        cdef int64_t size = self.built_bytes()
        if size > BUILT_BYTES_MAX:
            self.refuse(TOO_LARGE, key)
        cdef bytes value = PyBytes_FromStringAndSize(NULL, PREFIX + size)
        cdef uint8_t* out = <uint8_t*> PyBytes_AS_STRING(value)
        store_prefix(out, self.schema_id, size)
        self.build(out + PREFIX)
        return value

    def merge(self, list keys, RowSlices rows not None, dict state not None, sequence):
        """Merge one batch.

        `state` maps keys to stored values or None (absent); `sequence.next()` gives auto-increment ids.
        Returns (change types, RowSlices of the changelog's rows, changelog keys, touched, rows added).
        Raises `CorruptData` for malformed rows, and DELETION_DISABLED where the table forbids deletes.
        """
        cdef dict touched = {}
        cdef list changelog_keys = []
        cdef bytearray change_types = bytearray()
        cdef RowSlices changelog = RowSlices.__new__(RowSlices)
        cdef list owners = changelog.owners
        cdef Py_ssize_t i
        cdef Py_ssize_t added = 0
        cdef int64_t built = 0
        cdef int64_t next_id = 0
        cdef int outcome
        cdef object key, found
        cdef bytes old, new
        cdef const uint8_t* old_row
        cdef Py_ssize_t old_size
        if len(keys) != rows.count:
            raise ValueError("as many keys as rows are needed")
        changelog.reserve(2 * rows.count)
        for i in range(rows.count):
            key = keys[i]
            found = touched.get(key, MISSING)
            if found is MISSING:
                found = state.get(key)
            old = found
            old_row, old_size = NULL, 0
            if old is not None:
                old_row, old_size = <const uint8_t*> PyBytes_AS_STRING(old) + PREFIX, PyBytes_GET_SIZE(old) - PREFIX
            elif self.auto_increment >= 0 and rows.sizes[i] >= 0:
                next_id = sequence.next()
            outcome = self.decide(old_row, old_size, rows.data[i], rows.sizes[i], next_id)
            if outcome == KEEPS:
                continue
            if outcome > 0:
                self.refuse(outcome, key)
            if outcome == REMOVES:
                new = None
                change_types.append(DELETE)
                added -= 1
            else:
                if outcome == REPLACES:
                    new = pack_value(self.schema_id, rows.data[i], rows.sizes[i])
                else:
                    if old is not None and rows.sizes[i] >= 0 and self.needs_python:
                        self.aggregates.unite_all(self.old_spans, self.new_spans, key)
                    new = self.built_value(key)
                    built += PyBytes_GET_SIZE(new)
                    if built > BUILT_BYTES_MAX:
                        self.refuse(TOO_LARGE, key)
                if old is None and self.reads:
                    change_types.append(INSERT)
                    added += 1
                else:
                    if self.full_image:
                        change_types.append(UPDATE_BEFORE)
                    else:
                        old = None
                    change_types.append(UPDATE_AFTER)
            if old is not None:
                push_value(changelog, owners, changelog_keys, key, old)
            if new is not None:
                push_value(changelog, owners, changelog_keys, key, new)
            touched[key] = new
        return bytes(change_types), changelog, changelog_keys, touched, added


cdef inline int push_value(RowSlices changelog, list owners, list keys, object key, bytes value) except -1:
    owners.append(value)
    keys.append(key)
    changelog.push(
        <const uint8_t*> PyBytes_AS_STRING(value) + PREFIX, <int32_t> (PyBytes_GET_SIZE(value) - PREFIX)
    )
    return 0
