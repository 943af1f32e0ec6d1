"""Conditions of commits: no other writer has changed the keys that a transaction writes, and its rows can be merged.

The first condition is, for a primary-key table, a log offset for each bucket: up to there the transaction's author has
read. It holds if no change at that offset or later is of a key that the transaction has staged for the bucket. The
changelog is compared, so a row that was changed and changed back counts as changed.

Another condition is that the rows can be merged with those that are there: see `MergeablePuts`.

Threads: one for each object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import Conflict, InvalidRequest
from forebay.kv.tablet import ChangelogCodec
from forebay.metadata.table import TableBucket
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.write_command import DecidedBatch

UnchangedSince = Mapping[int, Mapping[TableBucket, int]]
"""By table id and bucket, the offsets from which on keys must not be changed; 0 for buckets that are not there."""

_KEYS_AT_ONCE = 100_000
"""Changed keys that are compared in one step, at least, if there are as many."""
_KEYS_SHOWN = 3


class KeysChanged(Conflict):
    """A condition that does not hold."""


class UnchangedKeys:
    """The condition on one bucket."""

    def __init__(
        self, replica: BucketReplica, codec: ChangelogCodec, staged: Iterable[DecidedBatch], since: int
    ) -> None:
        self.replica, self._codec, self._staged = replica, codec, staged
        self._since = since

    def check(self, end: int) -> None:
        """Raise `KeysChanged` if a key was changed below `end`. What was read is not read again by the next call.

        Raises `CorruptData`, `StorageFailure`.
        """
        log, path = self.replica.log, self.replica.table.info.path
        if not log.log_start_offset <= self._since <= log.log_end_offset:
            raise KeysChanged(
                f"whether other writers have changed rows of table {path} cannot be said: the log of bucket "
                f"{self.replica.bucket} has offsets {log.log_start_offset} to {log.log_end_offset}, and not "
                f"{self._since}"
            )
        if self._since >= end:
            return
        ours: pa.Array | None = None
        for changed in self._changed(end):
            ours = self._keys() if ours is None else ours
            both = changed.filter(pc.is_in(changed, value_set=ours)).unique()
            if len(both):
                rows = self._codec.shown_keys(both.slice(0, _KEYS_SHOWN).to_pylist())
                raise KeysChanged(
                    f"other writers have changed {len(both)} of the rows that this transaction writes to table {path}, "
                    f"such as {rows}{_partition(self.replica)}; run it again"
                )
        self._since = end

    def _keys(self) -> pa.Array:
        return pa.concat_arrays([self._codec.keys_of_put(memoryview(batch.read())) for batch in self._staged])

    def _changed(self, end: int) -> Iterator[pa.Array]:
        keys: list[pa.Array] = []
        for header, data in self.replica.log.iterate_batches(self._since, end):
            if header.record_count:
                batch_keys = self._codec.keys_of_changes(header, data)
                keys.append(batch_keys.slice(max(self._since - header.base_offset, 0)))
            if sum(map(len, keys)) >= _KEYS_AT_ONCE:
                yield pa.concat_arrays(keys)
                keys = []
        if keys:
            yield pa.concat_arrays(keys)


class PutRefused(InvalidRequest):
    """Rows of a transaction that cannot be merged with those that are in their table."""


class MergeablePuts:
    """The condition that no put of a transaction into a bucket is refused because of the rows that are there."""

    def __init__(self, replica: BucketReplica, staged: Iterable[DecidedBatch]) -> None:
        self.replica, self._staged = replica, staged

    def check(self) -> None:
        """Raise `PutRefused` if a put is refused. This holds until other rows are written.

        Raises `CorruptData` for staged rows that cannot be read, `StorageFailure`.
        """
        try:
            self.replica.try_puts(self._staged)
        except InvalidRequest as e:
            path = self.replica.table.info.path
            raise PutRefused(
                "nothing of this transaction was written: rows cannot be merged into table "
                f"{path}{_partition(self.replica)}: {e.message}",
                e.code,
            ) from e


def _partition(replica: BucketReplica) -> str:
    partition_id = replica.bucket.partition_id
    partition = None if partition_id is None else replica.table.current.partitions_by_id.get(partition_id)
    return "" if partition is None else f" in partition {partition.name}"
