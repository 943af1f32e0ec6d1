# What a fold does with a row, for the kernels of this package. See _fold.pyx.
from libc.stdint cimport int64_t, uint8_t

cdef enum Op:
    OP_SKIP = 0
    OP_ADD = 1
    OP_ADD_OLDER = 2       # a row that belongs before those which were added
    OP_RETRACT = 3
    OP_SET = 4             # forget what was, take the value
    OP_CLEAR = 5           # forget what was, be null
    OP_SET_RETRACT = 6     # take the value, then retract it

cdef void check_groups(
    const int64_t[::1] rows, const int64_t[::1] starts, Py_ssize_t ops, Py_ssize_t height
) except *
