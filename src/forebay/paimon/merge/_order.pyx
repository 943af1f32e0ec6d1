"""Order-preserving keys, and the sorting and merging of rows by them (see merge.order)."""

from libc.stdint cimport int8_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np

from forebay.paimon.merge._order cimport Keys, SortKey, compare, compare_between


cdef uint8_t EMPTY = 0


cdef class SortKey:
    """One comparable key per row: eight bytes, big-endian in a uint64, and behind them any number of further bytes.

    Rows compare by `prefix`, then, if there are `offsets`, by the bytes `data[offsets[i]:offsets[i + 1]]` as unsigned
    numbers (`prefix` then repeats their first eight, filled up with zeros), then by their number.
    """

    def __init__(self, prefix, offsets=None, data=None):
        cdef const uint64_t[::1] prefix_view = prefix
        cdef const int64_t[::1] offsets_view
        cdef const uint8_t[::1] data_view
        cdef Py_ssize_t i
        self.prefix = prefix
        self.offsets = offsets
        self.data = data
        self.count = prefix_view.shape[0]
        self.raw.prefix = &prefix_view[0] if self.count else <const uint64_t*> &EMPTY
        self.raw.offsets = NULL
        self.raw.data = NULL
        if offsets is None:
            return
        offsets_view = offsets
        data_view = data
        if offsets_view.shape[0] != self.count + 1:
            raise ValueError(f"{self.count} keys need {self.count + 1} offsets, got {offsets_view.shape[0]}")
        if offsets_view[0] < 0 or offsets_view[self.count] > data_view.shape[0]:
            raise ValueError("the offsets of keys lie outside of their bytes")
        for i in range(self.count):
            if offsets_view[i] > offsets_view[i + 1]:
                raise ValueError("the offsets of keys must not fall")
        self.raw.offsets = &offsets_view[0]
        self.raw.data = &data_view[0] if data_view.shape[0] else &EMPTY

    def __len__(self):
        return self.count

    def slice(self, Py_ssize_t start, Py_ssize_t stop):
        """The keys of rows `start` to `stop`, without copying."""
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"rows {start} to {stop} of {self.count}")
        offsets = None if self.offsets is None else self.offsets[start:stop + 1]
        return SortKey(self.prefix[start:stop], offsets, self.data)

    def first_above(self, SortKey other, Py_ssize_t row):
        """The number of leading rows that are at most `other[row]`. These keys must be sorted."""
        if not 0 <= row < other.count:
            raise IndexError(f"row {row} of {other.count}")
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.count
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) // 2
            if compare_between(&self.raw, middle, &other.raw, row) <= 0:
                low = middle + 1
            else:
                high = middle
        return low

    def compare(self, Py_ssize_t row, SortKey other, Py_ssize_t other_row):
        """Negative, zero or positive, as `self[row]` is before, equal to or behind `other[other_row]`."""
        if not (0 <= row < self.count and 0 <= other_row < other.count):
            raise IndexError(f"rows {row} of {self.count} and {other_row} of {other.count}")
        return compare_between(&self.raw, row, &other.raw, other_row)


# ---- encoding -------------------------------------------------------------------------------------------------------


