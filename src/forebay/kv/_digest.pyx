"""Digests of key-value state, and the pages of an LMDB file read as bytes that may be damaged.

A *digest* is the sum, modulo 2^64, of a 64-bit hash of each (key, value) pair: it does not depend on the order of the
pairs, and a change of one pair changes it by the difference of two hashes. It notices damage, not malice.

The functions on pages read nothing outside of the page that they are given, whatever is in it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from forebay.kv._digest cimport hash_pair

cdef enum:
    HEAD_BYTES = 16
    NODE_BYTES = 8
    BIG_DATA = 1
    SUB_DATABASE = 2
    LONG_KEY = 478
    PAGE_BRANCH = 1
    PAGE_LEAF = 2


cdef inline uint64_t hash_of(bytes key, bytes value) noexcept:
    return hash_pair(
        <const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key),
        <const uint8_t*> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value),
    )


def change(dict writes not None, dict before not None):
    """What `writes` (None: deleted) add to the digest of a state whose values of these keys were `before`."""
    cdef uint64_t total = 0
    cdef bytes key, new, old
    for key, new in writes.items():
        old = before.get(key)
        if old is not None:
            total -= hash_of(key, old)
        if new is not None:
            total += hash_of(key, new)
    return total


def of_pairs(keys, values):
    """The digest of these pairs."""
    cdef uint64_t total = 0
    cdef bytes key, value
    for key, value in zip(keys, values):
        total += hash_of(key, value)
    return total


def added(uint64_t digest, uint64_t more):
    """The sum of two digests."""
    return <uint64_t> (digest + more)


cdef Py_ssize_t node_count(const uint8_t* page, Py_ssize_t size, uint16_t flags) except -1:
    """How many nodes the page has. Raises ValueError unless it is a page of this kind with a sound head."""
    cdef uint16_t found, lower, upper
    if size < HEAD_BYTES:
        raise ValueError("the page is cut off")
    memcpy(&found, page + 10, 2)
    memcpy(&lower, page + 12, 2)
    memcpy(&upper, page + 14, 2)
    if found != flags:
        raise ValueError(f"the page's flags are {found:#x} and should be {flags:#x}")
    if lower < HEAD_BYTES or lower & 1 or lower > upper or upper > size:
        raise ValueError(f"the page's free space is said to be from {lower} to {upper}")
    return (lower - HEAD_BYTES) >> 1


cdef const uint8_t* node_at(
    const uint8_t* page, Py_ssize_t size, Py_ssize_t index, const uint8_t** key, Py_ssize_t* key_size
) except NULL:
    """The node at `index`, with its key, all within the page."""
    cdef uint16_t place, key_bytes, upper
    memcpy(&upper, page + 14, 2)
    memcpy(&place, page + HEAD_BYTES + 2 * index, 2)
    if place < upper or place & 1 or place + NODE_BYTES > size:
        raise ValueError(f"node {index} is said to be at {place}")
    memcpy(&key_bytes, page + place + 6, 2)
    if key_bytes > 511 or place + NODE_BYTES + key_bytes > size:
        raise ValueError(f"the key of node {index} is said to have {key_bytes} bytes")
    key[0] = page + place + NODE_BYTES
    key_size[0] = key_bytes
    return page + place


cdef int require_used(const uint8_t* page, Py_ssize_t size, Py_ssize_t used) except -1:
    """Nodes fill the page from its upper bound to its end, without gaps."""
    cdef uint16_t upper
    memcpy(&upper, page + 14, 2)
    if used != size - upper:
        raise ValueError(f"the nodes need {used} bytes, and {size - upper} are taken")
    return 0


cdef inline int compare(const uint8_t* a, Py_ssize_t a_size, const uint8_t* b, Py_ssize_t b_size) noexcept nogil:
    cdef int found = memcmp(a, b, a_size if a_size < b_size else b_size)
    return found if found else (a_size > b_size) - (a_size < b_size)


def leaf_page(bytes page not None, bint as_items, bint integer_keys=False):
    """(number of nodes, first key, last key, digest, items, special nodes) of a leaf page, keys strictly growing.

    `integer_keys`: the order of the keys is not that of their bytes, and not checked.

    `items`: (key, value) pairs, if asked for. Special nodes, (key, data, flags, size of the value), are in neither:
    values on pages of their own, roots of sub-databases, and keys so long that they are shortened. Raises ValueError, saying what is wrong.
    """
    cdef Py_ssize_t size = PyBytes_GET_SIZE(page)
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(page)
    cdef Py_ssize_t count = node_count(start, size, PAGE_LEAF)
    cdef const uint8_t* node
    cdef const uint8_t* key = NULL
    cdef const uint8_t* last = NULL
    cdef Py_ssize_t key_size = 0
    cdef Py_ssize_t last_size = 0
    cdef Py_ssize_t i
    cdef uint32_t data_size
    cdef uint16_t flags
    cdef Py_ssize_t stored
    cdef Py_ssize_t used = 0
    cdef uint64_t digest = 0
    cdef bytes first_key = None
    cdef list items = []
    cdef list special = []
    for i in range(count):
        node = node_at(start, size, i, &key, &key_size)
        memcpy(&data_size, node, 4)
        memcpy(&flags, node + 4, 2)
        if flags != 0 and flags != BIG_DATA and flags != SUB_DATABASE:
            raise ValueError(f"node {i} has the flags {flags:#x}")
        stored = 8 if flags == BIG_DATA else data_size
        if (key - start) + key_size + stored > size:
            raise ValueError(f"the value of node {i} is said to have {data_size} bytes")
        if last != NULL and not integer_keys and compare(last, last_size, key, key_size) >= 0:
            raise ValueError(f"the keys of nodes {i - 1} and {i} are not in order")
        if i == 0:
            first_key = key[:key_size]
        last, last_size = key, key_size
        used += (NODE_BYTES + key_size + stored + 1) & ~1
        if flags or key_size > LONG_KEY:
            special.append((key[:key_size], (key + key_size)[:stored], flags, data_size))
        elif as_items:
            items.append((key[:key_size], (key + key_size)[:stored]))
        else:
            digest += hash_pair(key, key_size, key + key_size, stored)
    require_used(start, size, used)
    return count, first_key, None if last == NULL else last[:last_size], digest, items, special


def branch_page(bytes page not None, bint integer_keys=False):
    """(key, page number) of each child of a branch page; the first key says nothing. Raises ValueError."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(page)
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(page)
    cdef Py_ssize_t count = node_count(start, size, PAGE_BRANCH)
    cdef const uint8_t* node
    cdef const uint8_t* key = NULL
    cdef Py_ssize_t key_size = 0
    cdef Py_ssize_t i
    cdef Py_ssize_t used = 0
    cdef uint64_t number
    cdef list children = []
    if count < 2:
        raise ValueError(f"a branch page has {count} children")
    for i in range(count):
        node = node_at(start, size, i, &key, &key_size)
        number = 0
        memcpy(&number, node, 6)
        used += (NODE_BYTES + key_size + 1) & ~1
        children.append((key[:key_size], number))
        if i > 1 and not integer_keys and children[i - 1][0] >= children[i][0]:
            raise ValueError(f"the keys of children {i - 1} and {i} are not in order")
    require_used(start, size, used)
    return children
