"""Table snapshots of queries: a whole primary-key table is read at one point in time, by all tasks.

The driver opens a snapshot when a query's tasks are made, and every task reads its buckets of that snapshot: tasks that
are tried again, or run twice (speculation), give the same rows. The snapshot ends with the query's plan: when the JVM
collects the plan, Python lets go of its scan, which releases the snapshot. Its lease ends it where that does not
happen, because the driver died for instance.

Tasks that come when the snapshot is gone make the same rows from the changelog (`ReadFunction`), where it is complete.

The JVM may take its time to collect plans. So a driver that has many snapshots open asks it to.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from forebay.client.connection import Connection
from forebay.client.table_snapshot import TableSnapshot, open_snapshot_of
from forebay.metadata.table import TableBucket, TableInfo
from forebay.spark.options import SnapshotLease

LEASE_SECONDS = 1800.0
"""How long a snapshot waits for a task of its query to read, where the user does not say otherwise."""

OPEN_BEFORE_COLLECTING = 64
"""Snapshots of one driver beyond which the JVM is asked to collect the plans of old queries."""


def open_for_query(
    connection: Connection, info: TableInfo, buckets: Sequence[TableBucket], lease: SnapshotLease
) -> TableSnapshot | None:
    """A snapshot of these buckets; None where the cluster has no table snapshots, or there is nothing to read.

    It is released when it is collected, by this process. Raises `LimitExceeded` if the server has its fill of them.
    """
    cluster = connection.cluster
    duration = round((LEASE_SECONDS if lease.seconds is None else lease.seconds) * 1000)
    snapshot = cluster.retrying(
        lambda: open_snapshot_of(connection, info, buckets, duration, lease.lease_id or f"spark {info.path}"),
        stale=lambda: cluster.refresh([info.path]),
    )
    if snapshot.snapshot_id is None:
        return None
    snapshot.release_when_collected()
    return snapshot


class OpenSnapshots:
    """The snapshots and other resources that a driver keeps open for its queries. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[object] = weakref.WeakSet()
        self._collect_at = OPEN_BEFORE_COLLECTING

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def add(self, snapshot: object, collect: Callable[[], object]) -> None:
        """Remember one; `collect` makes the JVM collect garbage, if there are many.

        Plans that are in use after all do not make every further query collect: then more have to come first.
        """
        with self._lock:
            self._open.add(snapshot)
            is_due = len(self._open) >= self._collect_at
            if is_due:
                self._collect_at = len(self._open) * 2
        if is_due:
            collect()
        else:
            with self._lock:
                if len(self._open) < OPEN_BEFORE_COLLECTING // 2:
                    self._collect_at = OPEN_BEFORE_COLLECTING


open_snapshots = OpenSnapshots()
"""Those of this process."""
