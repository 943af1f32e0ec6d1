"""Dividing a filter into the parts that prune partitions, buckets and files, and the rest, which is applied to rows.

Only conjuncts prune. Those on partition columns are applied exactly by pruning partitions (they are `accepted`); all
others remain, and the split reader applies them to rows, so that the result is exact however much was pruned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.codec.filters import BoundLeaf, BoundPredicate, bound_conjuncts, columns_of, join, mask
from forebay.metadata.predicate import LeafFunction, Predicate, conjuncts
from forebay.paimon.bucket_function import bucket_function
from forebay.paimon.files.pruning import bind_filter
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.schema import TableSchema

BUCKET_COMBINATIONS_MAX = 1000
"""The maximum number of bucket key combinations that are hashed for pruning."""


@dataclass
class ScanFilter:
    """A filter, bound to a table's schema and divided by purpose.

    `accepted` are the parts that pruning applies exactly, `remaining` those that must still be applied to rows.
    """

    schema: TableSchema
    predicate: Predicate | None
    accepted: tuple[Predicate, ...] = ()
    remaining: tuple[Predicate, ...] = ()
    partition: BoundPredicate | None = None
    rows: BoundPredicate | None = None
    key: BoundPredicate | None = None
    _bucket_keys: pa.RecordBatch | None = field(default=None, repr=False)
    _buckets: dict[int, frozenset[int]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, schema: TableSchema, predicate: Predicate | None) -> ScanFilter:
        """The filter for `predicate`. Raises `InvalidRequest` for unknown columns and literals that do not fit."""
        if predicate is not None and not isinstance(predicate, Predicate):
            raise InvalidRequest(
                f"a filter is made with forebay.col, such as col('id') > 5; got a {type(predicate).__name__}: "
                f"{str(predicate)[:80]}"
            )
        scan_filter = cls(schema, predicate)
        partition_keys, keys = set(schema.partition_keys), set(schema.primary_keys)
        accepted: list[Predicate] = []
        remaining: list[Predicate] = []
        for part in conjuncts(predicate):
            (accepted if part.columns() <= partition_keys else remaining).append(part)
        scan_filter.accepted, scan_filter.remaining = tuple(accepted), tuple(remaining)
        scan_filter.partition = join([bind_filter(p, schema.fields) for p in accepted])
        rows = [part for p in remaining for part in bound_conjuncts(bind_filter(p, schema.fields))]
        scan_filter.rows = join(rows)
        scan_filter.key = join([part for part in rows if columns_of(part) <= keys])
        scan_filter._bucket_keys = _bucket_keys(schema, rows)
        return scan_filter

    # -- partitions and buckets ---------------------------------------------------------------------------------------

    def partitions_matching(self, partitions: Iterable[bytes]) -> set[bytes]:
        """The partitions that match the filter."""
        distinct = list(dict.fromkeys(partitions))
        if self.partition is None or not distinct:
            return set(distinct)
        batch = row_layout(self.schema.partition_fields).decode_all(distinct)
        keep = mask(self.partition, batch).to_pylist()
        return {p for p, is_match in zip(distinct, keep, strict=True) if is_match}

    @property
    def fixes_key(self) -> bool:
        """Whether at most one key of each partition matches."""
        fixed = {
            part.column.name
            for part in bound_conjuncts(self.key)
            if isinstance(part, BoundLeaf)
            and (part.function is LeafFunction.EQUAL or (part.function is LeafFunction.IN and len(part.literals) == 1))
        }
        return fixed.issuperset(self.schema.trimmed_primary_keys)

    @property
    def fixes_buckets(self) -> bool:
        """Whether the filter excludes any bucket."""
        return self._bucket_keys is not None

    def bucket_may_match(self, bucket: int, total_buckets: int) -> bool:
        """Whether bucket `bucket` of a table with `total_buckets` buckets may contain matching rows."""
        if self._bucket_keys is None or bucket < 0 or total_buckets <= 0:
            return True
        candidates = self._buckets.get(total_buckets)
        if candidates is None:
            candidates = frozenset(bucket_function(self.schema).buckets(self._bucket_keys, total_buckets).tolist())
            self._buckets[total_buckets] = candidates
        return bucket in candidates


def _bucket_keys(schema: TableSchema, parts: Sequence[BoundPredicate]) -> pa.RecordBatch | None:
    """The bucket keys that the filter allows; None if it does not fix all columns of the bucket key."""
    if int(schema.options.get("bucket", "-1")) <= 0 or not schema.bucket_keys:
        return None
    values: dict[str, Sequence[Any]] = {}
    for part in parts:
        if isinstance(part, BoundLeaf) and part.function in (LeafFunction.EQUAL, LeafFunction.IN):
            literals = values.get(part.column.name)
            values[part.column.name] = (
                part.literals if literals is None or len(part.literals) < len(literals) else literals
            )
    if not all(name in values for name in schema.bucket_keys):
        return None
    choices = [values[name] for name in schema.bucket_keys]
    if any(isinstance(v, float) for choice in choices for v in choice):
        return None  # -0.0 equals 0.0 for filters, but they hash differently
    if math.prod(len(choice) for choice in choices) > BUCKET_COMBINATIONS_MAX:
        return None
    try:
        bucket_function(schema)
    except InvalidRequest:
        return None  # rows of this bucket function can be read, but not written or hashed here
    layout = row_layout(schema.fields_named(schema.bucket_keys))
    return layout.decode_all([layout.encode_one(key) for key in itertools.product(*choices)])