cdef inline uint64_t prefix_of(const uint8_t* data, int64_t size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int64_t i
    cdef int64_t count = size if size < 8 else 8
    for i in range(count):
        value |= (<uint64_t> data[i]) << (56 - 8 * i)
    return value


def key_of_bytes(offsets, data):
    """Keys that are byte strings as they stand: `data[offsets[i]:offsets[i + 1]]`."""
    cdef const int64_t[::1] o = offsets
    cdef const uint8_t[::1] d = data
    cdef Py_ssize_t n = o.shape[0] - 1
    cdef Py_ssize_t i
    cdef const uint8_t* base = &d[0] if d.shape[0] else &EMPTY
    prefix = np.empty(n, np.uint64)
    key = SortKey(prefix, offsets, data)
    cdef uint64_t[::1] p = prefix
    with nogil:
        for i in range(n):
            p[i] = prefix_of(base + o[i], o[i + 1] - o[i])
    return key


cdef struct Part:
    int width                 # bytes of `values`, or 0: a byte string
    const uint64_t* values
    const int64_t* offsets
    const uint8_t* data
    bint inverted             # descending
    bint open_ended           # the last part: needs no end mark


cdef int64_t part_size(const Part* part, int64_t row) noexcept nogil:
    cdef int64_t i
    cdef int64_t size
    if part.width:
        return part.width
    size = part.offsets[row + 1] - part.offsets[row]
    if part.open_ended:
        return size
    for i in range(part.offsets[row], part.offsets[row + 1]):
        size += part.data[i] == 0
    return size + 2


cdef uint8_t* write_part(const Part* part, int64_t row, uint8_t* out) noexcept nogil:
    """A zero byte becomes 00 FF and the end 00 00, so that no string is a prefix of another."""
    cdef int64_t i
    cdef uint64_t value
    cdef uint8_t flip = 0xFF if part.inverted else 0
    if part.width:
        value = part.values[row]
        for i in range(part.width):
            out[i] = (<uint8_t> (value >> (8 * (part.width - 1 - i)))) ^ flip
        return out + part.width
    for i in range(part.offsets[row], part.offsets[row + 1]):
        out[0] = part.data[i] ^ flip
        out += 1
        if part.data[i] == 0 and not part.open_ended:
            out[0] = 0xFF ^ flip
            out += 1
    if not part.open_ended:
        out[0] = flip
        out[1] = flip
        out += 2
    return out


def encode_parts(list parts, Py_ssize_t rows):
    """Keys of several parts, compared one after the other.

    A part is (values uint64, width in bytes, descending), or (offsets, data, descending) of byte strings.
    """
    cdef Part* raw = <Part*> malloc(sizeof(Part) * max(1, len(parts)))
    cdef const uint64_t[::1] values
    cdef const int64_t[::1] offsets
    cdef const uint8_t[::1] data
    cdef Py_ssize_t i, k
    cdef Py_ssize_t count = len(parts)
    cdef int64_t total = 0
    cdef uint8_t* out
    if raw == NULL:
        raise MemoryError()
    try:
        for k, (first, second, descending) in enumerate(parts):
            raw[k].inverted = descending
            raw[k].open_ended = k == count - 1 and not descending
            if isinstance(second, int):
                values = first
                if values.shape[0] != rows or not 1 <= second <= 8:
                    raise ValueError("a part of keys has the wrong number of rows or width")
                raw[k].width = second
                raw[k].values = &values[0] if rows else NULL
                continue
            offsets = first
            data = second
            if offsets.shape[0] != rows + 1 or offsets[rows] > data.shape[0] or offsets[0] < 0:
                raise ValueError("a part of keys has the wrong number of rows or bytes")
            raw[k].width = 0
            raw[k].offsets = &offsets[0]
            raw[k].data = &data[0] if data.shape[0] else &EMPTY
        ends = np.zeros(rows + 1, np.int64)
        total = fill_ends(raw, count, ends)
        encoded = np.empty(total, np.uint8)
        fill_bytes(raw, count, rows, encoded)
        return key_of_bytes(ends, encoded)
    finally:
        free(raw)


cdef int64_t fill_ends(const Part* parts, Py_ssize_t count, int64_t[::1] ends):
    cdef Py_ssize_t i, k
    cdef int64_t total = 0
    with nogil:
        for i in range(ends.shape[0] - 1):
            for k in range(count):
                total += part_size(&parts[k], i)
            ends[i + 1] = total
    return total


cdef void fill_bytes(const Part* parts, Py_ssize_t count, Py_ssize_t rows, uint8_t[::1] encoded):
    cdef Py_ssize_t i, k
    cdef uint8_t* out
    if encoded.shape[0] == 0:
        return
    out = &encoded[0]
    with nogil:
        for i in range(rows):
            for k in range(count):
                out = write_part(&parts[k], i, out)


# ---- merging sorted runs --------------------------------------------------------------------------------------------


cdef struct Entry:
    uint64_t prefix
    int64_t row


cdef struct Order:
    Keys keys
    Keys sequence             # of the user; prefix NULL: none
    const int64_t* numbers
    const int8_t* kinds


cdef inline int compare_rows(const Order* order, const Entry* left, const Entry* right) noexcept nogil:
    """Key, then the user's sequence, then the sequence number, then retractions before additions."""
    cdef int result
    cdef int64_t a = left.row
    cdef int64_t b = right.row
    if left.prefix != right.prefix:
        return -1 if left.prefix < right.prefix else 1
    result = compare(&order.keys, a, b)
    if result != 0:
        return result
    if order.sequence.prefix != NULL:
        result = compare(&order.sequence, a, b)
        if result != 0:
            return result
    if order.numbers[a] != order.numbers[b]:
        return -1 if order.numbers[a] < order.numbers[b] else 1
    return <int> (1 - (order.kinds[a] & 1)) - <int> (1 - (order.kinds[b] & 1))


cdef void merge_two(
    const Order* order, const Entry* left, const Entry* left_end, const Entry* right, const Entry* right_end, Entry* out
) noexcept nogil:
    while left < left_end and right < right_end:
        if compare_rows(order, left, right) <= 0:
            out[0] = left[0]
            left += 1
        else:
            out[0] = right[0]
            right += 1
        out += 1
    if left < left_end:
        memcpy(out, left, (left_end - left) * sizeof(Entry))
    elif right < right_end:
        memcpy(out, right, (right_end - right) * sizeof(Entry))


def merge_sorted(SortKey keys, SortKey sequence, const int64_t[::1] numbers, const int8_t[::1] kinds, run_starts):
    """The order of all rows, of runs that are sorted each: run i has rows `run_starts[i]` to `run_starts[i + 1]`.

    `sequence` is None where the table has no sequence fields. Ties keep the order of the runs.
    """
    cdef Py_ssize_t n = keys.count
    cdef int64_t[::1] bounds = np.array(run_starts, np.int64)
    cdef Py_ssize_t runs = bounds.shape[0] - 1
    cdef Py_ssize_t i, k
    cdef Entry* source
    cdef Entry* target
    cdef Entry* swap
    cdef Order order
    if numbers.shape[0] != n or kinds.shape[0] != n or (sequence is not None and sequence.count != n):
        raise ValueError("keys, sequence numbers and kinds differ in length")
    if runs < 1 or bounds[0] != 0 or bounds[runs] != n or (np.diff(run_starts) < 0).any():
        raise ValueError("the runs do not cover the rows")
    result = np.empty(n, np.int64)
    cdef int64_t[::1] out = result
    if n == 0:
        return result
    fill_order(&order, keys, sequence, numbers, kinds)
    source = <Entry*> malloc(n * sizeof(Entry))
    target = <Entry*> malloc(n * sizeof(Entry))
    if source == NULL or target == NULL:
        free(source)
        free(target)
        raise MemoryError()
    with nogil:
        for i in range(n):
            source[i].prefix = order.keys.prefix[i]
            source[i].row = i
        while runs > 1:
            k = 0
            for i in range(0, runs - 1, 2):
                merge_two(
                    &order, source + bounds[i], source + bounds[i + 1], source + bounds[i + 1], source + bounds[i + 2],
                    target + bounds[i],
                )
                bounds[k] = bounds[i]
                k += 1
            if runs % 2:
                memcpy(target + bounds[runs - 1], source + bounds[runs - 1], (n - bounds[runs - 1]) * sizeof(Entry))
                bounds[k] = bounds[runs - 1]
                k += 1
            bounds[k] = n
            runs = k
            swap = source
            source = target
            target = swap
        for i in range(n):
            out[i] = source[i].row
        free(source)
        free(target)
    return result


cdef void fill_order(Order* order, SortKey keys, SortKey sequence, const int64_t[::1] numbers, const int8_t[::1] kinds):
    order.keys = keys.raw
    order.sequence.prefix = NULL
    order.sequence.offsets = NULL
    order.sequence.data = NULL
    if sequence is not None:
        order.sequence = sequence.raw
    order.numbers = &numbers[0]
    order.kinds = &kinds[0]


# ---- sorting --------------------------------------------------------------------------------------------------------


cdef bint is_sorted(const Keys* keys, const int64_t* rows, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(1, n):
        if compare(keys, rows[i - 1], rows[i]) > 0:
            return False
    return True


cdef void radix_sort(Entry** source_at, Entry** target_at, Py_ssize_t n) noexcept nogil:
    """Stable, by prefix, least significant byte first; bytes that are the same in all rows cost nothing."""
    cdef Entry* source = source_at[0]
    cdef Entry* target = target_at[0]
    cdef Entry* swap
    cdef Py_ssize_t counts[8][256]
    cdef Py_ssize_t i, position, count
    cdef int byte, value
    for byte in range(8):
        for value in range(256):
            counts[byte][value] = 0
    for i in range(n):
        for byte in range(8):
            counts[byte][(source[i].prefix >> (8 * byte)) & 0xFF] += 1
    for byte in range(8):
        if counts[byte][(source[0].prefix >> (8 * byte)) & 0xFF] == n:
            continue
        position = 0
        for value in range(256):
            count = counts[byte][value]
            counts[byte][value] = position
            position += count
        for i in range(n):
            value = (source[i].prefix >> (8 * byte)) & 0xFF
            target[counts[byte][value]] = source[i]
            counts[byte][value] += 1
        swap = source
        source = target
        target = swap
    source_at[0] = source
    target_at[0] = target


cdef void sort_span(const Keys* keys, Entry* span, Entry* spare, Py_ssize_t n) noexcept nogil:
    """Stable merge sort of rows whose prefixes are equal."""
    cdef Py_ssize_t i, j, k, middle
    cdef Entry entry
    if n <= 12:
        for i in range(1, n):
            entry = span[i]
            j = i
            while j > 0 and compare(keys, span[j - 1].row, entry.row) > 0:
                span[j] = span[j - 1]
                j -= 1
            span[j] = entry
        return
    middle = n // 2
    sort_span(keys, span, spare, middle)
    sort_span(keys, span + middle, spare, n - middle)
    memcpy(spare, span, middle * sizeof(Entry))
    i = 0
    j = middle
    k = 0
    while i < middle and j < n:
        if compare(keys, spare[i].row, span[j].row) <= 0:
            span[k] = spare[i]
            i += 1
        else:
            span[k] = span[j]
            j += 1
        k += 1
    if i < middle:
        memcpy(span + k, spare + i, (middle - i) * sizeof(Entry))


cdef int64_t shared_bytes(const Keys* keys, const int64_t* rows, Py_ssize_t n) noexcept nogil:
    """How many bytes all keys begin with; ("customer-" in front of each would make the prefixes useless)."""
    cdef const uint8_t* first = keys.data + keys.offsets[rows[0]]
    cdef int64_t shared = keys.offsets[rows[0] + 1] - keys.offsets[rows[0]]
    cdef int64_t size, k
    cdef const uint8_t* other
    cdef Py_ssize_t i
    for i in range(1, n):
        other = keys.data + keys.offsets[rows[i]]
        size = keys.offsets[rows[i] + 1] - keys.offsets[rows[i]]
        if size < shared:
            shared = size
        k = 0
        while k < shared and first[k] == other[k]:
            k += 1
        shared = k
        if shared == 0:
            break
    return shared


cdef void stable_sort(const Keys* keys, int64_t* rows, Entry* source, Entry* target, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, start
    cdef int64_t shared = 0
    cdef int64_t row
    if n == 0 or is_sorted(keys, rows, n):
        return
    if keys.offsets != NULL:
        shared = shared_bytes(keys, rows, n)
    for i in range(n):
        row = rows[i]
        source[i].row = row
        if shared > 0:
            source[i].prefix = prefix_of(
                keys.data + keys.offsets[row] + shared, keys.offsets[row + 1] - keys.offsets[row] - shared
            )
        else:
            source[i].prefix = keys.prefix[row]
    radix_sort(&source, &target, n)
    if keys.offsets != NULL:
        start = 0
        for i in range(1, n + 1):
            if i == n or source[i].prefix != source[start].prefix:
                if i - start > 1:
                    sort_span(keys, source + start, target, i - start)
                start = i
    for i in range(n):
        rows[i] = source[i].row


def sort_rows(list keys):
    """The stable order of rows by several keys, the first of which counts most."""
    cdef Py_ssize_t n = len(keys[0])
    cdef SortKey key
    cdef int64_t[::1] rows
    cdef Entry* source
    cdef Entry* target
    result = np.arange(n, dtype=np.int64)
    if n == 0:
        return result
    rows = result
    source = <Entry*> malloc(n * sizeof(Entry))
    target = <Entry*> malloc(n * sizeof(Entry))
    try:
        if source == NULL or target == NULL:
            raise MemoryError()
        for key in reversed(keys):
            if key.count != n:
                raise ValueError("sort keys differ in length")
            with nogil:
                stable_sort(&key.raw, &rows[0], source, target, n)
    finally:
        free(source)
        free(target)
    return result


def group_starts(SortKey keys, const int64_t[::1] order):
    """Where in `order` (sorted by `keys`) another key begins, and its length at the end."""
    cdef Py_ssize_t n = order.shape[0]
    cdef Py_ssize_t i
    cdef Py_ssize_t count = 0
    if n != keys.count:
        raise ValueError(f"{n} positions for {keys.count} keys")
    result = np.empty(n + 1, np.int64)
    cdef int64_t[::1] starts = result
    for i in range(n):
        if not 0 <= order[i] < n:
            raise IndexError(f"row {order[i]} of {n}")
    with nogil:
        for i in range(n):
            if i == 0 or compare(&keys.raw, order[i - 1], order[i]) != 0:
                starts[count] = i
                count += 1
        starts[count] = n
    return result[:count + 1]
