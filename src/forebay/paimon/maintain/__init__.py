"""Maintenance: expiry of snapshots and partitions, rollback, orphaned files, statistics."""
