"""The results of writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.metadata.table import TableBucket


@dataclass(frozen=True)
class WriteResult:
    """The result of a write: the offsets of its records in a live table, the snapshot it created in a lake table.

    `end_offsets` holds, per written bucket, the offset after the last record of this write; it is empty with acks=0.
    Reading the log up to these offsets includes the whole write. `snapshot` is None if nothing was committed.
    """

    rows: int
    batches: int = 0
    end_offsets: Mapping[TableBucket, int] = field(default_factory=dict)
    snapshot: Any = None
