"""A filter taken apart: what prunes partitions, buckets and files, and what is left to apply to rows.

Only conjuncts prune. Those on partition columns are applied exactly by leaving out partitions (they are `accepted`);
all others remain, and the split reader applies them to rows, so that a result is exact whatever was pruned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forebay.codec.buckets import bucket_of
from forebay.codec.filters import BoundLeaf, BoundPredicate, mask
from forebay.metadata.predicate import Compound, CompoundFunction, LeafFunction, Predicate
from forebay.metadata.table import Column
from forebay.paimon.files.pruning import RangeOf, bind_filter, columns_of, conjuncts, field_for, join, may_match
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.format.stats import ColumnStats

BUCKET_COMBINATIONS_MAX = 1000
"""More combinations of bucket keys than this are not worth hashing."""


def split_conjuncts(predicate: Predicate | None) -> list[Predicate]:
    """The parts of `predicate` that must all hold."""
    if predicate is None:
        return []
    if isinstance(predicate, Compound) and predicate.function is CompoundFunction.AND:
        return [part for child in predicate.children for part in split_conjuncts(child)]
    return [predicate]


@dataclass
class ScanFilter:
    """A filter, bound to a table's schema and divided by what it is good for.

    `accepted` and `remaining` are the parts that pruning applies exactly, and those that rows are still tested for.
    """

    schema: TableSchema
    predicate: Predicate | None
    accepted: tuple[Predicate, ...] = ()
    remaining: tuple[Predicate, ...] = ()
    partition: BoundPredicate | None = None
    rows: BoundPredicate | None = None
    key: BoundPredicate | None = None
    _bucket_keys: list[bytes] | None = field(default=None, repr=False)
    _buckets: dict[int, frozenset[int]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, schema: TableSchema, predicate: Predicate | None) -> ScanFilter:
        """Raises `InvalidRequest` for unknown columns and literals that do not fit."""
        made = cls(schema, predicate)
        partition_keys, keys = set(schema.partition_keys), set(schema.primary_keys)
        accepted: list[Predicate] = []
        remaining: list[Predicate] = []
        for part in split_conjuncts(predicate):
            (accepted if part.columns() <= partition_keys else remaining).append(part)
        made.accepted, made.remaining = tuple(accepted), tuple(remaining)
        made.partition = join([bind_filter(p, schema.fields) for p in accepted])
        rows = [part for p in remaining for part in conjuncts(bind_filter(p, schema.fields))]
        made.rows = join(rows)
        made.key = join([part for part in rows if columns_of(part) <= keys])
        made._bucket_keys = _bucket_keys(schema, rows)
        return made

    # -- partitions and buckets ---------------------------------------------------------------------------------------

    def partitions_matching(self, partitions: Iterable[bytes]) -> set[bytes]:
        """Those of `partitions` that the filter allows."""
        given = list(dict.fromkeys(partitions))
        if self.partition is None or not given:
            return set(given)
        batch = row_layout(self.schema.partition_fields).decode_all(given)
        keep = mask(self.partition, batch).to_pylist()
        return {p for p, wanted in zip(given, keep, strict=True) if wanted}

    def bucket_may_match(self, bucket: int, total_buckets: int) -> bool:
        """Whether a bucket of a table with `total_buckets` may hold matching rows."""
        if self._bucket_keys is None or bucket < 0 or total_buckets <= 0:
            return True
        chosen = self._buckets.get(total_buckets)
        if chosen is None:
            chosen = frozenset(bucket_of(key, total_buckets, "paimon") for key in self._bucket_keys)
            self._buckets[total_buckets] = chosen
        return bucket in chosen


def _bucket_keys(schema: TableSchema, parts: Sequence[BoundPredicate]) -> list[bytes] | None:
    """The encoded bucket keys that the filter allows; None if it does not fix all columns of the bucket key."""
    if int(schema.options.get("bucket", "-1")) <= 0 or not schema.bucket_keys:
        return None
    values: dict[str, Sequence[Any]] = {}
    for part in parts:
        if isinstance(part, BoundLeaf) and part.function in (LeafFunction.EQUAL, LeafFunction.IN):
            known = values.get(part.column.name)
            values[part.column.name] = part.literals if known is None or len(part.literals) < len(known) else known
    if not all(name in values for name in schema.bucket_keys):
        return None
    choices = [values[name] for name in schema.bucket_keys]
    if any(isinstance(v, float) for choice in choices for v in choice):
        return None  # -0.0 equals 0.0 for filters, but they hash differently
    if math.prod(len(choice) for choice in choices) > BUCKET_COMBINATIONS_MAX:
        return None
    layout = row_layout(schema.fields_named(schema.bucket_keys))
    return [layout.encode_one(key) for key in itertools.product(*choices)]


# ---- statistics of files --------------------------------------------------------------------------------------------


class FileStatistics:
    """Ranges of columns in many files, decoded a group of files at a time and only for columns that are asked for."""

    def __init__(self, schemas: Any, columns: Iterable[Column], use_keys: bool) -> None:
        """`schemas(id)` gives a table schema; `use_keys` takes key statistics (of trimmed keys) and not values'."""
        self._schemas = schemas
        self._columns = tuple(columns)
        self._use_keys = use_keys

    def matching(self, files: Sequence[DataFileMeta], bound: BoundPredicate) -> list[bool]:
        """For each file, whether it may hold a matching row."""
        groups: dict[tuple[int, tuple[str, ...] | None], list[int]] = {}
        for i, f in enumerate(files):
            groups.setdefault((f.schema_id, None if self._use_keys else f.value_stats_cols), []).append(i)
        result = [True] * len(files)
        for (schema_id, names), positions in groups.items():
            schema = self._schemas(schema_id)
            fields = _stats_fields(schema, names, self._use_keys)
            held = {f.id: f for f in schema.fields}
            ranges = self._ranges([files[i] for i in positions], fields, held)
            for i, found in zip(positions, ranges, strict=True):
                result[i] = may_match(bound, _by_name(found), files[i].row_count)
        return result

    def _ranges(
        self, files: Sequence[DataFileMeta], fields: Sequence[DataField], held: dict[int, DataField]
    ) -> list[dict[str, ColumnStats | None]]:
        """Per file, the ranges of the wanted columns; None where nothing is known."""
        stats = [f.key_stats if self._use_keys else f.value_stats for f in files]
        least = 8 * ((len(fields) + 71) // 64) + 8 * len(fields)
        usable = [len(s.min_values) >= least and len(s.max_values) >= least for s in stats]
        found: list[dict[str, ColumnStats | None]] = [{} for _ in files]
        layout = row_layout(fields)
        rows = [i for i, ok in enumerate(usable) if ok]
        low = layout.decode_all([stats[i].min_values for i in rows]) if rows else None
        high = layout.decode_all([stats[i].max_values for i in rows]) if rows else None
        position_of = {f.id: i for i, f in enumerate(fields)}
        for column in self._columns:
            if column.column_id is not None and column.column_id not in held:
                for i, file in enumerate(files):  # added after the file was written: nothing but nulls
                    found[i][column.name] = ColumnStats(null_count=file.row_count)
                continue
            own = field_for(column, held)
            at = None if own is None else position_of.get(own.id)
            if at is None or low is None or high is None:
                continue
            lows, highs = _column_values(low.column(at)), _column_values(high.column(at))
            for row, i in enumerate(rows):
                nulls = stats[i].null_counts
                count = nulls[at] if at < len(nulls) else None
                found[i][column.name] = ColumnStats(lows[row], highs[row], count)
        return found


def _by_name(found: dict[str, ColumnStats | None]) -> RangeOf:
    return lambda column: found.get(column.name)


def _stats_fields(schema: TableSchema, names: tuple[str, ...] | None, use_keys: bool) -> tuple[DataField, ...]:
    if use_keys:
        return schema.fields_named(schema.trimmed_primary_keys)
    return schema.fields if names is None else schema.fields_named(names)


def _column_values(array: pa.Array) -> list[Any]:
    """Column values (codec.literals) of an Arrow column."""
    t = array.type
    if pa.types.is_timestamp(t):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(t) or pa.types.is_time32(t):
        array = array.cast(pa.int32())
    values: list[Any] = array.to_pylist() if not pa.types.is_nested(t) else [None] * len(array)
    return values
