"""Pruning of data files by the column statistics in their manifest entries.

Pruning is columnar: the minimum and maximum values of many files are decoded at once, only for the columns that the
filter reads, and compared by Arrow where Arrow's order is that of filters. The result is the same as that of
`forebay.paimon.files.pruning.may_match` for each file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.codec.filters import BoundCompound, BoundLeaf, BoundPredicate
from forebay.metadata.predicate import CompoundFunction, LeafFunction
from forebay.metadata.table import Column
from forebay.paimon.files.pruning import column_values, field_for, may_match
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.manifest_rows import ManifestRows, Rows
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.format.stats import ColumnStats

_F = LeafFunction
_IN_LITERALS_MAX = 64
_UNKNOWN = -1

Hits = npt.NDArray[np.bool_]
StatsGroup = tuple[int, tuple[str, ...] | None]
"""The schema id and the columns with statistics (None: all) that a group of files has in common."""


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Statistics of a group of files: BinaryRows of bounds, and null counts by position; -1 means unknown."""

    low: pa.BinaryArray
    high: pa.BinaryArray
    null_counts: Callable[[int], Rows]
    row_counts: Rows


@dataclass(frozen=True, slots=True)
class _Range:
    """The bounds of one column in many files. Without bounds, nothing is known about them."""

    low: pa.Array | None
    high: pa.Array | None
    nulls: Rows


class FileStatistics:
    """Prunes the files of one table by the columns `columns`.

    `schemas(id)` returns a table schema. `use_keys` uses the statistics of (trimmed) keys instead of those of values.
    """

    def __init__(self, schemas: Callable[[int], TableSchema], columns: Iterable[Column], use_keys: bool) -> None:
        self._schemas = schemas
        self._columns = tuple(columns)
        self._use_keys = use_keys

    def matching(self, files: Sequence[DataFileMeta], bound: BoundPredicate) -> Hits:
        """For each file, whether it may contain a matching row."""
        groups: dict[StatsGroup, list[int]] = {}
        for i, f in enumerate(files):
            groups.setdefault((f.schema_id, None if self._use_keys else f.value_stats_cols), []).append(i)
        result = np.ones(len(files), np.bool_)
        for group, positions in groups.items():
            result[positions] = self._decided(group, self._of_files([files[i] for i in positions]), bound)
        return result

    def matching_rows(self, parts: Sequence[tuple[ManifestRows, Rows]], bound: BoundPredicate) -> list[Rows]:
        """For each part (rows of a manifest), the rows, in order, whose files may contain a matching row."""
        groups: dict[StatsGroup, list[tuple[int, Rows]]] = {}
        for number, (rows, selection) in enumerate(parts):
            for group, members in rows.by_statistics(selection, keys=self._use_keys).items():
                groups.setdefault(group, []).append((number, members))
        matches: list[list[Rows]] = [[] for _ in parts]
        for group, pieces in groups.items():
            hits = self._decided(group, self._of_rows([(parts[number][0], rows) for number, rows in pieces]), bound)
            at = 0
            for number, members in pieces:
                matches[number].append(members[hits[at : at + len(members)]])
                at += len(members)
        nothing = np.empty(0, np.int64)
        return [np.sort(np.concatenate(parts_of_rows)) if parts_of_rows else nothing for parts_of_rows in matches]

    def _of_files(self, files: Sequence[DataFileMeta]) -> _Statistics:
        stats = [f.key_stats if self._use_keys else f.value_stats for f in files]

        def null_counts(position: int) -> Rows:
            counts = (s.null_counts[position] if position < len(s.null_counts) else None for s in stats)
            return np.array([_UNKNOWN if n is None else n for n in counts], np.int64)

        return _Statistics(
            pa.array([s.min_values for s in stats], pa.binary()),
            pa.array([s.max_values for s in stats], pa.binary()),
            null_counts,
            np.array([f.row_count for f in files], np.int64),
        )

    def _of_rows(self, pieces: Sequence[tuple[ManifestRows, Rows]]) -> _Statistics:
        keys = self._use_keys
        return _Statistics(
            pa.concat_arrays([rows.least(members, keys=keys) for rows, members in pieces]),
            pa.concat_arrays([rows.greatest(members, keys=keys) for rows, members in pieces]),
            lambda position: np.concatenate([rows.null_counts(m, position, keys=keys) for rows, m in pieces]),
            np.concatenate([rows.row_counts[members] for rows, members in pieces]),
        )

    def _decided(self, group: StatsGroup, statistics: _Statistics, bound: BoundPredicate) -> Hits:
        schema = self._schemas(group[0])
        fields = _stats_fields(schema, group[1], self._use_keys)
        return _may_match(bound, self._ranges(schema, fields, statistics), statistics.row_counts)

    def _ranges(
        self, schema: TableSchema, fields: Sequence[DataField], statistics: _Statistics
    ) -> dict[str, _Range | None]:
        """The ranges of the requested columns; None where no file has statistics."""
        by_id = {f.id: f for f in schema.fields}
        position_of = {f.id: i for i, f in enumerate(fields)}
        bounds: tuple[pa.RecordBatch, pa.RecordBatch, Hits] | None = None
        ranges: dict[str, _Range | None] = {}
        for column in self._columns:
            if column.column_id is not None and column.column_id not in by_id:
                ranges[column.name] = _Range(None, None, statistics.row_counts)  # added later: all values are null
                continue
            own = field_for(column, by_id)
            at = None if own is None else position_of.get(own.id)
            if at is None:
                ranges[column.name] = None
                continue
            if bounds is None:
                bounds = _decoded(fields, statistics)
            low, high, usable = bounds
            nulls = np.where(usable, statistics.null_counts(at), _UNKNOWN)
            ranges[column.name] = _Range(low.column(at), high.column(at), nulls)
        return ranges


