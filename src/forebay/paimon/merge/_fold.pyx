"""Folds of the rows of each key into one value, column by column (see merge.engines).

A fold gets `rows` (positions in the columns, all rows of a key together and in their order), `starts` (where in `rows`
a key begins, and the end) and `ops`, which says for each element of `rows` what to do with it.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

import numpy as np

from forebay.paimon.merge._fold cimport (
    OP_ADD, OP_ADD_OLDER, OP_CLEAR, OP_RETRACT, OP_SET, OP_SET_RETRACT, OP_SKIP,
)
from forebay.paimon.merge._order cimport Keys, SortKey, compare

cdef extern from *:
    """
    typedef __int128 forebay_int128;
    static inline int forebay_add_overflow(int64_t a, int64_t b, int64_t* out) {
        return __builtin_add_overflow(a, b, out);
    }
    static inline int forebay_sub_overflow(int64_t a, int64_t b, int64_t* out) {
        return __builtin_sub_overflow(a, b, out);
    }
    static inline int forebay_mul_overflow(int64_t a, int64_t b, int64_t* out) {
        return __builtin_mul_overflow(a, b, out);
    }
    static inline int forebay_wide_overflow(forebay_int128 a, forebay_int128 b, int subtract, forebay_int128* out) {
        return subtract ? __builtin_sub_overflow(a, b, out) : __builtin_add_overflow(a, b, out);
    }
    """
    ctypedef long long wide "forebay_int128"
    bint forebay_add_overflow(int64_t, int64_t, int64_t*) noexcept nogil
    bint forebay_sub_overflow(int64_t, int64_t, int64_t*) noexcept nogil
    bint forebay_mul_overflow(int64_t, int64_t, int64_t*) noexcept nogil
    bint forebay_wide_overflow(wide, wide, int, wide*) noexcept nogil

cdef enum Pick:
    PICK_LAST = 0
    PICK_LAST_NON_NULL = 1
    PICK_FIRST = 2
    PICK_FIRST_NON_NULL = 3
    PICK_MAX = 4
    PICK_MIN = 5
    PICK_KEY = 6
    PICK_LATEST = 7            # the greatest; of equals the last

cdef void check_groups(const int64_t[::1] rows, const int64_t[::1] starts, Py_ssize_t ops, Py_ssize_t height) except *:
    cdef Py_ssize_t i
    cdef Py_ssize_t groups = starts.shape[0] - 1
    if rows.shape[0] != ops or groups < 0 or starts[0] != 0 or starts[groups] != rows.shape[0]:
        raise ValueError("groups do not cover the rows")
    for i in range(groups):
        if starts[i] > starts[i + 1]:
            raise ValueError("the starts of groups must not fall")
    for i in range(rows.shape[0]):
        if not 0 <= rows[i] < height:
            raise IndexError(f"row {rows[i]} of {height}")


# ---- folds that choose one of the rows ------------------------------------------------------------------------------


cdef struct Picker:
    int function
    const uint8_t* valid        # NULL: all
    Keys keys                   # for max and min
    bint initialised


cdef inline bint has(const Picker* p, int64_t row) noexcept nogil:
    return row >= 0 and (p.valid == NULL or p.valid[row])


cdef int64_t pick(Picker* p, int64_t accumulator, int64_t value) noexcept nogil:
    """The row that stands for both; either may be -1, null. `value` comes later than `accumulator`."""
    cdef int result
    if p.function == PICK_LAST or p.function == PICK_KEY:
        return value
    if p.function == PICK_LAST_NON_NULL:
        return value if has(p, value) else accumulator
    if p.function == PICK_FIRST:
        if p.initialised:
            return accumulator
        p.initialised = True
        return value
    if p.function == PICK_FIRST_NON_NULL:
        if p.initialised or not has(p, value):
            return accumulator
        p.initialised = True
        return value
    if not has(p, accumulator) or not has(p, value):
        return value if not has(p, accumulator) else accumulator
    result = compare(&p.keys, accumulator, value)
    if p.function == PICK_LATEST:
        return value if result <= 0 else accumulator
    if p.function == PICK_MAX:
        return value if result < 0 else accumulator
    return accumulator if result < 0 else value


cdef inline int64_t unpick(Picker* p, int64_t accumulator, int64_t value) noexcept nogil:
    if p.function == PICK_KEY:
        return value
    if p.function == PICK_LAST_NON_NULL and not has(p, value):
        return accumulator
    return -1


def fold_pick(
    int function, const int64_t[::1] rows, const int64_t[::1] starts, const uint8_t[::1] ops,
    Py_ssize_t height, valid, SortKey keys,
):
    """The row whose value each key gets, or -1 for null. `valid` is None where the column has no null."""
    cdef const uint8_t[::1] valid_view
    cdef Py_ssize_t groups = starts.shape[0] - 1
    cdef Py_ssize_t g, i
    cdef int64_t accumulator
    cdef Picker p
    check_groups(rows, starts, ops.shape[0], height)
    p.function = function
    p.valid = NULL
    p.keys.prefix = NULL
    p.keys.offsets = NULL
    p.keys.data = NULL
    if valid is not None and height > 0:
        valid_view = valid
        if valid_view.shape[0] != height:
            raise ValueError("the validity has another length than the column")
        p.valid = &valid_view[0]
    if function == PICK_MAX or function == PICK_MIN or function == PICK_LATEST:
        if keys is None or keys.count != height:
            raise ValueError("extremes need comparable keys for all rows")
        p.keys = keys.raw
    result = np.empty(groups, np.int64)
    cdef int64_t[::1] out = result
    with nogil:
        for g in range(groups):
            accumulator = -1
            p.initialised = False
            for i in range(starts[g], starts[g + 1]):
                if ops[i] == OP_ADD:
                    accumulator = pick(&p, accumulator, rows[i])
                elif ops[i] == OP_ADD_OLDER:
                    accumulator = pick(&p, rows[i], accumulator)
                elif ops[i] == OP_RETRACT:
                    accumulator = unpick(&p, accumulator, rows[i])
                elif ops[i] == OP_SET:
                    accumulator = rows[i]
                elif ops[i] == OP_SET_RETRACT:
                    accumulator = unpick(&p, rows[i], rows[i])
                elif ops[i] == OP_CLEAR:
                    accumulator = -1
            out[g] = accumulator if has(&p, accumulator) else -1
    return result


# ---- sums and products ----------------------------------------------------------------------------------------------


cdef inline int integer_step(
    bint product, bint retract, int64_t accumulator, int64_t value, int64_t* out
) noexcept nogil:
    """0, or 1 for an overflow, or 2 for a division by zero."""
    if not product:
        if retract:
            return forebay_sub_overflow(accumulator, value, out)
        return forebay_add_overflow(accumulator, value, out)
    if not retract:
        return forebay_mul_overflow(accumulator, value, out)
    if value == 0:
        return 2
    if value == -1:
        return forebay_sub_overflow(0, accumulator, out)
    out[0] = accumulator // value
    return 0


def fold_integers(
    bint product, const int64_t[::1] values, valid, int64_t least, int64_t greatest, int on_overflow,
    const int64_t[::1] rows, const int64_t[::1] starts, const uint8_t[::1] ops,
):
    """Sums or products as (values, which are not null), each step of which must lie in `least` to `greatest`.

    `on_overflow`: 0 raises OverflowError; 1 goes on from null; 2 goes on with the lowest bits, as Java's numbers do.
    ZeroDivisionError where a product retracts 0. Both errors have the number of the key as their second argument.
    """
    cdef const uint8_t[::1] valid_view
    cdef const uint8_t* bits = NULL
    cdef Py_ssize_t groups = starts.shape[0] - 1
    cdef Py_ssize_t g, i
    cdef int64_t accumulator, value, row
    cdef int failure = 0
    cdef int unused = 0             # the bits of 64 that the type does not have
    cdef bint present, given
    cdef uint8_t op
    while unused < 63 and (<int64_t> 0x7FFFFFFFFFFFFFFF >> (unused + 1)) >= greatest:
        unused += 1
    check_groups(rows, starts, ops.shape[0], values.shape[0])
    if valid is not None and values.shape[0] > 0:
        valid_view = valid
        if valid_view.shape[0] != values.shape[0]:
            raise ValueError("the validity has another length than the column")
        bits = &valid_view[0]
    sums = np.zeros(groups, np.int64)
    some = np.zeros(groups, np.uint8)
    cdef int64_t[::1] out = sums
    cdef uint8_t[::1] out_present = some
    with nogil:
        for g in range(groups):
            accumulator = 0
            present = False
            for i in range(starts[g], starts[g + 1]):
                op = ops[i]
                row = rows[i]
                given = bits == NULL or bits[row]
                if op == OP_SKIP:
                    continue
                if op == OP_CLEAR or op == OP_SET or op == OP_SET_RETRACT:
                    present = given and op != OP_CLEAR
                    accumulator = values[row] if present else 0
                    if op != OP_SET_RETRACT:
                        continue
                if not given:
                    continue
                value = values[row]
                if op == OP_ADD or op == OP_ADD_OLDER:
                    if not present:
                        accumulator = value
                        present = True
                        continue
                    failure = integer_step(product, False, accumulator, value, &accumulator)
                elif present:
                    failure = integer_step(product, True, accumulator, value, &accumulator)
                elif not product:
                    failure = forebay_sub_overflow(0, value, &accumulator)
                    present = True
                if present and failure == 0 and (accumulator < least or accumulator > greatest):
                    failure = 1
                if failure:
                    if failure == 2 or on_overflow == 0:
                        break
                    if on_overflow == 1:
                        present = False
                        accumulator = 0
                    else:
                        accumulator = (<int64_t> (<uint64_t> accumulator << unused)) >> unused
                    failure = 0
            if failure:
                break
            out[g] = accumulator
            out_present[g] = present
    if failure == 2:
        raise ZeroDivisionError("a product cannot retract zero", g)
    if failure:
        raise OverflowError("the result does not fit", g)
    return sums, some


def fold_wide(
    const uint64_t[::1] low, const int64_t[::1] high, valid, int digits,
    const int64_t[::1] rows, const int64_t[::1] starts, const uint8_t[::1] ops,
):
    """Sums of 128-bit numbers as (words, which are not null); one of more than `digits` digits becomes null."""
    cdef const uint8_t[::1] valid_view
    cdef const uint8_t* bits = NULL
    cdef Py_ssize_t groups = starts.shape[0] - 1
    cdef Py_ssize_t g, i
    cdef wide accumulator, value
    cdef wide limit = 1
    cdef int64_t row
    cdef bint present, overflow
    cdef uint8_t op
    check_groups(rows, starts, ops.shape[0], low.shape[0])
    if high.shape[0] != low.shape[0]:
        raise ValueError("the halves of decimals differ in length")
    if not 1 <= digits <= 38:
        raise ValueError(f"decimals have 1 to 38 digits, not {digits}")
    if valid is not None and low.shape[0] > 0:
        valid_view = valid
        if valid_view.shape[0] != low.shape[0]:
            raise ValueError("the validity has another length than the column")
        bits = &valid_view[0]
    words = np.zeros(2 * groups, np.uint64)
    some = np.zeros(groups, np.uint8)
    cdef uint64_t[::1] out = words
    cdef uint8_t[::1] out_present = some
    with nogil:
        for i in range(digits):
            limit = limit * 10
        for g in range(groups):
            accumulator = 0
            present = False
            for i in range(starts[g], starts[g + 1]):
                op = ops[i]
                row = rows[i]
                if op == OP_SKIP:
                    continue
                if op == OP_CLEAR or (bits != NULL and not bits[row]):
                    if op != OP_ADD and op != OP_ADD_OLDER and op != OP_RETRACT:
                        present = False
                        accumulator = 0
                    continue
                value = ((<wide> high[row]) << 64) | <wide> low[row]
                if op == OP_SET or op == OP_SET_RETRACT:
                    accumulator = value
                    present = True
                    if op == OP_SET:
                        continue
                overflow = forebay_wide_overflow(
                    accumulator, value, op == OP_RETRACT or op == OP_SET_RETRACT, &accumulator
                )
                present = not overflow and -limit < accumulator < limit
                if not present:
                    accumulator = 0
            out[2 * g] = <uint64_t> accumulator
            out[2 * g + 1] = <uint64_t> (accumulator >> 64)
            out_present[g] = present
    return words, some


cdef inline double rounded(double value, bint single) noexcept nogil:
    return <double> <float> value if single else value


def fold_floats(
    bint product, bint single, const double[::1] values, valid,
    const int64_t[::1] rows, const int64_t[::1] starts, const uint8_t[::1] ops,
):
    """Sums or products of floating-point numbers as (values, which are not null), rounded to float if `single`."""
    cdef const uint8_t[::1] valid_view
    cdef const uint8_t* bits = NULL
    cdef Py_ssize_t groups = starts.shape[0] - 1
    cdef Py_ssize_t g, i
    cdef double accumulator, value
    cdef int64_t row
    cdef bint present, given
    cdef uint8_t op
    check_groups(rows, starts, ops.shape[0], values.shape[0])
    if valid is not None and values.shape[0] > 0:
        valid_view = valid
        if valid_view.shape[0] != values.shape[0]:
            raise ValueError("the validity has another length than the column")
        bits = &valid_view[0]
    sums = np.zeros(groups, np.float64)
    some = np.zeros(groups, np.uint8)
    cdef double[::1] out = sums
    cdef uint8_t[::1] out_present = some
    with nogil:
        for g in range(groups):
            accumulator = 0
            present = False
            for i in range(starts[g], starts[g + 1]):
                op = ops[i]
                row = rows[i]
                given = bits == NULL or bits[row]
                if op == OP_SKIP:
                    continue
                if op == OP_CLEAR or op == OP_SET or op == OP_SET_RETRACT:
                    present = given and op != OP_CLEAR
                    accumulator = values[row] if present else 0
                    if op != OP_SET_RETRACT:
                        continue
                if not given:
                    continue
                value = values[row]
                if op == OP_ADD or op == OP_ADD_OLDER:
                    if not present:
                        accumulator = value
                    elif product:
                        accumulator = rounded(accumulator * value, single)
                    else:
                        accumulator = rounded(accumulator + value, single)
                    present = True
                elif present and product:
                    accumulator = rounded(accumulator / value, single)
                elif present:
                    accumulator = rounded(accumulator - value, single)
                elif not product:
                    accumulator = -value
                    present = True
            out[g] = accumulator
            out_present[g] = present
    return sums, some
