"""Decoding Avro records straight into columns of numbers and positions; `avro_columns` compiles the programs.

A program is a tree of nodes made from the schema that a file was written with. Some nodes have a slot: their value is
kept, everything else is passed over. Of each record and slot two numbers are kept, in the arrays `values` and `sizes`:

* a number or boolean: the number, and 1
* bytes or text: where they begin in the body, and their length
* an array: where it begins in the body, and the length of its encoding
* null, or a field that the writer did not know: 0 and -1

Nothing is copied out of the body until it is requested. Every byte is checked to lie within its block before it is read.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

import numpy as np
import pyarrow as pa

from forebay.base.errors import CorruptData

cdef enum:
    NULL_KIND = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    BYTES = 4
    FIXED = 5
    ENUM = 6
    ARRAY = 7
    MAP = 8
    UNION = 9
    RECORD = 10

KINDS = {
    "null": NULL_KIND,
    "boolean": BOOLEAN,
    "int": INT,
    "long": LONG,
    "bytes": BYTES,
    "string": BYTES,
    "fixed": FIXED,
    "enum": ENUM,
    "array": ARRAY,
    "map": MAP,
    "union": UNION,
    "record": RECORD,
}

cdef enum:
    DEPTH_MAX = 64

cdef enum Failure:
    OK = 0
    TRUNCATED = 1
    TOO_LONG = 2
    BAD_LENGTH = 3
    BAD_BRANCH = 4
    TOO_DEEP = 5
    OUT_OF_RANGE = 6

_FAILURES = {
    TRUNCATED: "it ends in the middle of a value",
    TOO_LONG: "a number is longer than 64 bits",
    BAD_LENGTH: "a length is negative or reaches beyond its block",
    BAD_BRANCH: "a union or enum has no such branch",
    TOO_DEEP: "it is nested too deeply",
    OUT_OF_RANGE: "an int is outside of 32 bits, or a boolean neither 0 nor 1",
}


cdef class Program:
    """A compiled schema. `nodes` are tuples (kind, children, size, slot, empty), node `root` is the record.

    `size` is that of a fixed, or the number of an enum's symbols; an `empty` node takes no bytes. `required` are slots
    that must not be null; `items` gives, for slots of arrays, the node of the items.
    """

    def __cinit__(self, list nodes, int32_t root, Py_ssize_t slots, required, dict items):
        cdef Py_ssize_t total = sum(len(node[1]) for node in nodes)
        cdef Py_ssize_t at = 0, i
        self.node_count = len(nodes)
        self.nodes = <Node*> calloc(max(1, len(nodes)), sizeof(Node))
        self.children = <int32_t*> calloc(max(1, total), sizeof(int32_t))
        if self.nodes == NULL or self.children == NULL:
            raise MemoryError
        if not 0 <= root < self.node_count:
            raise ValueError("the root is not a node")
        for i, (kind, children, size, slot, empty) in enumerate(nodes):
            if not -1 <= slot < max(slots, 1):
                raise ValueError(f"there is no slot {slot}")
            if kind in (ARRAY, MAP) and len(children) != 1:
                raise ValueError("an array or map has one kind of items")
            self.nodes[i].kind = kind
            self.nodes[i].first = <int32_t> at
            self.nodes[i].count = <int32_t> len(children)
            self.nodes[i].size = size
            self.nodes[i].slot = slot
            self.nodes[i].empty = empty
            for child in children:
                if not 0 <= child < self.node_count:
                    raise ValueError(f"there is no node {child}")
                self.children[at] = child
                at += 1
        self.root, self.slots = root, slots
        self.required = tuple(required)
        self.items = items

    def __dealloc__(self):
        free(self.nodes)
        free(self.children)


cdef int read_long(Cursor* c, int64_t* out) noexcept nogil:
    """A zigzag varint."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        if c.at >= c.end:
            return TRUNCATED
        byte = c.base[c.at]
        c.at += 1
        if shift == 63 and byte > 1:
            return TOO_LONG
        value |= (<uint64_t> (byte & 0x7F)) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            return TOO_LONG
    out[0] = <int64_t> (value >> 1) ^ -<int64_t> (value & 1)
    return OK


