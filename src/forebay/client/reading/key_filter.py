"""Filters that fix keys: the primary keys, buckets and partitions that rows which match a filter can have.

    found = KeyFilter.of(view)
    found.keys          the primary keys of all rows that can match; None if the filter does not fix them
    found.numbers       the bucket numbers of all rows that can match; None for all buckets
    found.covers(...)   whether a partition can have rows that match

Rule: what is found holds at least for the rows that match the filter, and may hold for others. So whoever reads by it
still applies the whole filter. Fluss's Rust client up to 1.0.0 puts some keys into other buckets than all other clients
do (docs/limits.md): these are looked for in both.

The filter is taken apart into *boxes*: a box has the values that some columns may have, and a row that matches is in at
least one box. `a = 1 AND b IN (2, 3)` is one box, `(a = 1 AND b = 2) OR (a = 3 AND b = 4)` are two. A condition that
fixes no column is the box without columns, which all rows are in. FLOAT and DOUBLE columns are not fixed by 0.0 and
NaN: other clients store these with several bit patterns, which are keys of their own on an Apache Fluss cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import ForebayError
from forebay.client.reading.key_check import may_fix_keys
from forebay.client.row_view import RowView
from forebay.client.writing.encode import KeyRouter
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.casting.literals import is_floating
from forebay.codec.casting.value_arrays import array_of_column_values
from forebay.codec.filters import BoundLeaf, BoundPredicate, bound_conjuncts, columns_of, mask
from forebay.codec.rows.buckets import bucket_ids, rust_bucket_ids
from forebay.codec.rows.keys import bucket_key_encoder
from forebay.metadata.partitions import partition_text, partition_value
from forebay.metadata.predicate import CompoundFunction, LeafFunction
from forebay.metadata.table import Column, PartitionInfo, TableBucket, TableInfo
from forebay.metadata.types import TypeRoot

KEYS_MAX = 4096
"""Keys that are looked up; a filter that fixes more only chooses buckets."""

_BOXES_MAX = 1 << 14
"""A condition that would need more boxes is ignored, which only makes the result larger."""

_Box = dict[str, tuple[Any, ...]]
"""For each column, the values that it may have. Columns that it does not name may have any."""

_ALL: list[_Box] = [{}]


@dataclass(frozen=True, eq=False)
class Keys:
    """Primary keys without the partition keys: their columns, their bytes on the wire, and the bucket of each."""

    rows: pa.RecordBatch
    encoded: list[bytes]
    buckets: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.encoded)

    def of_rows(self, flags: pa.BooleanArray) -> Keys:
        """Return the keys for which `flags` is true."""
        indices = np.flatnonzero(flags.to_numpy(zero_copy_only=False))
        rows = self.rows.filter(flags)
        return Keys(rows, [self.encoded[i] for i in indices.tolist()], self.buckets[indices])


@dataclass(frozen=True, eq=False)
class KeyFilter:
    """The keys, buckets and partitions that a filter allows; see the module."""

    info: TableInfo
    bound: BoundPredicate
    keys: Keys | None
    numbers: frozenset[int] | None

    @classmethod
    def of(cls, view: RowView) -> KeyFilter | None:
        """Return the keys that the filter of `view` fixes; None if it does not restrict keys, buckets or partitions."""
        info, bound = view.info, view.bound
        if bound is None or not may_fix_keys(view):
            return None
        descriptor = info.descriptor
        key = descriptor.physical_primary_key
        boxes = _boxes(bound, frozenset(key) | frozenset(descriptor.bucket_keys))
        keys = _keys(info, bound, boxes) if info.has_primary_key else None
        if keys is not None:
            return cls(info, bound, keys, frozenset(keys.buckets.tolist()))
        numbers = _numbers(info, bound, boxes) if descriptor.bucket_keys else None
        key_filter = cls(info, bound, None, numbers)
        return None if numbers is None and not key_filter._partition_parts else key_filter

    @property
    def is_empty(self) -> bool:
        """Whether no row can match."""
        return self.numbers is not None and not self.numbers

    # ---- partitions -------------------------------------------------------------------------------------------------

    @cached_property
    def _partition_parts(self) -> tuple[BoundPredicate, ...]:
        return _parts_on(self.bound, self.info.descriptor.partition_keys)

    @cached_property
    def _mixed_parts(self) -> tuple[BoundPredicate, ...]:
        """The conditions that refer to partition keys and other key columns."""
        apart = (*self._partition_parts, *_parts_on(self.bound, self.info.descriptor.physical_primary_key))
        return tuple(part for part in _parts_on(self.bound, self.info.schema.primary_key) if part not in apart)

    def partitions(self, partitions: Iterable[PartitionInfo]) -> list[PartitionInfo]:
        """Return the partitions that can have matching rows."""
        return [partition for partition in partitions if self._covers(partition)]

    def _covers(self, partition: PartitionInfo) -> bool:
        if not self._partition_parts:
            return True
        values = self._partition_values(partition)
        return values is None or all(mask(part, values)[0].as_py() for part in self._partition_parts)

    def _partition_values(self, partition: PartitionInfo) -> pa.RecordBatch | None:
        """A row with the partition's values; None if its name does not tell them exactly."""
        columns = [self.info.schema.column(name) for name, _ in partition.spec]
        if not all(_has_exact_text(column) for column in columns):
            return None
        try:
            values = {}
            for column, (name, text) in zip(columns, partition.spec, strict=True):
                values[name] = partition_value(column.data_type, text)
                if partition_text(column.data_type, values[name]) != text:
                    return None
            return pa.RecordBatch.from_pylist([values], schema=storage_schema(columns))
        except (ForebayError, pa.ArrowException, TypeError, ValueError):
            return None

    def keys_of(self, partition: PartitionInfo | None) -> Keys:
        """The keys that rows of this partition can have. The filter must fix keys."""
        assert self.keys is not None
        values = None if partition is None or not self._mixed_parts else self._partition_values(partition)
        if values is None:
            return self.keys
        keys = self.keys.rows
        repeated = [column.take(pa.array(np.zeros(keys.num_rows, np.int64))) for column in values.columns]
        rows = pa.RecordBatch.from_arrays([*keys.columns, *repeated], [*keys.schema.names, *values.schema.names])
        matching_keys = self.keys
        for part in self._mixed_parts:
            matches = mask(part, rows)
            matching_keys, rows = matching_keys.of_rows(matches), rows.filter(matches)
        return matching_keys


