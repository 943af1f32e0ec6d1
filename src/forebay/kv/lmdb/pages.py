"""An upper bound of the pages that a transaction takes in LMDB's file.

The engine allocates disk space for this number of pages before the transaction begins (`forebay.kv.map_space`).
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.kv.buffered_writes import WriteSize

PAGE_BYTES = 4096
"""LMDB takes the page size of the system; larger pages only make the bounds below safer."""

_NODE_HEAD_BYTES = 10
"""Bytes of a row in a page besides its key and value: the node's head, and its place in the page's index."""
_SMALL_NODE_BYTES = 1024
"""Rows up to this size leave enough of half a page free that splits can be counted by bytes; others count one each."""
_BRANCH_KEYS_MIN = 3
"""Keys of half a branch page, if they are as long as LMDB allows."""
_FIXED_PAGES = 64
"""Pages of the small tables (state, long keys, table of tables, list of free pages), including rebalancing."""


@dataclass(frozen=True, slots=True)
class TreeSize:
    """The pages of a B-tree before the transaction, and of the whole file."""

    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    file_pages: int


def pages_at_most(write: WriteSize, tree: TreeSize) -> int:
    """Return an upper bound of the pages that a transaction takes after the used part, if it can reuse no free page.

    LMDB copies every page that it changes, once per transaction: with random keys, one leaf for each key and the
    branches above it, and a neighbour if a delete merges pages. Keys are written in their order, so a page is split
    once when it is found full, and again only when about half a page of new rows has gone into one of the halves.
    """
    touched = write.keys + write.deletes
    leaves = min(touched, tree.leaf_pages)
    branches = min(touched * max(tree.depth - 1, 0), tree.branch_pages)
    rows = max(write.keys - write.deletes - write.large_values, 0)
    longest = write.longest + _NODE_HEAD_BYTES
    if longest <= _SMALL_NODE_BYTES:
        row_bytes = max(write.total_bytes - write.large_bytes, 0) + rows * _NODE_HEAD_BYTES
        rows = min(rows, leaves + row_bytes // (PAGE_BYTES // 2 - longest) + 1)
    splits = rows + write.large_values
    large = write.large_bytes // PAGE_BYTES + 2 * write.large_values
    pages = leaves + branches + splits + splits // _BRANCH_KEYS_MIN + large + 2 * tree.depth
    freed = leaves + branches + min(tree.overflow_pages, tree.file_pages)
    free_list = (freed + tree.file_pages) // (PAGE_BYTES // 8) * 2
    return pages + free_list + _FIXED_PAGES
