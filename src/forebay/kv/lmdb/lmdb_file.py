"""Checks an LMDB data file without LMDB: whether every page that its trees name is sound, and which rows they hold.

LMDB has no checksums and trusts its pages: a damaged one can abort the process (SIGSEGV, or a failed assertion). So
files that may be damaged are walked here first, by reads that check every bound. The walk sees what a reader of the
newest commit would see, and visits each page once: the trees of the rows, of long keys, of the state and of free pages,
and pages of large values. On the way it computes the digest of the rows (`kv._digest`).

File: pages of 4 kB (by the machine). Pages 0 and 1 are meta pages; that with the larger transaction id counts. A meta
page names the roots of two trees: free pages (by transaction id, lists of page numbers) and the main tree, whose
values are the roots of the named trees. Numbers are those of the machine.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from forebay.base.errors import CorruptData, ErrorCode
from forebay.base.progress import OnProgress, no_progress
from forebay.fs import names
from forebay.fs.interface import FileSystem, PositionalReader
from forebay.kv._digest import added, branch_page, leaf_page, of_pairs
from forebay.kv.engine import EngineState

DATA_FILE = "data.mdb"
ROWS, LONG_KEYS, META = b"rows", b"long_keys", b"meta"
STATE_KEY = b"state"
LONG_KEY_BYTES = 478
"""Longer keys are shortened to this many bytes and a digest; the whole key is in `LONG_KEYS`."""

_HEAD = struct.Struct("=QHHI")
_META = struct.Struct("=IIQQ")
_TREE = struct.Struct("=IHHQQQQQ")
_META_END = struct.Struct("=QQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META_FLAG, _BRANCH, _LEAF, _OVERFLOW = 8, 1, 2, 4
_BIG_DATA, _SUB_DATABASE = 1, 2
# From lmdb.h and mdb.c: the flag of tables with integer keys, the root of an empty tree, the size of a cursor's stack,
# and the page sizes that systems have.
_INTEGER_KEY = 8
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32
_PAGE_BYTES = (4096, 8192, 16384, 32768, 65536)
_META_BYTES = _HEAD.size + _META.size + 2 * _TREE.size + _META_END.size


class _Tree(NamedTuple):
    """The root and size of a tree: 48 bytes, in a meta page, or as the value of the tree's name in the main tree."""

    page_bytes: int
    """0 but for the tree of free pages: elsewhere it would be the one size of all keys."""
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class LmdbContent:
    """The content of a sound file."""

    state: EngineState
    row_count: int
    digest: int


class _MetaPage(NamedTuple):
    transaction: int
    last_page: int
    free: _Tree
    main: _Tree


