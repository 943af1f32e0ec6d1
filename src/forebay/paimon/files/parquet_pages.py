"""Reading a few rows of a row group without the pages before them.

Arrow's reader decodes a row group from its beginning: the last row of one costs as much as all. Here the headers of a
column's pages are walked instead, from one to the next, up to the pages that hold the requested rows. These, and the
column's dictionary, are put where the column begins, in memory that is otherwise empty, and Arrow decodes them there,
by the footer of the whole file, and never requests more rows than there are.

Prior art: Java's and Rust's readers, which take the places of pages from the page index; Arrow writes none by default,
and its reader does not use it. Headers are Thrift's compact protocol (apache/parquet-format, `parquet.thrift`).
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

_HEADER_BYTES = 256
_HEADER_BYTES_MAX = 1 << 16
"""How many bytes of a page's header are read at first, and at most. It may contain the column's bounds."""

_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = range(4)
_TYPE, _COMPRESSED_BYTES, _DATA_HEADER, _DATA_HEADER_V2 = 1, 3, 5, 8
_COUNT = 1
"""Fields of a page header, and of the headers of data in it."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY = range(1, 9)
_STRUCT = 12
_DEPTH_MAX = 4


class _Unreadable(Exception):
    """The bytes are no page header that is known here."""


class _PageHeader(NamedTuple):
    kind: int
    size: int
    """With its header."""
    values: int


def read_rows(
    source: pa.NativeFile, footer: pq.FileMetaData, index: int, columns: Sequence[str], span: range
) -> pa.Table | None:
    """The rows `span`, at least one, of the row group `index`, in the `columns`.

    None if a column is nested, or has a page of an unknown kind: read it from the beginning then. Raises `OSError`.
    """
    group = footer.row_group(index)
    leaves = [footer.schema.column(i) for i in range(footer.num_columns)]
    chunks = {c.name: i for i, c in enumerate(leaves) if c.name == c.path and not c.max_repetition_level}
    if not chunks.keys() >= set(columns):
        return None
    memory = mmap.mmap(-1, source.size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    together: dict[int, list[str]] = {}
    try:
        for name in columns:
            first = _put_pages(source, group.column(chunks[name]), span, memory)
            together.setdefault(first, []).append(name)
    except _Unreadable:
        return None
    parquet = pq.ParquetFile(pa.BufferReader(pa.py_buffer(memory)), metadata=footer, pre_buffer=False)
    fields, by_name = {}, {}
    for first, names in together.items():
        rows = span.stop - first
        batch = next(parquet.iter_batches(rows, row_groups=[index], columns=names, use_threads=False))
        if batch.num_rows != rows:
            return None
        for name in names:
            fields[name] = batch.schema.field(name)
            by_name[name] = batch.column(name).slice(span.start - first)
    return pa.Table.from_arrays([by_name[c] for c in columns], schema=pa.schema([fields[c] for c in columns]))


def _put_pages(source: pa.NativeFile, column: pq.ColumnChunkMetaData, span: range, memory: mmap.mmap) -> int:
    """Put the pages of a column that have rows of `span` into `memory`; return the row that they begin with."""
    at: int = column.data_page_offset
    target = at
    if column.has_dictionary_page and column.dictionary_page_offset < at:
        target = column.dictionary_page_offset
    end: int = target + column.total_compressed_size
    if at > target:
        memory[target:at] = _read(source, target, at - target)
        target = at
    row, first = 0, -1
    while row < span.stop:
        page = _page_at(source, at, end)
        is_data = page.kind in (_DATA_PAGE, _DATA_PAGE_V2)
        if page.kind == _DICTIONARY_PAGE or (is_data and row + page.values > span.start):
            if is_data and first < 0:
                first = row
            memory[target : target + page.size] = _read(source, at, page.size)
            target += page.size
        at += page.size
        row += page.values if is_data else 0
    return first


def _read(source: pa.NativeFile, at: int, size: int) -> bytes:
    data: bytes = source.read_at(size, at)
    if len(data) < size:
        raise _Unreadable
    return data


def _page_at(source: pa.NativeFile, at: int, end: int) -> _PageHeader:
    """The page that begins at `at` of a column that ends at `end`."""
    size = _HEADER_BYTES
    while True:
        data: bytes = source.read_at(min(size, end - at), at) if at < end else b""
        try:
            page = _parsed(data)
        except IndexError:  # the header is longer
            if len(data) < size or size >= _HEADER_BYTES_MAX:
                raise _Unreadable from None
            size *= 8
            continue
        if page.values < 0 or page.size <= 0 or page.size > end - at:
            raise _Unreadable
        return page


# ---- Thrift's compact protocol --------------------------------------------------------------------------------------


def _parsed(data: bytes) -> _PageHeader:
    """The page whose header `data` begins with. Raises `IndexError` if it is cut off."""
    position = field = 0
    numbers = {_TYPE: -1, _COMPRESSED_BYTES: -1}
    values = 0
    while (head := data[position]) != 0:
        position += 1
        if head >> 4:
            field += head >> 4
        else:
            number, position = _varint(data, position)
            field = _signed(number)
        kind = head & 15
        if field in numbers and kind == _I32:
            number, position = _varint(data, position)
            numbers[field] = _signed(number)
        else:
            if field in (_DATA_HEADER, _DATA_HEADER_V2) and kind == _STRUCT and data[position] == _COUNT << 4 | _I32:
                values = _signed(_varint(data, position + 1)[0])
            position = _skipped(data, position, kind, 0)
    if numbers[_COMPRESSED_BYTES] < 0:
        raise _Unreadable
    return _PageHeader(numbers[_TYPE], position + 1 + numbers[_COMPRESSED_BYTES], values)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, position
        shift += 7
        if shift > 63:
            raise _Unreadable


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _skipped(data: bytes, position: int, kind: int, depth: int) -> int:
    """Where a value of this kind that begins at `position` ends."""
    if depth > _DEPTH_MAX:
        raise _Unreadable
    if kind in (_TRUE, _FALSE):
        return position
    if kind == _BYTE:
        return position + 1
    if kind in (_I16, _I32, _I64):
        return _varint(data, position)[1]
    if kind == _DOUBLE:
        return position + 8
    if kind == _BINARY:
        size, position = _varint(data, position)
        return position + size
    if kind != _STRUCT:  # page headers have no lists and maps
        raise _Unreadable
    while (head := data[position]) != 0:
        position += 1
        if not head >> 4:
            position = _varint(data, position)[1]
        position = _skipped(data, position, head & 15, depth + 1)
    return position + 1
