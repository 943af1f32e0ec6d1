"""What a write did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.metadata.table import TableBucket


@dataclass(frozen=True)
class WriteResult:
    """What a write did: on a live table where its records are, on a lake table the snapshot that it made.

    `end_offsets` holds, for each bucket that was written, the offset after its last record of this write; it is empty
    with acks=0. Reading the log up to there sees the whole write. `snapshot` is None where nothing was committed.
    """

    rows: int
    batches: int = 0
    end_offsets: Mapping[TableBucket, int] = field(default_factory=dict)
    snapshot: Any = None
