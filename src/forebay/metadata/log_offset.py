"""Log offsets that name the history they belong to.

The logs of a server have an *epoch*: random text that changes when they may have gone back to an earlier state, as when
the server is restored from an older copy (docs/format/log_epochs.md). An offset alone does not say which records it
counts: after a restore the same numbers are given again to other records. A `LogOffset` is an offset with its epoch,
and a number wherever a number is expected; a `LogPosition` has one for each bucket, and is stored as JSON.

Arithmetic returns plain numbers, without an epoch: what they mean is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from forebay.base.errors import CorruptData, UnsupportedOperation
from forebay.metadata.table import TableBucket

VERSION = 1


class LogOffset(int):
    """An offset in a log of epoch `epoch`; None if the server has no epochs, as those of Apache Fluss."""

    epoch: str | None

    def __new__(cls, offset: int, epoch: str | None = None) -> LogOffset:
        instance = super().__new__(cls, offset)
        instance.epoch = epoch
        return instance

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (int(self), self.epoch)


def epoch_of(offset: int) -> str | None:
    """The epoch that an offset names; None for a plain number."""
    return getattr(offset, "epoch", None)


def common_epoch(offsets: Iterable[int]) -> str | None:
    """The epoch of all `offsets`; None if they do not have the same."""
    epochs = {epoch_of(offset) for offset in offsets}
    return epochs.pop() if len(epochs) == 1 else None


def with_epoch(offset: int, epoch: str | None) -> int:
    """`offset` as one of `epoch`; unchanged where that is None or empty."""
    return LogOffset(offset, epoch) if epoch else offset


class LogPosition(dict[TableBucket, int]):
    """Offsets by bucket: a place in the logs of a table, from which `Table.changes` goes on.

    `to_json` returns it as plain values, for a file or a database; `from_json` reads them.
    """

    def to_json(self) -> dict[str, Any]:
        """The position as values that the `json` module can write: `{"version": 1, "table": 7, "epoch": "5f0c…",
        "log": {"0": 120}}`. A bucket of a partition is named "partition id/bucket"."""
        tables = {bucket.table_id for bucket in self}
        document: dict[str, Any] = {"version": VERSION, "table": tables.pop() if tables else -1}
        epochs = {bucket_text(bucket): epoch for bucket, offset in self.items() if (epoch := epoch_of(offset))}
        if len(epochs) == len(self) and len(set(epochs.values())) == 1:
            document["epoch"] = next(iter(epochs.values()))
        elif epochs:
            document["epochs"] = epochs
        document["log"] = {bucket_text(bucket): int(self[bucket]) for bucket in sorted(self, key=bucket_order)}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LogPosition:
        """The position in `document`. Raises `CorruptData` for other values, `UnsupportedOperation` for a newer one."""
        try:
            version = int(document["version"])
            if version > VERSION:
                raise UnsupportedOperation(f"the position is of version {version}; this release reads {VERSION}")
            table_id, epoch, epochs = int(document["table"]), document.get("epoch"), document.get("epochs", {})
            return cls(
                {
                    bucket_of(table_id, text): with_epoch(int(offset), epochs.get(text, epoch))
                    for text, offset in document["log"].items()
                }
            )
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise CorruptData(f"{document!r} is no position in the logs of a table: {e!r}") from e


def is_position_json(values: Mapping[Any, Any]) -> bool:
    """Whether `values` are what `LogPosition.to_json` returns, not offsets by bucket."""
    return "log" in values and "version" in values


def bucket_order(bucket: TableBucket) -> tuple[int, int]:
    """The order of a table's buckets: by partition, then by number."""
    return -1 if bucket.partition_id is None else bucket.partition_id, bucket.bucket


def bucket_text(bucket: TableBucket) -> str:
    """A bucket of a known table as text: "3", or "partition id/3"."""
    return str(bucket.bucket) if bucket.partition_id is None else f"{bucket.partition_id}/{bucket.bucket}"


def bucket_of(table_id: int, text: str) -> TableBucket:
    """The bucket that `bucket_text` wrote. Raises `ValueError`."""
    partition, _, number = text.rpartition("/")
    return TableBucket(table_id, int(number), int(partition) if partition else None)