class LmdbFile:
    """One data file, open for reading. Every method raises `CorruptData`, which names file and byte, and
    `StorageFailure`. Close it in the end."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self.path = names.join(folder, DATA_FILE)
        self._reader: PositionalReader = fs.open_reader(self.path)
        self._page_bytes = _PAGE_BYTES[0]
        self._seen = bytearray()

    def close(self) -> None:
        self._reader.close()

    # ---- the walk ---------------------------------------------------------------------------------------------------

    def check(self, progress: OnProgress = no_progress) -> LmdbContent:
        """Walk all pages, with `progress` in pages. The digest is compared with the one in the state."""
        meta = self._meta()
        self._seen = bytearray(meta.last_page + 1)
        self._seen[:2] = b"\1\1"
        trees = dict(self._named_trees(meta))
        rows = digest = 0
        long_keys: dict[bytes, bytes] = {}
        for name, tree in sorted(trees.items()):  # the long keys before the rows
            count = 0
            for leaf in self._leaves(tree, progress):
                nodes, _, _, part, _, special = leaf_page(leaf.data, False)
                count += nodes
                found = [(key, self._value(leaf, data, flags, size)) for key, data, flags, size in special]
                if name == LONG_KEYS:
                    long_keys.update(found)
                part = added(part, of_pairs([long_keys.get(key, key) for key, _ in found], [v for _, v in found]))
                if name == ROWS:
                    digest = added(digest, part)
            self._require(count == tree.entries, 0, f"{name!r} has {count} entries and should have {tree.entries}")
            if name == ROWS:
                rows = count
        self._check_free_pages(meta)
        state = self._state(trees.get(META))
        if state.digest is not None and state.digest != digest:
            raise self._damaged(
                0, f"its rows have the digest {digest:016x}, and what was written has {state.digest:016x}"
            )
        if state.row_count >= 0:
            self._require(state.row_count == rows, 0, f"it has {rows} rows and should have {state.row_count}")
        return LmdbContent(state, rows, digest)

    def state(self) -> EngineState:
        """Return the engine's state; valid after `check`."""
        self._start_again()
        return self._state(dict(self._named_trees(self._meta())).get(META))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, stored value) of all rows in any order, with long keys whole; valid after `check`."""
        self._start_again()
        trees = dict(self._named_trees(self._meta()))
        long_keys = dict(self._pairs(trees[LONG_KEYS])) if LONG_KEYS in trees else {}
        for key, value in self._pairs(trees[ROWS]) if ROWS in trees else ():
            yield (long_keys.get(key, key) if len(key) > LONG_KEY_BYTES else key), value

    def _start_again(self) -> None:
        self._seen = bytearray(self._meta().last_page + 1)

    def _pairs(self, tree: _Tree) -> Iterator[tuple[bytes, bytes]]:
        for leaf in self._leaves(tree, no_progress):
            _, _, _, _, items, special = leaf_page(leaf.data, True)
            yield from items
            for key, data, flags, size in special:
                yield key, self._value(leaf, data, flags, size)

    def _state(self, tree: _Tree | None) -> EngineState:
        pairs = {} if tree is None else dict(self._again(lambda: self._pairs(tree)))
        try:
            return EngineState.from_bytes(pairs[STATE_KEY]) if STATE_KEY in pairs else EngineState()
        except ValueError as e:
            raise self._damaged(0, str(e)) from e

    def _again(self, walk: Callable[[], Iterator[tuple[bytes, bytes]]]) -> Iterator[tuple[bytes, bytes]]:
        """Walk over pages that have been visited already."""
        seen, self._seen = self._seen, bytearray(len(self._seen))
        yield from walk()
        self._seen = seen

    # ---- meta pages and trees ---------------------------------------------------------------------------------------

    def _meta(self) -> _MetaPage:
        """Return the current meta page."""
        first = self._meta_at(0)
        self._page_bytes = first.free.page_bytes
        second = self._meta_at(self._page_bytes)
        newest = second if second.transaction > first.transaction else first
        self._require(second.free.page_bytes == first.free.page_bytes, 0, "its meta pages differ in their page size")
        size = self._reader.size()
        file_bytes = (newest.last_page + 1) * self._page_bytes
        self._require(newest.last_page >= 1, 0, f"its last page number is {newest.last_page}")
        self._require(file_bytes <= size, 0, f"it has {size} bytes and should have {file_bytes} or more")
        return newest

    def _meta_at(self, position: int) -> _MetaPage:
        data = self._reader.pread(position, _META_BYTES)
        self._require(len(data) == _META_BYTES, position, "a meta page is cut off")
        number, _, flags, _ = _HEAD.unpack_from(data)
        magic, version, _, _ = _META.unpack_from(data, _HEAD.size)
        free = _Tree(*_TREE.unpack_from(data, _HEAD.size + _META.size))
        main = _Tree(*_TREE.unpack_from(data, _HEAD.size + _META.size + _TREE.size))
        last_page, transaction = _META_END.unpack_from(data, _META_BYTES - _META_END.size)
        sound = (
            flags == _META_FLAG
            and (magic, version) == (_MAGIC, _VERSION)
            and free.page_bytes in _PAGE_BYTES
            and (number, position) in ((0, 0), (1, free.page_bytes))
            and free.flags == _INTEGER_KEY
            and (main.page_bytes, main.flags) == (0, 0)
        )
        self._require(sound, position, "there is no meta page of LMDB")
        return _MetaPage(transaction, last_page, free, main)

    def _named_trees(self, meta: _MetaPage) -> Iterator[tuple[bytes, _Tree]]:
        entries = 0
        for leaf in self._leaves(meta.main, no_progress):
            count, _, _, _, items, special = leaf_page(leaf.data, True)
            entries += count
            self._require(not items, leaf.position, "the main tree holds a value and no tree")
            for name, data, flags, _ in special:
                is_tree = flags == _SUB_DATABASE and len(data) == _TREE.size and name in (ROWS, LONG_KEYS, META)
                self._require(is_tree, leaf.position, f"{name!r} is no tree of ours")
                tree = _Tree(*_TREE.unpack(data))
                self._require(tree.flags == 0, leaf.position, f"the tree {name!r} has the flags {tree.flags}")
                self._require(
                    tree.page_bytes == 0, leaf.position, f"the tree {name!r} has keys of {tree.page_bytes} bytes"
                )
                yield name, tree
        self._require(entries == meta.main.entries, 0, f"{entries} trees are named, and should be {meta.main.entries}")

    def _check_free_pages(self, meta: _MetaPage) -> None:
        """Check that no free page is used by a tree, and that each is listed once."""
        lists: list[tuple[_Page, bytes]] = []
        for leaf in self._leaves(meta.free, no_progress, integer_keys=True):
            _, _, _, _, items, special = leaf_page(leaf.data, True, True)
            values = items + [(key, self._value(leaf, data, flags, size)) for key, data, flags, size in special]
            for key, value in values:
                self._require(len(key) == 8, leaf.position, "a list of free pages has no transaction id")
                lists.append((leaf, value))
        for leaf, value in lists:
            numbers = struct.unpack(f"={len(value) // 8}Q", value[: len(value) // 8 * 8])
            listed = numbers[1 : numbers[0] + 1] if numbers else ()
            sound = bool(numbers) and len(listed) == numbers[0] and all(map(operator.gt, listed, listed[1:]))
            self._require(sound, leaf.position, "a list of free pages is not in order")
            for number in listed:
                self._claim(number, leaf.position)

    # ---- pages ------------------------------------------------------------------------------------------------------

    def _leaves(self, tree: _Tree, progress: OnProgress, *, integer_keys: bool = False) -> Iterator[_Page]:
        """Yield the leaf pages of a tree in order, checked for their place in it."""
        if tree.root == _NO_PAGE:
            self._require(tree.entries == 0 and tree.depth == 0, 0, "a tree with entries has no root")
            return
        self._require(0 < tree.depth <= _DEPTH_MAX, 0, f"a tree has the depth {tree.depth}")
        stack: list[tuple[int, int, bytes | None, bytes | None, int]] = [(tree.root, 1, None, None, 0)]
        done = 0
        while stack:
            number, level, low, high, named_at = stack.pop()
            self._claim(number, named_at)
            page = self._page(number, named_at)
            done += 1
            progress(done, tree.branch_pages + tree.leaf_pages)
            if level == tree.depth:
                self._check_leaf(page, low, high, integer_keys)
                yield page
                continue
            try:
                children = branch_page(page.data, integer_keys)
            except ValueError as e:
                raise self._damaged(page.position, str(e)) from e
            if not integer_keys:
                keys = [key for key, _ in children[1:]]
                inside = (low is None or low <= keys[0]) and (high is None or keys[-1] < high)
                self._require(inside, page.position, "its keys belong elsewhere in the tree")
            lows = [low, *(key for key, _ in children[1:])]
            for (_, child), lower, upper in reversed(list(zip(children, lows, [*lows[1:], high]))):
                stack.append((child, level + 1, lower, upper, page.position))

    def _check_leaf(self, page: _Page, low: bytes | None, high: bytes | None, integer_keys: bool) -> None:
        try:
            count, first, last, *_ = leaf_page(page.data, False, integer_keys)
        except ValueError as e:
            raise self._damaged(page.position, str(e)) from e
        self._require(count > 0, page.position, "a leaf page has no entries")
        if not integer_keys and first is not None and last is not None:
            inside = (low is None or low <= first) and (high is None or last < high)
            self._require(inside, page.position, "its keys belong elsewhere in the tree")

    def _page(self, number: int, named_at: int) -> _Page:
        position = number * self._page_bytes
        data = self._reader.pread(position, self._page_bytes)
        self._require(len(data) == self._page_bytes, named_at, f"page {number}, which it names, is cut off")
        page_number, _, _, _ = _HEAD.unpack_from(data)
        self._require(
            page_number == number, position, f"the page says that it is page {page_number} and should be {number}"
        )
        return _Page(position, data)

    def _claim(self, number: int, named_at: int) -> None:
        """Record that a page is used. Each is used once."""
        exists = 2 <= number < len(self._seen)
        self._require(exists, named_at, f"page {number} is named there, and the last one is {len(self._seen) - 1}")
        self._require(not self._seen[number], named_at, f"page {number} is used twice")
        self._seen[number] = 1

    def _value(self, leaf: _Page, data: bytes, flags: int, size: int) -> bytes:
        """Return the value of a special node, which may have its own pages."""
        if flags == 0:
            return data
        self._require(flags == _BIG_DATA, leaf.position, "a row is said to be a tree")
        (number,) = struct.unpack("=Q", data)
        pages = (_HEAD.size + size + self._page_bytes - 1) // self._page_bytes
        self._claim(number, leaf.position)
        position = number * self._page_bytes
        content = self._reader.pread(position, _HEAD.size + size)
        self._require(len(content) == _HEAD.size + size, position, "a large value is cut off")
        page_number, _, kind, count = _HEAD.unpack_from(content)
        sound = (page_number, kind) == (number, _OVERFLOW) and count >= pages
        self._require(sound, position, f"there should be a value of {size} bytes")
        for page in range(number + 1, number + count):
            self._claim(page, leaf.position)
        return content[_HEAD.size :]

    def _require(self, condition: bool, position: int, reason: str) -> None:
        if not condition:
            raise self._damaged(position, reason)

    def _damaged(self, position: int, reason: str) -> CorruptData:
        message = f"the key-value state in {self.path} is damaged at byte {position}: {reason}"
        return CorruptData(message, ErrorCode.KV_STORAGE_EXCEPTION)


class _Page(NamedTuple):
    position: int
    data: bytes


def check_engine_files(fs: FileSystem, folder: str, progress: OnProgress = no_progress) -> LmdbContent | None:
    """Check the files of an engine without checksums; return None if there are no LMDB files.

    Raises `CorruptData`, which names file and byte, and `StorageFailure`.
    """
    if not fs.exists(names.join(folder, DATA_FILE)):
        return None
    file = LmdbFile(fs, folder)
    try:
        return file.check(progress)
    finally:
        file.close()