def _stats_fields(schema: TableSchema, names: tuple[str, ...] | None, use_keys: bool) -> tuple[DataField, ...]:
    if use_keys:
        return schema.fields_named(schema.trimmed_primary_keys)
    return schema.fields if names is None else schema.fields_named(names)


def _decoded(fields: Sequence[DataField], statistics: _Statistics) -> tuple[pa.RecordBatch, pa.RecordBatch, Hits]:
    """Bounds as columns, and which files have any. Rows that are too short hold no statistics."""
    least = 8 * ((len(fields) + 71) // 64) + 8 * len(fields)
    lengths = [np.diff(np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1])
               for rows in (statistics.low, statistics.high)]  # fmt: skip
    usable: Hits = (lengths[0] >= least) & (lengths[1] >= least)
    layout = row_layout(fields)
    rows = [statistics.low, statistics.high]
    if not usable.all():
        nothing = pa.scalar(layout.encode_one([None] * len(fields)), pa.binary())
        rows = [pc.if_else(pa.array(usable), column, nothing) for column in rows]
    return layout.decode_all(rows[0]), layout.decode_all(rows[1]), usable


# ---- decisions ------------------------------------------------------------------------------------------------------


def _may_match(bound: BoundPredicate, ranges: dict[str, _Range | None], row_counts: Rows) -> Hits:
    if isinstance(bound, BoundCompound):
        combine = np.logical_and if bound.function is CompoundFunction.AND else np.logical_or
        parts = [_may_match(child, ranges, row_counts) for child in bound.children]
        return functools.reduce(combine, parts, np.full(len(row_counts), combine is np.logical_and))
    column_range = ranges.get(bound.column.name)
    if column_range is None:
        return np.ones(len(row_counts), np.bool_)
    if bound.function is _F.IS_NULL:
        return np.not_equal(column_range.nulls, 0)
    hits: Hits = (column_range.nulls == _UNKNOWN) | (column_range.nulls < row_counts)
    if bound.function is _F.IN and not bound.literals:
        return np.zeros(len(row_counts), np.bool_)
    if column_range.low is None or column_range.high is None or not hits.any():
        return hits
    decided = _compared(bound, column_range.low, column_range.high)
    return hits & (_one_by_one(bound, column_range.low, column_range.high) if decided is None else decided)


def _compared(leaf: BoundLeaf, low: pa.Array, high: pa.Array) -> Hits | None:
    """The decision by Arrow's comparisons, true where a bound is missing; None if Arrow cannot compare the values."""
    if len(leaf.literals) > _IN_LITERALS_MAX:
        return None
    low, high = _comparable(low), _comparable(high)
    if low is None or high is None:
        return None
    try:
        literals = [pa.scalar(value, low.type) for value in leaf.literals]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
        return None  # the literal equals no value of the column, but may be above or below some
    match leaf.function:
        case _F.EQUAL | _F.IN:
            within = [pc.and_(pc.less_equal(low, v), pc.greater_equal(high, v)) for v in literals]
            decided = within[0]
            for other in within[1:]:
                decided = pc.or_(decided, other)
        case _F.LESS_THAN:
            decided = pc.less(low, literals[0])
        case _F.LESS_OR_EQUAL:
            decided = pc.less_equal(low, literals[0])
        case _F.GREATER_THAN:
            decided = pc.greater(high, literals[0])
        case _F.GREATER_OR_EQUAL:
            decided = pc.greater_equal(high, literals[0])
        case _:
            return None
    is_bounded = pc.and_(pc.is_valid(low), pc.is_valid(high))
    result: Hits = pc.if_else(is_bounded, decided, True).to_numpy(zero_copy_only=False)
    return result


def _comparable(array: pa.Array) -> pa.Array | None:
    """`array` in a type that Arrow orders as filters do (text by its bytes); None if there is none."""
    t = array.type
    if pa.types.is_timestamp(t):
        return array.cast(pa.int64())
    if pa.types.is_date32(t) or pa.types.is_time32(t):
        return array.cast(pa.int32())
    if pa.types.is_integer(t) or pa.types.is_string(t) or pa.types.is_binary(t) or pa.types.is_decimal(t):
        return array
    return None


def _one_by_one(leaf: BoundLeaf, low: pa.Array, high: pa.Array) -> Hits:
    """The decision file by file."""
    ranges = (ColumnStats(*pair) for pair in zip(column_values(low), column_values(high), strict=True))
    return np.array([_one_may_match(leaf, stats) for stats in ranges], np.bool_)


def _one_may_match(leaf: BoundLeaf, stats: ColumnStats) -> bool:
    return may_match(leaf, lambda _: stats, 1)