_EXACT_ROOTS = frozenset(
    {TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT, TypeRoot.BOOLEAN, TypeRoot.DATE}
    | {TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BINARY, TypeRoot.BYTES}
)
_TIMESTAMPS = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)


def _has_exact_text(column: Column) -> bool:
    """Whether rows of one partition have one value in `column`. (Times that differ below a millisecond share one.)"""
    t = column.data_type
    return t.root in _EXACT_ROOTS or (t.root in _TIMESTAMPS and (t.precision or 0) <= 6)


# ---- boxes ----------------------------------------------------------------------------------------------------------


def _boxes(bound: BoundPredicate, columns: frozenset[str]) -> list[_Box]:
    """Boxes of `columns` that have all matching rows; none if no row can match."""
    if isinstance(bound, BoundLeaf):
        return _of_leaf(bound, columns)
    if bound.function is CompoundFunction.OR:
        return _union([_boxes(child, columns) for child in bound.children])
    result = _ALL
    # Those with the fewest boxes first; what would be too many is left out, as leaving out conditions is safe.
    for boxes in sorted((_boxes(child, columns) for child in bound.children), key=len):
        if len(result) * len(boxes) <= _BOXES_MAX:
            result = [both for a in result for b in boxes if (both := _intersection(a, b)) is not None]
    return result


def _of_leaf(leaf: BoundLeaf, columns: frozenset[str]) -> list[_Box]:
    if leaf.function is LeafFunction.IN and not leaf.literals:
        return []
    if leaf.column.name not in columns or leaf.function not in (LeafFunction.EQUAL, LeafFunction.IN):
        return _ALL
    if is_floating(leaf.column.data_type) and any(v == 0 or math.isnan(v) for v in leaf.literals):
        return _ALL
    return [{leaf.column.name: tuple(dict.fromkeys(leaf.literals))}]


