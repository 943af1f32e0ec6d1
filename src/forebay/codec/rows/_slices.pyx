"""`RowSlices`: rows that lie anywhere in memory, as (address, size) pairs, with the owners of that memory kept alive.

Kernels take rows in this form because the rows of one changelog batch come from two places: new values from the
request's buffer, old values from the key-value store. Only code of this package fills it, so that an address is
always inside memory that an owner holds.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from forebay.codec.arrow._arrow_c cimport ArrowArray
from forebay.codec.arrow._builders cimport get_bit

import numpy as np
import pyarrow as pa


cdef class RowSlices:
    """A list of byte strings without copying them. Indexing gives `bytes`, or None for a null."""

    def __cinit__(self):
        self.owners = []

    def __dealloc__(self):
        free(self.data)
        free(self.sizes)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t index):
        if index < 0 or index >= self.count:
            raise IndexError(index)
        if self.sizes[index] < 0:
            return None
        return PyBytes_FromStringAndSize(<const char*> self.data[index], self.sizes[index])

    @property
    def total_bytes(self):
        """Sum of the sizes of all rows."""
        cdef int64_t total = 0
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.sizes[i] > 0:
                total += self.sizes[i]
        return total

    def nulls(self):
        """Which rows are null, as a bool array."""
        out = np.empty(self.count, np.bool_)
        cdef uint8_t[::1] view = out.view(np.uint8)
        cdef Py_ssize_t i
        for i in range(self.count):
            view[i] = self.sizes[i] < 0
        return out

    cdef int reserve(self, Py_ssize_t extra) except -1:
        cdef Py_ssize_t capacity
        cdef void* grown
        if self.count + extra <= self.capacity:
            return 0
        capacity = max(self.count + extra, 2 * self.capacity)
        grown = realloc(self.data, capacity * sizeof(uint8_t*))
        if grown == NULL:
            raise MemoryError()
        self.data = <const uint8_t**> grown
        grown = realloc(self.sizes, capacity * sizeof(int32_t))
        if grown == NULL:
            raise MemoryError()
        self.sizes = <int32_t*> grown
        self.capacity = capacity
        return 0

    @staticmethod
    def from_values(list values, Py_ssize_t prefix=0):
        """The byte strings of `values` without their first `prefix` bytes; None stays null."""
        cdef RowSlices slices = RowSlices.__new__(RowSlices)
        cdef object value
        slices.reserve(len(values))
        slices.owners.append(values)
        for value in values:
            if value is None:
                slices.push(NULL, -1)
                continue
            if not isinstance(value, bytes) or len(value) < prefix:
                raise ValueError(f"a stored value must be bytes, at least {prefix} of them")
            slices.push(
                <const uint8_t*> PyBytes_AS_STRING(value) + prefix, <int32_t> (PyBytes_GET_SIZE(value) - prefix)
            )
        return slices

    @staticmethod
    def from_arrow(array):
        """The values of a pa.BinaryArray (32-bit offsets); nulls stay null."""
        cdef RowSlices slices = RowSlices.__new__(RowSlices)
        schema_capsule, array_capsule = array.__arrow_c_array__()
        cdef ArrowArray* c = <ArrowArray*> PyCapsule_GetPointer(array_capsule, "arrow_array")
        cdef const uint8_t* validity
        cdef const int32_t* offsets
        cdef const uint8_t* data
        cdef int64_t i
        if c.n_buffers != 3 or str(array.type) not in ("binary", "string"):
            raise ValueError(f"expected a binary array, got {array.type}")
        slices.owners.append(array_capsule)
        slices.reserve(c.length)
        validity = <const uint8_t*> c.buffers[0]
        offsets = <const int32_t*> c.buffers[1] + c.offset
        data = <const uint8_t*> c.buffers[2]
        for i in range(c.length):
            if validity != NULL and not get_bit(validity, c.offset + i):
                slices.push(NULL, -1)
            else:
                slices.push(data + offsets[i], offsets[i + 1] - offsets[i])
        return slices

    def take(self, positions):
        """The rows at `positions` (int64 array), sharing memory with these."""
        cdef RowSlices taken = RowSlices.__new__(RowSlices)
        cdef const int64_t[::1] view = positions
        cdef Py_ssize_t i
        taken.owners.append(self)
        taken.reserve(view.shape[0])
        for i in range(view.shape[0]):
            if view[i] < 0 or view[i] >= self.count:
                raise IndexError(view[i])
            taken.push(self.data[view[i]], self.sizes[view[i]])
        return taken

    def to_arrow(self):
        """The rows copied into a pa.BinaryArray; nulls stay null. Raises `MemoryError` above 2 GiB."""
        cdef int64_t total = self.total_bytes
        cdef Py_ssize_t i
        cdef Py_ssize_t nulls = 0
        cdef int64_t position = 0
        if total > 0x7FFFFFFF:
            raise MemoryError("rows above 2 GiB do not fit into one Arrow array")
        offsets = np.empty(self.count + 1, np.int32)
        data = np.empty(total, np.uint8)
        cdef int32_t[::1] offsets_view = offsets
        cdef uint8_t[::1] data_view = data
        offsets_view[0] = 0
        for i in range(self.count):
            if self.sizes[i] > 0:
                memcpy(&data_view[position], self.data[i], self.sizes[i])
                position += self.sizes[i]
            nulls += self.sizes[i] < 0
            offsets_view[i + 1] = <int32_t> position
        validity = None if nulls == 0 else pa.array(~self.nulls()).buffers()[1]
        return pa.Array.from_buffers(
            pa.binary(), self.count, [validity, pa.py_buffer(offsets), pa.py_buffer(data)], nulls
        )
