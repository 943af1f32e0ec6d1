"""What the rows of a partial update do to the columns: the sequence groups decide (see merge.engines)."""

from libc.stdint cimport int8_t, int64_t, uint8_t

import numpy as np

from forebay.paimon.merge._fold cimport OP_ADD, OP_SET, check_groups
from forebay.paimon.merge._order cimport Keys, SortKey, compare

cdef enum Event:
    EVENT_SKIP = 0
    EVENT_ADD = 1
    EVENT_ADD_OLDER = 2
    EVENT_RETRACT = 3
    EVENT_RETRACT_OLDER = 4
    EVENT_SET = 5
    EVENT_SET_RETRACT = 6


cdef class SequenceGroup:
    """The sequence fields of one group as keys, where all of them are null, and whether a delete removes the row."""

    cdef SortKey keys
    cdef const uint8_t[::1] empty
    cdef bint removes

    def __init__(self, SortKey keys, empty, bint removes):
        self.keys = keys
        self.empty = empty
        self.removes = removes
        if self.empty.shape[0] != keys.count:
            raise ValueError("a sequence group's columns differ in length")


cdef struct GroupState:
    Keys keys
    const uint8_t* empty
    bint removes
    int64_t current            # the row whose sequence counts, or -1
    uint8_t* events


cdef inline bint accepts(const GroupState* s, int64_t row) noexcept nogil:
    return s.current < 0 or compare(&s.keys, row, s.current) >= 0


cdef void add_row(GroupState* states, int count, int64_t row, Py_ssize_t i) noexcept nogil:
    cdef int k
    for k in range(count):
        if states[k].empty[row]:
            continue
        if accepts(&states[k], row):
            states[k].current = row
            states[k].events[i] = EVENT_ADD
        else:
            states[k].events[i] = EVENT_ADD_OLDER


cdef void set_row(GroupState* states, int count, int64_t row, Py_ssize_t i) noexcept nogil:
    cdef int k
    for k in range(count):
        states[k].current = row
        states[k].events[i] = EVENT_SET


cdef bint retract_row(GroupState* states, int count, int64_t row, bint delete, Py_ssize_t i) noexcept nogil:
    """Whether the row removes the record."""
    cdef int k
    for k in range(count):
        if delete and states[k].removes and not states[k].empty[row] and accepts(&states[k], row):
            set_row(states, count, row, i)
            return True
    for k in range(count):
        if states[k].empty[row]:
            continue
        if accepts(&states[k], row):
            states[k].current = row
            states[k].events[i] = EVENT_SET_RETRACT if states[k].events[i] == EVENT_SET else EVENT_RETRACT
        else:
            states[k].events[i] = EVENT_RETRACT_OLDER
    return False


def partial_update_events(
    list groups, const int8_t[::1] kinds, bint ignore_delete, bint remove_on_delete,
    const int64_t[::1] rows, const int64_t[::1] starts,
):
    """What each row does: (events per sequence group, ops of the other columns, latest row, is deleted).

    `latest` is the row that gives a key its sequence number, or -1. Raises ValueError where there is a retraction that
    the table's options say nothing about.
    """
    cdef GroupState states[64]
    cdef SequenceGroup group
    cdef int count = len(groups)
    cdef int k
    cdef Py_ssize_t keys = starts.shape[0] - 1
    cdef Py_ssize_t g, i
    cdef int64_t row
    cdef bint filled, inserted, removed
    cdef bint refused = False
    cdef uint8_t[::1] view
    if count > 64:
        raise ValueError(f"there may be 64 sequence groups, not {count}")
    check_groups(rows, starts, rows.shape[0], kinds.shape[0])
    events = [np.zeros(rows.shape[0], np.uint8) for _ in groups]
    for k in range(count):
        group = groups[k]
        if group.keys.count != kinds.shape[0]:
            raise ValueError("a sequence group has another length than the rows")
        view = events[k]
        states[k].keys = group.keys.raw
        states[k].empty = &group.empty[0] if kinds.shape[0] else NULL
        states[k].removes = group.removes
        states[k].events = &view[0] if rows.shape[0] else NULL
    plain = np.zeros(rows.shape[0], np.uint8)
    latest = np.full(keys, -1, np.int64)
    deleted = np.zeros(keys, np.uint8)
    cdef uint8_t[::1] out = plain
    cdef int64_t[::1] out_latest = latest
    cdef uint8_t[::1] out_deleted = deleted
    with nogil:
        for g in range(keys):
            filled = inserted = removed = False
            for k in range(count):
                states[k].current = -1
            for i in range(starts[g], starts[g + 1]):
                row = rows[i]
                removed = False
                if kinds[row] & 1 == 0:
                    add_row(states, count, row, i)
                    out[i] = OP_ADD
                    out_latest[g] = row
                    inserted = filled = True
                    continue
                if not filled:
                    set_row(states, count, row, i)
                    out[i] = OP_SET
                    filled = True
                if ignore_delete:
                    continue
                out_latest[g] = row
                if count > 0:
                    removed = retract_row(states, count, row, kinds[row] == 3, i)
                    if removed:
                        out[i] = OP_SET
                elif remove_on_delete:
                    if kinds[row] == 3:
                        removed = True
                        out[i] = OP_SET
                else:
                    refused = True
            out_deleted[g] = removed or not inserted
    if refused:
        raise ValueError("a partial update met a retraction")
    return events, plain, latest, deleted
