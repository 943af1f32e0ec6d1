"""The tiered offset of each bucket's log, and the JSON file in which a Fluss cluster stores it.

An offset is a *log end offset*: the first one that is not in the lake snapshot. The file format is Fluss's
`TableBucketOffsets`, version 1: `{"version": 1, "table_id": 7, "bucket_offsets": [10, -1, 3]}`, and for partitioned
tables `"partition_offsets": [{"partition_id": 3, "bucket_offsets": [...]}, ...]`; the index in an array is the bucket,
-1 stands for a bucket that is not in the lake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.base.errors import CorruptData, InvalidRequest
from forebay.metadata.table import TableBucket

_VERSION = 1
_ABSENT = -1
"""The offset of a bucket without one, in the list of a partition's buckets."""


@dataclass(frozen=True, slots=True)
class BucketOffsets:
    """The log end offsets of one table's buckets in a lake snapshot; buckets without rows there are absent."""

    table_id: int
    offsets: Mapping[TableBucket, int]

    def __post_init__(self) -> None:
        for bucket, offset in self.offsets.items():
            if bucket.table_id != self.table_id:
                raise InvalidRequest(f"bucket {bucket} is not one of table {self.table_id}")
            if offset < 0:
                raise InvalidRequest(f"the log end offset of bucket {bucket} is {offset}; it cannot be negative")

    def merged(self, newer: BucketOffsets) -> BucketOffsets:
        """These offsets, replaced by those of `newer` where it has some."""
        return BucketOffsets(self.table_id, {**self.offsets, **newer.offsets})

    def to_json(self) -> bytes:
        """The file's bytes, as Fluss writes them."""
        partitions: dict[int | None, dict[int, int]] = {}
        for bucket, offset in self.offsets.items():
            partitions.setdefault(bucket.partition_id, {})[bucket.bucket] = offset
        document: dict[str, Any] = {"version": _VERSION, "table_id": self.table_id}
        if None in partitions:
            if len(partitions) > 1:
                raise InvalidRequest(f"the offsets of table {self.table_id} mix buckets with and without partitions")
            document["bucket_offsets"] = _as_array(partitions[None])
        elif partitions:
            document["partition_offsets"] = [
                {"partition_id": partition, "bucket_offsets": _as_array(partitions[partition])}
                for partition in sorted(p for p in partitions if p is not None)
            ]
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> BucketOffsets:
        """The offsets in a file. Raises `CorruptData` for a malformed file or another version."""
        try:
            document = json.loads(data)
            if document["version"] != _VERSION:
                raise CorruptData(f"lake offsets have version {document['version']}; this release reads {_VERSION}")
            table = int(document["table_id"])
            offsets = _of_array(table, None, document.get("bucket_offsets", []))
            for entry in document.get("partition_offsets", []):
                offsets.update(_of_array(table, int(entry["partition_id"]), entry["bucket_offsets"]))
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptData(f"not a file of lake offsets: {e!r}") from e
        return cls(table, offsets)


def _as_array(offsets: Mapping[int, int]) -> list[int]:
    return [offsets.get(bucket, _ABSENT) for bucket in range(max(offsets) + 1)]


def _of_array(table: int, partition: int | None, array: list[int]) -> dict[TableBucket, int]:
    return {TableBucket(table, i, partition): int(offset) for i, offset in enumerate(array) if int(offset) != _ABSENT}
