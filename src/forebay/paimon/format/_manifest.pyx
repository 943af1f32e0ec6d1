"""Manifest entries of decoded Avro records (`_avro`): as objects, and what is left of many of them.

Objects are made without calling their constructors, which takes most of the time otherwise: values are put into the
slots of the (frozen) dataclasses directly. Equal tuples and partitions within a manifest become one object.

`ENTRY_FIELDS` are the paths of the fields in the order of the slots below, with their kinds.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from forebay.paimon.format._avro cimport Records
from forebay.paimon.format._buffer cimport Buffer, reserve

import numpy as np

from forebay.base.errors import Conflict, CorruptData
from forebay.paimon.format.file_meta import (
    EMPTY_ROW,
    EMPTY_STATS,
    DataFileMeta,
    FileKind,
    FileSource,
    ManifestEntry,
    SimpleStats,
)

cdef enum:
    VERSION = 0
    KIND
    PARTITION
    BUCKET
    TOTAL_BUCKETS
    FILE_NAME
    FILE_SIZE
    ROW_COUNT
    MIN_KEY
    MAX_KEY
    KEY_MIN
    KEY_MAX
    KEY_NULLS
    VALUE_MIN
    VALUE_MAX
    VALUE_NULLS
    MIN_SEQUENCE
    MAX_SEQUENCE
    SCHEMA_ID
    LEVEL
    EXTRA_FILES
    CREATION_TIME
    DELETE_ROW_COUNT
    EMBEDDED_INDEX
    FILE_SOURCE
    VALUE_STATS_COLS
    EXTERNAL_PATH
    FIRST_ROW_ID
    WRITE_COLS
    WRITE_COLS_SEQUENCES
    SLOTS

ENTRY_FIELDS = (
    ("_VERSION", "number", True),
    ("_KIND", "number", True),
    ("_PARTITION", "bytes", True),
    ("_BUCKET", "number", True),
    ("_TOTAL_BUCKETS", "number", True),
    ("_FILE._FILE_NAME", "text", True),
    ("_FILE._FILE_SIZE", "number", True),
    ("_FILE._ROW_COUNT", "number", True),
    ("_FILE._MIN_KEY", "bytes", True),
    ("_FILE._MAX_KEY", "bytes", True),
    ("_FILE._KEY_STATS._MIN_VALUES", "bytes", True),
    ("_FILE._KEY_STATS._MAX_VALUES", "bytes", True),
    ("_FILE._KEY_STATS._NULL_COUNTS", "numbers", False),
    ("_FILE._VALUE_STATS._MIN_VALUES", "bytes", True),
    ("_FILE._VALUE_STATS._MAX_VALUES", "bytes", True),
    ("_FILE._VALUE_STATS._NULL_COUNTS", "numbers", False),
    ("_FILE._MIN_SEQUENCE_NUMBER", "number", True),
    ("_FILE._MAX_SEQUENCE_NUMBER", "number", True),
    ("_FILE._SCHEMA_ID", "number", True),
    ("_FILE._LEVEL", "number", True),
    ("_FILE._EXTRA_FILES", "texts", False),
    ("_FILE._CREATION_TIME", "number", False),
    ("_FILE._DELETE_ROW_COUNT", "number", False),
    ("_FILE._EMBEDDED_FILE_INDEX", "bytes", False),
    ("_FILE._FILE_SOURCE", "number", False),
    ("_FILE._VALUE_STATS_COLS", "texts", False),
    ("_FILE._EXTERNAL_PATH", "text", False),
    ("_FILE._FIRST_ROW_ID", "number", False),
    ("_FILE._WRITE_COLS", "texts", False),
    ("_FILE._WRITE_COLS_SEQUENCES", "numbers", False),
)

cdef enum:
    ARITY_BYTES = 4
    EMPTY_ROW_BYTES = 12  # with its number of fields

cdef tuple _KINDS = tuple(FileKind)
cdef tuple _SOURCES = tuple(FileSource)
cdef tuple _NOTHING = ()
cdef bytes _EMPTY_ROW = EMPTY_ROW
cdef object _EMPTY_STATS = EMPTY_STATS

cdef tuple _FILE_SLOTS = tuple(getattr(DataFileMeta, name) for name in DataFileMeta.__slots__)
cdef tuple _STATS_SLOTS = tuple(getattr(SimpleStats, name) for name in SimpleStats.__slots__)
cdef tuple _ENTRY_SLOTS = tuple(getattr(ManifestEntry, name) for name in ManifestEntry.__slots__)


# ---- objects of records ---------------------------------------------------------------------------------------------


cdef inline object new(object cls):
    """An object whose slots are all empty."""
    return (<PyTypeObject*> cls).tp_new(<type> cls, <PyObject*> _NOTHING, NULL)


cdef inline int put(tuple slots, Py_ssize_t index, object target, object value) except -1:
    """Set slot `index` of a new object, frozen or not."""
    cdef PyObject* descriptor = <PyObject*> slots[index]
    return descriptor.ob_type.tp_descr_set(<object> descriptor, target, value)


cdef bytes row_of(Records records, Py_ssize_t row, Py_ssize_t slot):
    """A BinaryRow without the number of fields in front."""
    cdef Py_ssize_t size = records.s[row, slot]
    if size <= ARITY_BYTES:
        return _EMPTY_ROW
    return PyBytes_FromStringAndSize(
        <const char*> records.address() + records.v[row, slot] + ARITY_BYTES, size - ARITY_BYTES
    )


cdef object shared_array(Records records, Py_ssize_t row, Py_ssize_t slot, bint texts, list memo):
    """The array in a slot as a tuple, the same for equal bytes in the slot (`memo`); None for a null."""
    cdef bytes raw = records.raw(row, slot)
    cdef dict known
    if raw is None:
        return None
    known = memo[slot]  # the same bytes mean something else in arrays of another type
    found = known.get(raw)
    if found is None:
        found = known[raw] = records.items_at(row, slot, texts)
    return found


cdef object stats_of(Records records, Py_ssize_t row, Py_ssize_t first, list memo):
    """The statistics in three slots from `first` on."""
    counts = shared_array(records, row, first + 2, False, memo)
    if not counts and records.s[row, first] <= EMPTY_ROW_BYTES:
        return _EMPTY_STATS
    made = new(SimpleStats)
    put(_STATS_SLOTS, 0, made, row_of(records, row, first))
    put(_STATS_SLOTS, 1, made, row_of(records, row, first + 1))
    put(_STATS_SLOTS, 2, made, counts or _NOTHING)
    return made


cdef object file_of(Records records, Py_ssize_t row, list memo):
    made = new(DataFileMeta)
    put(_FILE_SLOTS, 0, made, records.text(row, FILE_NAME))
    put(_FILE_SLOTS, 1, made, records.v[row, FILE_SIZE])
    put(_FILE_SLOTS, 2, made, records.v[row, ROW_COUNT])
    put(_FILE_SLOTS, 3, made, row_of(records, row, MIN_KEY))
    put(_FILE_SLOTS, 4, made, row_of(records, row, MAX_KEY))
    put(_FILE_SLOTS, 5, made, stats_of(records, row, KEY_MIN, memo))
    put(_FILE_SLOTS, 6, made, stats_of(records, row, VALUE_MIN, memo))
    put(_FILE_SLOTS, 7, made, records.v[row, MIN_SEQUENCE])
    put(_FILE_SLOTS, 8, made, records.v[row, MAX_SEQUENCE])
    put(_FILE_SLOTS, 9, made, records.v[row, SCHEMA_ID])
    put(_FILE_SLOTS, 10, made, records.v[row, LEVEL])
    put(_FILE_SLOTS, 11, made, shared_array(records, row, EXTRA_FILES, True, memo) or _NOTHING)
    put(_FILE_SLOTS, 12, made, records.number(row, CREATION_TIME))
    put(_FILE_SLOTS, 13, made, records.number(row, DELETE_ROW_COUNT))
    put(_FILE_SLOTS, 14, made, records.raw(row, EMBEDDED_INDEX))
    source = records.number(row, FILE_SOURCE)
    put(_FILE_SLOTS, 15, made, None if source is None else _SOURCES[source])
    put(_FILE_SLOTS, 16, made, shared_array(records, row, VALUE_STATS_COLS, True, memo))
    put(_FILE_SLOTS, 17, made, records.text(row, EXTERNAL_PATH))
    put(_FILE_SLOTS, 18, made, records.number(row, FIRST_ROW_ID))
    put(_FILE_SLOTS, 19, made, shared_array(records, row, WRITE_COLS, True, memo))
    put(_FILE_SLOTS, 20, made, shared_array(records, row, WRITE_COLS_SEQUENCES, False, memo))
    return made


cdef int check_slots(Records records) except -1:
    if records.v.shape[1] != SLOTS:
        raise ValueError("these records are not those of a manifest")
    return 0


def build_entries(Records records not None, rows):
    """The `ManifestEntry` of each of `rows` (int64). Raises `CorruptData`, `UnicodeDecodeError`."""
    check_slots(records)
    records._check(rows, KIND)
    cdef const int64_t[::1] wanted = rows
    cdef Py_ssize_t i, row
    cdef list memo = [{} for _ in range(SLOTS)]
    cdef dict partitions = {}
    cdef list result = []
    for i in range(wanted.shape[0]):
        row = wanted[i]
        if not 0 <= records.v[row, KIND] < len(_KINDS):
            raise CorruptData(f"a manifest entry has the kind {records.v[row, KIND]}")
        if records.s[row, FILE_SOURCE] >= 0 and not 0 <= records.v[row, FILE_SOURCE] < len(_SOURCES):
            raise CorruptData(f"a data file has the source {records.v[row, FILE_SOURCE]}")
        partition = row_of(records, row, PARTITION)
        made = new(ManifestEntry)
        put(_ENTRY_SLOTS, 0, made, _KINDS[records.v[row, KIND]])
        put(_ENTRY_SLOTS, 1, made, partitions.setdefault(partition, partition))
        put(_ENTRY_SLOTS, 2, made, records.v[row, BUCKET])
        put(_ENTRY_SLOTS, 3, made, records.v[row, TOTAL_BUCKETS])
        put(_ENTRY_SLOTS, 4, made, file_of(records, row, memo))
        result.append(made)
    return result


def partition_codes(Records records not None):
    """For each record the number of its partition (int32), and the partitions (BinaryRows) that the numbers mean."""
    check_slots(records)
    codes = np.empty(records.count, np.int32)
    cdef int32_t[::1] out = codes
    cdef dict known = {}
    cdef const uint8_t* base = records.address()
    cdef Py_ssize_t i
    cdef int32_t code = 0
    for i in range(records.count):
        if not (
            i and records.s[i, PARTITION] == records.s[i - 1, PARTITION]
            and memcmp(
                base + records.v[i, PARTITION], base + records.v[i - 1, PARTITION], records.s[i, PARTITION]
            ) == 0
        ):
            code = known.setdefault(row_of(records, i, PARTITION), len(known))
        out[i] = code
    return codes, list(known)


# ---- the net effect of entries --------------------------------------------------------------------------------------


cdef int put_sized(Buffer* out, const uint8_t* data, int32_t size) except -1:
    """A length (negative for a null), and the bytes."""
    reserve(out, 4 + (size if size > 0 else 0))
    memcpy(out.data + out.size, &size, 4)
    out.size += 4
    if size > 0:
        memcpy(out.data + out.size, data, size)
        out.size += size
    return 0


cdef int put_identity(Buffer* out, Records records, Py_ssize_t row) except -1:
    """Bytes that are equal for entries about the same file (`ManifestEntry.identity`)."""
    cdef const uint8_t* base = records.address()
    cdef int32_t numbers[2]
    cdef int32_t size = records.s[row, PARTITION]
    cdef bytes encoded
    numbers[0], numbers[1] = <int32_t> records.v[row, BUCKET], <int32_t> records.v[row, LEVEL]
    put_sized(out, <const uint8_t*> numbers, 8)
    if size > ARITY_BYTES:
        put_sized(out, base + records.v[row, PARTITION] + ARITY_BYTES, size - ARITY_BYTES)
    else:
        put_sized(out, <const uint8_t*> PyBytes_AS_STRING(_EMPTY_ROW), <int32_t> PyBytes_GET_SIZE(_EMPTY_ROW))
    for slot in (FILE_NAME, EMBEDDED_INDEX, EXTERNAL_PATH):
        put_sized(out, base + records.v[row, slot], records.s[row, slot])
    if records.s[row, EXTRA_FILES] > 1:  # else it is null, or an array without items
        for name in records.items_at(row, EXTRA_FILES, True) or ():
            encoded = name.encode()
            put_sized(out, <const uint8_t*> PyBytes_AS_STRING(encoded), <int32_t> len(encoded))
    return 0


def merge_rows(list parts not None, bint with_deletions=False):
    """The additions that are left of entries in order: for each part the rows of these, as int64.

    Parts are pairs (records, rows as int64). `with_deletions`: deletions without an addition before them are left, too.
    Raises `Conflict` if a file is added or deleted twice.
    """
    cdef Records records
    cdef const int64_t[::1] rows
    cdef uint8_t[::1] alive
    cdef Buffer buffer
    cdef dict known = {}
    cdef Py_ssize_t i, row, total = 0, before  # the place of an entry about the same file, and 1; negative: a deletion
    cdef bint is_addition
    cdef int64_t[::1] starts = np.cumsum([0, *(len(wanted) for _, wanted in parts)])
    flat = np.zeros(starts[len(parts)], np.uint8)
    alive = flat
    buffer.data, buffer.size, buffer.capacity = NULL, 0, 0
    try:
        for records, wanted in parts:
            check_slots(records)
            records._check(wanted, KIND)
            rows = wanted
            for i in range(rows.shape[0]):
                row = rows[i]
                buffer.size = 0
                put_identity(&buffer, records, row)
                identity = PyBytes_FromStringAndSize(<const char*> buffer.data, buffer.size)
                is_addition = records.v[row, KIND] == 0
                before = known.get(identity, 0)
                if before == 0:
                    known[identity] = total + 1 if is_addition else -total - 1
                    alive[total] = is_addition or with_deletions
                elif (before > 0) == is_addition:
                    done = "added" if is_addition else "deleted"
                    name = records.text(row, FILE_NAME)
                    raise Conflict(f"file {name} of bucket {records.v[row, BUCKET]} is {done} twice")
                else:
                    del known[identity]
                    alive[(before if before > 0 else -before) - 1] = 0
                total += 1
    finally:
        free(buffer.data)
    return [
        wanted[flat[starts[number] : starts[number + 1]].view(np.bool_)]
        for number, (_, wanted) in enumerate(parts)
    ]
