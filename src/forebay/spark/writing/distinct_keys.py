"""The check that no two rows of a MERGE get one primary key, of which the later row would replace the earlier.

Delta and Paimon insert both. But in a table with a primary key that loses a row, and which one depends on the order in
which Spark's tasks run.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest

KEYS_SHOWN = 3
"""Maximum number of keys in the message."""


class DistinctKeys:
    """The keys of the rows of a task. All rows of a key must be in one task."""

    def __init__(self, key: Sequence[str]) -> None:
        """`key` has the names of the columns of the primary key."""
        self._key = list(key)
        self._seen: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._seen.append(rows.select(self._key))

    def check(self) -> None:
        """Raise `InvalidRequest` if two of the rows have one key."""
        if not self._seen:
            return
        counts = pa.Table.from_batches(self._seen).group_by(self._key).aggregate([([], "count_all")])
        shared = counts.filter(pc.greater(counts.column("count_all"), 1)).select(self._key)
        if shared.num_rows:
            raise shared_keys(shared.num_rows, shared.slice(0, KEYS_SHOWN))


def shared_keys(number: int, some: pa.Table | pa.RecordBatch, prefix: str = "") -> InvalidRequest:
    """The error for a number of keys that would each get more than one row. `some` has the keys that it names."""
    keys = (", ".join(f"{name} = {value!r}" for name, value in row.items()) for row in some.to_pylist())
    return InvalidRequest(
        f"{prefix}{number} primary keys would each get more than one row, such as {' and '.join(keys)}; change the "
        "statement, or deduplicate its source"
    )