cdef int read_count(Cursor* c, int64_t* out) noexcept nogil:
    """The number of items in the next block of an array or map; 0 at its end."""
    cdef int failure
    cdef int64_t size
    failure = read_long(c, out)
    if failure:
        return failure
    if out[0] < 0:
        if out[0] < -(<int64_t> 1 << 62):
            return BAD_LENGTH
        out[0] = -out[0]
        failure = read_long(c, &size)
        if failure:
            return failure
        if size < 0 or size > c.end - c.at:
            return BAD_LENGTH
    return OK


cdef int read_bytes(Cursor* c, int64_t* start, int64_t* size) noexcept nogil:
    cdef int failure = read_long(c, size)
    if failure:
        return failure
    if size[0] < 0 or size[0] > c.end - c.at:
        return BAD_LENGTH
    start[0] = c.at
    c.at += size[0]
    return OK


cdef int walk(
    Program program, int32_t index, Cursor* c, int64_t* values, int32_t* sizes, int depth
) noexcept nogil:
    """Read one value of node `index`; keep what has a slot, unless `values` is NULL."""
    cdef const Node* node = &program.nodes[index]
    cdef int64_t number = 0, start = 0, size = 0, count, i
    cdef int32_t item
    cdef int failure
    if depth > DEPTH_MAX:
        return TOO_DEEP
    if node.kind == RECORD:
        for i in range(node.count):
            failure = walk(program, program.children[node.first + i], c, values, sizes, depth + 1)
            if failure:
                return failure
        return OK
    if node.kind == UNION:
        failure = read_long(c, &number)
        if failure:
            return failure
        if number < 0 or number >= node.count:
            return BAD_BRANCH
        return walk(program, program.children[node.first + number], c, values, sizes, depth + 1)
    if node.kind == NULL_KIND:
        return OK  # a slot is null until something is put there
    if node.kind == INT or node.kind == LONG:
        failure = read_long(c, &start)
        if failure:
            return failure
        if node.kind == INT and (start > 0x7FFFFFFF or start < -<int64_t> 0x80000000):
            return OUT_OF_RANGE
        size = 1
    elif node.kind == BYTES:
        failure = read_bytes(c, &start, &size)
        if failure:
            return failure
    elif node.kind == BOOLEAN:
        if c.at >= c.end:
            return TRUNCATED
        start = c.base[c.at]
        if start > 1:
            return OUT_OF_RANGE
        c.at += 1
        size = 1
    elif node.kind == FIXED:
        if node.size > c.end - c.at:
            return TRUNCATED
        start, size = c.at, node.size
        c.at += node.size
    elif node.kind == ENUM:
        failure = read_long(c, &start)
        if failure:
            return failure
        if start < 0 or start >= node.size:
            return BAD_BRANCH
        size = 1
    else:  # arrays and maps
        item = program.children[node.first]
        start = c.at
        while True:
            failure = read_count(c, &count)
            if failure:
                return failure
            if count == 0:
                break
            if node.kind == ARRAY and program.nodes[item].empty:
                continue  # however many there are, they take no bytes
            for i in range(count):
                if node.kind == MAP:
                    failure = read_bytes(c, &number, &size)
                    if failure:
                        return failure
                failure = walk(program, item, c, NULL, NULL, depth + 1)
                if failure:
                    return failure
        size = c.at - start
    if values != NULL and node.slot >= 0:
        values[node.slot] = start
        sizes[node.slot] = <int32_t> size
    return OK


