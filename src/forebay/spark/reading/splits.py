"""What one task reads: pieces of buckets. Values without behaviour, pickled to Spark's workers.

A *split* is a piece of one bucket; an *input partition* of Spark holds the splits of one task. The kinds:

- `KvBatchSplit`: the current rows of a bucket of a primary-key table, read by ScanKv (the split of FIP-17's connector
  integration) or by replaying its changelog. Its instant is that of the scan's table snapshot; where there is none, it
  is when the task opens the bucket.
- `LogInput`: the records of a bucket's log between two offsets, the second excluded.
- `LakePart`: a piece of the lake, perhaps with the log range that overrides it (forebay.unionread.reading).
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.metadata.table import TableBucket
from forebay.unionread.reading import UnionReader, UnionSplit


@dataclass(frozen=True, slots=True)
class KvBatchSplit:
    """All rows of a bucket. `rows` is an estimate; None where the server does not count."""

    bucket: TableBucket
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class LogInput:
    """The records of a bucket from offset `start` to before `stop`."""

    bucket: TableBucket
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, repr=False)
class LakePart:
    """A split of a union read, and how it is read. `rows` is an estimate; None where the lake does not tell.

    The parts of one task share their reader when they are pickled together.
    """

    reader: UnionReader
    split: UnionSplit
    rows: int | None = None

    def __repr__(self) -> str:
        return f"LakePart({type(self.split).__name__}, rows={self.rows})"


Split = KvBatchSplit | LogInput | LakePart
