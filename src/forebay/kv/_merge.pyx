"""What a batch of puts and deletes does to a key-value state: new values, and the changelog in order.

One pass over the batch. `state` holds the stored value of every key that the batch may need to know; `touched`
collects what the batch changes and is consulted first, so that a key that repeats within a batch sees its own earlier
change. Nothing outside `touched` is modified: a batch that fails on its last record has had no effect.

The merge engine decides what a put makes of the row that is there: replaces it (the default), keeps it (`first_row`,
or `versioned` if its version is greater), or combines the two field by field (`aggregation`). A put that keeps the old
row leaves no changelog record.

A stored value is `length i32 | schema id i16 | row`; all rows here are of the latest schema.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from forebay.codec._layout cimport (
    FORMAT_INDEXED, KIND_INT32, KIND_INT64, KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT, Node, RowLayout,
)
from forebay.codec._row_decode cimport Span, row_spans
from forebay.codec._slices cimport RowSlices
from forebay.codec._wire cimport store_int32, write_varint
from forebay.kv._aggregate cimport Aggregates
from forebay.kv._fields cimport load_instant

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest

cdef enum:
    PREFIX = 6  # length and schema id
    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4

cdef enum Engine:
    REPLACE = 0
    FIRST_ROW = 1
    VERSIONED = 2
    AGGREGATION = 3

_ENGINES = {None: REPLACE, "first_row": FIRST_ROW, "versioned": VERSIONED, "aggregation": AGGREGATION}

cdef int64_t INT64_MIN = -(<int64_t> 0x7FFFFFFFFFFFFFFF) - 1
cdef int32_t INT32_MIN = -(<int32_t> 0x7FFFFFFF) - 1

cdef object MISSING = object()


cdef inline bytes pack_value(int schema_id, const uint8_t* row, Py_ssize_t size):
    cdef bytes value = PyBytes_FromStringAndSize(NULL, PREFIX + size)
    cdef uint8_t* out = <uint8_t*> PyBytes_AS_STRING(value)
    cdef int16_t id16 = <int16_t> schema_id
    store_int32(out, <int32_t> (size + 2))
    memcpy(out + 4, &id16, 2)
    memcpy(out + PREFIX, row, size)
    return value


cdef class MergePlan:
    """How one table merges: layout for taking rows apart, delete behaviour, image, and what is special about a write.

    `target_mask` has a byte for each column, 1 for those that a partial update writes (None: all of them);
    `key_mask` marks the primary key. `auto_increment` is the position of the auto-increment column, or -1. `engine` is
    the merge engine, None for the default; `version` is the position of the version column of `versioned`, `aggregates`
    are the functions of `aggregation`, which keep the old values of columns that a partial update leaves out.
    """

    cdef RowLayout layout
    cdef int schema_id
    cdef int field_count
    cdef readonly bint full_image
    cdef readonly bint deletes_ignored
    cdef bint deletes_disabled
    cdef bint partial
    cdef bint keys_only
    cdef bytes target_mask
    cdef bytes key_mask
    cdef int auto_increment
    cdef int engine
    cdef int version
    cdef const Node* version_node
    cdef Aggregates aggregates
    cdef Span* old_spans
    cdef Span* new_spans

    def __cinit__(
        self, RowLayout layout, int schema_id, bint full_image, str delete_behavior, bytes key_mask,
        bytes target_mask, int auto_increment, str engine=None, int version=-1, Aggregates aggregates=None,
    ):
        cdef int child = 1
        cdef int i
        self.layout = layout
        self.schema_id = schema_id
        self.field_count = layout.field_count
        self.full_image = full_image
        self.deletes_ignored = delete_behavior == "ignore"
        self.deletes_disabled = delete_behavior == "disable"
        self.partial = target_mask is not None
        self.target_mask = target_mask
        self.key_mask = key_mask
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
        for i in range(max(0, version)):
            child = layout.nodes[child].end
        self.version_node = &layout.nodes[child]
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
        return self.full_image or self.partial or self.auto_increment >= 0 or self.engine != REPLACE

    @property
    def replaces_rows(self):
        """Whether puts replace whole rows, and deletes delete them or are ignored: nothing is made of old values."""
        return (
            self.engine == REPLACE and not self.partial and self.auto_increment < 0 and not self.deletes_disabled
        )

    cdef int spans_of(self, const uint8_t* row, Py_ssize_t size, Span* spans) except -1:
        if row_spans(self.layout.nodes, self.layout.format, row, row + size, spans) < 0:
            raise CorruptData("a row does not match the table's schema", ErrorCode.CORRUPT_RECORD_EXCEPTION)
        return 0

    cdef int spans_of_value(self, bytes value, Span* spans) except -1:
        return self.spans_of(
            <const uint8_t*> PyBytes_AS_STRING(value) + PREFIX, PyBytes_GET_SIZE(value) - PREFIX, spans
        )

    cdef int version_of(self, const uint8_t* row, Py_ssize_t size, Span* spans, int64_t* major, int32_t* minor) except -1:
        """The version of a row: an integer, or milliseconds and the nanoseconds beside them. Null is the least."""
        cdef int kind = self.version_node.kind
        self.spans_of(row, size, spans)
        if spans[self.version].size >= 0:
            load_instant(kind, self.layout.format, &spans[self.version], major, minor)
            return 0
        major[0] = INT32_MIN if kind == KIND_INT32 else INT64_MIN
        minor[0] = 0
        return 0

    cdef bint is_older(self, const uint8_t* row, Py_ssize_t size, bytes old) except -1:
        """Whether the version of `row` is below that of the value `old`."""
        cdef int64_t old_major, new_major
        cdef int32_t old_minor, new_minor
        self.version_of(
            <const uint8_t*> PyBytes_AS_STRING(old) + PREFIX, PyBytes_GET_SIZE(old) - PREFIX, self.old_spans,
            &old_major, &old_minor,
        )
        self.version_of(row, size, self.new_spans, &new_major, &new_minor)
        return new_major < old_major or (new_major == old_major and new_minor < old_minor)

    cdef bytes assemble(self, Span* spans):
        """The stored value of the row with these fields."""
        cdef bint indexed = self.layout.format == FORMAT_INDEXED
        cdef int null_bytes = (self.field_count + 7) >> 3
        cdef Py_ssize_t size = null_bytes + (4 * self.layout.nodes[0].length_list_size if indexed else 0)
        cdef Py_ssize_t header = size
        cdef int i
        cdef int child = 1
        for i in range(self.field_count):
            size += max(0, spans[i].size)
        cdef bytes value = PyBytes_FromStringAndSize(NULL, PREFIX + size)
        cdef uint8_t* out = <uint8_t*> PyBytes_AS_STRING(value)
        cdef int16_t id16 = <int16_t> self.schema_id
        store_int32(out, <int32_t> (size + 2))
        memcpy(out + 4, &id16, 2)
        cdef uint8_t* row = out + PREFIX
        cdef uint8_t* lengths = row + null_bytes
        cdef uint8_t* body = row + header
        memset(row, 0, header)
        for i in range(self.field_count):
            if spans[i].size < 0:
                row[i >> 3] |= <uint8_t> (1 << (i & 7))
            else:
                if indexed and self.layout.nodes[child].in_length_list:
                    store_int32(lengths, spans[i].size)
                    lengths += 4
                memcpy(body, spans[i].data, spans[i].size)
                body += spans[i].size
            child = self.layout.nodes[child].end
        return value

    cdef bytes partial_put(self, bytes old, const uint8_t* row, Py_ssize_t size):
        """Target columns from the new row, the others from the old one (null where there is none)."""
        cdef int i
        self.spans_of(row, size, self.new_spans)
        if old is not None:
            self.spans_of_value(old, self.old_spans)
        for i in range(self.field_count):
            if not self.target_mask[i]:
                if old is None:
                    self.new_spans[i].size = -1
                else:
                    self.new_spans[i] = self.old_spans[i]
        return self.assemble(self.new_spans)

    cdef bytes aggregate(self, bytes old, const uint8_t* row, Py_ssize_t size):
        """The two rows combined by the functions of their columns."""
        self.spans_of(row, size, self.new_spans)
        self.spans_of_value(old, self.old_spans)
        self.aggregates.merge(self.old_spans, self.new_spans)
        return self.assemble(self.new_spans)

    cdef bytes partial_delete(self, bytes old):
        """The old row with its target columns null (but for the key), or None when nothing else is left."""
        cdef int i
        cdef bint rest = False
        self.spans_of_value(old, self.old_spans)
        for i in range(self.field_count):
            if not self.target_mask[i] and self.old_spans[i].size >= 0:
                rest = True
            if self.target_mask[i] and not self.key_mask[i]:
                self.old_spans[i].size = -1
        return self.assemble(self.old_spans) if rest else None

    cdef bytes with_next_id(self, bytes value, sequence):
        """The row of `value` with the next auto-increment id."""
        cdef uint8_t scratch[10]
        cdef int child = 1
        cdef int i
        cdef int64_t next_id = sequence.next()
        self.spans_of_value(value, self.new_spans)
        for i in range(self.auto_increment):
            child = self.layout.nodes[child].end
        cdef bint narrow = self.layout.nodes[child].kind == KIND_INT32
        self.new_spans[self.auto_increment].data = scratch
        if self.layout.format == FORMAT_INDEXED:
            memcpy(scratch, &next_id, 8)
            self.new_spans[self.auto_increment].size = 4 if narrow else 8
        elif narrow:
            self.new_spans[self.auto_increment].size = write_varint(scratch, <uint32_t> next_id)
        else:
            self.new_spans[self.auto_increment].size = write_varint(scratch, <uint64_t> next_id)
        return self.assemble(self.new_spans)

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
        cdef object key, found
        cdef bytes old, new
        cdef bint reads = self.reads_old_values
        if len(keys) != rows.count:
            raise ValueError("as many keys as rows are needed")
        changelog.reserve(2 * rows.count)
        for i in range(rows.count):
            key = keys[i]
            found = touched.get(key, MISSING)
            if found is MISSING:
                found = state.get(key)
            old = found
            if rows.sizes[i] < 0:
                if self.deletes_ignored:
                    continue
                if self.deletes_disabled:
                    raise InvalidRequest(
                        "the table forbids deletes ('table.delete.behavior' is 'disable')",
                        ErrorCode.DELETION_DISABLED_EXCEPTION,
                    )
                if old is None:
                    continue
                new = self.partial_delete(old) if self.partial else None
            elif old is not None and self.engine == AGGREGATION:
                new = self.aggregate(old, rows.data[i], rows.sizes[i])
            elif old is not None and self.engine != REPLACE and (
                self.engine == FIRST_ROW or self.is_older(rows.data[i], rows.sizes[i], old)
            ):
                continue
            elif not self.partial:
                new = pack_value(self.schema_id, rows.data[i], rows.sizes[i])
            elif self.keys_only and old is not None:
                continue
            else:
                new = self.partial_put(old, rows.data[i], rows.sizes[i])
            if new is None:
                change_types.append(DELETE)
                added -= 1
            elif not reads:
                old = None
                change_types.append(UPDATE_AFTER)
            elif old is None:
                if self.auto_increment >= 0:
                    new = self.with_next_id(new, sequence)
                change_types.append(INSERT)
                added += 1
            elif self.full_image:
                change_types.append(UPDATE_BEFORE)
                change_types.append(UPDATE_AFTER)
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
