"""The work of one task, of lake and stream: small values that pickle, and have a form in bytes.

Union reads, Spark's tasks and the reads that Spark's executors do themselves all describe their work by these:

- `LakeSnapshotSplit`: lake rows that the log does not change.
- `LakeSnapshotAndLogSplit`: the lake rows of one bucket of a primary-key table, and the log range that overrides
  them.
- `LogSplit`: a log range of a bucket of a log table.
- `LakeRecordsSplit`: a log range of a bucket of a log table that only the lake still has.
- `KvBucketSplit`: all rows of a bucket of a primary-key table, from its server.
- `KeyLookupSplit`: rows of a primary-key table whose keys the filter fixes: the servers have the current ones.

The point in time of the last two is not fixed at planning but when a task reads them, unless the task has a table
snapshot to read the bucket from. The columns, the filter and the limit are common to all splits of a plan
(`forebay.unionread.reading.UnionReader`). `rows` estimates the rows to read, before filters; None: unknown.

`SplitCodec` writes splits as bytes, for places where pickle is unsuitable, such as checkpoints.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay.base.errors import CorruptData, InternalError, UnsupportedOperation
from forebay.lake.source import LakeSource, LakeSplit
from forebay.metadata.table import TableBucket


@dataclass(frozen=True, slots=True)
class LakeSnapshotSplit:
    """One split of the lake, read as it is."""

    lake: LakeSplit

    @property
    def rows(self) -> int | None:
        return self.lake.rows()


@dataclass(frozen=True, slots=True)
class LakeSnapshotAndLogSplit:
    """The lake's splits of a bucket (perhaps none), and the changelog from offset `start` to before `stop`."""

    bucket: TableBucket
    lake: tuple[LakeSplit, ...]
    start: int
    stop: int

    @property
    def rows(self) -> int | None:
        counts = [split.rows() for split in self.lake]
        known_counts = [count for count in counts if count is not None]
        return sum(known_counts) + self.stop - self.start if len(known_counts) == len(counts) else None


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The records of a bucket from offset `start` to before `stop`."""

    bucket: TableBucket
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def resumed(self, place: str) -> LogSplit:
        """The records from the offset `place` on."""
        return replace(self, start=int(place))


@dataclass(frozen=True, slots=True)
class LakeRecordsSplit:
    """The records of a bucket from offset `start` to before `stop`, all of which are in these splits of the lake."""

    bucket: TableBucket
    lake: tuple[LakeSplit, ...]
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class KvBucketSplit:
    """All rows of a bucket: the current ones, or those of a table snapshot that the task has.

    `after` is the position in the table snapshot behind which they are to be read; None: from the first row on.
    """

    bucket: TableBucket
    rows: int | None = None
    after: bytes | None = None

    def resumed(self, place: str) -> KvBucketSplit:
        """The rows behind `place`, a position in hexadecimal digits."""
        return replace(self, after=bytes.fromhex(place) or None)


@dataclass(frozen=True, slots=True)
class KeyLookupSplit:
    """The current rows of some keys: buckets, each with the keys to look up in it as they are on the wire."""

    keys: tuple[tuple[TableBucket, tuple[bytes, ...]], ...]

    @property
    def rows(self) -> int:
        return sum(len(keys) for _, keys in self.keys)


UnionSplit = LakeSnapshotSplit | LakeSnapshotAndLogSplit | LogSplit | LakeRecordsSplit | KvBucketSplit | KeyLookupSplit

_VERSION = 3
_LAKE, _LAKE_AND_LOG, _LOG, _KV, _KEYS, _RECORDS = "lake", "lake-and-log", "log", "kv", "keys", "lake-records"


class SplitCodec:
    """Splits as bytes and back. Every version ever written stays readable.

    Version 1 is JSON: the kind, the bucket, the log range, and the lake's splits as its own serializer writes them.
    Version 2 has the keys of lookups, too, and version 3 records of the lake. Other splits are still written as version
    1.
    """

    version = _VERSION

    def __init__(self, source: LakeSource | None) -> None:
        """`source` created the lake's splits; None if there are none."""
        self._lake = None if source is None else source.split_serializer()

    def encode(self, split: UnionSplit) -> bytes:
        """Return a split in the newest version of its kind: 2 for key lookups, 3 for records, 1 for all others."""
        document: dict[str, Any] = {"version": 1}
        match split:
            case LakeSnapshotSplit(lake):
                document |= {"kind": _LAKE, "lake": self._pack([lake])}
            case LakeSnapshotAndLogSplit(bucket, lakes, start, stop):
                document |= {"kind": _LAKE_AND_LOG, "bucket": _plain(bucket), "range": [start, stop]}
                document["lake"] = self._pack(lakes)
            case LogSplit(bucket, start, stop):
                document |= {"kind": _LOG, "bucket": _plain(bucket), "range": [start, stop]}
            case KvBucketSplit(bucket):
                document |= {"kind": _KV, "bucket": _plain(bucket)}
            case KeyLookupSplit(keys):
                packed = [[_plain(bucket), [base64.b64encode(k).decode() for k in of_one]] for bucket, of_one in keys]
                document = {"version": 2, "kind": _KEYS, "keys": packed}
            case LakeRecordsSplit(bucket, lakes, start, stop):
                document = {"version": _VERSION, "kind": _RECORDS, "bucket": _plain(bucket), "range": [start, stop]}
                document["lake"] = self._pack(lakes)
        return json.dumps(document, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> UnionSplit:
        """Return the split. Raises `CorruptData` for invalid bytes, `UnsupportedOperation` for a newer version."""
        try:
            document = json.loads(data)
            version = int(document["version"])
            if version > _VERSION:
                raise UnsupportedOperation(
                    f"a split of a union read has version {version}; this release reads {_VERSION}"
                )
            return self._decode(document)
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptData(f"these bytes are no split of a union read: {e!r}") from e

    def _decode(self, document: dict[str, Any]) -> UnionSplit:
        kind = document["kind"]
        if kind == _LAKE:
            (only,) = self._unpack(document["lake"])
            return LakeSnapshotSplit(only)
        if kind == _KEYS:
            keys = ((_bucket(plain), of_one) for plain, of_one in document["keys"])
            return KeyLookupSplit(tuple((b, tuple(base64.b64decode(k, validate=True) for k in o)) for b, o in keys))
        bucket = _bucket(document["bucket"])
        if kind == _KV:
            return KvBucketSplit(bucket)
        start, stop = (int(offset) for offset in document["range"])
        if kind == _LOG:
            return LogSplit(bucket, start, stop)
        if kind == _LAKE_AND_LOG:
            return LakeSnapshotAndLogSplit(bucket, self._unpack(document["lake"]), start, stop)
        if kind == _RECORDS:
            return LakeRecordsSplit(bucket, self._unpack(document["lake"]), start, stop)
        raise CorruptData(f"a split of a union read is of kind {kind!r}, which does not exist")

    def _pack(self, splits: Sequence[LakeSplit]) -> list[Any]:
        """The lake's version, then each split."""
        if not splits:
            return []
        if self._lake is None:
            raise InternalError("a plan without a lake has a split with lake rows")
        return [self._lake.version, *(base64.b64encode(self._lake.serialize(split)).decode() for split in splits)]

    def _unpack(self, packed: list[Any]) -> tuple[LakeSplit, ...]:
        if not packed:
            return ()
        if self._lake is None:
            raise CorruptData("a split of a union read has lake rows, and the plan it came with has no lake")
        lake, (version, *texts) = self._lake, packed
        return tuple(lake.deserialize(int(version), base64.b64decode(text, validate=True)) for text in texts)


def _plain(bucket: TableBucket) -> list[int | None]:
    return [bucket.bucket, bucket.table_id, bucket.partition_id]


def _bucket(plain: list[Any]) -> TableBucket:
    number, table, partition = plain
    return TableBucket(int(table), int(number), None if partition is None else int(partition))
