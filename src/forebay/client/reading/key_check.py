"""A check of a filter before `forebay.client.reading.key_filter` is imported, which takes longer than a short read."""

from __future__ import annotations

from forebay.client.row_view import RowView
from forebay.metadata.predicate import Compound, Leaf, LeafFunction


def may_fix_keys(view: RowView) -> bool:
    """Whether the filter of `view` may fix keys, buckets or partitions; `key_filter.KeyFilter` then finds which."""
    predicate = view.predicate
    if predicate is None:
        return False
    fixed, pending = set[str](), [predicate]
    while pending:
        part = pending.pop()
        if isinstance(part, Compound):
            pending.extend(part.children)
        elif isinstance(part, Leaf) and part.function in (LeafFunction.EQUAL, LeafFunction.IN):
            fixed.add(part.column)
    descriptor = view.info.descriptor
    if descriptor.bucket_keys and fixed.issuperset(descriptor.bucket_keys):
        return True
    return bool(descriptor.partition_keys) and not predicate.columns().isdisjoint(descriptor.partition_keys)
