"""The text of a request in the `explain` of scans."""

from __future__ import annotations

from forebay.api.scan import ScanRequest
from forebay.metadata.predicate import predicate_text


def request_lines(request: ScanRequest, buckets: int) -> list[str]:
    """Lines with the number of buckets, the columns, the filter and the limit."""
    columns = "all" if request.columns is None else ", ".join(request.columns) or "none, rows are counted"
    lines = [f"buckets: {buckets}", f"columns: {columns}"]
    if request.predicate is not None:
        lines.append(f"filter: {predicate_text(request.predicate)}")
    if request.limit is not None:
        lines.append(f"limit: {request.limit} rows, of one bucket after the other")
    return lines
