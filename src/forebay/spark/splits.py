"""What one task reads: pieces of buckets. Values without behaviour, pickled to Spark's workers.

A *split* is a piece of one bucket; an *input partition* of Spark holds the splits of one task. The kinds:

- `KvBatchSplit`: the current rows of a bucket of a primary-key table, read by ScanKv (the split of FIP-17's connector
  integration) or by replaying its changelog. Its instant is when the task opens the bucket.
- `LogSplit`: the records of a bucket's log between two offsets, the second excluded.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.metadata.table import TableBucket


@dataclass(frozen=True, slots=True)
class KvBatchSplit:
    """All rows of a bucket. `rows` is an estimate; None where the server does not count."""

    bucket: TableBucket
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The records of a bucket from offset `start` to before `stop`."""

    bucket: TableBucket
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


Split = KvBatchSplit | LogSplit