def decode(Program program not None, bytes body not None, list blocks not None):
    """The records in `blocks`, tuples (number of records, begin in `body`, end), as `Records`. Raises `CorruptData`."""
    cdef Py_ssize_t count = 0, row = 0, i, slots = program.slots
    cdef int64_t records, start, end
    cdef int failure = OK
    cdef Cursor c
    cdef const uint8_t* base = <const uint8_t*> PyBytes_AS_STRING(body)
    if len(body) >= 0x7FFFFFFF:
        raise CorruptData("an Avro file is too large: its records have more than 2 GiB")
    for records, start, end in blocks:
        if not (0 <= start <= end <= len(body) and 0 <= records <= end - start):
            raise CorruptData(f"an Avro block of {end - start} bytes cannot hold {records} records")
        count += records
    values = np.zeros((count, slots), np.int64)
    sizes = np.full((count, slots), -1, np.int32)
    cdef int64_t[:, ::1] v = values
    cdef int32_t[:, ::1] s = sizes
    for records, start, end in blocks:
        if records == 0:
            if start != end:
                raise CorruptData("an Avro block has bytes behind its records")
            continue
        c.base, c.at, c.end = base, start, end
        with nogil:
            for i in range(records):
                failure = walk(program, program.root, &c, &v[row, 0], &s[row, 0], 0)
                if failure:
                    break
                row += 1
        if failure:
            raise CorruptData(f"Avro record {row} is malformed: {_FAILURES[failure]}")
        if c.at != end:
            raise CorruptData("an Avro block has bytes behind its records")
    for slot in program.required:
        if count and sizes[:, slot].min() < 0:
            raise CorruptData(f"a field of an Avro record is null that must not be (field {slot})")
    return Records(program, body, values, sizes)