def _union(alternatives: Sequence[list[_Box]]) -> list[_Box]:
    result: list[_Box] = []
    of_one_column: dict[str, dict[Any, None]] = {}
    for box in (box for boxes in alternatives for box in boxes):
        if not box:
            return _ALL
        if len(box) == 1:  # `a = 1 OR a = 2 OR ...` is one box
            [(name, values)] = box.items()
            of_one_column.setdefault(name, {}).update(dict.fromkeys(values))
        else:
            result.append(box)
    result += [{name: tuple(values)} for name, values in of_one_column.items()]
    return result if len(result) <= _BOXES_MAX else _ALL


def _intersection(a: _Box, b: _Box) -> _Box | None:
    both = {**a, **b}
    for name in a.keys() & b.keys():
        allowed = set(b[name])
        both[name] = tuple(value for value in a[name] if value in allowed)
        if not both[name]:
            return None
    return both


def _rows_of(boxes: Sequence[_Box], columns: Sequence[Column]) -> pa.RecordBatch | None:
    """All rows of `columns` that the boxes allow, each once; None if these are too many, or not fixed."""
    names = [column.name for column in columns]
    if any(name not in box for box in boxes for name in names):
        return None
    if sum(math.prod(len(box[name]) for name in names) for box in boxes) > KEYS_MAX:
        return None
    rows = list(dict.fromkeys(row for box in boxes for row in product(*(box[name] for name in names))))
    sizes = [c.data_type.length if c.data_type.root is TypeRoot.BINARY else None for c in columns]
    if any(size is not None for size in sizes):  # no value of BINARY(n) has another length
        rows = [row for row in rows if all(n is None or len(v) == n for v, n in zip(row, sizes))]
    schema = storage_schema(columns)
    try:
        arrays = [array_of_column_values([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None  # a value that no row can have: half of a surrogate pair, for instance
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---- keys and buckets -----------------------------------------------------------------------------------------------


def _keys(info: TableInfo, bound: BoundPredicate, boxes: Sequence[_Box]) -> Keys | None:
    names = info.descriptor.physical_primary_key
    rows = _rows_of(boxes, [info.schema.column(name) for name in names])
    if rows is None:
        return None
    for part in _parts_on(bound, names):
        rows = rows.filter(mask(part, rows))
    encoded, buckets = KeyRouter(info).route(rows)
    others = _rust_buckets(info, rows)
    differ = np.flatnonzero(buckets != others)
    if len(differ):
        rows = pa.Table.from_batches([rows, rows.take(pa.array(differ))]).combine_chunks().to_batches()[0]
        buckets = np.concatenate([buckets, others[differ]])
    keys: list[bytes] = encoded.to_pylist()
    return Keys(rows, keys + [keys[i] for i in differ.tolist()], buckets)


def _numbers(info: TableInfo, bound: BoundPredicate, boxes: Sequence[_Box]) -> frozenset[int] | None:
    descriptor = info.descriptor
    rows = _rows_of(boxes, [info.schema.column(name) for name in descriptor.bucket_keys])
    encoder = bucket_key_encoder(descriptor)
    if rows is None or encoder is None:
        return None
    for part in _parts_on(bound, descriptor.bucket_keys):
        rows = rows.filter(mask(part, rows))
    ids = bucket_ids(encoder.encode(rows), info.bucket_count, descriptor.lake_format)
    numbers = frozenset([*ids.tolist(), *_rust_buckets(info, rows).tolist()])
    return None if len(numbers) == info.bucket_count else numbers


def _rust_buckets(info: TableInfo, rows: pa.RecordBatch) -> npt.NDArray[np.int32]:
    """The bucket of each key, if a Rust client wrote it."""
    encoder = bucket_key_encoder(info.descriptor)
    assert encoder is not None
    return rust_bucket_ids(encoder.encode(rows), info.bucket_count, info.descriptor.lake_format)


def _parts_on(bound: BoundPredicate, names: Sequence[str]) -> tuple[BoundPredicate, ...]:
    """The conditions of a conjunction that refer only to the columns `names`, and to at least one."""
    return tuple(part for part in bound_conjuncts(bound) if names and columns_of(part) <= set(names))


def possible_buckets(view: RowView, buckets: Sequence[TableBucket]) -> Sequence[TableBucket]:
    """Return the buckets that can have matching rows, by the bucket keys that the filter fixes."""
    key_filter = KeyFilter.of(view)
    numbers = None if key_filter is None else key_filter.numbers
    return buckets if numbers is None else [bucket for bucket in buckets if bucket.bucket in numbers]
