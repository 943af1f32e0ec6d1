"""The open buckets, the uses of each, and the choice of the one to close next.

An open bucket costs descriptors, address space and memory, so the number of open buckets is limited. Beyond the limit,
the least recently used bucket is closed; it is reopened on demand. Buckets in use, and buckets that a scan or a table
snapshot reads, stay open even beyond the limit.

Nouns: a *use* is a request, or maintenance work, between `begin` and `end`. A bucket that was closed in this way is
*parked*: its files are synced and complete, and the facts that are requested most are kept (`ParkedBucket`), so that a
reader at the end of its log need not open it.

Threads: everything here may be called from any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from forebay.base import threads
from forebay.base.host import return_free_memory
from forebay.base.thread_rules import any_thread
from forebay.metadata.table import TableBucket
from forebay.server.storage.replica import BucketReplica

_TAKEN_WORTH_IT = 32
"""Closed buckets after which memory is returned to the system, a pass over all heaps."""


@any_thread
class OpenBuckets:
    """The open buckets in the order of their last use."""

    def __init__(self, limit: int, is_read: Callable[[TableBucket], bool]) -> None:
        """`is_read` returns whether scans or snapshots of a bucket are open. It must not call back."""
        self._limit = limit
        self._is_read = is_read
        self._lock = threads.lock()
        self._open: OrderedDict[TableBucket, BucketReplica] = OrderedDict()
        self._taken = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def are_too_many(self) -> bool:
        """Return whether more buckets are open than may stay open while unused."""
        return len(self._open) > self._limit

    def get(self, bucket: TableBucket) -> BucketReplica | None:
        """Return the replica if it is open; it may be closed at any time."""
        return self._open.get(bucket)

    def all(self) -> list[BucketReplica]:
        """Return all open replicas."""
        with self._lock:
            return list(self._open.values())

    def begin(self, bucket: TableBucket, *, counts: bool = True) -> BucketReplica | None:
        """Return the replica if it is open; it stays open until `end`. `counts`: whether this is a use by a client."""
        with self._lock:
            replica = self._open.get(bucket)
            if replica is not None:
                replica.uses += 1
                if counts:
                    self._open.move_to_end(bucket)
            return replica

    def end(self, replica: BucketReplica) -> None:
        """End a use that `begin` or `add` began."""
        with self._lock:
            replica.uses -= 1

    def add(self, replica: BucketReplica) -> None:
        """Add a bucket that was opened and is in use."""
        with self._lock:
            replica.uses += 1
            self._open[replica.bucket] = replica

    def remove(self, bucket: TableBucket) -> BucketReplica | None:
        """Remove and return a bucket, even if it is in use."""
        with self._lock:
            return self._open.pop(bucket, None)

    def take_idle(self, begin_closing: Callable[[TableBucket], bool]) -> BucketReplica | None:
        """Remove and return the bucket to close next; None if there are not too many, or all are in use.

        `begin_closing` is called before any other thread can see that the bucket is no longer open; it may refuse.
        """
        with self._lock:
            for _ in range(len(self._open) if self.are_too_many else 0):
                bucket, replica = next(iter(self._open.items()))
                if self._is_idle(replica) and begin_closing(bucket):
                    del self._open[bucket]
                    self._taken += 1
                    return replica
                self._open.move_to_end(bucket)
            return None

    def take_unused(
        self, is_wanted: Callable[[BucketReplica], bool], begin_closing: Callable[[TableBucket], bool]
    ) -> BucketReplica | None:
        """Remove and return an unused bucket that is wanted, like `take_idle`."""
        with self._lock:
            for bucket, replica in self._open.items():
                if self._is_idle(replica) and is_wanted(replica) and begin_closing(bucket):
                    del self._open[bucket]
                    self._taken += 1
                    return replica
            return None

    def return_memory(self) -> None:
        """Return memory of removed buckets to the system, once there are enough of them."""
        with self._lock:
            if self._taken < _TAKEN_WORTH_IT:
                return
            self._taken = 0
        return_free_memory()

    def _is_idle(self, replica: BucketReplica) -> bool:
        return not (replica.uses or self._is_read(replica.bucket)) and replica.is_idle
