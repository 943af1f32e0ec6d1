"""The list of the snapshots that clients download, and of leases on them, in the metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from forebay.base.errors import LimitExceeded
from forebay.metadata.table import TableBucket
from forebay.server.metadata_store import MetadataStore, bucket_columns, bucket_of, doom, put_row


class KvSnapshotFile(NamedTuple):
    """A file that clients download: its name for them, and its object in the store."""

    name: str
    object: str
    size_bytes: int


class StoredKvSnapshot(NamedTuple):
    """A snapshot of a bucket that clients download, which contains its changelog up to an offset (exclusive)."""

    bucket: TableBucket
    snapshot_id: int
    log_offset: int
    files: tuple[KvSnapshotFile, ...]
    replaced_ms: int
    """When the next one was made; 0 for the newest one."""


class KvSnapshotList:
    """The list of one server. Any thread."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def snapshots(self, bucket: TableBucket | None = None) -> list[StoredKvSnapshot]:
        """The snapshots that clients may download, of one bucket or of all; the newest of each bucket first."""
        of_bucket = "" if bucket is None else "WHERE table_id = ? AND partition_id = ? AND bucket = ?"
        query = f"SELECT * FROM kv_snapshots {of_bucket} ORDER BY table_id, partition_id, bucket, snapshot_id DESC"
        return [
            StoredKvSnapshot(
                bucket_of(*row[:3]), row[3], row[4], tuple(KvSnapshotFile(*file) for file in json.loads(row[5])), row[6]
            )
            for row in self._metadata.rows(query, *(() if bucket is None else bucket_columns(bucket)))
        ]

    def put(self, snapshot: StoredKvSnapshot, now_ms: int) -> None:
        """List a snapshot, which replaces the newest one of its bucket by now; its objects are not to be deleted."""
        before = [each for each in self.snapshots(snapshot.bucket) if not each.replaced_ms]
        with self._metadata.transaction() as sql:
            for each in [*(old._replace(replaced_ms=now_ms) for old in before), snapshot]:
                files = json.dumps(each.files, separators=(",", ":"))
                key = (*bucket_columns(each.bucket), each.snapshot_id)
                put_row(sql, "kv_snapshots", *key, each.log_offset, files, each.replaced_ms)
            for file in snapshot.files:
                sql.execute("DELETE FROM doomed_objects WHERE name = ?", (file.object,))

    def forget(self, snapshot: StoredKvSnapshot, due_ms: int, unless_leased_ms: int | None = None) -> None:
        """Remove a snapshot and its leases from the lists; its objects are to be deleted at `due_ms`.

        `unless_leased_ms`: it stays if a client has a lease on it that ends after this time.
        """
        of_snapshot = "WHERE table_id = ? AND partition_id = ? AND bucket = ? AND snapshot_id = ?"
        key = (*bucket_columns(snapshot.bucket), snapshot.snapshot_id)
        with self._metadata.transaction() as sql:
            leases = self._metadata.rows(f"SELECT * FROM kv_snapshot_leases {of_snapshot}", *key)
            if unless_leased_ms is not None and any(row[5] > unless_leased_ms for row in leases):
                return
            for table in ("kv_snapshots", "kv_snapshot_leases"):
                sql.execute(f"DELETE FROM {table} {of_snapshot}", key)
            doom(sql, {file.object: due_ms for file in snapshot.files})

    def end_leases(self, now_ms: int) -> None:
        """Remove the leases that have ended."""
        if self._metadata.rows("SELECT * FROM kv_snapshot_leases WHERE until_ms <= ? LIMIT 1", now_ms):
            with self._metadata.transaction() as sql:
                sql.execute("DELETE FROM kv_snapshot_leases WHERE until_ms <= ?", (now_ms,))

    def lease(
        self, lease_id: str, wanted: Mapping[TableBucket, int], until_ms: int, now_ms: int, leases_max: int
    ) -> set[TableBucket]:
        """Put snapshots under a lease, which ends no earlier than it would have; return the buckets whose snapshots
        are not listed (any more). Raises `LimitExceeded`, with nothing changed."""
        with self._metadata.transaction() as sql:  # with the look, so that no snapshot is forgotten in between
            listed = {row[:4] for row in self._metadata.rows("SELECT * FROM kv_snapshots")}
            keys = {bucket: bucket_columns(bucket) for bucket in wanted}
            gone = {bucket for bucket, snapshot_id in wanted.items() if (*keys[bucket], snapshot_id) not in listed}
            held = {row[:4]: row[5] for row in self._metadata.rows("SELECT * FROM kv_snapshot_leases")}
            current = sum(until > now_ms for until in held.values())
            kept = {bucket: (lease_id, *keys[bucket]) for bucket in wanted if bucket not in gone}
            if current + sum(held.get(key, 0) <= now_ms for key in kept.values()) > leases_max:
                raise LimitExceeded(
                    f"there are {current} leases on KV snapshots, and at most {leases_max} may be held: release some"
                )
            for bucket, key in kept.items():
                put_row(sql, "kv_snapshot_leases", *key, wanted[bucket], max(until_ms, held.get(key, 0)))
        return gone

    def release(self, lease_id: str, buckets: Iterable[TableBucket] | None = None) -> None:
        """End a lease, or its part for some buckets."""
        with self._metadata.transaction() as sql:
            if buckets is None:
                sql.execute("DELETE FROM kv_snapshot_leases WHERE lease_id = ?", (lease_id,))
            for bucket in buckets or ():
                sql.execute(
                    "DELETE FROM kv_snapshot_leases WHERE lease_id = ? AND table_id = ? AND partition_id = ? "
                    "AND bucket = ?",
                    (lease_id, *bucket_columns(bucket)),
                )
