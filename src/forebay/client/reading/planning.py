"""What a read asks for, before it is planned: whether its filter chooses keys, and its text for `explain`."""

from __future__ import annotations

from forebay.api.scan import ScanRequest
from forebay.client.row_view import RowView
from forebay.metadata.predicate import Compound, Leaf, LeafFunction, predicate_text


def fixes_keys(view: RowView) -> bool:
    """Whether the filter of `view` may choose keys, buckets or partitions; `key_filter.KeyFilter` then says which."""
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


def explained(request: ScanRequest, buckets: int) -> list[str]:
    """A text form of a request, for `explain`."""
    columns = "all" if request.columns is None else ", ".join(request.columns) or "none, rows are counted"
    lines = [f"buckets: {buckets}", f"columns: {columns}"]
    if request.predicate is not None:
        lines.append(f"filter: {predicate_text(request.predicate)}")
    if request.limit is not None:
        lines.append(f"limit: {request.limit} rows, of one bucket after the other")
    return lines