cdef class Records:
    """Decoded records: see the module's docstring. Made by `decode`; the arrays must not be changed."""

    def __cinit__(self, Program program not None, bytes body not None, values not None, sizes not None):
        self.program, self.body, self.values, self.sizes = program, body, values, sizes
        self.v, self.s = values, sizes
        if self.v.shape[0] != self.s.shape[0] or self.v.shape[1] != self.s.shape[1]:
            raise ValueError("values and sizes have different shapes")
        if self.v.shape[1] != program.slots:
            raise ValueError("there is not one column for each slot")
        self.count = self.v.shape[0]
        values.flags.writeable = False
        sizes.flags.writeable = False

    @property
    def nbytes(self):
        """Bytes of memory that the records take."""
        return len(self.body) + self.values.nbytes + self.sizes.nbytes

    cdef const uint8_t* address(self):
        return <const uint8_t*> PyBytes_AS_STRING(self.body)

    cdef bytes raw(self, Py_ssize_t row, Py_ssize_t slot):
        """The bytes in a slot; None for a null."""
        if self.s[row, slot] < 0:
            return None
        return PyBytes_FromStringAndSize(<const char*> self.address() + self.v[row, slot], self.s[row, slot])

    cdef object text(self, Py_ssize_t row, Py_ssize_t slot):
        if self.s[row, slot] < 0:
            return None
        return PyUnicode_DecodeUTF8(<const char*> self.address() + self.v[row, slot], self.s[row, slot], NULL)

    cdef object number(self, Py_ssize_t row, Py_ssize_t slot):
        return None if self.s[row, slot] < 0 else self.v[row, slot]

    cdef object items_at(self, Py_ssize_t row, Py_ssize_t slot, bint texts):
        """The array in a slot as a tuple; None for a null."""
        cdef Cursor c
        cdef int64_t count, value, i
        cdef int32_t size, item
        cdef int failure
        if self.s[row, slot] < 0:
            return None
        found = []
        item = self.program.items[slot]
        c.base, c.at = self.address(), self.v[row, slot]
        c.end = c.at + self.s[row, slot]
        while True:
            failure = read_count(&c, &count)
            if failure or count == 0:
                break
            if self.program.nodes[item].empty and count > self.s[row, slot]:
                raise CorruptData("an array of nulls is longer than its file")
            for i in range(count):
                value, size = 0, -1
                failure = walk(self.program, item, &c, &value, &size, 1)
                if failure:
                    break
                if size < 0:
                    found.append(None)
                elif texts:
                    found.append(PyUnicode_DecodeUTF8(<const char*> c.base + value, size, NULL))
                else:
                    found.append(value)
        if failure:
            raise CorruptData(f"an array of Avro record {row} is malformed: {_FAILURES[failure]}")
        return tuple(found)

    def _check(self, rows, Py_ssize_t slot):
        if not 0 <= slot < self.program.slots:
            raise IndexError(slot)
        if len(rows) and not (0 <= rows.min() and rows.max() < self.count):
            raise IndexError("there are no such records")

    def bytes_at(self, Py_ssize_t row, Py_ssize_t slot):
        """The bytes in a slot; None for a null."""
        self._check(np.array([row]), slot)
        return self.raw(row, slot)

    def text_at(self, Py_ssize_t row, Py_ssize_t slot):
        """The text in a slot; None for a null. Raises `UnicodeDecodeError`."""
        self._check(np.array([row]), slot)
        return self.text(row, slot)

    def number_at(self, Py_ssize_t row, Py_ssize_t slot):
        """The number in a slot; None for a null."""
        self._check(np.array([row]), slot)
        return self.number(row, slot)

    def array_at(self, Py_ssize_t row, Py_ssize_t slot, bint texts=False):
        """The array of numbers, or of `texts`, in a slot as a tuple; None for a null."""
        self._check(np.array([row]), slot)
        if self.s[row, slot] < 0:
            return None
        if slot not in self.program.items:
            raise IndexError(f"slot {slot} is no array")
        return self.items_at(row, slot, texts)

    def binary(self, rows, Py_ssize_t slot, Py_ssize_t skip=0, bytes instead not None=b""):
        """The bytes of `rows` (int64) in a slot as an Arrow array, each without its first `skip` bytes.

        Where nothing is left, and for nulls, `instead` is put.
        """
        self._check(rows, slot)
        cdef const int64_t[::1] wanted = rows
        cdef Py_ssize_t i, total = 0, size, length = len(instead)
        offsets = np.empty(len(rows) + 1, np.int32)
        cdef int32_t[::1] ends = offsets
        ends[0] = 0
        for i in range(wanted.shape[0]):
            size = self.s[wanted[i], slot] - skip
            total += size if size > 0 else length
            if total > 0x7FFFFFFF:
                raise CorruptData("the rows in a manifest have more than 2 GiB")
            ends[i + 1] = <int32_t> total
        data = np.empty(total, np.uint8)
        cdef uint8_t[::1] out = data
        cdef const uint8_t* base = self.address()
        cdef const uint8_t* source
        cdef const uint8_t* other = <const uint8_t*> PyBytes_AS_STRING(instead)
        cdef Py_ssize_t j, at
        for i in range(wanted.shape[0]):
            at, size = ends[i], ends[i + 1] - ends[i]
            source = base + self.v[wanted[i], slot] + skip if self.s[wanted[i], slot] > skip else other
            for j in range(size):
                out[at + j] = source[j]
        return pa.BinaryArray.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)])

    def item(self, rows, Py_ssize_t slot, Py_ssize_t index, int64_t instead):
        """Number `index` of the arrays of `rows` in a slot, as int64; `instead` where there is none, or null."""
        self._check(rows, slot)
        cdef const int64_t[::1] wanted = rows
        cdef Cursor c
        cdef int64_t count, value, i, seen
        cdef int32_t size, item
        cdef Py_ssize_t k
        cdef int failure = OK
        out = np.full(len(rows), instead, np.int64)
        if slot not in self.program.items:  # the writer did not know the field
            return out
        item = self.program.items[slot]
        cdef int64_t[::1] result = out
        for k in range(wanted.shape[0]):
            if self.s[wanted[k], slot] < 0:
                continue
            c.base, c.at = self.address(), self.v[wanted[k], slot]
            c.end = c.at + self.s[wanted[k], slot]
            seen = 0
            while seen <= index:
                failure = read_count(&c, &count)
                if failure or count == 0:
                    break
                for i in range(min(count, index + 1 - seen)):
                    value, size = instead, -1
                    failure = walk(self.program, item, &c, &value, &size, 1)
                    if failure:
                        break
                    if seen + i == index and size >= 0:
                        result[k] = value
                seen += count
            if failure:
                raise CorruptData(f"an array of an Avro record is malformed: {_FAILURES[failure]}")
        return out
